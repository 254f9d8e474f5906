"""Tools: functions that a conversation's model may call (see `pipegen.drivers.turns`).

The tools of a conversation are called as an engine is. The driver hands over the results whose
calls are to be answered, goes on with other rows, and is woken when answers are there. Each result
has a thread that makes its calls in order, and each call a thread of its own, so that one which
does not end can be left. These threads end no program late: they are daemons.

>>> def add(first: int, second: int) -> int:
...     "Add two numbers."
...     return first + second
>>> tools([add]).answer("add", '{"first": 1, "second": 2}').unwrap()
'3'
>>> tools([add]).answer("add", '{"first": 1}').unwrap()
'error: wrong arguments: at $: there is no property "second"'
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from returns.result import Failure, Success

from pipegen.core.errors import InternalError, StageFailed
from pipegen.core.foreign_calls import Raised, attempt, guard, guard_result
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.tool_loop import OwnLoop, ToolCalls
from pipegen.drivers.tool_results import Content, content_of, is_error, text_of
from pipegen.drivers.tool_schema import arguments_of, schema_of, with_whole_numbers
from pipegen.engines.protocol import RowDone
from pipegen.engines.session import answers
from pipegen.records.frozen import freeze, plain_number, thaw
from pipegen.records.results import GenerationResult, ToolReplies

__all__ = ["Tools", "tools"]

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What ends a thread or a program, and is no error that a model could answer."""
T = TypeVar("T")
ROWS = 32
"""Results whose calls are answered at a time."""


_TIMEOUT, _MAX_BYTES = 60.0, 65536
_DEFAULTS = {
    "timeout": _TIMEOUT,
    "raised": "message",
    "max_bytes": _MAX_BYTES,
    "unread": "end",
}


def tools(
    functions: Iterable[Callable[..., Any]],
    *,
    limit: int = 16,
    timeout: float = _TIMEOUT,
    raised: Literal["message", "fail"] = "message",
    max_bytes: int = _MAX_BYTES,
    unread: Literal["end", "tell"] = "end",
) -> Tools:
    """Tools for `pg.turns`: plain or async functions, or objects with `name`, `description`,
    `parameters` or `inputSchema` (a JSON Schema) and `__call__`.

    The schema of a function comes from its name, signature, type hints and docstring, and it gets
    its arguments as these say. The calls of one answer are made in order, those of several rows
    side by side, in threads. An async function runs on the event loop of an asynchronous caller,
    else on one that all calls of these tools share.

    limit: answers that a conversation has at most.
    timeout: seconds for one call. One that takes longer is left running, or cancelled if it is
        async.
    raised: what a tool raises becomes its answer ("message"), or fails the request with
        `StageFailed` ("fail").
    max_bytes: how much of a tool's answer the model sees in UTF-8.
    unread: an answer that looks like a call, and is not read as one, ends the conversation
        ("end"), or the model gets a message that says what was wrong ("tell").

    An unknown tool and wrong arguments are answered in words. What a tool gives is a text, or
    becomes JSON. Images become content parts. What nothing can write fails the row with
    `StageFailed`. A tool that ends its thread, as `sys.exit()` does, fails its row. Raises
    `TypeError` for what is no tool or no such limit.

    >>> def weather(city: str) -> str:
    ...     "The weather of a city."
    ...     return "sunny"
    >>> tools([weather]).schemas[0]["function"]["name"]
    'weather'
    """
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Iterable):
        raise TypeError(f"tools takes a list of functions, not {functions!r:.80}")
    by_name: dict[str, Callable[..., Any]] = {}
    schemas: list[Mapping[str, Any]] = []
    for function in functions:
        schema = _schema(function)
        if schema["name"] in by_name:
            raise TypeError(f"two tools have the name {schema['name']!r}: rename one")
        by_name[schema["name"]] = function
        schemas.append({"type": "function", "function": schema})
    if not by_name:
        raise TypeError("tools takes one function or more")
    limit, max_bytes, timeout = map(plain_number, (limit, max_bytes, timeout))
    for name, value in (("limit", limit), ("max_bytes", max_bytes)):
        if type(value) is not int or value < 1:
            raise TypeError(f"{name} takes a whole number of at least 1, not {value!r:.80}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise TypeError(f"timeout takes a number of seconds, not {timeout!r:.80}")
    if raised not in ("message", "fail"):
        raise TypeError(f'raised takes "message" or "fail", not {raised!r:.80}')
    if unread not in ("end", "tell"):
        raise TypeError(f'unread takes "end" or "tell", not {unread!r:.80}')
    return Tools(
        by_name,
        freeze(schemas),
        limit,
        min(timeout, threading.TIMEOUT_MAX),
        raised == "fail",
        max_bytes,
        unread == "tell",
    )


def _schema(function: Any) -> dict[str, Any]:
    if not callable(function):
        raise TypeError(f"a tool is a function or can be called, not {function!r:.80}")
    parameters = _parameters_of(function)
    name = getattr(function, "__name__" if parameters is None else "name", None)
    has_name = isinstance(name, str) and name != "<lambda>"
    if not has_name or not (parameters is None or isinstance(parameters, Mapping)):
        raise TypeError(
            "a tool is a function with a name, or has `name`, `description` and `parameters` or"
            f" `inputSchema`, a JSON Schema; not {function!r:.80}"
        )
    words = inspect.getdoc(function) if parameters is None else getattr(function, "description", "")
    schema = schema_of(function) if parameters is None else parameters
    return {"name": name, "description": words or "", "parameters": schema}


def _parameters_of(function: Any) -> Any:
    """The schema that a tool has itself; None where its signature says it."""
    return getattr(function, "parameters", getattr(function, "inputSchema", None))


@dataclass(frozen=True, eq=False)
class Tools:
    """What `pg.tools` gives: the functions, and how they are called."""

    functions: Mapping[str, Callable[..., Any]]
    schemas: tuple[Mapping[str, Any], ...]
    """As in the `tools` of a request."""
    limit: int
    timeout: float
    fails: bool
    max_bytes: int
    tells_unread: bool = False
    name = "tools"
    in_flight = 1

    @property
    def depends_on(self) -> Mapping[str, Any]:
        return {"tools": sorted(self.functions), **self.settings}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change what a model is told, without those that are the default."""
        values = {
            "timeout": self.timeout,
            "raised": "fail" if self.fails else "message",
            "max_bytes": self.max_bytes,
            "unread": "tell" if self.tells_unread else "end",
        }
        return {name: value for name, value in values.items() if value != _DEFAULTS[name]}

    def generate(self, inputs: Sequence[GenerationResult]) -> Sequence[Slot[ToolReplies]]:
        """The answers of the tools to the calls of each result."""
        return answers(self, inputs)

    def open(self, wake: Callable[[], object], **how: Any) -> _Running:
        """A call to which results may be added."""
        return _Running(self, wake, ToolCalls(_own_loop(self), how.get("loop")))

    def replies(
        self, result: GenerationResult, left: Callable[[], bool], awaited: ToolCalls | None = None
    ) -> Slot[ToolReplies]:
        """A message for each call of a result, in order, until `left()`."""
        if awaited is None:
            awaited = ToolCalls(_own_loop(self))
        messages: list[Mapping[str, Any]] = []
        if not result.tool_calls and result.tool_calls_unread is not None:
            words = f"error: no tool was called: {result.tool_calls_unread}"
            messages.append({"role": "user", "content": words})
        for call in result.tool_calls:
            if left():
                break
            function = call.get("function")
            function = function if isinstance(function, Mapping) else {}
            content = self._content(function.get("name"), function.get("arguments"), awaited)
            if not is_ok(content):
                return Failure(content.failure())
            id_field = {"tool_call_id": call["id"]} if call.get("id") is not None else {}
            messages.append({"role": "tool", **id_field, "content": content.unwrap()})
        return Success(ToolReplies(result=result, messages=freeze(messages)))

    def answer(self, name: Any, arguments: Any) -> Slot[Content]:
        """What a call is answered. `StageFailed` where its tool raised and that fails the row. The
        same where what it gave cannot be written.
        """
        return self._content(name, arguments, ToolCalls(_own_loop(self)))

    def _content(self, name: Any, arguments: Any, awaited: ToolCalls) -> Slot[Content]:
        if not isinstance(name, str) or name not in self.functions:
            names = ", ".join(map(repr, self.functions))
            return Success(self._cut(f"error: there is no tool {name!r:.80}; there are {names}"))
        decoded = attempt(
            lambda: json.loads(arguments) if isinstance(arguments, str) else arguments
        )
        if not is_ok(decoded):
            return Success(f"error: the arguments are no JSON: {decoded.failure()!s:.200}")
        values = thaw(decoded.unwrap())
        schema = next(
            entry["function"] for entry in self.schemas if entry["function"]["name"] == name
        )
        from pipegen.answer.json_check import wrong_in_json

        wrong = wrong_in_json(values, {**thaw(schema["parameters"]), "type": "object"})
        if wrong:
            return Success(self._cut(f"error: wrong arguments: {wrong}"))
        function = self.functions[name]

        def work() -> Slot[Content]:
            has_schema = _parameters_of(function) is not None
            keywords = (
                with_whole_numbers(values, thaw(schema["parameters"]))
                if has_schema
                else arguments_of(function, values)
            )
            given = function(**keywords)
            if inspect.isawaitable(given):
                given = awaited.wait(given, self.timeout)
            content = content_of(given)
            if not is_error(given):
                return content
            if self.fails and is_ok(content):
                return Failure(StageFailed(text_of(content.unwrap())))
            return content.map(lambda known: f"error: {text_of(known)}")

        outcome = _within(work, self.timeout, traced=self.fails)
        if outcome is not None and is_ok(outcome):
            content = outcome.unwrap()
            if is_ok(content):
                return Success(self._shortened(content.unwrap()))
            words = f"the tool {name!r} failed: {content.failure().message}"
            return Failure(StageFailed(words, stage=name))
        error = (
            StageFailed("it ended its thread, as sys.exit() does")
            if outcome is None
            else outcome.failure()
        )
        if outcome is not None and not self.fails:
            return Success(self._cut(f"error: {error.message}"))
        words = f"the tool {name!r} failed: {error.message}"
        return Failure(StageFailed(words, stage=name, incident=error.incident))

    def _shortened(self, content: Content) -> Content:
        if isinstance(content, str):
            return self._cut(content)
        return [
            {**part, "text": self._cut(part["text"])} if part.get("type") == "text" else part
            for part in content
        ]

    def _cut(self, text: str) -> str:
        data = text.encode("utf-8", "replace")
        if len(data) <= self.max_bytes:
            return data.decode()
        beginning = data[: self.max_bytes].decode("utf-8", "ignore")
        return f"{beginning}\n[cut: {self.max_bytes} of {len(data)} bytes]"


_LOOPS: WeakKeyDictionary[Tools, OwnLoop] = WeakKeyDictionary()
"""The loops of tools: each ends with its tools."""


def _own_loop(owner: Tools) -> OwnLoop:
    loop = _LOOPS.get(owner)
    if loop is None:
        loop = _LOOPS.setdefault(owner, OwnLoop())
        weakref.finalize(owner, loop.close)
    return loop


class _Running:
    """Results whose calls are being answered. One thread uses it; `_run` is in others."""

    side_by_side = 0

    def __init__(self, tools: Tools, wake: Callable[[], object], awaited: ToolCalls) -> None:
        self._tools, self._wake, self._left, self._awaited = tools, wake, False, awaited
        self._waiting: deque[tuple[int, GenerationResult]] = deque()
        self._ended: deque[RowDone] = deque()
        self._threads = 0

    def add(self, inputs: Mapping[int, GenerationResult]) -> None:
        self._waiting.extend(inputs.items())
        self._start()

    def step(self) -> Sequence[RowDone]:
        """The results whose calls are answered."""
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        self._threads -= len(ended)
        self._start()
        return ended

    def close(self) -> None:
        self._left = True
        self._waiting.clear()
        self._awaited.close()

    def _start(self) -> None:
        while self._waiting and self._threads < ROWS:
            self._threads += 1
            threading.Thread(target=self._run, args=self._waiting.popleft(), daemon=True).start()

    def _run(self, number: int, result: GenerationResult) -> None:
        slot = guard_result(
            lambda: self._tools.replies(result, lambda: self._left, self._awaited),
            lambda raised: InternalError(
                f"pipegen has a bug: {raised.words}", incident=raised.incident
            ),
        )
        self._ended.append(RowDone(row=number, slot=slot))
        self._wake()


def _within(work: Callable[[], T], seconds: float, *, traced: bool) -> Slot[T] | None:
    """What `work` gives within so many seconds, in a thread of its own, or what it raised. None
    where it raised what ends a thread or a program: it ends this thread, and no more.
    """
    from asyncio import CancelledError  # half of what `import pipegen` would cost

    outcomes: list[Slot[T]] = []
    tool_errors, ended = (Exception, CancelledError), threading.Event()

    def run() -> None:
        try:
            with contextlib.suppress(*_ENDS):
                outcomes.append(
                    guard(work, _raised, known=() if traced else tool_errors, only=tool_errors)
                )
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    if not ended.wait(seconds):
        return Failure(StageFailed(f"TimeoutError: it took more than {seconds:g} seconds"))
    return outcomes[0] if outcomes else None


def _raised(raised: Raised) -> StageFailed:
    return StageFailed(raised.words, incident=raised.incident)
