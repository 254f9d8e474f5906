"""Several completions for one prompt: `samples=n` expands a request into n rows and puts their
results together again; `grid` does it for options.

The rows share one prompt, and a route renders and encodes equal prompts of a batch once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

from returns.result import Result, Success

from pipegen.core.names import InvalidField
from pipegen.core.pipe import Pipe, pipe_of, row_stage
from pipegen.core.slots import Slot
from pipegen.drivers.arguments import record_of
from pipegen.records.frozen import printed
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import merge, options_from
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.stages.gather_samples import EXPAND, GATHER

K = TypeVar("K")
Point: TypeAlias = GenerationOptions | Mapping[str, Any]
"""One point of a grid."""


def samples(
    pipe: Pipe[GenerationRequest, GenerationResult],
) -> Pipe[GenerationRequest, GenerationResult]:
    """Let a pipe without `pg.stages.trim` honour `samples`: each request is expanded into as many
    samples, and their results are put together in its one slot.

    The slot holds the first completion, with all of them, in order, in `.samples`. Those that
    failed are in `.failed_samples`, with their numbers; the slot itself fails, with the error of
    the first, only where no sample came through. Routes honour samples by themselves. Raises
    `TypeError` for what is no pipe.
    """
    if not isinstance(pipe, Pipe):
        raise TypeError(
            f"samples takes a pipe, not {type(pipe).__name__}: pg.route(engine) makes a route of an"
            " engine"
        )
    place: Pipe[Any, Any] = row_stage("samples", Success, keeps_text=True)
    return pipe.with_parts((pipe_of(EXPAND), place, *pipe.parts, place, pipe_of(GATHER)))


@overload
def grid(  # type: ignore[overload-overlap]  # points themselves are no labels
    request: GenerationRequest, options: Mapping[K, Point]
) -> dict[K, GenerationRequest]: ...
@overload
def grid(request: GenerationRequest, options: Iterable[Point]) -> tuple[GenerationRequest, ...]: ...
@overload
def grid(  # type: ignore[overload-overlap]  # as above
    request: Mapping[str, object] | Slot[GenerationRequest], options: Mapping[K, Point]
) -> dict[K, Any]: ...
@overload
def grid(  # type: ignore[overload-overlap]  # as above
    request: Iterable[Request], options: Mapping[K, Point]
) -> dict[tuple[int, K], Any]: ...
@overload
def grid(
    request: Mapping[str, object] | Slot[GenerationRequest] | Iterable[Request],
    options: Iterable[Point],
) -> tuple[Any, ...]: ...
def grid(
    request: Request | Iterable[Request], options: Mapping[Any, Point] | Iterable[Point]
) -> dict[Any, Any] | tuple[Any, ...]:
    """The same request once for each of the options, which win over the request's own; a route
    renders and encodes its prompt once.

    A request is what `run` takes: a record, plain data, or a slot. What is no request, or has
    failed, is a failed slot at each point. Options with labels give requests with the same labels,
    which `imap_keyed` takes to the answers. Of several requests, each comes at all points before
    the next one, and the labels are pairs of a request's position and the label. Raises
    `InvalidField` for options that are none.

    >>> hot_and_cold = grid(
    ...     {"prompt": "Hi"}, [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}]
    ... )
    >>> [request.options.temperature for request in hot_and_cold]
    [0.0, 1.0]
    >>> labelled = grid(
    ...     {"prompt": "Hi"}, {"cold": {"temperature": 0.0}, "hot": {"temperature": 1.0}}
    ... )
    >>> [(label, request.options.temperature) for label, request in labelled.items()]
    [('cold', 0.0), ('hot', 1.0)]
    >>> [
    ...     request.prompt
    ...     for request in grid([{"prompt": "Hi"}, {"prompt": "Ho"}], [{"seed": 1}, {"seed": 2}])
    ... ]
    ['Hi', 'Hi', 'Ho', 'Ho']
    """
    if isinstance(request, (str, bytes)) or not isinstance(
        request, (GenerationRequest, Mapping, Result, Iterable)
    ):
        raise InvalidField(
            f'grid takes a request such as {{"prompt": "..."}}, or several, not {printed(request)}'
        )
    if not isinstance(options, Iterable) or isinstance(options, (str, bytes)):
        raise InvalidField(
            f"grid takes a list or a mapping of options, not one {type(options).__name__}"
        )
    points = options if isinstance(options, Mapping) else [*options]
    for point in points.values() if isinstance(points, Mapping) else points:
        if not isinstance(point, (GenerationOptions, Mapping)):
            raise InvalidField(
                "grid takes GenerationOptions or a mapping of options for each point, not"
                f" {printed(point)}"
            )
    if isinstance(request, (GenerationRequest, Mapping, Result)):
        record = record_of(request)
        if isinstance(points, Mapping):
            return {label: _at(point, record) for label, point in points.items()}
        return tuple(_at(point, record) for point in points)
    records = [record_of(item) for item in request]
    if isinstance(points, Mapping):
        return {
            (position, label): _at(point, record)
            for position, record in enumerate(records)
            for label, point in points.items()
        }
    return tuple(_at(point, record) for record in records for point in points)


def _at(point: Point, record: Slot[GenerationRequest]) -> object:
    """The request with these options, or the slot of one that has failed."""
    options = options_from(point) if isinstance(point, Mapping) else point
    changed = record.map(
        lambda request: dataclasses.replace(request, options=merge(options, request.options))
    )
    return changed.value_or(changed)
