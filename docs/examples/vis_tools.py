"""See what a detector sees: for each image a PNG, the ground truth on the left and the prediction
on the right.

Each line of the input names an image (relative paths start at the file's folder) and its objects,
boxes in pixels of the upright image (an object's name is its `label`, or what its other members
say):

    {"image": "shapes.png", "objects": [{"shape": "circle", "color": "red", "box": [12, 12, 51,
        51]}]}

The model answers in JSON, boxes as `bbox_2d` in thousandths of the image's sides, as Qwen3-VL does.
Two plugins may help it, each by its flag: --balanced-json halts a row when its JSON is complete,
--forbid-repeated-objects keeps it from repeating an object. The second needs an engine that takes
logits processors; any other is refused before it loads. A stage of this program, between `stop` and
`trim`, leaves out what the model wrote around the JSON.

    python docs/examples/vis_tools.py --model embedded docs/examples/scenes.jsonl drawn

`drawn` then holds one PNG for each image, and results.jsonl with `text` and `raw_text`. Answers are
kept in drawn/answers.job: after a kill, the same command goes on.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image, ImageDraw, ImageFont, ImageOps

import pipegen as pg
from pipegen.records import strict_json

COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
SIDE, MARGIN, LINE = 448, 12, 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Thing:
    """An object in an image: `box` holds x1, y1, x2, y2 in pixels."""

    label: str
    box: tuple[float, float, float, float]


def plugged(
    route: pg.Route, keys: Sequence[str], *, balanced: bool = True, no_repeats: bool = True
) -> pg.Route:
    """The route with the plugins; nothing is loaded. Raises `UnsupportedPlugin` where its engine
    does not take them.
    """
    plugins = [pg.plugins.balanced_json()] if balanced else []
    plugins += [pg.plugins.forbid_repeated_objects(keys=keys)] if no_repeats else []
    return pg.attach(route, *plugins)


def json_of(text: str) -> str:
    """From the first opening bracket to the last closing one.

    >>> json_of('Here: [{"label": "cat"}]. Two more')
    '[{"label": "cat"}]'
    """
    begin = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=len(text))
    return text[begin : max(text.rfind("}"), text.rfind("]")) + 1]


def bare(decoded: pg.stages.Decoded) -> pg.stages.Decoded:
    """The stage: the JSON alone, or the whole text where there is none."""
    return dataclasses.replace(decoded, text=json_of(decoded.text) or decoded.text)


def bared(route: pg.Route) -> pg.Route:
    """The route with the stage; that of a chat server has no `stop`, and stays as it is."""
    if "stop" not in [part.name for part in route.parts]:
        return route
    return route.insert(pg.pure("bare", bare), after="stop")


def request_of(image: Path, prompt: str) -> pg.VlmGenerationRequest:
    return pg.VlmGenerationRequest(messages=[{"role": "user", "content": prompt}], images=[image])


def things_of(text: str, width: int, height: int) -> list[Thing]:
    """The objects of an answer, their boxes scaled back from the grid of 0 to 1000. Raises
    `ValueError` for an answer of another form.

    >>> things_of('Here: [{"bbox_2d": [0, 500, 1000, 250], "label": "cat"}]', 200, 100)
    [Thing(label='cat', box=(0.0, 25.0, 200.0, 50.0))]
    """
    value = strict_json.load(json_of(text))
    items = (
        next((entry for entry in value.values() if isinstance(entry, list)), [value])
        if isinstance(value, dict)
        else value
    )
    boxes = [_scaled(item, width, height) for item in items]
    return [Thing(_label(item), box) for item, box in zip(items, boxes, strict=True)]


def _label(item: dict[str, Any]) -> str:
    """Its label, or the texts among its members: a circle that is red."""
    return str(
        item.get("label")
        or " ".join(value for value in item.values() if isinstance(value, str))
        or "?"
    )


def _scaled(item: Any, width: int, height: int) -> tuple[float, float, float, float]:
    box = item.get("bbox_2d") if isinstance(item, dict) else None
    if not (
        isinstance(box, list) and len(box) == 4 and all(type(edge) in (int, float) for edge in box)
    ):
        raise ValueError(f"an object has no bbox_2d of four numbers: {item!r:.200}")
    (x1, x2), (y1, y2) = sorted(box[::2]), sorted(box[1::2])
    return x1 * width / 1000, y1 * height / 1000, x2 * width / 1000, y2 * height / 1000


def drawn(
    image: Image.Image, truth: Sequence[Thing], seen: Sequence[Thing], note: str = ""
) -> Image.Image:
    """The image twice, side by side: with the truth, and with what was seen; below them what each
    colour means.
    """
    labels = sorted({thing.label for thing in (*truth, *seen)})
    color_of = {label: COLORS[number % len(COLORS)] for number, label in enumerate(labels)}
    base = ImageOps.contain(image.convert("RGB"), (SIDE, SIDE))
    columns = (MARGIN, base.width + 2 * MARGIN)
    below = MARGIN + LINE + base.height + MARGIN
    sheet = Image.new(
        "RGB",
        (2 * base.width + 3 * MARGIN, below + LINE * (len(labels) + bool(note)) + MARGIN),
        "white",
    )
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for left, title, things in zip(
        columns, ("ground truth", "prediction"), (truth, seen), strict=True
    ):
        pen.text((left, MARGIN // 2), f"{title} ({len(things)})", fill="black", font=font)
        panel = base.copy()
        frame = ImageDraw.Draw(panel)
        scale = (base.width / image.width, base.height / image.height)
        for thing in things:
            x1, y1, x2, y2 = (edge * scale[at % 2] for at, edge in enumerate(thing.box))
            # a rim, for boxes in the colour of what they hold
            frame.rectangle((x1 - 1, y1 - 1, x2 + 1, y2 + 1), outline="white", width=5)
            frame.rectangle((x1, y1, x2, y2), outline=color_of[thing.label], width=3)
        sheet.paste(panel, (left, MARGIN + LINE))
        pen.rectangle(
            (left - 1, MARGIN + LINE - 1, left + base.width, MARGIN + LINE + base.height),
            outline="#b0b0b0",
        )
    for row, label in enumerate(labels):
        counts = [sum(thing.label == label for thing in things) for things in (truth, seen)]
        pen.rectangle(
            (MARGIN, below + LINE * row + 3, MARGIN + 14, below + LINE * row + 15),
            fill=color_of[label],
        )
        pen.text(
            (MARGIN + 24, below + LINE * row),
            f"{label}: {counts[0]} in truth, {counts[1]} predicted",
            fill="black",
            font=font,
        )
    if note:
        pen.text((MARGIN, below + LINE * len(labels)), note[:100], fill="#c00000", font=font)
    return sheet


def looked_at(
    line: dict[str, Any], folder: Path, slot: pg.Slot[pg.GenerationResult], png: Path
) -> dict[str, Any]:
    """Draw one answer into `png`, and give the line that tells of it. A failed slot is not
    drawn.
    """
    if not pg.is_ok(slot):
        return {"image": line["image"], "ok": False, "error": pg.error_to_plain(slot.failure())}
    result = slot.unwrap()
    image = ImageOps.exif_transpose(Image.open(folder / line["image"]))
    truth = [Thing(_label(thing), tuple(thing["box"])) for thing in line["objects"]]
    note, seen = "", []
    try:
        seen = things_of(result.text, image.width, image.height)
    except ValueError as refusal:  # the answer is still worth a look
        note = f"unreadable answer: {refusal}"
    drawn(image, truth, seen, note).save(png)
    boxes = [{"label": thing.label, "box": thing.box} for thing in seen]
    return {
        "image": line["image"],
        "ok": not note,
        "png": png.name,
        "note": note,
        "objects": boxes,
        "text": result.text,
        "raw_text": result.raw_text,
    }


def lines_of(path: Path) -> Iterator[Any]:
    """The values of a file of JSON Lines. Raises `ValueError`, which names the line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        try:
            if line.strip():
                yield strict_json.load(line)
        except ValueError as refusal:
            raise ValueError(f"{path}, line {number}: {refusal}") from None


@app.command(help=__doc__)
def main(
    truth: Annotated[
        Path,
        typer.Argument(help="JSON Lines of images and their objects.", exists=True, dir_okay=False),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to draw into.", file_okay=False)],
    model: Annotated[str, typer.Option(help="A local folder, a hub name, or `embedded`.")],
    backend: Annotated[
        str, typer.Option(help=f"The engine: {' or '.join(pg.backends.BACKENDS)}.")
    ] = "hf",
    prompt: Annotated[
        str, typer.Option(help="What to ask of each image.")
    ] = "Return the objects as JSON.",
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="A member that tells objects apart; may be given again. Default: bbox_2d."
        ),
    ] = None,
    balanced_json: Annotated[
        bool, typer.Option("--balanced-json", help="Halt an answer when its JSON is complete.")
    ] = False,
    forbid_repeated_objects: Annotated[
        bool,
        typer.Option("--forbid-repeated-objects", help="Keep an answer from repeating an object."),
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How long an answer may be.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Images in one batch.")] = 32,
) -> None:
    try:
        route = pg.backends.load(pg.ModelLoadConfig(model=model, backend=backend, batch_size=batch))
        attached = plugged(
            route, key or ["bbox_2d"], balanced=balanced_json, no_repeats=forbid_repeated_objects
        )
        lines = [*lines_of(truth)]
    except pg.UnsupportedPlugin as refused:
        raise typer.BadParameter(
            f"{refused.message}: {refused.hint}", param_hint="--backend"
        ) from None
    except (ValueError, ImportError, OSError, pg.CallFailed) as refusal:
        # a bad value; a missing extra; a model that cannot be read
        raise typer.BadParameter(str(refusal)) from None
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with bared(attached) as ready, (out / "results.jsonl").open("w", encoding="utf-8") as results:
        asked = ((line, request_of(truth.parent / line["image"], prompt)) for line in lines)
        slots = pg.job_keyed(
            ready,
            asked,
            out / "answers.job",
            pg.GenerationOptions(max_new_tokens=max_new_tokens),
            in_flight=4 * batch,
            version="bare 1",  # of the stage: after a change to it, another asks all images again
        )
        for number, (line, slot) in enumerate(slots):
            record = looked_at(
                line, truth.parent, slot, out / f"{number:05d}-{Path(line['image']).stem}.png"
            )
            results.write(strict_json.dump(record) + "\n")
            failed += not record["ok"]
    print(
        f"{len(lines)} images: {len(lines) - failed} drawn with what was seen, {failed} broken or"
        " unreadable",
        file=sys.stderr,
    )
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
