"""The requests of a job, each with its key, and with its slot where it is finished.

Whether a row is finished is told by the journal's index. Its line is read when its slot is wanted:
a job with many finished rows comes to the missing ones at once. The lines of failed rows are read
before, since their errors say whether they are asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from returns.result import Result

from pipegen.core import errors
from pipegen.core.border import attempt
from pipegen.core.errors import BackendFailed, GenerationError, InternalError, StageFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import pair, prepare_batch, record_of
from pipegen.io.jsonl import from_plain
from pipegen.jobs.in_flight import killed
from pipegen.jobs.journal import Finished
from pipegen.jobs.keys import Keys
from pipegen.records.fields import InvalidField, altered, nearest
from pipegen.records.options import GenerationOptions
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.scores import Scored

__all__ = ["Again", "Kept", "Row", "kept_slot", "retry_of", "rows_of"]

K = TypeVar("K")
Again: TypeAlias = Callable[[GenerationError], bool]
"""Whether a row that failed with this error is asked again."""
Kept: TypeAlias = Callable[[], Slot[Any] | None]
"""Reads the slot of a finished row, with the id of the request that asks; None where its line
cannot be read: then the row is not finished.
"""
_TOGETHER = 32
"""Requests whose images are read side by side."""


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

    @property
    def unmerged(self) -> Slot[GenerationRequest]:
        """The request with its own options alone, for those who merge in the run's themselves."""
        return self.request.map(lambda request: altered(request, options=self.options))


def rows_of(
    requests: Iterable[tuple[K, Request]],
    finished: Finished,
    keys: Keys,
    options: GenerationOptions | None,
    image_policy: ImagePolicy | None,
    policy: RequestPolicy | None,
    *,
    again: Again,
) -> Iterator[Row[K]]:
    """The rows of the requests, which are taken a few at a time. Their images are loaded."""
    source = map(pair, requests)
    while chunk := list(islice(source, _TOGETHER)):
        own = [record_of(request) for _, request in chunk]
        for (name, _), given, ready in zip(
            chunk, own, prepare_batch(own, options, image_policy, policy), strict=True
        ):
            if not is_ok(ready):
                yield Row(name, ready, None, None)
                continue
            key = keys.of(ready.unwrap())
            kept: Kept | None = (
                partial(_finished, finished, key, ready.unwrap().id) if finished.has(key) else None
            )
            anew = alone = False
            if kept is not None and finished.failed(key):
                slot = kept()
                error = None if slot is None or is_ok(slot) else slot.failure()
                asked_again = error is not None and again(error)
                anew = (
                    error is not None
                    and asked_again
                    and not (error.retryable or _not_its_own(error))
                )
                alone = error is not None and killed(error)
                kept = None if slot is None or asked_again else partial(_given, slot)
            yield Row(name, ready, key, kept, anew, alone, given.unwrap().options)


def kept_slot(finished: Finished, key: str, id: str | None, again: Again) -> Slot[Any] | None:
    """The row's slot, with this request's id, where it is finished and not to be asked again."""
    slot = _finished(finished, key, id)
    return None if slot is not None and not is_ok(slot) and again(slot.failure()) else slot


def _finished(finished: Finished, key: str, id: str | None) -> Slot[Any] | None:
    """The row's slot, with this request's id, where it is finished."""
    values = finished.get(key)
    if values is None:
        return None
    named = {**values, "id": id}
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
