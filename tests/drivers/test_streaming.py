"""Streaming through the same routes: deltas, Done, faults on the way, fallback before the first
delta only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.engines.protocol import TextMade
from pipegen.records.results import Decoded, Encoded, Raw
from pipegen.testing.fake import FakeEngine
from pipegen.testing.toy import ToyTokenizer

PROMPT = {"prompt": "x"}
DOWN = pg.CallFailed(pg.BackendFailed("engine died", backend="fake", scope="batch", incident="i-1"))


def told(
    route: Any, requests: Any, options: pg.GenerationOptions | None = None
) -> tuple[dict[tuple[int, int], str], dict[int, Any], list[Any]]:
    """Joined deltas for each row, the slots, and all events."""
    events = list(pg.stream(route, requests, options))
    joined: dict[tuple[int, int], str] = {}
    for event in events:
        if isinstance(event, pg.Delta):
            joined[event.index, event.sample] = (
                joined.get((event.index, event.sample), "") + event.text
            )
    return (
        joined,
        {event.index: event.slot for event in events if isinstance(event, pg.Done)},
        events,
    )


def test_deltas_come_one_after_the_other_and_done_comes_last() -> None:
    joined, slots, events = told(pg.route(FakeEngine("abc")), [PROMPT, PROMPT])
    assert joined == {(0, 0): "abc", (1, 0): "abc"}
    assert [type(event).__name__ for event in events] == ["Delta"] * 6 + ["Done"] * 2
    assert slots[0] == pg.run(pg.route(FakeEngine("abc")), [PROMPT])[0]


def test_what_could_still_become_a_stop_is_held_back() -> None:
    options = pg.GenerationOptions(stop=pg.StopOptions(stop=("STOP",)))
    joined, slots, events = told(pg.route(FakeEngine("a ST and STOP b")), [PROMPT], options)
    assert joined == {(0, 0): "a ST and "}
    assert slots[0].unwrap().stop == "STOP"
    seen = [event.text for event in events if isinstance(event, pg.Delta)][:4]
    assert seen == ["a", " ", "ST ", "a"]


def test_no_broken_characters_are_shown() -> None:  # A15
    _, _, events = told(pg.route(FakeEngine("äß漢🎈")), [PROMPT])
    assert [event.text for event in events if isinstance(event, pg.Delta)] == ["ä", "ß", "漢", "🎈"]


def test_a_sample_that_fails_leaves_the_numbers_of_the_others() -> None:
    def script(encoded: Encoded) -> Any:
        return pg.BackendFailed("no", scope="row") if encoded.options.seed == 5 else "abc"

    joined, slots, _ = told(
        pg.route(FakeEngine(script)), [{"prompt": "y", "options": {"samples": 2, "seed": 5}}]
    )
    assert [pg.is_ok(slot) for slot in slots[0].unwrap().completions] == [False, True]
    assert joined == {(0, 1): "abc"}


def test_samples_stream_apart() -> None:
    route = pg.route(FakeEngine(lambda encoded: f"seed {encoded.options.seed}"))
    joined, slots, _ = told(route, [PROMPT, {"prompt": "y", "options": {"samples": 2, "seed": 5}}])
    assert joined[0, 0] == "seed None"
    assert [joined[1, sample] for sample in range(2)] == [
        sample.text for sample in slots[1].unwrap().samples
    ]


def test_text_that_a_plugin_may_change_is_told_when_it_is_final() -> None:
    route = pg.attach(pg.route(FakeEngine("abc")), pg.Plugin(name="shout", trim=str.upper))
    joined, _, events = told(route, [PROMPT])
    assert (joined, len(events)) == ({(0, 0): "ABC"}, 2)


def test_text_that_a_later_stage_may_change_is_told_when_it_is_final() -> None:
    def shout(result: pg.GenerationResult) -> pg.Slot[pg.GenerationResult]:
        return Success(dataclasses.replace(result, text=result.text.upper()))

    route = pg.route(FakeEngine("abc")) >> pg.each("shout", shout)
    joined, _, events = told(route, [PROMPT])
    assert (joined, len(events)) == ({(0, 0): "ABC"}, 2)


def lie_of_ids(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=(*raw.token_ids, 97))


def lie_of_text(answer: Any) -> Any:
    return dataclasses.replace(answer, text="x")


@pytest.mark.parametrize(
    ("lie", "after", "words"),
    [
        (lie_of_ids, "call", "changed token_ids of Raw"),
        (lie_of_text, "decode", "changed text of Decoded"),
        (lie_of_text, "stop", "changed text of Decoded"),
        (lie_of_text, "trim", "changed text of GenerationResult"),
    ],
)
@pytest.mark.parametrize(
    "driver",
    [pg.run, lambda *given: list(pg.imap(*given)), lambda *given: list(pg.stream(*given))],
    ids=["run", "imap", "stream"],
)
def test_a_stage_that_changes_text_although_it_says_it_keeps_it_is_a_bug_and_raises(
    driver: Any, lie: Any, after: str, words: str
) -> None:
    route = pg.route(FakeEngine("abc"))
    honest = route.insert(pg.pure("same", lambda answer: answer, keeps_text=True), after=after)
    assert driver(honest, [PROMPT])
    with pytest.raises(pg.ContractError, match=f"the stage 'lie' {words}") as caught:
        driver(route.insert(pg.pure("lie", lie, keeps_text=True), after=after), [PROMPT])
    assert caught.value.__notes__ == ["raised by the stage 'lie' at request 0 ('x')"]


def test_another_record_with_another_text_is_a_bug_too() -> None:
    engine = FakeEngine("abc")

    def ended(decoded: Decoded) -> pg.GenerationResult:
        (slot,) = pg.stages.trim(engine).apply((Success(decoded),))
        return dataclasses.replace(slot.unwrap(), text="x")

    own = pg.pure("own", ended, keeps_text=True)
    with pytest.raises(pg.ContractError, match="the stage 'own' changed text of Decoded"):
        pg.run(pg.route(engine).replace("trim", own), [PROMPT])


def test_the_text_of_a_sample_that_was_streamed_stays_too() -> None:
    def lie(result: pg.GenerationResult) -> pg.GenerationResult:
        first, second = result.samples
        return dataclasses.replace(result, samples=(first, dataclasses.replace(second, text="x")))

    route = pg.route(FakeEngine("abc")) >> pg.pure("lie", lie, keeps_text=True)
    with pytest.raises(pg.ContractError, match="a stage changed text that it said it keeps"):
        told(route, [{**PROMPT, "options": {"samples": 2, "temperature": 1.0}}])


def test_a_stage_may_change_all_but_the_text() -> None:
    def renamed(result: pg.GenerationResult) -> pg.GenerationResult:
        return dataclasses.replace(result, raw_text="other", route="mine")

    route = pg.route(FakeEngine("abc")) >> pg.pure("renamed", renamed, keeps_text=True)
    (slot,) = pg.run(route, [PROMPT])
    assert (slot.unwrap().text, slot.unwrap().route) == ("abc", "mine")


def test_an_engine_that_does_not_stream_tells_everything_at_the_end() -> None:
    class Silent:
        def __init__(self, engine: FakeEngine) -> None:
            self.engine = engine

        def __getattr__(self, name: str) -> Any:
            if name in ("stream", "astream"):
                raise AttributeError(name)
            return getattr(self.engine, name)

    joined, _, events = told(pg.route(Silent(FakeEngine("abc"))), [PROMPT])
    assert (joined, len(events)) == ({(0, 0): "abc"}, 2)


def test_an_engine_that_dies_on_the_way_fails_every_row_with_one_incident() -> None:
    joined, slots, _ = told(pg.route(FakeEngine("abc", fault=DOWN)), [PROMPT, PROMPT])
    assert joined == {(0, 0): "a", (1, 0): "a"}
    assert [slots[row].failure().incident for row in range(2)] == ["i-1", "i-1"]


def test_a_row_that_has_shown_text_is_not_taken_over_by_a_fallback() -> None:
    second = FakeEngine("xyz", name="second")
    route = pg.fallback(
        pg.route(FakeEngine("abc", fault=DOWN)), pg.route(second), when=pg.BackendFailed
    )
    joined, slots, _ = told(route, [PROMPT])
    assert joined == {(0, 0): "a"}
    assert second.calls == []
    assert isinstance(slots[0].failure(), pg.BackendFailed)


def judged(engine: FakeEngine, *, keeps_text: bool = True) -> Any:
    """A route whose last stage refuses what is not `good`."""

    def judge(result: pg.GenerationResult) -> pg.Slot[pg.GenerationResult]:
        good = result.text == "good"
        return Success(result) if good else Failure(pg.StageFailed("no", stage="judge"))

    return pg.route(engine) >> pg.each("judge", judge, keeps_text=keeps_text)


def test_an_answer_that_was_shown_is_handed_to_no_other_route() -> None:
    second = FakeEngine("good", name="second")
    for keeps, text in ((True, "bad"), (False, "good")):  # held back, nothing was shown
        first = judged(FakeEngine("bad"), keeps_text=keeps)
        route = pg.fallback(first, pg.route(second), when=pg.StageFailed)
        joined, slots, _ = told(route, [PROMPT])
        assert joined == {(0, 0): text}
        assert (slots[0] == pg.run(first, [PROMPT])[0]) == keeps
    assert len(second.calls) == 1 and slots[0].unwrap().route == "second"


def test_a_conversation_that_was_shown_goes_on_in_no_other_route() -> None:
    def script(row: Encoded) -> Any:
        return pg.BackendFailed("down", scope="row") if row.request.continues else "Yes<|im_end|>"

    def conversation(engine: Any) -> Any:
        return pg.turns(engine, lambda result: "And?", limit=2)

    asked = {"messages": [{"role": "user", "content": "Is it?"}]}
    second = FakeEngine("Oh<|im_end|>", name="second")
    first = pg.route(FakeEngine(script))
    whole = pg.fallback(conversation(first), conversation(pg.route(second)), when=pg.BackendFailed)
    joined, slots, _ = told(whole, [asked])
    assert joined == {(0, 0): "Yes"} and second.calls == []
    assert slots[0] == pg.run(conversation(first), [asked])[0]
    # its second turn alone had no delta
    each = conversation(pg.fallback(first, pg.route(second), when=pg.BackendFailed))
    joined, slots, _ = told(each, [asked])
    assert joined == {(0, 0): "YesOh"} and pg.is_ok(slots[0])


def test_reasoning_that_was_shown_is_a_delta_too() -> None:
    class Chat(FakeEngine):
        def stream(self, inputs: Any) -> Iterator[Any]:
            yield TextMade(row=0, text="", reasoning="hm")
            raise DOWN

    second = FakeEngine("xyz", name="second")
    route = pg.fallback(pg.route(Chat("abc")), pg.route(second), when=pg.BackendFailed)
    _, slots, _ = told(route, [PROMPT])
    assert second.calls == [] and isinstance(slots[0].failure(), pg.BackendFailed)


def test_a_row_that_has_shown_nothing_is_taken_over() -> None:
    text_only = FakeEngine("abc", honours=pg.ENGINES["hf"] - {"images"})
    route = pg.fallback(
        pg.route(text_only),
        pg.route(FakeEngine("xyz", name="second")),
        when=pg.UnsupportedMultimodal,
    )
    joined, slots, _ = told(route, [PROMPT, {"prompt": "x", "images": [b"image"]}])
    assert joined == {(0, 0): "abc", (1, 0): "xyz"}
    assert slots[1].unwrap().route == "second"


def test_an_engine_that_forgets_a_row_is_a_bug_and_raises() -> None:
    class Forgetful(FakeEngine):
        def stream(self, inputs: Any) -> Any:
            yield from list(super().stream(inputs))[:-1]

    with pytest.raises(pg.ContractError, match="without an answer"):
        told(pg.route(Forgetful("abc")), [PROMPT])


def test_bugs_raise() -> None:
    with pytest.raises(KeyError):
        told(pg.route(FakeEngine("abc", fault=KeyError("bug"))), [PROMPT])


def test_astream_tells_what_stream_tells() -> None:
    async def collect(engine: FakeEngine, requests: Any) -> list[Any]:
        return [event async for event in pg.astream(pg.route(engine), requests)]

    every: list[list[dict[str, Any]]] = [[PROMPT, PROMPT], [{"messages": []}], []]
    for requests in every:
        wanted = list(pg.stream(pg.route(FakeEngine("abc")), requests))
        assert asyncio.run(collect(FakeEngine("abc"), requests)) == wanted
    last = asyncio.run(collect(FakeEngine("abc", fault=DOWN), [PROMPT]))[-1]
    assert last.slot.failure().incident == "i-1"


def test_leaving_a_stream_early_leaves_the_engine_early() -> None:
    left = []

    class Watched(FakeEngine):
        def stream(self, inputs: Any) -> Any:
            try:
                yield from super().stream(inputs)
            finally:
                left.append(True)

    events = pg.stream(pg.route(Watched("abc", tokenizer=ToyTokenizer())), [PROMPT])
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert left == [True]


def test_cancelling_waits_for_the_step_at_work_and_closes_the_engines_stream() -> None:
    running, go_on, closed = threading.Event(), threading.Event(), []

    class Slow(FakeEngine):
        def stream(self, inputs: Any) -> Iterator[Any]:
            try:
                running.set()
                assert go_on.wait(10)
                yield from super().stream(inputs)
            finally:
                closed.append(True)

    async def cancelled() -> None:
        async def consume() -> None:
            async for _ in pg.astream(pg.route(Slow("abc")), [PROMPT]):
                pass

        task = asyncio.ensure_future(consume())
        await asyncio.to_thread(running.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert closed == [True]


def test_an_engine_that_decodes_by_itself_shows_what_has_text_or_reasoning_and_nothing_else() -> (
    None
):
    class Chat(FakeEngine):
        def stream(self, inputs: Any) -> Iterator[Any]:
            made = list(super().stream(inputs))
            yield TextMade(row=0, text="", reasoning="hm")
            yield TextMade(row=0, text="")
            yield TextMade(row=0, text="ab")
            yield made[-1]

    events = list(pg.stream(pg.route(Chat("abc")), [PROMPT]))
    seen = [(event.text, event.reasoning) for event in events if isinstance(event, pg.Delta)]
    assert seen == [("", "hm"), ("ab", ""), ("c", "")]
