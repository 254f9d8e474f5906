"""Videos on the Hugging Face engine: the family's own ids, grids and pixels of the chosen frames."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.videos import VIDEO_FAMILIES, video_file, write_video_model

import pipegen as pg
from pipegen.jobs.row_keys import Keys
from pipegen.testing.image_files import image_file

pytest.importorskip("av")
pytest.importorskip("torch")

ASK = {"max_new_tokens": 6}
LIST = [Image.new("RGB", (64, 64), color) for color in ("red", "blue", "lime")]


@pytest.fixture(scope="module")
def route_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], pg.Route]]:
    root, opened = tmp_path_factory.mktemp("videos"), list[pg.Route]()

    @functools.cache
    def made(family: str) -> pg.Route:
        opened.append(pg.backends.hf(write_video_model(root / family, family), dtype="float32"))
        return opened[-1]

    yield made
    for route in opened:
        route.close()


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def video(data: Any = None) -> dict[str, Any]:
    return {"type": "video", "video": video_file() if data is None else data}


TEXT = {"type": "text", "text": "What?"}
IMAGE = {"type": "image", "image": image_file(width=64, height=64)}


def one(route: pg.Route, request: Any, **options: Any) -> pg.GenerationResult:
    (slot,) = pg.run(route, [request], {**ASK, **options})
    return slot.unwrap()


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_a_row_is_the_same_alone_and_beside_others(family: str, route_of: Any) -> None:
    route = route_of(family)
    rows = [
        content(video(), TEXT),
        content(IMAGE, video(), IMAGE, TEXT, video(video_file((0, 0.3, 3)))),
        content({"type": "video", "frames": LIST, "times": [0, 1, 2.5]}, TEXT),
        content(TEXT),
        content(IMAGE, TEXT),
    ]
    together = pg.run(route, rows, ASK)
    assert [slot.unwrap().token_ids for slot in together] == [
        one(route, row).token_ids for row in rows
    ]


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_images_and_videos_keep_the_order_of_the_message(family: str, route_of: Any) -> None:
    result = one(route_of(family), content(IMAGE, video(), TEXT, IMAGE, video()))
    assert [grid[0] for grid in result.image_grid_thw if grid] == [1, 2, 1, 2]
    assert result.image_digests[0] == result.image_digests[2] != result.image_digests[1]
    assert result.video_times == ((0.0, 0.6, 1.2, 1.9),) * 2


def test_qwen3_vl_writes_the_middle_of_each_patch_of_frames(route_of: Any) -> None:
    route = route_of("qwen3_vl")
    result = one(route, content(video(), TEXT))
    text = route.engine.tokenizer.decode(result.prompt_token_ids)
    pads = "<|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>"
    assert f"<0.3 seconds>{pads}<1.5 seconds>{pads}" in text or (
        f"<0.3 seconds>{pads}<1.6 seconds>{pads}" in text
    )


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_pixels_are_those_of_the_processor_of_images(family: str, route_of: Any) -> None:
    """A video of one frame has the patches of that frame as an image."""
    import torch

    checkpoint = route_of(family).engine._checkpoint
    pixels = image_file(width=64, height=64)
    own = pg.ImageSource(data=pixels)
    options = pg.VlmPreprocessOptions()
    still = checkpoint.prepare_image(own, options, 0).unwrap()
    frames = pg.VideoSource(frames=(own,), times=(0,))
    moving = checkpoint.prepare_image(frames, options, 0).unwrap()
    assert (moving.width, moving.height, moving.grid) == (still.width, still.height, still.grid)
    there = checkpoint.image_inputs([still]).tensors["pixel_values"]
    here = checkpoint.image_inputs([moving]).tensors["pixel_values_videos"]
    assert torch.allclose(here, there, atol=1e-6)


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_a_placeholder_that_a_user_writes_stays_text(family: str, route_of: Any) -> None:
    route = route_of(family)
    words = {"type": "text", "text": "<|video_pad|> <|vision_start|>"}
    result = one(route, content(words, video()))
    token = route.engine.tokenizer.control_tokens["<|video_pad|>"]
    assert result.prompt_token_ids.count(token) == 8
    (slot,) = pg.run(route, [content(words, video())], {"chat": {"control_tokens": "allow"}})
    assert "holds 2 video placeholders '<|video_pad|>' for 1 videos" in slot.failure().message


def test_a_broken_video_fails_its_own_slot(route_of: Any) -> None:
    rows = [content(video(), TEXT), content(IMAGE, video(b"no video"), TEXT), content(TEXT)]
    first, broken, last = pg.run(route_of("qwen3_vl"), rows, ASK)
    assert pg.is_ok(first)
    assert pg.is_ok(last)
    assert isinstance(broken.failure(), pg.BadVideo)
    assert broken.failure().index == 0


def test_without_its_package_the_extra_is_named(
    route_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    route, data = route_of("qwen3_vl"), video_file((0, 0.3, 0.9))
    found = importlib.util.find_spec
    frames = {"type": "video", "frames": LIST, "times": [0, 1, 2.5]}
    missing = lambda name, *more: None if name == "av" else found(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    (file, images) = pg.run(route, [content(video(data), TEXT), content(frames, TEXT)], ASK)
    assert isinstance(file.failure(), pg.UnsupportedMultimodal)
    assert "reading a video needs the package av" in file.failure().message
    assert pg.is_ok(images)


def test_sound_is_refused_in_words(route_of: Any) -> None:
    for kind in ("audio", "input_audio", "audio_url"):
        (slot,) = pg.run(route_of("qwen3_vl"), [content({"type": kind, kind: "a.wav"})])
        assert isinstance(slot.failure(), pg.InvalidRequest)
        assert "is sound, which pipegen does not take" in slot.failure().message


def test_what_chooses_frames_in_other_programs_names_the_options(route_of: Any) -> None:
    (slot,) = pg.run(route_of("qwen3_vl"), [content({**video(), "fps": 1.0})])
    assert "fps is not supported: set the frames" in slot.failure().message
    assert "preprocess.fps" in slot.failure().message


def test_a_next_turn_keeps_the_video(route_of: Any) -> None:
    route = route_of("qwen3_vl")
    first = one(route, content(video(), TEXT))
    second = one(route, first.then("And then?"))
    assert second.exact
    assert second.video_times == first.video_times
    assert second.prompt_token_ids[: len(first.prompt_token_ids)] == first.prompt_token_ids


def test_text_models_and_other_families_take_no_videos(tmp_path: Path) -> None:
    from support.models import write_model

    for family, words in (("qwen3", "text model"), ("gemma3_vl", "of type gemma3")):
        with pg.backends.hf(write_model(tmp_path / family, family)) as route:
            (slot,) = pg.run(route, [content(video(), TEXT)])
            assert isinstance(slot.failure(), pg.UnsupportedMultimodal)
            assert words in slot.failure().message
            assert not route.engine.loaded


def test_a_job_asks_again_for_other_bytes_other_times_and_other_options() -> None:
    settings = {"engines": {}, "pipeline": [], "plugins": [], "version": "", "options": {}}
    loaded = [pg.ImageSource.of(image) for image in LIST]

    def key(source: pg.VideoSource, **options: Any) -> str:
        asked = pg.GenerationOptions(preprocess=pg.VlmPreprocessOptions(**options))
        request = pg.VlmGenerationRequest(prompt="a", videos=[source], options=asked)
        return Keys(settings).of(request)

    data = video_file()
    keys = [
        key(pg.VideoSource(data=data)),
        key(pg.VideoSource(data=data), fps=1.0),
        key(pg.VideoSource(data=data), max_frames=4),
        key(pg.VideoSource(data=data), max_video_pixels=65536),
        key(pg.VideoSource(data=data + b"\0")),
        key(pg.VideoSource(frames=loaded, times=(0, 1, 2))),
        key(pg.VideoSource(frames=loaded, times=(0, 1, 3))),
    ]
    assert len(set(keys)) == len(keys)
    assert key(pg.VideoSource(data=data)) == keys[0]


def test_the_command_line_and_the_page_of_results(tmp_path: Path, route_of: Any) -> None:
    from typer.testing import CliRunner

    from pipegen.cli.app import app

    (tmp_path / "a.mp4").write_bytes(video_file())
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    rows = [
        {"id": "one", "prompt": "What?", "video": "a.mp4"},
        {
            "id": "two",
            "prompt": "What?",
            "videos": [{"frames": ["a.png", "a.png"], "times": [0, 1]}],
        },
        {"id": "three", "prompt": "What?", "video": "gone.mp4"},
    ]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = str(route_of("qwen3_vl").engine._checkpoint.load.model)
    out = tmp_path / "out.jsonl"
    arguments = ["generate", str(asked), "-o", str(out), "--model", model, "--max-new-tokens", "4"]
    ran = CliRunner().invoke(app, arguments)
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["ok"] for row in results] == [True, True, False], ran.output
    assert results[0]["video_times"] == [[0.0, 0.6, 1.2, 1.9]]
    assert results[2]["error"]["type"] == "BadVideo"
    page = tmp_path / "page.html"
    seen = CliRunner().invoke(app, ["view", str(out), "--input", str(asked), "--out", str(page)])
    assert page.is_file(), seen.output
    written = page.read_text()
    assert written.count("<img ") == 6
    assert "a.mp4 0.60 s" in written
