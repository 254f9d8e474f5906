"""Held-out accuracy of a trained folder: `python -m training.evaluate [DIRECTORY]`, as JSON.

Greedy, fp32, thinking off unless set, on images and questions drawn from seeds that training does
not use. An answer is right if its text is exactly the wanted one and the model ended its turn
itself.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from training import conversations, image_tasks, text_tasks, tool_tasks, words as w
from training.inference import Case, Embedded
from training.scenes import GRIDS, Scene, draw, sample_scene
from training.text_tasks import Exchange
from training.vision_stage import SCALES

from pipegen.embedded import path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from PIL.Image import Image

HELD_OUT_SEED = 990_000


@dataclass(slots=True)
class Tally:
    """Right answers of one group."""

    right: int = 0
    asked: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)


def _user(question: str, images: int = 0) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "image"}] * images + [{"type": "text", "text": question}],
    }


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def text_cases(count: int) -> Iterable[Case]:
    """Text-only questions alone, under system prompts, in later turns, and with thinking on."""
    rng = random.Random(HELD_OUT_SEED)
    exact = [kind for kind in text_tasks.TASKS if kind != "chance"]
    for number in range(count):
        one = text_tasks.sample(rng, exact[number % len(exact)])
        yield Case(f"text {one.kind}", [_user(one.question)], one.answer)
    for number in range(count // 4):
        system = (w.UPPER_CASE, w.JSON_ONLY, w.HELPFUL, f"You are {rng.choice(w.NAMES)}.")[
            number % 4
        ]
        while (one := text_tasks.sample(rng)).kind == "chance" or not conversations.fits(
            system, one
        ):
            pass
        if number % 4 == 3:
            one = Exchange("smalltalk", "Who are you?", w.SELF, "")
        wanted = conversations.in_style(system, one).answer
        name = "persona" if number % 4 == 3 else system
        yield Case(
            f"system {name}", [{"role": "system", "content": system}, _user(one.question)], wanted
        )
    for number in range(count // 8):
        greeting, other = (
            text_tasks.greet_name(rng),
            text_tasks.sample(rng, rng.choice(("add", "capital", "echo"))),
        )
        last = text_tasks.recall_name(greeting) if number % 2 else text_tasks.sample(rng, "reverse")
        messages = [
            _user(greeting.question),
            _said(greeting.answer),
            _user(other.question),
            _said(other.answer),
        ]
        yield Case("turns", [*messages, _user(last.question)], last.answer)
    for number in range(count // 8):
        one = text_tasks.sample(rng, exact[number % len(exact)])
        wanted = f"<think>\n{one.thought}\n</think>\n\n{one.answer}"
        yield Case("thinking text", [_user(one.question)], wanted, thinking=True)


def tool_cases(count: int) -> Iterable[Case]:
    """Each question with tools, and every step of its way to the answer, over arguments that
    training leaves out.
    """
    rng = random.Random(HELD_OUT_SEED + 2)
    for number in range(count):
        kind, thinking = tool_tasks.KINDS[number % len(tool_tasks.KINDS)], number % 8 >= 6
        tools = tool_tasks.tools(rng)
        chat: list[dict[str, Any]] = []
        query = tool_tasks.query(rng, tools, kind, held_out=True)
        if query[0].kind == "chance":  # no one right answer
            continue
        for one in query:
            chat += tool_tasks.messages(one.question)
            wanted = f"<think>\n{one.thought}\n</think>\n\n{one.answer}" if thinking else one.answer
            name = "thinking tools" if thinking else f"tools {kind}"
            yield Case(name, [*chat], wanted, thinking=thinking, tools=tools)
            said = _said(one.answer)
            chat.append(said | ({"reasoning_content": one.thought} if thinking else {}))


def _image(scene: Scene, rng: random.Random) -> Image:
    grid, scale = rng.choice(GRIDS), rng.choice(SCALES)
    return draw(scene, round(grid[0] * scale), round(grid[1] * scale), rng)


def image_cases(count: int) -> Iterable[Case]:
    """Each image is described, detected and asked one thing more; some come in pairs or with
    thinking on.
    """
    rng = random.Random(HELD_OUT_SEED + 1)
    for number in range(count):
        scene = sample_scene(rng, number % 3 + 1)
        shown = (_image(scene, rng),)
        every = image_tasks.questions(scene, rng)
        others = [one for one in every if one.kind not in ("describe", "detect")]
        for one in (*(one for one in every if one.kind in ("describe", "detect")), others[0]):
            kept = scene if one.kind == "detect" else None
            yield Case(f"image {one.kind}", [_user(one.question, 1)], one.answer, shown, kept)
        if number % 4 == 0:
            one, then = image_tasks.describe(scene, rng), others[-1]
            wanted = f"<think>\n{one.thought}\n</think>\n\n{one.answer}"
            yield Case("thinking image", [_user(one.question, 1)], wanted, shown, thinking=True)
            turns = [_user(one.question, 1), _said(one.answer), _user(then.question)]
            yield Case("turns image", turns, then.answer, shown)
            upper = conversations.upper_case(one)
            system = {"role": "system", "content": w.UPPER_CASE}
            yield Case("system image", [system, _user(one.question, 1)], upper.answer, shown)
            pair = (sample_scene(rng, rng.randint(1, 2)), sample_scene(rng, rng.randint(1, 2)))
            one = image_tasks.pair_questions(*pair, rng)[0]
            both = (_image(pair[0], rng), _image(pair[1], rng))
            yield Case(f"images {one.kind}", [_user(one.question, 2)], one.answer, both)


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes.

    >>> overlap((0, 0, 2, 1), (1, 0, 3, 1))
    0.3333333333333333
    """
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def box_figures(pairs: Iterable[tuple[Scene, str]]) -> dict[str, float]:
    """How good the JSON answers are: do they parse, are shapes and colours right, how well do the
    boxes fit.

    Boxes are measured on answers with the right shapes and colours; `mean_iou_all` counts the
    others as zero.
    """
    valid = named = asked = 0
    to_label: list[float] = []
    to_drawn: list[float] = []
    every: list[float] = []
    for scene, text in pairs:
        asked += 1
        try:
            found = json.loads(text)["objects"]
            seen = [(one["shape"], one["color"], one["bbox_2d"]) for one in found]
        except (ValueError, KeyError, TypeError):
            every += [0.0] * len(scene)
            continue
        valid += 1
        if [one[:2] for one in seen] != [(thing.shape, thing.color) for thing in scene]:
            every += [0.0] * len(scene)
            continue
        named += 1
        fits = [overlap(one[2], thing.box) for one, thing in zip(seen, scene, strict=True)]
        to_label += fits
        every += fits
        to_drawn += [overlap(one[2], thing.drawn) for one, thing in zip(seen, scene, strict=True)]
    return {
        "valid_json": valid / asked,
        "shapes_and_colors_right": named / asked,
        "mean_iou": sum(to_label) / max(1, len(to_label)),
        "mean_iou_all": sum(every) / max(1, len(every)),
        "mean_iou_as_drawn": sum(to_drawn) / max(1, len(to_drawn)),
    }


def evaluate(model: Embedded, cases: Iterable[Case], batch: int = 32) -> dict[str, Any]:
    """Every figure, as a nested dictionary of plain numbers (and a few wrong answers to look
    at).
    """
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    tallies: dict[str, Tally] = defaultdict(Tally)
    detected: list[tuple[Scene, str]] = []
    margins: dict[str, list[float]] = defaultdict(list)
    thoughts_when_off = 0
    for group, members in groups.items():
        for start in range(0, len(members), batch):
            some = members[start : start + batch]
            for case, answer in zip(some, model.answer(some), strict=True):
                tally = tallies[group]
                tally.asked += 1
                margins["images" if case.images else "text"] += answer.margins
                thoughts_when_off += "<think>" in answer.text and not case.thinking
                if case.scene is not None:
                    detected.append((case.scene, answer.text))
                if answer.text == case.wanted and answer.ended:
                    tally.right += 1
                else:
                    asked = case.messages[-1]["content"]
                    asked = asked if isinstance(asked, str) else str(asked[-1]["text"])
                    tally.wrong.append((asked, case.wanted, answer.text))
    report: dict[str, Any] = {
        "groups": {name: [one.right, one.asked] for name, one in sorted(tallies.items())}
    }
    for total in ("text ", "image ", "system ", "turns", "thinking", "images ", "tools "):
        members_of = [one for name, one in tallies.items() if name.startswith(total)]
        if members_of:
            report[total.strip()] = sum(one.right for one in members_of) / sum(
                one.asked for one in members_of
            )
    if detected:
        report["boxes"] = box_figures(detected)
    report["thoughts_when_off"] = thoughts_when_off
    report["margins"] = {name: margin_figures(values) for name, values in margins.items()}
    report["wrong"] = {name: one.wrong[:3] for name, one in tallies.items() if one.wrong}
    return report


def margin_figures(values: Sequence[float]) -> dict[str, float]:
    """Logits between the best token and the next: median, first percentile, and the share below one
    half.
    """
    ordered = sorted(values)
    return {
        "tokens": len(ordered),
        "median": ordered[len(ordered) // 2],
        "percentile_1": ordered[len(ordered) // 100],
        "below_half": sum(value < 0.5 for value in ordered) / len(ordered),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=path())
    parser.add_argument("--text", type=int, default=680, help="number of text questions")
    parser.add_argument("--images", type=int, default=240, help="number of images")
    parser.add_argument("--tools", type=int, default=320, help="number of questions with tools")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = Embedded(arguments.directory)
    cases = (
        *text_cases(arguments.text),
        *image_cases(arguments.images),
        *tool_cases(arguments.tools),
    )
    report = evaluate(model, cases)
    print(json.dumps(report, indent=1, default=str))


if __name__ == "__main__":
    main()
