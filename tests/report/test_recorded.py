"""Results of a file beside a model: each row's prompt, ids and log probabilities, by a reference
that reads them once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.faults import write_other

import pipegen as pg
from pipegen.core.slots import Slot
from pipegen.records.plain import request_from
from pipegen.report.recorded import Recorded, verify_results

TEXTS = (
    "List the months of the year.",
    "Count from 1 to 12.",
    "Write a short story about a cat.",
    "Name three colours.",
    "What comes after A, B, C, D?",
    "Hi",
)
REQUESTS = [
    {"id": str(number), "messages": [{"role": "user", "content": text}]}
    for number, text in enumerate(TEXTS)
]


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    with pg.backends.hf("embedded", dtype="float32") as route:
        yield route


def results(route: pg.Route, **options: Any) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    slots = pg.run(route, REQUESTS, {"max_new_tokens": 16, "temperature": 0.0, **options})
    return [(str(number), slot) for number, slot in enumerate(slots)]


def judged(
    rows: list[tuple[str, Slot[pg.GenerationResult]]], reference: pg.Route, *, asked: bool = False
) -> Recorded:
    requests = {one["id"]: request_from(one) for one in REQUESTS}
    return verify_results(
        rows, "embedded", reference, requests=requests.get if asked else lambda name: None
    )


def changed(
    rows: list[tuple[str, Slot[pg.GenerationResult]]], **fields: Any
) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    return [
        (name, slot.map(lambda result: dataclasses.replace(result, **fields)))
        for name, slot in rows
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logprobs": True},
        {"temperature": 1.0, "seed": 2},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": 2},
        {"min_new_tokens": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [False, True])
def test_rows_that_the_model_made_are_right(
    options: dict[str, Any], asked: bool, embedded: pg.Route
) -> None:
    found = judged(results(embedded, **options), embedded, asked=asked)
    assert found.counts == {"right": 6}, found.rows
    assert found.right
    assert found.plain()["rows"][0]["id"] == "0"


def kinds(found: Recorded) -> set[str]:
    assert not found.right
    assert all(row.evidence for row in found.rows)
    return set(found.counts)


def test_rows_that_were_drawn_and_say_that_they_were_greedy_differ_in_sampling(
    embedded: pg.Route,
) -> None:
    rows = results(embedded, temperature=1.5, seed=1, logprobs=True)
    greedy = results(embedded)[0][1].unwrap().options
    assert kinds(judged(changed(rows, options=greedy), embedded)) <= {"right", "sampling"}
    without = judged(changed(rows, options=greedy, logprobs=None), embedded)
    assert kinds(without) <= {"right", "unknown", "weights"}


def test_rows_with_tokens_that_their_filters_leave_out_differ_in_sampling(
    embedded: pg.Route,
) -> None:
    rows = results(embedded, temperature=2.0, seed=1, logprobs=True)
    for filters in ({"top_k": 1}, {"top_p": 0.3}, {"min_p": 0.5}):
        options = results(embedded, temperature=1.2, seed=1, **filters)[0][1].unwrap().options
        found = judged(changed(rows, options=options), embedded)
        assert kinds(found) == {"right", "sampling"}, filters
        assert any(next(iter(filters)) in row.evidence for row in found.rows)


def test_rows_of_other_weights_differ_in_weights(embedded: pg.Route, tmp_path: Path) -> None:
    with pg.backends.hf(write_other("noise 0.5", tmp_path / "other"), dtype="float32") as other:
        assert kinds(judged(results(other, logprobs=True), embedded)) == {"weights"}
        assert kinds(judged(results(other), embedded)) <= {"right", "weights", "unknown"}
        assert "weights" in judged(results(other, temperature=1.0, seed=1), embedded).counts


@pytest.mark.parametrize(
    "change",
    [{"enable_thinking": True}, {"template": "{% for m in messages %}{{ m.content }}{% endfor %}"}],
    ids=str,
)
def test_rows_of_another_template_differ_in_the_template(
    change: dict[str, Any], embedded: pg.Route
) -> None:
    rows = changed(results(embedded, **change), options=results(embedded)[0][1].unwrap().options)
    assert kinds(judged(rows, embedded, asked=True)) == {"template"}
    assert judged(rows, embedded).right  # without the requests nothing is known of the template
    text = changed(results(embedded), prompt_text="another prompt")
    assert kinds(judged(text, embedded)) == {"template"}


def test_what_is_not_known_is_not_judged(embedded: pg.Route) -> None:
    rows = [
        *results(embedded, repetition_penalty=1.4)[:1],
        ("failed", pg.Failure(pg.Timeout("slow"))),
        *changed(results(embedded)[1:2], prompt_token_ids=()),
        *changed(results(embedded)[2:3], image_digests=("a",)),
        *changed(results(embedded)[3:4], token_ids=(), raw_text=""),
    ]
    found = judged([(str(number), slot) for number, (_, slot) in enumerate(rows)], embedded)
    assert found.counts["not judged"] >= 4
    assert not found.right
    assert [row.evidence for row in found.rows][:2] == [
        "it was made with repetition_penalty",
        "the row failed: Timeout: slow",
    ]
    # its log probabilities tell the weights
    assert judged(results(embedded, repetition_penalty=1.4, logprobs=True), embedded).right


def test_rows_without_ids_are_read_from_their_text(embedded: pg.Route) -> None:
    rows = changed(results(embedded), token_ids=(), prompt_token_ids=())
    text_only = [
        (name, slot.map(lambda result: dataclasses.replace(result, raw_text=result.text)))
        for name, slot in rows
    ]
    assert judged(text_only, embedded, asked=True).right


def test_rows_without_ids_whose_text_shows_their_end_are_right(embedded: pg.Route) -> None:
    assert judged(changed(results(embedded), token_ids=()), embedded).right


def test_rows_without_ids_that_a_stop_ended_within_a_token_are_right(embedded: pg.Route) -> None:
    rows = changed(results(embedded, stop=["a"], max_new_tokens=40), token_ids=())
    stopped = [
        (name, slot.map(lambda result: dataclasses.replace(result, raw_text=f"{result.text}a")))
        for name, slot in rows
        if slot.unwrap().stop == "a"
    ]
    found = judged(stopped, embedded)
    assert stopped and found.right, found.rows


def test_rows_of_a_server_that_is_sent_no_thinking_switch_are_right(embedded: pg.Route) -> None:
    unset = "{%- set enable_thinking = not_set -%}" + str(embedded.engine.renderer.template)
    rows = changed(results(embedded, template=unset), token_ids=(), prompt_token_ids=())
    # as a plain server's results have it
    chat = pg.ChatTemplateOptions(add_generation_prompt=True, continue_final_message=False)
    plain = [
        (
            name,
            slot.map(
                lambda result: dataclasses.replace(
                    result, options=dataclasses.replace(result.options, chat=chat), prompt_text=""
                )
            ),
        )
        for name, slot in rows
    ]
    assert judged(plain, embedded, asked=True).counts == {"right": 6}


def test_rows_whose_reasoning_was_taken_apart_are_judged_by_their_ids_alone(
    embedded: pg.Route,
) -> None:
    rows = changed(results(embedded), reasoning="Let me see.")
    assert judged(rows, embedded).right
    assert judged(changed(rows, token_ids=()), embedded).counts == {"not judged": 6}


def test_each_sample_of_a_row_is_judged(embedded: pg.Route) -> None:
    found = judged(results(embedded, temperature=1.0, seed=1, samples=2), embedded)
    assert [row.id for row in found.rows][:3] == ["0#0", "0#1", "1#0"]
    assert found.right


def test_tokens_drawn_at_another_temperature_show_in_all_rows_together(embedded: pg.Route) -> None:
    free = results(embedded, temperature=1.0, seed=1)[0][1].unwrap().options
    rows = [
        (f"{name}-{copy}", slot)
        for copy in range(60)
        for name, slot in changed(results(embedded), options=free)
    ]
    found = judged(rows, embedded)
    assert set(found.counts) == {"right"}
    assert not found.right
    assert found.whole.startswith("sampling: the likeliest token came")
