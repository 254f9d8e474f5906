"""Every way to run a pipe over requests, so that a law can say that all of them give the slots of
`pg.run`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pipegen as pg

__all__ = ["differing_ways", "every_way"]

Slots = tuple[pg.Slot[Any], ...]


def differing_ways(
    pipe: Any,
    requests: Sequence[Any],
    options: Any = None,
    *,
    streams: bool = True,
    of: Callable[[pg.Slot[Any]], Any] = lambda slot: slot,
) -> list[str]:
    """The ways whose slots are not those of `run`; the joined deltas of each stream are its texts.

    streams: False for a fallback from an error that comes after the text: a stream takes a row over
        only before its first delta.
    of: what of a slot is compared.
    """
    batch = pg.run(pipe, requests, options)
    ways = every_way(pipe, requests, options, jobs=all(map(_is_kept, batch)))
    return [
        f"{name}, request {number}: {_difference(slot, wanted)}"
        for name, slots in ways.items()
        if streams or "stream" not in name
        for number, (slot, wanted) in enumerate(zip(slots, batch, strict=True))
        if of(slot) != of(wanted)
    ]


def _difference(slot: pg.Slot[Any], wanted: pg.Slot[Any]) -> str:
    """What differs, where both are results, and otherwise both."""
    if pg.is_ok(slot) and pg.is_ok(wanted) and isinstance(slot.unwrap(), pg.GenerationResult):
        one, other = _fields(slot.unwrap()), _fields(wanted.unwrap())
        return str({name: (one[name], other[name]) for name in one if one[name] != other[name]})
    return f"{slot}, and run gives {wanted}"


def every_way(
    pipe: Any, requests: Sequence[Any], options: Any = None, *, jobs: bool = True
) -> Mapping[str, Slots]:
    """The slots that each way gives but `run`. A job keeps results, so `jobs=False` is for pipes
    that give something else.
    """
    keyed = [*enumerate(requests)]
    ways: dict[str, Slots] = {
        "one by one": tuple(pg.run(pipe, [request], options)[0] for request in requests),
        "imap": tuple(pg.imap(pipe, requests, options)),
        "imap_keyed": _in_order(pg.imap_keyed(pipe, keyed, options, in_flight=2, ordered=False)),
        "stream": _streamed(pg.stream(pipe, requests, options)),
        **asyncio.run(_awaited(pipe, requests, options)),
    }
    if jobs:
        with tempfile.TemporaryDirectory() as folder:
            with pg.job(pipe, requests, f"{folder}/job", options) as job:
                ways["job"] = tuple(job)
            with pg.job(pipe, requests, f"{folder}/job", options) as job:
                ways["job again"] = tuple(job)
            with pg.job_keyed(pipe, keyed, f"{folder}/keyed", options) as keyed_job:
                ways["job_keyed"] = _in_order(keyed_job)
    return ways


def _fields(result: Any) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}


async def _awaited(pipe: Any, requests: Sequence[Any], options: Any) -> dict[str, Slots]:
    keyed = [*enumerate(requests)]
    return {
        "arun": await pg.arun(pipe, requests, options),
        "aimap": tuple([slot async for slot in pg.aimap(pipe, requests, options)]),
        "aimap_keyed": _in_order([pair async for pair in pg.aimap_keyed(pipe, keyed, options)]),
        "astream": _streamed([event async for event in pg.astream(pipe, requests, options)]),
    }


def _in_order(pairs: Iterable[tuple[int, pg.Slot[Any]]]) -> Slots:
    slots = dict(pairs)
    return tuple(slots[number] for number in range(len(slots)))


def _streamed(events: Iterable[Any]) -> Slots:
    """The slots of a stream, whose deltas make up the text of each sample in each round."""
    texts: dict[tuple[int, int, int], str] = {}
    slots: dict[int, pg.Slot[Any]] = {}
    for event in events:
        if isinstance(event, pg.Done):
            slots[event.index] = event.slot
        else:
            at = event.index, event.sample, event.round
            texts[at] = texts.get(at, "") + event.text
    for index, slot in slots.items():
        if not pg.is_ok(slot) or not isinstance(slot.unwrap(), pg.GenerationResult):
            continue
        for sample, one in enumerate(slot.unwrap().completions):
            if pg.is_ok(one):
                result = one.unwrap()
                rounds = [*result.rounds[:-1], result]
                shown = [texts.get((index, sample, number), "") for number in range(len(rounds))]
                assert shown == [each.text for each in rounds]
    return _in_order(slots.items())


def _is_kept(slot: pg.Slot[Any]) -> bool:
    return not pg.is_ok(slot) or isinstance(slot.unwrap(), pg.GenerationResult)
