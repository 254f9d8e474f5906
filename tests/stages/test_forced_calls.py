"""`tool_choice` makes the answer a tool call, in the form that the chat template writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.testing.fake import FakeEngine, ToyRenderer

END = "<|im_end|>"
OPENS = '[{"id": "call00000", "type": "function", "function": {"name": "'


def tool(name: str, *keys: str) -> dict[str, Any]:
    properties = {key: {"type": "integer"} for key in keys}
    schema = {"type": "object", "properties": properties, "required": [*keys]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("add", "a", "b"), tool("look", "x")]
ASKED = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "tools": TOOLS}


def engine(
    arguments: Any = '{"a":3,"b":4}' + END, name: Any = 'add", "arguments": ' + END, **more: Any
) -> FakeEngine:
    def script(row: Encoded) -> Any:
        form = row.options.structured
        return "I add.</think>" if form is None else name if form.choice else arguments

    return FakeEngine(script, **more)


def asked(of: FakeEngine, request: Any = ASKED, **options: Any) -> pg.Slot[pg.GenerationResult]:
    return pg.run(pg.route(of), [request], options)[0]


def called(result: pg.GenerationResult) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in result.tool_calls]
    return [(one["name"], json.loads(one["arguments"])) for one in functions]


@pytest.mark.parametrize(("choice", "calls"), [("add", 1), ("required", 2)])
def test_the_answer_is_a_call(choice: str, calls: int) -> None:
    of = engine()
    result = asked(of, tool_choice=choice).unwrap()
    assert result.text == OPENS + 'add", "arguments": {"a":3,"b":4}}}]'
    assert (called(result), result.tool_calls_unread) == ([("add", {"a": 3, "b": 4})], None)
    assert (result.finish, result.content, result.reasoning) == (pg.Finish.EOS, "", None)
    assert result.token_ids == of.tokenizer.encode(result.raw_text)
    assert result.raw_text == result.text + END
    sampled = [
        number for place, number in enumerate(result.token_ids) if place not in result.forced
    ]
    name = 'add", "arguments": ' if calls == 2 else ""
    assert of.tokenizer.decode(sampled) == name + '{"a":3,"b":4}'
    assert len(of.calls) == calls
    assert pg.run(pg.route(of), [ASKED], result.options)[0].unwrap() == result


class Thoughts(ToyRenderer):
    """Writes thoughts, and in a further turn what follows them; an answer of words says so."""

    def render(self, messages: Any, **more: Any) -> str:
        def written(message: Any) -> Any:
            if message["role"] != "assistant":
                return message
            thought = message.get("thinking")
            before = f"<think>{thought}</think><|im_start|>assistant\n" if thought else ""
            final = "" if message.get("tool_calls") else "final: "
            return {**message, "content": before + final + (message["content"] or "")}

        return super().render([*map(written, messages)], **more)


@pytest.mark.parametrize("choice", ["add", "required"])
@pytest.mark.parametrize("asks", [{"max_thinking_tokens": 20}, {"enable_thinking": True}])
def test_a_call_after_a_thought(choice: str, asks: dict[str, Any]) -> None:
    of = engine(renderer=Thoughts())
    result = asked(of, tool_choice=choice, **asks).unwrap()
    assert (result.reasoning, called(result)) == ("I add.", [("add", {"a": 3, "b": 4})])
    opens = "<think>I add.</think><|im_start|>assistant\n" + OPENS
    assert result.raw_text.startswith(opens + 'add", "arguments": {"a":3,"b":4}')
    assert result.token_ids == of.tokenizer.encode(result.raw_text)
    assert result.forced[:2] == (0, 8)
    assert (result.content, result.tool_calls_unread) == ("", None)


def test_a_thought_is_closed_before_its_call() -> None:
    result = asked(engine(renderer=Thoughts()), tool_choice="add", max_thinking_tokens=2).unwrap()
    assert result.raw_text.startswith("<think>I </think><|im_start|>assistant\n" + OPENS)
    assert called(result) == [("add", {"a": 3, "b": 4})]


class PlainThoughts(ToyRenderer):
    """A template with a switch, whose thought no control token ends."""

    def render(self, messages: Any, *, tools: Any, template: Any, variables: Any) -> str:
        switch = f"thinking {'on' if variables.get('enable_thinking') else 'off'}\n"
        kept = {**variables, "enable_thinking": True}
        return switch + super().render(messages, tools=tools, template=template, variables=kept)


def test_a_call_is_not_forced_where_nothing_says_what_is_between_it_and_its_thought() -> None:
    of = engine()  # its template writes no thought of a message
    for choice in ("add", "required"):
        error = asked(of, tool_choice=choice, enable_thinking=True).failure()
        assert isinstance(error, pg.UnsupportedOption) and error.option == "tool_choice"
        assert "cannot be forced after a thought" in error.message
    assert called(asked(of, tool_choice="add", enable_thinking=False).unwrap())
    of = engine(renderer=PlainThoughts())
    error = asked(of, tool_choice="add", enable_thinking=True).failure()
    assert "enable_thinking=True is not honoured with tool_choice" in error.message
    error = asked(of, tool_choice="fly", enable_thinking=True).failure()
    assert isinstance(error, pg.InvalidRequest)


def test_the_length_may_end_a_call_anywhere() -> None:
    whole = asked(engine(), tool_choice="required").unwrap()
    for limit in range(1, len(whole.token_ids)):
        result = asked(engine(), tool_choice="required", max_new_tokens=limit).unwrap()
        assert result.token_ids == whole.token_ids[:limit]
        assert (result.finish, result.tool_calls) == (pg.Finish.LENGTH, ())


@pytest.mark.parametrize(
    "of", [engine('{"a":3}' + END), engine("[]" + END), engine(name="subtract" + END)]
)
def test_a_call_of_another_form_is_malformed(of: FakeEngine) -> None:
    assert isinstance(asked(of, tool_choice="required").failure(), pg.MalformedResponse)


def test_what_fails_in_a_call_fails_the_row() -> None:
    for of in (engine(pg.Timeout("slow")), engine(name=pg.Timeout("slow"))):
        assert asked(of, tool_choice="required").failure() == pg.Timeout("slow")


def test_log_probabilities_of_what_stands_around_a_call_are_scored() -> None:
    of = engine()
    result = asked(of, tool_choice="add", logprobs=True).unwrap()
    (row,) = of.scored[0]
    assert row.continuation == result.token_ids[: result.forced[-1] + 1]


class Unscored(FakeEngine):
    """An engine without the method that scores."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("score", "longest_scored"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_log_probabilities_of_a_call_take_an_engine_that_scores() -> None:
    error = asked(Unscored(""), tool_choice="add", logprobs=True).failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, error.message) == (
        "logprobs",
        "fake gives no log probabilities of tokens that are not sampled",
    )


@pytest.mark.parametrize("top", [0, 3])
def test_what_is_forced_is_certain_to_what_was_sampled_from(top: int) -> None:
    class Sure(Unscored):
        """Each sampled token has the log probability -1."""

        def generate(self, inputs: Sequence[Encoded]) -> Any:
            answers = super().generate(inputs)
            return [
                slot.map(
                    lambda raw: dataclasses.replace(
                        raw,
                        logprobs=tuple(
                            [pg.TokenLogprob(token_id=one, logprob=-1.0) for one in raw.token_ids]
                        ),
                    )
                )
                for slot in answers
            ]

    of = Sure(engine().script)
    options = {"logprobs": "processed", "top_logprobs": top}
    result = asked(of, tool_choice="add", **options).unwrap()
    assert result.logprobs is not None and result.forced
    for place, token in enumerate(result.logprobs):
        assert token.token_id == result.token_ids[place]
        assert token.logprob == (0.0 if place in result.forced else -1.0)
        assert token.top == (((token.token_id, 0.0),) if top and place in result.forced else ())


def test_a_call_whose_scores_fail_fails() -> None:
    class Late(FakeEngine):
        def score(self, inputs: Sequence[ScoreInput]) -> Sequence[pg.Slot[TokenScores]]:
            return [pg.Failure(pg.Timeout("slow"))] * len(inputs)

    of = Late(engine().script)
    assert asked(of, tool_choice="add", logprobs=True).failure() == pg.Timeout("slow")


def test_the_end_token_of_a_call_is_scored_where_it_stands() -> None:
    of = engine()
    result = asked(of, tool_choice="add", logprobs=True).unwrap()
    end = len(result.token_ids) - 1
    assert end in result.forced and result.rollout.mask[end] is False
    (row,) = of.scored[0]
    assert row.continuation == result.token_ids  # the end token behind what closes the call
    assert (result.finish, called(result)) == (pg.Finish.EOS, [("add", {"a": 3, "b": 4})])


class Marked(ToyRenderer):
    """Begins an answer that is a call with words of its own, as Llama 4's templates do."""

    before = " <begins>"

    def render(self, messages: Any, **more: Any) -> str:
        def written(message: Any) -> Any:
            more = self.before if message.get("tool_calls") else ""
            return {**message, "content": more + (message["content"] or "")}

        return super().render([*map(written, messages)], **more)


def test_a_call_begins_as_the_template_begins_an_answer_that_is_one() -> None:
    result = asked(engine(renderer=Marked()), tool_choice="add").unwrap()
    assert result.text.lstrip().startswith("<begins>" + OPENS)
    assert (called(result), result.content) == ([("add", {"a": 3, "b": 4})], "")


class Printed(ToyRenderer):
    """Writes arguments in a form of its own, as Python calls functions."""

    def render(self, messages: Any, **more: Any) -> str:
        def written(message: Any) -> Any:
            calls = message.get("tool_calls") or ()
            text = "".join(
                f"[{call['function']['name']}("
                + ", ".join(f"{k}={v}" for k, v in call["function"]["arguments"].items())
                + ")]"
                for call in calls
            )
            return {**message, "content": (message["content"] or "") + text, "tool_calls": None}

        return super().render([*map(written, messages)], **more)


@pytest.mark.parametrize(
    ("of", "request_", "choice", "kind", "words"),
    [
        (engine(), {**ASKED, "tools": []}, "required", pg.InvalidRequest, "this request has none"),
        (engine(), ASKED, "auto", pg.InvalidRequest, "is what holds without the option"),
        (engine(), ASKED, "none", pg.InvalidRequest, "is not honoured"),
        (
            engine(),
            ASKED,
            "fly",
            pg.InvalidRequest,
            "takes a tool of this request, which has 'add'",
        ),
        (
            engine(renderer=Printed()),
            ASKED,
            "add",
            pg.UnsupportedOption,
            "a tool call cannot be forced: the chat template writes arguments neither as JSON",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(
    of: FakeEngine, request_: Any, choice: str, kind: type[Any], words: str
) -> None:
    error = asked(of, request_, tool_choice=choice).failure()
    assert isinstance(error, kind)
    assert words in error.message
    assert of.calls == []
