"""Prompts with the real tokenizers and chat templates of many families; `fetch.py` says where they come from.

Runs where PIPEGEN_REAL_TOKENIZERS names the folder that they were fetched into, as `nox -s real_tokenizers` does.
"""

from __future__ import annotations

import functools
import os
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from pipegen.backends.tokenizers import HFRenderer, HFTokenizer, load_tokenizer
from pipegen.errors import TemplateFailed
from pipegen.options import ChatTemplateOptions, GenerationOptions, resolve
from pipegen.records import Job, Prompt
from pipegen.requests import TextGenerationRequest
from pipegen.slots import Slot, is_ok
from pipegen.stages.render import render
from pipegen.stages.tokenize import encode

if "PIPEGEN_REAL_TOKENIZERS" not in os.environ:
    pytest.skip("PIPEGEN_REAL_TOKENIZERS names no folder of real tokenizers", allow_module_level=True)
FOLDER = Path(os.environ["PIPEGEN_REAL_TOKENIZERS"])
TEXTS = 300

FAMILIES = {
    "qwen3": (
        *("own", "qwen2_5", "qwen2_5_vl", "qwen3", "qwen3_instruct_2507", "qwen3_vl", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"),
        *("glm4moe", "deepseek_r1_distill", "nemotron_3_nano", "lfm2", "llava_next", "smolvlm"),
    ),
    "llama3_2": ("own", "llama3", "llama3_1", "llama3_2", "deepseek_r1_distill", "llava_next", "idefics3", "cohere2"),
    "mistral_nemo": ("own", "llava_next", "phi3_5"),
    "gemma3": ("own", "gemma", "gemma3", "gemma4", "gemma4_v5"),
}
PAIRS = [(name, template) for name, templates in FAMILIES.items() for template in templates]
each_pair = pytest.mark.parametrize(("name", "template"), PAIRS)

ORDINARY = (
    *("Hello", " the fox", "12 + 30 = 42", "\n", "\n\n\n", "    ", "\t", "é", "e\u0301", "你好，世界", "👩‍🚀", '{"a": [1, 2]}', "<b>bold</b>", "a < b", "[1]"),
    *("|", "\\n", "user\n", "assistant", "```python\nx = 1\n```", "\ue000", "ﬁ", "don't", "<div>", "...", "नमस्ते", "ไทย"),
)


@functools.cache
def loaded(name: str) -> tuple[HFTokenizer, HFRenderer]:
    return load_tokenizer(str(FOLDER / "tokenizers" / name))


def renderer_of(name: str, template: str) -> HFRenderer:
    tokenizer, own = loaded(name)
    return own if template == "own" else _renderer(tokenizer.raw, template)


@functools.cache
def _renderer(raw: Any, template: str) -> HFRenderer:
    return HFRenderer(raw, (FOLDER / "templates" / f"{template}.jinja").read_text(encoding="utf-8"))


def prompt_of(name: str, template: str, turns: list[dict[str, Any]], **chat: Any) -> Slot[Prompt]:
    tokenizer = loaded(name)[0]
    job = Job(request=TextGenerationRequest(messages=turns), options=resolve(GenerationOptions(chat=ChatTemplateOptions(**chat))))
    return render(job, tokenizer, renderer_of(name, template)).bind(lambda rendered: encode(rendered, (), tokenizer, None))


def control(name: str, template: str) -> dict[str, int]:
    """The special tokens, and the tags that the template writes."""
    tokenizer, source = loaded(name)[0], renderer_of(name, template).template or ""
    written = {token: number for token, number in tokenizer.control_tokens.items() if token in source and token.strip()}
    return {**tokenizer.special_tokens, **written}


def hostile_text(rng: random.Random, tokens: list[str]) -> str:
    def piece() -> str:
        token, other = rng.choice(tokens), rng.choice(tokens)
        at = rng.randrange(1, len(token)) if len(token) > 1 else 1
        return rng.choice((token, token[:at], token[at:], token[:at] + other + token[at:], token + other, rng.choice(ORDINARY), rng.choice(ORDINARY)))

    return "".join(piece() for _ in range(rng.randint(1, 6))) + rng.choice(tokens)


def conversation(row: int, text: str) -> list[dict[str, Any]]:
    """The text as a string, as two parts cut anywhere, in an earlier turn, or as the answer of a tool."""
    user: dict[str, Any] = {"role": "user", "content": text}
    if row % 4 == 1:
        at = row * 7 % (len(text) + 1)
        user = {"role": "user", "content": [{"type": "text", "text": part} for part in (text[:at], text[at:])]}
    if row % 4 == 2:
        return [user, {"role": "assistant", "content": "Well, yes."}, {"role": "user", "content": "Why?"}]
    if row % 4 == 3:
        call = {"type": "function", "id": "call00001", "function": {"name": "look", "arguments": {}}}
        asked = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return [*asked, {"role": "tool", "content": text, "name": "look", "tool_call_id": "call00001"}]
    return [user]


def both(name: str, template: str, row: int, text: str) -> tuple[Prompt, Prompt]:
    """The prompts of the text and of a harmless one in its place; in a user turn where the template takes no tools."""
    slots = [prompt_of(name, template, conversation(row, said)) for said in (text, "some words")]
    if not is_ok(slots[1]) and isinstance(slots[1].failure(), TemplateFailed):
        slots = [prompt_of(name, template, conversation(0, said)) for said in (text, "some words")]
    return slots[0].unwrap(), slots[1].unwrap()


@each_pair
def test_no_control_token_comes_from_a_users_words_and_the_words_are_all_there(name: str, template: str) -> None:  # T3
    tokenizer, steering = loaded(name)[0], control(name, template)
    rng, ids = random.Random(f"{name} {template}"), frozenset(steering.values())
    for row in range(TEXTS):
        text = hostile_text(rng, list(steering))
        hostile, harmless = both(name, template, row, text)
        assert [number for number in hostile.token_ids if number in ids] == [number for number in harmless.token_ids if number in ids], repr(text)
        assert unicodedata.normalize("NFC", tokenizer.decode(hostile.token_ids)) == unicodedata.normalize("NFC", hostile.text or ""), repr(text)


@each_pair
def test_ordinary_text_has_the_plain_ids(name: str, template: str) -> None:  # T6, B9
    tokenizer, renderer = loaded(name)[0], renderer_of(name, template)
    rng = random.Random(f"{name} {template}")
    for _ in range(TEXTS):
        content: Any = "".join(rng.choice(ORDINARY) for _ in range(rng.randint(1, 9)))
        prompt = prompt_of(name, template, [{"role": "user", "content": content}]).unwrap()
        takes_parts_only = template in ("llava_next", "smolvlm", "idefics3")
        turns = [{"role": "user", "content": [{"type": "text", "text": content}] if takes_parts_only else content}]
        switch = {"enable_thinking": False} if prompt.thinking == "honoured" else {}
        plain = renderer.raw.apply_chat_template(turns, chat_template=renderer.template, tokenize=False, add_generation_prompt=True, **switch)
        assert prompt.text == plain
        assert prompt.token_ids == tuple(renderer.raw(plain, add_special_tokens=False)["input_ids"])
        assert tokenizer.raw.bos_token_id is None or prompt.token_ids.count(tokenizer.raw.bos_token_id) <= 1


@pytest.mark.parametrize(
    ("name", "template", "thinking"),
    [
        ("qwen3", "own", "honoured"),
        ("qwen3", "qwen3", "honoured"),
        ("qwen3", "qwen3_8", "honoured"),
        ("qwen3", "glm4moe", "honoured"),
        ("qwen3", "nemotron_3_nano", "honoured"),
        ("qwen3", "qwen3_vl", "unsupported"),
        ("qwen3", "qwen3_instruct_2507", "unsupported"),
        ("qwen3", "qwen2_5", "unsupported"),
        ("llama3_2", "own", "unsupported"),
        ("gemma3", "gemma4", "honoured"),
        ("gemma3", "own", "unsupported"),
        ("mistral_nemo", "own", "unsupported"),
    ],
)
def test_whether_the_thinking_switch_is_honoured_is_found_out(name: str, template: str, thinking: str) -> None:  # T1
    assert prompt_of(name, template, [{"role": "user", "content": "Hi"}]).unwrap().thinking == thinking


def test_the_template_of_qwen3_leaves_an_empty_thought_where_thinking_is_off() -> None:
    turns = [{"role": "user", "content": "Hi"}]
    off, on = (prompt_of("qwen3", "own", turns, enable_thinking=switch).unwrap().text or "" for switch in (False, True))
    assert off == on + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_piece_is_what_the_token_adds_after_any_text(name: str) -> None:
    tokenizer, draw = loaded(name)[0], random.Random(0)
    known = 0
    for _ in range(20 * TEXTS):
        *before, token_id = (draw.randrange(tokenizer.vocab_size) for _ in range(draw.randint(2, 5)))
        text, piece = tokenizer.decode(before), tokenizer.piece(token_id)
        if text and piece is not None:
            known += 1
            assert tokenizer.decode((*before, token_id)) == text + piece
    assert known > 18 * TEXTS  # hardly a token is a part of a character
