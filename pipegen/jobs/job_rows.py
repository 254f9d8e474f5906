"""The requests of a job, each with its key, and with its slot where it is finished.

Whether a row is finished is told by the journal's index. Its line is read when its slot is wanted:
a job with many finished rows comes to the missing ones at once. The lines of failed rows are read
before, since their errors say whether they are asked again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core import errors
from pipegen.core.errors import BackendFailed, GenerationError, InternalError, StageFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.names import InvalidField, nearest
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import Admission, pair, record_of
from pipegen.io.jsonl import from_plain, written_from
from pipegen.jobs.conversations import ReadRequest, with_turn
from pipegen.jobs.in_flight import killed
from pipegen.jobs.journal import Finished
from pipegen.jobs.key_map import KeyMap, entry_of, key_in, number_in
from pipegen.jobs.row_keys import Keys
from pipegen.jobs.shards import in_part, numbers_of
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_records import GenerationOptions
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.scores import Scored

K = TypeVar("K")
T = TypeVar("T")
Again: TypeAlias = Callable[[GenerationError], bool]
"""Whether a row that failed with this error is asked again."""
Kept: TypeAlias = Callable[[], Slot[Any] | None]
"""Reads the slot of a finished row, with the id of the request that asks; None where its line
cannot be read: then the row is not finished.
"""
_TOGETHER = 32
"""Requests whose images are read side by side."""
_LOOKS = 4096
"""How many requests are read in vain by one who runs ahead, before it gives up."""
_UNREAD: Slot[GenerationRequest] = Failure(InternalError("this request was not read"))


class UnreadRequest:
    """A request that is parsed only where that is needed. It has no `ABCMeta`: `isinstance` takes a
    tenth of the time, and each row asks it.
    """

    __slots__ = ()

    data: bytes | None
    """What the request depends on, beside what all requests of the job have in common; None where
    it cannot be told.
    """
    id: str | int

    @abstractmethod
    def request(self) -> Slot[GenerationRequest]:
        """The request, parsed."""


Requests: TypeAlias = Iterable[tuple[K, Request | UnreadRequest]]
"""Requests, each with the caller's name for it."""


class JobRow(NamedTuple, Generic[K]):
    """One request of the job: the caller's name for it, itself (admitted: see
    `pipegen.drivers.batch`), its key, and what reads the slot of a finished one.
    """

    name: K
    request: Slot[GenerationRequest]
    key: str | None
    """None where it failed before it had one: nothing is kept of it."""
    kept: Kept | None
    anew: bool = False
    """Whether it failed with an error that is not `retryable`, and is asked again: what was
    answered before it failed does not count.
    """
    alone: bool = False
    """Whether it killed its process before, and is asked again: no other row is beside it."""
    options: GenerationOptions | None = None
    """Its own options, without those of the run."""
    unread: ReadRequest | None = None
    """Reads the request, where a finished row was recognised without it: `request` is not it."""

    @property
    def missing(self) -> JobRow[K]:
        """The row once its slot could not be read: it is not finished."""
        return self._replace(
            kept=None, request=self.request if self.unread is None else self.unread(), unread=None
        )

    @property
    def is_asked(self) -> bool:
        """Whether it is to be asked: it has a key, and is not finished."""
        return self.key is not None and self.kept is None

    @property
    def unmerged(self) -> Slot[GenerationRequest]:
        """The request with its own options alone, for those who merge in the run's themselves."""
        return self.request.map(lambda request: unchecked_replace(request, options=self.options))


def rows_of(
    requests: Requests[K],
    finished: Finished,
    keys: Keys,
    admission: Admission,
    *,
    again: Again,
    known: KeyMap | None = None,
    as_written: bool = False,
    part: tuple[int, int] | None = None,
) -> Iterator[JobRow[K]]:
    """The rows of the requests, which are taken a few at a time. Their images are loaded.

    part: the shard whose rows are given alone, and of how many (see `pipegen.jobs.shards`).
    known: the keys of requests that earlier runs have read: those of finished rows are not read
        again.
    as_written: slots of finished rows may be given as `Written`.
    """

    def prepared(
        slots: Sequence[Slot[GenerationRequest]],
    ) -> Iterator[tuple[Slot[GenerationRequest], Slot[GenerationRequest]]]:
        return zip(slots, admission.batch(slots), strict=True)

    def note(digest: bytes | None, request: GenerationRequest, first_key: bytes) -> None:
        if known is not None and digest is not None and not request.sources:
            known.keep(
                entry_of(digest, first_key, *numbers_of([Success(request)], admission.images))
            )

    source, count = map(pair, requests), 0
    for chunk in _chunks(source):
        count += len(chunk)
        digests = [
            None
            if known is None
            else known.digest(request.data if isinstance(request, UnreadRequest) else request)
            for _, request in chunk
        ]
        entries = [
            None if known is None or digest is None else known.find(digest) for digest in digests
        ]
        records = [
            None if entry is not None else record_of(_read(request))
            for (_, request), entry in zip(chunk, entries, strict=True)
        ]
        part_flags = (
            [True] * len(chunk)
            if part is None
            else _in_part(part, entries, records, admission.images)
        )
        prepared_rows = prepared(
            [
                record
                for record, flag in zip(records, part_flags, strict=True)
                if flag and record is not None
            ]
        )
        for (name, request), digest, entry, record, in_this_part in zip(
            chunk, digests, entries, records, part_flags, strict=True
        ):
            if known is not None and entry is not None:
                known.keep(entry)
            if not in_this_part:
                if known is not None and known.writes and record is not None and digest is not None:
                    other = admission.admitted(record).value_or(None)
                    if other is not None:
                        note(digest, other, keys.first(other))
                continue
            first = b"" if entry is None else key_in(entry)
            times = 0 if entry is None else keys.count(first)
            if entry is not None and not times and finished.succeeded(first):
                key = first.hex()
                unread = partial(_ready, prepared, request)
                name_of = partial(_id_of, request)
                kept = partial(_finished, finished, key, name_of, unread, as_written)
                yield JobRow(name, _UNREAD, key, kept, unread=unread)
                continue
            request_slot, ready = next(
                prepared([record_of(_read(request))]) if record is None else prepared_rows
            )
            if not is_ok(ready):
                yield JobRow(name, ready, None, None)
                continue
            admitted = ready.unwrap()
            if entry is None:
                first = keys.first(admitted)
                times = keys.count(first)
                note(digest, admitted, first)
            key = keys.later(admitted, times) if times else first.hex()
            yield read_row(name, request_slot, admitted, key, finished, again, as_written)
    if known is not None:
        known.end(count)


def missing_rows(
    requests: Callable[[], Requests[K]],
    finished: Finished,
    keys: Keys,
    admission: Admission,
    *,
    again: Again,
    known: KeyMap,
    part: tuple[int, int] | None = None,
) -> Iterator[JobRow[K]]:
    """Rows that are to be asked, found by one who runs ahead of `rows_of`: some of those that it
    would give.

    Requests with images are left out, since these would be read twice, and so are all but the first
    of equal requests. Where the map knows few of the requests, it gives up: to read them twice
    would cost more than it saves.
    """
    yielded_keys, looks = set[str](), _LOOKS
    for name, request in _unfinished(requests(), finished, known, part):
        request_slot = record_of(_read(request))
        ready = admission.admitted(request_slot).value_or(None)
        if (
            ready is not None
            and not ready.sources
            and (part is None or in_part(numbers_of([request_slot], ImagePolicy())[0], part))
        ):
            row = read_row(name, request_slot, ready, keys.first(ready).hex(), finished, again)
            if row.kept is None and row.key not in yielded_keys:
                yielded_keys.add(row.key or "")
                yield row
                continue
        looks -= 1
        if not looks:
            return


def _unfinished(
    requests: Requests[K],
    finished: Finished,
    key_map: KeyMap,
    part: tuple[int, int] | None,
) -> Iterator[tuple[K, Request | UnreadRequest]]:
    """The requests that are not finished by what the map has of them, or of which it has nothing.

    Where the input is the one that the map is of, its requests are looked at no more.
    """
    rows = key_map.rows()
    if rows is not None:
        keys, numbers = rows
        unfinished: Iterator[object] = finished.unfinished(keys)
        if part is not None:
            unfinished = (
                is_unfinished and in_part(number, part)
                for is_unfinished, number in zip(unfinished, numbers, strict=True)
            )
        yield from compress(requests, unfinished)
        return
    succeeded, digest_of, find, key_of = finished.succeeded, key_map.digest, key_map.find, key_in
    for name, request in requests:
        digest = digest_of(request.data if isinstance(request, UnreadRequest) else request)
        entry = None if digest is None else find(digest)
        if entry is None or not (
            succeeded(key_of(entry)) or (part is not None and not in_part(number_in(entry), part))
        ):
            yield name, request


def read_row(
    name: K,
    request_slot: Slot[GenerationRequest],
    ready: GenerationRequest,
    key: str,
    finished: Finished,
    again: Again,
    as_written: bool = False,
) -> JobRow[K]:
    """The row of a request that is read.

    given, ready: the request with its own options alone, and with those of the run too.
    """
    name_of, request = partial(getattr, ready, "id"), Success(ready)
    kept: Kept | None = (
        partial(_finished, finished, key, name_of, lambda: request, as_written)
        if finished.has(key)
        else None
    )
    anew = alone = False
    if kept is not None and finished.failed(key):
        slot = kept()
        error = slot.failure() if isinstance(slot, Failure) else None
        is_retried = error is not None and again(error)
        anew = error is not None and is_retried and not (error.retryable or _not_its_own(error))
        alone = error is not None and killed(error)
        kept = None if slot is None or is_retried else partial(_given, slot)
    return JobRow(name, request, key, kept, anew, alone, request_slot.unwrap().options)


def _chunks(source: Iterator[T]) -> Iterator[list[T]]:
    """The requests, a few at a time. What the source raises comes after those that it gave before."""
    while True:
        chunk: list[T] = []
        filled = attempt(partial(chunk.extend, islice(source, _TOGETHER)))
        if chunk:
            yield chunk
        if not is_ok(filled):
            raise filled.failure()
        if not chunk:
            return


def _in_part(
    part: tuple[int, int],
    entries: Sequence[bytes | None],
    records: Sequence[Slot[GenerationRequest] | None],
    images: ImagePolicy,
) -> list[bool]:
    """Which rows belong to a shard: the map knows it, or their requests tell."""
    numbers = iter(numbers_of([record for record in records if record is not None], images))
    return [
        in_part(next(numbers) if entry is None else number_in(entry), part) for entry in entries
    ]


def _read(request: object) -> Any:
    return request.request() if isinstance(request, UnreadRequest) else request


def _id_of(request: Any) -> str | None:
    """The id of a request that was read before, as a line or as plain data."""
    name = request.id if isinstance(request, UnreadRequest) else request.get("id")
    return None if name is None else str(name)


def _ready(
    prepared: Callable[[Sequence[Any]], Iterator[tuple[Any, Slot[GenerationRequest]]]],
    request: Request | UnreadRequest,
) -> Slot[GenerationRequest]:
    return next(prepared([record_of(_read(request))]))[1]


def kept_slot(finished: Finished, key: str, id: str | None, again: Again) -> Slot[Any] | None:
    """The row's slot, with this request's id, where it is finished and not to be asked again."""
    slot = _finished(finished, key, lambda: id, None)
    return None if slot is not None and not is_ok(slot) and again(slot.failure()) else slot


def _finished(
    finished: Finished,
    key: str,
    id: Callable[[], str | None],
    request: ReadRequest | None,
    as_written: bool = False,
) -> Any:
    """The row's slot, with this request's id, where it is finished; `Written` where that is wanted,
    and nothing in it would change.
    """
    if as_written:
        text = finished.text(key)
        written = None if text is None else written_from(text, id)
        if written is not None:
            return written
    values = finished.get(key)
    if values is None:
        return None
    turn = values.pop("turn", {})
    values_with_id = {**values, "id": id()}

    def slot_of() -> Slot[Any]:
        if "token_logprobs" in values_with_id:
            return from_plain(values_with_id, Scored)
        slot = from_plain(values_with_id)
        return slot.map(partial(with_turn, request=request, turn_values=turn)) if request else slot

    parsed: Result[Slot[Any], Exception] = attempt(slot_of)
    if not is_ok(parsed):  # another version of pipegen wrote it
        finished.forget(key, str(parsed.failure()))
        return None
    return parsed.unwrap()


def _given(slot: Slot[object]) -> Slot[object]:
    return slot


def retry_of(retry: str) -> Again:
    """Which errors are asked again: "retryable" ones, "all", "none", or one type by its name.
    Raises `InvalidField`.

    Errors of bugs are among the retryable ones. Those of rows that killed their processes are not.

    >>> from pipegen.core.errors import Timeout
    >>> [
    ...     retry_of(retry)(Timeout("slow"))
    ...     for retry in ("retryable", "all", "none", "Timeout", "BadImage")
    ... ]
    [True, True, False, True, False]
    """
    kinds = {
        name: getattr(errors, name)
        for name in errors.__all__
        if name not in ("CallFailed", "ContractError")
    }
    if retry in ("all", "none"):
        return lambda error: retry == "all"
    if retry == "retryable":
        return lambda error: not killed(error) and (error.retryable or _not_its_own(error))
    if retry not in kinds:
        raise InvalidField(
            "retry takes retryable, all, none or a type of error, not"
            f" {retry!r:.200}{nearest(retry, ['retryable', 'all', 'none', *kinds])}"
        )
    return lambda error: isinstance(error, kinds[retry])


def _not_its_own(error: GenerationError) -> bool:
    """Whether the request is not the reason, but what may be corrected by now: a setting, or a bug,
    of pipegen's or of a stage whose traceback the log has.
    """
    return isinstance(error, (BackendFailed, InternalError)) or (
        isinstance(error, StageFailed) and bool(error.incident)
    )
