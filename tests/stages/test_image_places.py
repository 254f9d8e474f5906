"""Prompts in which an image takes more than copies of its placeholder: frames, marks of tiles, line
ends.
"""

from __future__ import annotations

from typing import Any

from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import PreparedImage, Prompt, ResolvedRequest
from pipegen.stages.rendering import Rendered, render_row
from pipegen.stages.tokenizing import tokenize_row
from pipegen.template.image_places import image_tokens
from pipegen.testing.fake import ToyRenderer
from pipegen.testing.toy import ToyTokenizer

MARK = "<|image_pad|>"
TOY = ToyTokenizer(
    merges=("\n\n\n", "\n\n"),
    special=("<|im_start|>", "<|im_end|>", MARK, "<soft>"),
    added=("<tile>", "<think>", "</think>"),
)


HERE = ResolvedRequest(
    request=TextGenerationRequest(prompt="-"), options=resolve(GenerationOptions())
)


def image(expansion: str | None, tokens: int = 2) -> PreparedImage:
    return PreparedImage(
        width=1, height=1, rgb=bytes(3), digest="d", tokens=tokens, expansion=expansion
    )


FRAMED = image("\n\n<|im_start|><soft><soft><|im_end|>\n\n")
TILED = image(f"<tile>{MARK}{MARK}\n<tile>{MARK}{MARK}\n", tokens=4)
COPIES = image(None, tokens=3)


def said(*parts: str | PreparedImage, **chat: Any) -> Slot[Prompt]:
    content = [
        (
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": b"1"}
        )
        for part in parts
    ]
    images = tuple(part for part in parts if isinstance(part, PreparedImage))
    request = VlmGenerationRequest(messages=[{"role": "user", "content": content}])
    job = ResolvedRequest(
        request=request, options=resolve(GenerationOptions(chat=ChatTemplateOptions(**chat)))
    )
    rendered = render_row(job, TOY, ToyRenderer(), image_marks=image_tokens(images, TOY, MARK))
    return rendered.bind(lambda text: tokenize_row(text, images, TOY, MARK))


def expanded(text: str, *images: PreparedImage) -> tuple[int, ...]:
    """What a processor makes of a text: each placeholder replaced, then tokenised once."""
    first, *rest = text.split(MARK)
    return TOY.encode(
        first
        + "".join(
            (one.expansion or MARK * one.tokens) + piece
            for one, piece in zip(images, rest, strict=True)
        )
    )


def test_an_expansion_joins_with_the_text_beside_it() -> None:
    prompt = said(FRAMED, "\nWhat?").unwrap()
    assert prompt.token_ids == expanded(prompt.text or "", FRAMED)
    wide = TOY.encode("\n\n\n")[0]
    # the template's line end with the frame's, and the frame's with the user's
    assert prompt.token_ids.count(wide) == 2
    assert prompt.compact_token_ids == TOY.encode(prompt.text or "")
    assert prompt.compact_token_ids.count(wide) == 0


def test_images_of_every_kind_stand_in_message_order() -> None:  # P6
    prompt = said("a", TILED, FRAMED, "b", COPIES, "c", TILED).unwrap()
    assert prompt.token_ids == expanded(prompt.text or "", TILED, FRAMED, COPIES, TILED)
    assert prompt.images == (TILED, FRAMED, COPIES, TILED)


def test_typed_marks_beside_an_image_stay_text() -> None:  # T3, T5
    for token in (MARK, "<soft>", "<tile>", "<|im_start|>"):
        prompt = said(f"{token}\n", TILED, f"\n{token}", FRAMED, token).unwrap()
        harmless = said("x\n", TILED, "\nx", FRAMED, "x").unwrap()
        for number in TOY.control_tokens.values():
            assert prompt.token_ids.count(number) == harmless.token_ids.count(number), token
        assert TOY.decode(prompt.token_ids) == TOY.decode(harmless.token_ids).replace("x", token)


def test_an_added_token_steers_where_images_write_it_and_is_a_word_elsewhere() -> None:
    tile = TOY.control_tokens["<tile>"]
    assert said("<tile>", TILED).unwrap().token_ids.count(tile) == 2
    assert said("<tile>", FRAMED).unwrap().token_ids.count(tile) == 1
    assert said("<tile>", TILED, control_tokens="allow").unwrap().token_ids.count(tile) == 3
    assert isinstance(said("<tile>", TILED, control_tokens="reject").failure(), InvalidRequest)


def test_an_allowed_placeholder_is_one_too_many() -> None:
    error = said(f"{MARK} what?", FRAMED, control_tokens="allow").failure()
    assert isinstance(error, InvalidRequest)
    assert f"2 image placeholders '{MARK}' for 1 images" in error.message


def test_given_ids_take_the_expansions_own_ids() -> None:
    mark = TOY.control_tokens[MARK]
    prompt = tokenize_row(
        Rendered(request=HERE.request, options=HERE.options, token_ids=(97, mark, 98, mark)),
        (FRAMED, COPIES),
        TOY,
        MARK,
    ).unwrap()
    assert prompt.token_ids == (97, *TOY.encode(FRAMED.expansion or ""), 98, mark, mark, mark)


def test_plain_prompts_hold_places_too() -> None:
    text = f"a{MARK}\nb"
    prompt = tokenize_row(
        Rendered(request=HERE.request, options=HERE.options, text=text), (FRAMED,), TOY, MARK
    ).unwrap()
    assert prompt.token_ids == expanded(text, FRAMED)
