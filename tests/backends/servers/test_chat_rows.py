"""What is made of a chat row: stops that a server cuts away, logprobs, and plugins that watch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.servers import openai
from pipegen.backends.servers.chat_engine import ChatRow, result_of
from pipegen.backends.servers.wire import Completion, Facts
from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import ResolvedRequest
from pipegen.testing.faulty import FaultyServer

MESSAGES = ({"role": "user", "content": "Hi"},)


def row(*stops: str, plugins: tuple[Plugin, ...] = (), **more: Any) -> ChatRow:
    options = resolve(GenerationOptions(stop=StopOptions(stop=stops, **more)))
    return ChatRow(
        ResolvedRequest(request=pg.TextGenerationRequest(prompt="Hi"), options=options), plugins
    )


@pytest.mark.parametrize(
    ("stops", "text", "taken", "wanted"),
    [
        (("END",), "a", "END", ("a", "END")),
        # another stop completes within the one that the server took
        (("abcd", "bc"), "x", "abcd", ("xa", "bc")),
        (("b", "ab"), "xa", "b", ("x", "ab")),  # both complete at the same character
        # the server looked for them in their order
        (("lo", "world"), "hello, ", "world", ("hel", "lo")),
        (("END",), "a", None, ("a", None)),
        (("END",), "a", "other", ("a", None)),
    ],
)
def test_a_stop_that_the_server_cut_away_is_judged_with_the_text(
    stops: tuple[str, ...], text: str, taken: str | None, wanted: tuple[str, str | None]
) -> None:
    for pieces in ([text], list(text)):
        collected = row(*stops)
        shown = [collected.take(Completion(text=piece)).text for piece in pieces]
        shown.append(collected.take(Completion(finish="stop", stop=taken)).text)
        said = collected.slot().unwrap()
        assert (said.text, said.stop) == wanted
        assert "".join(shown) == said.text
        assert said.finish is (pg.Finish.EOS if wanted[1] is None else pg.Finish.STOP_STRING)


def test_a_server_may_end_a_row_only_where_its_end_can_be_told() -> None:
    free, by_ids = (
        resolve(GenerationOptions(stop=StopOptions(stop=("a",), stop_token_ids=ids)))
        for ids in ((), (7,))
    )
    found = {
        dialect: [
            "stops" in openai.DIALECTS[dialect].server_side_stops(options)
            for options in (free, by_ids)
        ]
        for dialect in openai.DIALECTS
    }
    assert found == {"vllm": [True, True], "sglang": [True, False], "plain": [False, False]}


TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "get", "arguments": {}}'


@pytest.mark.parametrize(
    ("text", "finish", "tools", "words"),
    [
        (CALL, "stop", [TOOL], "the server gave the call as text"),
        (CALL[:20], "length", [TOOL], "the answer was cut within a tool call: max_new_tokens=9"),
        (CALL, "stop", [], None),
        ("It is sunny.", "stop", [TOOL], None),
    ],
)
def test_a_call_that_the_server_gave_as_text_says_so(
    text: str, finish: str, tools: Any, words: str | None
) -> None:
    request = pg.TextGenerationRequest(messages=MESSAGES, tools=tools)
    options = resolve(GenerationOptions(max_new_tokens=9))
    collected = ChatRow(ResolvedRequest(request=request, options=options))
    collected.take(Completion(text=text, finish=finish))
    result = result_of(collected.slot().unwrap(), "vllm_chat", ()).unwrap()
    assert result.tool_calls_unread == words or str(result.tool_calls_unread).startswith(str(words))


# Logprobs


def body(ask: Any, dialect: str, **more: Any) -> Any:
    return (
        openai.DIALECTS[dialect].to_wire(ask((), messages=MESSAGES, **more), Facts()).unwrap().body
    )


def test_logprobs_are_asked_for_so_that_their_tokens_have_ids(ask: Any) -> None:
    said = body(ask, "vllm", logprobs=True, top_logprobs=2)
    assert (
        said["logprobs"],
        said["top_logprobs"],
        said["return_tokens_as_token_ids"],
        said["return_token_ids"],
    ) == (True, 2, True, True)
    # the drawn one is among them
    assert body(ask, "vllm", logprobs=True, top_logprobs=2, temperature=1.0)["top_logprobs"] == 3
    said = body(ask, "sglang", logprobs=True, top_logprobs=2)
    assert (said["top_logprobs"], said["return_token_ids"], said["return_meta_info"]) == (
        2,
        True,
        True,
    )
    assert "logprobs" not in body(ask, "vllm")
    assert "return_meta_info" not in body(ask, "sglang")


@pytest.mark.parametrize(
    ("dialect", "options", "option"),
    [
        ("sglang", {"logprobs": True, "stream": True}, "logprobs"),
        ("sglang", {"logprobs": True, "temperature": 0.5}, "logprobs"),
        ("sglang", {"logprobs": "processed"}, "logprobs"),
        ("vllm", {"logprobs": "processed"}, "logprobs"),
        ("vllm", {"temperature": 0.001}, "temperature"),
        ("vllm", {"logprobs": True, "top_logprobs": 20, "temperature": 1.0}, "top_logprobs"),
        (
            "vllm",
            {"min_new_tokens": 2, "stop": StopOptions(ignore_eos=True), "ending_ids": (7,)},
            "min_new_tokens",
        ),
        ("vllm", {"extra_body": {"n": 2}}, "n"),
        ("plain", {"extra_body": {"stream": True}}, "stream"),
        ("sglang", {"extra_body": {"messages": None}}, "messages"),
    ],
)
def test_what_a_chat_server_would_do_otherwise_is_refused_by_name(
    ask: Any, dialect: str, options: dict[str, Any], option: str
) -> None:
    error = (
        openai.DIALECTS[dialect]
        .to_wire(ask((), messages=MESSAGES, **options), Facts(about={"max_logprobs": 20}))
        .failure()
    )
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == option


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_what_comes_behind_the_end_token_is_no_answer_that_a_chat_server_can_read(
    dialect: str, server: FaultyServer
) -> None:
    """It shows end tokens in the text, or takes what was written for reasoning; only ids would say
    what was written.
    """
    with pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as route:
        error = pg.run(
            route, [{"prompt": "a"}], pg.GenerationOptions(stop=pg.StopOptions(ignore_eos=True))
        )[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, f"{dialect}_server" in error.hint, len(server.bodies)) == (
        "ignore_eos",
        True,
        0,
    )


def test_a_repetition_penalty_is_refused_where_the_server_has_another_one_and_its_neutral_value_is_sent(
    ask: Any, server: FaultyServer
) -> None:
    """SGLang counts the answer alone, by either route; a checkpoint's own default must not count
    there.
    """
    with pg.backends.openai_server("toy", base_url=server.url, dialect="sglang") as route:
        error = pg.run(route, [{"prompt": "a"}], pg.GenerationOptions(repetition_penalty=1.5))[
            0
        ].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, "sglang" in error.hint, len(server.bodies)) == (
        "repetition_penalty",
        False,
        0,
    )
    assert [body(ask, dialect)["repetition_penalty"] for dialect in ("vllm", "sglang")] == [
        1.0,
        1.0,
    ]
    assert body(ask, "vllm", min_new_tokens=2)["min_tokens"] == 2


def named(*ids: int) -> dict[str, Any]:
    tops = [{"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:8", "logprob": -0.1}]
    return {
        "content": [
            {"token": f"token_id:{number}", "logprob": -0.5, "bytes": None, "top_logprobs": tops}
            for number in ids
        ]
    }


def answer(**more: Any) -> dict[str, Any]:
    return {
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"content": "ab"},
                "delta": {"content": "ab"},
                "token_ids": [5, 6],
                **more,
            }
        ]
    }


def test_logprobs_are_read_from_either_engine(ask: Any) -> None:
    asked = ask(logprobs=True, top_logprobs=1)
    meta = {
        "output_token_logprobs": [[-0.5, 5, "a"], [-0.5, 6, "b"]],
        "output_top_logprobs": [[[-0.5, 5, None], [-0.1, 8, None]]] * 2,
    }
    for said in (
        answer(logprobs=named(5, 6)),
        answer(
            token_ids=None,
            response_token_ids=[5, 6],
            meta_info=meta,
            logprobs={"content": [{"token": "a", "logprob": -0.5}]},
        ),
    ):
        (completion,) = openai.from_wire(said, asked).unwrap()
        assert [
            (entry.token_id, entry.logprob, entry.top) for entry in completion.logprobs or ()
        ] == [(5, -0.5, ((8, -0.1),)), (6, -0.5, ((8, -0.1),))]


@pytest.mark.parametrize(
    ("more", "index"),
    [
        ({}, 0),
        ({"logprobs": named(5)}, 1),
        ({"logprobs": named(5, 7)}, 1),
        # a text, not an id
        ({"logprobs": {"content": [{"token": "5", "logprob": -0.5, "top_logprobs": []}] * 2}}, 0),
        ({"meta_info": {}, "logprobs": named(5, 6)}, 0),
    ],
)
def test_logprobs_without_their_tokens_ids_are_malformed(
    ask: Any, more: dict[str, Any], index: int
) -> None:
    error = openai.from_wire(answer(**more), ask(logprobs=True)).failure()
    assert isinstance(error, pg.MalformedResponse)
    assert f"token {index}" in error.message


def test_logprobs_of_more_tokens_than_there_are_are_malformed(ask: Any) -> None:
    for ids in ([5], None):
        assert isinstance(
            openai.from_wire(
                answer(logprobs=named(5, 6), token_ids=ids), ask(logprobs=True)
            ).failure(),
            pg.MalformedResponse,
        )


def test_the_logprobs_of_a_stream_are_joined(ask: Any) -> None:
    options = resolve(GenerationOptions(logprobs=True))
    collected = ChatRow(
        ResolvedRequest(request=pg.TextGenerationRequest(prompt="Hi"), options=options)
    )
    for said, seen in (
        (answer(logprobs=named(5, 6), finish_reason=None), 0),
        (answer(logprobs=named(7), token_ids=[7]), 2),
    ):
        (piece,) = openai.from_event(
            said, ask(stream=True)._replace(options=options), seen
        ).unwrap()
        collected.take(piece)
    said = collected.slot().unwrap()
    assert [entry.token_id for entry in said.logprobs or ()] == [5, 6, 7] == list(said.token_ids)
    bad = openai.from_event(
        answer(logprobs=named(9), token_ids=[7]),
        ask(stream=True)._replace(options=options),
        2,
    ).failure()
    assert "token 2" in bad.message


# Plugins


def until(mark: str, kept: int = 1, name: str = "until") -> Plugin:
    """Halts at a character; `kept` of 0 leaves it out."""
    return Plugin(
        name=name,
        start=lambda: None,
        feed=lambda state, text: (None, text.index(mark) + kept if mark in text else None),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stops", "plugin", "wanted"),
    [
        ((), until("}"), ("{ab}", pg.Finish.PLUGIN, "until")),
        ((), until("}", 0), ("{ab", pg.Finish.PLUGIN, "until")),
        (("c",), until("}"), ("{ab}", pg.Finish.PLUGIN, "until")),
        (("ab",), until("}"), ("{", pg.Finish.STOP_STRING, "ab")),
        (("}",), until("}"), ("{ab", pg.Finish.STOP_STRING, "}")),
        # the plugin halts in what a stop holds back
        (("b} cZ",), until("}"), ("{ab}", pg.Finish.PLUGIN, "until")),
        (("b} cZ",), until("}", 0), ("{ab", pg.Finish.PLUGIN, "until")),
        ((), until("!"), ("{ab} c", pg.Finish.EOS, None)),
    ],
)
def test_a_plugin_halts_at_the_same_character_however_the_text_comes(
    size: int, stops: tuple[str, ...], plugin: Plugin, wanted: Any
) -> None:
    collected, text, shown = row(*stops, plugins=(plugin,)), "{ab} c", ""
    for start in range(0, len(text), size):
        shown += collected.take(Completion(text=text[start : start + size])).text
    shown += collected.take(Completion(finish="stop")).text
    said = collected.slot().unwrap()
    assert (said.text, said.finish, said.stop) == wanted
    assert shown == said.text


def test_a_plugin_sees_the_stop_that_the_server_cut_away() -> None:
    collected = row("} c", plugins=(until("}"),))
    collected.take(Completion(text="{ab", finish="stop", stop="} c"))
    said = collected.slot().unwrap()
    assert (said.text, said.finish) == ("{ab}", pg.Finish.PLUGIN)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    pytest.importorskip("aiohttp")
    with FaultyServer() as running:
        running.keeps_bodies = True
        yield running


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "plain"])
def test_a_halted_row_is_followed_and_left(server: FaultyServer, dialect: str) -> None:
    with pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as plain:
        route = pg.attach(plain, until("}"), Plugin(name="shout", trim=str.upper))
        result = pg.run(route, [{"prompt": "on os dna }ba{"}])[0].unwrap()
        streamed = list(pg.stream(route, [{"prompt": "on os dna }ba{"}]))
        other = pg.run(plain, [{"prompt": "}a"}])[0].unwrap()
    assert (result.text, result.finish, result.stop, result.route) == (
        "{AB}",
        pg.Finish.PLUGIN,
        "until",
        f"{plain.name}",
    )
    assert "".join(event.text for event in streamed if isinstance(event, pg.Delta)) == "{AB}"
    # the route without the plugin is as it was
    assert (other.text, "stream" in server.bodies[-1]) == ("a}", False)
    assert server.bodies[0]["stream"] is True


def test_a_plugin_that_fails_fails_its_row_alone(server: FaultyServer) -> None:
    def feed(state: None, text: str) -> tuple[None, int | None]:
        if "!" in text:
            raise ValueError("no")
        return None, None

    with pg.backends.openai_server("toy", base_url=server.url) as plain:
        route = pg.attach(plain, Plugin(name="careless", start=lambda: None, feed=feed))
        bad, good = pg.run(route, [{"prompt": "a!b"}, {"prompt": "ab"}])
    assert isinstance(bad.failure(), pg.PluginFailed)
    assert good.unwrap().text == "ba"


def test_what_a_chat_route_cannot_do_for_a_plugin_is_reported(server: FaultyServer) -> None:
    with pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as plain:
        hooks = pg.plugins.hf_hooks(stopping_criteria=lambda row: None)
        with pytest.raises(pg.UnsupportedPlugin):
            pg.attach(plain, hooks)
        with pytest.raises(pg.UnsupportedPlugin):
            pg.attach(plain, Plugin(name="ids", requires=frozenset({"token_ids"})))
        route = pg.attach(plain, until("}"))
        error = pg.run(route, [{"prompt": "a"}], pg.GenerationOptions(min_new_tokens=2))[
            0
        ].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "min_new_tokens"
    assert json.dumps(server.bodies) == "[]"


# Images that a server's model does not take


def asked_with_an_image(route: pg.Route) -> list[Any]:
    from pipegen.testing.image_files import image_file

    looks = pg.VlmGenerationRequest(prompt="Hi", images=[image_file(width=8, height=8)])
    return [pg.run(route, [looks, {"prompt": "ab"}]) for _ in range(2)]


def test_images_are_refused_where_sglang_says_that_its_model_takes_none(
    server: FaultyServer,
) -> None:
    server.answers["/model_info"] = (200, {"has_image_understanding": False})
    with pg.backends.openai_server("toy", base_url=server.url, dialect="sglang") as route:
        assert "images" in route.engine.capabilities.honours  # nothing is asked before a call
        for image_file, text in asked_with_an_image(route):
            assert isinstance(image_file.failure(), pg.UnsupportedMultimodal)
            assert text.unwrap().text == "ba"
        assert "images" not in route.engine.capabilities.honours
    assert not [body for body in server.bodies if "image_url" in json.dumps(body)]


def test_images_are_refused_after_vllm_reported_that_its_model_takes_none(
    server: FaultyServer,
) -> None:
    server.answers["/v1/chat/completions"] = (
        400,
        {"error": {"message": "toy is not a multimodal model", "type": "BadRequestError"}},
    )
    with pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route:
        for image_file, text in asked_with_an_image(route):
            assert isinstance(image_file.failure(), pg.UnsupportedMultimodal)
            # of a request without images it says nothing
            assert isinstance(text.failure(), pg.InvalidRequest)
        assert "images" not in route.engine.capabilities.honours


def test_a_limit_for_prompts_is_refused_where_their_length_is_not_known(
    server: FaultyServer,
) -> None:
    with pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route:
        error = pg.run(route, [{"prompt": "a"}], pg.GenerationOptions(max_prompt_tokens=5))[
            0
        ].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "max_prompt_tokens"


@pytest.mark.parametrize(
    ("finish", "made", "wanted"),
    [
        ("length", 3, (3, 8)),
        ("length", 8, (8, None)),
        ("stop", 3, (8, None)),
        ("length", 0, (8, None)),
    ],
)
def test_a_server_that_clips_says_so_in_the_result(
    finish: str, made: int, wanted: tuple[int, int | None]
) -> None:
    from pipegen.backends.servers.chat_engine import result_of

    collected = ChatRow(
        ResolvedRequest(
            request=pg.TextGenerationRequest(prompt="Hi"),
            options=resolve(GenerationOptions(max_new_tokens=8)),
        )
    )
    collected.take(Completion(text="ab", finish=finish, usage={"completion_tokens": made}))
    result = collected.slot().bind(lambda said: result_of(said, "x", ())).unwrap()
    assert (result.options.max_new_tokens, result.clipped_from) == wanted
