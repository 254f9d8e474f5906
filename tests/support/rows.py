"""Rows for the Hugging Face engine: prompts of several lengths, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.models import FAMILIES, encoded

from pipegen.records.results import Encoded, Raw

__all__ = ["FAMILY", "PROMPTS", "ids", "raws", "sampled"]

PROMPTS = (
    [70, 71, 72],
    [80, 81, 82, 83, 84],
    [90],
    [60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71],
)
FAMILY = pytest.mark.parametrize("family", FAMILIES)


def raws(engine: Any, inputs: Sequence[Encoded]) -> list[Raw]:
    return [slot.unwrap() for slot in engine.generate(inputs)]


def ids(engine: Any, inputs: Sequence[Encoded]) -> list[tuple[int, ...]]:
    return [raw.token_ids for raw in raws(engine, inputs)]


def sampled(at: int, **more: Any) -> Encoded:
    return encoded(
        PROMPTS[at % 4], **{"temperature": 1.5, "max_new_tokens": 10, "seed": at, **more}
    )
