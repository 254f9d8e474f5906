"""Random pipelines give the same slots by every function that runs a pipe; with fallbacks, judges,
loops, edits, plugins and samples, and after pickling at each call.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
from typing import Any

from hypothesis import given, settings, strategies as st
from support.ways import differing_ways

import pipegen as pg
from pipegen.core.interpreter import Row, advance
from pipegen.drivers.arguments import Admission
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine, Script

NAMES = (f"own-{number}" for number in itertools.count())
STAGES = ("resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim")


def scripted(salt: str, faults: int) -> Script:
    """Texts and errors that depend on the prompt and the seed alone; `faults` rows in ten fail."""

    def answer(encoded: Encoded) -> str | pg.GenerationError:
        number = int(
            hashlib.sha256(
                f"{salt} {encoded.prompt.text} {encoded.options.seed}".encode()
            ).hexdigest(),
            16,
        )
        if number % 10 < faults:
            return (
                pg.BackendFailed(f"no {salt}", scope="row")
                if number % 3
                else pg.UnsupportedOption("no", option="seed")
            )
        return f"{salt}{number % 1000}<|im_end|>" if number % 4 else f"{salt} STOP more"

    return answer


def a_route(salt: str, faults: int, name: str, options: dict[str, Any] | None) -> Any:
    route = pg.route(FakeEngine(scripted(salt, faults)), name=name)
    return route if options is None else route.with_options(options)


def fall_back(first: Any, second: Any, when: Any) -> Any:
    return pg.fallback(first, second, when=when)


def judged(first: Any, second: Any) -> Any:
    return (
        first
        >> pg.pure(
            next(NAMES), lambda result: pg.TextGenerationRequest(prompt=f"Right? {result.text}")
        )
        >> second
    )


def looped(inner: Any, limit: int) -> Any:
    def again(result: pg.GenerationResult) -> pg.GenerationRequest | None:
        if hashlib.sha256(result.text.encode()).digest()[0] % 3 == 0:
            return None
        return pg.TextGenerationRequest(prompt=f"And? {result.text}")

    try:
        return pg.repeat(inner, again, limit=limit)
    except TypeError:
        return inner


def edited(pipe: Any, edit: str, at: str) -> Any:
    own: Any = pg.pure(next(NAMES), lambda value: value, keeps_text=edit == "keeps text")
    if edit == "plugin":
        return pg.attach(pipe, pg.Plugin(name=next(NAMES), trim=str.strip))
    if edit == "fails":
        return pipe >> pg.each(
            next(NAMES),
            lambda result: (
                pg.Success(result)
                if not result.text.endswith("3")
                else pg.Failure(pg.StageFailed("a 3", stage="own"))
            ),
        )
    if edit in ("watched", "samples"):
        return pg.watched(pipe, lambda event: None) if edit == "watched" else pg.samples(pipe)
    try:
        return pipe.insert(own, after=at)
    except pg.InvalidField:
        # a fallback is one stage, and of two routes the stages have the same names
        return pipe >> own


OPTIONS = st.sampled_from(
    (None, None, {"samples": 2, "seed": 3}, {"stop": ["STOP"]}, {"max_new_tokens": 3})
)
WHEN = st.sampled_from(
    (pg.BackendFailed, pg.GenerationError, (pg.UnsupportedOption, pg.StageFailed))
)
EDITS = st.sampled_from(("looks", "keeps text", "plugin", "watched", "fails", "samples"))
ROUTES = st.builds(
    a_route, st.sampled_from("abc"), st.sampled_from((0, 0, 3, 6)), st.sampled_from("xy"), OPTIONS
)


def nested(inner: Any) -> Any:
    return st.one_of(
        st.builds(fall_back, inner, inner, WHEN),
        st.builds(judged, inner, inner),
        st.builds(looped, inner, st.integers(1, 3)),
        st.builds(edited, inner, EDITS, st.sampled_from(STAGES)),
    )


PIPES = st.recursive(ROUTES, nested, max_leaves=4)
REQUESTS = st.lists(
    st.builds(
        lambda prompt, samples, seed: {
            "prompt": prompt,
            "options": {"samples": samples, "seed": seed},
        },
        st.sampled_from(("hi", "ho", "")),
        st.integers(1, 3),
        st.sampled_from((None, 1, 2)),
    ),
    max_size=3,
)


@settings(deadline=None)
@given(PIPES, REQUESTS)
def test_every_way_gives_the_slots_of_one_run(pipe: Any, requests: list[Any]) -> None:
    assert differing_ways(pipe, requests) == []


@settings(deadline=None)
@given(PIPES, REQUESTS, st.randoms(use_true_random=False))
def test_rows_are_data_that_go_on_anywhere_and_in_any_order(
    pipe: Any, requests: list[Any], random: Any
) -> None:
    """Each row is pickled at each of its calls, and answered alone, whichever comes first."""
    batch = Admission().batch(requests)
    done = advance(pipe, [Row(number, slot) for number, slot in enumerate(batch)])
    assert advance(pipe, [Row(number, slot) for number, slot in enumerate(batch)]) == done
    calls, waiting, ended = [*done.calls], [*done.waiting], {row.key: row for row in done.ended}
    while calls:
        row, wanted = calls.pop(random.randrange(len(calls)))
        there = pickle.loads(pickle.dumps(row))
        assert there == row
        (answer,) = wanted.backend.generate([wanted.input])
        done = advance(pipe, [there.answered(answer), *waiting])
        calls, waiting = [*calls, *done.calls], done.waiting
        ended |= {row.key: row for row in done.ended}
    assert tuple(ended[number].value for number in range(len(batch))) == pg.run(pipe, requests)
