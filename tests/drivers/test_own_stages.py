"""A pipeline with a stage of one's own in each of its places, as docs/pipelines.md teaches it, on
each kind of engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.stopping_server import StoppingServer
from support.ways import differing_ways

import pipegen as pg
from pipegen.records.results import ChatOutput
from pipegen.stages import Decoded, Encoded, Raw, Rendered, ResolvedRequest
from pipegen.testing.fake import FakeEngine
from pipegen.testing.faulty import EOS, FaultyServer


def politely(request: pg.GenerationRequest) -> pg.GenerationRequest:
    return dataclasses.replace(request, prompt=f"{request.prompt}, please")


def briefly(resolved: ResolvedRequest) -> ResolvedRequest:
    options = dataclasses.replace(resolved.options, max_new_tokens=9)
    return dataclasses.replace(resolved, options=options)


def begun(rendered: Rendered) -> Rendered:
    return rendered.rewritten(lambda text: f"{text} See: ")


def not_long(encoded: Encoded) -> pg.Slot[Encoded]:
    if len(encoded.prompt.token_ids) > 40:
        return pg.Failure(pg.StageFailed("the prompt is long", stage="not long"))
    return pg.Success(encoded)


def more_briefly(encoded: Encoded) -> Encoded:
    options = dataclasses.replace(encoded.options, max_new_tokens=7)
    return dataclasses.replace(encoded, options=options)


def without_the_first(raw: Raw) -> Raw:
    return dataclasses.replace(raw, token_ids=raw.token_ids[1:])


def loud(decoded: Decoded) -> Decoded:
    return dataclasses.replace(decoded, text=decoded.text.upper())


def quoted(decoded: Decoded) -> Decoded:
    return dataclasses.replace(decoded, text=f"<{decoded.text}>")


def ended(result: pg.GenerationResult) -> pg.GenerationResult:
    return dataclasses.replace(result, text=f"{result.text} {result.finish.value}")


def with_its_own_stages(route: pg.Route) -> pg.Route:
    return (
        route.insert(pg.pure("politely", politely), before="resolve")
        .insert(pg.pure("briefly", briefly), after="resolve")
        .insert(pg.pure("begun", begun), after="render")
        .insert(pg.each("not long", not_long), after="tokenize")
        .insert(pg.pure("more briefly", more_briefly), after="fit")
        .insert(pg.pure("without the first", without_the_first), after="call")
        .insert(pg.pure("loud", loud), after="decode")
        .insert(pg.pure("quoted", quoted), after="stop")
        .insert(pg.pure("ended", ended), after="trim")
    )


def joined_by_hand(engine: Any) -> Any:
    stages = pg.stages
    asked = (
        pg.pure("politely", politely)
        >> stages.resolve(engine)
        >> pg.pure("briefly", briefly)
        >> stages.render(engine)
        >> pg.pure("begun", begun)
        >> stages.tokenize(engine)
        >> pg.each("not long", not_long)
        >> stages.fit(engine)
        >> pg.pure("more briefly", more_briefly)
    )
    answered = (
        pg.pure("without the first", without_the_first)
        >> stages.decode(engine)
        >> pg.pure("loud", loud)
        >> stages.stop(engine)
        >> pg.pure("quoted", quoted)
        >> stages.trim(engine)
        >> pg.pure("ended", ended)
    )
    return asked >> pg.call(engine) >> answered


def on_fake(stack: ExitStack) -> pg.Route:
    return pg.route(FakeEngine(lambda row: [*reversed(row.prompt.token_ids), EOS]))


def on_embedded(stack: ExitStack) -> pg.Route:
    pytest.importorskip("torch")
    return pg.backends.hf("embedded")


def on_token_server(stack: ExitStack) -> pg.Route:
    pytest.importorskip("aiohttp")
    pytest.importorskip("transformers")
    return pg.backends.vllm_server("embedded", base_url=stack.enter_context(FaultyServer()).url)


@pytest.fixture(params=[on_fake, on_embedded, on_token_server])
def route(request: pytest.FixtureRequest) -> Iterator[pg.Route]:
    make: Callable[[ExitStack], pg.Route] = request.param
    with ExitStack() as stack:
        yield stack.enter_context(make(stack))


REQUESTS: list[Any] = [
    {"prompt": "Say hello"},
    {"prompt": "Count " * 40},
    {"prompt": "Hi", "options": {"samples": 2}},
]


def test_there_is_a_stage_in_each_of_the_nine_places(route: pg.Route) -> None:
    pipe = with_its_own_stages(route)
    plain = pg.run(route, [{"prompt": "Say hello, please See: "}], {"max_new_tokens": 7})
    decode, special = route.engine.tokenizer.decode, route.engine.tokenizer.special_tokens.values()
    ids = [one for one in plain[0].unwrap().token_ids[1:] if one not in special]
    text = decode(ids).upper()
    stop = text[len(text) // 2 :]
    first, long, several = pg.run(pipe, REQUESTS, {"stop": [stop]})
    assert first.unwrap().text == f"<{text.partition(stop)[0]}> stop_string"
    assert long.failure() == pg.StageFailed("the prompt is long", stage="not long")
    assert len(several.unwrap().completions) == 2
    assert pg.run(joined_by_hand(route.engine), REQUESTS, {"stop": [stop]}) == (
        first,
        long,
        several,
    )
    assert differing_ways(pipe, REQUESTS, {"stop": [stop]}) == []


def test_a_chat_server_has_four_places() -> None:
    pytest.importorskip("aiohttp")

    def told(output: ChatOutput) -> ChatOutput:
        return dataclasses.replace(output, text=f"<{output.text.upper()}>")

    with (
        StoppingServer() as server,
        pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route,
    ):
        pipe = (
            route.insert(pg.pure("politely", politely), before="resolve")
            .insert(pg.pure("briefly", briefly), after="resolve")
            .insert(pg.pure("told", told), after="call")
            .insert(pg.pure("ended", ended), after="trim")
        )
        engine = route.engine
        by_hand = (
            pg.pure("politely", politely)
            >> pg.stages.resolve(engine)
            >> pg.pure("briefly", briefly)
            >> pg.call(engine)
            >> pg.pure("told", told)
            >> pg.stages.trim(engine)
            >> pg.pure("ended", ended)
        )
        options = {"stop": ["he"]}
        slots = pg.run(pipe, REQUESTS, options)
        texts = ["<SAY > stop_string", "<COUNT COU> length", "<HI, PLEAS> length"]
        assert [slot.unwrap().text for slot in slots] == texts
        assert pg.run(by_hand, REQUESTS, options) == slots
        assert differing_ways(pipe, REQUESTS, options) == []
