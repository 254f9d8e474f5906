"""The lengths at which a model's answers begin to depend on how an engine reads its configuration:
attention windows, chunks, and scalings of positions.

Up to such a length a row is the same on every engine. Beyond it, an engine that reads the setting
in another way gives other answers.

>>> from types import SimpleNamespace
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


def boundaries(config: Any) -> tuple[Boundary, ...]:
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


def _of_attention(text: Any) -> Iterator[tuple[str, Any]]:
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


def _of_positions(text: Any) -> Iterator[tuple[str, Any]]:
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
