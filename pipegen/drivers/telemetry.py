"""OpenTelemetry: a span for each request, and metrics, by the names of its conventions for
generative AI.

They go to the global providers of the process. Nothing is imported here: where the program has not
loaded OpenTelemetry and set a provider, `telemetry_of` gives None, and a drive does nothing more.
Prompts, answers and the words of errors are recorded only where `CONTENT` asks for them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakValueDictionary

from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import Event, RowDone, is_text_engine
from pipegen.records.messages import Message, TextPart
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.requests import GenerationRequest, ScoringRequest
from pipegen.records.results import Finish, GenerationResult

LEFT = "Cancelled"
"""The error type of a request that was left before its end."""
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that OpenTelemetry has for it; `true` or `span_only` records them."""
_RECORDED = ("true", "1", "span_only", "span_and_event")
_DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_SECONDS = [0.01 * 2**power for power in range(14)]
_COUNTS = [float(4**power) for power in range(14)]
"""The bounds of buckets that the conventions name."""
_OPTIONS = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop": "stop_sequences",
}
"""What `gen_ai.request` calls options."""


@dataclass(slots=True, eq=False)
class Seen:
    """What was seen of a request so far."""

    given: Slot[GenerationRequest]
    span: Any
    operation: str
    engine: Any
    """The engine that worked on it last."""
    began: float
    first: float | None = None
    """When its first tokens came, where the engine reports them."""
    retries: int = 0


class Telemetry:
    """What is recorded of the requests of one drive. Their spans are children of the span that is
    current when it is made.

    sessions: what the engines work on, for the metrics of the queue.
    """

    def __init__(
        self, pipe: Pipe[Any, Any], tracers: Any, meters: Any, *, streams: bool, sessions: Any
    ) -> None:
        self._trace = sys.modules.get("opentelemetry.trace")
        self._tracer = None if tracers is None else tracers.get_tracer("pipegen")
        self._parent = sys.modules["opentelemetry.context"].get_current()
        self._meters = None if meters is None else _instruments(meters)
        self._streams, self.sessions = streams, sessions
        self._content = os.environ.get(CONTENT, "").strip().lower() in _RECORDED
        self._first: Any = next(iter(pipe.owns), None)
        self._about: dict[int, tuple[Any, dict[str, Any]]] = {}
        """The attributes of engines, by their ids."""
        self._counted = set[int]()
        """The engines whose prompts are in the metrics."""
        _running[id(self)] = self

    def about(self, engine: Any) -> dict[str, Any]:
        """The attributes of an engine."""
        if id(engine) not in self._about:
            self._about[id(engine)] = engine, _about(engine)
        return self._about[id(engine)][1]

    def begins(self, request_slot: Slot[GenerationRequest]) -> Seen:
        """A request is taken."""
        engine, about = self._first, self.about(self._first)
        operation = _operation(request_slot, engine)
        span = None
        if self._tracer is not None and self._trace is not None:
            kind = self._trace.SpanKind
            span = self._tracer.start_span(
                f"{operation} {about.get('gen_ai.request.model', '')}".strip(),
                context=self._parent,
                kind=kind.CLIENT if "server.address" in about else kind.INTERNAL,
                attributes={"gen_ai.operation.name": operation, **about},
            )
        return Seen(request_slot, span, operation, engine, time.perf_counter())

    def sees(self, seen: Seen, engine: Any, event: Event) -> None:
        """An engine reports something of a request."""
        if not isinstance(event, RowDone):
            seen.first = seen.first or time.perf_counter()
            return
        seen.engine = engine = getattr(engine, "watched", engine)
        seen.retries += event.retries
        about = self.about(engine)
        if id(engine) not in self._counted:
            self._counted.add(id(engine))
            work = getattr(engine, "prompt_work", None)
            if self._meters is not None and work is not None:
                _works[id(work)] = work, (*about.items(),)

    def ends(self, seen: Seen, outcome: Slot[Any] | Exception | None) -> None:
        """A request has its slot, or a bug; None where it was left."""
        seconds = time.perf_counter() - seen.began
        result: Any = None
        error, words = LEFT, None
        if isinstance(outcome, Exception):
            error, words = type(outcome).__name__, str(outcome)
        elif outcome is not None and is_ok(outcome):
            error, result = "", outcome.unwrap()
        elif outcome is not None:
            error, words = type(outcome.failure()).__name__, str(outcome.failure())
        about = self.about(seen.engine)
        usage = _usage(result) if isinstance(result, GenerationResult) else {}
        first = None if seen.first is None else seen.first - seen.began
        if seen.span is not None and seen.span.is_recording():
            self._describe(seen, result, error, about, usage, first)
            if error and self._trace is not None:
                code = self._trace.StatusCode.ERROR
                seen.span.set_status(self._trace.Status(code, words if self._content else None))
        if seen.span is not None:
            seen.span.end()
        if self._meters is not None:
            values = {"gen_ai.operation.name": seen.operation, **about}
            self._meters.record(values, seconds, error, usage, first)

    def _describe(
        self,
        seen: Seen,
        result: Any,
        error: str,
        about: Mapping[str, Any],
        usage: Mapping[str, int],
        first: float | None,
    ) -> None:
        request = seen.given.value_or(None)
        values: dict[str, Any] = {**about, "pipegen.request.retries": seen.retries}
        options = request.options if request is not None else None
        if isinstance(result, GenerationResult):
            answers = result.samples or (result,)
            values["gen_ai.response.finish_reasons"] = [_finish(answer) for answer in answers]
            options = result.options
        values |= _asked(options) | {
            f"gen_ai.usage.{kind}_tokens": count for kind, count in usage.items()
        }
        if self._streams:
            values["gen_ai.request.stream"] = True
        if first is not None:
            values["gen_ai.response.time_to_first_chunk"] = first
        if error:
            values["error.type"] = error
        if self._content and request is not None:
            messages = request.messages or (
                (Message(role="user", content=request.prompt),) if request.prompt else ()
            )
            values["gen_ai.input.messages"] = _written(map(_message, messages))
            if isinstance(result, GenerationResult):
                values["gen_ai.output.messages"] = _written(
                    {**_message(_answer(answer)), "finish_reason": _finish(answer)}
                    for answer in result.samples or (result,)
                )
        seen.span.set_attributes(values)


_running: WeakValueDictionary[int, Telemetry] = WeakValueDictionary()
"""Those of the drives that have not been let go."""
_works: dict[int, tuple[Any, tuple[Any, ...]]] = {}
"""What engines have counted of prompts, and their attributes: of all that worked for a drive. They
are kept, so that the sum never falls.
"""


def telemetry_of(pipe: Pipe[Any, Any], *, streams: bool, sessions: Any) -> Telemetry | None:
    """What records the requests of a drive; None where no provider is set, or `pipegen` is among
    those that the environment switches off.

    >>> telemetry_of(Pipe("nothing"), streams=False, sessions=None)
    """
    tracers, meters = _provider("trace", "tracer"), _provider("metrics", "meter")
    if tracers is None and meters is None:
        return None
    if "pipegen" in os.environ.get(_DISABLED, "").replace(" ", "").split(","):
        return None
    return Telemetry(pipe, tracers, meters, streams=streams, sessions=sessions)


def _provider(kind: str, what: str) -> Any:
    """The global provider, where the program has set one: OpenTelemetry's own stand-ins do
    nothing.
    """
    module = sys.modules.get(f"opentelemetry.{kind}")
    provider = None if module is None else getattr(module, f"get_{what}_provider")()
    return None if type(provider).__module__.startswith(f"opentelemetry.{kind}") else provider


class _Instruments:
    """The instruments of one provider. What is observed is asked for when it is exported, from
    another thread.
    """

    def __init__(self, provider: Any) -> None:
        meter, histogram = (made := provider.get_meter("pipegen")), made.create_histogram
        seconds = partial(histogram, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)
        self.duration = seconds(
            "gen_ai.client.operation.duration", description="GenAI operation duration."
        )
        self.tokens = histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_COUNTS,
        )
        self.first_chunk = seconds(
            "gen_ai.client.operation.time_to_first_chunk",
            description="Time until the first piece of a streamed answer came.",
        )
        self.first_token = seconds(
            "gen_ai.server.time_to_first_token",
            description="Time until the first token, where the model runs in this process.",
        )
        observed = self._observation
        meter.create_observable_up_down_counter(
            "pipegen.engine.requests",
            [lambda _: observed(_rows())],
            unit="{request}",
            description="Requests that an engine works on, and that wait for it.",
        )
        for index, name in enumerate(("query", "hit")):
            meter.create_observable_counter(
                f"pipegen.engine.prefix_cache.{name}_tokens",
                [lambda _, index=index: observed(_prefixes(index))],
                unit="{token}",
                description="Tokens of prompts, and those that were there already.",
            )

    def record(
        self,
        values: Mapping[str, Any],
        seconds: float,
        error: str,
        usage: Mapping[str, int],
        first: float | None,
    ) -> None:
        """A request has ended."""
        for kind, count in usage.items():
            self.tokens.record(count, {**values, "gen_ai.token.type": kind})
        if first is not None:
            local = "server.address" not in values
            (self.first_token if local else self.first_chunk).record(first, values)
        self.duration.record(seconds, {**values, **({"error.type": error} if error else {})})

    @cached_property
    def _observe(self) -> Any:
        return sys.modules["opentelemetry.metrics"].Observation

    def _observation(self, counts: Mapping[Any, int]) -> list[Any]:
        return [self._observe(count, dict(values)) for values, count in counts.items()]


_made: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


def _instruments(provider: Any) -> _Instruments:
    if provider not in _made:
        _made[provider] = _Instruments(provider)
    return _made[provider]


def _rows() -> Counter[Any]:
    """How many rows are running, and how many wait, by the attributes of their engine."""
    counts: Counter[Any] = Counter()
    for reference in _running.valuerefs():  # another thread may add one: this is a copy
        telemetry = reference()
        for opened in [] if telemetry is None else [*telemetry.sessions.opened.values()]:
            about = _about(getattr(opened.backend, "watched", opened.backend))
            rows = len(opened.rows)
            running = min(rows, getattr(opened.session, "running", opened.session.side_by_side))
            for state, count in (("running", running), ("waiting", rows - running)):
                counts[(*about.items(), ("pipegen.engine.state", state))] += count
    return counts


def _prefixes(index: int) -> Counter[Any]:
    """How many tokens of prompts the engines were given, and found in their prefix caches."""
    counts: Counter[Any] = Counter()
    for work, about in [*_works.values()]:
        counts[about] += (work.prompt_tokens + work.shared_tokens, work.shared_tokens)[index]
    return counts


def _about(engine: Any) -> dict[str, Any]:
    name: str = getattr(engine, "name", "")
    values: dict[str, Any] = {"gen_ai.provider.name": name.partition("_")[0] or "pipegen"}
    model, root = getattr(engine, "model_name", None), getattr(engine, "server_root", None)
    if model:
        values["gen_ai.request.model"] = os.path.basename(model) if os.path.isdir(model) else model
    if root:
        parts = urlsplit(root)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        values |= {"server.address": parts.hostname, "server.port": port}
    return values


def _operation(request_slot: Slot[GenerationRequest], engine: Any) -> str:
    request = request_slot.value_or(None)
    if isinstance(request, ScoringRequest):
        return "score"
    plain = request is not None and not request.messages and not is_text_engine(engine)
    return "text_completion" if plain else "chat"


def _asked(options: GenerationOptions | None) -> dict[str, Any]:
    if options is None:
        return {}
    values = {f"gen_ai.request.{name}": _of(options, option) for option, name in _OPTIONS.items()}
    if ((samples := _of(options, "samples")) or 1) != 1:
        values["gen_ai.request.choice.count"] = samples
    if _of(options, "json_schema") is not None:
        values["gen_ai.output.type"] = "json"
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None and value != ()
    }


def _of(options: GenerationOptions, name: str) -> Any:
    group = OPTIONS[name].group
    return getattr(getattr(options, group) if group else options, name, None)


def _usage(result: GenerationResult) -> dict[str, int]:
    """The tokens of all rounds, and of all samples of the answer."""
    answers: Iterator[GenerationResult] = (
        answer for sample in result.samples or (result,) for answer in sample.rounds or (sample,)
    )
    return {
        "input": sum(answer.prompt_tokens for answer in result.rounds or (result,)),
        "output": sum(answer.completion_tokens for answer in answers),
    }


def _finish(answer: GenerationResult) -> str:
    if answer.finish in (Finish.LENGTH, Finish.ABORTED):
        return "length" if answer.finish == Finish.LENGTH else "error"
    return "tool_call" if answer.tool_calls else "stop"


def _answer(answer: GenerationResult) -> Message:
    extras = {"reasoning_content": answer.reasoning, "tool_calls": answer.tool_calls}
    text = answer.text if answer.content is None else answer.content
    return Message(role="assistant", content=text, extras=extras)


def _message(message: Message) -> dict[str, Any]:
    """A message in the form of the conventions; of an image or video only that it is there."""
    content, extras = message.content, message.extras
    parts: list[dict[str, Any]] = [
        {"type": "text", "content": part.text}
        if isinstance(part, TextPart)
        else {"type": type(part).__name__.removesuffix("Part").lower()}
        for part in ((TextPart(text=content),) if isinstance(content, str) else content or ())
    ]
    if message.role == "tool":
        words = "".join(part.get("content", "") for part in parts)
        parts = [
            {"type": "tool_call_response", "id": extras.get("tool_call_id"), "response": words}
        ]
    if extras.get("reasoning_content"):
        parts.insert(0, {"type": "reasoning", "content": extras["reasoning_content"]})
    for call in extras.get("tool_calls") or ():
        function = call.get("function", call)
        named = {"name": function.get("name"), "arguments": function.get("arguments")}
        parts.append({"type": "tool_call", "id": call.get("id"), **named})
    return {"role": message.role, "parts": parts}


def _written(messages: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps([*messages], ensure_ascii=False, default=dict)
