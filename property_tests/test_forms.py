"""A structured answer has its form unless its length ended it; no other request is affected."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.forms import drawn_form, has_form

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy

pytest.importorskip("torch")
pytest.importorskip("llguidance")

SOME = settings(max_examples=max(12, settings().max_examples // 2))
LENGTH = 40


@functools.cache
def route() -> pg.Route:
    return pg.backends.hf("embedded", batch_size=4)


@functools.cache
def free(text: str) -> pg.GenerationResult:
    return pg.run(route(), [chat(text, greedy())])[0].unwrap()


def asked(form: dict[str, Any], text: str, seed: int) -> pg.GenerationRequest:
    drawn: dict[str, Any] = {"temperature": 1.5, "seed": seed} if seed else {}
    return chat(
        text, greedy(max_new_tokens=LENGTH, structured=pg.StructuredOptions(**form), **drawn)
    )


@pytest.mark.slow
@SOME
@given(st.data())
def test_an_answer_has_its_form_unless_it_ended_by_length_and_free_rows_beside_it_are_as_without(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 6))
    forms = [drawn_form(lambda most: data.draw(st.integers(0, most - 1))) for _ in range(count)]
    rows = [
        asked(form, data.draw(st.sampled_from(PROMPTS)), data.draw(st.integers(0, 3)))
        for form in forms
    ]
    slots = pg.run(
        route(),
        [row for pair in zip(rows, map(chat, PROMPTS * 2), strict=False) for row in pair],
        greedy(),
    )
    for form, slot in zip(forms, slots[::2], strict=True):
        result = slot.unwrap()
        assert (result.finish, result.completion_tokens) == (pg.Finish.LENGTH, LENGTH) or (
            result.finish is pg.Finish.EOS and has_form(result.text, form)
        )
    assert [slot.unwrap() for slot in slots[1::2]] == [free(text) for text in (PROMPTS * 2)[:count]]
    at = data.draw(st.integers(0, count - 1))
    assert pg.run(route(), [rows[at]]) == slots[2 * at : 2 * at + 1]
