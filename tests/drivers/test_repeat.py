"""A loop in a pipe: rounds, samples that go their own ways, streams, limits, and jobs that go
on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def counting(encoded: Encoded) -> str:
    return f"{encoded.prompt.text}{(encoded.options.seed or 0) % 10}.<|im_end|>"


def again(result: pg.GenerationResult) -> pg.GenerationRequest | None:
    """Up to three rounds, fewer where the first one drew a 7."""
    if result.text.count(".") == 3 or "7" in result.text:
        return None
    return pg.TextGenerationRequest(prompt=result.text)


def texts(result: pg.GenerationResult) -> list[str]:
    return [one.text for one in result.rounds]


def test_the_results_of_all_rounds_are_in_the_last_one() -> None:
    pipe = pg.repeat(pg.route(FakeEngine(counting)), again, limit=9)
    result = pg.run(pipe, [{"id": "T", "prompt": "x"}])[0].unwrap()
    assert texts(result) == ["x0.", "x0.0.", "x0.0.0."]
    assert (result.text, result.id, result.rounds_end) == ("x0.0.0.", "T", "done")


def test_a_limit_that_is_reached_is_an_ending_and_no_error() -> None:
    pipe = pg.repeat(pg.route(FakeEngine(counting)), again, limit=2)
    result = pg.run(pipe, [{"prompt": "x"}])[0].unwrap()
    assert (texts(result), result.rounds_end) == (["x0.", "x0.0."], "limit")


def test_a_round_that_fails_fails_its_request() -> None:
    def script(encoded: Encoded) -> Any:
        return pg.Timeout("slow") if "." in str(encoded.prompt.text) else "a.<|im_end|>"

    slots = pg.run(pg.repeat(pg.route(FakeEngine(script)), again, limit=9), [{"prompt": "x"}])
    assert isinstance(slots[0].failure(), pg.Timeout)


def test_samples_go_their_own_ways() -> None:
    pipe = pg.repeat(pg.route(FakeEngine(counting)), again, limit=9)
    options = {"samples": 3, "seed": 7}
    result = pg.run(pipe, [{"prompt": "x"}], options)[0].unwrap()
    assert [len(one.rounds) for one in result.samples] == [1, 3, 3]
    assert [one.rounds_end for one in result.samples] == ["done"] * 3


def test_rounds_stream_with_their_numbers() -> None:
    pipe = pg.repeat(pg.route(FakeEngine(counting)), again, limit=9)
    shown: dict[tuple[int, int], str] = {}

    async def streamed() -> list[Any]:
        return [event async for event in pg.astream(pipe, [{"prompt": "x"}], options)]

    options = {"samples": 3, "seed": 7}
    events = list(pg.stream(pipe, [{"prompt": "x"}], options))
    assert asyncio.run(streamed()) == events
    for event in events:
        if isinstance(event, pg.Delta):
            at = event.sample, event.round
            shown[at] = shown.get(at, "") + event.text
    samples = events[-1].slot.unwrap().samples  # type: ignore[union-attr]  # the last one is Done
    assert shown == {
        (number, turn): one.text
        for number, sample in enumerate(samples)
        for turn, one in enumerate(sample.rounds)
    }
    assert sum(isinstance(event, pg.Delta) for event in events) > len(shown)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_job_that_is_killed_in_a_round_goes_on_there(samples: int, tmp_path: Path) -> None:
    def run(folder: Path, fuse: Fuse) -> list[Any]:
        slots: list[Any] = []
        pipe = pg.repeat(pg.route(Rowwise(counting, fuse)), again, limit=9)
        options = {"samples": samples, "seed": 8}
        try:
            with pg.job(pipe, [{"prompt": "x"}], folder, options, grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            pass
        return slots

    whole = Fuse()
    wanted = run(tmp_path / "whole", whole)
    assert len(whole.asked) == 3 * samples
    for at in range(len(whole.asked)):
        first, second = Fuse(at), Fuse()
        assert run(tmp_path / str(at), first) == []
        assert run(tmp_path / str(at), second) == wanted
        assert Counter(first.answered) + Counter(second.asked) == Counter(whole.asked)


def test_a_result_with_rounds_is_written_and_read() -> None:
    (slot,) = pg.run(pg.repeat(pg.route(FakeEngine(counting)), again, limit=2), [{"prompt": "x"}])
    assert pg.from_plain(pg.to_plain(slot)) == slot


def test_what_is_no_loop_is_refused() -> None:
    route: Any = pg.route(FakeEngine("a"))
    wrong: Any = None
    for pipe, function in ((wrong, again), (route, wrong)):
        with pytest.raises(TypeError, match="repeat takes a pipe and a function"):
            pg.repeat(pipe, function, limit=2)
    for limit in (0, True, 2.0, wrong):
        with pytest.raises(TypeError, match="limit takes a whole number of at least 1"):
            pg.repeat(route, again, limit=limit)
    numbers: Any = route >> pg.pure("number", lambda result: 1)
    with pytest.raises(pg.ContractError, match="a pipe that is repeated gives a GenerationResult"):
        pg.run(pg.repeat(numbers, lambda result: None, limit=2), [{"prompt": "x"}])


def test_again_gives_a_request_in_any_form() -> None:
    def told(given: Any) -> Any:
        pipe = pg.repeat(pg.route(FakeEngine(counting)), lambda result: given, limit=2)
        return pg.run(pipe, [{"prompt": "x"}])[0]

    assert texts(told({"prompt": "y"}).unwrap()) == ["x0.", "y0."]
    assert isinstance(told("y").failure(), pg.InvalidRequest)
    assert isinstance(told({"prompt": 1}).failure(), pg.InvalidRequest)


def test_what_again_gives_that_is_no_request_names_it() -> None:
    wrong: Any
    for wrong in (False, "text", {"promt": "y"}):
        pipe = pg.repeat(pg.route(FakeEngine("a")), lambda result, given=wrong: given, limit=2)
        error = pg.run(pipe, [{"prompt": "x"}])[0].failure()
        assert isinstance(error, pg.InvalidRequest)
        assert error.message.startswith("again: ")


def doubled(result: pg.GenerationResult) -> Any:
    return {"prompt": result.text} if result.text.count(".") < 4 else None


LOOPED: dict[str, Any] = {
    "loop in a loop": lambda route: pg.repeat(pg.repeat(route, doubled, limit=2), doubled, limit=2),
    "loop of one round in a loop": lambda route: pg.repeat(
        pg.repeat(route, lambda result: None, limit=1), doubled, limit=3
    ),
    "loop in a fallback in a loop": lambda route: pg.repeat(
        pg.fallback(pg.repeat(route, doubled, limit=2), route, when=pg.Timeout), doubled, limit=2
    ),
    "samples of the looped route": lambda route: pg.repeat(
        route.with_options({"samples": 2}), doubled, limit=2
    ),
    "samples of a fallback in a loop": lambda route: pg.repeat(
        pg.fallback(route.with_options({"samples": 2}), route, when=pg.Timeout), doubled, limit=2
    ),
    "samples of a later round": lambda route: pg.repeat(
        route, lambda result: {"prompt": result.text, "options": {"samples": 2}}, limit=2
    ),
}


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("samples", [1, 2])
def test_the_deltas_of_each_round_and_sample_are_its_text(name: str, samples: int) -> None:
    pipe = LOOPED[name](pg.route(FakeEngine(counting)))
    requests, options = [{"prompt": "x"}, {"prompt": "y.."}], {"samples": samples, "seed": 3}
    slots = pg.run(pipe, requests, options)
    deltas: Counter[tuple[int, int, int]] = Counter()
    shown: dict[tuple[int, int, int], str] = {}
    streamed: list[Any] = []
    for event in pg.stream(pipe, requests, options):
        if isinstance(event, pg.Delta):
            at = (event.index, event.sample, event.round)
            shown[at] = shown.get(at, "") + event.text
            deltas[at] += 1
        else:
            streamed.append(event.slot)
    assert tuple(streamed) == slots
    assert shown == {
        (index, sample, turn): result.text
        for index, slot in enumerate(slots)
        for sample, completed in enumerate(slot.unwrap().completions)
        for turn, result in enumerate(completed.unwrap().rounds)
    }
    assert all(slot.unwrap().rounds[-1].text == slot.unwrap().text for slot in slots)
    if "samples" not in name:
        assert {at[1] for at in deltas} == {*range(samples)}


def test_what_again_raises_names_it() -> None:
    pipe = pg.repeat(pg.route(FakeEngine("a")), lambda result: {}["bug"], limit=2)
    with pytest.raises(KeyError) as caught:
        pg.run(pipe, [{"id": "T", "prompt": "x"}])
    assert caught.value.__notes__ == ["raised by the stage 'again of repeat(fake)' at request 'T'"]


def test_a_loop_is_edited_watched_and_given_plugins_as_a_route_is() -> None:
    seen: list[pg.Progress] = []
    pipe = pg.repeat(pg.route(FakeEngine(counting)), again, limit=9)
    shouting = pg.attach(pipe, pg.Plugin(name="shout", trim=str.upper))
    (slot,) = pg.run(pg.watched(shouting, seen.append), [{"prompt": "x"}])
    assert slot.unwrap().text == "X0.0.0."
    assert len(seen) == 6


def test_the_embedded_model_repeats_and_a_job_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def more(result: pg.GenerationResult) -> pg.GenerationRequest | None:
        messages = [
            {"role": "user", "content": "Count from 1 to 3."},
            result.message,
            {"role": "user", "content": "Go on."},
        ]
        return pg.TextGenerationRequest(messages=messages, options=options)

    options = pg.GenerationOptions(max_new_tokens=6)
    first = {"messages": [{"role": "user", "content": "Count from 1 to 3."}]}
    with pg.backends.hf("embedded") as route:
        pipe = pg.repeat(route, more, limit=3)
        batch = pg.run(pipe, [first, {"prompt": "Hi"}], options)
        assert [len(slot.unwrap().rounds) for slot in batch] == [3, 3]
        assert tuple(pg.imap(pipe, [first, {"prompt": "Hi"}], options)) == batch
        assert asyncio.run(pg.arun(pipe, [first, {"prompt": "Hi"}], options)) == batch
        with pg.job(pipe, [first, {"prompt": "Hi"}], tmp_path, options) as job:
            assert tuple(job) == batch
