"""System messages and turns in a row: where a template leaves one out, nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import TemplateFailed
from pipegen.testing.fake import FakeEngine, ToyRenderer

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "From now on in French."}
DEVELOPER = {**SYSTEM, "role": "developer"}
Messages = Sequence[Mapping[str, Any]]


class Ordering(ToyRenderer):
    """Writes the messages that `kept` leaves, in its order."""

    def kept(self, messages: Messages) -> Messages:
        return messages

    def render(self, messages: Messages, **more: Any) -> str:
        return super().render(self.kept(messages), **more)


class FirstSystemOnly(Ordering):
    """As templates that read a system message in the first place and skip any other."""

    def kept(self, messages: Messages) -> Messages:
        told = ("system", "developer")
        return [*messages[:1], *(one for one in messages[1:] if one["role"] not in told)]


class SystemAhead(Ordering):
    """As templates that gather the system messages ahead of all turns."""

    def kept(self, messages: Messages) -> Messages:
        return sorted(messages, key=lambda one: one["role"] not in ("system", "developer"))


class LastInARow(Ordering):
    """Writes the last of several turns of one role."""

    def kept(self, messages: Messages) -> Messages:
        return [
            one
            for one, after in zip(messages, [*messages[1:], {"role": ""}], strict=True)
            if one["role"] != after["role"]
        ]


def asked(renderer: ToyRenderer, messages: Messages) -> Any:
    engine = FakeEngine("Yes.<|im_end|>", renderer=renderer)
    (slot,) = pg.run(pg.route(engine), [{"messages": messages}])
    return slot


def then(renderer: ToyRenderer, new: Messages, **more: Any) -> Any:
    route = pg.route(FakeEngine("Yes.<|im_end|>", renderer=renderer))
    first = pg.run(route, [{"messages": [USER]}])[0].unwrap()
    (slot,) = pg.run(route, [first.then(new, **more)])
    return slot


@pytest.mark.parametrize("told", [SYSTEM, DEVELOPER])
@pytest.mark.parametrize(
    ("renderer", "new"),
    [
        (FirstSystemOnly, [0, USER]),
        (FirstSystemOnly, [USER, 0]),
        (SystemAhead, [0, USER]),
        (SystemAhead, [USER, 0]),
        (LastInARow, [0, 0, USER]),
    ],
)
def test_a_later_turn_whose_words_are_not_behind_the_answer_is_refused(
    renderer: type[ToyRenderer], new: list[Any], told: dict[str, str]
) -> None:
    error = then(renderer(), [one or told for one in new]).failure()
    assert isinstance(error, TemplateFailed)
    assert f"does not write a turn of role {told['role']!r} behind an answer" in error.message


@pytest.mark.parametrize("told", [SYSTEM, DEVELOPER])
@pytest.mark.parametrize(
    ("messages", "row"),
    [
        ([USER, ANSWER, 0, USER], 2),
        ([{"role": "system", "content": "Be brief."}, 0, USER], 1),
        ([USER, 0], 1),
        ([USER, ANSWER, USER, ANSWER, 0, USER], 4),
    ],
)
def test_a_first_prompt_that_loses_a_system_message_is_refused(
    messages: list[Any], row: int, told: dict[str, str]
) -> None:
    whole = [one or told for one in messages]
    error = asked(FirstSystemOnly(), whole).failure()
    assert isinstance(error, TemplateFailed)
    assert f"writes nothing of messages[{row}].content" in error.message
    for renderer in (ToyRenderer(), SystemAhead()):
        assert told["content"] in asked(renderer, whole).unwrap().prompt_text


def test_the_same_is_refused_where_all_turns_are_rendered_again() -> None:
    error = then(FirstSystemOnly(), [SYSTEM, USER], history="template").failure()
    assert isinstance(error, TemplateFailed)
    assert "messages[2].content" in error.message
    moved = then(SystemAhead(), [SYSTEM, USER], history="template").unwrap()
    assert SYSTEM["content"] in moved.prompt_text
    assert moved.exact is False


def test_a_turn_in_a_row_that_is_left_out_is_refused() -> None:
    first, second = {**USER, "content": "One"}, {**USER, "content": "Two"}
    error = asked(LastInARow(), [USER, ANSWER, first, second]).failure()
    assert isinstance(error, TemplateFailed)
    assert "messages[2].content" in error.message
    error = asked(LastInARow(), [first, second]).failure()
    assert "messages[0].content" in error.message
    assert then(ToyRenderer(), [first, second]).unwrap().exact is True


def test_a_template_that_writes_them_goes_on_with_the_ids() -> None:
    done = then(ToyRenderer(), [SYSTEM, USER]).unwrap()
    assert done.exact is True
    assert SYSTEM["content"] in done.prompt_text
