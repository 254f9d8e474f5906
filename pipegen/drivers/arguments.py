"""What the drivers are handed, checked: a type checker says the same, but not everybody runs one.

>>> require_iterable({"prompt": "Hi"})
Traceback (most recent call last):
...
TypeError: requests are a list or another iterable, not one dict: put a single request into a list
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, TypeAlias

from returns.result import Failure, Result, Success

from pipegen.core.errors import GenerationError, InvalidRequest
from pipegen.core.pipe import Pipe
from pipegen.records.frozen import printed
from pipegen.records.options import GenerationOptions, options_from
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

__all__ = [
    "Options",
    "check_run",
    "check_settings",
    "pair",
    "pairs",
    "require_iterable",
    "slot_of_request",
]

Options: TypeAlias = GenerationOptions | Mapping[str, Any]
"""The options of a run: a record, or plain data of the same shape."""


def check_run(
    route: Any, options: Any, image_policy: Any, policy: Any = None
) -> GenerationOptions | None:
    """The options of a run as a record. Raises `TypeError` unless these are what a driver takes
    besides the requests, and `InvalidField` for a bad option.
    """
    if not isinstance(route, Pipe):
        raise TypeError(
            f"a route or another pipe is run, not {type(route).__name__}: pg.route(engine) makes a"
            " route of an engine"
        )
    return check_settings(options, image_policy, policy)


def check_settings(options: Any, image_policy: Any, policy: Any = None) -> GenerationOptions | None:
    """The options of a run as a record; plain data of the same shape becomes one.

    Raises `TypeError` unless these are options, a policy of images and a policy of requests, or
    None, and `InvalidField` for a bad option.
    """
    if options is not None and not isinstance(options, (GenerationOptions, Mapping)):
        raise TypeError(
            f"options are GenerationOptions or a mapping of them, not {type(options).__name__}"
        )
    if image_policy is not None and not isinstance(image_policy, ImagePolicy):
        raise TypeError(f"image_policy is an ImagePolicy, not {type(image_policy).__name__}")
    if policy is not None and not isinstance(policy, RequestPolicy):
        raise TypeError(f"policy is a RequestPolicy, not {type(policy).__name__}")
    return options_from(options) if isinstance(options, Mapping) else options


def require_iterable(requests: Any, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` for one request in the place of many, since a mapping or a string would be
    taken apart, and for what has no items.
    """
    if isinstance(requests, (GenerationRequest, Result, Mapping, str, bytes)):
        raise TypeError(
            f"requests are a list or another iterable, not one {type(requests).__name__}: put a"
            " single request into a list"
        )
    if not asynchronous and isinstance(requests, AsyncIterable):
        raise TypeError(
            "requests are a list or another iterable, not an asynchronous"
            f" {type(requests).__name__}: aimap takes one"
        )
    if not isinstance(requests, (Iterable, AsyncIterable)) and not hasattr(requests, "__getitem__"):
        raise TypeError(f"requests are a list or another iterable, not {type(requests).__name__}")


def pairs(requests: Any, *, asynchronous: bool = False) -> None:
    """Raise `TypeError` for a mapping of requests, which is walked by its keys."""
    if isinstance(requests, Mapping):
        raise TypeError(
            f"pairs of a key and a request are wanted, not a {type(requests).__name__}: hand over"
            " its .items()"
        )
    require_iterable(requests, asynchronous=asynchronous)


def pair(item: Any) -> Any:
    """The pair of a key and a request. Raises `TypeError` for anything else; two letters are no
    pair.

    >>> pair(("a", {"prompt": "Hi"}))
    ('a', {'prompt': 'Hi'})
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"pairs of a key and a request are wanted, not {printed(item)}")
    return item


def slot_of_request(slot: Result[Any, Any]) -> Result[Any, Any]:
    """The slot; `InvalidRequest` where it holds something else than a request, or an error that is
    none of pipegen's.

    >>> slot_of_request(Success(1)).failure().message
    'a slot with a request is wanted, not one with int: pipe.apply(batch) runs stages alone, over slots of anything'
    """
    held, wanted, what = (
        (slot.unwrap(), GenerationRequest, "request")
        if isinstance(slot, Success)
        else (slot.failure(), GenerationError, "GenerationError")
    )
    if isinstance(held, wanted):
        return slot
    words = (
        f"a slot with a {what} is wanted, not one with {type(held).__name__}: pipe.apply(batch)"
        " runs stages alone, over slots of anything"
    )
    return Failure(InvalidRequest(words))
