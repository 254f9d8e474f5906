"""Small videos, and tiny random models that take them: Qwen2.5-VL and Qwen3-VL with tokens and a
template for videos.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from support.models import _IMAGE_PROCESSOR, _hf, _text_sizes, video_settings
from support.small_tokenizers import video_tokenizer

__all__ = ["VIDEO_FAMILIES", "sound_file", "video_file", "write_video_model"]

VIDEO_FAMILIES = ("qwen2_5_vl", "qwen3_vl")


TENTHS = tuple(frame / 10 for frame in range(20))
"""Two seconds at ten frames a second."""


def video_file(
    times: Sequence[float] = TENTHS,
    *,
    size: tuple[int, int] = (64, 48),
    codec: str = "libx264",
    container: str = "mp4",
    sound: bool = False,
) -> bytes:
    """A video whose frames are shown at these times: frame `n` has a bright column that is `n`
    twentieths of the width from the left, and the shade `10 * n`.
    """
    import av
    import numpy as np

    out = io.BytesIO()
    width, height = size
    with av.open(out, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        if sound:
            _add_sound(file)
        for number, time in enumerate(times):
            pixels = np.full((height, width, 3), 10 * number % 250, np.uint8)
            column = number % 20 * width // 20
            pixels[:, column : column + width // 10] = 255
            frame: Any = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(1000 * time), Fraction(1, 1000)
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return out.getvalue()


def sound_file() -> bytes:
    """A file that has sound alone."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        _add_sound(file)
    return out.getvalue()


def _add_sound(file: Any) -> None:
    import av
    import numpy as np

    stream: Any = file.add_stream("aac", rate=16000)
    frame: Any = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
    frame.sample_rate = 16000
    for packet in (*stream.encode(frame), *stream.encode()):
        file.mux(packet)


def write_video_model(directory: Path, family: str, *, head_dim: int = 16, seed: int = 0) -> Path:
    """Write a tiny random model of that family with its processors into a new folder, and give the
    folder back.
    """
    import torch

    tokenizer = video_tokenizer()
    ids = tokenizer.get_vocab()
    # Qwen2.5-VL takes the size of a head from the others
    sizes = _text_sizes(tokenizer, head_dim)
    sizes |= {"max_position_embeddings": 2048, "hidden_size": 4 * head_dim}
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [head_dim // 4, head_dim // 8, head_dim // 8],
    }
    tower: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": sizes["hidden_size"],
        "initializer_range": 0.2,
    }
    named = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    hf = _hf()
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    more: dict[str, Any]
    if family == "qwen3_vl":
        more = {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        config = hf.Qwen3VLConfig(
            text_config={**sizes, "rope_parameters": {**rope, "mrope_interleaved": True}},
            vision_config={**tower, **more},
            **named,
        )
        model = hf.Qwen3VLForConditionalGeneration(config)
    else:
        more = {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]}
        more |= {"tokens_per_second": 4}
        config = hf.Qwen2_5_VLConfig(
            text_config={**sizes, "rope_parameters": rope},
            vision_config={**tower, **more},
            **named,
        )
        model = hf.Qwen2_5_VLForConditionalGeneration(config)
    torch.random.set_rng_state(state)
    model.generation_config = hf.GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    patch = more["patch_size"]
    low, high = (2 * patch) ** 2, (8 * patch) ** 2
    kind = {"qwen3_vl": "Qwen3VL", "qwen2_5_vl": "Qwen2_5_VL"}[family]
    images = {
        **_IMAGE_PROCESSOR,
        "patch_size": patch,
        "size": {"shortest_edge": low, "longest_edge": high},
        "processor_class": f"{kind}Processor",
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(images))
    (directory / "video_preprocessor_config.json").write_text(
        json.dumps(video_settings(images, "Qwen3VL" if family == "qwen3_vl" else "Qwen2VL"))
    )
    return directory
