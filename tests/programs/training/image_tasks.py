"""Questions about images with their one right answer, from the scene that was drawn."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from training.text_tasks import Exchange, compact_json
from training.words import COLORS, SHAPES

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from training.scenes import Scene

ORDINALS = ("first", "second")


def caption(scene: Scene) -> str:
    """The scene as one sentence, in reading order.

    >>> from training.scenes import Thing
    >>> caption((Thing("circle", "red", (0, 0, 300, 300), (0, 0, 300, 300)),))
    'A red circle at the top left.'
    """
    parts = [f"a {thing.color} {thing.shape} {thing.place}" for thing in scene]
    text = " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]
    return text[0].upper() + text[1:] + "."


def scene_json(scene: Scene) -> str:
    """The scene as JSON with boxes in thousandths, in reading order."""
    return compact_json(
        {"objects": [{"shape": t.shape, "color": t.color, "bbox_2d": list(t.box)} for t in scene]}
    )


def _seen(scene: Scene) -> str:
    return f"I see {len(scene)} shape{'s' if len(scene) > 1 else ''}."


def describe(scene: Scene, rng: random.Random) -> Exchange:
    """The whole image in words."""
    ask = rng.choice(
        ("Describe the image.", "Describe the image.", "What is in the image?", "What do you see?")
    )
    return Exchange("describe", ask, caption(scene), _seen(scene))


def detect(scene: Scene, rng: random.Random) -> Exchange:
    """The whole image as JSON with boxes."""
    ask = rng.choice(
        ("Return JSON.", "Return JSON.", "Detect all objects.", "Return the objects as JSON.")
    )
    return Exchange("detect", ask, scene_json(scene), _seen(scene))


def count(scene: Scene, rng: random.Random) -> Exchange:
    """How many shapes."""
    ask = rng.choice(("How many shapes are there?", "How many objects are in the image?"))
    return Exchange("count_shapes", ask, str(len(scene)), _seen(scene))


def yes_no(scene: Scene, rng: random.Random) -> Exchange:
    """Is this shape there? Yes and no are equally likely; half of the noes are near misses."""
    here = {(thing.color, thing.shape) for thing in scene}
    color, shape = rng.choice(sorted(here))
    if rng.random() < 0.5:
        near = [
            (c, s)
            for c in COLORS
            for s in SHAPES
            if (c == color) != (s == shape) and (c, s) not in here
        ]
        far = [
            (c, s)
            for c in COLORS
            for s in SHAPES
            if c != color and s != shape and (c, s) not in here
        ]
        color, shape = rng.choice(near if rng.random() < 0.5 else far)
    answer = "Yes." if (color, shape) in here else "No."
    return Exchange(
        "yes_no", f"Is there a {color} {shape}?", answer, f"I look for a {color} {shape}."
    )


def _single(values: Sequence[str], rng: random.Random) -> str | None:
    """A value that occurs once, so that a question about it has one answer."""
    once = [value for value, times in Counter(values).items() if times == 1]
    return rng.choice(once) if once else None


def about_one(scene: Scene, rng: random.Random) -> list[Exchange]:
    """Colour, shape and place of shapes that a single word points out."""
    found: list[Exchange] = []
    if shape := _single([thing.shape for thing in scene], rng):
        thing = next(thing for thing in scene if thing.shape == shape)
        thought = f"I look for the {shape}."
        place = thing.place[0].upper() + thing.place[1:] + "."
        found.append(Exchange("color", f"What color is the {shape}?", thing.color, thought))
        found.append(Exchange("where", f"Where is the {shape}?", place, thought))
    if color := _single([thing.color for thing in scene], rng):
        thing = next(thing for thing in scene if thing.color == color)
        found.append(
            Exchange("shape", f"What shape is {color}?", thing.shape, f"I look for {color}.")
        )
    return found


def questions(scene: Scene, rng: random.Random, yes_no_questions: int = 1) -> list[Exchange]:
    """Every kind of question that this scene allows, in random order, and as many yes-or-no
    questions as wanted.
    """
    every = [describe(scene, rng), detect(scene, rng), count(scene, rng)]
    every += [yes_no(scene, rng) for _ in range(yes_no_questions)]
    every += about_one(scene, rng)
    rng.shuffle(every)
    return every


def pair_questions(first: Scene, second: Scene, rng: random.Random) -> list[Exchange]:
    """Questions about two images shown in one request, in random order."""
    captions = (caption(first), caption(second))
    both = f"Image 1: {captions[0]} Image 2: {captions[1]}"
    which = rng.randrange(2)
    scene = (first, second)[which]
    thought = f"I look at the {ORDINALS[which]} image."
    every = [
        Exchange("pair_describe", "Describe the images.", both, "I see 2 images."),
        Exchange(
            "pair_describe", f"Describe the {ORDINALS[which]} image.", captions[which], thought
        ),
        Exchange(
            "pair_detect",
            f"Return JSON for the {ORDINALS[which]} image.",
            scene_json(scene),
            thought,
        ),
        Exchange("pair_count", "How many images are there?", "2", "I see 2 images."),
    ]
    rng.shuffle(every)
    return every
