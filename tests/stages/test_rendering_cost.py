"""What rendering costs: how often the template and the tokenizer are called for ordinary words, for
look-alikes, and for what changes each time.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import CHATML, chatml_tokenizer

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row

WITH_DOCUMENTS = (
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}{% for m in messages %}{{ m.name }}{{"
    " m.content }}<|im_end|>{% endfor %}"
)

LOOKS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% for key in"
    " c.function.arguments %}<{{ key }}>{% endfor %}{% endfor %}{{ '<think>built in</think>' if"
    " m.tool_calls and m.tool_calls[0].function.name == 'think' }}{% endfor %}<think>"
)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


class Counting(HFRenderer):
    renders = 0

    def render(self, messages: Any, *, tools: Any, template: Any, variables: Any) -> str:
        self.renders += 1
        return super().render(messages, tools=tools, template=template, variables=variables)


class CountingTokenizer(HFTokenizer):
    calls = 0

    def encode(self, text: str) -> tuple[int, ...]:
        self.calls += 1
        return super().encode(text)

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        self.calls += 1
        return super().encode_plain(text, first=first)


def test_words_that_the_template_looks_for_cost_a_render_more_only_where_they_are_part_of_control_tokens() -> (
    None
):
    raw = chatml_tokenizer()
    tokenizer, renderer = HFTokenizer(raw), Counting(raw, LOOKS)
    counts = []
    for key in ("warm", "word", "content", "think"):
        renderer.renders = 0
        call = {
            "type": "function",
            "id": "call1",
            "function": {"name": "look", "arguments": {key: "words"}},
        }
        request = TextGenerationRequest(
            messages=[user("Hi"), {"role": "assistant", "content": "", "tool_calls": [call]}]
        )
        render_row(
            ResolvedRequest(request=request, options=resolve(GenerationOptions())),
            tokenizer,
            renderer,
        ).unwrap()
        counts.append(renderer.renders)
    assert counts[1:3] == [2, 2]
    assert counts[3] <= 5


@pytest.mark.parametrize(
    ("words", "renders", "encodes"),
    [
        ("ordinary words", 1, 1),
        ("a < b [1]", 2, 1),
        ("<|im_end|>", 2, 2),
        ("<|im_end|> " * 5000, 2, 2),
        ("< " * 5000, 2, 1),
    ],
)
def test_ordinary_words_cost_one_render_and_one_call_and_others_a_fixed_number(
    words: str, renders: int, encodes: int
) -> None:
    raw = chatml_tokenizer()
    tokenizer, renderer = CountingTokenizer(raw), Counting(raw, CHATML)
    for content in (
        "warm",
        [{"type": "text", "text": "warm"}],
        words,
        [{"type": "text", "text": part} for part in words.split(" ")],
    ):
        job = ResolvedRequest(
            request=TextGenerationRequest(messages=[user(content)]),
            options=resolve(GenerationOptions()),
        )
        renderer.renders = tokenizer.calls = 0
        render_row(job, tokenizer, renderer).bind(
            lambda text: tokenize_row(text, (), tokenizer, None)
        ).unwrap()
    assert (renderer.renders, tokenizer.calls) == (renders, encodes)


@pytest.mark.parametrize("answer", ["harmless words", "<|im_end|>"])
def test_each_turn_with_a_look_alike_costs_one_call_and_the_template_text_between_turns_is_encoded_once(
    answer: str,
) -> None:
    raw = chatml_tokenizer()
    tokenizer, renderer = CountingTokenizer(raw), Counting(raw, CHATML)
    turns = [user("say <|im_end|>"), {"role": "assistant", "content": answer}] * 40
    for messages in ([*turns[:2], user("warm")], [*turns, user("and <|im_end|>")]):
        job = ResolvedRequest(
            request=TextGenerationRequest(messages=messages), options=resolve(GenerationOptions())
        )
        renderer.renders = tokenizer.calls = 0
        render_row(job, tokenizer, renderer).bind(
            lambda text: tokenize_row(text, (), tokenizer, None)
        ).unwrap()
    assert renderer.renders == 2
    assert tokenizer.calls <= 7  # the texts of equal turns are equal runs too


def test_requests_that_differ_in_their_documents_alone_share_what_is_found_out_about_the_template() -> (
    None
):
    raw = chatml_tokenizer()
    tokenizer, renderer = HFTokenizer(raw), Counting(raw, WITH_DOCUMENTS)
    counts = []
    for number in range(5):
        chat = ChatTemplateOptions(
            template_kwargs={
                "documents": [{"text": f"document {number}"}] * (number + 1),
                "style": "x" * 300,
            }
        )
        job = ResolvedRequest(
            request=TextGenerationRequest(messages=[user("Hi")]),
            options=resolve(GenerationOptions(chat=chat)),
        )
        counts.append(renderer.renders)
        assert "document" in (render_row(job, tokenizer, renderer).unwrap().text or "")
    assert renderer.renders == counts[-1] + 1 == counts[1] + 4


READS = (
    "{% for m in messages %}{{ m.content }}{% if m.content.count('/silent') > 9 or '/no_think' in"
    " m.content or 'image' in m.content or m.content.endswith('.') %}!{% endif %}{{ '<think>' if"
    " m.content == 'think' }}<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("words", "writes", "renders"),
    [
        *(("ordinary words", "", 1), ("an image.", "!", 1), ("I think so", "", 1)),
        *(("be /silent", "", 2), ("/no_think", "!", 3), ("think", "", 3)),
    ],
)
def test_words_cost_more_renders_only_where_they_hold_what_the_template_compares_with(
    words: str, writes: str, renders: int
) -> None:
    raw = chatml_tokenizer()
    tokenizer, renderer = HFTokenizer(raw), Counting(raw, READS)
    for content in (words, words):  # what is found out about the template is remembered
        renderer.renders = 0
        job = ResolvedRequest(
            request=TextGenerationRequest(messages=[user(content)]),
            options=resolve(GenerationOptions()),
        )
        assert render_row(job, tokenizer, renderer).unwrap().text == f"{words}{writes}<|im_end|>"
    assert renderer.renders == renders
