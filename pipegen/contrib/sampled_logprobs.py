"""Log probabilities as trainers compare them: of the distribution that was sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pipegen as pg
from pipegen.records.options import in_effect

_CHANGES: Final = ("temperature", "filter", "tokens", "bias", "penalty", "repeats", "structured")


def sampled_logprobs(
    result: pg.GenerationResult, logprobs: Sequence[float] | None
) -> list[float] | None:
    """Those of the result, or of a rollout of it. None where there are none, and where an option
    changed the distribution after they were taken: the ratio of a trainer would be of two
    distributions.

    >>> from pipegen.testing.fake import FakeEngine
    >>> def logprobs(**options):
    ...     (slot,) = pg.run(pg.route(FakeEngine("Yes")), [{"prompt": "Hi"}], options)
    ...     return sampled_logprobs(slot.unwrap(), (-0.5,))
    >>> logprobs(temperature=1.0), logprobs(temperature=0.7), logprobs(top_k=5)
    ([-0.5], None, None)
    """
    for turn in result.rounds or (result,):
        report: object = turn.options.logprobs
        changed = {*in_effect(turn.options, *_CHANGES), *in_effect(turn.options, "stop")}
        if report != "processed" and changed - {"stop", "stop_token_ids", "ignore_eos"}:
            return None
    return None if logprobs is None else list(logprobs)
