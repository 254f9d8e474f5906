"""Several completions of one prompt: how a request becomes rows, and how their results are put
together again.

The rows share one prompt, and a route renders and encodes equal prompts of a batch once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot, is_ok, live
from pipegen.core.steps import Expand, Gather
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult


def derive_seed(seed: int, sample: int) -> int:
    """The seed of one sample: the first has the request's own, the others one hashed from it, so
    that neighbouring seeds share no sample.

    >>> derive_seed(7, 0)
    7
    >>> derive_seed(7, 1) == derive_seed(7, 1) != derive_seed(8, 1)
    True
    """
    if sample == 0:
        return seed
    import hashlib

    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:8], "big") >> 1


def expand(request: Any) -> Sequence[Any]:
    """The requests of the samples that a request asks for, each with its own seed."""
    options = request.options if isinstance(request, GenerationRequest) else None
    if options is None or options.samples in (None, 1):
        return (request,)

    def one(sample: int) -> Any:
        seed = None if options.seed is None else derive_seed(options.seed, sample)
        changed = dataclasses.replace(options, samples=1, seed=seed)
        return dataclasses.replace(request, options=changed)

    return [*map(one, range(options.samples or 1))]


def _answers(slot: Slot[object], before: Slot[object] | None, splits: bool) -> Sequence[Slot[Any]]:
    """A result with the answer that its request was made of, and that answer's id where the request
    has none of its own; where it `splits`, its completions.
    """
    result = slot.value_or(None)
    previous = None if before is None else before.value_or(None)
    if not isinstance(result, GenerationResult):
        return (slot,)
    if isinstance(previous, GenerationResult):
        linked: dict[str, Any] = {
            "previous": previous,
            "id": previous.id if result.id is None else result.id,
        }
        samples = tuple([dataclasses.replace(sample, **linked) for sample in result.samples])
        result = dataclasses.replace(result, **linked, samples=samples)
    return result.completions if splits else (Success(result),)


def _gather(slots: Sequence[Slot[Any]], request: Slot[Any] | None) -> Slot[Any]:
    """The first completion, with all of them in `.samples` and those that failed in
    `.failed_samples`; the first error, where none came through.
    """
    results = live(slots)
    if not results or len(slots) == 1:
        return slots[0]
    strange = next((result for result in results if not isinstance(result, GenerationResult)), None)
    if strange is not None:
        message = (
            f"{len(slots)} samples came to {type(strange).__name__}, which has no room for more"
            " than one"
        )
        return Failure(
            UnsupportedOption(
                message,
                option="samples",
                hint="let the last stage give a GenerationResult, or ask for one sample at a time",
            )
        )
    failed = tuple((sample, slot.failure()) for sample, slot in enumerate(slots) if not is_ok(slot))
    options = results[0].options
    if request is not None:
        seed = request.unwrap().options.seed
        options = dataclasses.replace(options, samples=len(slots), seed=seed)
    return Success(
        dataclasses.replace(results[0], options=options, samples=results, failed_samples=failed)
    )


EXPAND = Expand(expand=expand)
GATHER = Gather(answers=_answers, gather=_gather)
