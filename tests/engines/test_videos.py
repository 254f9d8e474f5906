"""HF and vLLM give the same of videos: prompt ids, grids, times, ids and texts, frame by frame."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from returns.result import Failure
from support.videos import VIDEO_FAMILIES, video_file, write_video_model

import pipegen as pg
from pipegen.backends.vllm.start import installed_version
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
    installed = installed_version()
    if family == "qwen2_5_vl" and installed is not None and installed < (0, 32):
        # refused, and never answered for other times
        with_videos = [bool(slot.unwrap().video_times) for slot in wanted]
        assert [isinstance(slot, Failure) for slot in found] == with_videos
        refused = [slot.failure() for slot in found if isinstance(slot, Failure)]
        assert {type(error) for error in refused} == {pg.UnsupportedMultimodal}
        assert all("leaves out the times of frames" in error.message for error in refused)
        return
    counts, parted, words = report(requests, wanted, found)
    with capfd.disabled():
        print(f"\n{family:10} {counts}  {words}")
        for one in parted:
            print(f"{family:10} request {one.id}: {one.difference}")
    assert counts == {"requests": len(requests), "equal": len(requests)}
    for here, there in zip(wanted, found, strict=True):
        assert here.unwrap().video_times == there.unwrap().video_times
        assert here.unwrap().image_digests == there.unwrap().image_digests


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_ids_grids_and_pixels_are_those_of_the_family_s_own_processor(
    family: str, video_model_of: Callable[[str], str]
) -> None:
    """With torchvision, given the same frames and times."""
    import torch
    from transformers import AutoProcessor
    from transformers.video_utils import VideoMetadata

    folder = video_model_of(family)
    own: Any = AutoProcessor.from_pretrained(folder)
    data = video_file(UNEVEN, size=(96, 48))
    with pg.backends.hf(folder, dtype="float32") as route:
        engine: Any = route.engine
        prepared = engine.prepare_image(
            pg.VideoSource(data=data), pg.VlmPreprocessOptions(), 0
        ).unwrap()
        made = engine._checkpoint.image_inputs([prepared]).tensors
        asked = pg.VlmGenerationRequest(prompt="What?", videos=[data], options=greedy())
        (slot,) = pg.run(route, [asked])
    size = (len(prepared.times), prepared.height, prepared.width, 3)
    frames = torch.frombuffer(bytearray(prepared.rgb), dtype=torch.uint8).reshape(size)
    gap = (prepared.times[-1] - prepared.times[0]) / (len(prepared.times) - 1)
    told: Any = VideoMetadata
    wanted = own(
        text=[slot.unwrap().prompt_text],
        videos=[frames.permute(0, 3, 1, 2)],
        video_metadata=[
            told(
                total_num_frames=len(prepared.times) * gap,
                fps=1.0,
                frames_indices=list(prepared.times),
            )
        ],
        do_resize=False,
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert tuple(wanted["input_ids"][0].tolist()) == slot.unwrap().prompt_token_ids
    assert wanted["video_grid_thw"].tolist() == [list(prepared.grid)]
    assert torch.equal(wanted["pixel_values_videos"], made["pixel_values_videos"])
    if "second_per_grid_ts" in wanted:
        assert torch.equal(
            torch.as_tensor(wanted["second_per_grid_ts"]), made["second_per_grid_ts"]
        )


def test_no_videos_where_the_limit_allows_none(video_model_of: Callable[[str], str]) -> None:
    limit = {"limit_mm_per_prompt": {"image": 1, "video": 0}}
    with pg.backends.vllm(video_model_of("qwen3_vl"), engine_kwargs=limit) as route:
        (slot,) = pg.run(route, [{"prompt": "What?", "video": video_file()}])
    assert isinstance(slot.failure(), pg.UnsupportedMultimodal)
    assert "limit_mm_per_prompt" in slot.failure().message
