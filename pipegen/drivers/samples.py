"""Several completions for one prompt: `samples=n` expands a request into n rows and puts their results together again; `grid` does it for options.

The rows share one prompt, and a route renders and encodes equal prompts of a batch once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

from returns.result import Success

from pipegen.core.pipe import Pipe, Row, Steps, renumber
from pipegen.core.slots import Batch, Slot, is_ok, live
from pipegen.records.fields import InvalidField, printed
from pipegen.records.options import GenerationOptions, merge, options_from
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult

__all__ = ["derive_seed", "grid", "samples"]

K = TypeVar("K")
Point: TypeAlias = GenerationOptions | Mapping[str, Any]
"""One point of a grid."""


def derive_seed(seed: int, sample: int) -> int:
    """The seed of one sample: the first has the request's own, the others one hashed from it, so that neighbouring seeds share no sample.

    >>> derive_seed(7, 0)
    7
    >>> derive_seed(7, 1) == derive_seed(7, 1) != derive_seed(8, 1)
    True
    """
    if sample == 0:
        return seed
    import hashlib

    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:8], "big") >> 1


def samples(route: Pipe[GenerationRequest, GenerationResult]) -> Pipe[GenerationRequest, GenerationResult]:
    """Let a route honour `samples`: each request is expanded into as many rows, and their results are regrouped into its one slot.

    The slot holds the first completion, with all of them, in order, in `.samples`. Those that failed are in `.failed_samples`, with their numbers; the
    slot itself fails, with the error of the first, only where no sample came through.
    """

    def steps(batch: Batch[GenerationRequest]) -> Steps[GenerationResult]:
        counts = [_count(slot) for slot in batch]
        rows: list[Row] = [(row, sample) for row, count in enumerate(counts) for sample in range(count)]
        if len(rows) == len(batch):
            return (yield from route.steps(batch))
        expanded = tuple(_sample(batch[row], sample, counts[row]) for row, sample in rows)
        answers = iter((yield from renumber(route.steps(expanded), rows)))
        return tuple(_regroup([next(answers) for _ in range(count)], slot) for count, slot in zip(counts, batch, strict=True))

    return Pipe(route.name, steps, route.keeps_text, route.owns)


def _count(slot: Slot[GenerationRequest]) -> int:
    if not is_ok(slot):
        return 1
    options = slot.unwrap().options
    return (options.samples if options is not None else None) or 1


def _sample(slot: Slot[GenerationRequest], sample: int, count: int) -> Slot[GenerationRequest]:
    if count == 1:
        return slot

    def one(request: GenerationRequest) -> GenerationRequest:
        options = request.options or GenerationOptions()
        seed = None if options.seed is None else derive_seed(options.seed, sample)
        return dataclasses.replace(request, options=dataclasses.replace(options, samples=1, seed=seed))

    return slot.map(one)


def _regroup(slots: list[Slot[GenerationResult]], request: Slot[GenerationRequest]) -> Slot[GenerationResult]:
    if len(slots) == 1:
        return slots[0]
    results = live(slots)
    if not results:
        return slots[0]
    asked = request.unwrap().options
    options = dataclasses.replace(results[0].options, samples=len(slots), seed=None if asked is None else asked.seed)
    failed = tuple((sample, slot.failure()) for sample, slot in enumerate(slots) if not is_ok(slot))
    return Success(dataclasses.replace(results[0], options=options, samples=results, failed_samples=failed))


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
    said = options_from(point) if isinstance(point, Mapping) else point
    return dataclasses.replace(request, options=merge(said, request.options))
