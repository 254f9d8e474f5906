"""A row of any adapter has the ids of a route with that adapter alone; greedy, seeded, in samples,
under a grammar, as a stream, and scored, whatever rows are beside it and were before it.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from support.adapters import IMAGES, LANGUAGE, write_adapter  # noqa: E402

import pipegen as pg  # noqa: E402

FEW = settings(max_examples=max(3, settings().max_examples // 12))
"""For laws of which each example runs a model several times."""
STARTS = ("Name a colour.", "Name a colour and a number, then", "Count: one, two,")
NAMES = ("", "a", "b")


@functools.cache
def adapters(kind: str) -> dict[str, str]:
    """Two adapters: whose rows go through one pass, or not, since one sees the pieces of images."""
    root = Path(tempfile.mkdtemp())
    targets = LANGUAGE if kind == "together" else IMAGES
    return {"a": write_adapter(root / "a", 1), "b": write_adapter(root / "b", 2, targets)}


@functools.cache
def route(kind: str, name: str | None) -> Any:
    """A route with the adapters for requests to choose, or with that adapter alone."""
    chosen: dict[str, Any] = (
        {"adapters": adapters(kind)}
        if name is None
        else {"adapter": adapters(kind)[name]}
        if name
        else {}
    )
    made: Any = pg.backends.hf("embedded", dtype="float32", batch_size=3, **chosen)
    shares = made.engine.computing.prefixes
    # beginnings of few tokens are shared too, so that short rows show everything
    shares._least, shares._saved, shares._held = 2, 6, 2
    return made


@st.composite
def rows(choose: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "adapter": choose(st.sampled_from(NAMES)),
        "max_new_tokens": choose(st.integers(1, 8)),
        "ignore_eos": choose(st.booleans()),
    }
    if choose(st.booleans()):
        options |= {"temperature": 1.2, "seed": choose(st.integers(0, 9))}
        options |= {"samples": choose(st.integers(1, 3))}
    if choose(st.integers(0, 3)) == 0:
        options |= {"regex": "(red|blue|[0-9]+){1,3}", "ignore_eos": False}
    return {"prompt": choose(st.sampled_from(STARTS)), "options": options}


def alone(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "options": {**row["options"], "adapter": None}}


def ids_of(slot: Any) -> Any:
    result = slot.unwrap()
    return [one.token_ids for one in (result, *result.samples)]


def streamed(used: Any, requests: list[dict[str, Any]]) -> list[Any]:
    done = {
        event.index: event.slot for event in pg.stream(used, requests) if hasattr(event, "slot")
    }
    return [ids_of(done[index]) for index in range(len(requests))]


@pytest.mark.parametrize("kind", ["together", "in groups"])
@given(data=st.data())
@FEW
def test_rows_of_mixed_adapters_have_the_ids_of_each_alone(kind: str, data: Any) -> None:
    requests = data.draw(st.lists(rows(), min_size=2, max_size=8))
    mixed = route(kind, None)
    found = (
        streamed(mixed, requests)
        if data.draw(st.booleans())
        else [ids_of(slot) for slot in pg.run(mixed, requests)]
    )
    for row, ids in zip(requests, found, strict=True):
        own = route(kind, row["options"]["adapter"])
        assert ids == ids_of(pg.run(own, [alone(row)])[0])


@pytest.mark.parametrize("kind", ["together", "in groups"])
@given(data=st.data())
@FEW
def test_scores_of_mixed_adapters_are_those_of_each_alone(kind: str, data: Any) -> None:
    requests = [
        {
            "prompt": data.draw(st.sampled_from(STARTS)),
            "continuation": data.draw(st.sampled_from([" red", " blue or red", " 1 2 3"])),
            "options": {"adapter": data.draw(st.sampled_from(NAMES))},
        }
        for _ in range(data.draw(st.integers(2, 8)))
    ]
    for row, slot in zip(requests, pg.score(route(kind, None), requests), strict=True):
        own = route(kind, row["options"]["adapter"])
        wanted = pg.score(own, [alone(row)])[0].unwrap()
        assert slot.unwrap().token_logprobs == pytest.approx(wanted.token_logprobs, abs=1e-4)
