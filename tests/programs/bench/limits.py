"""Two limits of text on the Hugging Face path: the needed row-steps in full batches, and the
prompts read, by the model alone.

Nothing is done between the passes but to take the likeliest token: no row comes late, none leaves,
no place is ever empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from forced import up_to
from transformers import DynamicCache

Run = Callable[[], list[Any]]


def transformers_passes(model: Any, work: dict[str, Any]) -> Run:
    """The limit of transformers' own passes: its model and its `DynamicCache` as they come, with
    mask and padding.

    The prompts are read in full batches, sorted by length and padded on the left as `generate`
    does. Then each batch goes on as many steps as its rows need on average: all rows at every step,
    so that the steps of all batches are the needed row-steps. Gives the ids that the rows make in
    them.
    """
    prompts, lengths, batch = work["ids"], work["lengths"], work["batch"]
    order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]

    def run() -> list[Any]:
        made: dict[int, list[int]] = {}
        left = 0.0
        for rows in batches:
            left += sum(lengths[row] - 1 for row in rows) / len(rows)
            steps, left = int(left), left - int(left)
            with torch.no_grad():
                answers = _in_batch(model, [prompts[row] for row in rows], steps)
            made |= {
                row: up_to(ids, set(work["eos"])) for row, ids in zip(rows, answers, strict=True)
            }
        return [made[row] for row in range(len(prompts))]

    return run


def _in_batch(model: Any, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """The greedy ids of a batch: one of the pass that reads the prompts, and one of each step."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    made = []
    for step in range(steps + 1):
        token = (
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                logits_to_keep=1,
            )
            .logits[:, -1:]
            .argmax(-1)
        )
        made.append(token)
        if step < steps:
            ids, positions = token, positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(token)], dim=-1)
    answers: list[list[int]] = torch.cat(made, dim=-1).tolist()
    return answers


def best_passes(model: Any, work: dict[str, Any]) -> Run:
    """A bound that no way of batching reaches: pipegen's own best passes, key heads shared and the
    cache written in place.

    No prompt is padded (all have the mean length, at which attention costs least), each row-step
    sees the mean context, and its mask is there as rows of different lengths need one.
    """
    from pipegen.backends.hf import cache as caches
    from pipegen.backends.hf.attention import use_grouped

    use_grouped(model)
    batch, prompts = work["batch"], [len(prompt) for prompt in work["ids"]]
    steps = sum(length - 1 for length in work["lengths"]) // batch
    seen = sum(
        (prompt + length / 2) * (length - 1)
        for prompt, length in zip(prompts, work["lengths"], strict=True)
    )
    context = int(seen / sum(length - 1 for length in work["lengths"]))

    def read(rows: int, columns: int) -> Any:
        cache = DynamicCache(config=model.config)
        model(
            input_ids=torch.ones(rows, columns, dtype=torch.long),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cache

    cache = None

    def run() -> list[Any]:
        nonlocal cache
        with torch.no_grad():
            for start in range(0, len(prompts), batch):
                read(min(batch, len(prompts) - start), sum(prompts) // len(prompts))
            cache = cache or caches.growing(read(batch, context))
            mask, token = (
                torch.ones(batch, context + 1, dtype=torch.long),
                torch.ones(batch, 1, dtype=torch.long),
            )
            mask[0, 0] = 0
            for _ in range(steps):
                token = model(
                    input_ids=token, attention_mask=mask, past_key_values=cache
                ).logits.argmax(-1)
                cache.crop(-1)
        return []

    return run
