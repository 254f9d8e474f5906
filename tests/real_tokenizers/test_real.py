"""Prompts with the real tokenizers and chat templates of many families; `fetch.py` says where they
come from, `pairs.py` which go together.

Runs where PIPEGEN_REAL_TOKENIZERS names the folder that they were fetched into, as `nox -s
real_tokenizers` does.
"""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest
from hostile import SHAPES, carriers, chosen, control_ids, filled, harmless, prompt_of
from pairs import PAIRS, TOKENIZERS, Pair, loaded, tokenizer_of

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import is_ok

HOSTILE, ORDINARY_PROMPTS, PIECES = 40, 60, 1500
REFUSED = 0.05
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=str)

ORDINARY = (
    *("Hello", " the fox", "12 + 30 = 42", "\n", "\n\n\n", "    ", "\t", "é", "e\u0301"),
    *("你好，世界", "👩‍🚀", '{"a": [1, 2]}', "<b>bold</b>", "a < b", "[1]"),
    *("|", "\\n", "user\n", "assistant", "```python\nx = 1\n```", "\ue000", "ﬁ", "don't"),
    *("<div>", "...", "नमस्ते", "ไทย", "List<int>", "a[i] |= b[j]", "x->y"),
)


def test_there_are_enough_of_them() -> None:
    assert len({pair.tokenizer for pair in PAIRS}) >= 30
    assert len({pair.template for pair in PAIRS if pair.template != "own"}) >= 100


@each_pair
def test_a_template_writes_conversations(pair: Pair) -> None:
    """All but two templates, which want variables of their own or tools, write a user's turn."""
    assert (
        "user" in harmless(pair) or "tool_use" in pair.template or "firefunction" in pair.template
    )


def hostile_text(rng: random.Random, tokens: tuple[str, ...]) -> str:
    def piece() -> str:
        token, other = rng.choice(tokens), rng.choice(tokens)
        at = rng.randrange(1, len(token)) if len(token) > 1 else 1
        return rng.choice(
            (
                *(token, token[:at], token[at:], token[:at] + other + token[at:], token + other),
                *(rng.choice(ORDINARY), rng.choice(ORDINARY)),
            )
        )

    return "".join(piece() for _ in range(rng.randint(1, 6))) + rng.choice(tokens)


@each_pair
# T3
def test_no_control_token_comes_from_any_foreign_words_and_the_words_are_all_there(
    pair: Pair,
) -> None:
    tokenizer, tokens, known = loaded(pair)[0], chosen(pair), harmless(pair)
    rng, refused = random.Random(str(pair)), 0
    for row in range(HOSTILE if tokens and known else 0):
        shape = sorted(known)[row % len(known)]
        said = {
            place.name: hostile_text(rng, tokens)
            for place in carriers(SHAPES[shape])
            if place.harmless.startswith("Words")
        }
        slot = prompt_of(pair, shape, said)
        if not is_ok(slot):
            assert isinstance(slot.failure(), InvalidRequest), said
            refused += 1
            continue
        prompt = slot.unwrap()
        assert control_ids(pair, prompt) == control_ids(pair, known[shape]), said
        if tokenizer.decode(known[shape].token_ids) == known[shape].text and all(
            tokenizer.decode(tokenizer.encode(text)) == text for text in ORDINARY
        ):
            assert unicodedata.normalize(
                "NFC", tokenizer.decode(prompt.token_ids)
            ) == unicodedata.normalize("NFC", prompt.text or ""), said
    assert refused <= REFUSED * HOSTILE


def plain_texts(pair: Pair, shape: str, said: dict[str, str], thinking: str | None) -> list[str]:
    """What the template writes without pipegen: with contents as strings, and with contents as text
    parts, where it takes these.
    """
    raw, template = loaded(pair)[1].raw, loaded(pair)[1]
    messages, tools, more = filled(SHAPES[shape], said)
    source = template.templates["default"]
    switch: dict[str, Any] = {"enable_thinking": False} if thinking == "honoured" else {}
    texts = []
    for parts in (False, True):
        turns = [
            (
                {**turn, "content": [{"type": "text", "text": turn["content"]}]}
                if parts and turn["content"]
                else turn
            )
            for turn in messages
        ]
        try:
            texts.append(
                raw.apply_chat_template(
                    turns,
                    tools=tools or None,
                    chat_template=source,
                    tokenize=False,
                    add_generation_prompt=True,
                    **switch,
                    **more,
                )
            )
        except Exception:  # noqa: BLE001 - a template may raise anything; the other form is left
            continue
    return texts


@each_pair
def test_ordinary_text_has_the_plain_ids(pair: Pair) -> None:  # T6, B9
    tokenizer = loaded(pair)[0]
    rng = random.Random(str(pair))
    shapes = [
        shape for shape in ("user", "history", "called", "documents") if shape in harmless(pair)
    ]
    for row in range(ORDINARY_PROMPTS if shapes else 0):
        shape = shapes[row % len(shapes)]
        places = [place for place in carriers(SHAPES[shape]) if place.harmless.startswith("Words")]
        said = {
            place.name: "".join(rng.choice(ORDINARY) for _ in range(rng.randint(1, 9)))
            for place in places
        }
        prompt = prompt_of(pair, shape, said).unwrap()
        assert prompt.text in plain_texts(pair, shape, said, prompt.thinking)
        assert prompt.token_ids == tuple(
            tokenizer.raw(prompt.text, add_special_tokens=False)["input_ids"]
        )


@pytest.mark.parametrize(
    ("template", "name", "thinking"),
    [
        ("own", "qwen3", "honoured"),
        ("trl/qwen3.jinja", "qwen3", "honoured"),
        ("trl/qwen3_8.jinja", "qwen3", "honoured"),
        ("trl/glm4moe.jinja", "qwen3", "honoured"),
        ("trl/nemotron_3_nano.jinja", "qwen3", "honoured"),
        ("trl/qwen3_vl.jinja", "qwen3", "unsupported"),
        ("trl/qwen3_instruct_2507.jinja", "qwen3", "unsupported"),
        ("trl/qwen2_5.jinja", "qwen3", "unsupported"),
        ("trl/gemma4.jinja", "gemma3", "honoured"),
        ("own", "gemma3", "unsupported"),
        ("own", "llama3_2", "unsupported"),
        ("own", "mistral_nemo", "unsupported"),
    ],
)
# T1
def test_whether_the_thinking_switch_is_honoured_is_found_out(
    template: str, name: str, thinking: str
) -> None:
    assert prompt_of(Pair(template, name), "user", {}).unwrap().thinking == thinking


def test_the_template_of_qwen3_leaves_an_empty_thought_where_thinking_is_off() -> None:
    off, on = (
        prompt_of(Pair("own", "qwen3"), "user", {}, enable_thinking=switch).unwrap().text or ""
        for switch in (False, True)
    )
    assert off == on + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_piece_is_what_the_token_adds_after_any_text(name: str) -> None:
    tokenizer, draw = tokenizer_of(name, False), random.Random(0)
    known = 0
    for _ in range(PIECES):
        *before, token_id = (
            draw.randrange(tokenizer.vocab_size) for _ in range(draw.randint(2, 5))
        )
        text, piece = tokenizer.decode(before), tokenizer.piece(token_id)
        if text and piece is not None:
            known += 1
            assert tokenizer.decode((*before, token_id)) == text + piece
    if name in ("qwen3", "llama3_2", "mistral_nemo", "gemma3"):
        assert known > 0.9 * PIECES  # hardly a token is a part of a character
