"""What a model's configuration says of its positions: how many there are, and whether they are
scaled by a row's length.

It also names boundaries: attention windows, chunks, and where a scaling begins. Up to such a length
a row is the same on every engine. Beyond it, an engine that reads the setting in another way gives
other answers.

>>> from types import SimpleNamespace
>>> positions_of(
...     SimpleNamespace(
...         max_position_embeddings=128, rope_parameters={"rope_type": "linear", "factor": 4.0}
...     )
... ).context_length
512
>>> boundaries(
...     SimpleNamespace(
...         sliding_window=512,
...         rope_parameters={
...             "rope_type": "yarn",
...             "factor": 4.0,
...             "original_max_position_embeddings": 4096,
...         },
...     )
... )
(Boundary(name='sliding_window', tokens=512), Boundary(name='rope_parameters.original_max_position_embeddings', tokens=4096))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def positions_of(text: object) -> Positions:
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


_LENGTHS = ("attention_chunk_size", "floor_scale", "index_topk", "original_max_position_embeddings")
"""Settings that are lengths beside those with `window` in their names: chunked attention, the
temperature of attention (Llama 4), sparse attention.
"""
_NO_LENGTHS = ("layer", "pattern", "use_", "block", "num_", "kernel", "indices")
"""Parts of the names of settings that have `window` in them, and are no lengths:
`use_sliding_window`, `max_window_layers`, `sliding_window_pattern`.
"""
_SCALINGS = ("rope_parameters", "rope_scaling", "llama_4_scaling", "dual_chunk_attention_config")
"""Settings that are records of their own, or such a record for each type of layer."""
_LENGTHS_OF_SCALINGS = ("original_max_position_embeddings", "chunk_size", "local_size")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A length that a configuration names."""

    name: str
    """The setting, as a path in the configuration of the text model."""
    tokens: int
    """The length. Engines count from there, or from a position beside it: a row that tries it has
    some tokens more.
    """


def boundaries(config: object) -> tuple[Boundary, ...]:
    """The lengths that a configuration of transformers names, those of its text model where it has
    one; shortest first, each length under one name.

    A window that the configuration switches off (`use_sliding_window`) is left out. One that no
    layer uses is listed: an engine may use it all the same.
    """
    names: dict[int, str] = {}
    for length in named_lengths(config):
        names.setdefault(length.tokens, length.name)
    return tuple(Boundary(name, tokens) for tokens, name in sorted(names.items()))


def named_lengths(config: Any) -> tuple[Boundary, ...]:
    """As `boundaries`, each setting under its own name, also where several have one length."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    lengths = (*_of_attention(text), *_of_positions(text))
    return tuple(
        Boundary(name, tokens)
        for name, tokens in lengths
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
    )


def _of_attention(text: object) -> Iterator[tuple[str, object]]:
    """What is a length of attention. In some models each layer has one of its own."""
    windows = getattr(text, "use_sliding_window", True) is not False
    for name, value in vars(text).items():
        if name in _LENGTHS or (
            windows and "window" in name and not any(part in name for part in _NO_LENGTHS)
        ):
            for length in (
                {*value}
                if isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in value)
                else (value,)
            ):
                yield name, length


def _of_positions(text: object) -> Iterator[tuple[str, object]]:
    """Where the scaling of positions begins. Without a length of its own that is the number of
    positions, for scalings that depend on a row's length.
    """
    for name in _SCALINGS:
        settings = getattr(text, name, None)
        if not isinstance(settings, Mapping):
            continue
        layers = {
            f"{name}.{layer}": scaling
            for layer, scaling in settings.items()
            if isinstance(scaling, Mapping)
        } or {name: settings}
        for path, scaling in layers.items():
            for length in _LENGTHS_OF_SCALINGS:
                yield f"{path}.{length}", scaling.get(length)
            if scaling.get("rope_type", scaling.get("type")) == "dynamic":
                yield "max_position_embeddings", getattr(text, "max_position_embeddings", None)
