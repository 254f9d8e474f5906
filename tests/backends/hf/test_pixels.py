"""Images are worked on once while they are kept, ahead of need, and within a limit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import encoded

import pipegen as pg
from pipegen.backends.hf.computing import IMAGES
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.pixels import Pixels, Prepared
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.option_table import DEFAULTS
from pipegen.records.results import PreparedImage
from pipegen.testing.image_files import image_file


@pytest.fixture
def images(engine_of: Callable[[str], Any]) -> list[PreparedImage]:
    engine = engine_of("qwen3_vl")
    sizes = ((64, 64), (96, 64), (64, 96), (96, 96))
    return [
        engine.prepare_image(
            ImageSource(data=image_file(width=width, height=height)), DEFAULTS.preprocess, 0
        ).unwrap()
        for width, height in sizes
    ]


LIMIT = 2**20


class Counting:
    """A checkpoint that writes down the images it works on."""

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint, self.image_spec, self.seen = (
            checkpoint,
            checkpoint.image_spec,
            list[str](),
        )

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Any:
        self.seen.append(f"{options.max_pixels} {source.max_pixels}")
        return self._checkpoint.prepare_image(source, options, index)

    def image_inputs(self, images: Any) -> Any:
        self.seen += [image.digest for image in images]
        return self._checkpoint.image_inputs(images)


@pytest.fixture
def counting(engine_of: Callable[[str], Any]) -> Any:
    return Counting(engine_of("qwen3_vl")._checkpoint)


def test_they_are_what_the_checkpoint_makes_of_all_at_once(
    counting: Any, images: list[PreparedImage]
) -> None:
    require_iterable = [*images, images[0]]
    whole, got = counting.image_inputs(require_iterable), Pixels(counting, LIMIT)(require_iterable)
    assert got.marked == whole.marked
    assert got.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(got.tensors[name], whole.tensors[name]) for name in whole.tensors)


def test_an_image_is_worked_on_once(counting: Any, images: list[PreparedImage]) -> None:
    pixels = Pixels(counting, LIMIT)
    pixels.ahead(images[:2])
    for _ in range(3):
        pixels([images[1], images[0], images[1]])
    assert sorted(counting.seen) == sorted(image.digest for image in images[:2])


def test_within_the_limit_what_comes_next_goes_before_what_was(
    counting: Any, images: list[PreparedImage]
) -> None:
    pixels = Pixels(counting, limit=8 * (len(images[0].rgb) + len(images[1].rgb)) + 2 * 24)
    pixels(images[:2])
    # the second has to go, and for the fourth there is no room beside the two that come before it
    pixels.ahead([images[0], images[2], images[3]])
    pixels([images[0], images[2]])
    assert sorted(counting.seen) == sorted(image.digest for image in images[:3])
    pixels([images[1]])
    assert counting.seen.count(images[1].digest) == 2


def test_more_than_the_limit_is_worked_on_where_a_pass_needs_it_and_not_kept(
    counting: Any, images: list[PreparedImage]
) -> None:
    pixels = Pixels(counting, limit=0)
    pixels.ahead(images)
    assert counting.seen == []
    assert torch.equal(
        pixels(images).tensors["pixel_values"], pixels(images).tensors["pixel_values"]
    )
    assert len(counting.seen) == 2 * len(images)


def test_what_working_on_an_image_raises_comes_through_and_closing_lets_go(
    counting: Any, images: list[PreparedImage]
) -> None:
    def broken(images: Any) -> Any:
        raise KeyError("bug")

    others = set(threading.enumerate())  # engines of other tests may be at rest
    pixels = Pixels(counting, LIMIT)
    counting.image_inputs = broken
    with pytest.raises(KeyError, match="bug"):
        pixels(images[:1])
    pixels.close()
    del counting.image_inputs
    assert len(pixels(images[:1]).tensors["image_grid_thw"]) == 1
    pixels.close()
    assert not [
        thread
        for thread in set(threading.enumerate()) - others
        if thread.name.startswith("pipegen-pixels")
    ]


def test_the_engine_works_on_each_image_of_a_call_once(
    engine_of: Callable[[str], Any], images: list[PreparedImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    inputs = [
        encoded([*[mark] * image.tokens, 70 + at], images=[image], max_new_tokens=2)
        for at in range(3)
        for image in images
    ]
    expected = engine.generate(inputs)
    seen: list[str] = []
    plain = engine._checkpoint.image_inputs
    monkeypatch.setattr(
        engine._checkpoint,
        "image_inputs",
        lambda image_files: (
            seen.extend(image.digest for image in image_files) or plain(image_files)
        ),
    )
    monkeypatch.setattr(engine.computing, "pixels", Pixels(engine._checkpoint, LIMIT))
    assert engine.generate(inputs) == expected
    assert sorted(seen) == sorted(image.digest for image in images)


def held(pixels: Pixels) -> int:
    """The bytes of all tensors that are kept."""
    kept = [inputs.result().tensors for _, inputs in pixels._kept._held.values()]
    return sum(tensor.nbytes for tensors in kept for tensor in tensors.values())


@pytest.mark.parametrize("limit", [0, 100_000, 250_000, 500_000])
def test_no_more_bytes_are_kept_than_the_limit_says(
    limit: int, counting: Any, images: list[PreparedImage]
) -> None:
    drawn, pixels = random.Random(limit), Pixels(counting, limit)
    for _ in range(30):
        pixels.ahead(drawn.choices(images, k=3))
        assert held(pixels) <= limit
        pixels(drawn.choices(images, k=2))
        assert held(pixels) <= limit
    pixels(images[:1])
    assert bool(held(pixels)) == (limit > 0), "the newest stays where it fits"


def test_while_a_pass_is_put_together_others_make_room_for_it(
    counting: Any, images: list[PreparedImage]
) -> None:
    plain, most = counting.image_inputs, list[int]()
    pixels = Pixels(counting, limit=300_000)  # one or two of them
    counting.image_inputs = lambda image_files: (
        most.append(pixels._kept.bytes) or plain(image_files)
    )
    for _ in range(3):
        for image in images:
            pixels([image])
    assert len(most) == 3 * len(images)
    assert max(most) <= 300_000


def test_an_image_that_comes_again_is_prepared_once_for_each_of_its_settings(counting: Any) -> None:
    prepared = Prepared(counting, LIMIT)
    small, large = (VlmPreprocessOptions(max_pixels=pixels) for pixels in (64 * 64, 96 * 96))
    for _ in range(3):
        made = [
            prepared(ImageSource(data=image_file(width=200, height=200)), options, 0).unwrap()
            for options in (small, large)
        ]
        assert [(image.width, image.height) for image in made] == [(64, 64), (96, 96)]
        assert made[0].digest == made[1].digest
    assert counting.seen == ["4096 None", "9216 None"]
    limited = prepared(
        ImageSource(data=image_file(width=200, height=200), max_pixels=100), small, 3
    )
    assert isinstance(limited.failure(), pg.BadImage), (
        "another limit on the source is another setting"
    )
    assert (
        prepared(ImageSource(data=b"no image"), small, 3).failure()
        == prepared(ImageSource(data=b"no image"), small, 3).failure()
    )
    prepared.clear()
    prepared(ImageSource(data=image_file(width=200, height=200)), small, 0)
    assert counting.seen.count("4096 None") == 4


@pytest.mark.parametrize("limit", [0, 64 * 64 * 3 - 1, 64 * 64 * 3, 3 * 64 * 64 * 3])
def test_no_more_bytes_of_prepared_images_are_kept_than_the_limit_says(
    limit: int, counting: Any
) -> None:
    prepared, options = Prepared(counting, limit), VlmPreprocessOptions(max_pixels=64 * 64)
    sources = [ImageSource(data=image_file(width=side, height=side)) for side in range(200, 204)]
    for source in [*sources, *sources[::-1]]:
        prepared(source, options, 0).unwrap()
        assert sum(len(image.rgb) for _, image in prepared._kept._held.values()) <= limit
    assert len(counting.seen) == 8 - limit // (64 * 64 * 3), (
        "what came last is there when all come again in turn"
    )


@pytest.mark.parametrize(("asked", "times"), [(None, 1), (2**20, 1), (0, 3)])
def test_the_setting_bounds_what_an_engine_keeps(
    folder_of: Callable[[str], Path], asked: int | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = HFEngine(
        ModelLoadConfig(model=str(folder_of("qwen3_vl")), dtype="float32", image_memory_bytes=asked)
    )
    counting = Counting(engine._checkpoint)
    for part in (engine.computing.prepared, engine.computing.pixels):
        monkeypatch.setattr(part, "_checkpoint", counting)
    request = pg.VlmGenerationRequest(
        prompt="What?",
        images=[image_file(width=64, height=64)],
        options=pg.GenerationOptions(max_new_tokens=2),
    )
    results = [pg.run(pg.route(engine), [request])[0].unwrap() for _ in range(3)]
    assert len(set(results)) == 1
    assert len(counting.seen) == 2 * times, "prepared and made to inputs"
    assert engine.computing.prepared._kept.limit + engine.computing.pixels._kept.limit == (
        IMAGES if asked is None else asked
    )
    engine.close()
    assert engine.computing.prepared._kept.bytes == engine.computing.pixels._kept.bytes == 0


@pytest.mark.parametrize("asked", [-1, True, 2.5, "1 GB"])
def test_a_setting_that_is_no_number_of_bytes_is_refused(asked: Any) -> None:
    with pytest.raises(
        pg.InvalidField, match="image_memory_bytes takes a whole number of at least 0"
    ):
        pg.backends.hf("embedded", image_memory_bytes=asked)
