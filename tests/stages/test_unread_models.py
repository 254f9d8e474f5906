"""Stages that run alone on an engine whose model cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.stages.joining import join
from pipegen.testing.fake import FakeEngine

GOOD = FakeEngine("Hi")
RESOLVED = pg.stages.resolve(GOOD).apply((pg.Success(pg.TextGenerationRequest(prompt="Hi")),))
RENDERED = pg.stages.render(GOOD).apply(RESOLVED)
LOST = pg.BackendFailed("the model is gone", backend="fake")


class Lost(FakeEngine):
    def read_model(self) -> Any:
        raise pg.CallFailed(LOST)


@pytest.mark.parametrize(
    ("stage", "slot"),
    [(pg.stages.render, *RESOLVED), (pg.stages.tokenize, *RENDERED), (join, *RENDERED)],
    ids=["render", "tokenize", "join"],
)
def test_every_row_fails_with_the_reason(stage: Any, slot: Any) -> None:
    failed = stage(Lost("Hi")).apply((slot, slot, pg.Failure(pg.Timeout("slow"))))
    assert [one.failure().message for one in failed] == ["the model is gone"] * 2 + ["slow"]
