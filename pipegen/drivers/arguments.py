"""What the drivers are handed, checked, and made the slots that a pipe starts from.

>>> require_iterable({"prompt": "Hi"})
Traceback (most recent call last):
...
TypeError: requests are a list or another iterable, not one dict: put a single request into a list
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.errors import GenerationError, InvalidRequest
from pipegen.core.foreign_calls import guard_result
from pipegen.core.functional import parallel
from pipegen.core.names import InvalidField
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.light_work import FEW
from pipegen.media.source import load_sources
from pipegen.records.fields import unchecked_replace
from pipegen.records.frozen import plain_number, printed
from pipegen.records.limits import allowed
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import merge, option_names, options_from
from pipegen.records.parse_request import Request, request_from, unreadable
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

P = ParamSpec("P")
T = TypeVar("T")

Options: TypeAlias = GenerationOptions | Mapping[str, Any]
"""The options of a run: a record, or plain data of the same shape."""


def with_option_words(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which says where options go if it is given one as a keyword.

    >>> with_option_words(lambda route, options=None: None)(1, temperature=0.5)
    Traceback (most recent call last):
    ...
    TypeError: <lambda> takes no keyword 'temperature': options go into one mapping, such as options={'temperature': 0.5}
    """
    takes = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in kwargs.items():
            if name not in takes and name in (*option_names(), *GROUPS):
                raise TypeError(
                    f"{function.__name__} takes no keyword {name!r}: options go into one mapping,"
                    f" such as options={{{name!r}: {printed(value)}}}"
                )
        return function(*args, **kwargs)

    return called


def require_iterable(requests: object, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` for one request in the place of many, since a mapping or a string would be
    taken apart, and for what has no items.
    """
    if isinstance(requests, (GenerationRequest, Result, Mapping, str, bytes)):
        raise TypeError(
            f"requests are a list or another iterable, not one {type(requests).__name__}: put a"
            " single request into a list"
        )
    if callable(getattr(requests, "iterrows", None)):
        raise TypeError(
            f"requests are a list or another iterable, not a {type(requests).__name__}, whose items"
            ' are the names of its columns: hand over its .to_dict("records")'
        )
    if not asynchronous and isinstance(requests, AsyncIterable):
        raise TypeError(
            "requests are a list or another iterable, not an asynchronous"
            f" {type(requests).__name__}: aimap takes one"
        )
    if not isinstance(requests, (Iterable, AsyncIterable)) and not hasattr(requests, "__getitem__"):
        raise TypeError(f"requests are a list or another iterable, not {type(requests).__name__}")


def pairs(requests: object, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` for a mapping of requests, which is walked by its keys."""
    if isinstance(requests, Mapping):
        raise TypeError(
            f"pairs of a key and a request are wanted, not a {type(requests).__name__}: hand over"
            " its .items()"
        )
    require_iterable(requests, asynchronous=asynchronous)


def pair(item: object) -> Any:
    """The pair of a key and a request. Raises `TypeError` for anything else; two letters are no
    pair.

    >>> pair(("a", {"prompt": "Hi"}))
    ('a', {'prompt': 'Hi'})
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"pairs of a key and a request are wanted, not {printed(item)}")
    return item


def whole_number(name: str, value: object, *, or_none: bool = False) -> Any:
    """A number that is at least 1, as Python's own. Raises `TypeError`, which names it, for anything
    else.

    >>> whole_number("limit", 0)
    Traceback (most recent call last):
    ...
    TypeError: limit takes a whole number of at least 1, not 0
    """
    number = plain_number(value)
    if (type(number) is not int or number < 1) and not (or_none and number is None):
        raise TypeError(f"{name} takes a whole number of at least 1, not {number!r:.80}")
    return number


def slot_of_request(slot: Result[object, object]) -> Result[Any, Any]:
    """The slot; `InvalidRequest` where it holds something else than a request, or an error that is
    none of pipegen's.

    >>> slot_of_request(Success(1)).failure().message
    'a slot with a request is wanted, not one with int: pipe.apply(batch) runs stages alone, over slots of anything'
    """
    value, expected_type, expected_name = (
        (slot.unwrap(), GenerationRequest, "request")
        if isinstance(slot, Success)
        else (slot.failure(), GenerationError, "GenerationError")
    )
    if isinstance(value, expected_type):
        return slot
    words = (
        f"a slot with a {expected_name} is wanted, not one with {type(value).__name__}:"
        " pipe.apply(batch) runs stages alone, over slots of anything"
    )
    return Failure(InvalidRequest(words))


class Admission(NamedTuple):
    """What a run makes of its requests before the first stage."""

    options: GenerationOptions | None = None
    """Those of the run; a request's own win over them."""
    images: ImagePolicy = ImagePolicy()
    policy: RequestPolicy = RequestPolicy()

    def admitted(self, request: Request) -> Slot[GenerationRequest]:
        """The record of a request, with the run's options merged in and what it asks for allowed;
        or why it is none. Reads no image.
        """
        return guard_result(
            lambda: record_of(request).bind(
                lambda record: merged_into(record, self.options).bind(
                    lambda merged: allowed(merged, self.policy, record.options)
                )
            ),
            lambda raised: unreadable("request", raised),
        )

    def loaded(self, request_slot: Slot[GenerationRequest]) -> Slot[GenerationRequest]:
        """The request with its images read."""
        return guard_result(
            lambda: request_slot.bind(lambda request: load_sources(request, self.images)),
            lambda raised: unreadable("request: its images", raised),
        )

    def batch(self, requests: Iterable[Request]) -> Batch[GenerationRequest]:
        """The batch that a route starts from, admitted, with its images read."""
        require_iterable(requests)
        return self.with_images([*map(self.admitted, requests)])

    async def batch_beside(self, requests: Iterable[Request]) -> Batch[GenerationRequest]:
        """As `batch`, beside the running event loop. Few requests are admitted at once, which takes
        less than a thread; many are admitted in one, and images are read in one.
        """
        import asyncio  # half of what `import pipegen` would cost

        require_iterable(requests)
        requests = tuple(requests)
        if len(requests) > FEW:
            return await asyncio.to_thread(self.batch, requests)
        batch = [*map(self.admitted, requests)]
        if not _sourced(batch):
            return tuple(batch)
        return await asyncio.to_thread(self.with_images, batch)

    def with_images(self, batch: list[Slot[GenerationRequest]]) -> Batch[GenerationRequest]:
        sourced = _sourced(batch)
        loaded = parallel(lambda place: self.loaded(batch[place]), sourced) if sourced else ()
        for place, slot in zip(sourced, loaded, strict=True):
            batch[place] = slot
        return tuple(batch)


def _sourced(batch: Sequence[Slot[GenerationRequest]]) -> list[int]:
    """The places of the requests with images."""
    return [place for place, slot in enumerate(batch) if is_ok(slot) and slot.unwrap().sources]


def check_run(
    route: object, options: object, image_policy: object, policy: object = None
) -> Admission:
    """What a run makes of its requests. Raises `TypeError` unless these are what a driver takes
    besides the requests, and `InvalidField` for a bad option.
    """
    if not isinstance(route, Pipe):
        raise TypeError(
            f"a route or another pipe is run, not {type(route).__name__}: pg.route(engine) makes a"
            " route of an engine"
        )
    return check_settings(options, image_policy, policy)


def check_settings(options: Any, image_policy: Any = None, policy: Any = None) -> Admission:
    """What a run makes of its requests; options that are plain data become a record.

    Raises `TypeError` unless these are options, a policy of images and a policy of requests, or
    None, and `InvalidField` for a bad option.
    """
    for value, kinds, expected in (
        (
            options,
            (GenerationOptions, Mapping),
            "options are GenerationOptions or a mapping of them",
        ),
        (image_policy, ImagePolicy, "image_policy is an ImagePolicy"),
        (policy, RequestPolicy, "policy is a RequestPolicy"),
    ):
        if value is not None and not isinstance(value, kinds):
            raise TypeError(f"{expected}, not {type(value).__name__}")
    return Admission(
        options_from(options) if isinstance(options, Mapping) else options,
        image_policy or ImagePolicy(),
        policy or RequestPolicy(),
    )


def record_of(request: Any, where: str = "request") -> Slot[GenerationRequest]:
    """The record of a request in any form, or why it is none; `where` names it."""
    if isinstance(request, Result):
        return slot_of_request(request)
    if isinstance(request, GenerationRequest):
        return Success(request)
    return request_from(request, where)


def merged_into(
    request: GenerationRequest, options: GenerationOptions | None
) -> Slot[GenerationRequest]:
    """The request with the options for what its own leave open; `InvalidRequest` where the two
    contradict each other.
    """
    if options is None:
        return Success(request)
    try:
        return Success(unchecked_replace(request, options=_merged(request.options, options)))
    except InvalidField as refusal:
        return Failure(
            InvalidRequest(
                f"options of the request and of the run contradict each other: {refusal}"
            )
        )


# the requests of a run have few distinct options
_merged = functools.lru_cache(maxsize=1024)(merge)
