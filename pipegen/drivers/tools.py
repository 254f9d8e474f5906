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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from returns.result import Failure, Success

from pipegen.core.border import Raised, attempt, guard, guard_slot
from pipegen.core.errors import InternalError, StageFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.tool_schema import arguments_of, schema_of
from pipegen.engines.protocol import RowDone
from pipegen.engines.session import answers
from pipegen.records.frozen import freeze, plain_number, thaw
from pipegen.records.results import GenerationResult, ToolReplies
from pipegen.stages.parts.json_check import wrong_in_json

__all__ = ["Tools", "tools"]

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What ends a thread or a program, and is no error that a model could answer."""
ROWS = 32
"""Results whose calls are answered at a time."""


def tools(
    functions: Iterable[Callable[..., Any]],
    *,
    limit: int = 16,
    timeout: float = 60.0,
    raised: Literal["message", "fail"] = "message",
    max_bytes: int = 65536,
) -> Tools:
    """Tools for `pg.turns`: plain or async functions, or objects with `name`, `description`,
    `parameters` or `inputSchema` (a JSON Schema) and `__call__`.

    The schema of a function comes from its name, signature, type hints and docstring, and it gets
    its arguments as these say. The calls of one answer are made in order, those of several rows
    side by side, in threads.
    limit: answers that a conversation has at most. timeout: seconds for one call; one that takes
    longer is left running. raised: what a tool raises, its timeout and its own CancelledError too,
    becomes its answer ("message"), or fails the row with `StageFailed` ("fail"). max_bytes: how
    much of a tool's answer the model sees in UTF-8; a longer one is cut, and says so. An unknown
    tool and wrong arguments are answered in words. A tool that ends its thread, as `sys.exit()`
    does, fails its row. Raises `TypeError` for what is no tool or no such limit.

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
    fails = raised == "fail"
    return Tools(
        by_name, freeze(schemas), limit, min(timeout, threading.TIMEOUT_MAX), fails, max_bytes
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
    name = "tools"
    in_flight = 1

    @property
    def depends_on(self) -> Mapping[str, Any]:
        return {"tools": sorted(self.functions)}

    def generate(self, inputs: Sequence[GenerationResult]) -> Sequence[Slot[ToolReplies]]:
        """The answers of the tools to the calls of each result."""
        return answers(self, inputs)

    def open(self, wake: Callable[[], object], **how: Any) -> _Running:
        """A call to which results may be added."""
        return _Running(self, wake)

    def replies(self, result: GenerationResult, left: Callable[[], bool]) -> Slot[ToolReplies]:
        """A message for each call of a result, in order, until `left()`."""
        messages: list[Mapping[str, Any]] = []
        for call in result.tool_calls:
            if left():
                break
            function = call.get("function")
            function = function if isinstance(function, Mapping) else {}
            text = self.answer(function.get("name"), function.get("arguments"))
            if not is_ok(text):
                return Failure(text.failure())
            id_field = {"tool_call_id": call["id"]} if call.get("id") is not None else {}
            messages.append({"role": "tool", **id_field, "content": text.unwrap()})
        return Success(ToolReplies(result=result, messages=freeze(messages)))

    def answer(self, name: Any, arguments: Any) -> Slot[str]:
        """What a call is answered; `StageFailed` where its tool raised and that fails the row."""
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
        wrong = wrong_in_json(values, {**thaw(schema["parameters"]), "type": "object"})
        if wrong:
            return Success(self._cut(f"error: wrong arguments: {wrong}"))
        function = self.functions[name]

        def work() -> str:
            has_schema = _parameters_of(function) is not None
            keywords = values if has_schema else arguments_of(function, values)
            return _text(function(**keywords), self.timeout)

        outcome = _within(work, self.timeout, traced=self.fails)
        if outcome is not None and is_ok(outcome):
            return Success(self._cut(outcome.unwrap()))
        error = (
            StageFailed("it ended its thread, as sys.exit() does")
            if outcome is None
            else outcome.failure()
        )
        if outcome is not None and not self.fails:
            return Success(self._cut(f"error: {error.message}"))
        words = f"the tool {name!r} failed: {error.message}"
        return Failure(StageFailed(words, stage=name, incident=error.incident))

    def _cut(self, text: str) -> str:
        data = text.encode("utf-8", "replace")
        if len(data) <= self.max_bytes:
            return data.decode()
        beginning = data[: self.max_bytes].decode("utf-8", "ignore")
        return f"{beginning}\n[cut: {self.max_bytes} of {len(data)} bytes]"


class _Running:
    """Results whose calls are being answered. One thread uses it; `_run` is in others."""

    side_by_side = 0

    def __init__(self, tools: Tools, wake: Callable[[], object]) -> None:
        self._tools, self._wake, self._left = tools, wake, False
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

    def _start(self) -> None:
        while self._waiting and self._threads < ROWS:
            self._threads += 1
            threading.Thread(target=self._run, args=self._waiting.popleft(), daemon=True).start()

    def _run(self, number: int, result: GenerationResult) -> None:
        slot = guard_slot(
            lambda: self._tools.replies(result, lambda: self._left),
            lambda raised: InternalError(
                f"pipegen has a bug: {raised.words}", incident=raised.incident
            ),
        )
        self._ended.append(RowDone(row=number, slot=slot))
        self._wake()


def _within(work: Callable[[], str], seconds: float, *, traced: bool) -> Slot[str] | None:
    """What `work` gives within so many seconds, in a thread of its own, or what it raised. None
    where it raised what ends a thread or a program: it ends this thread, and no more.
    """
    from asyncio import CancelledError  # half of what `import pipegen` would cost

    outcomes: list[Slot[str]] = []
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


def _text(value: Any, seconds: float) -> str:
    """The text of what a tool gave; what is awaitable is awaited."""
    if inspect.isawaitable(value):
        import asyncio

        async def awaited(value: Awaitable[Any]) -> Any:
            return await asyncio.wait_for(value, seconds)

        value = asyncio.run(awaited(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
