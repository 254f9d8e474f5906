"""The positions of text behind a video in Qwen2-VL and Qwen2.5-VL.

Their own code, and vLLM, place what follows a video behind its latest position, which may be that
of its last frame. transformers (5.19) places it behind the height and the width of a frame, so that
the text of a long video stands among its frames. `correct_positions` makes the model count as it
was trained; without videos nothing changes.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch

from pipegen.backends.checkpoint.families import family_of


def correct_positions(model: Any) -> None:
    """Let the model count positions behind videos as it was trained."""
    if family_of(model.config.model_type).text_after_last_frame:
        for module in model.modules():
            if hasattr(module, "get_rope_index"):
                _correct(module, model.config.vision_config)


def _correct(module: Any, vision: object) -> None:
    original = module.get_rope_index

    def get_rope_index(
        input_ids: torch.Tensor,
        mm_token_type_ids: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        second_per_grid_ts: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **more: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        arguments: dict[str, Any] = {
            "mm_token_type_ids": mm_token_type_ids,
            "image_grid_thw": image_grid_thw,
            "video_grid_thw": video_grid_thw,
            "attention_mask": attention_mask,
        }
        if mm_token_type_ids is None or video_grid_thw is None:
            seconds = (
                {} if second_per_grid_ts is None else {"second_per_grid_ts": second_per_grid_ts}
            )
            result: tuple[torch.Tensor, torch.Tensor] = original(
                input_ids, **arguments, **seconds, **more
            )
            return result
        return _positions(vision, input_ids, second_per_grid_ts, **arguments)

    module.get_rope_index = get_rope_index


def _positions(
    vision: Any,
    ids: torch.Tensor,
    seconds: torch.Tensor | None,
    *,
    mm_token_type_ids: torch.Tensor,
    image_grid_thw: torch.Tensor | None,
    video_grid_thw: torch.Tensor,
    attention_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions, shape (3, rows, columns), and what is added behind them, shape (rows, 1)."""
    merge, rate = vision.spatial_merge_size, getattr(vision, "tokens_per_second", 1)
    grids = {
        1: iter([] if image_grid_thw is None else image_grid_thw.tolist()),
        2: iter(video_grid_thw.tolist()),
    }
    # in double precision, as vLLM counts
    steps = iter([1.0] * len(video_grid_thw) if seconds is None else seconds.double().tolist())
    positions = torch.zeros((3, *ids.shape), dtype=ids.dtype)
    deltas = []
    for row in range(len(ids)):
        mask = None if attention_mask is None else attention_mask[row].bool()
        marks = mm_token_type_ids[row] if mask is None else mm_token_type_ids[row][mask]
        parts: list[torch.Tensor] = []
        start = 0
        for kind, group in groupby(marks.tolist()):
            length = len(list(group))
            while length > 0:
                if kind:
                    frames, high, wide = next(grids[kind])
                    step = next(steps) * rate if kind == 2 and seconds is not None else 1.0
                    part = _grid(frames, high // merge, wide // merge, step)
                else:
                    part = torch.arange(length).expand(3, -1)
                parts.append(part + start)
                length -= part.shape[1]
                start = int(parts[-1].max()) + 1
        row_positions = torch.cat(parts, dim=1).to(positions.dtype)
        if mask is None:
            positions[:, row] = row_positions
        else:
            positions[:, row, mask.to(positions.device)] = row_positions
        deltas.append(start - row_positions.shape[1])
    return (
        positions.to(ids.device),
        torch.tensor(deltas, device=ids.device).unsqueeze(1),
    )


def _grid(frames: int, high: int, wide: int, step: float) -> torch.Tensor:
    times = (torch.arange(frames, dtype=torch.float64) * step).long()
    axes = torch.meshgrid(times, torch.arange(high), torch.arange(wide), indexing="ij")
    return torch.stack(axes).reshape(3, -1)
