"""What a checkpoint's processor wants, and that what pipegen prepares is what that processor would
have made.
"""

from __future__ import annotations

import io
import subprocess
import sys
import types
from typing import Any

import pytest

from pipegen.backends.checkpoint.image_processors import pixel_inputs, spec_from
from pipegen.core.errors import ContractError
from pipegen.media.image import prepare
from pipegen.media.sizes import ImageSpec
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.testing.image_files import image_file

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
)

POLICY = ImagePolicy()
DEFAULT = VlmPreprocessOptions()


def qwen3() -> Any:
    size = {"shortest_edge": 9216, "longest_edge": 160_000}
    return Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        size=size,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def noise(width: int, height: int, seed: int = 0) -> bytes:
    import random

    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3)).save(
        file, "PNG"
    )
    return file.getvalue()


def test_a_qwen_processor_wants_a_grid() -> None:
    assert spec_from(qwen3()) == ImageSpec(
        kind="grid",
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=9216,
        max_pixels=160_000,
        resample=3,
    )
    assert spec_from(Qwen2VLImageProcessorPil()).factor == 28


def test_the_embedded_models_processor_wants_a_grid_of_16_pixel_patches() -> None:
    from importlib import resources

    from transformers import AutoConfig, AutoImageProcessor

    folder = str(resources.files("pipegen.embedded") / "weights")
    load: Any = AutoImageProcessor.from_pretrained
    processor = load(folder, backend="pil")
    spec = spec_from(processor, AutoConfig.from_pretrained(folder))
    assert (spec.kind, spec.patch_size, spec.merge_size) == ("grid", 16, 2)
    prepared = prepare(image_file("JPEG", width=640, height=480), spec, DEFAULT, 0, POLICY).unwrap()
    assert pixel_inputs(processor, [prepared])["image_grid_thw"].tolist() == [
        list(prepared.grid or ())
    ]


def test_old_names_of_the_budget_are_read() -> None:
    spec = spec_from(Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=50_000))
    assert (spec.min_pixels, spec.max_pixels) == (3136, 50_000)


def test_a_processor_and_a_model_of_different_patches_are_refused() -> None:
    config = types.SimpleNamespace(
        vision_config=types.SimpleNamespace(patch_size=14, spatial_merge_size=2)
    )
    with pytest.raises(ValueError, match="patch_size 16, its model patch_size 14"):
        spec_from(qwen3(), config)
    config.vision_config.patch_size = 16
    assert spec_from(qwen3(), config).kind == "grid"


def test_a_processor_without_a_budget_is_refused() -> None:
    processor = qwen3()
    processor.size = {"height": 100, "width": 100}
    with pytest.raises(ValueError, match="shortest_edge and longest_edge"):
        spec_from(processor)


@pytest.mark.parametrize(
    "size", [(64, 48), (333, 201), (1000, 77), (31, 500), (400, 400), (20, 20), (96, 96)]
)
@pytest.mark.parametrize("budget", [(None, None), (3136, 40_000), (50_000, 200_000)])
def test_the_pixels_are_bit_for_bit_what_the_processor_makes_of_the_original(
    size: tuple[int, int], budget: tuple[int | None, int | None]
) -> None:
    processor = qwen3()
    data = noise(*size)
    low, high = budget
    prepared = prepare(
        data, spec_from(processor), VlmPreprocessOptions(min_pixels=low, max_pixels=high), 0, POLICY
    ).unwrap()
    asked = {"size": {"shortest_edge": low, "longest_edge": high}} if low else {}
    wanted = processor(images=[Image.open(io.BytesIO(data))], return_tensors="pt", **asked)
    got = pixel_inputs(processor, [prepared])
    assert (
        got["image_grid_thw"].tolist()
        == wanted["image_grid_thw"].tolist()
        == [list(prepared.grid or ())]
    )
    assert torch.equal(got["pixel_values"], wanted["pixel_values"])


def test_the_processor_would_not_change_what_was_prepared() -> None:
    processor = qwen3()
    prepared = prepare(noise(333, 201), spec_from(processor), DEFAULT, 0, POLICY).unwrap()
    again = processor(
        images=[Image.frombytes("RGB", (prepared.width, prepared.height), prepared.rgb)],
        return_tensors="pt",
    )
    assert torch.equal(again["pixel_values"], pixel_inputs(processor, [prepared])["pixel_values"])


def test_several_images_stand_in_order() -> None:  # P6
    processor = qwen3()
    sizes = [(64, 300), (300, 64), (128, 128)]
    images = [
        prepare(noise(*size, seed=seed), spec_from(processor), DEFAULT, seed, POLICY).unwrap()
        for seed, size in enumerate(sizes)
    ]
    together = pixel_inputs(processor, images)
    assert [tuple(grid) for grid in together["image_grid_thw"].tolist()] == [
        image.grid for image in images
    ]
    alone = [pixel_inputs(processor, [image])["pixel_values"] for image in images]
    assert torch.equal(together["pixel_values"], torch.cat(alone))
    assert [image.tokens for image in images] == [len(pixels) // 4 for pixels in alone]


def test_no_images_make_no_inputs() -> None:
    assert pixel_inputs(qwen3(), []) == {}


def test_images_prepared_for_another_model_are_a_bug() -> None:
    image = prepare(
        noise(112, 112), spec_from(Qwen2VLImageProcessorPil()), DEFAULT, 0, POLICY
    ).unwrap()
    with pytest.raises(ContractError, match="prepared for another model"):
        pixel_inputs(Qwen2VLImageProcessorPil(patch_size=28, merge_size=1), [image])


def test_nothing_here_loads_torchvision() -> None:
    code = (
        "import sys, pipegen.backends.checkpoint.image_processors as p\nassert 'torch' not in"
        " sys.modules and 'PIL' not in sys.modules\nfrom"
        " transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import"
        " Qwen2VLImageProcessorPil as Q\np.spec_from(Q()); sys.exit('torchvision' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
