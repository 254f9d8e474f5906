"""What a model's configuration says of its positions: how many there are, and whether they are
scaled by a row's length.

>>> from types import SimpleNamespace
>>> positions_of(
...     SimpleNamespace(
...         max_position_embeddings=128, rope_parameters={"rope_type": "linear", "factor": 4.0}
...     )
... ).context_length
512
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipegen.core.errors import UnsupportedOption
from pipegen.engines.capabilities import Capabilities
from pipegen.records.results import Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The facts of a text model's positions."""

    context_length: int | None = None
    """How many tokens prompt and answer may have together, linear scaling included; None where the
    configuration does not say.
    """
    dynamic: bool = False
    """Whether the factors grow with the length of a row (dynamic NTK), beyond `context_length`."""
    long_after: int | None = None
    """After how many tokens a row gets the long factors of LongRoPE, for all its positions; None
    where the model has none.
    """


def positions_of(text: Any) -> Positions:
    """The facts, from the configuration of the text model. Raises `ValueError` where LongRoPE's
    factors change at different lengths in different layers.
    """
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    length = next(
        (value for name in names if isinstance(value := getattr(text, name, None), int)), None
    )
    rope_settings: Any = (
        getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    )
    layers = [rope for rope in rope_settings.values() if isinstance(rope, Mapping)]
    ropes = [(rope.get("rope_type", rope.get("type")), rope) for rope in layers or [rope_settings]]
    original_length = getattr(text, "original_max_position_embeddings", None)
    after = {
        int(rope.get("original_max_position_embeddings") or original_length or length or 0)
        for kind, rope in ropes
        if kind in ("longrope", "su")
    }
    if len(after) > 1:
        raise ValueError(
            "the factors of LongRoPE change at different lengths in different layers:"
            f" {sorted(after)}"
        )
    # Where only some layers are scaled, the length that is named is the scaled one.
    factor = rope_settings.get("factor") if not layers and ropes[0][0] == "linear" else None
    return Positions(
        context_length=length if length is None or not factor else int(length * factor),
        dynamic=any(kind == "dynamic" for kind, _ in ropes),
        long_after=next(iter(after), None),
    )


def other_factors(
    positions: Positions, encoded: Encoded, capabilities: Capabilities
) -> UnsupportedOption | None:
    """What is wrong where an engine that takes LongRoPE's factors by its own limit, or by other
    rows, would give a row others than those of its length.

    Such an engine has the long factors for all rows where its limit is above `long_after`. Rows
    with short prompts would give another text there.
    """
    after, limit, tokens = (
        positions.long_after,
        capabilities.context_length,
        len(encoded.prompt.token_ids),
    )
    # SGLang counts from the position after
    if after is None or limit is None or limit <= after or tokens > after + 1:
        return None
    message = (
        f"{capabilities.engine} with a limit of {limit} tokens uses the long factors of LongRoPE,"
        f" and this prompt of {tokens} tokens is for the short ones"
    )
    hint = (
        f"start the engine with a limit of {after} tokens (max_model_len) for such prompts, or use"
        " hf, which chooses for each row"
    )
    return UnsupportedOption(message, option="max_model_len", hint=hint)
