"""A row thinks, and then answers in its form: two calls, put together by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine, ToyRenderer

ASKED = {"messages": [{"role": "user", "content": "What is 3 + 4?"}]}
END = "<|im_end|>"


def toy(thought: Any, answer: str = "7" + END, **more: Any) -> FakeEngine:
    """An engine that writes these, the thought where its prompt ends with the opening."""

    def script(row: Encoded) -> Any:
        text = engine.tokenizer.decode(row.prompt.token_ids)
        return thought if text.endswith("<think>") else answer

    engine = FakeEngine(script, **more)
    return engine


def asked(engine: FakeEngine, request: Any = ASKED, **options: Any) -> pg.GenerationResult:
    return pg.run(pg.route(engine), [request], options)[0].unwrap()


def refused(engine: Any, request: Any = ASKED, **options: Any) -> pg.GenerationError:
    return pg.run(pg.route(engine), [request], options)[0].failure()


def test_a_thought_that_ends_by_itself_is_apart_from_the_answer() -> None:
    engine = toy("I add.</think>rest")
    result = asked(engine, max_thinking_tokens=20)
    assert (result.text, result.reasoning) == ("7", "I add.")
    assert result.raw_text == "<think>I add.</think>7<|im_end|>"
    assert result.token_ids == engine.tokenizer.encode(result.raw_text)
    assert (result.finish, result.completion_tokens) == (pg.Finish.EOS, len(result.token_ids))
    assert result.forced == (0,)
    assert result.prompt_tokens == len(result.prompt_token_ids)
    assert result.raw_text not in engine.tokenizer.decode(result.prompt_token_ids)
    assert (result.thinking, result.thinking_unfinished) == ("honoured", False)
    again = pg.run(pg.route(engine), [ASKED], result.options)[0].unwrap()
    assert again == result


def test_a_thought_that_is_too_long_is_closed() -> None:
    result = asked(toy("I add and add."), max_thinking_tokens=5)
    assert result.raw_text == "<think>I add</think>7<|im_end|>"
    assert (result.reasoning, result.forced) == ("I add", (0, 6))


def test_no_thought_is_closed_at_once_and_not_asked_for() -> None:
    engine = toy("never")
    result = asked(engine, max_thinking_tokens=0)
    assert (result.raw_text, result.reasoning) == ("<think></think>7<|im_end|>", "")
    assert len(engine.calls) == 1


def test_all_tokens_count_for_the_length() -> None:
    engine = toy("I add and add.")
    for limit, raw in ((1, "<think>"), (4, "<think>I a"), (6, "<think>I add")):
        result = asked(engine, max_thinking_tokens=5, max_new_tokens=limit)
        assert (result.raw_text, result.finish) == (raw, pg.Finish.LENGTH)
        assert (result.text, result.thinking_unfinished) == ("", True)
        assert result.completion_tokens == limit
    result = asked(engine, max_thinking_tokens=5, max_new_tokens=7)
    assert (result.raw_text, result.thinking_unfinished) == ("<think>I add</think>", False)
    assert (result.finish, result.text) == (pg.Finish.LENGTH, "")


def test_an_end_token_within_the_thought_ends_the_row_unless_a_form_or_more_tokens_are_asked() -> (
    None
):
    result = asked(toy("I add" + END), max_thinking_tokens=20)
    assert (result.raw_text, result.finish) == ("<think>I add<|im_end|>", pg.Finish.EOS)
    assert (result.text, result.reasoning) == ("", "I add")
    formed = asked(toy("I add" + END), max_thinking_tokens=20, choice=("7", "8"))
    assert formed.raw_text == "<think>I add</think>7<|im_end|>"
    longer = asked(toy("I add" + END), max_thinking_tokens=20, min_new_tokens=8)
    assert longer.raw_text == "<think>I add</think>7<|im_end|>"


def test_the_form_begins_after_the_thought() -> None:
    engine = toy("No: it is 8.</think>")
    result = asked(engine, enable_thinking=True, choice=("7", "8"))
    assert (result.text, result.reasoning) == ("7", "No: it is 8.")
    thought, answer = (calls[0].options for calls in engine.calls)
    assert (thought.structured, answer.structured) == (
        None,
        pg.StructuredOptions(choice=("7", "8")),
    )
    error = refused(toy("</think>", "9" + END), enable_thinking=True, choice=("7", "8"))
    assert isinstance(error, pg.MalformedResponse)


def test_where_nothing_says_that_a_call_begins_otherwise_the_answer_follows_the_thought() -> None:
    engine = toy("I add.</think>")
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    result = asked(engine, {**ASKED, "tools": [tool]}, max_thinking_tokens=20)
    assert (result.text, result.forced, len(engine.calls)) == ("7", (0,), 2)


def test_stops_and_plugins_are_about_the_answer() -> None:
    engine = toy("a STOP b</think>", "7 STOP 8")
    result = asked(engine, max_thinking_tokens=30, stop=("STOP",), stop_token_ids=(98,))
    assert (result.text, result.reasoning, result.stop) == ("7 ", "a STOP b", "STOP")
    assert result.raw_text == "<think>a STOP b</think>7 STOP"
    seen: list[str] = []

    def feed(state: Any, text: str) -> tuple[Any, Any]:
        seen.append(text)
        return state, None

    watching = pg.Plugin(name="watch", start=lambda: None, feed=feed)
    pg.run(pg.attach(pg.route(toy("a</think>", "7" + END)), watching), [ASKED], result.options)
    assert "a" not in "".join(seen)


def test_the_answer_gets_a_seed_of_its_own() -> None:
    engine = toy("a</think>")
    asked(engine, max_thinking_tokens=9, seed=3, temperature=1.0)
    thought, answer = (calls[0].options.seed for calls in engine.calls)
    assert (thought, answer == thought) == (3, False)
    result = asked(engine, max_thinking_tokens=9, seed=3, temperature=1.0, samples=3)
    seeds = {row.options.seed for call in engine.calls[2:] for row in call}
    assert (len(seeds), len(result.samples)) == (6, 3)


def test_log_probabilities_of_what_was_not_sampled_are_scored() -> None:
    engine = toy([98, 99])
    result = asked(engine, max_thinking_tokens=2, logprobs=True, max_new_tokens=4)
    assert result.raw_text == "<think>bc</think>"
    # the fake engine gives none for what it generates
    assert result.logprobs is None
    (row,) = engine.scored[0]
    assert row.continuation == result.token_ids
    assert row.encoded.prompt.token_ids == result.prompt_token_ids


def test_a_batch_is_two_calls_and_rows_that_do_not_think_share_the_second() -> None:
    engine = toy("a</think>")
    plain = {"prompt": "b"}
    slots = pg.run(pg.route(engine), [{**ASKED, "options": {"max_thinking_tokens": 9}}, plain])
    assert [len(call) for call in engine.calls] == [1, 2]
    assert [slot.unwrap().reasoning for slot in slots] == ["a", None]


def test_a_thought_is_streamed_as_no_part_of_the_text() -> None:
    engine = toy("thought</think>", "seven" + END)
    events = [*pg.stream(pg.route(engine), [ASKED], {"max_thinking_tokens": 20})]
    assert "".join(event.text for event in events[:-1]) == "seven"
    assert events[-1].slot.unwrap() == asked(engine, max_thinking_tokens=20)


def test_what_fails_in_a_call_fails_the_row() -> None:
    for engine in (toy(pg.Timeout("slow")), toy("a</think>", pg.Timeout("slow"))):  # type: ignore[arg-type]
        assert refused(engine, max_thinking_tokens=9) == pg.Timeout("slow")


def test_a_row_that_is_given_up_in_its_thought_is_aborted() -> None:
    result = asked(toy("I"), max_thinking_tokens=20)
    assert (result.finish, result.text, result.reasoning) == (pg.Finish.ABORTED, "", "I")


def test_the_prompt_is_scored_once() -> None:
    engine = toy("a</think>")
    result = asked(engine, max_thinking_tokens=9, prompt_logprobs=True)
    assert len(result.prompt_logprobs or ()) == len(result.prompt_token_ids)
    assert len(engine.scored) == 1


@pytest.mark.parametrize(
    ("request_", "options", "words"),
    [
        ({"prompt": "a"}, {}, "a plain prompt does not say where a thought begins"),
        (
            {"messages": [*ASKED["messages"], {"role": "assistant", "content": "It"}]},
            {"continue_final_message": True},
            "takes a prompt that opens a new turn",
        ),
        (ASKED, {"enable_thinking": False}, "takes enable_thinking=True"),
    ],
)
def test_where_no_thought_begins_there_is_none_to_bound(
    request_: Any, options: dict[str, Any], words: str
) -> None:
    error = refused(toy("a"), request_, max_thinking_tokens=9, **options)
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "max_thinking_tokens"
    assert words in error.message


def test_a_template_without_a_thought_refuses_to_bound_one_and_forms_hold_from_the_first_token() -> (
    None
):
    engine = FakeEngine("7" + END, renderer=ToyRenderer(thinking=False))
    error = refused(engine, max_thinking_tokens=9)
    assert "a chat template that writes a thought with an end token" in error.message
    result = asked(engine, enable_thinking=True, choice=("7", "8"))
    assert (result.text, result.reasoning, len(engine.calls)) == ("7", None, 1)


class PlainThoughts(ToyRenderer):
    """A template with a switch, whose thought no control token ends."""

    def render(self, messages: Any, *, tools: Any, template: Any, variables: Any) -> str:
        switch = f"thinking {'on' if variables.get('enable_thinking') else 'off'}\n"
        kept = {**variables, "enable_thinking": True}
        return switch + super().render(messages, tools=tools, template=template, variables=kept)


def test_a_form_beside_a_thought_that_cannot_come_before_it_is_refused() -> None:
    engine = FakeEngine("7" + END, renderer=PlainThoughts())
    error = refused(engine, enable_thinking=True, choice=("7", "8"))
    assert isinstance(error, pg.UnsupportedOption)
    assert "enable_thinking=True is not honoured with choice" in error.message
    assert asked(engine, enable_thinking=False, choice=("7", "8")).text == "7"
    assert asked(engine, enable_thinking=True).thinking == "honoured"


def test_the_next_turn_begins_with_the_thought_too() -> None:
    engine = toy("a</think>")
    first = asked(engine, max_thinking_tokens=9)
    second = asked(engine, first.then("And 4 + 4?"), max_thinking_tokens=9)
    so_far = first.prompt_token_ids + first.token_ids
    assert second.prompt_token_ids[: len(so_far)] == so_far
    assert (second.exact, second.reasoning, second.text) == (True, "a", "7")
    assert first.message == {"role": "assistant", "content": "7", "reasoning_content": "a"}


def test_a_killed_job_goes_on_after_the_thought(tmp_path: Path) -> None:
    rows = [{"id": str(row), **ASKED} for row in range(2)]
    options = {"max_thinking_tokens": 9, "seed": 3, "temperature": 1.0}

    def run(folder: Path, at: int = -1) -> tuple[list[Any], Fuse]:
        def script(row: Encoded) -> str:
            text = engine.tokenizer.decode(row.prompt.token_ids)
            return "a</think>" if text.endswith("<think>") else "7" + END

        fuse, slots = Fuse(at), list[Any]()
        engine = Rowwise(script, fuse)
        try:
            with pg.job(pg.route(engine), rows, folder, options, in_flight=1, grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            pass
        return slots, fuse

    whole, fuse = run(tmp_path / "whole")
    assert len(fuse.answered) == 4
    for at in range(4):
        _, before = run(tmp_path / str(at), at)
        slots, after = run(tmp_path / str(at))
        assert slots == whole
        assert len(before.answered) + len(after.answered) == 4


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    pytest.importorskip("llguidance")
    with pg.backends.hf("embedded") as route:
        yield route


@pytest.mark.parametrize("form", [{}, {"choice": ["7", "8"]}])
def test_on_the_embedded_model(embedded: pg.Route, form: dict[str, Any]) -> None:
    plain = pg.run(embedded, [ASKED], {"enable_thinking": True})[0].unwrap()
    options = {"max_thinking_tokens": 40, "logprobs": True, **form}
    result = pg.run(embedded, [ASKED], options)[0].unwrap()
    assert result.token_ids == plain.token_ids  # as one answer
    assert (result.text, result.reasoning) == ("7", "I add 3 and 4.")
    assert [one.token_id for one in result.logprobs or ()] == [*result.token_ids]
    assert all(one.text is not None for one in result.logprobs or ())
    cut = pg.run(embedded, [ASKED], {**options, "max_thinking_tokens": 4})[0].unwrap()
    assert cut.raw_text == "<think>\nI add 3\n</think>\n\n7<|im_end|>"
    assert (cut.reasoning, cut.forced) == ("I add 3", (0, 1, 6, 7, 8, 9))


def test_json_after_a_thought_on_the_embedded_model(embedded: pg.Route) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    options = {"json_schema": schema, "enable_thinking": True}
    result = pg.run(embedded, [ASKED], options)[0].unwrap()
    assert (json.loads(result.text), result.reasoning) == ({"answer": "7"}, "I add 3 and 4.")
