"""An engine that ends early gives the slots of its whole answers, however its route is edited."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

from hypothesis import given, strategies as st
from support.edits import by_stages, ending, halts_at
from support.ways import differing_ways

import pipegen as pg
from pipegen.ending.stop_state import ending_ids
from pipegen.records.results import Decoded, Encoded, Raw
from pipegen.testing.fake import FakeEngine

TEXTS = st.text("abS\n", max_size=12)
STOPS = st.lists(st.text("abS\n", min_size=1, max_size=3), max_size=3, unique=True)


def route_of(text: str, *, early: bool) -> Any:
    """A route whose engine writes the text; without `early`, up to the first id that ends the
    row.
    """
    engine = FakeEngine(text, server_side_stops=early)

    def whole(encoded: Encoded) -> tuple[int, ...]:
        ids, ends = (
            engine.tokenizer.encode(text),
            ending_ids(encoded.options, engine.tokenizer, engine.eos_token_ids),
        )
        last = next(
            (
                place
                for place in range(encoded.options.min_new_tokens or 0, len(ids))
                if ids[place] in ends
            ),
            len(ids) - 1,
        )
        return tuple(ids[: last + 1])

    engine.script = whole
    return pg.route(engine)


# Stages of a user's own, each for the record at one place.
def reversed_ids(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=raw.token_ids[::-1], logprobs=None)


def without_the_first_id(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=raw.token_ids[1:], logprobs=None)


def with_a_stop(raw: Raw) -> Raw:
    stop = dataclasses.replace(raw.encoded.options.stop or pg.StopOptions(), stop=("b",))
    return dataclasses.replace(
        raw,
        encoded=dataclasses.replace(
            raw.encoded, options=dataclasses.replace(raw.encoded.options, stop=stop)
        ),
    )


def upper(decoded: Decoded) -> Decoded:
    return dataclasses.replace(
        decoded, text=decoded.text.upper(), raw_text=decoded.raw_text.upper()
    )


def counted(result: pg.GenerationResult | Decoded) -> pg.GenerationResult | Decoded:
    tokens = result.raw.token_ids if isinstance(result, Decoded) else result.token_ids
    return dataclasses.replace(result, text=f"{result.text} {len(tokens)}")


def cut_in_half(decoded: Decoded) -> Decoded:
    return dataclasses.replace(decoded, text=decoded.text[: len(decoded.text) // 2])


def same(value: Any) -> Any:
    return value


def fails() -> pg.Route:
    """A route that fails at one prompt of two."""
    return pg.route(
        FakeEngine(lambda row: pg.Timeout("slow") if row.prompt.text == "Hi" else "b<|im_end|>")
    )


def inserted(name: str, f: Callable[[Any], Any], after: str) -> Callable[[Any], Any]:
    return lambda pipe: pipe.insert(pg.pure(name, f), after=after)


EDITS: dict[str, Callable[[Any], Any]] = {
    **{
        f"after {place}": inserted(f"after {place}", same, place)
        for place in ("resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim")
    },
    "before resolve": lambda pipe: pipe.insert(pg.pure("first", same), before="resolve"),
    "reversed": inserted("reversed", reversed_ids, "call"),
    "without the first": inserted("without the first", without_the_first_id, "call"),
    "with a stop": inserted("with a stop", with_a_stop, "call"),
    "upper": inserted("upper", upper, "decode"),
    "half": inserted("half", cut_in_half, "decode"),
    "half after stop": inserted("half after stop", cut_in_half, "stop"),
    "counted": inserted("counted", counted, "trim"),
    "without stop": lambda pipe: pipe.remove("stop"),
    "without trim": lambda pipe: pipe.remove("trim"),
    "without fit": lambda pipe: pipe.remove("fit"),
    "own stop": lambda pipe: pipe.replace("stop", pg.pure("own stop", upper)),
    "halts": lambda pipe: pg.attach(pipe, halts_at("b")),
    "trims": lambda pipe: pg.attach(pipe, pg.Plugin(name="trims", trim=str.strip)),
    "watched": lambda pipe: pg.watched(pipe, lambda progress: None),
    "falls back": lambda pipe: pg.fallback(pipe, pipe, when=pg.UnsupportedOption),
    "falls back from forms": lambda pipe: pg.fallback(pipe, pipe, when=pg.MalformedResponse),
    "is fallen back to": lambda pipe: pg.fallback(fails(), pipe, when=pg.Timeout),
    "joined by hand": lambda pipe: functools.reduce(operator.rshift, pipe.parts),
}


def edited(pipe: Any, names: list[str]) -> Any:
    """The pipe after these edits; one that another made impossible is left out."""
    for name in names:
        try:
            pipe = EDITS[name](pipe)
        except (pg.InvalidField, pg.GenerationError):
            continue
    return pipe


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
            "stop_token_ids": st.sampled_from([[ord("a")], [ord("\n"), ord("b")]]),
            "min_new_tokens": st.integers(0, 3),
            "max_new_tokens": st.integers(3, 8),
            "ignore_eos": st.booleans(),
            "samples": st.integers(1, 3),
            "strip_whitespace": st.booleans(),
            "skip_special_tokens": st.booleans(),
            "logprobs": st.booleans(),
        },
    ),
)
NAMES = st.lists(st.sampled_from(sorted(EDITS)), max_size=4)


def shown(slot: Any) -> str:
    """What a slot holds; of a row without its last stage all but the note that it was followed."""
    if not pg.is_ok(slot):
        return repr(slot.failure())
    value = slot.unwrap()
    if not isinstance(value, Decoded):
        return repr(value)
    raw = dataclasses.replace(value.raw, ending=None)
    return repr(dataclasses.replace(value, raw=raw, engine_texts=None))


@given(TEXTS, st.booleans(), NAMES, OPTIONS)
def test_an_early_exit_changes_nothing_in_an_edited_route(
    text: str, ends: bool, names: list[str], options: dict[str, Any]
) -> None:
    written = text + "<|im_end|>" * ends
    pipes = [edited(route_of(written, early=early), names) for early in (True, False)]
    requests: list[dict[str, Any]] = [
        {"prompt": "Hi"},
        {"prompt": "Ho", "options": {"max_new_tokens": 3}},
    ]
    early, whole = (pg.run(pipe, requests, options) for pipe in pipes)
    assert [shown(slot) for slot in early] == [shown(slot) for slot in whole]


def is_refused(pipe: Any, options: dict[str, Any]) -> bool:
    """Whether the options ask for what no stage of the pipe does, or its plugins do."""
    names = {part.name for part in pipe.parts}
    plugins = pipe.owns[0].plugins
    return bool(
        (not names & {"stop", "own stop"} and options.get("stop"))
        or ("stop" not in names and any(plugin.feed is not None for plugin in plugins))
        or ("trim" not in names and options.get("strip_whitespace"))
        or ("trim" not in names and any(plugin.trim is not None for plugin in plugins))
    )


@given(TEXTS, NAMES, OPTIONS)
def test_a_row_is_what_the_stages_make_of_the_whole_answer_or_is_refused_before_the_call(
    text: str, names: list[str], options: dict[str, Any]
) -> None:
    pipe = edited(route_of(f"{text}<|im_end|>", early=True), names)
    if "call" not in [part.name for part in pipe.parts]:
        return  # it is within a fallback
    options = {**options, "samples": 1}
    (slot,) = pg.run(pipe, [{"prompt": "Hi"}], options)
    if is_refused(pipe, options):
        assert isinstance(slot.failure(), pg.UnsupportedOption | pg.UnsupportedPlugin)
        assert pipe.owns[0].calls == []
    else:
        assert ending(slot) == ending(by_stages(pipe, {"prompt": "Hi"}, options))


@given(TEXTS, NAMES, OPTIONS)
def test_every_way_gives_the_slots_of_one_run_of_an_edited_route(
    text: str, names: list[str], options: dict[str, Any]
) -> None:
    pipe = edited(route_of(f"{text}<|im_end|>", early=True), names)
    requests, streams = [{"prompt": "Hi"}, {"prompt": "Ho"}], "falls back from forms" not in names
    assert differing_ways(pipe, requests, options, streams=streams) == []
