"""A route is the composition of its stages; joining changes nothing; samples are never lost; a
stage before the call leaves the stream alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

from hypothesis import given, strategies as st
from returns.result import Failure, Success

import pipegen as pg
from pipegen.core.pipe import Pipe, identity
from pipegen.core.slots import Batch
from pipegen.core.steps import Stage
from pipegen.records.results import Decoded, Encoded
from pipegen.stages.gather_samples import derive_seed
from pipegen.testing import strategies
from pipegen.testing.fake import FakeEngine, ToyRenderer


def script(encoded: Encoded) -> Any:
    """Depends on the row alone: its prompt and its seed; some rows fail, some end by themselves."""
    seed, text = encoded.options.seed or 0, encoded.prompt.text or ""
    if seed % 5 == 4:
        return pg.BackendFailed(f"no {seed}", scope="row")
    return f" {text[:5]} END {seed}" + ("<|im_end|>" if seed % 2 else "") + "STOP and more"


def engine(**said: Any) -> FakeEngine:
    return FakeEngine(script, context_length=400, renderer=ToyRenderer(), **said)


def by_hand(one: FakeEngine) -> Pipe[pg.GenerationRequest, pg.GenerationResult]:
    stages = pg.stages
    before = stages.resolve(one) >> stages.render(one) >> stages.tokenize(one) >> stages.fit(one)
    return before >> pg.call(one) >> stages.decode(one) >> stages.stop(one) >> stages.trim(one)


SHOUT = pg.Plugin(name="shout", trim=str.upper)
requests = st.lists(strategies.requests(), max_size=5)


@given(requests, st.none() | strategies.generation_options(), st.booleans())
def test_a_route_is_the_composition_of_the_stages(
    asked: list[Any], options: Any, trims: bool
) -> None:
    """Slots, calls, streams: all of them equal, with plugins too."""
    first, second = engine(), engine()
    route, own = pg.route(first), by_hand(second)
    if trims:
        route, own = pg.attach(route, SHOUT), pg.attach(own, SHOUT)
    assert pg.run(route, asked, options) == pg.run(own, asked, options)
    assert list(pg.stream(route, asked, options)) == list(pg.stream(own, asked, options))
    assert first.calls == second.calls
    assert asyncio.run(pg.arun(route, asked, options)) == pg.run(own, asked, options)
    for request in asked:
        assert pg.count_tokens(route, request, options) == pg.count_tokens(own, request, options)
    assert list(pg.imap(route, asked, options, in_flight=2)) == list(
        pg.imap(own, asked, options, in_flight=2)
    )


def answer(kind: int, salt: int) -> Any:
    """A stage for numbers: a pure function of the number, sometimes an error."""

    def stage(value: int) -> Any:
        return (
            Failure(pg.StageFailed(f"{kind}", stage="s"))
            if (value * 7 + salt) % 6 == kind
            else Success(value + salt)
        )

    return stage


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), strategies.batches(st.integers(0, 50)))
def test_stages_side_by_side_go_row_by_row_and_give_what_they_give_apart(
    salts: list[int], batch: Batch[int]
) -> None:
    seen: list[tuple[int, int]] = []

    def noted(place: int, stage: Any) -> Any:
        def note(value: int) -> Any:
            seen.append((place, value))
            return stage(value)

        return note

    stages = [
        pg.each(str(place), noted(place, answer(place % 6, salt)))
        for place, salt in enumerate(salts)
    ]
    whole: Pipe[Any, Any] = identity()
    for stage in stages:
        whole = whole >> stage
    apart: Batch[Any] = batch
    for stage in stages:
        apart = stage.apply(apart)
    seen.clear()
    together = whole.apply(batch)
    assert together == apart
    assert all(
        after is before
        for before, after in zip(batch, together, strict=True)
        if not pg.is_ok(before)
    )
    places = [place for place, _ in seen]
    # a row is through before the next one
    assert all(later in (before + 1, 0) for before, later in itertools.pairwise(places))


def judge(result: pg.GenerationResult) -> pg.GenerationRequest:
    return pg.TextGenerationRequest(
        prompt=f"judge {result.text}",
        options=pg.GenerationOptions(seed=(result.options.seed or 0) % 7),
    )


sampled = st.builds(
    lambda text, seed, count, name: pg.TextGenerationRequest(
        id=name, prompt=text, options=pg.GenerationOptions(seed=seed, samples=count)
    ),
    st.sampled_from(("a", "b", "")),
    st.integers(0, 99),
    st.integers(1, 4),
    st.sampled_from(("x", None)),
)


@given(st.lists(sampled, max_size=4), st.booleans())
def test_each_sample_is_judged_as_it_would_be_alone(asked: list[Any], falls_back: bool) -> None:
    def first() -> Any:
        plain = pg.route(engine())
        return (
            pg.fallback(plain, pg.route(engine(), name="second"), when=pg.BackendFailed)
            if falls_back
            else plain
        )

    judged = first() >> pg.pure("judge", judge) >> pg.route(engine(), name="judge")
    slots = pg.run(judged, asked)
    assert list(pg.imap(judged, asked, in_flight=1)) == list(slots)
    for request, slot in zip(asked, slots, strict=True):
        rollout = pg.run(first(), [request])[0]
        alone = [
            pg.run(judged, [_one(request, sample)])[0] for sample in range(request.options.samples)
        ]
        if not pg.is_ok(rollout):  # then no sample has an answer to judge
            assert slot == rollout
            continue
        made = [one.unwrap() for one in alone if pg.is_ok(one)]
        if not made:
            assert not pg.is_ok(slot)
            continue
        result = slot.unwrap()
        assert [(one.text, one.id) for one in result.samples or (result,)] == [
            (one.text, one.id) for one in made
        ]
        assert [one.previous for one in result.samples or (result,)] == [
            one.previous for one in made
        ]
        assert {one.id for one in made} == {request.id}
        completions = [one for one in rollout.unwrap().completions if pg.is_ok(one)]
        answers = {one.unwrap().text for one in completions}
        assert all(one.previous is not None and one.previous.text in answers for one in made)


def judge_twice(result: pg.GenerationResult) -> pg.GenerationRequest:
    request = judge(result)
    return dataclasses.replace(
        request,
        options=pg.GenerationOptions(
            seed=request.options.seed if request.options else 0, samples=1 + len(result.text) % 2
        ),
    )


@given(st.lists(sampled, max_size=4), st.integers(0, 4))
def test_a_pipeline_of_routes_gives_a_request_what_it_gives_it_alone(
    asked: list[Any], cut: int
) -> None:
    pipe = pg.route(engine()) >> pg.pure("judge", judge_twice) >> pg.route(engine(), name="judge")
    slots = pg.run(pipe, asked)
    assert slots == tuple(pg.run(pipe, [request])[0] for request in asked)
    assert slots == pg.run(pipe, asked[:cut]) + pg.run(pipe, asked[cut:])
    assert asyncio.run(pg.arun(pipe, asked)) == slots
    shown = _joined(list(pg.stream(pipe, asked)))
    for index, slot in enumerate(slots):
        if pg.is_ok(slot):
            texts = {
                (index, sample): one.unwrap().text
                for sample, one in enumerate(slot.unwrap().completions)
                if pg.is_ok(one)
            }
            assert {place: text for place, text in shown.items() if place[0] == index} == {
                place: text for place, text in texts.items() if text
            }


def _one(request: Any, sample: int) -> Any:
    seed = derive_seed(request.options.seed, sample)
    return dataclasses.replace(
        request, options=dataclasses.replace(request.options, seed=seed, samples=1)
    )


@given(st.lists(sampled, max_size=4))
def test_a_pipe_that_does_not_put_samples_together_refuses_them(asked: list[Any]) -> None:
    one = engine()
    stages = pg.stages
    whole = (
        stages.resolve(one)
        >> stages.render(one)
        >> stages.tokenize(one)
        >> pg.call(one)
        >> stages.decode(one)
    )
    texts = whole >> pg.pure("text", lambda decoded: decoded.text)
    for request, slot in zip(asked, pg.run(texts, asked), strict=True):
        if request.options.samples > 1:
            assert isinstance(slot.failure(), pg.UnsupportedOption)
            assert slot.failure().option == "samples"  # type: ignore[attr-defined]
        else:
            assert pg.is_ok(slot) or not isinstance(slot.failure(), pg.UnsupportedOption)


def keep(value: Any) -> Any:
    return value


@given(requests, st.sampled_from(("resolve", "render", "tokenize", "fit")))
def test_a_stage_before_the_call_changes_nothing_of_the_stream(
    asked: list[Any], place: str
) -> None:
    plain = pg.route(engine())
    for route in (
        plain.insert(pg.pure("own", keep), after=place),
        plain.insert(pg.pure("own", keep), before=place),
        pg.pure("own", keep) >> plain,
    ):
        assert list(pg.stream(route, asked)) == list(pg.stream(plain, asked))


@given(requests, st.sampled_from(("call", "decode", "stop", "trim")), st.booleans())
def test_a_stage_after_the_call_holds_text_back_unless_it_says_that_it_keeps_it(
    asked: list[Any], place: str, keeps: bool
) -> None:
    plain = pg.route(engine())
    route = plain.insert(pg.pure("own", keep, keeps_text=keeps), after=place)
    events, own = list(pg.stream(plain, asked)), list(pg.stream(route, asked))
    if keeps:
        assert own == events
    else:
        # one without its form fails at its end
        answered = {
            event.index for event in events if isinstance(event, pg.Done) and pg.is_ok(event.slot)
        }
        first, second = (
            {row: text for row, text in _joined(given).items() if row[0] in answered}
            for given in (own, events)
        )
        assert first == second
        deltas = [(event.index, event.sample) for event in own if isinstance(event, pg.Delta)]
        assert len(deltas) == len(set(deltas))  # the whole text of a row at once


def _joined(events: list[Any]) -> dict[tuple[int, int], str]:
    texts: dict[tuple[int, int], str] = {}
    for event in events:
        if isinstance(event, pg.Delta):
            texts[event.index, event.sample] = (
                texts.get((event.index, event.sample), "") + event.text
            )
    return texts


@given(requests, st.none() | strategies.generation_options())
def test_a_watched_pipe_gives_what_it_gives_unwatched(asked: list[Any], options: Any) -> None:
    seen: list[Any] = []
    plain = pg.route(engine()) >> pg.pure("judge", judge) >> pg.route(engine(), name="judge")
    watched = pg.watched(plain, seen.append)
    assert pg.run(watched, asked, options) == pg.run(plain, asked, options)
    assert list(pg.stream(watched, asked, options)) == list(pg.stream(plain, asked, options))


@given(requests)
def test_replacing_a_stage_by_the_same_one_changes_nothing(asked: list[Any]) -> None:
    one, two = engine(), engine()
    again = pg.route(two)
    for name, make in (
        ("resolve", pg.stages.resolve),
        ("decode", pg.stages.decode),
        ("stop", pg.stages.stop),
        ("trim", pg.stages.trim),
    ):
        again = again.replace(name, make(two))
    assert pg.run(again, asked) == pg.run(pg.route(one), asked)
    assert list(pg.stream(again, asked)) == list(pg.stream(pg.route(one), asked))


@given(requests, st.integers(0, 7))
def test_stages_of_a_pipe_joined_by_hand_are_edited_by_name_as_those_of_a_route(
    asked: list[Any], place: int
) -> None:
    own = engine()
    closed = pg.route(own)
    asking = (
        pg.stages.resolve(own)
        >> pg.stages.render(own)
        >> pg.stages.tokenize(own)
        >> pg.stages.fit(own)
    )
    by_hand = (
        asking
        >> pg.call(own)
        >> pg.stages.decode(own)
        >> pg.stages.stop(own)
        >> pg.stages.trim(own)
    )
    names = [part.name for part in closed.parts]
    look: Any = pg.pure("look", lambda value: value, keeps_text=True)
    again: Any = pg.pure("look", lambda value: value, keeps_text=True)
    for pipe in (
        by_hand.insert(look, after=names[place]),
        by_hand.insert(look, before=names[place]).replace("look", again).remove("look"),
    ):
        assert pg.run(pipe, asked) == pg.run(closed, asked)
        assert list(pg.stream(pipe, asked)) == list(pg.stream(closed, asked))
    first: Any = pg.pure("first", lambda value: value)
    assert pg.run(first.insert(closed, after="first"), asked) == pg.run(closed, asked)


def upper(decoded: Decoded) -> pg.Slot[pg.GenerationResult]:
    options = decoded.raw.encoded.options
    return Success(
        pg.GenerationResult(
            text=decoded.text.upper(),
            raw_text=decoded.raw_text,
            finish=decoded.finish,
            options=options,
        )
    )


@given(st.lists(sampled, max_size=4))
def test_a_stage_in_the_place_of_the_last_one_still_puts_samples_together(asked: list[Any]) -> None:
    own = pg.route(engine()).replace("trim", pg.each("upper", upper))
    for one, other in zip(pg.run(own, asked), pg.run(pg.route(engine()), asked), strict=True):
        assert pg.is_ok(one) == pg.is_ok(other)
        if pg.is_ok(one) and pg.is_ok(other):
            assert [sample.text for sample in one.unwrap().samples] == [
                sample.text.upper() for sample in other.unwrap().samples
            ]


TOY = strategies.toy_engine()


@given(strategies.batches(strategies.rendered(TOY), max_size=4))
def test_prompts_of_a_batch_have_the_ids_that_they_have_alone(batch: Batch[Any]) -> None:
    stage = pg.stages.tokenize(TOY)
    assert stage.apply(batch) == tuple(stage.apply((slot,))[0] for slot in batch)


@given(strategies.rendered(TOY), st.sampled_from(("", "!", " <|im_end|>", "ä")))
def test_a_rewritten_prompt_is_tokenised_as_it_reads(rendered: Any, more: str) -> None:
    if rendered.text is None:
        return
    changed = rendered.rewritten(lambda text: text + more)
    assert changed.text == rendered.text + more
    plain, longer = (
        pg.stages.tokenize(TOY).apply((Success(one),))[0] for one in (rendered, changed)
    )
    if pg.is_ok(plain) and pg.is_ok(longer):
        assert (
            longer.unwrap().prompt.compact_token_ids
            == plain.unwrap().prompt.compact_token_ids + TOY.tokenizer.encode(more)
        )


@given(strategies.encoded(TOY))
def test_fit_changes_at_most_how_much_may_be_generated(encoded: Encoded) -> None:
    small = FakeEngine("", context_length=40)
    (slot,) = pg.stages.fit(small).apply((Success(encoded),))
    if pg.is_ok(slot):
        kept = slot.unwrap()
        assert (kept.prompt, kept.request) == (encoded.prompt, encoded.request)
        assert len(kept.prompt.token_ids) + (kept.options.max_new_tokens or 0) <= 40


@given(strategies.decoded(TOY))
def test_stop_and_trim_give_a_text_that_the_decoded_one_begins_with(decoded: Decoded) -> None:
    (stopped,) = pg.stages.stop(TOY).apply((Success(decoded),))
    assert decoded.text.startswith(stopped.unwrap().text)
    (trimmed,) = pg.stages.trim(TOY).apply((stopped,))
    if is_formless(trimmed):
        assert decoded.raw.encoded.options.structured is not None
    else:
        assert trimmed.unwrap().text in decoded.text


def is_formless(slot: pg.Slot[Any]) -> bool:
    """Whether an answer failed since it has not the form that was asked."""
    return not pg.is_ok(slot) and isinstance(slot.failure(), pg.MalformedResponse)


@given(strategies.raws(TOY))
def test_what_is_followed_while_it_streams_is_how_the_result_begins(raw: Any) -> None:
    decode = pg.stages.decode(TOY)
    (follow,) = (step.follow for step in decode.steps if isinstance(step, Stage))
    assert follow is not None
    follower = follow(raw.encoded)
    shown = "".join(
        follower.feed(token_id) for token_id in raw.token_ids if follower.finish is None
    )
    (slot,) = (decode >> pg.stages.stop(TOY) >> pg.stages.trim(TOY)).apply((Success(raw),))
    if is_formless(slot):
        assert raw.encoded.options.structured is not None
    else:
        assert slot.unwrap().text.startswith(shown)
