"""Where the programs of this folder run, how much they do there, and the model that they run: made
on the spot, so that nothing is fetched.

On a GPU the model is a Llama of 1.2 billion random weights; without one it is tiny, and so is the
work: then the programs are a test of themselves.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "bench"), str(HERE.parents[1])]

__all__ = ["Sizes", "finished", "held", "model_folder", "name", "on_gpu", "prompts", "sizes"]


@dataclass(frozen=True)
class Sizes:
    """How large the model and the work are."""

    hidden: int
    layers: int
    rows: int
    """Rows that run side by side."""
    tokens: int
    """Tokens that each of them makes."""
    skewed: int
    """Requests of skewed lengths."""
    rounds: int
    shared: int
    """Tokens that rows begin with alike."""


def on_gpu() -> bool:
    return torch.cuda.is_available()


def sizes() -> Sizes:
    if on_gpu():
        return Sizes(
            hidden=2048, layers=20, rows=64, tokens=256, skewed=1000, rounds=3, shared=2000
        )
    return Sizes(hidden=48, layers=2, rows=6, tokens=12, skewed=24, rounds=1, shared=100)


def name() -> str:
    """The device in words."""
    return torch.cuda.get_device_name() if on_gpu() else "CPU, small sizes"


def model_folder(folder: Path) -> Path:
    """The folder of the model, which is made where it is not there; its tokenizer is the embedded
    model's.
    """
    if (folder / "config.json").exists():
        return folder
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from pipegen.embedded import path

    tokenizer: Any = AutoTokenizer.from_pretrained(path())
    heads = sizes().hidden // (128 if on_gpu() else 12)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes().hidden,
        intermediate_size=4 * sizes().hidden,
        num_hidden_layers=sizes().layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=None,
        # Drawn wide, so that few choices of the next token are near ties.
        initializer_range=0.2 if not on_gpu() else 0.05,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompts(count: int, shortest: int = 8, longest: int = 64, seed: int = 1) -> list[list[int]]:
    """Prompts of plain token ids, of different lengths."""
    drawn = random.Random(seed)
    return [
        [drawn.randrange(300, 1000) for _ in range(drawn.randint(shortest, longest))]
        for _ in range(count)
    ]


def finished() -> float:
    """The clock, once the device has done what it was given."""
    if on_gpu():
        torch.cuda.synchronize()
    return time.perf_counter()


def held() -> int:
    """The bytes of the device that tensors hold."""
    if on_gpu():
        return torch.cuda.memory_allocated()
    import gc

    gc.collect()
    storages = (
        thing.untyped_storage()
        for thing in gc.get_objects()
        if type(thing) in (torch.Tensor, torch.nn.Parameter)
    )
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
