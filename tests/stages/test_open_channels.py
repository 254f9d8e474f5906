"""After a thought, the model chooses between a text and a tool call that the chat template begins
otherwise, as in channels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.toy import ToyTokenizer

USER = {"role": "user", "content": "What is 3 + 4?"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
ASKED = {"messages": [USER], "tools": [TOOL]}
OPENS, HEAD, END = " thinks\n", "<|im_start|>assistant", "<|im_end|>"
THOUGHT = f"{OPENS}I add.</think>{HEAD}"
TEXT = " says\n7" + END
CALL = ' to=add\n{"a": 3}' + END


class Channels(ToyRenderer):
    """Thoughts, texts and calls are messages of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.template = "enable_thinking </think>"

    def render(self, messages: Any, *, tools: Any, template: Any, variables: Any) -> str:
        self.renders += 1
        turns = [json.dumps(list(tools))]
        for message in messages:
            head = f"<|im_start|>{message['role']}"
            if message.get("reasoning_content") is not None:
                head += f"{OPENS}{message['reasoning_content']}</think>{HEAD}"
            for call in message.get("tool_calls") or ():
                arguments = json.loads(call["function"]["arguments"])
                head += f" to={call['function']['name']}\n{json.dumps(arguments)}"
            turns.append(head if "to=" in head else f"{head} says\n{message['content'] or ''}")
            turns[-1] += END
        return "".join(turns) + (HEAD if variables.get("add_generation_prompt") else "")


def engine(writes: str, **more: Any) -> FakeEngine:
    """An engine that writes this after the prompt, as far as it is there already."""
    tokenizer = ToyTokenizer()

    def script(row: Encoded) -> Any:
        text = tokenizer.decode(row.prompt.token_ids).rpartition("?" + END + HEAD)[2]
        assert writes.startswith(text), text
        return writes.removeprefix(text)

    return FakeEngine(script, renderer=Channels(), tokenizer=tokenizer, **more)


def asked(of: Any, request: Any = ASKED, **options: Any) -> pg.GenerationResult:
    return pg.run(of, [request], {"max_thinking_tokens": 20, **options})[0].unwrap()


def sampled(result: pg.GenerationResult) -> str:
    ids = [one for place, one in enumerate(result.token_ids) if place not in result.forced]
    return ToyTokenizer().decode(ids)


def test_the_model_answers_with_a_text() -> None:
    of = engine(THOUGHT + TEXT)
    result = asked(pg.route(of), logprobs=False)
    assert (result.text, result.reasoning, result.tool_calls) == ("7", "I add.", ())
    assert (result.raw_text, result.tool_calls_unread) == (THOUGHT + TEXT, None)
    assert sampled(result) == "I add.</think>" + TEXT
    assert [len(call) for call in of.calls] == [1, 1, 1]
    deltas = list(pg.stream(pg.route(of), [ASKED], result.options))
    assert [one.text for one in deltas if isinstance(one, pg.Delta)] == ["7"]


def test_the_model_answers_with_a_call() -> None:
    result = asked(pg.route(engine(THOUGHT + CALL)))
    assert (result.text, result.reasoning) == (' to=add\n{"a": 3}', "I add.")
    assert result.tool_calls[0]["function"] == {"name": "add", "arguments": '{"a": 3}'}
    assert (result.raw_text, sampled(result)) == (THOUGHT + CALL, "I add.</think>" + CALL)
    second = asked(pg.route(engine(THOUGHT + TEXT)), result.then("So what is 3 + 4?"))
    so_far = result.prompt_token_ids + result.token_ids
    assert second.prompt_token_ids[: len(so_far)] == so_far and second.exact


def test_a_thought_that_is_cut_is_closed_up_to_the_choice() -> None:
    for rest in (TEXT, CALL):
        writes = f"{OPENS}I a</think>{HEAD}{rest}"
        result = asked(pg.route(engine(writes)), max_thinking_tokens=3)
        assert (result.raw_text, sampled(result)) == (writes, "I a" + rest)
        assert bool(result.tool_calls) == (rest == CALL)


def test_a_tool_loop_goes_through_thoughts_and_channels() -> None:
    tokenizer = ToyTokenizer()

    def script(row: Encoded) -> Any:
        text = tokenizer.decode(row.prompt.token_ids)
        answered = "7!" in text
        made = text.rpartition(END + HEAD)[2]
        return (THOUGHT + (TEXT if answered else CALL)).removeprefix(made)

    def add(a: int) -> str:
        return "7!"

    of = FakeEngine(script, renderer=Channels(), tokenizer=tokenizer)
    result = asked(pg.turns(pg.route(of), pg.tools([add])), {"messages": [USER]})
    assert (result.text, len(result.rounds)) == ("7", 2)


def test_other_words_of_the_model_are_the_answer() -> None:
    for writes, text, finish in (
        (" sings\nla" + END, " sings\nla", pg.Finish.EOS),
        (" la" + END, " la", pg.Finish.EOS),
        (END, "", pg.Finish.EOS),
    ):
        result = asked(pg.route(engine(THOUGHT + writes)))
        assert (result.text, result.finish) == (text, finish)
        assert (result.raw_text, result.tool_calls) == (THOUGHT + writes, ())


@pytest.mark.parametrize("rest", [TEXT, CALL])
def test_all_tokens_count_for_the_length(rest: str) -> None:
    whole = ToyTokenizer().encode(THOUGHT + rest)
    for limit in range(len(whole) - len(rest), len(whole) + 1):
        result = asked(pg.route(engine(THOUGHT + rest)), max_new_tokens=limit)
        assert result.token_ids == whole[:limit]
        assert (result.finish is pg.Finish.LENGTH) == (limit < len(whole))
    least = asked(pg.route(engine(THOUGHT + rest)), min_new_tokens=len(whole))
    assert least.token_ids == whole


def test_stops_and_plugins_see_the_answer_as_one() -> None:
    seen: list[str] = []

    def feed(state: Any, text: str) -> tuple[Any, Any]:
        seen.append(text)
        return state, None

    watching = pg.Plugin(name="watch", start=lambda: None, feed=feed)
    route = pg.attach(pg.route(engine(THOUGHT + CALL)), watching)
    for stop, text in (("=add", " to"), ('{"a', " to=add\n")):  # across both calls, and behind them
        seen.clear()
        result = asked(route, stop=(stop,))
        assert (result.text, result.stop) == (text, stop)
        assert "".join(seen).startswith(text)
    text = asked(pg.route(engine(THOUGHT + TEXT)), stop=("says",))
    assert (text.text, text.stop) == ("7", None)


def test_an_error_of_either_call_fails_the_row() -> None:
    tokenizer, error = ToyTokenizer(), pg.BackendFailed("down", scope="row")
    for begun in ("", " to=ad"):

        def script(row: Encoded, begun: str = begun) -> Any:
            text = tokenizer.decode(row.prompt.token_ids)
            made = text.rpartition("?" + END + HEAD)[2]
            return error if made == THOUGHT + begun else (THOUGHT + CALL).removeprefix(made)

        of = FakeEngine(script, renderer=Channels(), tokenizer=tokenizer)
        (slot,) = pg.run(pg.route(of), [ASKED], {"max_thinking_tokens": 20})
        assert slot.failure() == error


def test_without_tools_or_with_a_form_the_answer_is_a_text() -> None:
    for request, more in (({"messages": [USER]}, {}), (ASKED, {"choice": ("7", "8")})):
        of = engine(THOUGHT + TEXT)
        result = asked(pg.route(of), request, **more)
        assert (result.text, len(of.calls)) == ("7", 2)
        assert sampled(result) == "I add.</think>7" + END


class Opened(Channels):
    """The prompt opens the thought. Without one, an answer begins where the thought would."""

    def render(self, messages: Any, *, tools: Any, template: Any, variables: Any) -> str:
        given = {"tools": tools, "template": template, "variables": variables}
        text = super().render(messages, **given).replace(f"</think>{HEAD}", "</think>")
        text = text.replace(HEAD + OPENS, f"{HEAD}<think>")
        return f"{text}<think>" if variables.get("add_generation_prompt") else text


def test_a_call_is_read_as_the_template_writes_it_after_a_thought() -> None:
    tokenizer = ToyTokenizer()

    def script(row: Encoded) -> str:
        made = tokenizer.decode(row.prompt.token_ids).rpartition("<think>")[2]
        return f"I add.</think>{CALL}".removeprefix(made)

    of = FakeEngine(script, renderer=Opened(), tokenizer=tokenizer)
    result = asked(pg.route(of))
    assert result.tool_calls[0]["function"] == {"name": "add", "arguments": '{"a": 3}'}
    assert (result.content or "").strip() == "" and result.reasoning == "I add."
    assert result.raw_text == f"I add.</think>{CALL}"


def test_each_part_has_a_seed_of_its_own_and_a_job_goes_on_between_them(tmp_path: Any) -> None:
    of = engine(THOUGHT + CALL)
    options = {"max_thinking_tokens": 20, "seed": 3, "temperature": 1.0}
    whole = pg.run(pg.route(of), [ASKED], options)
    assert len({row.options.seed for call in of.calls for row in call}) == 3
    with pg.job(pg.route(of), [ASKED], tmp_path, options) as job:
        assert tuple(job) == whole


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.reasoning_content %} thinks\n{{ m.reasoning_content }}</think>"
    "<|im_start|>assistant{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %} to={{ c.function.name }}\n"
    "{{ c.function.arguments | tojson }}{% endfor %}{% else %} says\n{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded", dtype="float32") as route:
        yield route


def test_what_follows_the_thought_is_what_the_embedded_model_writes_by_itself(
    embedded: pg.Route,
) -> None:
    chat = {"template": TEMPLATE, "enable_thinking": True}
    options = {"max_thinking_tokens": 3, "max_new_tokens": 30, "chat": chat}
    (slot,) = pg.run(embedded, [ASKED], options)
    result = slot.unwrap()
    start = result.forced[-1] + 1
    assert (result.raw_text or "").partition("</think>")[2].startswith(HEAD)
    prompt = (*result.prompt_token_ids, *result.token_ids[:start])
    plain = {"prompt_token_ids": prompt}
    alone = pg.run(embedded, [plain], {"max_new_tokens": 30 - start})[0].unwrap()
    assert result.token_ids[start:] == alone.token_ids
