"""Samples and grids: one prompt, many rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.stages.gather_samples import derive_seed
from pipegen.testing.fake import FakeEngine


def by_seed(encoded: Encoded) -> str:
    return f"seed {encoded.options.seed} at {encoded.options.temperature}"


def chat(text: str = "Hi", **options: Any) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(
        messages=[{"role": "user", "content": text}], options=pg.GenerationOptions(**options)
    )


def test_samples_come_in_order_with_derived_seeds_and_one_rendered_prompt() -> None:  # B10
    engine = FakeEngine(by_seed)
    slots = pg.run(
        pg.route(engine),
        [chat("a"), chat("b", samples=4, seed=7), chat("c")],
        pg.GenerationOptions(temperature=1.0),
    )
    result = slots[1].unwrap()
    seeds = [derive_seed(7, sample) for sample in range(4)]
    assert [sample.options.seed for sample in result.samples] == seeds
    assert [sample.text for sample in result.samples] == [f"seed {seed} at 1.0" for seed in seeds]
    assert len(set(seeds)) == 4
    assert result.text == result.samples[0].text
    assert [slots[row].unwrap().samples for row in (0, 2)] == [(), ()]
    assert len(engine.calls) == 1
    assert len(engine.calls[0]) == 6
    assert len({id(encoded.prompt) for encoded in engine.calls[0]}) == 3


def test_samples_sent_again_from_their_effective_options_are_the_same() -> None:  # C8
    route = pg.route(FakeEngine(by_seed))
    result = pg.run(route, [chat(samples=3, seed=7)])[0].unwrap()
    assert (
        pg.run(route, [dataclasses.replace(chat(), options=result.options)])[0].unwrap() == result
    )
    assert (
        pg.run(route, [dataclasses.replace(chat(), options=result.samples[2].options)])[0].unwrap()
        == result.samples[2]
    )


def test_unseeded_samples_stay_unseeded() -> None:
    result = pg.run(pg.route(FakeEngine(by_seed)), [chat(samples=2)])[0].unwrap()
    assert [sample.options.seed for sample in result.samples] == [None, None]


def failing(*lost: int, seed: int = 7) -> FakeEngine:
    """An engine on which some samples fail."""

    def script(encoded: Encoded) -> Any:
        gone = [sample for sample in lost if encoded.options.seed == derive_seed(seed, sample)]
        return pg.BackendFailed(f"no {gone[0]}", scope="row") if gone else by_seed(encoded)

    return FakeEngine(script)


def test_samples_that_fail_leave_the_others_and_say_which_they_are() -> None:
    result = pg.run(pg.route(failing(0, 2)), [chat(samples=4, seed=7)])[0].unwrap()
    assert [sample.options.seed for sample in result.samples] == [
        derive_seed(7, 1),
        derive_seed(7, 3),
    ]
    assert result.text == result.samples[0].text
    assert [(sample, error.message) for sample, error in result.failed_samples] == [
        (0, "no 0"),
        (2, "no 2"),
    ]
    assert [
        slot.map(lambda one: one.options.seed).value_or("failed") for slot in result.completions
    ] == [
        "failed",
        derive_seed(7, 1),
        "failed",
        derive_seed(7, 3),
    ]


def test_a_request_fails_only_when_all_its_samples_do() -> None:
    slots = pg.run(pg.route(failing(0, 1)), [chat(samples=2, seed=7), chat()])
    assert slots[0].failure().message == "no 0"
    assert pg.is_ok(slots[1])


def test_a_request_with_lost_samples_sent_again_is_the_same_call() -> None:  # C8
    engine = failing(0)
    result = pg.run(pg.route(engine), [chat(samples=3, seed=7)])[0].unwrap()
    assert (result.options.seed, result.options.samples) == (7, 3)
    assert (
        pg.run(pg.route(engine), [dataclasses.replace(chat(), options=result.options)])[0].unwrap()
        == result
    )


def test_a_result_of_one_completion_is_its_own() -> None:
    (result,) = (slot.unwrap() for slot in pg.run(pg.route(FakeEngine("a")), [chat()]))
    assert [slot.unwrap() for slot in result.completions] == [result]


def test_requests_that_failed_before_are_not_expanded() -> None:
    slots = pg.run(pg.route(FakeEngine("a")), [{"messages": []}, chat(samples=2)])
    assert [pg.is_ok(slot) for slot in slots] == [False, True]


def test_a_grid_renders_and_encodes_its_prompt_once() -> None:
    engine = FakeEngine(by_seed)
    requests = pg.grid(
        chat(max_new_tokens=40),
        [{"temperature": t, "seed": s} for t in (0.5, 1.0) for s in (1, 2)]
        + [pg.GenerationOptions(seed=9)],
    )
    texts = [slot.unwrap().text for slot in pg.run(pg.route(engine), requests)]
    assert texts == [
        "seed 1 at 0.5",
        "seed 2 at 0.5",
        "seed 1 at 1.0",
        "seed 2 at 1.0",
        "seed 9 at 0.0",
    ]
    assert len({id(encoded.prompt) for encoded in engine.calls[0]}) == 1


def test_a_labelled_grid_takes_its_labels_to_the_answers() -> None:
    points = {("hot", seed): {"temperature": 1.0, "seed": seed} for seed in (1, 2)} | {
        ("cold", 0): pg.GenerationOptions(temperature=0.0)
    }
    asked = pg.grid(chat(), points)
    texts = {
        label: slot.unwrap().text
        for label, slot in pg.imap_keyed(pg.route(FakeEngine(by_seed)), asked.items(), in_flight=2)
    }
    assert texts == {
        ("hot", 1): "seed 1 at 1.0",
        ("hot", 2): "seed 2 at 1.0",
        ("cold", 0): "seed None at 0.0",
    }


def test_a_grid_of_values_instead_of_options_is_refused() -> None:
    with pytest.raises(pg.InvalidField, match=r"for each point, not 0\.5"):
        pg.grid(chat(), {"temperature": 0.5})  # type: ignore[dict-item]


POINTS: list[Any] = [{"seed": 1}, pg.GenerationOptions(seed=2)]


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": "Hi"},
        {"messages": [{"role": "user", "content": "Hi"}], "options": {"max_new_tokens": 3}},
        {"prompt_token_ids": [72, 105]},
        pg.Success(pg.TextGenerationRequest(prompt="Hi")),
        pg.VlmGenerationRequest(prompt="Hi"),
    ],
    ids=str,
)
def test_a_grid_takes_a_request_in_every_form_that_run_takes(request_: Any) -> None:
    made = pg.grid(request_, POINTS)
    assert [one.options.seed for one in made] == [1, 2]
    assert [slot.unwrap().options.seed for slot in pg.run(pg.route(FakeEngine("a")), made)] == [
        1,
        2,
    ]
    assert {
        label: one.options.seed
        for label, one in pg.grid(request_, {"a": POINTS[0], "b": POINTS[1]}).items()
    } == {"a": 1, "b": 2}


@pytest.mark.parametrize("several", [list, tuple, iter])
def test_a_grid_of_several_requests_has_each_at_all_points(several: Any) -> None:
    asked = [{"prompt": "Hi"}, pg.TextGenerationRequest(prompt="Ho")]
    seen = [(one.prompt, one.options.seed) for one in pg.grid(several(asked), iter(POINTS))]
    assert seen == [("Hi", 1), ("Hi", 2), ("Ho", 1), ("Ho", 2)]
    labelled = pg.grid(several(asked), {"a": POINTS[0], "b": POINTS[1]})
    assert {label: (one.prompt, one.options.seed) for label, one in labelled.items()} == {
        (0, "a"): ("Hi", 1), (0, "b"): ("Hi", 2), (1, "a"): ("Ho", 1), (1, "b"): ("Ho", 2),
    }  # fmt: skip
    assert pg.grid(several([]), POINTS) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"prompt": "Hi", "temperature": 1.0},
        pg.Failure(pg.InvalidRequest("before")),
    ],
)
def test_what_is_no_request_fails_at_each_point_of_a_grid(wrong: Any) -> None:
    made = pg.grid([wrong, {"prompt": "Hi"}], POINTS)
    seen = [pg.is_ok(slot) for slot in pg.run(pg.route(FakeEngine("a")), made)]
    assert seen == [False, False, True, True]
    assert [isinstance(slot.failure(), pg.InvalidRequest) for slot in pg.grid(wrong, POINTS)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("given", "points", "words"),
    [
        (
            "Hi",
            POINTS,
            r"grid takes a request such as \{\"prompt\": \"\.\.\.\"\}, or several, not 'Hi'",
        ),
        (b"Hi", POINTS, "or several, not b'Hi'"),
        (7, POINTS, "or several, not 7"),
        (None, POINTS, "or several, not None"),
        ({"prompt": "Hi"}, 7, "a list or a mapping of options, not one int"),
        ({"prompt": "Hi"}, "seed", "a list or a mapping of options, not one str"),
        ({"prompt": "Hi"}, [7], "for each point, not 7"),
        ([], [7], "for each point, not 7"),
        ({"prompt": "Hi"}, [{"sed": 1}], "did you mean 'seed'"),
    ],
)
def test_a_grid_of_something_else_is_refused(given: Any, points: Any, words: str) -> None:
    with pytest.raises(pg.InvalidField, match=words):
        pg.grid(given, points)


def test_neighbouring_seeds_share_no_sample() -> None:
    seeds = [derive_seed(seed, sample) for seed in range(100) for sample in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("samples", [0, -1, True, "2"])
def test_samples_is_a_whole_number_of_at_least_one(samples: Any) -> None:
    with pytest.raises(pg.InvalidField, match="samples"):
        chat(samples=samples)


def test_a_judgement_has_the_same_options_whatever_other_requests_ask_for() -> None:
    """A fallback whose first route has samples of its own puts them together itself, also where
    another request has several rows.
    """
    engine = FakeEngine(by_seed)
    judges = pg.fallback(
        pg.route(engine, name="own").with_options({"samples": 2, "seed": 3}),
        pg.route(engine, name="other"),
        when=pg.Timeout,
    )
    pipe = (
        pg.route(FakeEngine("a"))
        >> pg.pure("ask", lambda answer: pg.TextGenerationRequest(prompt=f"Right? {answer.text}"))
        >> judges
    )
    requests = [
        {"id": "one", "prompt": "hi"},
        {"id": "two", "prompt": "hi", "options": {"samples": 2}},
    ]
    together, alone = pg.run(pipe, requests), pg.run(pipe, requests[:1])
    assert together[0] == alone[0]
    assert (
        alone[0].unwrap().options.seed,
        alone[0].unwrap().options.samples,
        len(together[1].unwrap().samples),
    ) == (3, 2, 4)


def test_a_stage_in_the_place_of_a_loop_gets_each_sample_by_itself() -> None:
    route = pg.route(FakeEngine("a"))
    (answer,) = (slot.unwrap() for slot in pg.run(route, [chat()]))

    def own(request: pg.GenerationRequest) -> pg.GenerationResult:
        assert request.options is not None
        return dataclasses.replace(answer, text=f"seed {request.options.seed}")

    looped = pg.repeat(route, lambda result: None, limit=2)
    edited = (looped >> pg.pure("last", lambda result: result)).replace(
        looped.parts[0].name, pg.pure("own", own)
    )
    assert [part.name for part in edited.parts] == ["own", "last"]
    result = pg.run(edited, [chat(samples=3, seed=7)])[0].unwrap()
    assert [sample.text for sample in result.samples] == [
        f"seed {derive_seed(7, sample)}" for sample in range(3)
    ]
