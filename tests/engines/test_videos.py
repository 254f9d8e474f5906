"""HF and vLLM give the same of videos: prompt ids, grids, times, ids and texts, frame by frame."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.videos import VIDEO_FAMILIES, video_file, write_video_model

import pipegen as pg
from pipegen.testing.ask import greedy
from pipegen.testing.parity import report

UNEVEN = (0.0, 0.05, 0.4, 0.41, 1.0, 1.7, 1.8)


@pytest.fixture(scope="module")
def video_model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    root: Path = tmp_path_factory.mktemp("video_models")

    @functools.cache
    def made(family: str) -> str:
        return str(write_video_model(root / family, family, head_dim=32))

    return made


def video_requests() -> list[pg.VlmGenerationRequest]:
    """Videos of several lengths, rates and sizes; alone, together, and with images between them."""
    images = [Image.new("RGB", (64, 64), color) for color in ("red", "blue", "lime")]
    given = [
        [{"type": "video", "video": video_file()}],
        [{"type": "video", "video": video_file(UNEVEN, size=(96, 48))}],
        [{"type": "video", "video": video_file((0.0,))}],
        [{"type": "video", "video": video_file(codec="libvpx-vp9", container="webm")}],
        [{"type": "video", "frames": images, "times": [0, 1, 2.5]}],
        [
            {"type": "image", "image": images[0]},
            {"type": "text", "text": "then"},
            {"type": "video", "video": video_file()},
            {"type": "image", "image": images[1]},
            {"type": "video", "frames": images[:2], "times": [0.25, 7]},
        ],
        [{"type": "text", "text": "No video, <|video_pad|>, and"}],
    ]
    asked = [{}, {"fps": 4.0}, {"max_frames": 2}, {"max_video_pixels": 16_384}]
    return [
        pg.VlmGenerationRequest(
            id=f"{place}-{number}",
            messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}],
            options=greedy(max_new_tokens=12, preprocess=pg.VlmPreprocessOptions(**options)),
        )
        for place, parts in enumerate(given)
        for number, options in enumerate(asked)
    ]


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_both_engines_give_the_same_of_videos(
    family: str, video_model_of: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    requests = video_requests()
    small: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 16,
        "enforce_eager": True,
    }
    with pg.backends.hf(video_model_of(family), dtype="float32") as safe:
        wanted = pg.run(safe, requests)
    with pg.backends.vllm(video_model_of(family), **small) as fast:
        found = pg.run(fast, requests)
    counts, parted, words = report(requests, wanted, found)
    with capfd.disabled():
        print(f"\n{family:10} {counts}  {words}")
        for one in parted:
            print(f"{family:10} request {one.id}: {one.difference}")
    assert counts == {"requests": len(requests), "equal": len(requests)}
    for here, there in zip(wanted, found, strict=True):
        assert here.unwrap().video_times == there.unwrap().video_times
        assert here.unwrap().image_digests == there.unwrap().image_digests


def test_no_videos_where_the_limit_allows_none(video_model_of: Callable[[str], str]) -> None:
    limit = {"limit_mm_per_prompt": {"image": 1, "video": 0}}
    with pg.backends.vllm(video_model_of("qwen3_vl"), engine_kwargs=limit) as route:
        (slot,) = pg.run(route, [{"prompt": "What?", "video": video_file()}])
    assert isinstance(slot.failure(), pg.UnsupportedMultimodal)
    assert "limit_mm_per_prompt" in slot.failure().message
