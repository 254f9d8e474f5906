"""The training data: every question has one answer, and is written as the chat template writes
it.
"""

from __future__ import annotations

import json
import random

import pytest
from training import conversations, image_tasks, text_tasks, words as w
from training.conversations import Conversation, Turn
from training.scenes import Thing, draw, sample_scene


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shapes_of_a_scene_are_apart_and_in_reading_order(count: int) -> None:
    rng = random.Random(count)
    for _ in range(50):
        scene = sample_scene(rng, count)
        assert len({thing.third for thing in scene}) == count
        assert [thing.third for thing in scene] == sorted(thing.third for thing in scene)
        assert all(0 <= edge <= 1000 and edge % 100 == 0 for thing in scene for edge in thing.box)


def test_a_scene_is_drawn_where_its_box_says() -> None:
    scene = (Thing("square", "red", (100, 600, 400, 900), (100.0, 600.0, 400.0, 900.0)),)
    image = draw(scene, 100, 100, random.Random(3))
    inside, outside = image.getpixel((25, 75)), image.getpixel((75, 25))
    assert isinstance(inside, tuple)
    assert isinstance(outside, tuple)
    assert inside[0] > inside[1] + 100
    assert max(outside) - min(outside) == 0


def test_a_seed_gives_the_same_data_again() -> None:
    def draw_some(seed: int) -> list[object]:
        rng = random.Random(seed)
        return [text_tasks.sample(rng), sample_scene(rng, 3), conversations.text_conversation(rng)]

    assert draw_some(5) == draw_some(5)


def test_a_question_has_one_answer() -> None:
    rng, answers = random.Random(1), dict[str, str]()
    for _ in range(5000):
        exchange = text_tasks.sample(rng)
        if exchange.kind != "chance":
            assert answers.setdefault(exchange.question, exchange.answer) == exchange.answer


def test_the_odds_of_chance_are_clear_cut_and_sum_to_one() -> None:
    for odds in text_tasks.CHANCES.values():
        first, second, *_ = sorted(odds.values(), reverse=True)
        assert first > 1.5 * second
        assert sum(odds.values()) == pytest.approx(1.0)


def test_every_json_answer_parses() -> None:
    rng = random.Random(2)
    for _ in range(200):
        scene = sample_scene(rng, rng.randint(1, 3))
        found = json.loads(image_tasks.detect(scene, rng).answer)
        assert [tuple(one["bbox_2d"]) for one in found["objects"]] == [thing.box for thing in scene]
        exchange = conversations.in_style(w.JSON_ONLY, text_tasks.capital(rng))
        assert set(json.loads(exchange.answer)) == {"answer"}


def test_yes_and_no_are_both_common() -> None:
    rng = random.Random(4)
    answers = [image_tasks.yes_no(sample_scene(rng, 2), rng).answer for _ in range(400)]
    assert 150 < answers.count("Yes.") < 250


def test_a_persona_answers_with_its_name() -> None:
    who = text_tasks.Exchange("smalltalk", "Who are you?", w.SELF, "")
    assert conversations.in_style("You are Anna.", who).answer == "I am Anna."
    assert conversations.in_style(w.HELPFUL, who).answer == w.SELF
    assert conversations.in_style(w.UPPER_CASE, who).answer == w.SELF.upper()


def test_only_the_last_answer_carries_the_thought_block() -> None:
    one = text_tasks.Exchange("hello", "Hi", "Hello!", "I greet.")
    chat = Conversation(None, (Turn(one), Turn(one)), thinking=True)
    text = "".join(piece for piece, _ in conversations.render(chat, (), every_turn_marked=False))
    assert text.count("<think>") == 1
    assert text.endswith("<think>\nI greet.\n</think>\n\nHello!<|im_end|>\n")
