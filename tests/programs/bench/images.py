"""Images on the Hugging Face path, side by side with static batches and with transformers'
pipeline. Run by `nox -s bench`.

`python tests/programs/bench/images.py [skewed] [large]`: images of four sizes with outputs of skewed
lengths; 200 large images, whose preparation costs as much as the generation. The embedded model.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from forced import alone, closing, force, special_ids
from image_arms import inputs_of, opened
from measure import REPEATS, row, speed, waste, write
from PIL import Image
from text import ARRIVAL, WORDS, skewed
from training.inference import Embedded
from workers import race

import pipegen as pg
from pipegen.embedded import path as embedded_path

GROUP = "Hugging Face, images"
SIDES = ((96, 96), (128, 96), (96, 128), (128, 128))
"""Four sizes that the model takes as they are, so that every way of running it sees the same
pixels.
"""
PIPELINE = "transformers image-text-to-text pipeline"


def image(folder: Path, number: int, width: int, height: int, drawn: random.Random) -> str:
    """Shapes of colour over a gradient, as a JPEG file (PNG where it must be exact)."""
    small = Image.new("RGB", (8, 8))
    small.putdata([tuple(drawn.randrange(256) for _ in range(3)) for _ in range(64)])
    path = folder / f"{number}.{'png' if width < 200 else 'jpg'}"
    small.resize((width, height), Image.Resampling.BICUBIC).save(path)
    return str(path)


def work_of(
    folder: Path, sides: list[tuple[int, int]], wanted: list[tuple[int, ...]], *, batch: int
) -> dict[str, Any]:
    torch.set_num_threads(1)
    drawn = random.Random(7)
    paths = [
        image(folder, number, width, height, drawn) for number, (width, height) in enumerate(sides)
    ]
    embedded = Embedded(embedded_path())
    tokenizer, eos = embedded.tokenizer, [embedded.tokenizer.eos_token_id]
    banned = special_ids(tokenizer)
    force(embedded.model, eos, banned, counted_down=True)
    closings, lengths, answers = [], [], []
    for path, counts in zip(paths, wanted, strict=True):
        beginnings = (
            (f"{drawn.choice(WORDS)} {drawn.choice(WORDS)}", count)
            for _ in range(200)
            for count in counts
        )
        text, count = next(
            (closed, count)
            for begun, count in beginnings
            if (closed := closing(tokenizer, begun, count)) is not None
        )
        closings.append(text)
        lengths.append(count)
        answers.append(
            alone(embedded.model, inputs_of(embedded, [opened(path)], [text]), count, eos)
        )
    if [len(answer) + 1 for answer in answers] != lengths:
        raise AssertionError("a row alone does not make as many tokens as it should")
    sizes = {
        "batch": batch,
        "threads": 1,
        "max_new_tokens": max(lengths),
        "lengths": lengths,
        "window": len(paths),
    }
    forced = {"eos": eos, "banned": banned, "counted_down": True}
    return {
        "model": str(embedded_path()),
        "images": paths,
        "closings": closings,
        "answers": answers,
        **forced,
        **sizes,
    }


def four_sizes() -> list[dict[str, Any]]:
    """The skewed lengths of the text, over images of four sizes."""
    name = "images of four sizes, skewed lengths, embedded model"
    print(name, flush=True)
    _, wanted = skewed(64, seed=2)
    with tempfile.TemporaryDirectory() as scratch:
        work = work_of(Path(scratch), [SIDES[number % 4] for number in range(64)], wanted, batch=8)
        taken, last, absent = race(["pipegen", ARRIVAL], work, script="image_arms.py")
    if absent:
        raise RuntimeError(absent)
    for arm, run in last.items():
        if run["answers"] != work["answers"]:
            raise AssertionError(f"{arm} did not make the ids that each row makes alone")
    needed = sum(length - 1 for length in work["lengths"])
    note = f"its row-steps over needed: {last[ARRIVAL]['row_steps'] / needed:.2f}"
    rows = [speed(name, ARRIVAL, taken["pipegen"], taken[ARRIVAL], 2.0, group=GROUP, note=note)]
    return [*rows, waste(name, last["pipegen"]["row_steps"], needed, taken["pipegen"], group=GROUP)]


def same_pixels(engine: Any, processor: Any, path: str) -> bool:
    """Whether the model's processor makes the same of an image as of what pipegen makes of it, so
    that every way of running the model sees the same pixels.

    One in thirty is so narrow that the processor takes another size. Pillow 13 resizes about one in
    four in another order than older ones, and pipegen keeps the older order.
    """
    source = pg.ImageSource(data=Path(path).read_bytes())
    image = engine.prepare_image(source, pg.VlmPreprocessOptions(), 0).unwrap()
    prepared = Image.frombytes("RGB", (image.width, image.height), image.rgb)
    first, second = (
        processor(images=[seen], return_tensors="pt")["pixel_values"]
        for seen in (opened(path), prepared)
    )
    return first.shape == second.shape and torch.equal(first, second)


def side(drawn: random.Random) -> int:
    return 32 * round(2 ** drawn.uniform(9, 12) / 32)


def large() -> list[dict[str, Any]]:
    """200 images of 512 to 4,096 pixels a side; each row makes as many tokens as cost what its
    image costs.
    """
    name = "200 images of 512 to 4,096 pixels, embedded model"
    print(name, flush=True)
    count = int(os.environ.get("BENCH_IMAGES", "200"))
    drawn = random.Random(11)
    engine, embedded = pg.backends.hf(str(embedded_path())).engine, Embedded(embedded_path())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        endless = (
            image(folder, number, side(drawn), side(drawn), drawn) for number in itertools.count()
        )
        same = functools.partial(same_pixels, engine, embedded.image_processor)
        paths = list(itertools.islice(filter(same, endless), count))
        tokenizer = embedded.tokenizer
        forced = {
            "eos": [tokenizer.eos_token_id],
            "banned": special_ids(tokenizer),
            "counted_down": False,
        }
        work: dict[str, Any] = {
            "model": str(embedded_path()),
            "images": paths,
            "closings": [""] * count,
            "batch": 8,
            "threads": 1,
            "window": 64,
            **forced,
        }
        work["max_new_tokens"] = tokens = balanced(work)
        taken, last, absent = race(
            ["pipegen", PIPELINE], work, repeats=min(REPEATS, 2), script="image_arms.py"
        )
    if any(len(answer) != tokens for answer in last["pipegen"]["answers"]):
        raise AssertionError("not every row made as many tokens")
    if PIPELINE in absent:
        return [
            row(
                name,
                PIPELINE,
                None,
                "at least 1.6",
                group=GROUP,
                note=f"not measured: {absent[PIPELINE]}",
            )
        ]
    if last[PIPELINE]["answers"] != last["pipegen"]["answers"]:
        raise AssertionError("the pipeline and pipegen did not make the same ids")
    note = f"{tokens} tokens an image, the same ids"
    return [speed(name, PIPELINE, taken["pipegen"], taken[PIPELINE], 1.6, group=GROUP, note=note)]


def balanced(work: dict[str, Any]) -> int:
    """How many tokens cost as much as preparing: from static runs over 24 images with 8 and with 40
    tokens, in processor time.
    """
    seconds = []
    for tokens in (8, 40):
        part = {
            **work,
            "images": work["images"][:24],
            "closings": [""] * 24,
            "max_new_tokens": tokens,
        }
        taken, _, _ = race([ARRIVAL], part, repeats=2, script="image_arms.py")
        seconds.append(min(taken[ARRIVAL].cpu))
    step = (seconds[1] - seconds[0]) / 32
    return max(8, min(400, round((seconds[0] - 8 * step) / step)))


PARTS = {"skewed": four_sizes, "large": large}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        write(f"images-{part}", PARTS[part]())


if __name__ == "__main__":
    main()
