"""The requests of a job, each with its key, and with its slot where it is finished.

Whether a row is finished is told by the journal's index. Its line is read when its slot is wanted:
a job with many finished rows comes to the missing ones at once. The lines of failed rows are read
before, since their errors say whether they are asked again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from returns.result import Failure, Result

from pipegen.core import errors
from pipegen.core.border import attempt
from pipegen.core.errors import BackendFailed, GenerationError, InternalError, StageFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import admitted, pair, prepare_batch, record_of
from pipegen.io.jsonl import Written, from_plain, is_current
from pipegen.jobs.in_flight import killed
from pipegen.jobs.journal import Finished
from pipegen.jobs.key_map import KeyMap, entry_of, key_in
from pipegen.jobs.keys import Keys
from pipegen.records.fields import InvalidField, altered, nearest
from pipegen.records.options import GenerationOptions
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.scores import Scored

__all__ = ["Again", "Kept", "Row", "Unread", "kept_slot", "missing_rows", "retry_of", "rows_of"]

K = TypeVar("K")
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


class Unread:
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


class Row(NamedTuple, Generic[K]):
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
    unread: Callable[[], Slot[GenerationRequest]] | None = None
    """Reads the request, where a finished row was recognised without it: `request` is not it."""

    @property
    def missing(self) -> Row[K]:
        """The row once its slot could not be read: it is not finished."""
        return self._replace(
            kept=None, request=self.request if self.unread is None else self.unread(), unread=None
        )

    @property
    def unmerged(self) -> Slot[GenerationRequest]:
        """The request with its own options alone, for those who merge in the run's themselves."""
        return self.request.map(lambda request: altered(request, options=self.options))


def rows_of(
    requests: Iterable[tuple[K, Request | Unread]],
    finished: Finished,
    keys: Keys,
    options: GenerationOptions | None,
    image_policy: ImagePolicy | None,
    policy: RequestPolicy | None,
    *,
    again: Again,
    known: KeyMap | None = None,
    as_written: bool = False,
) -> Iterator[Row[K]]:
    """The rows of the requests, which are taken a few at a time. Their images are loaded.

    known: the keys of requests that earlier runs have read: those of finished rows are not read
        again.
    as_written: slots of finished rows may be given as `Written`.
    """

    def prepared(
        given: Sequence[Request],
    ) -> Iterator[tuple[Slot[GenerationRequest], Slot[GenerationRequest]]]:
        own = [record_of(request) for request in map(_read, given)]
        return zip(own, prepare_batch(own, options, image_policy, policy), strict=True)

    source = map(pair, requests)
    while chunk := list(islice(source, _TOGETHER)):
        digests = [
            None
            if known is None
            else known.digest(request.data if isinstance(request, Unread) else request)
            for _, request in chunk
        ]
        entries = [
            None if known is None or digest is None else known.find(digest) for digest in digests
        ]
        others = prepared(
            [request for (_, request), entry in zip(chunk, entries, strict=True) if entry is None]
        )
        for (name, request), digest, entry in zip(chunk, digests, entries, strict=True):
            if known is not None and entry is not None:
                known.keep(entry)
            first = b"" if entry is None else key_in(entry)
            times = 0 if entry is None else keys.count(first)
            if entry is not None and not times and finished.succeeded(first):
                key = first.hex()
                kept = partial(_finished, finished, key, partial(_id_of, request), as_written)
                yield Row(name, _UNREAD, key, kept, unread=partial(_ready, prepared, request))
                continue
            given, ready = next(others if entry is None else prepared([request]))
            if not is_ok(ready):
                yield Row(name, ready, None, None)
                continue
            if entry is None:
                first = keys.first(ready.unwrap())
                times = keys.count(first)
                if known is not None and digest is not None and not ready.unwrap().sources:
                    known.keep(entry_of(digest, first))
            key = keys.later(ready.unwrap(), times) if times else first.hex()
            yield _row(name, given, ready, key, finished, again, as_written)
    if known is not None:
        known.end()


def missing_rows(
    requests: Callable[[], Iterable[tuple[K, Request | Unread]]],
    finished: Finished,
    keys: Keys,
    options: GenerationOptions | None,
    policy: RequestPolicy | None,
    *,
    again: Again,
    known: KeyMap,
) -> Iterator[Row[K]]:
    """Rows that are to be asked, found by one who runs ahead of `rows_of`: some of those that it
    would give.

    Requests with images are left out, since these would be read twice, and so are all but the first
    of equal requests. Where the map knows few of the requests, it gives up: to read them twice
    would cost more than it saves.
    """
    given_out, looks = set[str](), _LOOKS
    succeeded, digest_of, find = finished.succeeded, known.digest, known.find
    for name, request in requests():
        digest = digest_of(request.data if isinstance(request, Unread) else request)
        entry = None if digest is None else find(digest)
        if entry is not None and succeeded(key_in(entry)):
            continue
        given = record_of(_read(request))
        ready = admitted(given, options, policy or RequestPolicy())
        if is_ok(ready) and not ready.unwrap().sources:
            row = _row(name, given, ready, keys.first(ready.unwrap()).hex(), finished, again, False)
            if row.kept is None and row.key not in given_out:
                given_out.add(row.key or "")
                yield row
                continue
        looks -= 1
        if not looks:
            return


def _row(
    name: K,
    given: Slot[GenerationRequest],
    ready: Slot[GenerationRequest],
    key: str,
    finished: Finished,
    again: Again,
    as_written: bool,
) -> Row[K]:
    """The row of a request that is read."""
    name_of = partial(getattr, ready.unwrap(), "id")
    kept: Kept | None = (
        partial(_finished, finished, key, name_of, as_written) if finished.has(key) else None
    )
    anew = alone = False
    if kept is not None and finished.failed(key):
        slot = kept()
        error = slot.failure() if isinstance(slot, Failure) else None
        asked_again = error is not None and again(error)
        anew = error is not None and asked_again and not (error.retryable or _not_its_own(error))
        alone = error is not None and killed(error)
        kept = None if slot is None or asked_again else partial(_given, slot)
    return Row(name, ready, key, kept, anew, alone, given.unwrap().options)


def _read(request: Any) -> Any:
    return request.request() if isinstance(request, Unread) else request


def _id_of(request: Any) -> str | None:
    """The id of a request that was read before, as a line or as plain data."""
    name = request.id if isinstance(request, Unread) else request.get("id")
    return None if name is None else str(name)


def _ready(
    prepared: Callable[[Sequence[Request]], Iterator[tuple[Any, Slot[GenerationRequest]]]],
    request: Request,
) -> Slot[GenerationRequest]:
    return next(prepared([request]))[1]


def kept_slot(finished: Finished, key: str, id: str | None, again: Again) -> Slot[Any] | None:
    """The row's slot, with this request's id, where it is finished and not to be asked again."""
    slot = _finished(finished, key, lambda: id)
    return None if slot is not None and not is_ok(slot) and again(slot.failure()) else slot


def _finished(
    finished: Finished, key: str, id: Callable[[], str | None], as_written: bool = False
) -> Any:
    """The row's slot, with this request's id, where it is finished; `Written` where that is wanted,
    and nothing in it would change.
    """
    written = finished.written(key)
    if written is None:
        return None
    values = written[0]
    if as_written and is_current(values):
        return Written(values, written[1], id)
    named = {**values, "id": id()}
    read: Result[Slot[Any], Exception] = attempt(
        lambda: from_plain(named, Scored) if "token_logprobs" in named else from_plain(named)
    )
    if not is_ok(read):  # another version of pipegen wrote it
        finished.forget(key, str(read.failure()))
        return None
    return read.unwrap()


def _given(slot: Slot[Any]) -> Slot[Any]:
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
