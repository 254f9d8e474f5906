"""Images that a renderer prepared, read back by vLLM's own classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers.renderer_vllm import features_of

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def media(items: list[dict[str, Any]]) -> Any:
    places = [SimpleNamespace(offset=10 * index, length=3) for index in range(len(items))]
    return SimpleNamespace(
        mm_hashes={"image": [f"h{index}" for index in range(len(items))]},
        mm_placeholders={"image": places},
        mm_items={"image": items},
    )


def ones(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


QWEN = [
    {"pixel_values": ones(4, 6), "image_grid_thw": np.array([[1, 2, 2]])},
    {"pixel_values": ones(8, 6) + 50, "image_grid_thw": np.array([[1, 2, 4]])},
]
GEMMA = [{"pixel_values": ones(1, 5, 6), "image_position_ids": np.arange(10).reshape(1, 5, 2)}] * 2
NEMOTRON = [
    {"pixel_values": ones(1, 3, 4, 6), "imgs_sizes": [(4, 6)], "num_tokens": [7]},
    {"pixel_values": ones(1, 3, 2, 2), "imgs_sizes": [(2, 2)], "num_tokens": [1]},
]


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        (
            QWEN,
            [
                {"pixel_values": item["pixel_values"], "image_grid_thw": item["image_grid_thw"][0]}
                for item in QWEN
            ],
        ),
        (
            GEMMA,
            [
                {
                    "pixel_values": item["pixel_values"][0],
                    "pixel_position_ids": item["image_position_ids"][0],
                }
                for item in GEMMA
            ],
        ),
        (
            NEMOTRON,
            [
                {
                    "pixel_values_flat": item["pixel_values"][0],
                    "imgs_sizes": item["imgs_sizes"][0],
                    "num_tokens_per_image": item["num_tokens"][0],
                }
                for item in NEMOTRON
            ],
        ),
    ],
    ids=["qwen_vl", "gemma4", "nemotron"],
)
def test_vllm_reads_the_features(items: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    serde = pytest.importorskip("vllm.entrypoints.scale_out.token_in_token_out.mm_serde")
    protocol = pytest.importorskip("vllm.entrypoints.scale_out.token_in_token_out.protocol")
    features = features_of(media(items))
    assert protocol.MultiModalFeatures(**features).mm_hashes == {"image": ["h0", "h1"]}
    assert features["mm_placeholders"] == {
        "image": [{"offset": 0, "length": 3}, {"offset": 10, "length": 3}]
    }
    for written, want in zip(features["kwargs_data"]["image"], wanted, strict=True):
        read = serde.decode_mm_kwargs_item(written).get_data()
        assert set(read) == set(want)
        for name, value in want.items():
            assert torch.equal(
                torch.as_tensor(read[name]).double(), torch.as_tensor(value).double()
            ), name
