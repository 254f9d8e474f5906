"""Ordinary text has the ids of the plain tokenizer call; no word of a user becomes a control token
or an image.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("transformers")

from support.small_tokenizers import (
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
    unigram_tokenizer,
)

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.core.slots import Slot, is_ok
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import PreparedImage, Prompt, ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.image_places import image_tokens
from pipegen.template.untrusted import choose_marks
from pipegen.testing.prompts import harmless_texts, hostile_texts, messages

Make = Callable[[], Any]
FAMILIES: dict[str, Make] = {
    "chatml": chatml_tokenizer,
    "instruct": instruct_tokenizer,
    "instruct, a prefix always": lambda: instruct_tokenizer("always"),
    "instruct, a prefix by normalizer": lambda: instruct_tokenizer("normalizer"),
    "turns": turns_tokenizer,
    "unigram": unigram_tokenizer,
}
each_family = pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)


def slot_of(raw: Any, turns: list[dict[str, Any]], **chat: Any) -> Slot[Prompt]:
    tokenizer = HFTokenizer(raw)
    job = ResolvedRequest(
        request=TextGenerationRequest(messages=turns),
        options=resolve(GenerationOptions(chat=ChatTemplateOptions(**chat))),
    )
    return render_row(job, tokenizer, HFRenderer(raw, raw.chat_template)).bind(
        lambda rendered: tokenize_row(rendered, (), tokenizer, None)
    )


def prompt_of(raw: Any, turns: list[dict[str, Any]], **chat: Any) -> Prompt:
    return slot_of(raw, turns, **chat).unwrap()


def control(raw: Any) -> dict[str, int]:
    """The tokens that steer this family's models."""
    unknown = (
        (raw.unk_token,)
        if raw.unk_token and raw.backend_tokenizer.model.__class__.__name__ == "Unigram"
        else ()
    )
    steering = (
        token
        for token in HFTokenizer(raw).control_tokens
        if token not in ("\n\n", "\n\n\n", "<b>", "</b>", *unknown)
    )
    return {token: HFTokenizer(raw).control_tokens[token] for token in steering}


def turns_of(
    raw: Any, data: st.DataObject, texts: Callable[[tuple[str, ...]], st.SearchStrategy[str]]
) -> list[dict[str, Any]]:
    drawn: list[dict[str, Any]] = data.draw(
        messages(texts(tuple(control(raw))), tools=raw is chatml_tokenizer())
    )
    return drawn


def defused(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**turn, "content": "x"} if turn["role"] in ("user", "tool") else turn for turn in turns
    ]


def shown(text: str) -> str:
    """Text as far as every family keeps it: up to normal forms, prefix spaces and blanks."""
    return "".join(unicodedata.normalize("NFKC", text).replace("▁", " ").split())


@each_family
@given(data=st.data())
def test_no_control_token_comes_from_a_users_words(make: Make, data: st.DataObject) -> None:  # T3
    raw = make()
    turns, steering = turns_of(raw, data, hostile_texts), frozenset(control(raw).values())
    ids, harmless = (prompt_of(raw, said).token_ids for said in (turns, defused(turns)))
    assert [number for number in ids if number in steering] == [
        number for number in harmless if number in steering
    ]


@each_family
@given(data=st.data())
def test_hostile_words_are_still_there_as_text(make: Make, data: st.DataObject) -> None:  # T3
    raw = make()
    prompt = prompt_of(raw, turns_of(raw, data, hostile_texts))
    if raw is unigram_tokenizer():
        return  # its unknown characters are lost in any text
    assert shown(HFTokenizer(raw).decode(prompt.token_ids)) == shown(prompt.text or "")


@each_family
@given(data=st.data())
def test_hostile_text_is_rendered_as_the_template_renders_it(
    make: Make, data: st.DataObject
) -> None:
    raw = make()
    turns = turns_of(raw, data, hostile_texts)
    assert prompt_of(raw, turns).text == prompt_of(raw, turns, control_tokens="allow").text


@each_family
@given(data=st.data())
def test_ordinary_text_has_the_plain_ids(make: Make, data: st.DataObject) -> None:  # T6
    raw = make()
    turns = turns_of(raw, data, harmless_texts)
    prompt = prompt_of(raw, turns)
    plain = tuple(raw(prompt.text, add_special_tokens=False)["input_ids"])
    if not (
        raw is unigram_tokenizer()
        and any(token in unicodedata.normalize("NFKC", prompt.text or "") for token in control(raw))
    ):
        assert prompt.token_ids == plain


@each_family
@given(data=st.data())
def test_allowed_control_tokens_have_the_plain_ids(make: Make, data: st.DataObject) -> None:  # T4
    raw = make()
    prompt = prompt_of(raw, turns_of(raw, data, hostile_texts), control_tokens="allow")
    assert prompt.token_ids == tuple(raw(prompt.text, add_special_tokens=False)["input_ids"])


@each_family
@given(data=st.data())
# T4
def test_rejecting_refuses_exactly_what_holds_a_look_alike(make: Make, data: st.DataObject) -> None:
    raw = make()
    turns = [
        turn for turn in turns_of(raw, data, hostile_texts) if isinstance(turn["content"], str)
    ] or [{"role": "user", "content": "x"}]
    refused = not is_ok(slot_of(raw, turns, control_tokens="reject"))
    hostile = any(
        token in turn["content"]
        for token in control(raw)
        for turn in turns
        if turn["role"] in ("user", "tool")
    )
    assert hostile <= refused
    if raw is not unigram_tokenizer():
        assert hostile == refused


@given(
    tokens=st.lists(
        st.text(alphabet="<s>|", min_size=1, max_size=5), min_size=1, max_size=5, unique=True
    ),
    parts=st.lists(st.text(alphabet="<s>| ", max_size=12), max_size=4),
)
def test_marked_text_holds_no_token_keeps_its_length_and_can_be_undone(
    tokens: list[str], parts: list[str]
) -> None:
    known = ControlTokens(ids={token: number for number, token in enumerate(tokens)})
    marks = choose_marks(known.edges, avoid="".join(parts))
    assert marks is not None
    marked = [marks.mark(part) for part in parts]
    assert known.found_in("".join(marked)) is None
    assert known.found_in("".join(part.strip() for part in marked)) is None
    assert [len(part) for part in marked] == [len(part) for part in parts]
    assert [marks.put_back(part) for part in marked] == parts


# Images that take frames, marks and line ends.

PLACES: dict[str, tuple[Make, str]] = {
    "chatml": (chatml_tokenizer, "<|image_pad|>"),
    "turns": (turns_tokenizer, "<image>"),
}
each_place = pytest.mark.parametrize(("make", "mark"), PLACES.values(), ids=PLACES)


def expansions(raw: Any, mark: str) -> st.SearchStrategy[PreparedImage]:
    pieces = st.sampled_from((mark, mark * 2, "\n", "\n\n", " ", "row 1", *control(raw)))
    written = st.none() | st.lists(pieces, min_size=1, max_size=6).map("".join)
    return written.map(
        lambda text: PreparedImage(
            width=1, height=1, rgb=bytes(3), digest="d", tokens=2, expansion=text
        )
    )


def with_images(raw: Any, mark: str, parts: list[str | PreparedImage]) -> Prompt:
    tokenizer = HFTokenizer(raw)
    content = [
        (
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": b"1"}
        )
        for part in parts
    ]
    images = tuple(part for part in parts if isinstance(part, PreparedImage))
    job = ResolvedRequest(
        request=VlmGenerationRequest(messages=[{"role": "user", "content": content}]),
        options=resolve(GenerationOptions()),
    )
    rendered = render_row(
        job,
        tokenizer,
        HFRenderer(raw, raw.chat_template),
        image_marks=image_tokens(images, tokenizer, mark),
    )
    return rendered.bind(lambda text: tokenize_row(text, images, tokenizer, mark)).unwrap()


@each_place
@given(data=st.data())
def test_ordinary_text_beside_images_has_the_ids_of_the_expanded_text(
    make: Make, mark: str, data: st.DataObject
) -> None:
    raw = make()
    texts = harmless_texts(tuple(control(raw)))
    parts = data.draw(st.lists(texts | expansions(raw, mark), min_size=1, max_size=5))
    prompt = with_images(raw, mark, parts)
    first, *rest = (prompt.text or "").split(mark)
    written = [
        mark * image.tokens if image.expansion is None else image.expansion
        for image in prompt.images
    ]
    text = first + "".join(own + piece for own, piece in zip(written, rest, strict=True))
    assert prompt.token_ids == tuple(raw(text, add_special_tokens=False)["input_ids"])


@each_place
@given(data=st.data())
# T3, T5
def test_no_word_of_a_users_becomes_an_image_or_part_of_one(
    make: Make, mark: str, data: st.DataObject
) -> None:
    raw = make()
    parts = data.draw(
        st.lists(
            hostile_texts((mark, *control(raw))) | expansions(raw, mark), min_size=1, max_size=5
        )
    )
    hostile = with_images(raw, mark, parts)
    harmless = with_images(raw, mark, ["x" if isinstance(part, str) else part for part in parts])
    for number in control(raw).values():
        assert hostile.token_ids.count(number) == harmless.token_ids.count(number)
