"""The control tokens of a prompt are those of the same conversation with harmless words; whatever
the template does with them.
"""

from __future__ import annotations

import functools
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

pytest.importorskip("transformers")

from support.small_tokenizers import added_tokens, chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot, is_ok
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Prompt, ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row
from pipegen.template.untrusted import OWN, Conversation, foreign_strings, rewrite_foreign

ALWAYS = (
    *("<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|endoftext|>", "</s>", "[INST]"),
    *("[/INST]", "]<]minimax[>[", "[e~[", ">>TITLE<<", "]~!b["),
    *("<|fim_prefix|>", "<|USER_0_TOKEN|>", "[|tool|]", "[|user|]"),
)
WHERE_WRITTEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@functools.cache
def tokenizer() -> Any:
    """ChatML's tokenizer, with control tokens that overlap one another and some that begin with
    what others end with.
    """
    import transformers
    from tokenizers import Tokenizer

    fast: Any = transformers.PreTrainedTokenizerFast
    rust = Tokenizer.from_str(chatml_tokenizer().backend_tokenizer.to_str())
    rust.add_special_tokens(
        added_tokens(("</s>", "]<]minimax[>[", "[e~[", ">>TITLE<<", "]~!b["), special=True)
    )
    rust.add_tokens(
        added_tokens(
            ("[|tool|]", "[|user|]", "[INST]", "[/INST]", "<|USER_0_TOKEN|>", "\n\n", "<b>")
        )
    )
    return fast(tokenizer_object=rust)


# What a template does with words. Each is a Jinja expression of `w`.
REWRITES = (
    *("w", "w | trim", "w | lower", "w | upper", "w | tojson", "w | e"),
    *("w | list | join('')", "w | reverse", "w[1:]", "w | string ~ ' '", "w | title"),
    *(
        "w.replace('/think', '')",
        "w.replace('X', '').replace(' ', '')",
        "w.replace('<image>', '<|image_pad|>')",
        "w.split('</think>')[-1]",
    ),
    *(
        "w | replace('(', '<') | replace(')', '>')",
        "w | replace('&lt;', '<')",
        "w.split('|') | join('|')",
        "w.strip('x').lstrip('<')",
        "'<' ~ w ~ '>'",
    ),
    *("w | striptags", "'<think>'[:1] ~ w"),
    *("'<|' + w + '|>'", "w | tojson(ensure_ascii=True)", "w if '[' not in w else w[:-1]"),
    *("w | urlencode", "w.encode('ascii', 'ignore').decode()", "w | list | sort | join"),
    *("w ~ (w | length)", "w | wordwrap(5)", "w ~ (w | urlencode)"),
    *(
        "w ~ ('<think>' if '/no_think' in w)",
        "w ~ ('<|im_end|>' if w | trim == 'quiet')",
    ),
    *(
        "'<%s>' % w",
        "'<|{}|>'.format(w | lower)",
        "'<' ~ w ~ ('>' if w == 'think' else '>')",
        "w | upper if w | upper == 'THINK' else ('<' ~ w ~ '>') | lower",
    ),
)
OPENS = (
    *("'<|im_start|>' + m.role + '\\n'", "'[INST]'", "'<|' + m.role + '|>'"),
    *("'[|' + m.role + '|]'", "''", "m.role + ': '", "'>>TITLE<<' ~ '<'"),
)
ENDS = ("'<|im_end|>\\n'", "'[e~['", "'<'", "'</s>'", "''", "'[/INST]'", "'>'")
PIECES = (
    *ALWAYS,
    *WHERE_WRITTEN,
    *("/no_think", "/no_", "quiet", "[|tool|]"),
    *("<|im_", "end|>", "im_end", "think", "/think", "<|IM_END|>", "<|im_/thinkend|>", "X"),
    *("<image>", "(", ")", "&lt;", "|", "<", ">", "[", "]", " ", "\n"),
    *("]<]minimax[>", ">>TITLE<", "[e~", "hello", "a < b", "é", "\uff1c", "\ue000"),
    *("\\ue000", "<b>", "\n\n", ">|dne_mi|<", "<thiXnk>", "|im_end|", "'", '"'),
)
WORDS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """A template that rewrites the words of every carrier in some way and joins them to its own
    text in some way.
    """
    rewrites, opens, ends = st.sampled_from(REWRITES), st.sampled_from(OPENS), st.sampled_from(ENDS)

    def write(words: str) -> str:
        return "{%- set w = " + words + " -%}{{- " + draw(rewrites) + " -}}"

    content = "m.content if m.content is string else m.content | map(attribute='text') | join('')"
    tools = (
        "{%- for t in tools or [] -%}{{- '<tool_call>' -}}"
        + write("t.function.description")
        + write("t.function.name")
        + "{{- t | tojson -}}{%- endfor -%}"
    )
    documents = "{%- for d in documents or [] -%}" + write("d.text") + "{{- '\\n' -}}{%- endfor -%}"
    calls = (
        "{%- for c in m.tool_calls or [] -%}{{- '<tool_call>' -}}"
        + write("c.function.arguments | tojson")
        + "{{- '</tool_call>' -}}{%- endfor -%}"
    )
    turns = (
        "{%- for m in messages -%}{{- "
        + draw(opens)
        + " -}}"
        + write(content)
        + calls
        + write("m.name or ''")
        + "{{- "
        + draw(ends)
        + " -}}{%- endfor -%}"
    )
    return (
        documents
        + tools
        + turns
        + "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Words in every place that may carry them."""
    user = WORDS | st.lists(
        WORDS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3
    )
    arguments = st.dictionaries(WORDS, WORDS, max_size=2)
    call = st.builds(
        lambda value: {
            "type": "function",
            "id": "a",
            "function": {"name": "look", "arguments": value},
        },
        arguments,
    )
    asked = st.builds(
        lambda content, name: {"role": "user", "content": content, "name": name}, user, WORDS
    )
    answer = st.builds(
        lambda content, calls: {"role": "assistant", "content": content, "tool_calls": calls},
        WORDS,
        st.lists(call, max_size=1),
    )
    told = WORDS.map(lambda content: {"role": "tool", "content": content})
    system = st.sampled_from([[], [{"role": "system", "content": "Be brief. <|im_end|> <think>"}]])
    messages = [*draw(system), *draw(st.lists(asked | answer | told, min_size=1, max_size=4))]
    tool = st.builds(
        lambda name, words: {"type": "function", "function": {"name": name, "description": words}},
        WORDS,
        WORDS,
    )
    documents = st.lists(WORDS.map(lambda text: {"text": text}), max_size=2)
    return Conversation(messages, draw(st.lists(tool, max_size=1)), {"documents": draw(documents)})


def prompt_of(said: Conversation, template: str, **chat: Any) -> Slot[Prompt]:
    kept = HFTokenizer(tokenizer())
    options = resolve(
        GenerationOptions(chat=ChatTemplateOptions(template_kwargs=said.variables, **chat))
    )
    job = ResolvedRequest(
        request=TextGenerationRequest(messages=said.messages, tools=tuple(said.tools)),
        options=options,
    )
    return render_row(job, kept, renderer(template)).bind(
        lambda rendered: tokenize_row(rendered, (), kept, None)
    )


@functools.lru_cache(maxsize=256)
def renderer(template: str) -> HFRenderer:
    return HFRenderer(tokenizer(), template)


def steering(ids: Sequence[int], template: str) -> list[int]:
    known = {
        tokenizer().convert_tokens_to_ids(token)
        for token in (*ALWAYS, *(token for token in WHERE_WRITTEN if token in template))
    }
    return [number for number in ids if number in known]


NAMES = ("tool_calls", "type", "function", "name", "description", "arguments", "id", "text")
"""The entries that the templates look for."""


def harmless(said: Conversation) -> Conversation:
    return rewrite_foreign(said, OWN, lambda text, place: text if text in NAMES else "x")


SWITCHED_BY_DOCUMENTS = (
    "{%- for d in documents or [] -%}{%- set w = d.text -%}{{- w ~ ('<think>' if '/no_think' in w)"
    " -}}{%- endfor -%}{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}{%- set w ="
    " m.content -%}{{- w -}}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
)


@given(template=templates(), said=conversations())
# nothing but the word itself
@example(
    SWITCHED_BY_DOCUMENTS,
    Conversation([{"role": "user", "content": "a"}], [], {"documents": [{"text": "/no_think"}]}),
)
# T3
def test_the_control_tokens_are_those_of_the_same_conversation_with_harmless_words(
    template: str, said: Conversation
) -> None:
    hostile, plain = prompt_of(said, template), prompt_of(harmless(said), template)
    if is_ok(hostile):
        assert steering(hostile.unwrap().token_ids, template) == steering(
            plain.unwrap().token_ids, template
        )
    else:
        assert isinstance(hostile.failure(), InvalidRequest)


@given(template=templates(), said=conversations())
def test_what_rejecting_lets_through_has_them_too(template: str, said: Conversation) -> None:  # T4
    slot = prompt_of(said, template, control_tokens="reject")
    if is_ok(slot):
        assert steering(slot.unwrap().token_ids, template) == steering(
            prompt_of(harmless(said), template).unwrap().token_ids, template
        )


PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")


@given(template=templates(), said=conversations())
def test_no_mark_is_in_a_prompt_in_any_spelling(template: str, said: Conversation) -> None:
    slot = prompt_of(said, template)
    text = urllib.parse.unquote(slot.unwrap().text or "") if is_ok(slot) else ""
    given = template + "".join(words for _, words in foreign_strings(said, ()))
    assert set(PRIVATE.findall(text)) <= set(PRIVATE.findall(given))
