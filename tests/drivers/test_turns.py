"""`pg.turns` and `pg.tools`: conversations in a pipe, and functions that the model calls."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime as dt
import decimal
import enum
import gc
import json
import signal
import threading
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypedDict

import pytest
import typing_extensions
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.core.names import InvalidField
from pipegen.drivers.tool_schema import schema_of, with_whole_numbers
from pipegen.testing.fake import FakeEngine

USER = {"role": "user", "content": "How is the weather in Rome?"}


def call(name: str = "weather", number: int = 0, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def calls(*them: dict[str, Any]) -> str:
    return json.dumps([*them]) + "<|im_end|>"


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: sunny"


def replies(row: Any) -> list[str]:
    """What the tools have answered so far."""
    return [one.content for one in row.request.messages if one.role == "tool"]


def script(row: Any) -> str:
    """Asks twice, then answers."""
    count = len(replies(row))
    return "Sunny.<|im_end|>" if count == 2 else calls(call(city=f"Rome{count}"))


def asked(**more: Any) -> dict[str, Any]:
    return {"messages": [USER], **more}


def agent(toolbox: Any, script: Any = script, **more: Any) -> Any:
    return pg.turns(pg.route(FakeEngine(script)), toolbox, **more)


def one_call(function: Any, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    """What the first call of a tool is answered."""
    name = getattr(function, "__name__", None) or function.name
    answer = calls(call(name, **(arguments or {})))
    slot = pg.run(
        agent(pg.tools([function], **more), lambda row: "ok<|im_end|>" if replies(row) else answer),
        [asked()],
    )[0]
    if not pg.is_ok(slot):
        return slot.failure()
    return slot.unwrap().turn.request.messages[-1].content


def test_a_tool_loop_ends_with_the_answer() -> None:
    result = pg.run(agent(pg.tools([weather])), [asked(id="T")])[0].unwrap()
    assert (result.id, result.text, result.rounds_end) == ("T", "Sunny.", "done")
    assert len(result.rounds) == 3
    messages = result.turn.request.messages
    assert [one.content for one in messages if one.role == "tool"] == [
        "Rome0: sunny",
        "Rome1: sunny",
    ]
    for before, after in zip(result.rounds, result.rounds[1:], strict=False):
        ids = (*before.prompt_token_ids, *before.token_ids)
        assert after.prompt_token_ids[: len(ids)] == ids and after.exact


def test_each_driver_gives_the_same_slots(tmp_path: Path) -> None:
    pipe, requests = agent(pg.tools([weather])), [asked(), asked(id="b")]
    batch = pg.run(pipe, requests)
    assert tuple(pg.imap(pipe, requests)) == batch
    assert asyncio.run(pg.arun(pipe, requests)) == batch

    async def mapped() -> tuple[Any, ...]:
        return tuple([slot async for slot in pg.aimap(pipe, requests)])

    assert asyncio.run(mapped()) == batch
    events = list(pg.stream(pipe, requests))
    assert [event.slot for event in events if isinstance(event, pg.Done)] == [*batch]
    shown = [event for event in events if isinstance(event, pg.Delta) and event.index == 0]
    assert "".join(event.text for event in shown if event.round == 2) == "Sunny."
    with pg.job(pipe, requests, tmp_path) as job:
        assert tuple(job) == batch


def test_the_schemas_go_into_each_first_request() -> None:
    toolbox = pg.tools([weather])
    engine = FakeEngine("Hi.<|im_end|>")
    pg.run(pg.turns(pg.route(engine), toolbox), [asked(), asked(tools=toolbox.schemas)])
    assert [row.request.tools for row in engine.calls[0]] == [toolbox.schemas] * 2
    other = {"type": "function", "function": {"name": "other", "parameters": {}}}
    error = pg.run(agent(toolbox), [asked(tools=[other])])[0].failure()
    assert isinstance(error, pg.InvalidRequest) and "there are tools already" in error.message


def test_a_request_without_messages_is_refused() -> None:
    for pipe in (agent(pg.tools([weather])), agent(lambda result: "And?")):
        error = pg.run(pipe, [{"prompt": "Hi"}])[0].failure()
        assert isinstance(error, pg.InvalidRequest) and "no messages" in error.message


def test_a_step_of_ones_own_answers_until_it_has_nothing_to_say() -> None:
    def critic(result: pg.GenerationResult) -> Any:
        count = (result.prompt_text or "").count("user")
        return ["Shorter.", {"role": "user", "content": "Still."}, ()][count - 1]

    result = pg.run(agent(critic, "Yes.<|im_end|>"), [asked()])[0].unwrap()
    users = [one.content for one in result.turn.request.messages if one.role == "user"]
    assert users == [USER["content"], "Shorter.", "Still."] and result.rounds_end == "done"


def test_limits_are_endings() -> None:
    seen: list[str] = []

    def noted(city: str) -> str:
        seen.append(city)
        return "sun"

    endless = calls(call("noted", city="a"))
    result = pg.run(agent(pg.tools([noted], limit=3), endless), [asked()])[0].unwrap()
    assert (len(result.rounds), result.rounds_end, len(seen)) == (3, "limit", 2)
    assert [one["function"]["name"] for one in result.tool_calls] == ["noted"]
    result = pg.run(agent(pg.tools([noted], limit=3), endless, limit=1), [asked()])[0].unwrap()
    assert (len(result.rounds), result.rounds_end, len(seen)) == (1, "limit", 2)
    first = pg.run(agent(lambda result: "And?", "Yes.", limit=1), [asked()])[0].unwrap()
    tokens = first.prompt_tokens + first.completion_tokens
    for most, count in ((tokens, 1), (tokens + 1, 2)):
        pipe = agent(lambda result: "And?", "Yes.", max_tokens=most)
        result = pg.run(pipe, [asked()])[0].unwrap()
        assert (len(result.rounds), result.rounds_end) == (count, "tokens")
    result = pg.run(agent(lambda result: None, "Yes.", limit=1, max_tokens=1), [asked()])[
        0
    ].unwrap()
    assert result.rounds_end == "done"
    assert pg.from_plain(pg.to_plain(pg.Success(first))).unwrap() == first


def test_a_bug_of_a_step_names_it_and_fails_its_row_alone_where_bugs_are_isolated(
    tmp_path: Path,
) -> None:
    def step(result: pg.GenerationResult) -> Any:
        return {}["bug"] if result.id == "b" else None

    requests = [asked(id=name) for name in "abc"]
    pipe = agent(step, "Yes.<|im_end|>")
    with pytest.raises(KeyError) as caught:
        pg.run(pipe, requests)
    assert caught.value.__notes__ == ["raised by the stage 'step of turns(fake)' at request 'b'"]
    with pg.job(pipe, requests, tmp_path) as job:
        slots = list(job)
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    error = slots[1].failure()
    assert isinstance(error, pg.StageFailed) and error.stage == "step of turns(fake)"
    caught_slots = pg.run(agent(step, "Yes.<|im_end|>", catch=(KeyError,)), requests)
    assert isinstance(caught_slots[1].failure(), pg.StageFailed) and pg.is_ok(caught_slots[2])
    with pytest.raises(InvalidField, match="then takes"):
        pg.run(agent(lambda result: 7), requests)


def test_options_of_a_run_are_for_all_turns() -> None:
    pipe = agent(lambda result: "And?", "Yes, it is.", limit=3)
    options = {"max_new_tokens": 2, "chat": {"enable_thinking": True}}
    result = pg.run(pipe, [asked()], options)[0].unwrap()
    assert [one.completion_tokens for one in result.rounds] == [2, 2, 2]
    assert all(one.options.chat.enable_thinking for one in result.rounds)
    begun = [USER, {"role": "assistant", "content": "Yes,"}]
    options = {"chat": {"continue_final_message": True}}
    result = pg.run(pipe, [{"messages": begun}], options)[0].unwrap()
    assert [one.exact for one in result.rounds] == [None, True, True]


def test_samples_have_their_own_conversations() -> None:
    def script(row: Any) -> str:
        drawn = (row.options.seed or 0) % 3
        return "ok<|im_end|>" if len(replies(row)) == drawn else calls(call(city=str(drawn)))

    options = {"samples": 3, "seed": 8, "temperature": 1.0}
    result = pg.run(agent(pg.tools([weather]), script), [asked()], options)[0].unwrap()
    assert [len(one.rounds) - 1 for one in result.samples] == [
        (one.options.seed or 0) % 3 for one in result.samples
    ]
    assert {one.text for one in result.samples} == {"ok"}


def test_several_calls_are_answered_in_order() -> None:
    answer = calls(call(city="a"), call("nothing", 1), call("weather", 2, city="b"))
    pipe = agent(pg.tools([weather]), lambda row: "ok<|im_end|>" if replies(row) else answer)
    messages = pg.run(pipe, [asked()])[0].unwrap().turn.request.messages[-3:]
    assert [one.content for one in messages] == [
        "a: sunny",
        "error: there is no tool 'nothing'; there are 'weather'",
        "b: sunny",
    ]
    assert [one.extras["tool_call_id"] for one in messages] == [f"call0000{n}" for n in range(3)]


def test_wrong_arguments_are_answered_in_words() -> None:
    for arguments, words in (
        ({}, 'at $: there is no property "city"'),
        ({"city": 3}, "at $.city: 3 is not of type string"),
        ({"city": "a", "town": 3}, 'at $: the property "town" is not allowed'),
    ):
        assert one_call(weather, arguments) == f"error: wrong arguments: {words}"
    toolbox = pg.tools([weather])
    assert toolbox.answer("weather", "{").unwrap().startswith("error: the arguments are no JSON: ")
    assert "at $: [1] is not of type object" in toolbox.answer("weather", "[1]").unwrap()
    assert toolbox.answer("weather", {"city": "a"}).unwrap() == "a: sunny"


def test_what_a_tool_raises_is_its_answer_or_fails_the_row() -> None:
    def broken() -> str:
        raise ValueError("no")

    assert one_call(broken) == "error: ValueError: no"
    error = one_call(broken, raised="fail")
    assert isinstance(error, pg.StageFailed) and error.stage == "broken" and error.incident
    assert error.message == "the tool 'broken' failed: ValueError: no"
    error = one_call(lambda_of(object()))
    assert isinstance(error, pg.StageFailed)
    assert "cannot be written as JSON: at $: an object of type object" in error.message
    for slot in (pg.Success(3), pg.Failure("no")):
        for value, place in ((slot, "$"), ({"a": [slot]}, "$.a[0]")):
            error = one_call(lambda_of(value))
            assert isinstance(error, pg.StageFailed)
            assert error.message.endswith(
                f"at {place}: an object of type {type(slot).__name__}: return the value itself,"
                " and where there is none raise an exception"
            )


@pytest.mark.parametrize("ends", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("raised", ["message", "fail"])
def test_a_tool_that_ends_its_thread_fails_its_row_alone(
    ends: BaseException, raised: Literal["message", "fail"]
) -> None:
    def leaves(city: str) -> str:
        if city == "Rome1":
            raise ends
        return city

    def script(row: Any) -> str:
        count = len(replies(row))
        city = "Rome" if row.request.id == "a" else f"Rome{count}"
        return "Sunny.<|im_end|>" if count == 2 else calls(call("leaves", city=city))

    pipe = agent(pg.tools([leaves], raised=raised), script)
    for drive in (pg.run, pg.imap):
        first, second = drive(pipe, [asked(id="a"), asked(id="b")])
        assert first.unwrap().text == "Sunny."
        error = second.failure()
        assert isinstance(error, pg.StageFailed) and error.stage == "leaves"
        assert error.message == "the tool 'leaves' failed: it ended its thread, as sys.exit() does"


async def _mapped(*given: Any) -> list[Any]:
    return [slot async for slot in pg.aimap(*given)]


DRIVERS = [
    pg.run,
    pg.imap,
    lambda *given: asyncio.run(pg.arun(*given)),
    lambda *given: asyncio.run(_mapped(*given)),
]


@pytest.mark.parametrize("drive", DRIVERS)
def test_a_tool_that_raises_a_cancellation_has_failed_as_any_other(drive: Any) -> None:
    async def waits() -> str:
        raise asyncio.CancelledError("no more")

    def cancels() -> str:
        raise asyncio.CancelledError

    for tool, words in ((waits, "CancelledError: no more"), (cancels, "CancelledError")):

        def script(row: Any, tool: Any = tool) -> str:
            return "ok<|im_end|>" if replies(row) else calls(call(tool.__name__))

        (slot,) = drive(agent(pg.tools([tool]), script), [asked()])
        assert slot.unwrap().turn.request.messages[-1].content == f"error: {words}"
        (slot,) = drive(agent(pg.tools([tool], raised="fail"), script), [asked()])
        error = slot.failure()
        assert isinstance(error, pg.StageFailed) and error.stage == tool.__name__
        assert error.incident and error.message.endswith(f"failed: {words}")


@pytest.mark.parametrize("driver", [pg.arun, _mapped])
def test_a_cancelled_run_is_cancelled_while_its_tools_run(driver: Any) -> None:
    running, go_on = threading.Event(), threading.Event()

    async def waits() -> str:
        running.set()
        await asyncio.to_thread(go_on.wait, 60)
        return ""

    async def cancelled() -> None:
        pipe = agent(pg.tools([waits]), lambda row: calls(call("waits")), limit=2)
        task = asyncio.ensure_future(driver(pipe, [asked()]))
        await asyncio.to_thread(running.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(cancelled())


@pytest.mark.parametrize("drive", [pg.run, pg.imap, lambda *given: asyncio.run(pg.arun(*given))])
def test_ctrl_c_ends_a_run_whose_tools_are_running(drive: Any) -> None:
    go_on = threading.Event()

    def interrupts() -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go_on.wait(60)
        return ""

    pipe = agent(pg.tools([interrupts]), lambda row: calls(call("interrupts")), limit=2)
    with pytest.raises(KeyboardInterrupt):
        list(drive(pipe, [asked()]))
    go_on.set()


def lambda_of(value: Any) -> Callable[[], Any]:
    def tool() -> Any:
        return value

    return tool


def test_a_tool_that_takes_too_long_is_left() -> None:
    never = threading.Event()

    def slow() -> None:
        never.wait()

    async def slow_too() -> None:
        await asyncio.Event().wait()

    assert one_call(slow, timeout=0.01) == "error: TimeoutError: it took more than 0.01 seconds"
    assert one_call(slow_too, timeout=0.01).startswith("error: TimeoutError")
    assert isinstance(one_call(slow, timeout=0.01, raised="fail"), pg.StageFailed)
    never.set()


def test_async_functions_are_awaited_and_values_are_json() -> None:
    async def later(city: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"städte": [city]}

    assert one_call(later, {"city": "a"}) == '{"städte": ["a"]}'


@dataclasses.dataclass
class Bought:
    size: decimal.Decimal
    on: dt.date


class Colour(enum.Enum):
    RED = "r"


class Model:
    """As pydantic's models are."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"mode": mode}


class Block:
    """As the blocks of MCP are."""

    def __init__(self, kind: str, **more: Any) -> None:
        self.type = kind
        vars(self).update(more)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        return vars(self)


class Answer:
    """As the results of MCP are."""

    def __init__(self, *content: Any, error: bool = False, structured: Any = None) -> None:
        self.content, self.isError, self.structuredContent = list(content), error, structured


def test_what_tools_give_becomes_json() -> None:
    numpy = pytest.importorskip("numpy")
    day = dt.date(2026, 1, 2)
    price = decimal.Decimal("1.50")
    cases: tuple[tuple[Any, str], ...] = (
        (Bought(price, day), '{"size": "1.50", "on": "2026-01-02"}'),
        ([numpy.int64(3), numpy.float32(0.5), numpy.bool_(True)], "[3, 0.5, true]"),
        (numpy.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
        (numpy.int64(3), "3"),
        (price, "1.50"),
        (
            dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC),
            "2026-01-02T03:04:00+00:00",
        ),
        ({"after": dt.timedelta(minutes=1, seconds=0.5)}, '{"after": "PT60.5S"}'),
        (Path("a/b"), "a/b"),
        (Colour.RED, "r"),
        ({Colour.RED: {"b", "a"}, day: (1, None)}, '{"r": ["a", "b"], "2026-01-02": [1, null]}'),
        ({3: True}.values(), "[true]"),
        (
            {numpy.datetime64("2026-01-02"): numpy.datetime64("2026-01-03")},
            '{"2026-01-02": "2026-01-03"}',
        ),
        (Model(), '{"mode": "json"}'),
        (None, "null"),
        ([{"type": "image", "title": "a cat"}], '[{"type": "image", "title": "a cat"}]'),
        ([{"type": "text", "text": "a"}], '[{"type": "text", "text": "a"}]'),
        (Answer(Block("text", text="one"), Block("text", text="two")), "one\ntwo"),
        (Answer(structured={"a": 1}), '{"a": 1}'),
        ([Block("text", text="one")], "one"),
        (Answer(Block("resource", resource=Block("", uri="file:a"))), "file:a"),
        (Answer(Block("resource", resource=Block("", text=None, uri="file:a"))), "file:a"),
        (Answer(Block("text", text="no"), error=True), "error: no"),
    )
    for value, words in cases:
        assert one_call(lambda_of(value)) == words
    failed = one_call(lambda_of(Answer(Block("text", text="no"), error=True)), raised="fail")
    assert isinstance(failed, pg.StageFailed) and failed.message.endswith("failed: no")


def test_what_nothing_can_write_fails_the_row() -> None:
    deep: list[Any] = []
    deep.append(deep)
    for value, words in (
        ({"a": [object()]}, r"at $.a[0]: an object of type object"),
        (deep, "nested more than 64 deep"),
        ({(1, 2): 3}, "a key of type tuple"),
        (int, "the type int"),
        (b"a", "an object of type bytes"),
    ):
        for raised in ("message", "fail"):
            error = one_call(lambda_of(value), raised=raised)
            assert isinstance(error, pg.StageFailed) and words in error.message


def test_images_of_a_tool_become_parts_of_its_message() -> None:
    pil = pytest.importorskip("PIL.Image")
    picture = pil.new("RGB", (2, 2), "red")
    data = base64.b64encode(b"bytes").decode()
    seen: list[Any] = []

    def script(row: Any) -> str:
        message = row.request.messages[-1]
        if message.role != "tool":
            return calls(call("tool"))
        parts = message.content
        seen.append([(type(part).__name__, getattr(part, "text", None)) for part in parts])
        return "ok<|im_end|>"

    image, words = ("ImagePart", None), ("TextPart", "red")
    for value, parts in (
        (picture, [image]),
        (["red", picture], [words, image]),
        ([{"type": "text", "text": "red"}, {"type": "image", "image": picture}], [words, image]),
        ([{"type": "image", "image": b"bytes"}], [image]),
        ([{"type": "image", "data": data, "mimeType": "image/png"}], [image]),
        (
            Answer(Block("image", data=data, mimeType="image/png"), Block("text", text="red")),
            [image, words],
        ),
    ):
        seen.clear()
        (slot,) = pg.run(agent(pg.tools([lambda_of(value)]), script), [asked()])
        assert slot.unwrap().text == "ok" and seen == [parts]
        assert len(slot.unwrap().image_digests) == 1


def test_a_tool_may_name_the_file_of_an_image_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"an image")
    address = "data:image/png;base64," + base64.b64encode(b"an image").decode()
    for image in (
        {"type": "image", "image": str(path)},
        {"type": "image", "image": path},
        {"type": "image_url", "image_url": {"url": str(path)}},
        {"type": "image_url", "image_url": {"url": str(path), "detail": "low"}},
        {"type": "image_url", "image_url": str(path)},
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "image", "image": address},
    ):
        for value in (image, ["A door:", image]):
            part = one_call(lambda_of(value))[-1]
            assert part.source.data == b"an image", image


def test_whole_numbers_of_a_call_are_integers() -> None:
    got: list[Any] = []

    def tool(
        n: int, many: list[int], maybe: int | None, size: float, pick: Literal[1, "a"] = 1
    ) -> None:
        got.extend((n, many, maybe, size, pick))

    one_call(tool, {"n": 1.0, "many": [2.0], "maybe": 3.0, "size": 4.0, "pick": 1.0})
    assert repr(got) == "[1, [2], 3, 4.0, 1]"
    got.clear()

    class Own:
        name, description = "own", ""
        inputSchema: ClassVar = {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "many": {
                    "type": "array",
                    "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
                "size": {"type": ["integer", "number"]},
                "inner": {"additionalProperties": {"type": "integer"}},
            },
        }

        def __call__(self, **values: Any) -> None:
            got.append(values)

    one_call(Own(), {"n": 1.0, "many": [2.0], "size": 4.0, "inner": {"a": 5.0}, "other": 6.0})
    assert repr(got) == "[{'n': 1, 'many': [2], 'size': 4.0, 'inner': {'a': 5}, 'other': 6.0}]"


@pytest.mark.parametrize("drive", DRIVERS)
def test_async_tools_of_a_run_share_one_loop(drive: Any) -> None:
    loops: list[Any] = []
    threads: list[Any] = []

    async def look(city: str) -> str:
        loops.append(asyncio.get_running_loop())
        threads.append(threading.current_thread())
        return city

    def script(row: Any) -> str:
        return "ok<|im_end|>" if len(replies(row)) == 2 else calls(call("look", city="a"))

    toolbox = pg.tools([look])
    slots = drive(agent(toolbox, script), [asked(), asked(id="b")])
    assert [slot.unwrap().text for slot in slots] == ["ok", "ok"]
    assert len(loops) == 4 and len({id(loop) for loop in loops}) == 1
    is_callers = threads[0] is threading.main_thread()
    assert is_callers == (DRIVERS.index(drive) >= 2)
    if not is_callers:  # its loop ends with the tools
        assert threads[0].is_alive()
        del toolbox, slots
        gc.collect()
        threads[0].join(60)
        assert not threads[0].is_alive()


@pytest.mark.parametrize("drive", DRIVERS)
def test_an_async_tool_that_ends_its_program_fails_its_row_alone(drive: Any) -> None:
    async def leaves() -> str:
        raise SystemExit(3)

    (slot,) = drive(agent(pg.tools([leaves]), lambda row: calls(call("leaves"))), [asked()])
    error = slot.failure()
    assert isinstance(error, pg.StageFailed)
    assert error.message == "the tool 'leaves' failed: it ended its thread, as sys.exit() does"


def test_an_async_tool_that_takes_too_long_is_cancelled() -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert one_call(slow, timeout=0.01).startswith("error: TimeoutError")
    assert ended.wait(60)


def test_a_long_answer_is_cut_and_says_so() -> None:
    assert one_call(lambda_of("äää"), max_bytes=5) == "ää\n[cut: 5 of 6 bytes]"
    assert one_call(lambda_of("äää"), max_bytes=6) == "äää"
    assert one_call(lambda_of("a\ud800")) == "a?"


class Search:
    """As the tools of MCP are."""

    name, description = "search", "Searches."
    parameters = MappingProxyType({"type": "object", "properties": {"words": {"type": "array"}}})

    def __call__(self, words: Any = ()) -> str:
        return f"found {len(words)}"


class Found:
    """As the tools of MCP name their schema."""

    name, description, inputSchema = Search.name, Search.description, Search.parameters

    def __call__(self, words: Any = ()) -> str:
        return f"found {len(words)}"


def test_an_object_with_a_schema_is_a_tool() -> None:
    assert pg.tools([Found()]).schemas == pg.tools([Search()]).schemas
    assert one_call(Found(), {"words": ["a"]}) == "found 1"
    toolbox = pg.tools([Search()])
    assert toolbox.schemas[0]["function"]["description"] == "Searches."
    assert one_call(Search(), {"words": ["a", "b"]}) == "found 2"


@pytest.mark.parametrize("drive", [pg.run, pg.imap, lambda *given: asyncio.run(pg.arun(*given))])
def test_the_tools_of_several_rows_run_side_by_side(drive: Any) -> None:
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(60)
        return "met"

    answer = calls(call("meet"))
    pipe = agent(pg.tools([meet]), lambda row: "ok<|im_end|>" if replies(row) else answer)
    slots = drive(pipe, [asked(), asked()])
    assert [slot.unwrap().turn.request.messages[-1].content for slot in slots] == ["met", "met"]


def test_more_rows_than_threads_are_all_answered() -> None:
    answers = tuple(pg.imap(agent(pg.tools([weather])), [asked() for _ in range(80)]))
    assert {slot.unwrap().text for slot in answers} == {"Sunny."}


@pytest.mark.parametrize("samples", [1, 2])
def test_a_job_that_is_killed_goes_on_and_calls_no_tool_again(samples: int, tmp_path: Path) -> None:
    called: list[str] = []

    def weather(city: str) -> str:
        called.append(city)
        return f"{city}: {len(called)}"  # another answer each time

    def run(folder: Path, fuse: Fuse) -> list[Any]:
        slots: list[Any] = []
        pipe = pg.turns(pg.route(Rowwise(script, fuse)), pg.tools([weather]))
        try:
            with pg.job(pipe, [asked()], folder, {"samples": samples, "seed": 8}, grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            pass
        return slots

    whole = Fuse()
    run(tmp_path / "whole", whole)
    assert len(whole.asked) == 3 * samples and len(called) == 2 * samples
    for at in range(len(whole.asked)):
        called.clear()
        first, second = Fuse(at), Fuse()
        assert run(tmp_path / str(at), first) == []
        (slot,) = run(tmp_path / str(at), second)
        assert slot.unwrap().text == "Sunny."
        assert len(first.answered) + len(second.answered) == 3 * samples
        assert not Counter(first.answered) & Counter(second.answered) or samples == 2
        if samples == 1:
            assert called == ["Rome0", "Rome1"]


def test_other_tools_are_another_job(tmp_path: Path) -> None:
    def weather(town: str) -> str:
        return town

    def settings(toolbox: Any) -> str:
        return agent(toolbox).stages

    same = globals()["weather"]
    assert settings(pg.tools([same])) == settings(pg.tools([same]))
    assert settings(pg.tools([same])) != settings(pg.tools([weather]))
    assert settings(pg.tools([same])) != settings(pg.tools([same], limit=2))


def test_images_of_the_first_request_stay_read(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"an image")
    pipe = agent(lambda result: "And?", "Red.<|im_end|>", limit=2)
    request = {"prompt": "What is it?", "images": [file]}
    result = pg.run(pipe, [request])[0].unwrap()
    assert [one.image_digests for one in result.rounds] == [result.image_digests] * 2
    assert len(result.image_digests) == 1 and result.exact

    def look(result: pg.GenerationResult) -> Any:
        part = {"type": "image", "image": b"another"}
        return {"role": "user", "content": [part, {"type": "text", "text": "And this?"}]}

    result = pg.run(agent(look, "Red.<|im_end|>", limit=2), [request])[0].unwrap()
    assert len(result.image_digests) == 2


def test_an_agent_within_a_fallback_and_with_plugins() -> None:
    broken = pg.route(FakeEngine("a", fault=pg.CallFailed(pg.BackendFailed("down"))))
    toolbox = pg.tools([weather])
    pipe = pg.fallback(pg.turns(broken, toolbox), agent(toolbox), when=pg.BackendFailed)
    result = pg.run(pipe, [asked()])[0].unwrap()
    assert (result.text, len(result.rounds)) == ("Sunny.", 3)
    seen: list[pg.Progress] = []
    shouting = pg.attach(agent(toolbox), pg.Plugin(name="shout", trim=str.upper))
    result = pg.run(pg.watched(shouting, seen.append), [asked()])[0].unwrap()
    assert result.text == "SUNNY." and seen


def test_what_is_no_conversation_is_refused() -> None:
    route: Any = pg.route(FakeEngine("a"))
    wrong: Any = None
    pipe: Any
    step: Any

    async def later(result: Any) -> Any:
        return None

    for pipe, step in ((wrong, weather), (wrong, wrong), (route, "And?")):
        with pytest.raises(TypeError, match="turns takes a pipe and a function"):
            pg.turns(pipe, step)
    step = later
    with pytest.raises(TypeError, match="no async function"):
        pg.turns(route, step)
    more: Any
    for more in ({"catch": ValueError}, {"catch": 3}, {"catch": (3,)}):
        with pytest.raises(TypeError, match="catch takes a tuple of exceptions"):
            pg.turns(route, lambda result: None, **more)
    for step in (None, pg.tools([weather])):
        with pytest.raises(TypeError, match="catch is about a step of your own"):
            pg.turns(route, step, catch=(ValueError,))
    for more in ({"limit": 0}, {"limit": True}, {"max_tokens": 0.5}):
        with pytest.raises(TypeError, match="takes a whole number"):
            pg.turns(route, pg.tools([weather]), **more)


def test_what_is_no_tool_is_refused() -> None:
    def many(*names: str) -> str:
        return ""

    def unknown(city: Unheard) -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    def sized(size: Size) -> str:
        return ""

    class Strange:
        parameters = 7

        def __call__(self) -> None: ...

    wrong: Any
    for wrong, words in (
        (7, "list of functions"),
        ("ab", "list of functions"),
        ([], "one function or more"),
        ([7], "a function or can be called"),
        ([lambda item: item], "a function with a name"),
        ([Strange()], "a JSON Schema"),
        ([many], "takes named arguments"),
        ([int], "the signature of <class 'int'> cannot be read"),
        ([unknown], "a type hint is not known there, name 'Unheard' is not defined"),
        ([sized], "Size has members whose values JSON does not have"),
        ([weather, weather], "two tools have the name 'weather'"),
    ):
        with pytest.raises(TypeError, match=words):
            pg.tools(wrong)
    more: Any
    for more in (
        {"limit": 0},
        {"max_bytes": 1.5},
        {"timeout": 0},
        {"timeout": True},
        {"raised": 1},
        {"unread": "say"},
    ):
        with pytest.raises(TypeError, match=" takes "):
            pg.tools([weather], **more)


def test_the_schema_comes_from_the_signature() -> None:
    def tool(
        city: Annotated[str, "its name"],
        days: int = 1,
        *,
        unit: Literal["C", "F"] = "C",
        tags: list[str] | None = None,
        more: dict[str, Any] | float = 0.5,
        other: Any = None,
    ) -> str:
        """Looks."""
        return ""

    schema = schema_of(tool)
    assert schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "more": {"anyOf": [{"type": "object"}, {"type": "number"}]},
            "other": {},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Size(enum.Enum):
    SMALL = (1, 2)


@dataclasses.dataclass
class Place:
    name: str
    unit: Unit = Unit.CELSIUS
    inner: list[Place] = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=0, init=False)


class Span(TypedDict):
    first: Annotated[int, "the first day"]
    last: NotRequired[int]


def travel(
    place: Place,
    at: tuple[float, str],
    span: Span,
    others: dict[str, Unit] | None = None,
    days: tuple[int, ...] = (),
    seen: set[str] = frozenset(),  # type: ignore[assignment]
    bare: tuple = (),  # type: ignore[type-arg]
    old: typing.Tuple = (),  # type: ignore[type-arg]  # noqa: UP006
    more: Any = None,
) -> str:
    """Travels."""
    return repr([place, at, span, others, days, seen, bare, old, more])


def test_schemas_of_tuples_enums_dataclasses_and_typed_dicts() -> None:
    unit = {"enum": ["C", "F"]}
    properties = schema_of(travel)["properties"]
    assert properties["place"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "unit": unit,
            "inner": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    each = [{"type": "number"}, {"type": "string"}]
    assert properties["at"] == {
        "type": "array",
        "prefixItems": each,
        "minItems": 2,
        "maxItems": 2,
    }
    span = {
        "first": {"type": "integer", "description": "the first day"},
        "last": {"type": "integer"},
    }
    assert properties["span"] == {
        "type": "object",
        "properties": span,
        "required": ["first"],
        "additionalProperties": False,
    }
    assert properties["days"] == {"type": "array", "items": {"type": "integer"}}
    assert properties["bare"] == {"type": "array"}


class OtherSpan(typing_extensions.TypedDict):
    first: Annotated[int, "the first day"]
    last: NotRequired[int]


def test_a_typed_dict_of_typing_extensions_is_one() -> None:
    def one(span: Span) -> str:
        return repr(span)

    def other(span: OtherSpan) -> str:
        return repr(span)

    assert schema_of(other) == schema_of(one)
    assert one_call(other, {"span": {"first": 2.0}}) == "{'first': 2}"


def test_a_literal_may_be_a_member_of_an_enum() -> None:
    def tool(unit: Literal[Unit.CELSIUS, 1] = 1) -> str:
        return repr(unit)

    def unsayable(unit: Literal[b"C"]) -> str:
        return ""

    assert schema_of(tool)["properties"] == {"unit": {"enum": ["C", 1]}}
    assert one_call(tool, {"unit": "C"}) == repr(Unit.CELSIUS)
    assert one_call(tool, {"unit": 1.0}) == "1"
    assert "wrong arguments" in one_call(tool, {"unit": "F"})
    with pytest.raises(TypeError, match="has members whose values JSON does not have"):
        pg.tools([unsayable])


def test_a_tool_gets_its_arguments_as_its_types_say() -> None:
    given = {
        "place": {"name": "Rome", "unit": "F", "inner": [{"name": "Forum"}]},
        "at": [1.5, "noon"],
        "span": {"first": 2},
        "others": {"a": "C"},
        "days": [1, 2],
        "seen": ["b"],
        "bare": [1, "a"],
        "old": [2],
        "more": {"any": [1]},
    }
    inner = [Place("Forum")]
    assert one_call(travel, given) == repr(
        [
            Place("Rome", Unit.FAHRENHEIT, inner),
            (1.5, "noon"),
            {"first": 2},
            {"a": Unit.CELSIUS},
            (1, 2),
            {"b"},
            (1, "a"),
            (2,),
            {"any": [1]},
        ]
    )
    assert one_call(travel, {**given, "others": None}).count("None") == 1
    wrong = one_call(travel, {**given, "at": [1.5]})
    assert wrong.startswith("error: wrong arguments: at $.at")


UNREAD = json.dumps([call(city="Rome")], separators=(",", ":"))


def then_sunny(first: str) -> Callable[[Any], str]:
    return lambda row: "Sunny.<|im_end|>" if row.request.continues else first


@pytest.mark.parametrize(
    ("answer", "options", "end"),
    [
        (UNREAD + "<|im_end|>", {}, "unread"),
        (calls(call(city="Rome")), {"max_new_tokens": 60}, "cut"),
        (calls(call(city="Rome")), {"stop": ["arguments"]}, "cut"),
        ("Sunny.<|im_end|>", {}, "done"),
        ("Sunny.<|im_end|>", {"max_new_tokens": 3}, "done"),
    ],
)
def test_a_call_that_is_not_read_is_no_answer(
    answer: str, options: dict[str, Any], end: str
) -> None:
    result = pg.run(agent(pg.tools([weather]), then_sunny(answer)), [asked()], options)[0].unwrap()
    assert (len(result.rounds), result.rounds_end) == (1, end)
    assert (result.tool_calls_unread is not None) == (end != "done")
    assert pg.from_plain(pg.to_plain(pg.Success(result))).unwrap().rounds_end == end  # type: ignore[union-attr]
    told = pg.tools([weather], unread="tell")
    result = pg.run(agent(told, then_sunny(answer)), [asked()], options)[0].unwrap()
    if end == "done":
        assert len(result.rounds) == 1
        return
    assert (len(result.rounds), result.rounds_end) == (2, "done")
    message = result.turn.request.messages[-1]
    assert message.role == "user"
    words = result.rounds[0].tool_calls_unread
    assert message.content == f"error: no tool was called: {words}"
    ends = "ended it" if end == "cut" else '"name": "weather", "arguments": {"city": "Rome"}'
    assert words is not None and ends in words


def test_an_answer_of_a_form_is_no_call_that_was_not_read() -> None:
    form = {"json_schema": {"type": "object"}}
    answer = '{"name": "weather", "city": "Rome"}<|im_end|>'
    result = pg.run(agent(pg.tools([weather]), then_sunny(answer)), [asked()], form)[0].unwrap()
    assert (result.rounds_end, result.tool_calls_unread) == ("done", None)


def test_a_model_that_is_told_reaches_the_limit_as_any_other() -> None:
    toolbox = pg.tools([weather], unread="tell", limit=3)
    result = pg.run(agent(toolbox, lambda row: UNREAD + "<|im_end|>"), [asked()])[0].unwrap()
    assert (len(result.rounds), result.rounds_end) == (3, "limit")


def test_calls_that_are_no_calls_are_answered_in_words() -> None:
    result = pg.run(pg.route(FakeEngine("a")), [asked()])[0].unwrap()
    strange = dataclasses.replace(result, tool_calls=({"id": None}, {"function": {"name": [1]}}))
    toolbox = pg.tools([weather])
    (given,) = toolbox.generate([strange])
    assert [one["content"] for one in given.unwrap().messages] == [
        f"error: there is no tool {name}; there are 'weather'" for name in ("None", "[1]")
    ]
    assert toolbox.replies(strange, lambda: True).unwrap().messages == ()


def test_tools_of_a_closed_call_are_not_called_any_more() -> None:
    result = pg.run(pg.route(FakeEngine("a")), [asked()])[0].unwrap()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    count: list[int] = []

    def slow() -> None:
        count.append(1)
        begun.set()
        go_on.wait(60)

    strange = dataclasses.replace(result, tool_calls=(call("slow"), call("slow")))
    running = pg.tools([slow]).open(ended.set)
    running.add({0: strange})
    begun.wait(60)
    running.close()
    go_on.set()
    ended.wait(60)
    assert count == [1]


def test_the_embedded_model_goes_on_with_its_conversations(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def step(result: pg.GenerationResult) -> Any:
        return "Go on." if len(result.prompt_text or "") < 200 else ()

    options = pg.GenerationOptions(max_new_tokens=6)
    requests = [{"messages": [{"role": "user", "content": f"Count to {n}."}]} for n in (3, 4)]
    with pg.backends.hf("embedded") as route:
        pipe = pg.turns(route, step)
        batch = pg.run(pipe, requests, options)
        assert tuple(pg.imap(pipe, requests, options)) == batch
        with pg.job(pipe, requests, tmp_path, options) as job:
            assert tuple(job) == batch
    for slot in batch:
        assert [one.exact for one in slot.unwrap().rounds] == [None, True, True]


# the turns of a request


def counted(row: Any) -> str:
    return f"{len(row.request.messages or ())}<|im_end|>"


def test_the_turns_of_a_request_are_asked_one_after_another(tmp_path: Path) -> None:
    pipe = pg.turns(pg.route(FakeEngine(counted)))
    requests = [
        {"id": "a", "turns": ["Hi", "And?", {"role": "user", "content": "So?"}]},
        {"id": "b", "messages": [USER], "turns": ["And?"]},
        {"id": "c", "messages": [USER]},
        {"id": "d", "prompt": "plain"},
    ]
    batch = pg.run(pipe, requests)
    assert [[one.text for one in slot.unwrap().rounds] for slot in batch] == [
        ["1", "3", "5"],
        ["1", "3"],
        [],
        [],
    ]
    assert [slot.unwrap().rounds_end for slot in batch] == ["done", "done", None, None]
    assert [slot.unwrap().text for slot in batch] == ["5", "3", "1", "0"]
    for before, after in zip(batch[0].unwrap().rounds, batch[0].unwrap().rounds[1:], strict=False):
        ids = before.prompt_token_ids + before.token_ids
        assert after.prompt_token_ids[: len(ids)] == ids and after.exact
    route = pg.route(FakeEngine(counted))
    assert pg.run(route, requests[2:]) == batch[2:]
    assert tuple(pg.imap(pipe, requests)) == batch
    assert asyncio.run(pg.arun(pipe, requests)) == batch
    with pg.job(pipe, requests, tmp_path) as job:
        assert tuple(job) == batch
    with pg.job(pipe, requests, tmp_path) as job:
        assert tuple(job) == batch and job.reused == 4


def test_other_turns_are_another_request(tmp_path: Path) -> None:
    pipe = pg.turns(pg.route(FakeEngine(counted)))
    for turns, reused in ((["Hi", "And?"], 0), (["Hi", "So?"], 0), (["Hi", "And?"], 1)):
        with pg.job(pipe, [{"turns": turns}], tmp_path) as job:
            list(job)
            assert job.reused == reused


def test_a_route_alone_refuses_turns_and_so_do_steps() -> None:
    route = pg.route(FakeEngine(counted))
    error = pg.run(route, [{"turns": ["Hi", "And?"]}])[0].failure()
    assert error.message == "a route asks one turn, and this request has 1 more"
    assert "pg.turns(route)" in error.hint
    for step in (pg.tools([weather]), lambda result: None):
        error = pg.run(pg.turns(route, step), [{"turns": ["Hi", "And?"]}])[0].failure()
        assert "a step says how this conversation goes on" in error.message


def test_the_turns_of_a_request_have_limits_too() -> None:
    turns = ["Hi", *["And?"] * 20]
    pipe = pg.turns(pg.route(FakeEngine(counted)))
    assert len(pg.run(pipe, [{"turns": turns}])[0].unwrap().rounds) == 21
    few = pg.turns(pg.route(FakeEngine(counted)), limit=2)
    result = pg.run(few, [{"turns": turns}])[0].unwrap()
    assert (len(result.rounds), result.rounds_end) == (2, "limit")


def test_images_of_turns_are_read_and_options_are_for_all(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"an image")
    part = {"type": "image", "image": str(file)}
    look = {"role": "user", "content": [part, {"type": "text", "text": "And this?"}]}
    pipe = pg.turns(pg.route(FakeEngine("Red.<|im_end|>")))
    request = {"prompt": "What is it?", "images": [b"another"], "turns": [look, "Sure?"]}
    result = pg.run(pipe, [request], {"max_new_tokens": 2})[0].unwrap()
    assert [len(one.image_digests) for one in result.rounds] == [1, 2, 2]
    assert {one.completion_tokens for one in result.rounds} == {2}
    assert result.rollout.images == (
        pg.ImageSource(data=b"another"),
        pg.ImageSource(path=str(file)),
    )
    with pg.job(pipe, [request], tmp_path / "job") as job:
        list(job)
    file.write_bytes(b"other")
    with pg.job(pipe, [request], tmp_path / "job") as job:
        list(job)
        assert job.reused == 0


def test_samples_have_their_own_turns() -> None:
    pipe = pg.turns(pg.route(FakeEngine(lambda row: f"{row.options.seed}<|im_end|>")))
    options = {"samples": 2, "seed": 8, "temperature": 1.0}
    result = pg.run(pipe, [{"turns": ["Hi", "And?"]}], options)[0].unwrap()
    assert [len(one.rounds) for one in result.samples] == [2, 2]
    for sample in result.samples:
        assert len({one.text for one in sample.rounds}) == 1


# progress


@pytest.mark.parametrize("drive", [pg.run, pg.imap])
def test_progress_is_shown_over_tools(drive: Any) -> None:
    seen: list[pg.Progress] = []
    pipe = pg.watched(agent(pg.tools([weather])), seen.append)
    slots = list(drive(pipe, [asked(), asked(id="b")]))
    assert slots == list(pg.run(agent(pg.tools([weather])), [asked(), asked(id="b")]))
    last = {one.engine: one for one in seen}
    assert last.keys() == {"fake", "tools"} and last["fake"].tokens > 0 == last["tools"].tokens
    assert all(one.done == one.rows for one in last.values())


def test_what_a_step_raises_and_lists_fails_its_row() -> None:
    def step(result: pg.GenerationResult) -> str:
        raise KeyError("city")

    pipe = pg.turns(pg.route(FakeEngine("Yes.")), step, catch=(KeyError,))
    error = pg.run(pipe, [{"messages": [{"role": "user", "content": "Hi"}]}])[0].failure()
    assert isinstance(error, pg.StageFailed)
    assert (error.stage, error.message) == ("step of turns(fake)", "KeyError: 'city'")


def test_numbers_stay_where_a_schema_says_nothing_of_them() -> None:
    entries = {"rows": {"items": True}, "some": {"anyOf": [True, {"type": "null"}]}, "text": {}}
    values = {"rows": [1.0], "some": 2.0, "text": "1.0", "else": [3.0]}
    assert repr(with_whole_numbers(values, {"properties": entries})) == repr(values)
