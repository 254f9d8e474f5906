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
import dataclasses
import inspect
import json
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

from returns.result import Failure, Result, Success

from pipegen.core.errors import GenerationError, InternalError, StageFailed
from pipegen.core.foreign_calls import Raised, attempt, guard, guard_result, report
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot, all_of, is_ok
from pipegen.drivers.arguments import whole_number
from pipegen.drivers.scopes import Scope, Scoped
from pipegen.drivers.tool_loop import OwnLoop, PendingCalls
from pipegen.drivers.tool_results import Content, content_of, is_error, text_of, with_images_apart
from pipegen.drivers.tool_schema import (
    arguments_of,
    methods_of,
    says,
    schema_of,
    with_whole_numbers,
)
from pipegen.engines.protocol import RowDone
from pipegen.engines.session import answers
from pipegen.records.frozen import freeze, plain_number, thaw
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult, ToolReplies

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What ends a thread or a program, and is no error that a model could answer."""
T = TypeVar("T")
ROWS, CALLS = 32, 8
"""Results whose calls are answered at a time, and calls of one result."""


_TIMEOUT, _MAX_BYTES = 60.0, 65536


def tools(
    functions: Iterable[Callable[..., Any]] | None = None,
    *,
    make: Callable[[GenerationRequest], object] | None = None,
    limit: int = 16,
    timeout: float = _TIMEOUT,
    raised: Literal["message", "fail"] = "message",
    max_bytes: int = _MAX_BYTES,
    unread: Literal["end", "tell"] = "end",
    images: Literal["tool", "user"] = "tool",
    parallel: bool = False,
    replays: bool = True,
) -> Tools:
    """Tools for `pg.turns`: plain or async functions, or objects with `name`, `description`,
    `parameters` or `inputSchema` (a JSON Schema) and `__call__`.

    The schema of a function comes from its name, signature, type hints and docstring, and it gets
    its arguments as these say. The calls of one answer are made in order, those of several rows
    side by side, in threads. An async function runs on the event loop of an asynchronous caller,
    else on one that all calls of these tools share.

    make: in place of functions. `make(request)` gives the tools of one conversation, or sample: an
        object whose public methods are tools, or a list of tools. The object's `close()` is called
        at the end. Both may be async.
    limit: answers that a conversation has at most.
    timeout: seconds for one call. One that takes longer is left running, or cancelled if it is
        async.
    raised: what a tool raises becomes its answer ("message"), or fails the request with
        `StageFailed` ("fail").
    max_bytes: how much of a tool's answer the model sees in UTF-8.
    unread: an answer that looks like a call, and is not read as one, ends the conversation
        ("end"), or the model gets a message that says what was wrong ("tell").
    images: images that tools give stay in the tools' turns ("tool"), or are in a user's turn after
        them, each behind a mark, as "[image 1]" ("user"). Where the chat template writes none in a
        tool's turn, "tool" fails the request with `InvalidRequest`.
    parallel: whether calls of one answer may run at the same time, up to 8. A tool's own attribute
        `parallel`, or that of its object, comes first.
    replays: whether a job that resumes in the middle of a conversation may make its calls again; the
        model keeps their first answers. If not, the request fails with `StageFailed`. A tool's own
        attribute comes first.

    An unknown tool and wrong arguments are answered in words. What a tool gives is a text, or
    becomes JSON. Images become content parts. What nothing can write fails the row with
    `StageFailed`. A tool that ends its thread, as `sys.exit()` does, fails its row. So does what
    `make` raises. A tool or a `make` that returns `pg.Failure(error)` fails its row with that
    error. Raises `TypeError` for what is no tool or no such limit.

    >>> def weather(city: str) -> str:
    ...     "The weather of a city."
    ...     return "sunny"
    >>> tools([weather]).schemas[0]["function"]["name"]
    'weather'
    """
    if (functions is None) == (make is None) or not (make is None or callable(make)):
        raise TypeError(f"tools takes a list of functions, or make=f, not both: {make!r:.80}")
    by_name, schemas = ({}, ()) if functions is None else _by_name(functions)
    limit, max_bytes = whole_number("limit", limit), whole_number("max_bytes", max_bytes)
    timeout = plain_number(timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise TypeError(f"timeout takes a number of seconds, not {timeout!r:.80}")
    for name, word, (first, second) in (
        ("raised", raised, ("message", "fail")),
        ("unread", unread, ("end", "tell")),
        ("images", images, ("tool", "user")),
    ):
        if word not in (first, second):
            raise TypeError(f'{name} takes "{first}" or "{second}", not {word!r:.80}')
    for name, value in (("parallel", parallel), ("replays", replays)):
        if type(value) is not bool:
            raise TypeError(f"{name} takes True or False, not {value!r:.80}")
    return Tools(
        by_name,
        schemas,
        limit,
        min(timeout, threading.TIMEOUT_MAX),
        raised,
        max_bytes,
        unread,
        images,
        parallel,
        replays,
        make,
    )


def _by_name(
    functions: object,
) -> tuple[dict[str, Callable[..., Any]], tuple[Mapping[str, Any], ...]]:
    """Functions by their names, and their schemas. Raises `TypeError` for what is no tool."""
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Iterable):
        raise TypeError(f"tools takes a list of functions, not {functions!r:.80}")
    by_name: dict[str, Callable[..., Any]] = {}
    schemas: list[Mapping[str, Any]] = []
    for function in functions:
        schema = _schema(function)
        if schema["name"] in by_name:
            raise TypeError(f"two tools have the name {schema['name']!r}: rename one")
        for name in ("parallel", "replays"):
            says(function, name, default=True)
        by_name[schema["name"]] = function
        schemas.append({"type": "function", "function": schema})
    if not by_name:
        raise TypeError("tools takes one function or more, and make= an object with methods")
    return by_name, freeze(schemas)


def _schema(function: object) -> dict[str, Any]:
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


def _parameters_of(function: object) -> Any:
    """The schema that a tool has itself; None where its signature says it."""
    return getattr(function, "parameters", getattr(function, "inputSchema", None))


@dataclass(frozen=True, eq=False)
class Tools:
    """What `pg.tools` gives: the functions, and how they are called."""

    functions: Mapping[str, Callable[..., Any]]
    schemas: tuple[Mapping[str, Any], ...]
    """As in the `tools` of a request."""
    limit: int
    timeout: float = _TIMEOUT
    raised: str = "message"
    max_bytes: int = _MAX_BYTES
    unread: str = "end"
    images: str = "tool"
    parallel: bool = False
    replays: bool = True
    make: Callable[[GenerationRequest], object] | None = None
    """Gives the tools of one conversation: then there are none before."""
    name = "tools"
    in_flight = 1

    @property
    def depends_on(self) -> Mapping[str, Any]:
        return {"tools": sorted(self.codes), **self.settings}

    @property
    def codes(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of the user's, by their names."""
        name = getattr(self.make, "__qualname__", type(self.make).__name__)
        return self.functions if self.make is None else {name: self.make}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change what a model is told, without those that are the default."""
        names = ("timeout", "raised", "max_bytes", "unread", "images")
        return {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) != getattr(Tools, name)
        }

    def generate(self, inputs: Sequence[GenerationResult]) -> Sequence[Slot[ToolReplies]]:
        """The answers of the tools to the calls of each result."""
        return answers(self, inputs)

    def open(self, wake: Callable[[], object], **how: Any) -> _CallsInFlight:
        """A call to which results may be added."""
        return _CallsInFlight(self, wake, PendingCalls(_own_loop(self), how.get("loop")))

    def replies(
        self,
        result: GenerationResult,
        left: Callable[[], bool],
        awaited: PendingCalls | None = None,
    ) -> Slot[ToolReplies]:
        """A message for each call of a result, in order, until `left()`."""
        calls = result.tool_calls

        def told(contents: Sequence[Content]) -> ToolReplies:
            messages: list[dict[str, Any]] = [
                {
                    "role": "tool",
                    **without_none({"tool_call_id": call.get("id")}),
                    "content": content,
                }
                for call, content in zip(calls, contents, strict=False)
            ]
            if not calls and result.tool_calls_unread is not None:
                words = f"error: no tool was called: {result.tool_calls_unread}"
                messages.append({"role": "user", "content": words})
            if self.images == "user":
                messages = with_images_apart(messages)
            return ToolReplies(result=result, messages=freeze(messages))

        return all_of(self.contents(calls, left, awaited or PendingCalls(_own_loop(self)))).map(
            told
        )

    def contents(
        self, calls: Sequence[Mapping[str, object]], left: Callable[[], bool], awaited: PendingCalls
    ) -> list[Slot[Content]]:
        """What calls are answered, in order, up to the first that fails the row, until `left()`.
        Those run side by side that may, where they follow one another.
        """
        functions = [call.get("function") for call in calls]
        named = [function if isinstance(function, Mapping) else {} for function in functions]
        slots: list[Slot[Content]] = []
        while len(slots) < len(named) and not left() and all(map(is_ok, slots)):
            rest = named[len(slots) :]
            count = sum(1 for _ in takewhile(self._is_parallel, rest)) or 1
            slots += _side_by_side(
                lambda call: self._content(call.get("name"), call.get("arguments"), awaited),
                rest[:count],
                left,
            )
        return slots

    def _is_parallel(self, call: Mapping[str, object]) -> bool:
        return says(self.functions.get(str(call.get("name"))), "parallel", default=self.parallel)

    def answer(self, name: Any, arguments: Any) -> Slot[Content]:
        """What a call is answered. `StageFailed` where its tool raised and that fails the row. The
        same where what it gave cannot be written.
        """
        return self._content(name, arguments, PendingCalls(_own_loop(self)))

    def _content(self, name: object, arguments: object, awaited: PendingCalls) -> Slot[Content]:
        if not isinstance(name, str) or name not in self.functions:
            names = ", ".join(map(repr, self.functions))
            return Success(self._cut(f"error: there is no tool {name!r:.80}; there are {names}"))
        decoded = attempt(
            lambda: json.loads(arguments) if isinstance(arguments, str) else arguments
        )
        if not is_ok(decoded):
            return Success(f"error: the arguments are no JSON: {decoded.failure()!s:.200}")
        values = thaw(decoded.unwrap())
        schemas = (entry["function"] for entry in self.schemas)
        schema = thaw(next(entry["parameters"] for entry in schemas if entry["name"] == name))
        from pipegen.answer.json_check import wrong_in_json

        wrong = wrong_in_json(values, {**schema, "type": "object"})
        if wrong:
            return Success(self._cut(f"error: wrong arguments: {wrong}"))
        function, fails = self.functions[name], self.raised == "fail"
        loop = getattr(function, "loop", None)
        trouble = "" if loop is None else awaited.trouble(loop)
        if trouble:
            words = f"the tool {name!r} cannot be called: {trouble}"
            return Failure(StageFailed(words, stage=name))

        def work() -> Slot[Content]:
            keywords = (
                arguments_of(function, values)
                if _parameters_of(function) is None
                else with_whole_numbers(values, schema)
            )
            given = awaited.wait(function(**keywords), self.timeout, loop)
            if _is_failure(given):
                return cast("Slot[Content]", given)
            content = content_of(given)
            if not is_error(given):
                return content
            if fails:
                return content.bind(_failure)
            return content.map(lambda known: f"error: {text_of(known)}")

        def named(error: GenerationError) -> GenerationError:
            if type(error) is not StageFailed:
                return error
            words = f"the tool {name!r} failed: {error.message}"
            return StageFailed(words, stage=name, incident=error.incident)

        outcome = _within(work, self.timeout, traced=fails)
        if not (fails or is_ok(outcome) or outcome is _ENDED):
            return Success(self._cut(f"error: {outcome.failure().message}"))
        return outcome.bind(lambda given: given).map(self._shortened).alt(named)

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


def _opened(
    maker: Tools, request: GenerationRequest, scope: Scope, awaited: PendingCalls
) -> Slot[GenerationRequest]:
    """A request with the tools that are made for its conversation, which close with the scope."""
    make, where = maker.make, next(iter(maker.codes))

    def made() -> Slot[Tools]:
        given: Any = awaited.wait(None if make is None else make(request), maker.timeout)
        if _is_failure(given):
            return cast("Slot[Tools]", given)
        close = getattr(given, "close", None)
        if callable(close):
            scope.hold(lambda: _closed(maker, close, awaited))
        by_name, schemas = _by_name(methods_of(given))
        return Success(dataclasses.replace(maker, functions=by_name, schemas=schemas, make=None))

    def not_made(error: GenerationError) -> GenerationError:
        words = f"the tools of this conversation were not made: {where}: {error.message}"
        return StageFailed(words, stage=where, incident=error.incident)

    own = _within(made, maker.timeout, traced=True).alt(not_made).bind(lambda given: given)
    scope.value = own.value_or(None)
    return own.map(lambda known: dataclasses.replace(request, tools=known.schemas))


def _failure(content: Content) -> Slot[Content]:
    return Failure(StageFailed(text_of(content)))


def _is_failure(given: object) -> bool:
    """Whether code of the user's fails its row itself."""
    return isinstance(given, Failure) and isinstance(given.failure(), GenerationError)


def _closed(maker: Tools, close: Callable[[], Any], awaited: PendingCalls) -> None:
    """Close the tools of a conversation that is over; the log has what that raises."""

    outcome = _within(
        lambda: awaited.again().wait(close(), maker.timeout), maker.timeout, traced=True
    )
    if not is_ok(outcome) and not outcome.failure().incident:
        report(outcome.failure())


def _again(
    own: Tools, result: GenerationResult, left: Callable[[], bool], awaited: PendingCalls
) -> GenerationError | None:
    """Make calls again whose answers are known, on tools that were made after a job was killed."""
    for call in result.tool_calls:
        name = call["function"]["name"]
        if not says(own.functions.get(name), "replays", default=own.replays):
            words = (
                f"the process ended within this conversation, and the tool {name!r}, which it had"
                " called, has replays=False: what it did is not done again"
            )
            return StageFailed(words, stage=name, hint=_HINT)
    slots = own.contents(result.tool_calls, left, awaited)
    return all_of(slots).swap().value_or(None)


_HINT = "a job asks the row from its beginning with retry='StageFailed' (--retry StageFailed)"
_ENDED: Slot[Any] = Failure(StageFailed("it ended its thread, as sys.exit() does"))


class _CallsInFlight:
    """Results whose calls are being answered. One thread uses it; `_run` is in others."""

    side_by_side = 0

    def __init__(self, tools: Tools, wake: Callable[[], object], awaited: PendingCalls) -> None:
        self._tools, self._wake, self._left, self._awaited = tools, wake, False, awaited
        self._waiting: deque[tuple[int, Any]] = deque()
        self._ended: deque[RowDone] = deque()
        self._threads = 0

    def add(self, inputs: Mapping[int, object]) -> None:
        """Results; where tools are made for conversations, requests too, each with its scope."""
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

    def _run(self, number: int, asked: object) -> None:
        slot = guard_result(
            lambda: self._answer(asked),
            lambda raised: InternalError(
                f"pipegen has a bug: {raised.words}", incident=raised.incident
            ),
        )
        self._ended.append(RowDone(row=number, slot=slot))
        self._wake()

    def _answer(self, asked: Any) -> Slot[Any]:
        if not isinstance(asked, Scoped):
            return self._tools.replies(asked, lambda: self._left, self._awaited)
        if isinstance(asked.input, GenerationRequest):
            return _opened(self._tools, asked.input, asked.scope, self._awaited)
        own: Tools = asked.scope.value
        if asked.known is None:
            return own.replies(asked.input, lambda: self._left, self._awaited)
        failed = _again(own, asked.input, lambda: self._left, self._awaited)
        return asked.known if failed is None else Failure(failed)


def _side_by_side(
    work: Callable[[T], Slot[Content]], calls: Sequence[T], left: Callable[[], bool]
) -> list[Slot[Content]]:
    """What calls are answered at the same time, in their order, until `left()`."""
    if len(calls) == 1:
        return [work(calls[0])]
    waiting = deque(enumerate(calls))
    outcomes: dict[int, Result[Slot[Content], Exception]] = {}

    def run() -> None:
        with contextlib.suppress(IndexError):  # of the empty deque
            while not left():
                index, call = waiting.popleft()
                outcomes[index] = attempt(partial(work, call))

    threads = [threading.Thread(target=run, daemon=True) for _ in calls[:CALLS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ordered = all_of(outcomes[index] for index in sorted(outcomes))
    if not is_ok(ordered):
        raise ordered.failure()
    return [*ordered.unwrap()]


def _within(work: Callable[[], T], seconds: float, *, traced: bool) -> Slot[T]:
    """What `work` gives within so many seconds, in a thread of its own, or what it raised. `_ENDED`
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
    return outcomes[0] if outcomes else _ENDED


def _raised(raised: Raised) -> StageFailed:
    return StageFailed(raised.words, incident=raised.incident)
