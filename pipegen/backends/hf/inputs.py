"""Rows as the tensors of one left-padded batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.native_processors import IMAGE_MARKS, ImageInputs
from pipegen.backends.hf.rows import HFRow

__all__ = ["IMAGE_MARKS", "batch_inputs"]


def batch_inputs(rows: Sequence[HFRow], model: Any, checkpoint: Checkpoint, pixels: Callable[[Sequence[Any]], ImageInputs] | None = None) -> dict[str, Any]:
    """What `model.generate` takes for these rows: ids and mask, shape (rows, longest), padded on the left; the images of all rows in order.

    `pixels` gives the inputs of images, the checkpoint where nothing is said.
    Position ids are left to the model's own preparation, which makes them from the mask (and, for models with several rotary axes, from the images).
    """
    sequences = [row.sequence for row in rows]
    longest = max(map(len, sequences))
    ids = torch.tensor([(checkpoint.pad_token_id,) * (longest - len(ids)) + ids for ids in sequences], device=model.device)
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences], device=model.device)
    images = [image for row in rows for image in row.encoded.prompt.images]
    image_inputs = _image_inputs((pixels or checkpoint.image_inputs)(images), ids, mask, model) if images else {}
    return {"input_ids": ids, "attention_mask": mask, **image_inputs}


def _image_inputs(made: ImageInputs, ids: torch.Tensor, mask: torch.Tensor, model: Any) -> dict[str, Any]:
    takes = inspect.signature(model.forward).parameters
    tensors, marked = made
    marks = {name: (torch.isin(ids, torch.tensor(sorted(of), device=ids.device)) & mask.bool()).long() for name, of in marked.items() if name in takes}
    return marks | {name: _placed(value, model) for name, value in tensors.items() if name in takes}


def _placed(value: Any, model: Any) -> Any:
    tensor = torch.as_tensor(value).to(model.device)
    return tensor.to(model.dtype) if tensor.is_floating_point() else tensor
