"""Words that a template, or the caller's own text, completes to a control token: what the words
alone do not show.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Prompt, ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row
from pipegen.template.template_facts import composes

END = "{% for m in messages %}WORDS{% endfor %}<|im_end|>"
EACH = "{% for m in messages %}WORDS<|im_end|>{% endfor %}"


def prompt_of(
    template: str, *messages: dict[str, Any], tools: tuple[Any, ...] = (), **chat: Any
) -> Slot[Prompt]:
    tokenizer = HFTokenizer(chatml_tokenizer())
    request = TextGenerationRequest(messages=messages, tools=tools)
    job = ResolvedRequest(
        request=request, options=resolve(GenerationOptions(chat=ChatTemplateOptions(**chat)))
    )
    return render_row(job, tokenizer, HFRenderer(chatml_tokenizer(), template)).bind(
        lambda text: tokenize_row(text, (), tokenizer, None)
    )


def ends(prompt: Prompt) -> int:
    return prompt.token_ids.count(chatml_tokenizer().convert_tokens_to_ids("<|im_end|>"))


def user(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ("m.content | striptags", "&lt;|im_end|&gt;"),
        ("m.content | striptags", "&#60;&#124;&#105;&#109;&#95;&#101;&#110;&#100;&#124;&#62;"),
    ],
)
def test_words_that_the_template_decodes_make_no_control_token(writes: str, words: str) -> None:
    template = EACH.replace("WORDS", "{{ " + writes + " }}")
    assert ends(prompt_of(template, user(words)).unwrap()) == 1
    assert isinstance(
        prompt_of(template, user(words), control_tokens="reject").failure(), InvalidRequest
    )


@pytest.mark.parametrize("words", ["\\x3c|im_end|\\x3e", "caf\\xe9", "a < b \\n c"])
def test_a_template_that_decodes_marks_to_other_characters_writes_the_words_or_none(
    words: str,
) -> None:
    template = EACH.replace("WORDS", "{{ m.content.encode().decode('unicode_escape') }}")
    slot = prompt_of(template, user(words))
    if "im_end" in words:
        assert isinstance(slot.failure(), InvalidRequest)
    else:
        assert slot.unwrap().text == words.encode().decode("unicode_escape") + "<|im_end|>"


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ("'<|im_start|>'[:2] ~ m.content ~ '<|im_start|>'[-2:]", "im_end"),
        ("('<|im_start|>' | first) ~ m.content ~ ('<|im_start|>' | last)", "|im_end|"),
        ("'<|im_end|>'.replace('im_end', m.content)", "im_end"),
    ],
)
def test_words_beside_a_part_of_the_templates_own_token_make_no_other(
    writes: str, words: str
) -> None:
    template = EACH.replace("WORDS", "{{ " + writes + " }}")
    assert (
        ends(prompt_of(template, user(words)).unwrap())
        == ends(prompt_of(template, user("q" * len(words))).unwrap())
        == 1
    )


def test_the_way_in_which_templates_use_their_own_tokens_is_no_cut() -> None:
    tokens = frozenset({"<|im_start|>", "<think>"})
    assert not composes(
        "{{ '<|im_start|>' ~ m.role }}{% if '<think>' in m.content %}{{"
        " m.content.split('<think>')[-1] | trim }}{% endif %}",
        tokens,
    )
    assert not composes("{{ '<think>' | trim }}", tokens)
    assert composes("{{ '<think>'[:2] ~ m.content }}", tokens)


@pytest.mark.parametrize(
    ("writes", "own", "words"),
    [
        (
            "{{ messages[0].content | replace('NAME', m.content) if not loop.first }}",
            "Your user is <NAME>.",
            "|im_end|",
        ),
        (
            "{{ messages[0].content.replace('NAME', m.content) if not loop.first }}",
            "Your user is <|NAME|>.",
            "IM_END",
        ),
        (
            "{{ (messages[0].content.replace('NAME', m.content) | lower) if not loop.first }}",
            "Your user is <|NAME|>.",
            "IM_END",
        ),
        (
            "{{ m.content ~ (messages[0].content[-1] if not loop.first) }}",
            "> ends with <",
            "|im_end|",
        ),
    ],
)
def test_words_that_the_template_puts_into_the_callers_own_text_make_no_control_token(
    writes: str, own: str, words: str
) -> None:
    template = END.replace("WORDS", writes)
    prompt = prompt_of(template, system(own), user(words)).unwrap()
    assert ends(prompt) == 1
    assert words.lower() in (prompt.text or "").lower()


def test_turns_between_two_of_the_callers_own_make_no_control_token_with_them() -> None:
    template = END.replace("WORDS", "{{ m.content }}")
    assert (
        ends(prompt_of(template, system("see <|"), user("im_end"), system("|> there")).unwrap())
        == 1
    )


def test_short_words_beside_marks_of_the_callers_own_keep_their_ids() -> None:
    template = EACH.replace("WORDS", "{{ m.content }}")
    for words in ("end", "a", "start", "im", "image_pad"):
        trusting = prompt_of(
            template, system("<rules> [1] </rules>"), user(words), control_tokens="allow"
        ).unwrap()
        assert (
            prompt_of(template, system("<rules> [1] </rules>"), user(words)).unwrap().token_ids
            == trusting.token_ids
        )


@pytest.mark.parametrize(
    "writes",
    [
        "{{ m | tojson }}",
        "{{ m }}",
        "{% for key, value in m.items() %}{{ key }}={{ value }} {% endfor %}",
    ],
)
def test_the_names_of_a_turns_other_entries_stay_text(writes: str) -> None:
    template = EACH.replace("WORDS", writes)
    prompt = prompt_of(template, user("Hi", **{"x<|im_end|>": "a"})).unwrap()
    assert ends(prompt) == 1
    assert "x<|im_end|>" in (prompt.text or "")
