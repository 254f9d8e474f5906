"""Edited routes against the pure stages over the engine's whole answer: what a session on any
engine compares.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import pipegen as pg
from pipegen.drivers.arguments import prepare_batch
from pipegen.records.options import options_from
from pipegen.records.results import Decoded, GenerationResult, Raw

__all__ = ["EDITS", "OPTIONS", "REQUEST", "disagreements"]

REQUEST: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Count from 1 to 9."}]}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "a stop": {"stop": ["3"]},
    "stops": {"stop": [", 4", "4", "two"]},
    "a stop with a control token": {
        "stop": ["9<|im_end|>", "9.<|im_end|>"],
        "skip_special_tokens": False,
    },
    "after some tokens": {"stop": ["1", "5"], "min_new_tokens": 6},
    "no stop": {},
}


def without_the_first(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=raw.token_ids[1:], logprobs=None)


def reversed_text(decoded: Decoded) -> Decoded:
    return dataclasses.replace(decoded, text=decoded.text[::-1])


def same(value: Any) -> Any:
    return value


def inserted(f: Callable[[Any], Any], after: str) -> Callable[[Any], Any]:
    return lambda pipe: pipe.insert(pg.pure("mine", f), after=after)


EDITS: Mapping[str, Callable[[Any], Any]] = {
    "as it is": same,
    **{
        f"after {place}": inserted(same, place)
        for place in ("resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim")
    },
    "before resolve": lambda pipe: pipe.insert(pg.pure("mine", same), before="resolve"),
    "other ids": inserted(without_the_first, "call"),
    "another text": inserted(reversed_text, "decode"),
    "another text after the stop": inserted(reversed_text, "stop"),
    "own stop": lambda pipe: pipe.replace("stop", pg.pure("mine", reversed_text)),
    "joined by hand": lambda pipe: functools.reduce(operator.rshift, pipe.parts),
    "a plugin that halts": lambda pipe: pg.attach(
        pipe.insert(pg.pure("mine", reversed_text), after="decode"),
        pg.Plugin(
            name="six",
            start=lambda: None,
            feed=lambda state, text: (state, text.index("6") + 1 if "6" in text else None),
        ),
    ),
}


def disagreements(route: Any, *, max_new_tokens: int = 28) -> list[str]:
    """The edits and options under which a route gives another result than its stages over the whole
    answer of its engine.
    """
    wrong: list[str] = []
    for options_name, values in OPTIONS.items():
        options = {**values, "max_new_tokens": max_new_tokens}
        for name, edit in EDITS.items():
            pipe = edit(route)
            (slot,) = pg.run(pipe, [REQUEST], options)
            expected = _from_the_whole_answer(pipe, options)
            if _ending(slot) != _ending(expected):
                wrong.append(
                    f"{name}, {options_name}: {_ending(slot)}, and the stages make"
                    f" {_ending(expected)}"
                )
    return wrong


def _from_the_whole_answer(pipe: Any, options: Mapping[str, Any]) -> pg.Slot[Any]:
    """What the stages make of an answer that the engine ended for no stop string and no plugin."""
    names = [part.name for part in pipe.parts]
    call = names.index("call")
    first: Any = pg.pure("nothing", same)
    asked = first.with_parts(pipe.parts[:call])
    engine = pipe.parts[call].backend
    bare = engine.with_plugin(pg.Plugin(name="none"))
    bare.plugins = ()
    (resolved,) = asked.apply(prepare_batch([REQUEST], options_from(options), None, None))
    (whole,) = pg.run(asked >> pg.call(bare), [REQUEST], {**options, "stop": []})
    answer = pg.Success(dataclasses.replace(whole.unwrap(), encoded=resolved.unwrap()))
    slots: tuple[pg.Slot[Any], ...] = first.with_parts(pipe.parts[call + 1 :]).apply((answer,))
    return slots[0]


def _ending(slot: pg.Slot[GenerationResult]) -> tuple[Any, ...]:
    if not pg.is_ok(slot):
        return (slot.failure(),)
    result = slot.unwrap()
    return result.text, result.raw_text, result.token_ids, result.finish, result.stop
