"""A tiny vision-language model that ships with the library.

The architecture is a real one (`Qwen3VLForConditionalGeneration`), the weights are really trained, and the whole
folder is a few megabytes: demos, tests and parity checks need neither a hub nor a GPU. It describes pictures of
coloured shapes, in words and as JSON with boxes, and does a handful of small text tasks; `docs/model-card.md` has
the figures and the limits.

    >>> from pipegen import embedded
    >>> sorted(p.name for p in embedded.path().glob("*.safetensors"))
    ['model.safetensors']

Importing this package loads no torch, transformers or PIL.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["NAME", "export_text", "path"]

NAME = "embedded"
"""What to write where the name of a checkpoint is expected."""


def path() -> Path:
    """The folder of the shipped model, in the layout that `from_pretrained` reads."""
    return Path(__file__).resolve().parent / "weights"


def export_text(directory: str | PathLike[str]) -> Path:
    """Write the language half as a `Qwen3ForCausalLM` checkpoint, and give back its folder.

    For engines that take text only: same weights, same tokenizer, same logits on prompts without pictures.
    """
    from training.model import export_text_only

    return export_text_only(path(), Path(directory))
