"""The conformance suite over the Hugging Face engine with real models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pipegen as pg
from pipegen.testing import conformance

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    with pg.backends.hf("embedded") as route:
        yield route


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_the_embedded_model_conforms(check: conformance.Check, embedded: pg.Route) -> None:
    check(embedded)
