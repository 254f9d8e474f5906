"""What is measured on a device: each function gives lines of (what, figure, whether it is as it has
to be, or None where there is no such thing).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from device import HERE, finished, held, on_gpu, prompts, sizes

import pipegen as pg
from pipegen.backends.hf import shared_columns
from pipegen.core.errors import CallFailed

Line = tuple[str, str, bool | None]
ON = pg.StopOptions(ignore_eos=True)


def requests(
    ids: list[list[int]], tokens: int | list[int], **options: Any
) -> list[pg.TextGenerationRequest]:
    """Greedy rows of these prompts, which make so many tokens."""
    wanted = tokens if isinstance(tokens, list) else [tokens] * len(ids)
    return [
        pg.TextGenerationRequest(
            prompt_token_ids=one,
            options=pg.GenerationOptions(max_new_tokens=most, temperature=0.0, stop=ON, **options),
        )
        for one, most in zip(ids, wanted, strict=True)
    ]


def ids_of(slots: Any) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in slots]


def parity(folder: Path) -> list[Line]:
    """Rows beside others and alone, and the plain model of transformers: in float32 the same ids;
    in bfloat16 the share of equal rows, which is all where the engine is deterministic.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    lines: list[Line] = []
    ids = prompts(sizes().rows)
    for dtype in ("float32", "bfloat16"):
        with pg.backends.hf(str(folder), dtype=dtype, batch_size=sizes().rows) as route:
            together = ids_of(pg.run(route, requests(ids, sizes().tokens)))
            few = range(0, len(ids), max(1, len(ids) // 8))
            alone = [ids_of(pg.run(route, requests([ids[row]], sizes().tokens)))[0] for row in few]
            same = sum(together[row] == one for row, one in zip(few, alone, strict=True))
            lines.append(
                (
                    f"{dtype}: rows that are the same beside others and alone",
                    f"{same} of {len(alone)}",
                    same == len(alone) if dtype == "float32" else None,
                )
            )
            device = next(route.engine.computing.loaded().parameters()).device
        with pg.backends.hf(str(folder), dtype=dtype, deterministic=True) as route:
            exact = ids_of(pg.run(route, requests(ids, sizes().tokens)))
            alone = [ids_of(pg.run(route, requests([ids[row]], sizes().tokens)))[0] for row in few]
            same = sum(exact[row] == one for row, one in zip(few, alone, strict=True))
            lines.append(
                (
                    f"{dtype}, deterministic: rows that are the same beside others and alone",
                    f"{same} of {len(alone)}",
                    same == len(alone),
                )
            )
        model = auto.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
        same = 0
        for row in few:
            settings = {
                "max_new_tokens": sizes().tokens,
                "min_new_tokens": sizes().tokens,
                "do_sample": False,
                "eos_token_id": None,
                "pad_token_id": 0,
            }
            with torch.no_grad():
                out = model.generate(
                    torch.tensor([ids[row]], device=device),
                    attention_mask=torch.ones(1, len(ids[row]), device=device),
                    **settings,
                )
            same += tuple(out[0, len(ids[row]) :].tolist()) == together[row]
        lines.append(
            (
                f"{dtype}: rows that are the same as by transformers' generate",
                f"{same} of {len(alone)}",
                same == len(alone) if dtype == "float32" else None,
            )
        )
        del model
    return lines


def passes(folder: Path) -> list[Line]:
    """Passes a second of a full batch, with and without `compile=True`."""
    lines: list[Line] = []
    rates: list[float] = []
    for compiled in (False, True):
        with pg.backends.hf(
            str(folder),
            dtype="bfloat16" if on_gpu() else "float32",
            batch_size=sizes().rows,
            compile=compiled,
        ) as route:
            work = requests(prompts(sizes().rows, 32, 32), sizes().tokens)
            try:
                pg.run(route, work)[0].unwrap()  # loads, and compiles
            except (pg.BackendFailed, CallFailed) as error:
                lines.append(
                    (f"passes a second, compile={compiled}", f"not measured: {error}"[:120], None)
                )
                continue
            before, begun = route.engine.work.steps, finished()
            for _ in range(sizes().rounds):
                pg.run(route, work)
            rates.append((route.engine.work.steps - before) / (finished() - begun))
            lines.append(
                (
                    f"passes a second of {sizes().rows} rows, compile={compiled}",
                    f"{rates[-1]:.1f}",
                    None,
                )
            )
    if len(rates) == 2:
        lines.append(("with compile=True over without", f"{rates[1] / rates[0]:.2f}", None))
    return lines


def skewed(folder: Path) -> list[Line]:
    """Nine rows in ten are short and one is long: pipegen, transformers' continuous batching, and
    vLLM where it is installed.
    """
    import random

    from forced import force
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    drawn = random.Random(2)
    count, batch = sizes().skewed, sizes().rows
    lengths = [
        drawn.randint(100, 130) if number % 10 == 0 else drawn.randint(8, 20)
        for number in range(count)
    ]
    ids = [[*one, _of_class(length)] for one, length in zip(prompts(count), lengths, strict=True)]
    dtype = "bfloat16" if on_gpu() else "float32"
    lines: list[Line] = []
    with pg.backends.hf(str(folder), dtype=dtype, batch_size=batch) as route:
        told = requests(ids, lengths)
        pg.run(route, told[: 2 * batch])
        before, begun = route.engine.work, finished()
        made = [len(one) for one in ids_of(pg.run(route, told))]
        ours, after = finished() - begun, route.engine.work
        share = (after.needed_row_steps - before.needed_row_steps) / (
            after.row_steps - before.row_steps
        )
        lines += [
            (f"{count} skewed rows: pipegen", f"{ours:.2f} s", made == lengths),
            ("rows of its passes that were needed", f"{share:.3f}", share > 0.7),
        ]
        model = route.engine.computing.loaded()
        eos = list(route.engine.eos_token_ids)
        free = [
            pg.TextGenerationRequest(
                prompt_token_ids=one,
                options=pg.GenerationOptions(max_new_tokens=140, temperature=0.0),
            )
            for one in ids
        ]
        plain, model.forward = model.forward, model.forward
        force(model, eos, [], counted_down=True)
        pg.run(route, free[: 2 * batch])
        begun = finished()
        made = [len(one) for one in ids_of(pg.run(route, free))]
        forced = finished() - begun
        model.forward = plain
        lines.append(
            (
                f"{count} skewed rows whose lengths nobody is told: pipegen",
                f"{forced:.2f} s",
                made == lengths,
            )
        )
    auto: Any = AutoModelForCausalLM
    bare = (
        auto.from_pretrained(folder, dtype=getattr(torch, dtype))
        .to("cuda" if on_gpu() else "cpu")
        .eval()
    )
    force(bare, eos, [], counted_down=True)
    config: Any = GenerationConfig
    settings = config(max_new_tokens=140, do_sample=False, eos_token_id=eos, pad_token_id=0)
    bounded = ContinuousBatchingConfig(
        num_blocks=2 * batch * 8, page_size=32, max_batch_tokens=512, max_requests_per_batch=batch
    )
    try:
        bare.generate_batch(
            ids[: 2 * batch], generation_config=settings, continuous_batching_config=bounded
        )
        begun = finished()
        answers = bare.generate_batch(
            ids, generation_config=settings, continuous_batching_config=bounded
        )
        theirs = finished() - begun
        lines += [
            ("the same: transformers generate_batch", f"{theirs:.2f} s", len(answers) == count),
            ("its time over pipegen's", f"{theirs / forced:.2f}", None),
        ]
    except Exception as error:  # noqa: BLE001 - a peer that does not run is a line of the report
        lines.append(
            (
                "the same: transformers generate_batch",
                f"not measured: {type(error).__name__}: {error}"[:120],
                None,
            )
        )
    del bare
    return [*lines, *_vllm(folder, ids, lengths, dtype, ours)]


def _of_class(length: int) -> int:
    """A token after which a forced model makes so many tokens."""
    from forced import PERIOD

    return next(number for number in range(300, 1000) if number % PERIOD == length)


def _vllm(
    folder: Path, ids: list[list[int]], lengths: list[int], dtype: str, ours: float
) -> list[Line]:
    """vLLM in a process of its own, of this environment or of the one that PIPEGEN_VLLM_PYTHON
    names.
    """
    python = os.environ.get("PIPEGEN_VLLM_PYTHON") or (
        sys.executable if importlib.util.find_spec("vllm") else ""
    )
    what = "the first, told the lengths too: vLLM"
    if not python:
        return [(what, "not measured: vLLM is not installed", None)]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    work = json.dumps(
        {"model": str(folder), "ids": ids, "lengths": lengths, "dtype": dtype, "rows": sizes().rows}
    )
    done = subprocess.run(
        [python, str(HERE / "vllm_arm.py")], input=work, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return [(what, f"not measured: {done.stderr.strip()[-100:]}", None)]
    seconds = float(done.stdout.split()[-1])
    return [
        (what, f"{seconds:.2f} s", None),
        ("its time over pipegen's", f"{seconds / ours:.2f}", None),
    ]


def memory(folder: Path) -> list[Line]:
    """What is held after the same work again and again, and rows that do not fit the memory beside
    each other.
    """
    lines: list[Line] = []
    with pg.backends.hf(str(folder), dtype="float32", batch_size=sizes().rows) as route:
        work = requests(prompts(2 * sizes().rows), sizes().tokens)
        kept = []
        for _ in range(4):
            wanted = ids_of(pg.run(route, work))
            kept.append(held())
        lines.append(
            (
                "bytes held after the fourth round, over the second",
                f"{kept[3] / kept[1]:.4f}",
                kept[3] <= 1.01 * kept[1],
            )
        )
        with Full(route) as full:
            found = ids_of(pg.run(route, work))
        lines.append(
            (
                f"rows that come through where {full.words}",
                f"{sum(map(tuple.__eq__, found, wanted))} of {len(wanted)}",
                found == wanted,
            )
        )
        lines.append(
            (
                "passes that the memory was too little for",
                str(full.failures),
                full.failures > 0 or (None if on_gpu() else False),
            )
        )
        lines.append(
            (
                "tensors held after that, over before",
                f"{held() / kept[3]:.4f}",
                held() <= 1.01 * kept[3],
            )
        )
    return lines


def shared(folder: Path) -> list[Line]:
    """Rows that begin alike, with the beginning held once and with copies of it in every row."""
    lines: list[Line] = []
    head = prompts(1, sizes().shared, sizes().shared, seed=3)[0]
    ids = [head + own for own in prompts(2 * sizes().rows, 8, 32)]
    for dtype in ("float32", "bfloat16"):
        seconds, found = list[float](), list[list[tuple[int, ...]]]()
        for least, kernel in ((128, True), (math.inf, True), (128, False)):
            with (
                mock.patch.object(
                    shared_columns, "_kernel", shared_columns._kernel if kernel else _no_kernel
                ),
                pg.backends.hf(str(folder), dtype=dtype, batch_size=sizes().rows) as route,
            ):
                route.engine.computing.prefixes._held = least
                pg.run(route, requests(ids, 2))
                begun = finished()
                found.append(ids_of(pg.run(route, requests(ids, sizes().tokens))))
                seconds.append(finished() - begun)
        for other, ways in ((1, "held once and copied"), (2, "with the flash kernel and without")):
            same = sum(map(tuple.__eq__, found[0], found[other]))
            lines.append(
                (
                    f"{dtype}: rows with {len(head)} shared tokens that are the same {ways}",
                    f"{same} of {len(ids)}",
                    same == len(ids) if dtype == "float32" else None,
                )
            )
        lines += [
            (
                f"{dtype}: time {way} over held once",
                f"{seconds[other] / seconds[0]:.2f}",
                None,
            )
            for other, way in ((1, "with copies"), (2, "held once without the kernel"))
        ]
    return lines


def _no_kernel(*_: object) -> None:
    """In the place of torch's flash attention: plain products."""


class Full:
    """A device with too little memory. On a GPU the rest of it is really taken at the third pass,
    when the engine has seen how much there was; elsewhere a pass of more than two rows is told that
    there is none."""

    def __init__(self, route: pg.Route) -> None:
        self._model: Any = route.engine.computing.loaded()
        self._ballast: list[torch.Tensor] = []
        self.failures = self.passes = 0
        self.words = (
            "the memory is full" if on_gpu() else "passes of three rows fail for want of memory"
        )

    def __enter__(self) -> Full:
        plain = self._model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            if on_gpu() and self.passes == 3:
                torch.cuda.empty_cache()
                self._ballast.append(
                    torch.empty(
                        max(0, torch.cuda.mem_get_info()[0] - (32 << 20)),
                        dtype=torch.uint8,
                        device="cuda",
                    )
                )
            try:
                if not on_gpu() and kwargs["input_ids"].shape[0] > 2:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return plain(*args, **kwargs)
            except torch.OutOfMemoryError:
                self.failures += 1
                raise

        self._plain, self._model.forward = plain, forward
        return self

    def __exit__(self, *error: Any) -> None:
        self._model.forward = self._plain
        self._ballast.clear()
        if on_gpu():
            torch.cuda.empty_cache()


PROGRAMS = {program.__name__: program for program in (parity, passes, skewed, memory, shared)}
