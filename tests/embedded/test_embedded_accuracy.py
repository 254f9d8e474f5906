"""A held-out sample, smaller than the model card's, against the figures promised there."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen import embedded

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training.evaluate import evaluate, image_cases, overlap, text_cases  # noqa: E402
from training.inference import Embedded  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return evaluate(Embedded(embedded.path()), [*text_cases(204), *image_cases(60)])
    finally:
        torch.set_num_threads(threads)


def _share(report: dict[str, Any], group: str) -> float:
    right, asked = report["groups"][group]
    return float(right / asked)


def test_text_tasks(report: dict[str, Any]) -> None:
    assert report["text"] >= 0.95, report["wrong"]


def test_images_in_words(report: dict[str, Any]) -> None:
    assert _share(report, "image describe") >= 0.9, report["wrong"]


def test_images_as_json(report: dict[str, Any]) -> None:
    boxes = report["boxes"]
    assert boxes["valid_json"] >= 0.98
    assert boxes["shapes_and_colors_right"] >= 0.9
    assert boxes["mean_iou"] >= 0.8


def test_system_prompts_turns_and_thinking(report: dict[str, Any]) -> None:
    assert report["system"] >= 0.95, report["wrong"]
    assert report["turns"] >= 0.95, report["wrong"]
    assert report["thinking"] >= 0.95, report["wrong"]


def test_two_images_in_one_request(report: dict[str, Any]) -> None:
    assert report["images"] >= 0.8, report["wrong"]


def test_no_thought_when_thinking_is_off(report: dict[str, Any]) -> None:
    assert report["thoughts_when_off"] == 0


def test_greedy_choices_are_clear_cut(report: dict[str, Any]) -> None:
    for figures in report["margins"].values():
        assert figures["median"] > 5
        assert figures["below_half"] < 0.002


def test_overlap_of_boxes() -> None:
    assert overlap((0, 0, 10, 10), (0, 0, 10, 10)) == 1.0
    assert overlap((0, 0, 10, 10), (20, 0, 30, 10)) == 0.0
    assert overlap((0, 0, 0, 0), (0, 0, 0, 0)) == 0.0
