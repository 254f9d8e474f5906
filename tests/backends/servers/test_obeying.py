"""An answer that does not obey its request is no answer, by whichever route it was asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import served

import pipegen as pg
from pipegen.core.slots import Slot, is_ok
from pipegen.testing.faulty import EOS, FaultyServer

pytest.importorskip("aiohttp")

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
PATHS = {"vllm": "/inference/v1/generate", "sglang": "/generate", "chat": "/v1/chat/completions"}
WIRES = ("vllm", "sglang", "chat")


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as running:
        running.keeps_bodies = True
        yield running


def asked(
    server: FaultyServer,
    wire: str,
    text: str,
    finish: str = "stop",
    *,
    count: int = 0,
    prompt: int = 0,
    **options: Any,
) -> Slot[pg.GenerationResult]:
    """What is made of this answer; the server counts other tokens than it gives by `count` and
    `prompt`.
    """
    ids = [ord(mark) for mark in text] + ([EOS] if finish == "stop" else [])
    usage = {"prompt_tokens": 2 + prompt, "completion_tokens": len(ids) + count}
    answer: Any = {
        "choices": [{"finish_reason": finish, "token_ids": ids, "message": {"content": text}}],
        "usage": usage,
    }
    if wire == "sglang":
        reason = (
            {"type": "stop", "matched": EOS}
            if finish == "stop"
            else {"type": finish, "length": len(ids)}
        )
        answer = {"output_ids": ids, "meta_info": {"finish_reason": reason, **usage}}
    server.answers[PATHS[wire]] = (200, answer)
    with route_to(server, wire, retries=0) as route:
        return pg.run(
            route, [{"prompt": "Hi"}], pg.GenerationOptions(**{"max_new_tokens": 40, **options})
        )[0]


def route_to(server: FaultyServer, wire: str, **settings: Any) -> pg.Route:
    if wire == "chat":
        return pg.backends.openai_server("toy", base_url=server.url, dialect="vllm", **settings)
    return served.route_to(server, wire, **settings)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ({"choice": ("yes", "no")}, "yes", "Perhaps"),
        ({"regex": r"\d{4}"}, "2024", "24"),
        ({"json_schema": AGE}, '{"age": 7}', "<think>\nLet me see"),
        ({"json_schema": AGE}, '{ "age": 7 }', '{"age": "seven"}'),
    ],
)
def test_an_answer_without_its_form_fails_and_one_that_was_cut_need_only_begin_so(
    wire: str, form: dict[str, Any], right: str, wrong: str, server: Any
) -> None:
    assert asked(server, wire, right, structured=form).unwrap().text == right
    error = asked(server, wire, wrong, structured=form).failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "does not obey its request" in error.message
    assert repr(wrong)[1:9] in error.message or "seven" in error.message
    assert "reasoning parser" in error.hint
    cut = asked(server, wire, right[:1], "length", structured=form, max_new_tokens=1).unwrap()
    assert cut.finish is pg.Finish.LENGTH
    if wrong != '{"age": "seven"}' and wrong != "24":
        assert isinstance(
            asked(
                server, wire, wrong, "length", structured=form, max_new_tokens=len(wrong)
            ).failure(),
            pg.MalformedResponse,
        )


@pytest.mark.parametrize("wire", WIRES)
def test_json_that_runs_into_white_space_says_how_to_forbid_it(
    wire: str, server: FaultyServer
) -> None:
    error = asked(server, wire, "{" + " " * 39, "length", structured={"json_schema": AGE}).failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "white space until its length ended it: 39 of 40 characters" in error.message
    assert "disable_any_whitespace" in error.hint
    # whole, indented, within a string
    for text in ('{"age": 7}' + " " * 30, '{"age":\n' + " " * 4, '{"name": "' + " " * 30):
        assert is_ok(
            asked(
                server,
                wire,
                text,
                "length",
                structured={"json_schema": AGE},
                max_new_tokens=len(text),
            )
        )


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("text", "finish", "more", "words"),
    [
        ("a" * 41, "length", {}, "41 tokens came, and at most 40 were asked"),
        (
            "a" * 8,
            "length",
            {},
            "the answer was cut for its length after 8 tokens, and 40 were asked",
        ),
        (
            "ab",
            "stop",
            {"min_new_tokens": 5},
            "the answer ended after 3 tokens, and at least 5 were asked",
        ),
        ("ab", "stop", {"count": 1}, "3 ids came, and the server counts 4"),
    ],
)
def test_an_answer_of_another_length_fails(
    wire: str, text: str, finish: str, more: dict[str, Any], words: str, server: FaultyServer
) -> None:
    if wire == "chat" and "count" in more:  # it tells its tokens by their number alone
        return
    error = asked(server, wire, text, finish, **more).failure()
    assert isinstance(error, pg.MalformedResponse)
    assert words in error.message


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_a_finish_that_its_ids_do_not_show_fails(wire: str, server: FaultyServer) -> None:
    for text, finish, words in (
        ("ab", "stop", ""),
        (f"ab{chr(EOS)}", "length", "the finish is length"),
        ("ab", "length", "was cut for its length"),
    ):
        slot = asked(server, wire, text, finish)
        assert is_ok(slot) is (not words)
        assert is_ok(slot) or words in slot.failure().message


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_a_prompt_of_another_length_fails(wire: str, server: FaultyServer) -> None:
    error = asked(server, wire, "ab", prompt=1).failure()
    assert "the server counts 3 tokens in the prompt, and 2 were sent" in error.message


def test_an_answer_with_a_barred_word_fails(server: FaultyServer) -> None:
    assert is_ok(asked(server, "vllm", "ab", bad_words=("ba",)))
    error = asked(server, "vllm", "abab", bad_words=("ba",)).failure()
    assert "at token 2, of the id 97, a word of bad_words ends" in error.message
    assert "see that the server was sent bad_words" in error.hint


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_a_stream_is_judged_where_the_server_ends_it(wire: str) -> None:
    """A plugin watches, so the row is followed to the server's own end."""
    from pipegen.engines.plugin import Plugin

    plugin = Plugin(name="sees", start=lambda: 0, feed=lambda state, text: (state, None))
    with FaultyServer(reply=lambda ids: [65, 66]) as server, route_to(server, wire) as route:
        error = pg.run(pg.attach(route, plugin), [{"prompt": "Hi"}])[0].failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "the finish is stop, and the last id, 66, ends no answer" in error.message


def test_a_server_whose_limit_is_not_known_may_have_cut_an_answer_and_the_result_says_so(
    server: FaultyServer,
) -> None:
    server.models = False
    result = asked(server, "vllm", "a" * 8, "length").unwrap()
    seen = (result.finish, result.completion_tokens, result.clipped_from)
    assert seen == (pg.Finish.LENGTH, 8, 40)


THINKS = pg.ChatTemplateOptions(enable_thinking=True)


def test_a_chat_server_that_thought_nothing_before_a_form_has_not_done_what_was_asked(
    server: FaultyServer,
) -> None:
    choice = {"choice": ("yes", "no")}
    error = asked(server, "chat", "yes", structured=choice, chat=THINKS).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, "--reasoning-parser" in error.hint) == ("enable_thinking", True)
    message = {"content": "yes", "reasoning_content": "Let me see."}
    server.answers[PATHS["chat"]] = (
        200,
        {"choices": [{"finish_reason": "stop", "message": message}], "usage": {}},
    )
    with route_to(server, "chat") as route:
        result = pg.run(
            route, [{"prompt": "Hi"}], pg.GenerationOptions(structured=choice, chat=THINKS)
        )[0].unwrap()
    assert (result.text, result.reasoning) == ("yes", "Let me see.")
    assert is_ok(asked(server, "chat", "yes", chat=THINKS))


@pytest.mark.parametrize(
    ("about", "refused"),
    [({"reasoning_parser": None}, True), ({"reasoning_parser": "qwen3"}, False), ({}, False)],
)
def test_sglang_says_whether_it_would_think_before_a_form(
    about: dict[str, Any], refused: bool
) -> None:
    from pipegen.backends.servers import openai
    from pipegen.backends.servers.wire import Facts, ServerRequest
    from pipegen.records.options import resolve

    for form, thinks in ((None, True), ({"regex": "a"}, True), ({"regex": "a"}, False)):
        options = resolve(
            pg.GenerationOptions(
                structured=form, chat=pg.ChatTemplateOptions(enable_thinking=thinks)
            )
        )
        made = openai.DIALECTS["sglang"].to_wire(
            ServerRequest(messages=({"role": "user", "content": "Hi"},), options=options),
            Facts(about=about),
        )
        assert is_ok(made) is not (refused and thinks and form is not None)


def test_what_an_sglang_server_would_not_think_is_refused_before_it_is_sent(
    server: FaultyServer,
) -> None:
    server.answers["/model_info"] = (200, {"reasoning_parser": None})
    with pg.backends.openai_server("toy", base_url=server.url, dialect="sglang") as route:
        options = pg.GenerationOptions(
            structured={"regex": "a"}, chat=pg.ChatTemplateOptions(enable_thinking=True)
        )
        error = pg.run(route, [{"prompt": "a"}], options)[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, server.bodies) == ("enable_thinking", [])


def test_a_vllm_server_is_told_that_nothing_is_thought_before_a_form(server: FaultyServer) -> None:
    """Its reasoning parser would wait for the end of reasoning, and leave the form out."""
    for form in (None, {"regex": "a"}):
        with route_to(server, "vllm") as route:
            pg.run(route, [{"prompt": "a"}], pg.GenerationOptions(structured=form))
    assert [body.get("reasoning_ended") for body in server.bodies] == [None, True]
