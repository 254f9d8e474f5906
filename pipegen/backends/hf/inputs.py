"""Rows as the tensors of one left-padded batch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from pipegen.backends.checkpoint import Checkpoint
from pipegen.backends.hf.rows import Row

__all__ = ["PICTURE_MARKS", "batch_inputs"]

PICTURE_MARKS = ("mm_token_type_ids", "token_type_ids")
"""What models call the input that is 1 where a token is a piece of a picture, and 0 elsewhere."""


def batch_inputs(rows: Sequence[Row], model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """What `model.generate` takes for these rows: ids and mask, shape (rows, longest), padded on the left; the pictures of all rows in order.

    Position ids are left to the model's own preparation, which makes them from the mask (and, for models with several rotary axes, from the pictures).
    """
    sequences = [row.sequence for row in rows]
    longest = max(map(len, sequences))
    ids = torch.tensor([(checkpoint.pad_token_id,) * (longest - len(ids)) + ids for ids in sequences], device=model.device)
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences], device=model.device)
    images = [image for row in rows for image in row.encoded.prompt.images]
    pictures = _picture_inputs(images, (ids == checkpoint.image_token_id) & mask.bool(), model, checkpoint) if images else {}
    return {"input_ids": ids, "attention_mask": mask, **pictures}


def _picture_inputs(images: Sequence[Any], is_picture: torch.Tensor, model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    from pipegen.backends.image_processors import pixel_inputs

    takes = inspect.signature(model.forward).parameters
    marks = {name: is_picture.long() for name in PICTURE_MARKS if name in takes}
    return marks | {name: _placed(value, model) for name, value in pixel_inputs(checkpoint.image_processor, images).items() if name in takes}


def _placed(value: Any, model: Any) -> Any:
    tensor = torch.as_tensor(value).to(model.device)
    return tensor.to(model.dtype) if tensor.is_floating_point() else tensor
