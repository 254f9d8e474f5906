"""Edited routes on the embedded model: the same results as the stages make of its whole answers."""

from __future__ import annotations

import pytest
from support.edits import disagreements

import pipegen as pg


@pytest.mark.slow
def test_an_early_exit_changes_nothing_on_the_embedded_model() -> None:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded") as route:
        assert disagreements(route) == []
