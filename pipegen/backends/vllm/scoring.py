"""Log probabilities of given continuations on vLLM: those of the prompt's own tokens, which vLLM gives where they are asked for.

The highest log probability of each place is asked for too, so that a tie counts as greedy as it does on every engine: by its rank alone, vLLM would have
neither of two equal tokens be the first. vLLM reads the contexts of such requests again, whatever its prefix cache holds.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.checkpoint.positions import other_factors
from pipegen.backends.vllm.failures import refusals
from pipegen.backends.vllm.rows import differs, vllm_prompt
from pipegen.backends.vllm.running import Call, Running
from pipegen.backends.vllm.sampling import scoring_params
from pipegen.core.errors import GenerationError, InvalidRequest, MalformedResponse
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import Capabilities
from pipegen.records.scores import Continued, TokenScores
from pipegen.stages.fitting import check_fit

__all__ = ["queue_scores", "scores_of"]


def queue_scores(position: int, asked: Continued, call: Call, running: Running, checkpoint: Any, capabilities: Capabilities) -> GenerationError | None:
    """Hand a row to vLLM, or say why not."""
    whole = asked.whole
    fits = check_fit(whole, capabilities)
    refused = checkpoint.check_placeholders(whole.prompt) or (None if is_ok(fits) else fits.failure())
    refused = refused or other_factors(checkpoint.positions, whole, capabilities)
    if refused is not None:
        return refused
    prompt = whole.prompt
    try:
        rendered = running.rendered(vllm_prompt(prompt, resized=bool(prompt.images) and checkpoint.image_spec.kind == "grid"))
        wrong = differs(rendered, prompt)
        if wrong is None:
            call.add(position, rendered, scoring_params())
    except refusals() as error:
        return InvalidRequest(f"vLLM refuses the request: {type(error).__name__}: {error}")
    return wrong


def scores_of(asked: Continued, tables: Sequence[Mapping[int, Any] | None] | None) -> Slot[TokenScores]:
    """The scores of a row from vLLM's tables of its whole prompt (id -> entry); the first token has none."""
    whole, ids = asked.token_ids, asked.continuation
    if tables is None or len(tables) != len(whole):
        seen = "no" if tables is None else len(tables)
        return Failure(MalformedResponse(f"vLLM gave {seen} log probabilities of a prompt of {len(whole)} tokens"))
    logprobs: list[float] = []
    likeliest: list[tuple[int, float]] = []
    for place, token in enumerate(ids):
        table = tables[len(whole) - len(ids) + place] or {}
        if token not in table:
            return Failure(MalformedResponse(f"vLLM gave no log probability of token {place} of the continuation (id {token})"))
        own = float(table[token].logprob)
        logprobs.append(own)
        best = max(table, key=lambda other: float(table[other].logprob))
        likeliest.append((token, own) if own >= float(table[best].logprob) else (best, float(table[best].logprob)))
    return Success(TokenScores(continued=asked, logprobs=tuple(logprobs), likeliest=tuple(likeliest)))
