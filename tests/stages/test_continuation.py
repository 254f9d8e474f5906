"""The bridge between an answer and the next one: where a template has none, and where it begins."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.slots import Slot
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.toy import ToyTokenizer

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {}}},
}
END = "<|im_end|>"


def turn(engine: FakeEngine, request: Any = None) -> pg.Slot[pg.GenerationResult]:
    return pg.run(pg.route(engine), [request or {"messages": [USER]}])[0]


def bridge(
    engine: FakeEngine, one: pg.GenerationResult, request: Any
) -> tuple[str, tuple[int, ...]]:
    """What the second prompt has behind the ids of the first turn."""
    kept = (*one.prompt_token_ids, *one.token_ids)
    ids = turn(engine, request).unwrap().prompt_token_ids
    assert ids[: len(kept)] == kept
    return engine.tokenizer.decode(ids[len(kept) :]), ids[len(kept) :]


class Shouting(ToyRenderer):
    """Writes answers in another form than they came in."""

    def render(self, messages: Any, **more: Any) -> str:
        def written(message: Any) -> Any:
            content = message["content"]
            loud = message["role"] == "assistant"
            return {**message, "content": content.upper() if loud else content}

        return super().render([*map(written, messages)], **more)


class Repeating(ToyRenderer):
    """Writes an answer again where the user asks for it."""

    def render(self, messages: Any, **more: Any) -> str:
        answers = [turn for turn in messages if turn["role"] == "assistant"]
        again = answers if messages[-1]["content"] == "Again?" else []
        return super().render([*messages, *again], **more)


@pytest.mark.parametrize("renderer", [Shouting(), Repeating()])
def test_a_template_that_does_not_write_the_answer_once_has_no_bridge(
    renderer: ToyRenderer,
) -> None:
    engine = FakeEngine("Yes." + END, renderer=renderer)
    one = turn(engine).unwrap()
    error = turn(engine, one.then("Again?")).failure()
    assert isinstance(error, pg.TemplateFailed)
    assert error.message.endswith("it does not write the answer once, as it is")
    assert 'history="template"' in error.hint
    again = turn(engine, one.then("Again?", history="template")).unwrap()
    assert again.exact is False


def test_control_tokens_of_the_letters_of_the_probe_change_no_bridge() -> None:
    special = (*ToyTokenizer().special_tokens, "Q:")
    engine = FakeEngine("Yes." + END, tokenizer=ToyTokenizer(special=special))
    one = turn(engine).unwrap()
    text, ids = bridge(engine, one, one.then("And Q:?"))
    assert engine.tokenizer.special_tokens["Q:"] not in ids  # the user's words stay text
    assert text == "\n<|im_start|>user\nAnd Q:?<|im_end|>\n<|im_start|>assistant\n<think></think>"


class Plain(ToyRenderer):
    """Calls and their results without control tokens."""

    def render(self, messages: Any, **more: Any) -> str:
        turns = [
            f" {message['role'].upper()}: {message['content'] or ''}"
            + (f"{json.dumps(message['tool_calls'])} DONE" if message.get("tool_calls") else "")
            for message in messages
        ]
        opened = " ASSISTANT: " if more["variables"]["add_generation_prompt"] else ""
        return "".join((json.dumps(list(more["tools"])), *turns, opened))


@pytest.mark.parametrize(
    "call",
    [
        {"type": "function", "id": "a", "function": {"name": "get", "arguments": {}}},
        {"type": "web_search", "id": "a"},  # it names no function
    ],
)
def test_without_control_tokens_the_bridge_begins_behind_the_call(call: dict[str, Any]) -> None:
    engine = FakeEngine("{}", renderer=Plain())
    one = turn(engine, {"messages": [USER], "tools": [TOOL]}).unwrap()
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
    ]
    continues = {
        "messages": 2,
        "prompt_token_ids": one.prompt_token_ids,
        "token_ids": one.token_ids,
    }
    asked = {"messages": messages, "tools": [TOOL], "continues": continues}
    assert bridge(engine, one, asked)[0] == " TOOL: sun ASSISTANT: "


class Larger(FakeEngine):
    """An engine whose processor makes more tokens of the same pixels."""

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        image = super().prepare_image(source, options, index)
        return image.map(lambda one: dataclasses.replace(one, tokens=4))


def test_an_image_that_takes_another_number_of_tokens_than_in_its_turn_is_refused() -> None:
    asked = {"prompt": "What is it?", "images": [b"an image"]}
    one = turn(FakeEngine("Red." + END), asked).unwrap()
    assert pg.is_ok(turn(FakeEngine("Red." + END), one.then("And?")))
    error = turn(Larger("Red." + END), one.then("And?")).failure()
    assert isinstance(error, pg.InvalidRequest)
    assert error.message == (
        "an image of an earlier turn takes another number of tokens than it took there"
    )
