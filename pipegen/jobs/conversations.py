"""Conversations in a job: a result that is read back is continued as the live one is.

A result on disk has no messages: the row has its request. What else `result.then` needs stands
beside it, as `turn` in its line of the journal, where there is more:

    compact   for each turn, the ids of its prompt with one placeholder for each image
    replies   the messages between the turns
    messages, tools   those of the first turn, where they are others than the row's
    samples   the same for each sample
    unknown   true where the turns do not follow from the request, as those of `pg.repeat`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from returns.result import Failure

from pipegen.core.errors import StageFailed
from pipegen.core.foreign_calls import Raised, guard
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.turns import next_request
from pipegen.io.jsonl import to_plain
from pipegen.jobs.journal import Journal
from pipegen.records import strict_json
from pipegen.records.codec import image_to_plain
from pipegen.records.frozen import freeze, thaw
from pipegen.records.messages import ImagePart, Message, TextPart, message_from, plain_messages
from pipegen.records.next_turn import as_given
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult, Turn

ReadRequest: TypeAlias = Callable[[], Slot[GenerationRequest]]
"""Reads the request of a row."""


def keep_row(
    journal: Journal, key: str, slot: Slot[object], request: Slot[GenerationRequest]
) -> Slot[object]:
    """Write a row that has ended, and give its slot. The row fails where a stage has put into its
    result what JSON has no form for. Raises `JournalError` as the journal does.
    """
    text = guard(lambda: strict_json.dump(row_to_plain(slot, request)), _unwritable)
    if is_ok(text):
        journal.append(key, text.unwrap())
        return slot
    failed: Slot[Any] = Failure(text.failure())
    journal.append(key, to_plain(failed))
    return failed


def _unwritable(raised: Raised) -> StageFailed:
    return StageFailed(
        f"a job cannot write what the stages gave: {raised.words}",
        hint="let your stages give plain values: int(x) for a number of numpy, pg.Finish for a word",
        incident=raised.incident,
    )


def row_to_plain(slot: Slot[Any], request: Slot[GenerationRequest]) -> dict[str, object]:
    """A row that has ended, as its line holds it."""
    values = to_plain(slot)
    result = slot.value_or(None)
    if isinstance(result, GenerationResult):
        turn = request.map(partial(_turn_to_plain, result)).value_or({})
        if turn:
            values["turn"] = turn
    return values


def _turn_to_plain(result: GenerationResult, request: GenerationRequest) -> dict[str, object]:
    turns = [
        round_result.turn
        for round_result in result.rounds or (result,)
        if round_result.turn is not None
    ]
    if len(turns) != len(result.rounds or (result,)):
        return {"unknown": True}
    first, later = turns[0].request, [turn.request for turn in turns[1:]]
    if first.continues != request.continues or any(
        later_request.continues is None for later_request in later
    ):
        return {"unknown": True}
    values: dict[str, Any] = {}
    if any(turn.compact_token_ids is not None for turn in turns):
        values["compact"] = [turn.compact_token_ids for turn in turns]
    if later:
        values["replies"] = [
            _plain((later_request.messages or ())[later_request.continues.messages :])
            for later_request in later
            if later_request.continues is not None
        ]
    first_messages, request_messages = (
        [*map(as_given, source.messages or ())] for source in (first, request)
    )
    if first_messages != request_messages:
        values["messages"] = _plain(first_messages)
    if first.tools != request.tools:
        values["tools"] = thaw(first.tools)
    samples = [_turn_to_plain(sample, request) for sample in result.samples]
    if any(samples):
        values["samples"] = samples
    plain: dict[str, Any] = strict_json.plain(values)
    return plain


def _plain(messages: Any) -> list[dict[str, Any]]:
    """Messages as data that is read as the same ones, images too."""
    originals = [*map(as_given, messages)]
    return [
        plain | {"content": [_part(part) for part in message.content]}
        if isinstance(message.content, tuple)
        else plain
        for message, plain in zip(originals, plain_messages(originals), strict=True)
    ]


def _part(part: TextPart | ImagePart) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    source = part.source  # which a request that was asked has
    return {"type": "image"} | ({} if source is None else {"image": image_to_plain(source)})


def with_turn(
    result: GenerationResult,
    request: ReadRequest,
    turn_values: Mapping[str, Any],
) -> GenerationResult:
    """A result that was read back, with what `then` needs. It has none where that is not known.

    request: reads the row's request, where it is needed. turn_values: what its line says of it.
    """
    if result.samples:
        sample_values = turn_values.get("samples") or [{}] * len(result.samples)
        samples = [
            with_turn(*arguments)
            for arguments in zip(
                result.samples, [request] * len(sample_values), sample_values, strict=True
            )
        ]
        result = dataclasses.replace(result, samples=tuple(samples))
    compact = turn_values.get("compact") or [None] * len(result.rounds or (result,))
    if turn_values.get("unknown") or (
        result.previous is not None and "messages" not in turn_values
    ):
        return result
    if result.image_digests and compact[-1] is None and result.prompt_token_ids:
        return result  # an earlier version wrote it
    if not turn_values and not result.rounds:
        return dataclasses.replace(result, turn=_LaterTurn(request))
    first = _first(request, turn_values)
    rounds: list[GenerationResult] = []
    replies = turn_values.get("replies") or [[message] for message in _asked(request).turns]
    if len(replies) != len(compact) - 1:
        return result
    for place, round_result in enumerate(result.rounds or (result,)):
        ids = compact[place]
        turn = Turn(request=first, compact_token_ids=None if ids is None else tuple(ids))
        rounds.append(dataclasses.replace(round_result, turn=turn))
        if place < len(replies):
            first = next_request(rounds[-1], replies[place])
    turns = tuple(rounds) if result.rounds else ()
    return dataclasses.replace(result, rounds=turns, turn=rounds[-1].turn)


def _asked(request: ReadRequest) -> GenerationRequest:
    slot = request()
    if not is_ok(slot):
        raise InvalidField(f"the request of this result cannot be read: {slot.failure().message}")
    return slot.unwrap()


def _first(request: ReadRequest, turn_values: Mapping[str, object]) -> GenerationRequest:
    """The request of the first turn."""
    changes: dict[str, Any] = {"turns": ()}
    if "messages" in turn_values:
        changes["messages"] = _messages(turn_values["messages"])
    if "tools" in turn_values:
        changes["tools"] = freeze(turn_values["tools"])
    return dataclasses.replace(_asked(request), **changes)


def _messages(values: Any) -> tuple[Message, ...]:
    return tuple([message_from(value, f"messages[{place}]") for place, value in enumerate(values)])


class _LaterTurn(Turn):
    """The turn of a result whose request is read where it is needed."""

    __slots__ = ("_read",)
    _read: ReadRequest

    def __init__(self, read: ReadRequest) -> None:
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "compact_token_ids", None)

    @property
    def request(self) -> GenerationRequest:  # pyright: ignore[reportIncompatibleVariableOverride]
        request = _asked(self._read)
        return dataclasses.replace(request, turns=()) if request.turns else request

    def __reduce__(self) -> Any:
        return _turn_of, (self.request,)


def _turn_of(request: GenerationRequest) -> Turn:
    return Turn(request=request)
