"""Edited routes to chat servers give what the stages make of the server's whole answer, by every
function; what no stage honours is refused before the call.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.edits import by_stages, ending, halts_at
from support.stopping_server import StoppingServer
from support.ways import differing_ways

import pipegen as pg
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import ChatOutput, ResolvedRequest

pytest.importorskip("aiohttp")

TEXTS = st.text("abS\n", max_size=8)
STOPS = st.lists(st.text("abS\n", min_size=1, max_size=3), max_size=3, unique=True)
DIALECTS = st.sampled_from(("plain", "vllm", "sglang"))
WIDTHS = st.integers(1, 3)
FORMS: tuple[dict[str, Any], ...] = (
    {"choice": ["ab", "S"]},
    {"regex": "[ab]*S?"},
    {"json_schema": {"type": "string"}},
)
OPTIONS = st.builds(
    lambda form, options: {**form, **options},
    st.just({}) | st.sampled_from(FORMS),
    st.fixed_dictionaries(
        {},
        optional={
            "stop": STOPS,
            "max_new_tokens": st.integers(1, 8),
            "samples": st.integers(1, 2),
            "strip_whitespace": st.booleans(),
        },
    ),
)
TRIMS = pg.Plugin(name="trims", trim=str.strip)


# Stages of a user's own, each for the record at one place.
def rephrased(request: pg.GenerationRequest) -> pg.GenerationRequest:
    messages: Any = [{"role": "user", "content": "other"}]
    return dataclasses.replace(request, prompt=None, messages=messages)


def with_a_stop(resolved: ResolvedRequest) -> ResolvedRequest:
    stop = unchecked_replace(resolved.options.stop or pg.StopOptions(), stop=("S",))
    changed: ResolvedRequest = unchecked_replace(
        resolved, options=unchecked_replace(resolved.options, stop=stop)
    )
    return changed


def reversed_text(output: ChatOutput) -> ChatOutput:
    return dataclasses.replace(output, text=output.text[::-1])


def counted(result: Any) -> Any:
    if isinstance(result, str):  # after `own trim`
        return f"{result} {len(result)}"
    return dataclasses.replace(result, text=f"{result.text} {len(result.text)}")


def text_of(output: ChatOutput) -> str:
    return output.text


def same(value: Any) -> Any:
    return value


def inserted(name: str, f: Callable[[Any], Any], **place: str) -> Callable[[Any], Any]:
    return lambda pipe: pipe.insert(pg.pure(name, f), **place)


EDITS: dict[str, Callable[[Any], Any]] = {
    "before resolve": inserted("rephrased", rephrased, before="resolve"),
    "after resolve": inserted("with a stop", with_a_stop, after="resolve"),
    "after call": inserted("reversed", reversed_text, after="call"),
    "after trim": inserted("counted", counted, after="trim"),
    "looks": inserted("looks", same, after="call"),
    "without trim": lambda pipe: pipe.remove("trim"),
    "own trim": lambda pipe: pipe.replace("trim", pg.pure("own trim", text_of)),
    "halts": lambda pipe: pg.attach(pipe, halts_at("b")),
    "trims": lambda pipe: pg.attach(pipe, TRIMS),
    "watched": lambda pipe: pg.watched(pipe, lambda progress: None),
    "joined by hand": lambda pipe: functools.reduce(operator.rshift, pipe.parts),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "alone": same,
    "falls back": lambda pipe: pg.fallback(pipe, pipe, when=pg.MalformedResponse),
    "repeated": lambda pipe: pg.repeat(pipe, lambda result: None, limit=2),
}
NAMES = st.lists(st.sampled_from(sorted(EDITS)), max_size=4)


def edited(pipe: Any, names: list[str]) -> Any:
    """The pipe after these edits; one that another made impossible is left out."""
    for name in names:
        try:
            pipe = EDITS[name](pipe)
        except (pg.InvalidField, pg.GenerationError):
            continue
    return pipe


@pytest.fixture(scope="module")
def server() -> Iterator[StoppingServer]:
    with StoppingServer() as running:
        yield running


def route_to(server: StoppingServer, dialect: Any, width: int, text: str) -> pg.Route:
    server.dialect, server.width = dialect, width
    server.answer = lambda prompt: text if prompt == "Hi" else text[::-1]
    return pg.backends.openai_server("toy", base_url=server.url, dialect=dialect)


REQUESTS: list[dict[str, Any]] = [{"prompt": "Hi"}, {"prompt": "Ho", "options": {"stop": ["aS"]}}]


@given(TEXTS, DIALECTS, WIDTHS, NAMES, OPTIONS)
def test_a_row_is_what_the_stages_make_of_the_servers_whole_answer(
    server: StoppingServer,
    text: str,
    dialect: str,
    width: int,
    names: list[str],
    options: dict[str, Any],
) -> None:
    with route_to(server, dialect, width, text) as route:
        pipe = edited(route, names)
        stages = [part.name for part in pipe.parts]
        if "own trim" in stages:  # its texts are not put together
            options = {**options, "samples": 1}
        trimmers = [plugin for plugin in pipe.owns[0].plugins if plugin.trim is not None]
        lacks = "trim" not in stages and (
            trimmers
            or (
                "own trim" not in stages
                and (options.get("strip_whitespace") or options.get("samples", 1) > 1)
            )
        )
        asked_before = server.asked
        slots = pg.run(pipe, REQUESTS, options)
        if lacks:
            kinds = (pg.UnsupportedOption, pg.UnsupportedPlugin)
            assert all(isinstance(slot.failure(), kinds) for slot in slots)
            assert server.asked == asked_before
            return
        for slot, request in zip(slots, REQUESTS, strict=True):
            wanted = ending(by_stages(pipe, request, {**options, "samples": 1}))
            assert ending(slot) == wanted
            if pg.is_ok(slot) and stages[-1] == "trim":  # a later stage gets all samples as one
                assert {ending(one) for one in slot.unwrap().completions} == {wanted}


@given(TEXTS, DIALECTS, WIDTHS, NAMES, OPTIONS, st.sampled_from(sorted(AROUND)))
def test_every_way_gives_the_slots_of_one_run_of_an_edited_chat_route(
    server: StoppingServer,
    text: str,
    dialect: str,
    width: int,
    names: list[str],
    options: dict[str, Any],
    around: str,
) -> None:
    with route_to(server, dialect, width, text) as route:
        pipe = edited(route, names)
        if "own trim" not in names and "without trim" not in names:  # these are of results
            pipe = AROUND[around](pipe)
        # a stream leads what it has shown to no other route
        streams = around != "falls back"
        assert differing_ways(pipe, REQUESTS, options, streams=streams) == []
