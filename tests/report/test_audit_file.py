"""Results of a file beside a model: each row's prompt, ids and log probabilities, by a reference
that reads them once.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.faults import write_other
from support.wrong_server import ModelServer
from toolz import dissoc

import pipegen as pg
from pipegen.core.slots import Slot
from pipegen.io.jsonl import from_plain, to_plain
from pipegen.io.results_in import results_in
from pipegen.records import strict_json
from pipegen.records.parse_request import request_from
from pipegen.report.audit_file import Recorded, verify_results

TEXTS = (
    *("List the months of the year.", "Count from 1 to 12.", "Write a short story about a cat."),
    *("Name three colours.", "What comes after A, B, C, D?", "Hi"),
)
REQUESTS = [
    {"id": str(number), "messages": [{"role": "user", "content": text}]}
    for number, text in enumerate(TEXTS)
]


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    with pg.backends.hf("embedded", dtype="float32") as route:
        yield route


KEPT: dict[str, tuple[pg.Route, list[tuple[str, Slot[pg.GenerationResult]]]]] = {}
"""What a route answered, for the tests that ask it the same. Slots are never changed."""


def answered(
    route: pg.Route, requests: list[dict[str, Any]], options: dict[str, Any]
) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    key = f"{id(route)} {requests} {options}"
    if key not in KEPT:  # with the route, whose id no other can have then
        slots = pg.run(route, requests, options)
        KEPT[key] = route, [(str(number), slot) for number, slot in enumerate(slots)]
    return [*KEPT[key][1]]


def results(route: pg.Route, **options: Any) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    return answered(route, REQUESTS, {"max_new_tokens": 16, "temperature": 0.0, **options})


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
        {"logprobs": "processed", "temperature": 0.6, "top_k": 5, "seed": 2},
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
        found = kinds(judged(results(other, logprobs=True), embedded))
        assert "weights" in found
        assert found <= {"weights", "unknown"}
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
    assert kinds(judged(text, embedded, asked=True)) == {"template"}


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


def test_an_id_that_the_model_does_not_have_is_a_fault(embedded: pg.Route) -> None:
    found = judged(changed(results(embedded), token_ids=(5, 10**6)), embedded)
    assert found.counts == {"unknown": 6}
    assert "1000000" in found.rows[0].evidence


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


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1, "samples": 2}], ids=str)
def test_an_id_with_a_number_sign_is_that_of_its_request(
    options: dict[str, Any], embedded: pg.Route
) -> None:
    request = request_from({**REQUESTS[0], "id": "a#1"})
    rows = changed(results(embedded, **options)[:1], prompt_token_ids=())
    rows = [
        (
            "a#1",
            slot.map(
                lambda one: dataclasses.replace(
                    one,
                    samples=tuple(
                        dataclasses.replace(each, prompt_token_ids=()) for each in one.samples
                    ),
                )
            ),
        )
        for _, slot in rows
    ]
    found = verify_results(rows, "embedded", embedded, requests={"a#1": request}.get)
    assert set(found.counts) == {"right"}, found.rows


def asked_again(
    route: pg.Route, count: int = 40, **options: Any
) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    """One prompt, asked many times, each time with another seed."""
    requests = [
        {
            "messages": [{"role": "user", "content": "Write a short story about a cat."}],
            "options": {"seed": number},
        }
        for number in range(count)
    ]
    return answered(route, requests, {"max_new_tokens": 16, **options})


def without_seeds(
    rows: list[tuple[str, Slot[pg.GenerationResult]]],
) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    """The rows, which do not name their seeds."""
    return [(name, slot.map(without_seed)) for name, slot in rows]


def without_seed(result: pg.GenerationResult) -> pg.GenerationResult:
    return dataclasses.replace(
        result,
        options=dataclasses.replace(result.options, seed=None),
        samples=tuple(without_seed(sample) for sample in result.samples),
    )


HOW: list[dict[str, Any]] = [
    *({"temperature": temperature} for temperature in (0.0, 1e-6, 0.7, 1.0, 1.3)),
    {"temperature": 1e-4, "top_p": 0.5},
    *({"temperature": 1.0, **filters} for filters in ({"top_p": 0.5}, {"top_k": 5})),
    *({"temperature": 1.0, **filters} for filters in ({"min_p": 0.1}, {"top_k": 50, "top_p": 0.9})),
    {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.0, "samples": 2},
    {"temperature": 1.0, "min_new_tokens": 12, "stop": ["cat"]},
]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_right_rows_of_one_prompt_that_is_asked_often_are_right(
    options: dict[str, Any], embedded: pg.Route
) -> None:
    rows, known = asked_again(embedded, **options), "repetition_penalty" not in options
    for made in (rows, without_seeds(rows)):
        found = judged(made, embedded)
        assert (set(found.counts), found.whole) == ({"right" if known else "not judged"}, "")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"temperature": 1.3}, {"temperature": 0.7}),
        ({"temperature": 0.7}, {"temperature": 1.3}),
        ({"temperature": 0.0}, {"temperature": 0.7}),
        ({"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0}),
        ({"temperature": 1.0, "top_k": 2}, {"temperature": 1.0}),
        ({"temperature": 1.0, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.95}),
        ({"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_k": 5}),
        ({"temperature": 1.0, "min_p": 0.6}, {"temperature": 1.0, "min_p": 0.05}),
    ],
    ids=str,
)
def test_tokens_drawn_otherwise_than_the_options_say_show_in_all_rows_together(
    made: dict[str, Any], said: dict[str, Any], embedded: pg.Route
) -> None:
    options = without_seeds(asked_again(embedded, 1, **said))[0][1].unwrap().options
    found = judged(changed(asked_again(embedded, 60, **made), options=options), embedded)
    assert not found.right
    assert found.whole.startswith("sampling: tokens drawn with temperature=") or (
        set(found.counts) & {"unknown", "sampling"}
    )


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.3},
        {"temperature": 1.3},
    ],
    ids=str,
)
def test_rows_that_are_not_what_their_seeds_give_are_found(
    options: dict[str, Any], embedded: pg.Route
) -> None:
    rows = asked_again(embedded, **options)
    other = [
        changed([row], options=said.unwrap().options)[0]
        for row, (_, said) in zip(rows, rows[7:] + rows[:7], strict=True)
    ]
    found = judged(other, embedded)
    assert not found.right
    assert "rows, drawn again with their seeds, have other tokens" in found.whole


def test_rows_with_one_seed_are_one_draw_and_no_evidence(embedded: pg.Route) -> None:
    with pg.backends.hf("embedded", dtype="bfloat16") as coarse:
        requests = [{"prompt": "A cat is", "options": {"seed": 7}}] * 40
        slots = pg.run(coarse, requests, {"max_new_tokens": 16, "temperature": 1.0})
        rows = [(str(number), slot) for number, slot in enumerate(slots)]
    assert len({slot.unwrap().token_ids for _, slot in rows}) == 1
    assert verify_results(rows, "embedded", embedded, precision="bfloat16").right


def test_thoughts_that_were_ended_are_no_fault(embedded: pg.Route) -> None:
    rows = results(embedded, enable_thinking=True, max_thinking_tokens=3, max_new_tokens=24)
    assert any(slot.unwrap().forced for _, slot in rows)
    assert judged(rows, embedded, asked=True).counts == {"right": 6}


def test_the_last_of_several_rounds_has_another_prompt_than_its_request(
    embedded: pg.Route,
) -> None:
    def go_on(result: pg.GenerationResult) -> Any:
        return result.then("And now?")

    pipe = pg.repeat(embedded, go_on, limit=2)
    slots = pg.run(pipe, REQUESTS[:2], {"max_new_tokens": 8})
    rows = [(str(number), slot) for number, slot in enumerate(slots)]
    assert all(len(slot.unwrap().rounds) == 2 for _, slot in rows)
    assert judged(rows, embedded, asked=True).right


def written(
    rows: list[tuple[str, Slot[pg.GenerationResult]]], file: Path
) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    """The rows as they come back from a file."""
    if file.suffix == ".jsonl":
        lines = [strict_json.dump(to_plain(slot, name)) for name, slot in rows]
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    else:
        pytest.importorskip("pyarrow")
        pg.write_table(file, [({"id": name}, slot) for name, slot in rows])
    return [(str(values["id"]), from_plain(dissoc(values, "row"))) for values in results_in(file)]


shout = pg.Plugin(name="shout", trim=lambda text: text.strip(" .,").partition("\n")[0])
RIGHT: list[tuple[dict[str, Any], tuple[pg.Plugin, ...]]] = [
    ({"stop": ["a", "7"], "max_new_tokens": 24}, ()),
    ({"stop": {"stop_token_ids": [11, 13]}, "max_new_tokens": 24}, ()),
    ({"decode": {"strip_whitespace": True, "skip_special_tokens": False}}, ()),
    ({"temperature": 1.0, "seed": 3, "samples": 3}, ()),
    ({"on_overflow": "clip", "max_new_tokens": 4000, "stop": ["."]}, ()),
    ({"max_new_tokens": 40}, (shout,)),
    ({"structured": {"choice": ["red", "blue"]}, "logprobs": True}, (shout,)),
    ({"structured": {"json_schema": {"type": "object"}}, "max_new_tokens": 12}, ()),
    ({"enable_thinking": True, "max_thinking_tokens": 3, "logprobs": True}, ()),
    ({"enable_thinking": True, "max_thinking_tokens": 4, "samples": 2, "temperature": 1.0}, ()),
]


def named(value: dict[str, Any] | tuple[pg.Plugin, ...]) -> str:
    return str(value) if isinstance(value, dict) else " ".join(plugin.name for plugin in value)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("options", "plugins"), RIGHT, ids=named)
def test_right_rows_of_a_file_obey_their_requests(
    options: dict[str, Any],
    plugins: tuple[pg.Plugin, ...],
    suffix: str,
    embedded: pg.Route,
    tmp_path: Path,
) -> None:
    if "structured" in options:
        pytest.importorskip("llguidance")
    rows = results(pg.attach(embedded, *plugins) if plugins else embedded, **options)
    found = judged(written(rows, tmp_path / f"rows{suffix}"), embedded, asked=True)
    assert set(found.counts) <= {"right", "not judged"}, found.rows
    assert not found.whole


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_log_probabilities_of_any_file_are_judged(
    suffix: str, embedded: pg.Route, tmp_path: Path
) -> None:
    def moved(result: pg.GenerationResult) -> pg.GenerationResult:
        logprobs = [
            dataclasses.replace(token, logprob=token.logprob - 1.5)
            for token in result.logprobs or ()
        ]
        return dataclasses.replace(result, logprobs=tuple(logprobs))

    rows = results(embedded, logprobs=True)
    right = judged(written(rows, tmp_path / f"right{suffix}"), embedded)
    assert (right.counts, right.spread is None) == ({"right": 6}, False)
    rows = [(name, slot.map(moved)) for name, slot in rows]
    assert judged(written(rows, tmp_path / f"moved{suffix}"), embedded).counts == {"weights": 6}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_seeds_of_any_file_are_tried_again(suffix: str, embedded: pg.Route, tmp_path: Path) -> None:
    rows = asked_again(embedded, temperature=0.7)
    other = [
        changed([row], options=next_row.unwrap().options)[0]
        for row, (_, next_row) in zip(rows, rows[7:] + rows[:7], strict=True)
    ]
    found = judged(written(other, tmp_path / f"rows{suffix}"), embedded)
    assert "rows, drawn again with their seeds, have other tokens" in found.whole


def test_samples_of_a_file_without_options_are_not_taken_for_greedy(
    embedded: pg.Route, tmp_path: Path
) -> None:
    def silent(result: pg.GenerationResult) -> pg.GenerationResult:
        samples = [
            dataclasses.replace(one, options=pg.GenerationOptions()) for one in result.samples
        ]
        return dataclasses.replace(result, options=pg.GenerationOptions(), samples=tuple(samples))

    rows = results(embedded, temperature=1.0, seed=3, samples=3)
    file = written([(name, slot.map(silent)) for name, slot in rows], tmp_path / "rows.jsonl")
    assert {*judged(file, embedded).counts} == {"not judged"}


def in_rounds(route: pg.Route, **options: Any) -> list[tuple[str, Slot[pg.GenerationResult]]]:
    """Conversations of two answers."""
    asked = [{**request, "turns": ["And now?"]} for request in REQUESTS[:2]]
    return answered(pg.turns(route), asked, {"max_new_tokens": 48, **options})


def with_part(
    result: pg.GenerationResult, name: str, place: int, **changes: Any
) -> pg.GenerationResult:
    """With one of its rounds or samples changed."""
    parts = [*getattr(result, name)]
    parts[place] = dataclasses.replace(parts[place], **changes)
    return dataclasses.replace(result, **{name: tuple(parts)})


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3, "samples": 2, "logprobs": True},
        {"temperature": 0.0, "stop": ["a", "7"]},
    ],
    ids=str,
)
def test_right_rounds_are_right(
    options: dict[str, Any], suffix: str, embedded: pg.Route, tmp_path: Path
) -> None:
    rows = in_rounds(embedded, **options)
    found = judged(written(rows, tmp_path / f"rows{suffix}"), embedded, asked=True)
    assert found.right, found
    if suffix == ".jsonl":
        assert set(found.counts) == {"right"}
    else:  # tables have the texts of rounds alone
        assert set(found.counts) == {"right", "not judged"}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("text", {"text": "Rome."}),
        ("text", {"text": "Rome.", "raw_text": "Rome.<|im_end|>"}),
        ("length", {"finish": pg.Finish.LENGTH}),
        ("weights", {"text": "e", "raw_text": "e", "token_ids": (68,), "completion_tokens": 1}),
    ],
    ids=str,
)
def test_a_round_that_was_changed_is_a_fault(
    kind: str, changes: dict[str, Any], embedded: pg.Route, tmp_path: Path
) -> None:
    """An earlier one by what it is, and the last one since the row is another."""

    def wrong(place: int) -> list[tuple[str, str]]:
        rows = [
            (name, slot.map(lambda one: with_part(one, "rounds", place, **changes)))
            for name, slot in in_rounds(embedded, temperature=0.0)
        ]
        found = judged(written(rows, tmp_path / "rows.jsonl"), embedded)
        return [(row.id, row.verdict) for row in found.rows if row.verdict != "right"]

    assert wrong(0) == [("0 round 1", kind), ("1 round 1", kind)]
    assert wrong(1) == [("0", "text"), ("1", "text")]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "changes",
    [{"text": "Rome."}, {"raw_text": "Rome.<|im_end|>"}, {"token_ids": (5, 6, 7)}],
    ids=str,
)
def test_a_row_of_samples_is_that_of_its_first_sample(
    changes: dict[str, Any], suffix: str, embedded: pg.Route, tmp_path: Path
) -> None:
    rows = changed(results(embedded, temperature=1.0, seed=3, samples=2), **changes)
    found = judged(written(rows, tmp_path / f"rows{suffix}"), embedded)
    assert not found.right
    assert len([row for row in found.rows if row.verdict not in ("right", "not judged")]) == 6


def test_a_stop_that_was_not_asked_for_ends_nothing(embedded: pg.Route, tmp_path: Path) -> None:
    for options in ({}, {"stop": ["xyz"]}):
        rows = changed(results(embedded, **options), finish=pg.Finish.STOP_STRING, stop="zzz")
        found = judged(written(rows, tmp_path / "rows.jsonl"), embedded, asked=True)
        assert found.counts == {"length": 6}
        assert "the stop 'zzz' ended it" in found.rows[0].evidence


def shortened(result: pg.GenerationResult) -> pg.GenerationResult:
    """Cut after three tokens, as a server does that has another limit than was asked."""
    text = result.raw_text[:3]
    return dataclasses.replace(
        result,
        text=text,
        raw_text=text,
        token_ids=result.token_ids[:3],
        completion_tokens=3,
        finish=pg.Finish.LENGTH,
    )


CHANGED: dict[str, tuple[str, Callable[[pg.GenerationResult], pg.GenerationResult]]] = {
    "upper case": ("text", lambda one: dataclasses.replace(one, text=one.text.upper())),
    "stripped": ("text", lambda one: dataclasses.replace(one, text=one.text.strip(" .!"))),
    "first letter": ("text", lambda one: dataclasses.replace(one, text=one.text[1:])),
    "finish": ("length", lambda one: dataclasses.replace(one, finish=pg.Finish.LENGTH)),
    "fewer tokens": ("length", shortened),
    "count": ("length", lambda one: dataclasses.replace(one, completion_tokens=99)),
}


@pytest.mark.parametrize("fault", CHANGED)
def test_rows_that_do_not_obey_their_requests_are_named_by_what_is_wrong(
    fault: str, embedded: pg.Route, tmp_path: Path
) -> None:
    kind, change = CHANGED[fault]
    rows = results(embedded, max_new_tokens=64)
    wrong = written([(name, slot.map(change)) for name, slot in rows], tmp_path / "rows.jsonl")
    found = judged(wrong, embedded)
    same = {name for (name, slot), (_, one) in zip(rows, wrong, strict=True) if slot == one}
    assert len(same) < len(rows)
    for row in found.rows:
        assert row.verdict == ("right" if row.id in same else kind), row


def test_completions_that_are_too_few_are_named(embedded: pg.Route) -> None:
    rows = results(embedded, temperature=1.0, seed=3, samples=3)
    fewer = [
        (name, slot.map(lambda one: dataclasses.replace(one, samples=one.samples[:2])))
        for name, slot in rows
    ]
    found = judged(fewer, embedded)
    assert found.counts == {"length": 6}
    assert found.rows[0].evidence == "2 answers came, and 3 were asked"


def test_a_row_that_the_reference_does_not_score_is_named_if_it_does_not_obey(
    embedded: pg.Route,
) -> None:
    rows = changed(results(embedded), image_digests=("a",), completion_tokens=99)
    assert judged(rows, embedded).counts == {"length": 6}


@pytest.mark.parametrize("dialect", ["vllm", "plain"])
@pytest.mark.parametrize(
    "options", [{}, {"stop": ["a"]}, {"max_new_tokens": 5}, {"decode": {"strip_whitespace": True}}]
)
def test_right_rows_of_a_chat_server_obey_and_faults_of_it_are_named(
    dialect: str, options: dict[str, Any], embedded: pg.Route
) -> None:
    pytest.importorskip("aiohttp")
    make: Any = pg.backends.openai_server
    with (
        ModelServer(embedded, dialect) as server,
        make("embedded", base_url=server.url, dialect=dialect) as route,
    ):
        rows = results(route, **{"max_new_tokens": 24, **options})
    assert all(pg.is_ok(slot) for _, slot in rows)
    assert set(judged(rows, embedded, asked=True).counts) <= {"right", "not judged"}
    upper = [
        (name, slot.map(lambda one: dataclasses.replace(one, text=one.text.upper())))
        for name, slot in rows
    ]
    other = sum(slot != one for (_, slot), (_, one) in zip(rows, upper, strict=True))
    assert judged(upper, embedded, asked=True).counts["text"] == other > 2


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_rows_with_allowed_tokens_are_judged_by_these(
    more: dict[str, Any], embedded: pg.Route
) -> None:
    likeliest = {token for _, slot in results(embedded) for token in slot.unwrap().token_ids}
    allowed = (*sorted(likeliest)[::2], 300, 301, 302)  # without many that would be taken
    rows = results(embedded, allowed_token_ids=allowed, **more)
    assert judged(rows, embedded).counts.keys() <= {"right", "not judged"}
    first = rows[0][1].unwrap().token_ids[0]
    without = tuple(token for token in allowed if token != first)
    (fault,) = judged(_allowing(rows[:1], without), embedded).rows
    assert (fault.verdict, "allowed_token_ids leaves out" in fault.evidence) == ("sampling", True)


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_a_barred_word_in_an_answer_is_a_fault(more: dict[str, Any], embedded: pg.Route) -> None:
    free = results(embedded, **more)
    words = ("January", free[0][1].unwrap().text.split()[0])
    rows = results(embedded, bad_words=words, **more)
    assert [slot.unwrap().text for _, slot in rows] != [slot.unwrap().text for _, slot in free]
    assert judged(rows, embedded).counts.keys() <= {"right", "not judged"}
    asked = changed(free[:1], options=dataclasses.replace(rows[0][1].unwrap().options))
    (fault,) = judged(asked, embedded).rows
    assert (fault.verdict, "a word of bad_words ends" in fault.evidence) == ("sampling", True)


@pytest.mark.parametrize("more", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_rows_with_biases_are_not_called_wrong(more: dict[str, Any], embedded: pg.Route) -> None:
    first = results(embedded)[0][1].unwrap().token_ids[0]
    rows = results(embedded, logit_bias={first: -100, 300: 5.0}, **more)
    assert judged(rows, embedded).counts == {"not judged": len(rows)}


def test_a_greedy_row_that_did_not_take_the_likeliest_of_the_allowed_is_named(
    embedded: pg.Route,
) -> None:
    best = results(embedded)[0][1].unwrap().token_ids
    rows = results(embedded, allowed_token_ids=(300, 301, 302))[:1]
    more = (300, 301, 302, *(token for token in best if token != best[0]))
    (row,) = judged(_allowing(rows, more), embedded).rows
    assert row.verdict in ("unknown", "weights")
    assert "it was greedy" in row.evidence


def _allowing(rows: Any, allowed: tuple[int, ...]) -> Any:
    return [
        (
            name,
            slot.map(
                lambda result: dataclasses.replace(
                    result,
                    options=dataclasses.replace(result.options, allowed_token_ids=allowed),
                )
            ),
        )
        for name, slot in rows
    ]


@pytest.mark.parametrize(
    ("spell", "words"),
    [
        (lambda text: html.escape(text).replace(",", "&#44;"), "HTML"),
        (lambda text: text.replace(" ", "\u00a0").replace("'", "\u2019"), "typographic"),
        (lambda text: text.replace(",", "\\u002c"), "JSON"),
    ],
)
def test_a_text_in_another_spelling_is_no_sign_of_other_weights(
    spell: Any, words: str, embedded: pg.Route
) -> None:
    rows = []
    for name, slot in results(embedded):
        result = slot.unwrap()
        text = spell(result.raw_text)
        if text != result.raw_text:
            plain = {"token_ids": (), "logprobs": None, "completion_tokens": 0, "prompt_tokens": 0}
            rows.append(
                (name, pg.Success(dataclasses.replace(result, text=text, raw_text=text, **plain)))
            )
    for row in judged(rows, embedded, asked=True).rows:
        assert row.verdict == "text", (row.verdict, row.evidence)
        assert words in row.evidence
    assert rows
