"""Stops: one rule for every engine.

The stop that completes first wins, whatever the engine, its version, or how characters were grouped
into tokens; of stops that complete at the same character, the longest. The text ends before it.

>>> cut("abcSTOPdEND", ("END", "STOP"))
Cut(text='abc', stop='STOP', end=7)
>>> cut("abcd", ("abcd", "bc"))
Cut(text='a', stop='bc', end=3)
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.core.errors import PluginFailed
from pipegen.core.pipe import Pipe, row_stage
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import record
from pipegen.records.options import GenerationOptions
from pipegen.records.results import Decoded, Ending, Finish
from pipegen.stages.parts.detokenize import spell
from pipegen.stages.parts.stop_scan import Scan, StopScanner, checked
from pipegen.stages.parts.watching import Watch

__all__ = [
    "Cut",
    "Scan",
    "StopPlan",
    "StopScanner",
    "cut",
    "ending_ids",
    "endings",
    "plan_stops",
    "split_stops",
    "stop",
    "stop_row",
    "text_offset",
]


class Cut(NamedTuple):
    """A text up to its first stop. `end` is the offset, in characters, just after the stop; None
    without one, as is `stop`.
    """

    text: str
    stop: str | None
    end: int | None


def cut(text: str, stops: Sequence[str], *, after: int = 0) -> Cut:
    """The text before the stop that completes first; a stop that completes within the first `after`
    characters does not count.

    Raises `TypeError` for a bare string or something other than strings, `ValueError` for an empty
    stop.

    >>> cut("no stop here", ("END",))
    Cut(text='no stop here', stop=None, end=None)
    >>> cut("END and END", ("END",), after=3)
    Cut(text='END and ', stop='END', end=11)
    """
    first: tuple[int, int, str] | None = None
    for candidate in checked(stops):
        start = text.find(candidate, max(0, after + 1 - len(candidate)))
        if start >= 0:
            found = (start + len(candidate), -len(candidate), candidate)
            first = found if first is None else min(first, found)
    if first is None:
        return Cut(text, None, None)
    end, _, winner = first
    return Cut(text[: end - len(winner)], winner, end)


@record
class StopPlan:
    """Where each stop string is looked for."""

    stop_ids: immutabledict[int, str]
    """Stops that are exactly one special token: their id ends the row."""
    text: tuple[str, ...] = ()
    """Looked for in `text`, where special tokens are invisible."""
    raw: tuple[str, ...] = ()
    """Stops that contain a special token's text among other text: looked for in `raw_text`, also
    where the model's own end token completes them.
    """


def split_stops(stops: Sequence[str], tokenizer: Tokenizer) -> StopPlan:
    """Sort stop strings by where they are looked for: among the ids, in the text, or in the text
    with special tokens.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> plan = split_stops(("<|im_end|>", "END", "END<|im_end|>"), ToyTokenizer())
    >>> dict(plan.stop_ids), plan.text, plan.raw
    ({257: '<|im_end|>'}, ('END',), ('END<|im_end|>',))
    """
    if not checked(stops):
        return StopPlan(stop_ids=immutabledict())
    special = tokenizer.special_tokens
    others = [candidate for candidate in stops if candidate not in special]
    raw = tuple(candidate for candidate in others if any(token in candidate for token in special))
    ids = immutabledict(
        {special[candidate]: candidate for candidate in stops if candidate in special}
    )
    return StopPlan(
        stop_ids=ids, text=tuple(candidate for candidate in others if candidate not in raw), raw=raw
    )


def plan_stops(options: GenerationOptions, tokenizer: Tokenizer) -> StopPlan:
    """The plan for one row."""
    if options.stop is None:
        raise ValueError("the options take a value for everything: resolve(options) first")
    return _plan(options.stop.stop or (), tokenizer)


@functools.lru_cache(maxsize=256)
def _plan(stops: tuple[str, ...], tokenizer: Tokenizer) -> StopPlan:
    return split_stops(stops, tokenizer)


def endings(
    options: GenerationOptions, plan: StopPlan, eos_token_ids: Sequence[int]
) -> Mapping[int, tuple[Finish, str | int | None]]:
    """The ids that end a row, each with how it ends and what the result names; rows with equal
    stops share one mapping.

    A stop token goes before an end token, and is named as the caller wrote it.
    """
    stop = options.stop
    if stop is None:
        return _endings(tuple(eos_token_ids), (), plan.stop_ids)
    return _endings(
        () if stop.ignore_eos else tuple(eos_token_ids), stop.stop_token_ids or (), plan.stop_ids
    )


@functools.lru_cache(maxsize=256)
def _endings(
    eos_token_ids: tuple[int, ...],
    stop_token_ids: tuple[int, ...],
    stop_ids: immutabledict[int, str],
) -> Mapping[int, tuple[Finish, str | int | None]]:
    ids: dict[int, tuple[Finish, str | int | None]] = dict.fromkeys(
        eos_token_ids, (Finish.EOS, None)
    )
    ids.update((token_id, (Finish.STOP_TOKEN, token_id)) for token_id in stop_token_ids)
    ids.update((token_id, (Finish.STOP_TOKEN, written)) for token_id, written in stop_ids.items())
    return MappingProxyType(ids)


def ending_ids(
    options: GenerationOptions,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    vocab_size: int | None = None,
) -> tuple[int, ...]:
    """The ids that end a row, sorted: what an engine stops at, and must not draw as one of the
    first `min_new_tokens` tokens.

    Ids from `vocab_size` on, which the model cannot generate, are left out.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> ending_ids(resolve(GenerationOptions(stop=("<|im_end|>", "END"))), ToyTokenizer(), (0, 258))
    (0, 257, 258)
    """
    ids = endings(options, plan_stops(options, tokenizer), eos_token_ids)
    return tuple(sorted(number for number in ids if vocab_size is None or number < vocab_size))


def text_offset(raw_offset: int, text_ends: Sequence[int], raw_ends: Sequence[int]) -> int:
    """The offset in `text` that belongs to `raw_offset` in `raw_text`, from the lengths of both
    after each token.

    Within a token, both are equally far from its end; a special token that `text` does not show has
    no length there.

    >>> (
    ...     text_offset(5, text_ends=(3, 3, 6), raw_ends=(3, 13, 16)),
    ...     text_offset(14, (3, 3, 6), (3, 13, 16)),
    ... )
    (3, 4)
    """
    token = bisect_right(raw_ends, raw_offset)
    if token == len(raw_ends):
        return text_ends[-1] if text_ends else 0
    return max(
        text_ends[token - 1] if token else 0, text_ends[token] - (raw_ends[token] - raw_offset)
    )


class _Ending(NamedTuple):
    # counted from 0; one more than there are for what only the end of the output completes
    token: int
    length: int
    finish: Finish
    stop: str | None


def stop(engine: TokenEngine) -> Pipe[Decoded, Decoded]:
    """The stage that ends each row at its first stop string, or where a plugin halts it; see
    `stop_row`.
    """
    require_token_engine("stop", engine)

    def stopped(decoded: Decoded) -> Slot[Decoded]:
        return stop_row(decoded, engine.tokenizer, engine.plugins)

    return row_stage(
        "stop",
        stopped,
        keeps_text=True,
        takes=Decoded,
        cuts=True,
        rebind=lambda new: stop(new.engine(engine)),
    )


def stop_row(
    decoded: Decoded, tokenizer: Tokenizer, plugins: Sequence[Plugin] = ()
) -> Slot[Decoded]:
    """End the row at the first stop string to complete, or where a plugin halts it; if both come at
    the same token, the stop string wins.

    A stop string that completes in the text goes before an id, the length, or an engine that gave
    the row up. What came after the ending token is dropped; `raw_text` still ends with that token.
    Fails with `PluginFailed`.
    """
    plan = plan_stops(decoded.raw.encoded.options, tokenizer)
    if not plan.text and not plan.raw and not plugins:
        return Success(decoded)
    text_ends, raw_ends = (
        (*decoded.text_ends, len(decoded.text)),
        (
            *decoded.raw_ends,
            len(decoded.raw_text),
        ),
    )
    known = decoded.raw.ending
    watching = tuple(plugin.name for plugin in plugins if plugin.feed is not None)
    if (
        known is not None
        and decoded.followed == decoded.spelled
        and known.is_about(decoded.raw)
        and known.watched == watching
    ):
        ending = _known(decoded, known)
    else:
        ending = _stop_string(decoded, plan, text_ends, raw_ends) if plan.text or plan.raw else None
        watched = _watch(
            decoded, plugins, text_ends, len(text_ends) if ending is None else ending.token
        )
        if isinstance(watched, PluginFailed):
            return Failure(watched)
        ending = watched or ending
    if ending is None:
        return Success(decoded)
    raw, raw_text, kept = decoded.raw, decoded.raw_text, ending.token + 1
    if kept < len(raw.token_ids):
        raw = dataclasses.replace(
            raw,
            token_ids=raw.token_ids[:kept],
            logprobs=None if raw.logprobs is None else raw.logprobs[:kept],
        )
        raw_text, _ = spell(tokenizer, raw.token_ids)
    shown = tuple(min(end, ending.length) for end in decoded.text_ends[:kept])
    text = decoded.text[: ending.length]
    ends: dict[str, Any] = {
        "text_ends": shown,
        "raw_ends": decoded.raw_ends[:kept],
        "finish": ending.finish,
        "stop": ending.stop,
    }
    return Success(
        Decoded(
            raw=raw,
            text=text,
            raw_text=raw_text,
            written=text if decoded.text == decoded.written else None,
            **ends,
        )
    )


def _known(decoded: Decoded, known: Ending) -> _Ending | None:
    """The ending of a row that was followed to its last token; None where no stop string and no
    plugin ended it.
    """
    last = len(decoded.raw.token_ids) - 1
    if known.length is not None:
        return _Ending(
            last, known.length, known.finish, None if known.stop is None else str(known.stop)
        )
    if known.finish is not Finish.STOP_STRING or not isinstance(known.stop, str):
        return None
    before = decoded.text_ends[last - 1] if last else 0  # the stop completes with the last token
    start = decoded.text.find(known.stop, max(0, before + 1 - len(known.stop)))
    return _Ending(last, len(decoded.text) if start < 0 else start, known.finish, known.stop)


def _stop_string(
    decoded: Decoded, plan: StopPlan, text_ends: Sequence[int], raw_ends: Sequence[int]
) -> _Ending | None:
    count, first = len(decoded.raw.token_ids), decoded.raw.encoded.options.min_new_tokens or 0
    judged = decoded.finish is Finish.STOP_TOKEN  # by its id alone: it is a stop itself
    raw_text = (
        decoded.raw_text[: raw_ends[count - 2] if count > 1 else 0] if judged else decoded.raw_text
    )
    in_text = cut(decoded.text, plan.text, after=_length(text_ends, first))
    in_raw = cut(raw_text, plan.raw, after=_length(raw_ends, first))
    found: list[tuple[int, int, int, int, _Ending]] = []
    if in_text.end is not None and in_text.stop is not None:
        token = bisect_left(text_ends, in_text.end)
        raw_end = raw_ends[token] - (text_ends[token] - in_text.end)
        found.append(
            (
                token,
                raw_end,
                -len(in_text.stop),
                0,
                _Ending(token, len(in_text.text), Finish.STOP_STRING, in_text.stop),
            )
        )
    if in_raw.end is not None and in_raw.stop is not None:
        token = bisect_left(raw_ends, in_raw.end)
        length = text_offset(len(in_raw.text), text_ends, raw_ends)
        found.append(
            (
                token,
                in_raw.end,
                -len(in_raw.stop),
                1,
                _Ending(token, length, Finish.STOP_STRING, in_raw.stop),
            )
        )
    return min(found)[-1] if found else None


def _length(ends: Sequence[int], tokens: int) -> int:
    """The length after so many tokens; of all, where there are no more than that."""
    return 0 if not tokens else ends[tokens - 1] if tokens < len(ends) - 1 else ends[-1]


def _watch(
    decoded: Decoded, plugins: Sequence[Plugin], text_ends: Sequence[int], before: int
) -> _Ending | PluginFailed | None:
    """Show the plugins what each token brought, up to the token at which the row ends anyway."""
    watch, start = Watch(plugins), 0
    if not watch:
        return None
    for token, end in enumerate(text_ends[:before]):
        halt = watch.feed(decoded.text[start:end])
        if isinstance(halt, PluginFailed):
            return halt
        if halt is not None and min(token + 1, len(decoded.raw.token_ids)) > (
            decoded.raw.encoded.options.min_new_tokens or 0
        ):
            return _Ending(token, start + halt.kept, Finish.PLUGIN, halt.plugin)
        start = end
    return None
