"""A tiny vision-language model that ships with the library.

The architecture is a real one (`Qwen3VLForConditionalGeneration`), the weights are really trained,
and the folder is a few megabytes. Demos, tests and parity checks need neither a hub nor a GPU. It
describes images of coloured shapes, in words and as JSON with boxes, and does a handful of small
text tasks. `docs/model-card.md` has the figures and the limits.

    >>> from pipegen import embedded
    >>> sorted(p.name for p in embedded.path().glob("*.safetensors"))
    ['model.safetensors']

Importing this package loads no torch, transformers or PIL.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAME", "path"]

NAME = "embedded"
"""What to write where the name of a checkpoint is expected."""


def path() -> Path:
    """The folder of the shipped model, in the layout that `from_pretrained` reads."""
    return Path(__file__).resolve().parent / "weights"
