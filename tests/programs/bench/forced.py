"""Output lengths that are the same for every way of running a model, whatever it batches, pads,
packs or refills.

Trained models end where they like, and small ones hardly ever. So `forward` is wrapped for all
alike: after a token of class r (its id modulo `PERIOD`), only tokens of class r - 1 may come, and
after class 1 only the end. A prompt whose last token is of class L so makes L tokens, the end
included, and which token of the class comes is still the model's own greedy choice. The last token
alone decides, so nothing has to know which row is which.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

PERIOD = 131
"""Above the longest output."""


class Counts:
    """What `forward` was asked to compute."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls = self.row_steps = self.tokens = 0


def force(model: Any, eos: Sequence[int], banned: Sequence[int], *, counted_down: bool) -> Counts:
    """Wrap the model's `forward`; without `counted_down`, rows never end. `banned` ids (the special
    ones) are never made. Gives the counts.
    """
    inner, counts = model.forward, Counts()
    tables: list[torch.Tensor] = []

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        ids: Any = kwargs.get("input_ids", args[0] if args else None)
        counts.calls += 1
        counts.tokens += ids.numel()
        counts.row_steps += ids.shape[0] if ids.shape[1] == 1 else 0
        out = inner(*args, **kwargs)
        if not tables:
            tables.append(allowed(out.logits.shape[-1], eos, banned, counted_down).to(out.logits))
        keep = kwargs.get("logits_to_keep", 0)
        which: Any = slice(-out.logits.shape[1], None) if isinstance(keep, int) else keep
        out.logits = out.logits + tables[0][ids[:, which] % len(tables[0])]
        return out

    model.forward = forward
    return counts


def allowed(
    vocabulary: int, eos: Sequence[int], banned: Sequence[int], counted_down: bool
) -> torch.Tensor:
    """What is added to the logits after a token of each class: 0 for what may come, else a large
    negative number.
    """
    number = torch.arange(vocabulary)
    table = torch.zeros(PERIOD if counted_down else 1, vocabulary)
    if counted_down:
        for last in range(2, PERIOD):
            table[last, number % PERIOD != last - 1] = -1e9
    table[:, [*eos, *banned]] = -1e9
    if counted_down:
        table[1], table[1, eos[0]] = -1e9, 0.0
    return table


def alone(model: Any, inputs: dict[str, Any], count: int, eos: Sequence[int]) -> list[int]:
    """The greedy ids of a row alone in its batch, up to its end, and `count` at most."""
    with torch.no_grad():
        out = model.generate(
            **inputs,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=eos[0],
            eos_token_id=list(eos),
        )
    return up_to([int(token) for token in out[0, inputs["input_ids"].shape[1] :]], set(eos))


def up_to(ids: list[int], eos: set[int]) -> list[int]:
    """The ids before the first end."""
    end = next((place for place, token in enumerate(ids) if token in eos), len(ids))
    return ids[:end]


def closing(tokenizer: Any, text: str, length: int) -> str | None:
    """The text with one more token of the class that makes so many tokens, or None where no such
    token stays one after this text.
    """
    before = tokenizer(text, add_special_tokens=False).input_ids
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    for token in range(length, len(tokenizer), PERIOD):
        more: str = text + tokenizer.decode([token])
        if (
            token not in special
            and "\ufffd" not in more
            and tokenizer(more, add_special_tokens=False).input_ids == [*before, token]
        ):
            return more
    return None


def special_ids(tokenizer: Any) -> list[int]:
    """The ids that no row may make: the special and the other added tokens."""
    return sorted(set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values()))
