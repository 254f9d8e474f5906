"""Text on the Hugging Face path, side by side with its peers: equal lengths, and skewed ones on a
small and on a real model. Run by `nox -s bench`.

Every way of generating gets the same prompts, must make the ids (or the text) that each row makes
alone, and ends at the same lengths (`forced.py`). `python tests/programs/bench/text.py [equal] [skewed]
[real]` runs a part.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from forced import alone, closing, force, special_ids
from measure import REPEATS, paired, peaks, row, speed, waste, write
from models import embedded, smollm2
from workers import race

GROUP = "Hugging Face, text"
WORDS = (
    "sun", "moon", "star", "lake", "river", "stone", "tree", "bird", "song", "night", "road", "house",
    "door", "light", "field", "cloud", "rain", "snow", "wind", "fire", "glass", "paper", "clock", "train", "ship",
)  # fmt: skip
ARRIVAL, SORTED, THEIRS = (
    "static, arrival order",
    "static, sorted by length",
    "transformers generate_batch",
)
TOLD = "pipegen, lengths told"
LIMITS = {
    "the limit, transformers' own passes": (
        "transformers' model and cache alone: prompts padded, in full batches; needed row-steps in"
        " full batches, masked"
    ),
    "the limit, pipegen's best passes": (
        "the model alone, key heads shared, cache in place: the same passes, nothing padded, masked"
    ),
}
PROMPTS = int(os.environ.get("BENCH_PROMPTS", "96"))
IN_ORDER = {"transformers pipeline": 2.5, "ms-swift TransformersEngine": 2.5, "outlines": 2.5}


def prompt_of(length: int, tokenizer: Any, drawn: random.Random) -> str:
    """A prompt of exactly so many tokens."""
    words: list[str] = []
    while (
        count := len(tokenizer(" ".join(words), add_special_tokens=False).input_ids) if words else 0
    ) != length:
        if count > length:
            words = words[: -drawn.randint(1, min(3, len(words)))]
        words.append(drawn.choice(WORDS) if drawn.random() < 0.9 else str(drawn.randint(2, 99)))
    return " ".join(words)


def closed_prompt(
    length: int, wanted: tuple[int, ...], tokenizer: Any, drawn: random.Random
) -> tuple[str, int]:
    """A prompt of so many tokens whose last one makes an output of one of the wanted lengths, and
    which.
    """
    for _ in range(200):
        text = prompt_of(length - 1, tokenizer, drawn)
        for count in wanted:
            closed = closing(tokenizer, text, count)
            if closed is not None:
                return closed, count
    raise ValueError(f"no prompt of {length} tokens makes one of {wanted} tokens")


def work_of(
    folder: Path,
    prompt_lengths: list[int],
    wanted: list[tuple[int, ...]] | int,
    *,
    batch: int,
    threads: int,
    seed: int = 3,
) -> dict[str, Any]:
    """The work as the arms take it, with the ids that each row makes alone. `wanted` are the
    lengths each row may have, or the one at which all are cut.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    named = model.generation_config.eos_token_id
    eos, banned, drawn = (
        named if isinstance(named, list) else [named],
        special_ids(tokenizer),
        random.Random(seed),
    )
    if isinstance(wanted, int):
        prompts, lengths = (
            [prompt_of(length, tokenizer, drawn) for length in prompt_lengths],
            [wanted] * len(prompt_lengths),
        )
    else:
        made = [
            closed_prompt(length, counts, tokenizer, drawn)
            for length, counts in zip(prompt_lengths, wanted, strict=True)
        ]
        prompts, lengths = [text for text, _ in made], [count for _, count in made]
    force(model, eos, banned, counted_down=not isinstance(wanted, int))
    ids = [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts]
    answers = []
    for prompt, length in zip(ids, lengths, strict=True):
        rows = torch.tensor([prompt])
        answers.append(
            alone(model, {"input_ids": rows, "attention_mask": torch.ones_like(rows)}, length, eos)
        )
    ended = 0 if isinstance(wanted, int) else 1
    if [len(answer) + ended for answer in answers] != lengths:
        raise AssertionError("a row alone does not make as many tokens as it should")
    sizes = {"batch": batch, "threads": threads, "max_new_tokens": max(lengths), "lengths": lengths}
    sizes["blocks"] = 2 * batch * math.ceil((max(map(len, ids)) + max(lengths)) / 32)
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    forced = {"eos": eos, "banned": banned, "counted_down": bool(ended)}
    return {
        "model": str(folder),
        "prompts": prompts,
        "ids": ids,
        "answers": answers,
        "texts": texts,
        **forced,
        **sizes,
    }


def skewed(count: int, seed: int = 1) -> tuple[list[int], list[tuple[int, ...]]]:
    """Log-normal prompt lengths (median 40, sigma 0.8, at most 256); a tenth of the outputs of 128
    tokens, the others of 12 to 20.
    """
    drawn = random.Random(seed)
    prompts = [
        max(4, min(256, round(drawn.lognormvariate(math.log(40), 0.8)))) for _ in range(count)
    ]
    long = set(drawn.sample(range(count), count // 10))
    wanted = []
    for at in range(count):
        choices = [128] if at in long else list(range(12, 21))
        drawn.shuffle(choices)
        wanted.append(tuple(choices))
    return prompts, wanted


def same(work: dict[str, Any], answers: list[Any]) -> bool:
    """Whether the arm made what each row makes alone: ids, or text where it gives text (which some
    strip).
    """
    expected = work["texts"] if answers and isinstance(answers[0], str) else work["answers"]
    return [answer.strip() if isinstance(answer, str) else answer for answer in answers] == [
        answer.strip() if isinstance(answer, str) else answer for answer in expected
    ]


def compare(
    name: str, work: dict[str, Any], targets: dict[str, float], repeats: int = REPEATS
) -> list[dict[str, Any]]:
    """Rows for the arms that `targets` names, each against pipegen; and what the rows cost over
    what they need.
    """
    print(name, flush=True)
    ours = (
        {"pipegen": name, TOLD: f"{name}, each row's max_new_tokens its length"}
        if LIMITS.keys() & targets.keys()
        else {"pipegen": name}
    )
    taken, last, absent = race([*ours, *targets], work, repeats)
    needed = sum(length - 1 for length in work["lengths"])
    if not all(same(work, last[way]["answers"]) for way in ours):
        raise AssertionError(f"{name}: pipegen did not make the ids that each row makes alone")
    # as far as its rows go (one makes none), they are the rows alone, and its steps are those
    # needed
    for limit in LIMITS.keys() & last.keys():
        made = zip(work["answers"], last[limit]["answers"], strict=False)
        if (
            not all(alone[: len(ids)] == ids for alone, ids in made)
            or not 0 <= needed - last[limit]["row_steps"] < work["batch"]
        ):
            raise AssertionError(f"{name}: {limit} did not do the rows' work")
    rows = []
    for arm, target in targets.items():
        if arm in absent:
            rows.append(
                row(
                    name,
                    arm,
                    None,
                    f"at least {target:g}",
                    group=GROUP,
                    note=f"not measured: {absent[arm]}",
                )
            )
        elif arm in LIMITS:
            for way, what in ours.items():
                share, spread = paired(taken[way].wall, taken[arm].wall)
                figures = {
                    "ours": f"{statistics.median(taken[way].wall):.3g} s",
                    "theirs": f"{statistics.median(taken[arm].wall):.3g} s",
                }
                figures |= peaks(taken[way].peak, taken[arm].peak)
                rows.append(
                    row(
                        what,
                        arm,
                        share,
                        f"at least {target:g}",
                        group=GROUP,
                        spread=spread,
                        note=LIMITS[arm],
                        **figures,
                    )
                )
        else:
            note = "" if same(work, last[arm]["answers"]) else "its text differs from the row's own"
            if arm != THEIRS:
                note = "; ".join(
                    part
                    for part in (
                        note,
                        f"its row-steps over needed: {last[arm]['row_steps'] / needed:.2f}",
                    )
                    if part
                )
            rows.append(
                speed(name, arm, taken["pipegen"], taken[arm], target, group=GROUP, note=note)
            )
    return [*rows, waste(name, last["pipegen"]["row_steps"], needed, taken["pipegen"], group=GROUP)]


def equal() -> list[dict[str, Any]]:
    """Prompts of one length and outputs of one length, in batches that all end at once."""
    work = work_of(embedded(), [24] * 64, 32, batch=8, threads=1)
    return compare("equal lengths, batches of 8, embedded model", work, {ARRIVAL: 1.0})


def small() -> list[dict[str, Any]]:
    work = work_of(embedded(), *skewed(PROMPTS), batch=8, threads=1)
    targets = {
        ARRIVAL: 2.5,
        **IN_ORDER,
        SORTED: 2.0,
        "lm-eval HFLM": 2.0,
        THEIRS: 1.0,
        **dict.fromkeys(LIMITS, 0.85),
    }
    return compare("skewed lengths, embedded model", work, targets)


def real() -> list[dict[str, Any]]:
    """Beside its true rival and the limit; the static ways take minutes here."""
    work = work_of(smollm2(), *skewed(40), batch=8, threads=2)
    targets = {THEIRS: 1.15, **dict.fromkeys(LIMITS, 0.85)}
    return compare("skewed lengths, SmolLM2-135M", work, targets, repeats=min(REPEATS, 3))


PARTS = {"equal": equal, "skewed": small, "real": real}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        write(f"text-{part}", PARTS[part]())


if __name__ == "__main__":
    main()
