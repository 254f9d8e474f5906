"""Whether two engines give rows beyond each length of a configuration the same log probabilities:
on a small model of the configuration's family.

One row ends before all those lengths, and one goes on behind each of them. In float32 engines that
compute the same differ by rounding alone, thousands of times less than a window that is one token
longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipegen.backends.checkpoint.positions import Boundary, boundaries
from pipegen.backends.checkpoint.tiny_model import BEYOND, VOCABULARY, write_shrunken
from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot, all_of
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, Prompt
from pipegen.records.scores import ScoreInput, TokenScores

_TOLERANCE = 3e-4
"""The largest difference of log probabilities, in float32, between engines that compute the same.
Seen were up to 5e-5.
"""
_ROUNDING = 10
"""A model that rounds more differs so many times more beyond a length than before all of them."""
_SHORT = 32
"""How long the first row is, where no length is shorter."""

Score = Callable[[Path, Sequence[ScoreInput]], Sequence[Slot[TokenScores]]]
"""What an engine gives rows of the model in that folder."""


@dataclass(frozen=True, slots=True)
class Differs:
    """Beyond which length two engines differ, and by how much."""

    boundary: Boundary | None
    """As the configuration names it; None where they differ from the first tokens on."""
    difference: float
    """The largest difference of two log probabilities of one token."""


def compared(config: object) -> list[Boundary]:
    """The lengths beyond which engines are compared. Where dynamic scaling begins is none: no row
    goes on behind it but on transformers (see `Positions`).
    """
    return [
        boundary for boundary in boundaries(config) if boundary.name != "max_position_embeddings"
    ]


def _trial_rows(config: object) -> list[tuple[Boundary | None, ScoreInput]]:
    """A row before all lengths of a configuration, and one that goes on behind each of them."""
    named = compared(config)
    return [
        (None, _row(min(_SHORT, *(boundary.tokens - 2 for boundary in named), _SHORT))),
        *((boundary, _row(boundary.tokens + BEYOND)) for boundary in named),
    ]


def _row(length: int) -> ScoreInput:
    ids = tuple(
        (7 * index * index + 3 * index + index // 5) % (VOCABULARY - 3) + 3
        for index in range(length)
    )
    encoded = Encoded(
        request=TextGenerationRequest(prompt_token_ids=ids[:1]),
        options=resolve(GenerationOptions()),
        prompt=Prompt(token_ids=ids[:1], compact_token_ids=ids[:1], images=()),
    )
    return ScoreInput(encoded=encoded, continuation=ids[1:])


def _most_apart(scores: Sequence[TokenScores]) -> float:
    first, second = (score.logprobs for score in scores)
    return max(abs(mine - theirs) for mine, theirs in zip(first, second, strict=True))


def differs_beyond(text: object, folder: Path, score: Score, other_score: Score) -> Differs | None:
    """The shortest length beyond which two engines differ; None where they do not. The small model
    is written into the folder.

    Raises `CannotShrink` where no small model can be made, and what the engines raise.
    """
    small = write_shrunken(text, folder)
    rows = _trial_rows(small)
    inputs = [row for _, row in rows]
    seen = [
        all_of(both).map(_most_apart).value_or(None)  # None where an engine refuses the row
        for both in zip(score(folder, inputs), other_score(folder, inputs), strict=True)
    ]
    allowed = (
        max(_TOLERANCE, _ROUNDING * (seen[0] or 0.0))
        if (seen[0] or 0.0) < _ROUNDING * _TOLERANCE
        else _TOLERANCE
    )
    sizes = {boundary.name: boundary for boundary in boundaries(text)}
    for (boundary, _), difference in zip(rows, seen, strict=True):
        if difference is not None and difference > allowed:
            return Differs(
                None if boundary is None else sizes.get(boundary.name, boundary), difference
            )
    return None


def refused_beyond(differs: Differs, encoded: Encoded, engine: str) -> UnsupportedOption | None:
    """What is wrong with a row that reaches beyond the length from which on an engine gives another
    text than transformers.
    """
    boundary, tokens = (
        differs.boundary,
        len(encoded.prompt.token_ids) + (encoded.options.max_new_tokens or 0),
    )
    if boundary is not None and tokens <= boundary.tokens:
        return None
    hint = (
        "use hf"
        if boundary is None
        else f"use hf for longer rows, or max_model_len={boundary.tokens}"
    )
    return UnsupportedOption(
        f"{in_words(differs, engine)}, and this row may have {tokens}",
        option="max_model_len",
        hint=hint,
    )


def in_words(differs: Differs, engine: str) -> str:
    """The difference for a reader.

    >>> in_words(Differs(Boundary("sliding_window", 4096), 0.05), "vllm")
    'vllm gives another text than transformers (log probabilities of a small model differ by 0.05) beyond 4096 tokens (sliding_window)'
    """
    where = (
        "from the first tokens on"
        if differs.boundary is None
        else f"beyond {differs.boundary.tokens} tokens ({differs.boundary.name})"
    )
    return (
        f"{engine} gives another text than transformers (log probabilities of a small model differ"
        f" by {differs.difference:.2g}) {where}"
    )
