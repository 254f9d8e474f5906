"""Training conversations: exchanges, a system prompt, images, and the styles a system prompt may
ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from training import image_tasks, text_tasks, tool_tasks, words as w
from training.text_tasks import Exchange, compact_json

if TYPE_CHECKING:
    import random

    from training.scenes import Scene

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
"""An image in a rendered chat; the middle token is repeated once per feature of the image."""

_NEVER_UPPER = {"detect", "pair_detect", "make_json", "long_text", "list", "continue"}
_NEVER_JSON = {"long_text"}
_ALREADY_JSON = {"detect", "pair_detect", "make_json"}


@dataclass(frozen=True, slots=True)
class Turn:
    """A question with the images in front of it (numbers of scenes), and its answer.

    With `continues` the question is what tools gave: it belongs to the query before it.
    """

    exchange: Exchange
    images: tuple[int, ...] = ()
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of one chat. `thinking` says whether the answers to the last query come after
    thoughts.
    """

    system: str | None
    turns: tuple[Turn, ...]
    thinking: bool


def upper_case(exchange: Exchange) -> Exchange:
    """The answer to give under `words.UPPER_CASE`."""
    return replace(exchange, answer=exchange.answer.upper())


def json_only(exchange: Exchange, scene: Scene | None) -> Exchange:
    """The answer to give under `words.JSON_ONLY`: a scene is listed, all else is wrapped."""
    if exchange.kind in _ALREADY_JSON:
        return exchange
    if exchange.kind == "describe" and scene is not None:
        return replace(exchange, answer=image_tasks.scene_json(scene))
    return replace(exchange, answer=compact_json({"answer": exchange.answer}))


def fits(system: str | None, exchange: Exchange) -> bool:
    """Does this question occur under this system prompt? (No JSON in capitals, no poem in JSON.)"""
    refused = (
        _NEVER_UPPER if system == w.UPPER_CASE else _NEVER_JSON if system == w.JSON_ONLY else set()
    )
    return exchange.kind not in refused


def in_style(system: str | None, exchange: Exchange, scene: Scene | None = None) -> Exchange:
    """The exchange as the system prompt wants it."""
    if system == w.UPPER_CASE:
        return upper_case(exchange)
    if system == w.JSON_ONLY:
        return json_only(exchange, scene)
    if (
        system
        and system.startswith("You are ")
        and exchange.question == "Who are you?"
        and system != w.HELPFUL
    ):
        return replace(exchange, answer=f"I am {system.removeprefix('You are ')}")
    return exchange


def sample_system(rng: random.Random) -> str | None:
    """A system prompt, or none (mostly)."""
    draw = rng.random()
    if draw < 0.60:
        return None
    if draw < 0.72:
        return w.HELPFUL
    if draw < 0.84:
        return w.UPPER_CASE
    if draw < 0.94:
        return w.JSON_ONLY
    return f"You are {rng.choice(w.NAMES)}."


def _text_exchange(system: str | None, rng: random.Random) -> Exchange:
    while not fits(system, exchange := text_tasks.sample(rng)):
        pass
    return exchange


def text_conversation(rng: random.Random) -> Conversation:
    """One to four text-only turns."""
    system = sample_system(rng)
    count = rng.choice((1, 1, 2, 3, 4))
    exchanges = [_text_exchange(system, rng) for _ in range(count)]
    if system and system.startswith("You are ") and rng.random() < 0.5:
        exchanges[-1] = Exchange("smalltalk", "Who are you?", w.SELF, "I answer the user.")
    if rng.random() < 0.06:
        greeting = text_tasks.greet_name(rng)
        exchanges = [greeting, *exchanges[: rng.randint(0, 2)], text_tasks.recall_name(greeting)]
    turns = tuple(Turn(in_style(system, exchange)) for exchange in exchanges)
    return Conversation(system, turns, rng.random() < 0.25)


def image_conversation(
    scenes: tuple[Scene, ...], rng: random.Random, yes_no_questions: int = 1
) -> Conversation:
    """Turns about one image; or about two, shown together or one after the other.

    Mostly the first image only: two are used in one conversation of five.
    """
    system = sample_system(rng)
    draw = rng.random()
    turns: list[Turn] = []
    first = scenes[0]

    def ask(
        exchanges: list[Exchange], images: tuple[int, ...], count: int, scene: Scene | None
    ) -> None:
        """Add turns; the images stand before the first question."""
        for exchange in [one for one in exchanges if fits(system, one)][:count]:
            turns.append(Turn(in_style(system, exchange, scene), images))
            images = ()

    if len(scenes) > 1 and draw < 0.14:
        ask(image_tasks.pair_questions(scenes[0], scenes[1], rng), (0, 1), rng.randint(1, 3), None)
    elif len(scenes) > 1 and draw < 0.20:
        for image, scene in enumerate(scenes[:2]):
            ask(image_tasks.questions(scene, rng), (image,), rng.randint(1, 3), scene)
    else:
        ask(
            image_tasks.questions(first, rng, yes_no_questions),
            (0,),
            rng.choice((1, 2, 4, 6)),
            first,
        )
        if rng.random() < 0.05:
            exchange = _text_exchange(system, rng)
            if exchange.kind not in ("no_image", "long_text"):
                turns.append(Turn(in_style(system, exchange)))
    return Conversation(system, tuple(turns), rng.random() < 0.15)


def tool_conversation(rng: random.Random) -> Conversation:
    """One to eight queries with tools at hand."""
    draw = rng.random()
    system = (
        None
        if draw < 0.55
        else w.HELPFUL
        if draw < 0.75
        else w.CALL_TOOLS
        if draw < 0.9
        else f"You are {rng.choice(w.NAMES)}."
    )
    tools = tool_tasks.tools(rng)
    turns: list[Turn] = []
    for _ in range(rng.choice((1, 3, 5, 8))):
        kind = rng.choices(tool_tasks.KINDS, (3, 3, 5, 2))[0]
        for number, exchange in enumerate(tool_tasks.query(rng, tools, kind)):
            turns.append(Turn(in_style(system, exchange), continues=number > 0))
    return Conversation(tool_tasks.system_text(system, tools), tuple(turns), rng.random() < 0.2)


def render(
    conversation: Conversation, features: tuple[int, ...], every_turn_marked: bool
) -> list[tuple[str, bool]]:
    """The chat as pieces of text, each with whether it is to be learnt.

    The same text as the chat template gives: the thought block stands in the answers to the last
    query only. With `every_turn_marked` the earlier answers get an empty one too, which the template
    would not write: their first tokens can then be learnt as well, since the model sees that
    thinking is off.
    `features` holds how many features each image has.
    """
    pieces: list[tuple[str, bool]] = []
    if conversation.system is not None:
        pieces.append((f"<|im_start|>system\n{conversation.system}<|im_end|>\n", False))
    last = len(conversation.turns) - 1
    query = max(number for number, turn in enumerate(conversation.turns) if not turn.continues)
    for number, turn in enumerate(conversation.turns):
        images = "".join(
            IMAGE.replace("<|image_pad|>", "<|image_pad|>" * features[p]) for p in turn.images
        )
        pieces.append(
            (
                f"<|im_start|>user\n{images}{turn.exchange.question}<|im_end|>\n<|im_start|>assistant\n",
                False,
            )
        )
        learn = number == last or every_turn_marked
        if conversation.thinking and number >= query:
            learn = True
            pieces.append((f"<think>\n{turn.exchange.thought}\n</think>\n\n", True))
        elif learn:
            pieces.append(("<think>\n\n</think>\n\n", False))
        pieces.append((f"{turn.exchange.answer}<|im_end|>", learn))
        pieces.append(("\n", False))
    return pieces
