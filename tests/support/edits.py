"""Edited routes against the pure stages over the engine's whole answer: what a session on any
engine compares.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.ways import differing_ways

import pipegen as pg
from pipegen.drivers.arguments import check_settings
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import ChatOutput, Decoded, Finish, Raw

__all__ = ["by_stages", "disagreements", "ending", "halts_at"]

REQUEST: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Count from 1 to 9."}]}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "a stop": {"stop": ["3"]},
    "stops": {"stop": [", 4", "4", "two"]},
    "a stop with a control token": {
        "stop": ["9<|im_end|>", "9.<|im_end|>"],
        "skip_special_tokens": False,
    },
    "after some tokens": {"stop": ["1", "5"], "min_new_tokens": 6},
    "a form and a stop": {"regex": "[0-9, ]{12,20}", "stop": ["4"]},
    "a choice": {"choice": ["1, 2", "3, 4"], "stop": [", "]},
    "a schema": {"json_schema": {"type": "integer"}, "stop": ["2", "8"]},
    "no stop": {},
}


def halts_at(text: str) -> pg.Plugin:
    """A plugin that ends a row after this text of one character."""
    return pg.Plugin(
        name=f"halts at {text}",
        start=lambda: None,
        feed=lambda state, new: (state, new.index(text) + 1 if text in new else None),
    )


# Stages of a user's own
def without_the_first(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=raw.token_ids[1:], logprobs=None)


def reversed_text(answer: Any) -> Any:
    return dataclasses.replace(answer, text=answer.text[::-1])


def same(value: Any) -> Any:
    return value


def inserted(f: Callable[[Any], Any], **place: str) -> Callable[[Any], Any]:
    return lambda pipe: pipe.insert(pg.pure("mine", f), **place)


def everywhere(*places: str) -> dict[str, Callable[[Any], Any]]:
    """Edits that put a stage at each place of a route of these stages, and one that joins them by
    hand.
    """
    return {
        "as it is": same,
        f"before {places[0]}": inserted(same, before=places[0]),
        **{f"after {place}": inserted(same, after=place) for place in places},
        "joined by hand": lambda pipe: functools.reduce(operator.rshift, pipe.parts),
    }


TOKEN_EDITS: Mapping[str, Callable[[Any], Any]] = {
    **everywhere("resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim"),
    "other ids": inserted(without_the_first, after="call"),
    "another text": inserted(reversed_text, after="decode"),
    "another text after the stop": inserted(reversed_text, after="stop"),
    "own stop": lambda pipe: pipe.replace("stop", pg.pure("mine", reversed_text)),
    "a plugin that halts": lambda pipe: pg.attach(
        pipe.insert(pg.pure("mine", reversed_text), after="decode"), halts_at("6")
    ),
}
TEXT_EDITS: Mapping[str, Callable[[Any], Any]] = {
    **everywhere("resolve", "call", "trim"),
    "another text": inserted(reversed_text, after="call"),
    "a plugin that halts": lambda pipe: pg.attach(pipe, halts_at("6")),
}
IN_EVERY_WAY = ("another text", "other ids", "a plugin that halts")
"""The edits that are run in every way."""


def disagreements(route: Any, *, max_new_tokens: int = 28) -> list[str]:
    """The edits and options under which a route gives another result than its stages over the whole
    answer of its engine, or one way to run it another one than `run`.
    """
    wrong: list[str] = []
    by_ids = any(part.name == "decode" for part in route.parts)
    whole: list[tuple[Any, Any]] = []
    for options_name, values in OPTIONS.items():
        if not by_ids and "skip_special_tokens" in values:
            continue  # the text of a whole answer is without its end token
        options = {**values, "max_new_tokens": max_new_tokens}
        for name, edit in (TOKEN_EDITS if by_ids else TEXT_EDITS).items():
            pipe = edit(route)
            (slot,) = pg.run(pipe, [REQUEST], options)
            found, expected = ending(slot), ending(by_stages(pipe, REQUEST, options, whole))
            if found != expected:
                wrong.append(f"{name}, {options_name}: {found}, and the stages make {expected}")
            if name in IN_EVERY_WAY and options_name in ("stops", "a form and a stop"):
                requests = [REQUEST, REQUEST]
                # in a stream, SGLang's counts of a chat come too late
                of: Any = {} if by_ids else {"of": ending}
                different = differing_ways(pipe, requests, options, **of)
                wrong += [f"{name}, {options_name}, {words}" for words in different]
    return wrong


def by_stages(
    pipe: Any,
    request: Mapping[str, Any],
    options: Mapping[str, Any],
    whole_answers: list[tuple[Any, Any]] | None = None,
) -> pg.Slot[Any]:
    """What the stages make of an answer that the engine ended for no stop string and no plugin. The
    pipe has one call.

    whole_answers: what the engine has answered to what it was asked; it is asked nothing twice.
    """
    names, nothing = [part.name for part in pipe.parts], pg.pure("nothing", same)
    call = names.index("call")
    before, after = (
        nothing.with_parts(parts) for parts in (pipe.parts[:call], pipe.parts[call + 1 :])
    )
    engine = pipe.parts[call].backend
    (prepared,) = before.apply(check_settings(options).batch([request]))
    if not pg.is_ok(prepared):
        return prepared
    asked: Any = prepared.unwrap()
    stop = unchecked_replace(asked.options.stop or pg.StopOptions(), stop=())
    unstopped = unchecked_replace(asked, options=unchecked_replace(asked.options, stop=stop))
    whole = next((slot for one, slot in whole_answers or () if one == unstopped), None)
    if whole is None:
        bare = engine.with_plugin(pg.Plugin(name="none"))
        bare.plugins = ()
        (whole,) = bare.generate([unstopped])
        if whole_answers is not None:
            whole_answers.append((unstopped, whole))
    cut = functools.partial(_cut_by_the_rule, asked, engine.plugins)
    slots: tuple[pg.Slot[Any], ...] = after.apply((whole.map(cut),))
    return slots[0]


def _cut_by_the_rule(asked: Any, plugins: Sequence[pg.Plugin], whole: Any) -> Any:
    """The answer to what was asked. That of a server which writes text ends at the stop that
    completes first, or where a plugin of `halts_at` halts it.
    """
    if not isinstance(whole, ChatOutput):
        return dataclasses.replace(whole, encoded=asked)
    text, stops = whole.text, asked.options.stop.stop or ()
    ends = [(text.index(stop) + len(stop), 0, -len(stop), stop) for stop in stops if stop in text]
    for plugin in plugins:
        character = plugin.name[-1]
        if plugin.feed is not None and character in text:
            ends.append((text.index(character) + 1, 1, 0, plugin.name))
    if not ends:
        return dataclasses.replace(whole, resolved=asked)
    end, by_plugin, length, name = min(ends)
    return dataclasses.replace(
        whole,
        resolved=asked,
        text=text[: end + length],
        raw_text=text[:end],
        finish=Finish.PLUGIN if by_plugin else Finish.STOP_STRING,
        stop=name,
    )


def ending(slot: pg.Slot[Any]) -> Any:
    """All of a slot that does not depend on how much was generated."""
    if not pg.is_ok(slot):
        return slot.failure()
    value = slot.unwrap()
    if isinstance(value, str):
        return value
    if isinstance(value, Decoded):
        ids = value.raw.token_ids
    elif isinstance(value, pg.GenerationResult) and value.prompt_text is not None:
        ids = value.token_ids
    else:  # of a server that writes text
        ids = ()
    return value.text, value.raw_text, ids, value.finish, value.stop
