"""What is stored in a checkpoint's safetensors files: names, types and shapes, read from their headers, without the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["dtype_of", "header", "stored_dtype", "stored_names"]

_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_LARGEST = 100_000_000
"""No header is larger, by the format's own rule."""


def header(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """The tensors of a safetensors file: name to `dtype`, `shape` and `data_offsets`. Raises `ValueError` where it is no such file, or ends too early."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        try:
            said = json.loads(opened.read(size)) if 0 < size <= _LARGEST else None
        except ValueError:
            said = None
    if not isinstance(said, dict):
        raise ValueError(f"{file} is not a safetensors file")
    tensors = {name: told for name, told in said.items() if name != "__metadata__"}
    whole = 8 + size + max((told["data_offsets"][1] for told in tensors.values()), default=0)
    if file.stat().st_size < whole:
        raise ValueError(f"{file} is not whole: it has {file.stat().st_size} of {whole} bytes")
    return tensors


def stored_dtype(source: str, revision: str | None) -> str | None:
    """The type of the first floating-point tensor of a checkpoint; None where it has no safetensors file. Raises as `header` does."""
    file = _found(source, next(iter(_shards(source, revision).values()), "model.safetensors"), revision)
    told = () if file is None else (_FLOATS.get(tensor["dtype"]) for tensor in header(file).values())
    return next((name for name in told if name is not None), None)


def stored_names(source: str, revision: str | None) -> frozenset[str]:
    """The names of a checkpoint's tensors; none where it has no safetensors file. Raises as `header` does."""
    shards = _shards(source, revision)
    file = None if shards else _found(source, "model.safetensors", revision)
    return frozenset(shards if file is None else header(file))


def _shards(source: str, revision: str | None) -> Mapping[str, str]:
    """Which file each tensor is in, where there are several."""
    index = _found(source, "model.safetensors.index.json", revision)
    said: Mapping[str, str] = {} if index is None else json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return said


def _found(source: str, name: str, revision: str | None) -> Path | None:
    from transformers.utils.hub import cached_file

    path = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def dtype_of(named: object) -> str | None:
    """What a model computes in that is stored so, of the types that every engine has; None where nothing is named.

    >>> [dtype_of(name) for name in ("torch.bfloat16", "float16", "float64", "float8_e4m3fn", None)]
    ['bfloat16', 'float16', 'float32', 'bfloat16', None]
    """
    word = str(named).removeprefix("torch.")
    return None if named is None else word if word in ("float32", "bfloat16", "float16") else "float32" if word == "float64" else "bfloat16"
