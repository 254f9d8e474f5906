"""Pipelines of stages: edits by name, samples from one route to the next, plugins and names of
several routes, and records between two stages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.stages import Rendered
from pipegen.stages.gather_samples import derive_seed
from pipegen.testing.fake import FakeEngine

SEEDED = pg.TextGenerationRequest(
    id="T", prompt="Hi", options=pg.GenerationOptions(seed=7, samples=3)
)


def by_seed(encoded: Encoded) -> Any:
    return (
        pg.BackendFailed("no", scope="row")
        if encoded.options.seed == derive_seed(7, 1)
        else f"seed {encoded.options.seed}"
    )


def judge(result: pg.GenerationResult) -> pg.GenerationRequest:
    return pg.TextGenerationRequest(prompt=f"judge {result.text}")


def echo(encoded: Encoded) -> str:
    return encoded.prompt.text or ""


def judged(first: Any = None, **options: Any) -> Any:
    return (
        (first or pg.route(FakeEngine(by_seed)))
        >> pg.pure("judge", judge)
        >> pg.route(FakeEngine(echo), name="judge").with_options(options)
    )


def test_stages_are_inserted_replaced_and_removed_by_name() -> None:
    def shout(result: pg.GenerationResult) -> pg.GenerationResult:
        return dataclasses.replace(result, text=result.text.upper())

    route = pg.route(FakeEngine("a STOP b"))
    stops = pg.GenerationOptions(stop=("STOP",))
    for own, text in (
        (route.insert(pg.pure("shout", shout), after="trim"), "A "),
        (route.insert(pg.pure("look", lambda decoded: decoded), before="stop"), "a "),
        (
            route.replace(
                "stop", pg.pure("mine", lambda decoded: dataclasses.replace(decoded, text="mine"))
            ),
            "mine",
        ),
        (route.remove("fit"), "a "),
        (route.replace("trim", pg.stages.trim(route.engine) >> pg.pure("shout", shout)), "A "),
    ):
        assert type(own) is pg.Route
        assert own.name == "fake"
        assert pg.run(own, [{"prompt": "Hi"}], stops)[0].unwrap().text == text
    assert [part.name for part in route.parts] == [
        "resolve",
        "render",
        "tokenize",
        "fit",
        "call",
        "decode",
        "stop",
        "trim",
    ]


def test_a_wrong_name_place_or_stage_is_refused() -> None:
    route = pg.route(FakeEngine("a"))
    look = pg.pure("look", lambda decoded: decoded)
    with pytest.raises(pg.InvalidField, match="'fake' has no stage 'decod'; did you mean 'decode'"):
        route.insert(look, after="decod")
    with pytest.raises(pg.InvalidField, match="has a stage 'decode' already"):
        route.insert(pg.pure("decode", lambda decoded: decoded), after="stop")
    twice = route >> pg.pure("judge", judge) >> route
    with pytest.raises(
        pg.InvalidField, match="has 2 stages 'decode': edit each pipe before they are joined"
    ):
        twice.remove("decode")
    assert [part.name for part in twice.insert(look, before="judge").parts][8:10] == [
        "look",
        "judge",
    ]
    with pytest.raises(TypeError, match="after another or before it"):
        route.insert(look)
    with pytest.raises(TypeError, match="after another or before it"):
        route.insert(look, after="stop", before="trim")
    with pytest.raises(TypeError, match="a stage is a pipe, not function"):
        route.replace("stop", judge)  # type: ignore[arg-type]  # that is the mistake


def test_each_sample_is_judged_with_its_id_and_its_answer() -> None:
    result = pg.run(judged(), [SEEDED])[0].unwrap()
    answers = [f"seed {derive_seed(7, sample)}" for sample in (0, 2)]
    assert [(one.id, one.text, one.previous.text, one.route) for one in result.samples] == [
        ("T", f"judge {text}", text, "judge") for text in answers
    ]
    assert [(sample, error.message) for sample, error in result.failed_samples] == [(1, "no")]
    assert result.options.samples == 1  # the judge was asked for one


def test_each_sample_of_a_fallback_is_judged_too() -> None:
    both = pg.fallback(
        pg.route(FakeEngine(by_seed)), pg.route(FakeEngine("b"), name="b"), when=pg.Timeout
    )
    assert pg.run(judged(both), [SEEDED, {"prompt": "x"}]) == pg.run(
        judged(), [SEEDED, {"prompt": "x"}]
    )


def test_a_fallback_that_judges_gives_a_judgement_of_each() -> None:
    last = pg.fallback(
        pg.route(FakeEngine(lambda encoded: pg.Timeout("slow"))),
        pg.route(FakeEngine(echo), name="judge"),
        when=pg.Timeout,
    )
    pipe = pg.route(FakeEngine(by_seed)) >> pg.pure("judge", judge) >> last
    result = pg.run(pipe, [SEEDED])[0].unwrap()
    assert [one.text for one in result.samples] == [
        one.text for one in pg.run(judged(), [SEEDED])[0].unwrap().samples
    ]
    assert [type(one.tried[0]) for one in result.samples] == [pg.Timeout] * 2


def test_samples_of_a_judge_are_counted_with_those_that_it_judges() -> None:
    slots = pg.run(judged(samples=2), [SEEDED, {"prompt": "x", "options": {"seed": 1}}])
    assert [len(slot.unwrap().samples) for slot in slots] == [4, 2]
    assert slots[1].unwrap().options.samples == 2
    assert [sample for sample, _ in slots[0].unwrap().failed_samples] == [2]


def test_of_several_routes_the_last_ones_text_is_streamed() -> None:
    events = list(pg.stream(judged(), [SEEDED, {"prompt": "x"}]))
    texts: dict[tuple[int, int], str] = {}
    for event in events:
        if isinstance(event, pg.Delta):
            texts[event.index, event.sample] = (
                texts.get((event.index, event.sample), "") + event.text
            )
    assert texts == {
        (0, 0): "judge seed 7",
        (0, 2): f"judge seed {derive_seed(7, 2)}",
        (1, 0): "judge seed None",
    }
    assert sum(isinstance(event, pg.Delta) for event in events) > 3


def test_streamed_samples_of_a_fallback_are_told_apart() -> None:
    last = pg.fallback(pg.route(FakeEngine(echo)), pg.route(FakeEngine(echo)), when=pg.Timeout)
    ask = pg.pure(
        "judge",
        lambda result: dataclasses.replace(judge(result), options=pg.GenerationOptions(samples=2)),
    )
    pipe = pg.route(FakeEngine(by_seed)) >> ask >> last
    shown = {
        (event.index, event.sample): event.text
        for event in pg.stream(pipe, [SEEDED])
        if isinstance(event, pg.Delta)
    }
    result = pg.run(pipe, [SEEDED])[0].unwrap()
    assert shown == {
        (0, sample): slot.unwrap().text
        for sample, slot in enumerate(result.completions)
        if pg.is_ok(slot)
    }
    assert len(shown) == 4


def test_a_stage_after_the_last_route_sees_all_samples() -> None:
    votes = pg.route(FakeEngine(by_seed)) >> pg.pure("votes", lambda result: len(result.samples))
    assert pg.run(votes, [SEEDED]) == (Success(2),)


def test_samples_are_refused_where_nothing_puts_them_together_and_samples_makes_up_for_it() -> None:
    engine, stages = FakeEngine(by_seed), pg.stages
    before = (
        stages.resolve(engine)
        >> stages.render(engine)
        >> stages.tokenize(engine)
        >> pg.call(engine)
        >> stages.decode(engine)
    )

    def result(decoded: Any) -> pg.GenerationResult:
        options = decoded.raw.encoded.options
        return pg.GenerationResult(
            text=decoded.text, raw_text=decoded.raw_text, finish=decoded.finish, options=options
        )

    pipe = before >> pg.pure("result", result)
    refused = pg.run(pipe, [SEEDED])[0].failure()
    assert isinstance(refused, pg.UnsupportedOption)
    assert (refused.option, refused.message) == (
        "samples",
        "samples=3 takes a pipe that puts them together: none of its stages does",
    )
    assert [one.text for one in pg.run(pg.samples(pipe), [SEEDED])[0].unwrap().samples] == [
        "seed 7",
        f"seed {derive_seed(7, 2)}",
    ]


def test_samples_of_what_holds_only_one_fail_in_words() -> None:
    route = pg.route(FakeEngine(by_seed)).replace(
        "trim", pg.pure("text", lambda decoded: decoded.text)
    )
    alone, several = pg.run(route, [{"prompt": "x"}, SEEDED])
    assert alone == Success("seed None")
    assert several.failure().message == "3 samples came to str, which has no room for more than one"


def test_options_of_a_route_are_for_what_its_requests_leave_open() -> None:
    route = pg.route(FakeEngine("abcdef")).with_options({"max_new_tokens": 2})
    assert [
        slot.unwrap().text
        for slot in pg.run(
            route, [{"prompt": "x"}, {"prompt": "x", "options": {"max_new_tokens": 4}}]
        )
    ] == ["ab", "abcd"]
    assert pg.run(route, [{"prompt": "x"}], {"max_new_tokens": 3})[0].unwrap().text == "abc"
    assert (
        pg.run(judged(max_new_tokens=5), [{"prompt": "x"}], {"max_new_tokens": 4})[0].unwrap().text
        == "judge"
    )
    with pytest.raises(pg.UnknownField, match="did you mean 'temperature'"):
        route.with_options({"temprature": 1.0})


def test_plugins_attach_to_every_route_of_a_pipe_or_to_none() -> None:
    shout = pg.Plugin(name="shout", trim=str.upper)
    first, second = (
        FakeEngine(lambda encoded: pg.Timeout("slow") if encoded.prompt.text == "b" else "a"),
        FakeEngine("b", name="second"),
    )
    both = pg.attach(pg.fallback(pg.route(first), pg.route(second), when=pg.Timeout), shout)
    assert [slot.unwrap().text for slot in pg.run(both, [{"prompt": "a"}, {"prompt": "b"}])] == [
        "A",
        "B",
    ]
    deaf = pg.route(FakeEngine("b", name="deaf", honours=pg.ENGINES["hf"] - {"watch"}))
    with pytest.raises(pg.UnsupportedPlugin, match="deaf does not offer"):
        pg.attach(pg.fallback(pg.route(first), deaf, when=pg.Timeout), pg.plugins.balanced_json())
    seen: list[Any] = []
    watched = pg.attach(
        pg.watched(pg.route(second) >> pg.pure("text", lambda result: result.text), seen.append),
        shout,
    )
    assert pg.run(watched, [{"prompt": "a"}]) == (Success("B"),)
    assert len(seen) == 2


def test_routes_of_one_name_get_different_ones_in_a_fallback() -> None:
    slow = [pg.route(FakeEngine(lambda encoded: pg.Timeout("slow"))) for _ in range(2)]
    last = pg.route(FakeEngine("c"))
    left = pg.fallback(pg.fallback(slow[0], slow[1], when=pg.Timeout), last, when=pg.Timeout)
    right = pg.fallback(slow[0], pg.fallback(slow[1], last, when=pg.Timeout), when=pg.Timeout)
    assert left.routes == right.routes == ("fake", "fake-2", "fake-3")
    assert [pg.run(pipe, [{"prompt": "x"}])[0].unwrap().route for pipe in (left, right)] == [
        "fake-3"
    ] * 2
    named = pg.fallback(slow[0], pg.route(FakeEngine("b"), name="safe"), when=pg.Timeout)
    assert (named.name, pg.run(named, [{"prompt": "x"}])[0].unwrap().route) == (
        "fallback(fake, safe)",
        "safe",
    )


def test_tokens_are_counted_by_the_stages_before_the_call() -> None:
    route = pg.route(FakeEngine("a", context_length=3))
    longer = route.insert(
        pg.pure("more", lambda rendered: rendered.rewritten(lambda text: text + "!!")),
        after="render",
    )
    assert [
        pg.count_tokens(one, {"prompt": "x" * 9, "options": {"samples": 2}}).unwrap()
        for one in (route, longer)
    ] == [9, 11]
    assert isinstance(
        pg.count_tokens(route.remove("tokenize"), {"prompt": "x"}).failure(), pg.UnsupportedOption
    )
    blind = pg.route(FakeEngine("a", honours=pg.ENGINES["hf"] - {"token_ids"}))
    assert isinstance(pg.count_tokens(blind, {"prompt": "x"}).failure(), pg.UnsupportedOption)


def test_a_rendered_prompt_is_one_text() -> None:
    hostile = {"messages": [{"role": "user", "content": "x<|im_end|>"}]}
    route = pg.route(FakeEngine("a"))
    ids = [route.engine.tokenizer.special_tokens[token] for token in ("<|im_end|>",)]

    def more(rendered: Rendered) -> Rendered:
        with pytest.raises(pg.InvalidField, match="are one text"):
            dataclasses.replace(rendered, text="other")
        return rendered.rewritten(lambda text: text + "!")

    result = pg.run(route.insert(pg.pure("more", more), after="render"), [hostile])[0].unwrap()
    assert result.prompt_text == pg.run(route, [hostile])[0].unwrap().prompt_text + "!"  # type: ignore[operator]
    assert result.prompt_token_ids.count(ids[0]) == 1
    plain = route.insert(
        pg.pure("more", lambda rendered: dataclasses.replace(rendered, text=rendered.text + "!")),
        after="render",
    )
    assert pg.run(plain, [{"prompt": "x"}])[
        0
    ].unwrap().prompt_token_ids == route.engine.tokenizer.encode("x!")
    with pytest.raises(pg.InvalidField, match="no text to rewrite"):
        pg.run(
            route.insert(
                pg.pure("more", lambda rendered: rendered.rewritten(str.upper)), after="render"
            ),
            [{"prompt_token_ids": [1]}],
        )
    with pytest.raises(TypeError, match="from text to text; this one gave int"):
        pg.run(
            route.insert(pg.pure("more", lambda rendered: rendered.rewritten(len)), after="render"),
            [{"prompt": "x"}],
        )


class Plain:
    """A backend that only generates."""

    name = "plain"

    def generate(self, inputs: Sequence[int]) -> Sequence[pg.Slot[int]]:
        return [Success(number + 1) for number in inputs]


class Short(Plain):
    def generate(self, inputs: Sequence[int]) -> Sequence[pg.Slot[int]]:
        return []


def test_backends_that_do_not_stream_tell_of_the_end() -> None:
    pipe: Any = pg.pure("one", lambda request: 1) >> pg.call(Plain())
    seen: list[Any] = []
    watched = pg.watched(pipe, seen.append)

    async def streamed(pipe: Any) -> list[Any]:
        return [event async for event in pg.astream(pipe, [{"prompt": "a"}])]

    for one in (pipe, watched):
        events = list(pg.stream(one, [{"prompt": "a"}]))
        # numbers, for once
        assert events == asyncio.run(streamed(one)) == [pg.Done(index=0, slot=Success(2))]  # type: ignore[arg-type]
        assert asyncio.run(pg.arun(one, [{"prompt": "a"}])) == (Success(2),)
    assert [progress.done for progress in seen] == [0, 1] * 3


def test_a_backend_that_loses_a_row_is_a_bug_in_a_stream_too() -> None:
    pipe: Any = pg.pure("one", lambda request: 1) >> pg.call(Short())
    with pytest.raises(pg.ContractError, match="engine plain returned 0 outputs for 1 inputs"):
        list(pg.stream(pipe, [{"prompt": "a"}]))


def test_failed_requests_pass_between_routes() -> None:
    slots = pg.run(judged(), [{"messages": []}, SEEDED, Failure(pg.Timeout("before"))])
    assert [pg.is_ok(slot) for slot in slots] == [False, True, False]
    assert slots[2].failure() == pg.Timeout("before")


def test_a_public_stage_that_does_not_exist_is_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tokenise'"):
        _ = pg.stages.tokenise  # type: ignore[attr-defined]  # type checkers say so too


def by_hand(engine: FakeEngine) -> Any:
    stages = pg.stages
    asking = (
        stages.resolve(engine)
        >> stages.render(engine)
        >> stages.tokenize(engine)
        >> stages.fit(engine)
    )
    return (
        asking
        >> pg.call(engine)
        >> stages.decode(engine)
        >> stages.stop(engine)
        >> stages.trim(engine)
    )


def test_a_pipe_joined_by_hand_is_edited_and_used_as_a_route_is() -> None:
    stops, prompt, look = (
        {"stop": ["STOP"]},
        {"prompt": "x" * 9},
        pg.pure("look", lambda value: value, keeps_text=True),
    )
    for made in (by_hand, pg.route):
        plain: Any = made(FakeEngine("a STOP b"))
        assert [part.name for part in plain.parts] == [
            "resolve",
            "render",
            "tokenize",
            "fit",
            "call",
            "decode",
            "stop",
            "trim",
        ]
        for own in (
            plain.insert(look, before="call"),
            plain.insert(look, after="decode"),
            plain.replace("stop", pg.stages.stop(plain.owns[0])),
            plain.remove("fit"),
        ):
            for pipe in (
                own,
                pg.watched(own, lambda event: None),
                pg.fallback(own, made(FakeEngine("b")), when=pg.Timeout),
            ):
                assert pg.run(pipe, [prompt], stops)[0].unwrap().text == "a "
                assert [
                    one.unwrap().text
                    for one in (
                        pg.run(pipe, [prompt], {**stops, "samples": 3})[0].unwrap().completions
                    )
                ] == ["a "] * 3
                assert (
                    next(
                        event.text
                        for event in pg.stream(pipe, [prompt], stops)
                        if isinstance(event, pg.Delta)
                    )
                    == "a"
                )
                assert (
                    pg.run(
                        pg.attach(pipe, pg.Plugin(name="shout", trim=str.upper)), [prompt], stops
                    )[0]
                    .unwrap()
                    .text
                    == "A "
                )
            assert pg.count_tokens(pg.watched(own, lambda event: None), prompt) == Success(9)
    with pytest.raises(pg.InvalidField, match="has no stage 'cal'; did you mean 'call'"):
        by_hand(FakeEngine("a")).insert(look, before="cal")


@pytest.mark.parametrize("wrong", [3, b"stop", pg.pure("stop", str)])
def test_a_stage_is_found_by_a_text_alone(wrong: Any) -> None:
    route, look = pg.route(FakeEngine("a")), pg.pure("look", str)
    for edit in (
        lambda: route.remove(wrong),
        lambda: route.replace(wrong, look),
        lambda: route.insert(look, after=wrong),
    ):
        with pytest.raises(TypeError, match="a stage is found by its name, not by"):
            edit()


def test_new_stages_of_one_name_are_refused_as_one_that_is_taken_is() -> None:
    look = pg.pure("look", lambda decoded: decoded)
    with pytest.raises(pg.InvalidField, match="has a stage 'look' already"):
        pg.route(FakeEngine("a")).insert(look >> look, after="decode")
    for lift in (pg.each, pg.pure):
        with pytest.raises(TypeError, match="a name and a function are wanted"):
            lift("", judge)


@pytest.mark.parametrize(
    "stage", ["resolve", "render", "tokenize", "fit", "call", "decode", "stop", "trim"]
)
def test_a_stage_is_bound_to_an_engine_not_to_its_route(stage: str) -> None:
    bind: Any = pg.call if stage == "call" else getattr(pg.stages, stage)
    for wrong, kind in (
        (pg.route(FakeEngine("a")), "Route"),
        ("embedded", "str"),
        (None, "NoneType"),
    ):
        with pytest.raises(
            TypeError,
            match=(
                f"{stage} is bound to an engine, not to {kind}: route.engine is the engine of a"
                " route"
            ),
        ):
            bind(wrong)


@pytest.mark.parametrize("stage", ["render", "tokenize", "fit", "decode", "stop"])
def test_an_engine_that_renders_by_itself_has_three_stages(stage: str) -> None:
    pytest.importorskip("aiohttp")
    engine = pg.backends.openai_server("any", base_url="http://127.0.0.1:9").engine
    with pytest.raises(
        TypeError, match=f"has no stage {stage}: its stages are resolve, call and trim"
    ):
        getattr(pg.stages, stage)(engine)


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        (
            "resolve",
            "'render' takes ResolvedRequest, and what comes before it gave TextGenerationRequest",
        ),
        ("render", "'tokenize' takes Rendered, and 'resolve' before it gave ResolvedRequest"),
        ("tokenize", "'fit' takes Encoded, and 'render' before it gave Rendered"),
        ("call", "'decode' takes Raw, and 'fit' before it gave Encoded"),
        ("decode", "'stop' takes Decoded, and 'call' before it gave Raw"),
    ],
)
def test_a_stage_says_what_it_takes_when_one_before_it_is_missing(removed: str, words: str) -> None:
    pipe = pg.route(engine := FakeEngine("a")).remove(removed)
    for driver in (
        pg.run,
        lambda *given: list(pg.imap(*given)),
        lambda *given: list(pg.stream(*given)),
    ):
        with pytest.raises(pg.ContractError, match=words):
            driver(pipe, [{"prompt": "Hi"}])
    assert engine.calls == []


def test_a_route_that_may_never_be_reached_is_looked_at_too() -> None:
    first = FakeEngine("a")
    second = pg.route(FakeEngine("b", name="second")).remove("call")
    with pytest.raises(pg.ContractError, match="'decode' takes Raw, and 'fit' before it gave"):
        pg.run(pg.fallback(pg.route(first), second, when=pg.Timeout), [{"prompt": "Hi"}])
    assert first.calls == []


def test_each_stage_gives_the_record_that_it_names_and_the_next_one_takes() -> None:
    seen: list[tuple[str, type]] = []

    def see(name: str) -> Any:
        def note(value: object) -> object:
            seen.append((name, type(value)))
            return value

        return pg.pure(f"after {name}", note)

    route = watched = pg.route(FakeEngine("a"))
    stages = [step for step in route.steps if step.name]
    for stage in stages:
        watched = watched.insert(see(stage.name), after=stage.name)
    assert pg.run(watched, [{"prompt": "Hi"}])[0].map(lambda result: result.text) == Success("a")
    assert seen == [(stage.name, stage.gives) for stage in stages]
    for before, stage in itertools.pairwise(stages):
        assert before.gives is stage.takes is not object


def test_a_plugin_that_trims_is_refused_where_no_stage_trims() -> None:
    texts = pg.route(FakeEngine("a")).replace("trim", pg.pure("text", lambda decoded: decoded.text))
    with pytest.raises(
        pg.UnsupportedPlugin, match="'shout' trims the text, and none of the stages of fake does"
    ):
        pg.attach(texts, pg.Plugin(name="shout", trim=str.upper))
    assert pg.run(
        pg.attach(
            texts, pg.Plugin(name="quiet", start=list, feed=lambda state, new: (state, None))
        ),
        [{"prompt": "Hi"}],
    ) == (Success("a"),)


def test_what_is_no_pipe_is_refused_where_it_is_given() -> None:
    route: Any = pg.route(FakeEngine("a"))
    wrong: Any = FakeEngine("a")
    for give in (
        lambda: pg.fallback(route, wrong, when=pg.Timeout),
        lambda: pg.fallback(wrong, route, when=pg.Timeout),
        lambda: pg.samples(wrong),
        lambda: pg.watched(wrong, print),
        lambda: pg.GenerationEngine(wrong),
    ):
        with pytest.raises(TypeError, match="FakeEngine"):
            give()
    with pytest.raises(TypeError, match="a function of its progress"):
        pg.watched(route, None)  # type: ignore[arg-type]  # that is the mistake
    for name in (3, ""):
        with pytest.raises(TypeError, match="the name of a route is a text that is not empty"):
            pg.route(wrong, name=name)  # type: ignore[arg-type]  # that is the mistake


def test_a_pipe_is_shown_by_its_stages() -> None:
    route = pg.route(FakeEngine("a"))
    assert (
        repr(route)
        == "<Route fake: resolve >> render >> tokenize >> fit >> call >> decode >> stop >> trim>"
    )
    assert repr(pg.pure("one", str) >> pg.pure("two", str)) == "<Pipe one >> two>"
    assert repr(pg.fallback(route, route, when=pg.Timeout)) == "<Pipe fallback(fake, fake-2)>"


def test_a_request_that_a_stage_makes_takes_its_images_as_bytes() -> None:
    def seen(image: Any) -> Any:
        look = pg.pure(
            "look",
            lambda result: pg.VlmGenerationRequest(prompt=result.text, images=[b"first", image]),
        )
        return pg.route(FakeEngine("a")) >> look >> pg.route(FakeEngine(echo), name="eyes")

    requests: Any = [{"prompt": "Hi"}, {"prompt": "Ho"}]
    for slot in pg.run(seen("docs/no-such.png"), requests):
        assert isinstance(slot.failure(), pg.BadImage)
        assert slot.failure().index == 1
        assert "'docs/no-such.png'" in slot.failure().message
        assert "read_bytes()" in slot.failure().hint
    assert all(map(pg.is_ok, pg.run(seen(b"second"), requests)))
