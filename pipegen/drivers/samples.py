"""Several completions for one prompt: `samples=n` expands a request into n rows and puts their results together again; `grid` does it for options.

The rows share one prompt, and a route renders and encodes equal prompts of a batch once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

from returns.result import Success

from pipegen.core.pipe import Pipe, row_stage
from pipegen.records.fields import InvalidField
from pipegen.records.frozen import printed
from pipegen.records.options import GenerationOptions, merge, options_from
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.stages.parts.samples import SAMPLING

__all__ = ["grid", "samples"]

K = TypeVar("K")
Point: TypeAlias = GenerationOptions | Mapping[str, Any]
"""One point of a grid."""


def samples(pipe: Pipe[GenerationRequest, GenerationResult]) -> Pipe[GenerationRequest, GenerationResult]:
    """Let a pipe without `pg.stages.trim` honour `samples`: each request is expanded into as many rows, and their results are put together in its one slot.

    The slot holds the first completion, with all of them, in order, in `.samples`. Those that failed are in `.failed_samples`, with their numbers; the
    slot itself fails, with the error of the first, only where no sample came through. Routes honour samples by themselves. Raises `TypeError` for what is
    no pipe.
    """
    if not isinstance(pipe, Pipe):
        raise TypeError(f"samples takes a pipe, not {type(pipe).__name__}: pg.route(engine) makes a route of an engine")
    first, last = _stage(opens=True), _stage(closes=True)
    return pipe.with_parts((first, *pipe.parts, last))


def _stage(*, opens: bool = False, closes: bool = False) -> Pipe[Any, Any]:
    """A stage that changes nothing, at which requests become rows or rows are put together."""
    return dataclasses.replace(row_stage("samples", Success, keeps_text=True), sampling=SAMPLING, opens=opens, closes=closes)


@overload
def grid(  # type: ignore[overload-overlap]  # points themselves are no labels
    request: GenerationRequest, options: Mapping[K, Point]
) -> dict[K, GenerationRequest]: ...
@overload
def grid(request: GenerationRequest, options: Iterable[Point]) -> tuple[GenerationRequest, ...]: ...
def grid(request: GenerationRequest, options: Mapping[Any, Point] | Iterable[Point]) -> dict[Any, GenerationRequest] | tuple[GenerationRequest, ...]:
    """The same request once for each of the options, which win over the request's own; a route renders and encodes its prompt once.

    Options with labels give requests with the same labels, which `imap_keyed` takes to the answers.

    >>> from pipegen.records.requests import TextGenerationRequest
    >>> hot_and_cold = grid(TextGenerationRequest(prompt="Hi"), [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}])
    >>> [request.options.temperature for request in hot_and_cold]
    [0.0, 1.0]
    >>> labelled = grid(TextGenerationRequest(prompt="Hi"), {"cold": {"temperature": 0.0}, "hot": {"temperature": 1.0}})
    >>> [(label, request.options.temperature) for label, request in labelled.items()]
    [('cold', 0.0), ('hot', 1.0)]
    """
    if not isinstance(request, GenerationRequest):
        raise InvalidField(f"grid takes a request, not {type(request).__name__}: request_from makes one of plain data")
    if not isinstance(options, Iterable):
        raise InvalidField(f"grid takes a list or a mapping of options, not one {type(options).__name__}")
    if isinstance(options, Mapping):
        return {label: _at(point, request) for label, point in options.items()}
    return tuple(_at(point, request) for point in options)


def _at(point: Point, request: GenerationRequest) -> GenerationRequest:
    if not isinstance(point, (GenerationOptions, Mapping)):
        raise InvalidField(f"grid takes GenerationOptions or a mapping of options for each point, not {printed(point)}")
    options = options_from(point) if isinstance(point, Mapping) else point
    return dataclasses.replace(request, options=merge(options, request.options))
