"""What a model's configuration says of its positions: how many there are, and whether they are scaled by a row's length.

>>> from types import SimpleNamespace
>>> positions_of(SimpleNamespace(max_position_embeddings=128, rope_parameters={"rope_type": "linear", "factor": 4.0})).context_length
512
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Positions", "positions_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The facts of a text model's positions."""

    context_length: int | None = None
    """How many tokens prompt and answer may have together, linear scaling included; None where the configuration does not say."""
    dynamic: bool = False
    """Whether the factors grow with the length of a row (dynamic NTK), beyond `context_length`."""
    long_after: int | None = None
    """After how many tokens a row gets the long factors of LongRoPE, for all its positions; None where the model has none."""


def positions_of(text: Any) -> Positions:
    """The facts, from the configuration of the text model. Raises `ValueError` where LongRoPE's factors change at different lengths in different layers."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    length = next((value for name in names if isinstance(value := getattr(text, name, None), int)), None)
    said: Any = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    layers = [rope for rope in said.values() if isinstance(rope, Mapping)]
    ropes = [(rope.get("rope_type", rope.get("type")), rope) for rope in layers or [said]]
    own = getattr(text, "original_max_position_embeddings", None)
    after = {int(rope.get("original_max_position_embeddings") or own or length or 0) for kind, rope in ropes if kind in ("longrope", "su")}
    if len(after) > 1:
        raise ValueError(f"the factors of LongRoPE change at different lengths in different layers: {sorted(after)}")
    # Where only some layers are scaled, the length that is named is the scaled one.
    factor = said.get("factor") if not layers and ropes[0][0] == "linear" else None
    return Positions(
        context_length=length if length is None or not factor else int(length * factor),
        dynamic=any(kind == "dynamic" for kind, _ in ropes),
        long_after=next(iter(after), None),
    )
