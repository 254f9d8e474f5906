"""Stage A: one summary for each image of many folders.

A folder, with its subfolders, is a group. Its images ride in batches with those of other groups,
and come back in their own order, in one JSON line for each group. An image that is broken says so
in its own place, and its group goes on.

    python docs/examples/stage_a.py --model embedded docs/examples

With --job FOLDER finished images are kept there: after a kill, the same command goes on.

Several processes share the work: start each with the same folders, the same --world-size and a
--rank of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track

import pipegen as pg
from pipegen.records import strict_json

SYSTEM = "You describe images."
PROMPT = "Describe the image."

T = TypeVar("T")
Answer = tuple[Path, pg.Slot[pg.GenerationResult]]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Group:
    """A folder and its images, those of its subfolders too."""

    folder: Path
    images: tuple[Path, ...]


def shard(work: Sequence[T], rank: int, world_size: int) -> Sequence[T]:
    """The part of the work that is this rank's: every item is some rank's, and only one's.

    >>> [shard("abcde", rank, 2) for rank in (0, 1)]
    ['ace', 'bd']
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank takes a whole number from 0 to {world_size - 1}, not {rank}")
    return work[rank::world_size]


def request_of(image: Path, system: str, prompt: str) -> pg.VlmGenerationRequest:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    return pg.VlmGenerationRequest(id=str(image), messages=messages, images=[image])


def answers_of(
    route: pg.Route,
    images: Iterable[Path],
    system: str,
    prompt: str,
    options: pg.GenerationOptions,
    batch: int,
    job: Path | None,
) -> Iterator[Answer]:
    """Each image with its slot, in their order; kept in the job's folder, where there is one."""
    asked = ((image, request_of(image, system, prompt)) for image in images)
    if job is None:
        return pg.imap_keyed(route, asked, options, in_flight=4 * batch)
    return pg.job_keyed(route, asked, job, options, in_flight=4 * batch)


def regroup(groups: Iterable[Group], answers: Iterable[Answer]) -> Iterator[dict[str, Any]]:
    """One line for each group, as soon as its last image is there; the answers come in the order of
    the images.
    """
    answers = iter(answers)
    for group in groups:
        records = [
            record_of(image.relative_to(group.folder), slot)
            for image, slot in islice(answers, len(group.images))
        ]
        yield {"group": str(group.folder), "images": records}


def record_of(image: Path, slot: pg.Slot[pg.GenerationResult]) -> dict[str, Any]:
    if not pg.is_ok(slot):
        return {"image": image.as_posix(), "ok": False, "error": pg.error_to_plain(slot.failure())}
    return {
        "image": image.as_posix(),
        "ok": True,
        "summary": slot.unwrap().text,
        "finish": slot.unwrap().finish.value,
    }


@app.command(help=__doc__)
def main(
    folders: Annotated[
        list[Path],
        typer.Argument(help="One folder of images for each group.", exists=True, file_okay=False),
    ],
    model: Annotated[
        str, typer.Option(help="A local folder, a hub name (a Qwen3-VL, say), or `embedded`.")
    ],
    backend: Annotated[
        str, typer.Option(help=f"The engine: {' or '.join(pg.backends.BACKENDS)}.")
    ] = "hf",
    system: Annotated[str, typer.Option(help="The system text, the same for all.")] = SYSTEM,
    prompt: Annotated[str, typer.Option(help="What to ask of each image.")] = PROMPT,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How long a summary may be.")] = 256,
    min_pixels: Annotated[
        int | None,
        typer.Option(min=1, help="Enlarge smaller images to this many pixels (an area)."),
    ] = None,
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="Reduce larger images to this many pixels (an area).")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Images in one batch, of whatever groups.")
    ] = 32,
    job: Annotated[
        Path | None, typer.Option(help="A folder that keeps what is finished.", file_okay=False)
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Which share of the groups is this process's, from 0.")
    ] = 0,
    world_size: Annotated[
        int, typer.Option(min=1, help="How many processes share the groups.")
    ] = 1,
) -> None:
    try:
        load = pg.ModelLoadConfig(model=model, backend=backend, batch_size=batch)
        options = pg.GenerationOptions(
            max_new_tokens=max_new_tokens,
            preprocess=pg.VlmPreprocessOptions(min_pixels=min_pixels, max_pixels=max_pixels),
            decode=pg.DecodeOptions(strip_whitespace=True),
        )
        groups = [
            Group(folder, tuple(pg.images_in(folder)))
            for folder in shard(folders, rank, world_size)
        ]
        images = [image for group in groups for image in group.images]
        route = pg.backends.load(load)
        slots = answers_of(route, images, system, prompt, options, batch, job)
    except (ValueError, ImportError, OSError, pg.CallFailed, pg.JournalError) as refusal:
        # a bad value; a missing extra; an unreadable model or folder
        raise typer.BadParameter(str(refusal)) from None
    failed = 0
    with route:
        console = Console(stderr=True)
        answers = track(
            slots, "images", len(images), console=console, disable=not console.is_terminal
        )
        for line in regroup(groups, answers):
            print(strict_json.dump(line), flush=True)
            failed += sum(not image["ok"] for image in line["images"])
    print(
        f"{len(images)} images in {len(groups)} groups: {len(images) - failed} summaries, {failed}"
        " failed",
        file=sys.stderr,
    )
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
