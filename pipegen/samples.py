"""Several completions for one prompt: `samples=n` expands a request into n rows and puts their results together again; `grid` does it for options.

The rows share one prompt, and a route renders and encodes equal prompts of a batch once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from returns.result import Success

from pipegen.options import GenerationOptions, merge, options_from
from pipegen.pipe import Pipe, Row, Steps, renumber
from pipegen.records import GenerationResult
from pipegen.requests import GenerationRequest
from pipegen.slots import Batch, Slot, is_ok

__all__ = ["derive_seed", "grid", "samples"]


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

    The slot holds the first completion, with all of them, in order, in `.samples`; if one fails, the slot holds that failure.
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
    for slot in slots:
        if not is_ok(slot):
            return slot
    results = tuple(slot.unwrap() for slot in slots)
    options = dataclasses.replace(results[0].options, samples=len(results))
    return Success(dataclasses.replace(results[0], options=options, samples=results))


def grid(request: GenerationRequest, options: Iterable[GenerationOptions | Mapping[str, Any]]) -> tuple[GenerationRequest, ...]:
    """The same request once for each of the options, which win over the request's own; a route renders and encodes its prompt once.

    >>> from pipegen.requests import TextGenerationRequest
    >>> hot_and_cold = grid(TextGenerationRequest(prompt="Hi"), [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}])
    >>> [request.options.temperature for request in hot_and_cold]
    [0.0, 1.0]
    """
    points = (options_from(point) if isinstance(point, Mapping) else point for point in options)
    return tuple(dataclasses.replace(request, options=merge(point, request.options)) for point in points)
