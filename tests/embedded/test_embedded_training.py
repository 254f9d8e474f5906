"""The training code, on a few batches: the whole recipe takes half an hour and is run by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipegen import embedded

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training.language_stage import Batches, batch_loss, make_gallery  # noqa: E402
from training.model import build_model, load_weights, round_weights, save_model  # noqa: E402
from training.optimizers import Schedule  # noqa: E402
from training.scenes import Thing  # noqa: E402
from training.tokenizer import train_tokenizer  # noqa: E402
from training.vision_stage import NOTHING, targets  # noqa: E402

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer, Qwen3VLForConditionalGeneration


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return train_tokenizer()


@pytest.fixture
def model(tokenizer: Qwen2Tokenizer) -> Qwen3VLForConditionalGeneration:
    built = build_model(tokenizer)
    load_weights(built, embedded.path())
    return built


def _loss(
    model: Qwen3VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, images: bool
) -> torch.Tensor:
    gallery = make_gallery(model, 320, random.Random(5)) if images else None
    batches = Batches(tokenizer, gallery, budget=1024, seed=990_005)
    batches.step = 10_000
    rows = next(iter(batches))
    ids = tokenizer.get_vocab()
    return batch_loss(model, rows, ids["<|endoftext|>"], ids["<|image_pad|>"])


def test_the_shipped_tokenizer_is_the_one_the_recipe_trains(
    tokenizer: Qwen2Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (
        embedded.path() / "tokenizer.json"
    ).read_text()
    assert (tmp_path / "chat_template.jinja").read_text() == (
        embedded.path() / "chat_template.jinja"
    ).read_text()


def test_the_rate_warms_up_stays_flat_and_decays_to_nothing() -> None:
    schedule = Schedule((torch.nn.Linear(2, 2),), steps=1000, decay_steps=500)
    assert schedule.factor(0) == pytest.approx(0.02)
    assert schedule.factor(49) == schedule.factor(500) == 1.0
    assert schedule.factor(750) == pytest.approx(0.5)
    assert schedule.factor(999) == pytest.approx(0.002)
    assert Schedule((torch.nn.Linear(2, 2),), steps=100, decay_steps=0).factor(99) == 1.0


def test_dense_targets_name_what_covers_each_feature() -> None:
    scene = (
        Thing("circle", "red", (0, 0, 300, 300), (0, 0, 300, 300)),
        Thing("square", "blue", (600, 600, 1000, 1000), (600, 600, 1000, 1000)),
    )
    rows = targets(scene, (128, 128)).reshape(4, 4, -1)
    assert rows[0, 0].tolist() == [1, 1, 0, 0, 3, 3, 0, 0, 1, 2]
    assert rows[3, 3].tolist() == [3, 2, 6, 6, 10, 10, 2, 2, 2, 2]
    assert rows[0, 3].tolist() == [0, 0, *[NOTHING] * 6, 0, 2]


@pytest.mark.parametrize("images", [False, True])
def test_the_shipped_weights_have_learnt_what_training_teaches(
    model: Qwen3VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, images: bool
) -> None:
    with torch.no_grad():
        assert _loss(model, tokenizer, images).item() < 0.2


def test_a_few_steps_on_one_batch_lower_its_loss(tokenizer: Qwen2Tokenizer) -> None:
    model = build_model(tokenizer)
    model.model.visual.requires_grad_(False)
    schedule = Schedule((model,), steps=100, decay_steps=0)
    losses = []
    for step in range(4):
        loss = _loss(model, tokenizer, images=False)
        loss.backward()
        losses.append(loss.item())
        schedule.step(step)
    assert losses[-1] < losses[0] - 0.1


def test_saving_and_loading_rounds_to_bf16_and_no_more(
    model: Qwen3VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, tmp_path: Path
) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)
    save_model(model, tokenizer, tmp_path)
    round_weights(model)
    again = build_model(tokenizer)
    load_weights(again, tmp_path)
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
