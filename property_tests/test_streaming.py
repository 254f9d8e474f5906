"""The deltas joined are the text of the batch, in any company; none is empty or has half a
character; async streams yield the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from hypothesis import given, strategies as st
from returns.result import Failure, Success

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine
from pipegen.testing.toy import ToyTokenizer

TOKENIZER = ToyTokenizer(merges=("ab", "bc", "abc", " a", "STOP", "ST", "ä", "漢"))
PIECES: tuple[str, ...] = (
    *("a", "b", "c", "ab", "bc", "abc", " ", "\n", "ST", "OP", "STOP", "ä", "漢", "🎈"),
    *("<|im_end|>", "<|endoftext|>", "<think>"),
)

scripts: st.SearchStrategy[str] = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
stops = st.lists(
    st.sampled_from(
        ("a", "ab", "abc", "bc", "STOP", "OP", "\n", "漢", "<|im_end|>", "c<|im_end|>")
    ),
    max_size=3,
).map(tuple)


@st.composite
def said(draw: st.DrawFn) -> pg.GenerationOptions:
    most = draw(st.integers(1, 20))
    return pg.GenerationOptions(
        max_new_tokens=most,
        min_new_tokens=draw(st.integers(0, min(most, 6))),
        stop=pg.StopOptions(stop=draw(stops), ignore_eos=draw(st.booleans())),
        decode=pg.DecodeOptions(
            strip_whitespace=draw(st.booleans()), skip_special_tokens=draw(st.booleans())
        ),
        samples=draw(st.sampled_from((1, 1, 1, 2))),
    )


def requests_from(rows: list[tuple[str, pg.GenerationOptions]]) -> list[pg.GenerationRequest]:
    return [
        pg.TextGenerationRequest(id=str(row), prompt=script or "-", options=options)
        for row, (script, options) in enumerate(rows)
    ]


def engine(*, server_side_stops: bool = True) -> FakeEngine:
    """Says its prompt."""

    def script(encoded: Encoded) -> Any:
        return TOKENIZER.encode(encoded.request.prompt or "")

    return FakeEngine(script, tokenizer=TOKENIZER, server_side_stops=server_side_stops)


batches = st.lists(st.tuples(scripts, said()), min_size=1, max_size=5).map(requests_from)


def joined(events: list[Any], rows: int) -> list[dict[int, str]]:
    texts: list[dict[int, str]] = [{} for _ in range(rows)]
    for event in events:
        if isinstance(event, pg.Delta):
            texts[event.index][event.sample] = texts[event.index].get(event.sample, "") + event.text
    return texts


@given(batches)
def test_joined_deltas_equal_the_batch_text(requests: list[pg.GenerationRequest]) -> None:
    events = list(pg.stream(pg.route(engine()), requests))
    texts = joined(events, len(requests))
    for index, slot in enumerate(pg.run(pg.route(engine()), requests)):
        result = slot.unwrap()
        for sample, completion in enumerate(result.samples or (result,)):
            assert texts[index].get(sample, "") == completion.text
    assert [event.slot for event in events if isinstance(event, pg.Done)] == list(
        pg.run(pg.route(engine()), requests)
    )


@given(batches)
# A15
def test_no_delta_is_empty_and_none_holds_half_a_character(
    requests: list[pg.GenerationRequest],
) -> None:
    cut_short = {
        row
        for row, slot in enumerate(pg.run(pg.route(engine()), requests))
        if "\ufffd" in slot.unwrap().raw_text
    }
    for event in pg.stream(pg.route(engine()), requests):
        if isinstance(event, pg.Delta):
            assert event.text
            assert "\ufffd" not in event.text or event.index in cut_short


@given(batches)
def test_astream_and_arun_equal_stream_and_run(requests: list[pg.GenerationRequest]) -> None:
    async def collect() -> list[Any]:
        return [event async for event in pg.astream(pg.route(engine()), requests)]

    assert asyncio.run(collect()) == list(pg.stream(pg.route(engine()), requests))
    assert asyncio.run(pg.arun(pg.route(engine()), requests)) == pg.run(
        pg.route(engine()), requests
    )


@given(batches)
def test_a_row_is_the_same_alone_and_in_any_batch(requests: list[pg.GenerationRequest]) -> None:
    whole = pg.run(pg.route(engine()), requests)
    assert whole == tuple(pg.run(pg.route(engine()), [request])[0] for request in requests)
    assert whole[::-1] == pg.run(pg.route(engine()), requests[::-1])
    assert whole == tuple(pg.imap(pg.route(engine()), requests, in_flight=2))


@given(batches)
def test_an_engine_that_overshoots_gives_the_same_results(
    requests: list[pg.GenerationRequest],
) -> None:
    assert pg.run(pg.route(engine()), requests) == pg.run(
        pg.route(engine(server_side_stops=False)), requests
    )


@st.composite
def failing(draw: st.DrawFn) -> list[pg.GenerationRequest]:
    """Requests that a first route answers, does not, or answers and then refuses."""
    rows: list[pg.GenerationRequest] = []
    for number in range(draw(st.integers(1, 4))):
        ends = draw(st.sampled_from(("good", "bad", "down")))
        samples = draw(st.sampled_from((1, 1, 2)))
        message = {"role": "user", "content": f"{draw(st.sampled_from('xyz'))} {ends}"}
        rows.append(
            pg.TextGenerationRequest(
                id=str(number),
                messages=[message],
                options=pg.GenerationOptions(samples=samples, seed=number, max_new_tokens=9),
            )
        )
    return rows


@given(failing(), st.booleans(), st.sampled_from(("none", "around", "within")))
def test_a_fallback_takes_over_what_has_shown_nothing_and_nothing_else(
    requests: list[pg.GenerationRequest], keeps: bool, loop: str
) -> None:
    def script(row: Encoded) -> Any:
        words = str((row.request.messages or ())[0].content)
        asks = (row.options.seed or 0) % 2 == 0  # one sample of two, where there are two
        if "down" in words and asks and (loop == "none" or row.request.continues):
            return pg.BackendFailed("down", scope="row")
        return f"{words}<|im_end|>"

    def judge(result: pg.GenerationResult) -> pg.Slot[pg.GenerationResult]:
        bad = "bad" in result.text
        return Failure(pg.StageFailed("no", stage="judge")) if bad else Success(result)

    def talk(pipe: Any) -> Any:
        return pg.turns(pipe, lambda result: "And?", limit=2)

    second = FakeEngine("Oh<|im_end|>", name="second")
    first = pg.route(FakeEngine(script)) >> pg.each("judge", judge, keeps_text=keeps)
    other = pg.route(second)
    if loop == "around":
        first, other = talk(first), talk(other)
    both = pg.fallback(first, other, when=(pg.BackendFailed, pg.StageFailed))
    if loop == "within":
        first, both = talk(first), talk(both)
    events = list(pg.stream(both, requests))
    asked = {row.request.id for call in second.calls for row in call}
    shown = {(one.index, one.round) for one in events if isinstance(one, pg.Delta)}
    alone, whole = (
        [one.slot for one in pg.stream(pipe, requests) if isinstance(one, pg.Done)]
        if pipe is first
        else list(pg.run(pipe, requests))
        for pipe in (first, both)
    )
    slots = [event.slot for event in events if isinstance(event, pg.Done)]
    for index, slot in enumerate(slots):
        if pg.is_ok(slot):
            assert slot == whole[index]
        else:  # it had a delta; in a conversation, at the turn that failed
            assert slot == alone[index]
            assert any(number == index for number, _ in shown)
            assert loop == "within" or str(index) not in asked


@given(batches)
def test_counts_ids_and_texts_agree(requests: list[pg.GenerationRequest]) -> None:
    for slot in pg.run(pg.route(engine(server_side_stops=False)), requests):
        result = slot.unwrap()
        assert (
            result.completion_tokens
            == len(result.token_ids)
            <= (result.options.max_new_tokens or 0)
        )
        assert result.raw_text == TOKENIZER.decode(result.token_ids)
        if result.finish is pg.Finish.STOP_STRING:
            assert isinstance(result.stop, str)
            assert result.stop not in result.text or (result.options.min_new_tokens or 0) > 0


@given(batches)
# C8
def test_effective_options_sent_again_give_the_same_slot(
    requests: list[pg.GenerationRequest],
) -> None:
    first = pg.run(pg.route(engine()), requests)
    again = pg.run(
        pg.route(engine()),
        [
            dataclasses.replace(request, options=slot.unwrap().options)
            for request, slot in zip(requests, first, strict=True)
        ],
    )
    assert again == first
