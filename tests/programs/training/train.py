"""Train the embedded model from nothing: `python -m training.train --out DIRECTORY`.

Two processes of one thread each (two threads in one process are slower), fixed seeds, and both
stages count steps, not seconds: the same machine gives the same weights again.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from training.language_stage import Part, train_language

if TYPE_CHECKING:
    from collections.abc import Sequence

PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights."""

    vision_steps: int = 2000
    vision_batch: int = 32
    flat_steps: int = 1000
    decaying_steps: int = 3000
    look_up_steps: int = 1000
    tool_steps: int = 500
    token_budget: int = 1024
    gallery: int = 16384
    seed: int = 1

    def parts(self) -> tuple[Part, ...]:
        """The language stage: a flat rate first; then a decaying one; then again, with more
        yes-or-no questions; and again, with tools too.
        """
        return (
            Part("flat", self.flat_steps, decaying=False),
            Part("decaying", self.decaying_steps, decaying=True),
            Part("look-up", self.look_up_steps, decaying=True, yes_no_questions=4),
            Part("tools", self.tool_steps, decaying=True, yes_no_questions=4, tools=True),
        )


def _average(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= PROCESSES
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def _work(rank: int, recipe: Recipe, out: Path, resume: Path | None) -> None:
    """One of the processes. The first one writes logs and checkpoints."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{out.resolve()}/.rendezvous", rank=rank, world_size=PROCESSES
    )
    from training.model import build_model, load_weights, round_weights, save_model
    from training.tokenizer import train_tokenizer
    from training.vision_stage import same_size_shortcuts, train_vision

    began = time.monotonic()

    def log(line: str) -> None:
        if rank == 0:
            print(f"{time.monotonic() - began:7.0f} s  {line}", flush=True)

    def checkpoint(name: str) -> None:
        if rank == 0:
            save_model(model, tokenizer, out / "checkpoints" / name)

    tokenizer = train_tokenizer()
    model = build_model(tokenizer, recipe.seed)
    same_size_shortcuts()
    log(f"{sum(p.numel() for p in model.parameters()):,} parameters, {recipe}")
    seed = recipe.seed + 1000 * rank
    parts = recipe.parts()
    if resume is None:
        train_vision(model, recipe.vision_steps, recipe.vision_batch, seed, _average, log)
    else:
        load_weights(model, resume)
        model.model.visual.requires_grad_(False)
    done = [part.name for part in parts].index(resume.name) + 1 if resume else 0
    for number, part in enumerate(parts[done:], start=done + 1):
        train_language(
            model,
            tokenizer,
            part,
            recipe.token_budget,
            recipe.gallery,
            seed + 100 * number,
            _average,
            log,
            checkpoint,
        )
        checkpoint(part.name)
        round_weights(model)
    if rank == 0:
        save_model(model, tokenizer, out)
    log("done")
    distributed.destroy_process_group()


def train(out: Path, recipe: Recipe, resume: Path | None = None) -> None:
    """Run the recipe and write the model to `out`; `resume` is a checkpoint at the end of a part,
    to go on from.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / ".rendezvous").unlink(missing_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    # its functions are not exported as far as type checkers can tell
    start: Any = torch.multiprocessing
    start.spawn(_work, (recipe, out, resume), nprocs=PROCESSES)
    (out / ".rendezvous").unlink(missing_ok=True)


def main() -> None:
    """The command line."""
    default = Recipe()
    parser = argparse.ArgumentParser(prog="python -m training.train", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument(
        "--resume",
        type=Path,
        help="OUT/checkpoints/PART of an earlier run: what comes after that part is done",
    )
    parser.add_argument("--vision-steps", type=int, default=default.vision_steps)
    parser.add_argument("--flat-steps", type=int, default=default.flat_steps)
    parser.add_argument("--decaying-steps", type=int, default=default.decaying_steps)
    parser.add_argument("--look-up-steps", type=int, default=default.look_up_steps)
    parser.add_argument("--tool-steps", type=int, default=default.tool_steps)
    parser.add_argument("--token-budget", type=int, default=default.token_budget)
    parser.add_argument("--gallery", type=int, default=default.gallery)
    arguments = vars(parser.parse_args())
    train(arguments.pop("out"), resume=arguments.pop("resume"), recipe=Recipe(**arguments))


if __name__ == "__main__":
    main()
