"""Pictures are worked on once while they are held, ahead of need, and within a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipegen.backends.hf.pixels import Pixels
from pipegen.messages import ImageSource
from pipegen.options import DEFAULTS
from pipegen.records import PreparedImage
from pipegen.testing.models import encoded
from pipegen.testing.pictures import picture


@pytest.fixture
def images(engine_of: Callable[[str], Any]) -> list[PreparedImage]:
    engine = engine_of("qwen3_vl")
    sizes = ((64, 64), (96, 64), (64, 96), (96, 96))
    return [engine.prepare_image(ImageSource(data=picture(width=width, height=height)), DEFAULTS.preprocess, 0).unwrap() for width, height in sizes]


class Counting:
    """A checkpoint that writes down the pictures it works on."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint, self.image_spec, self.seen = checkpoint, checkpoint.image_spec, list[str]()

    def picture_inputs(self, images: Any) -> Any:
        self.seen += [image.digest for image in images]
        return self._checkpoint.picture_inputs(images)


@pytest.fixture
def counting(engine_of: Callable[[str], Any]) -> Any:
    return Counting(engine_of("qwen3_vl")._checkpoint)


def test_they_are_what_the_checkpoint_makes_of_all_at_once(counting: Any, images: list[PreparedImage]) -> None:
    several = [*images, images[0]]
    whole, got = counting.picture_inputs(several), Pixels(counting)(several)
    assert got.marked == whole.marked
    assert got.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(got.tensors[name], whole.tensors[name]) for name in whole.tensors)


def test_a_picture_is_worked_on_once(counting: Any, images: list[PreparedImage]) -> None:
    pixels = Pixels(counting)
    pixels.ahead(images[:2])
    for _ in range(3):
        pixels([images[1], images[0], images[1]])
    assert sorted(counting.seen) == sorted(image.digest for image in images[:2])


def test_within_the_limit_what_comes_next_goes_before_what_was(counting: Any, images: list[PreparedImage]) -> None:
    pixels = Pixels(counting, limit=8 * (len(images[0].rgb) + len(images[1].rgb)))
    pixels(images[:2])
    pixels.ahead([images[0], images[2], images[3]])  # the second has to go, and for the fourth there is no room beside the two that come before it
    pixels([images[0], images[2]])
    assert sorted(counting.seen) == sorted(image.digest for image in images[:3])
    pixels([images[1]])
    assert counting.seen.count(images[1].digest) == 2


def test_more_than_the_limit_is_worked_on_where_a_pass_needs_it_and_not_kept(counting: Any, images: list[PreparedImage]) -> None:
    pixels = Pixels(counting, limit=0)
    pixels.ahead(images)
    assert counting.seen == []
    assert torch.equal(pixels(images).tensors["pixel_values"], pixels(images).tensors["pixel_values"])
    assert len(counting.seen) == 2 * len(images)


def test_what_working_on_a_picture_raises_comes_through_and_closing_lets_go(counting: Any, images: list[PreparedImage]) -> None:
    def broken(images: Any) -> Any:
        raise KeyError("bug")

    others = set(threading.enumerate())  # engines of other tests may be at rest
    pixels = Pixels(counting)
    counting.picture_inputs = broken
    with pytest.raises(KeyError, match="bug"):
        pixels(images[:1])
    pixels.close()
    del counting.picture_inputs
    assert len(pixels(images[:1]).tensors["image_grid_thw"]) == 1
    pixels.close()
    assert not [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("pipegen-pixels")]


def test_the_engine_works_on_each_picture_of_a_call_once(engine_of: Callable[[str], Any], images: list[PreparedImage], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    inputs = [encoded([*[mark] * image.tokens, 70 + at], images=[image], max_new_tokens=2) for at in range(3) for image in images]
    expected = engine.generate(inputs)
    seen: list[str] = []
    plain = engine._checkpoint.picture_inputs
    monkeypatch.setattr(engine._checkpoint, "picture_inputs", lambda pictures: seen.extend(image.digest for image in pictures) or plain(pictures))
    monkeypatch.setattr(engine, "_pixels", Pixels(engine._checkpoint))
    assert engine.generate(inputs) == expected
    assert sorted(seen) == sorted(image.digest for image in images)
