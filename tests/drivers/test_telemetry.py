"""OpenTelemetry: a span for each request by every driver, metrics, and nothing where no provider is
set.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.canned_server import Canned, CannedServer

import pipegen as pg
from pipegen.testing.fake import FakeEngine
from pipegen.testing.faulty import FaultyServer

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SECRET, ANSWER, KEY = "the prompt is secret", "so is the answer", "sk-very-secret-key"
REPLY = f"{ANSWER}<|im_end|>"


class Recorded:
    """What the in-memory exporters hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: self.tracers)
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: self.meters)

    @property
    def spans(self) -> list[Any]:
        """Those of pipegen."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.instrumentation_scope.name == "pipegen"
        ]

    @property
    def metrics(self) -> dict[str, list[Any]]:
        """The points of each metric."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: [*metric.data.data_points]
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def text(self) -> str:
        """All that was exported."""
        spans = "".join(span.to_json() for span in self.exporter.get_finished_spans())
        return spans + str(self.metrics)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    from pipegen.drivers import telemetry

    monkeypatch.setattr(telemetry, "_works", {})
    made = Recorded(monkeypatch)
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def requests(count: int = 3) -> list[Any]:
    return [
        {"id": str(number), "messages": [{"role": "user", "content": f"{SECRET} {number}"}]}
        for number in range(count)
    ]


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


DRIVERS: dict[str, Callable[[Any, Any, Path], Any]] = {
    "run": lambda route, asked, folder: pg.run(route, asked),
    "imap": lambda route, asked, folder: [*pg.imap(route, asked)],
    "stream": lambda route, asked, folder: [*pg.stream(route, asked)],
    "job": lambda route, asked, folder: [*pg.job(route, asked, folder / "job")],
    "arun": lambda route, asked, folder: asyncio.run(pg.arun(route, asked)),
    "aimap": lambda route, asked, folder: asyncio.run(_all(pg.aimap(route, asked))),
    "astream": lambda route, asked, folder: asyncio.run(_all(pg.astream(route, asked))),
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_driver_gives_each_request_one_span_within_the_callers_own(
    recorded: Recorded, driver: str, tmp_path: Path
) -> None:
    route = pg.route(FakeEngine(REPLY))
    with recorded.tracers.get_tracer("app").start_as_current_span("mine") as mine:
        DRIVERS[driver](route, requests(), tmp_path)
    assert len(recorded.spans) == 3
    for span in recorded.spans:
        values = dict(span.attributes)
        assert span.parent.span_id == mine.get_span_context().span_id
        assert span.name == "chat"
        assert values["gen_ai.operation.name"] == "chat"
        assert values["gen_ai.provider.name"] == "fake"
        assert values["gen_ai.usage.output_tokens"] == len(ANSWER) + 1
        assert values["gen_ai.usage.input_tokens"] > len(SECRET)
        assert values["gen_ai.response.finish_reasons"] == ("stop",)
        assert values["gen_ai.request.max_tokens"] == 512
        assert values["pipegen.request.retries"] == 0
        assert values.get("gen_ai.request.stream", False) == driver.endswith("stream")
        assert "error.type" not in values
        assert span.status.is_unset
    durations = recorded.metrics["gen_ai.client.operation.duration"]
    assert sum(point.count for point in durations) == 3


def test_no_words_of_prompts_answers_or_errors_unless_they_are_asked_for(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(encoded: Any) -> Any:
        if "2" in encoded.prompt.text:
            return pg.InvalidRequest(f"bad: {SECRET}")
        return REPLY

    route = pg.route(FakeEngine(reply))
    pg.run(route, requests())
    assert SECRET not in recorded.text
    assert ANSWER not in recorded.text
    recorded.exporter.clear()
    monkeypatch.setenv(CONTENT, "SPAN_ONLY")
    pg.run(route, requests())
    good, _, bad = recorded.spans
    assert json.loads(good.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": f"{SECRET} 0"}]}
    ]
    assert json.loads(good.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": ANSWER}],
            "finish_reason": "stop",
        }
    ]
    assert "gen_ai.output.messages" not in bad.attributes
    assert SECRET in bad.status.description


def test_calls_thoughts_and_images_have_the_forms_of_the_conventions(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.drivers.telemetry import _message
    from pipegen.records.messages import message_from

    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert _message(
        message_from({"role": "assistant", "content": None, "tool_calls": [call]}, "m")
    ) == {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": "{}"}],
    }
    assert _message(message_from({"role": "tool", "tool_call_id": "c1", "content": "4"}, "m")) == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}],
    }
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    shown = _message(message_from({"role": "user", "content": [image]}, "m"))
    assert shown == {"role": "user", "parts": [{"type": "image"}]}


def test_a_failed_request_has_the_type_of_its_error(recorded: Recorded) -> None:
    route = pg.route(FakeEngine(lambda _: pg.RateLimited(SECRET)))
    pg.run(route, [*requests(1), {"messages": []}])
    first, second = recorded.spans
    assert {first.attributes["error.type"], second.attributes["error.type"]} == {
        "RateLimited",
        "InvalidRequest",
    }
    assert not first.status.is_ok
    assert not first.status.is_unset
    assert first.status.description is None
    points = recorded.metrics["gen_ai.client.operation.duration"]
    assert {point.attributes["error.type"] for point in points} == {"RateLimited", "InvalidRequest"}


def test_a_server_has_its_address_its_model_its_retries_and_never_its_key(
    recorded: Recorded,
) -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"content": ANSWER}}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    details = {"prompt_tokens_details": {"cached_tokens": 8}}
    good = Canned({"choices": [choice], "usage": usage | details})
    with CannedServer(Canned({}, status=502), good) as server:
        backends: Any = pg.backends
        with backends.openai_server("gpt-x", base_url=server.url, api_key=KEY) as route:
            pg.run(route, requests(1), {"max_new_tokens": 3, "temperature": 0.5})
            metrics = recorded.metrics
    (span,) = recorded.spans
    assert span.name == "chat gpt-x"
    assert span.kind.name == "CLIENT"
    values = dict(span.attributes)
    assert values == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 3,
        "pipegen.request.retries": 1,
        "server.address": "127.0.0.1",
        "server.port": server.server_port,
    } | {name: values[name] for name in values if name in DEFAULTS}
    assert KEY not in recorded.text
    hits, queries = cache(metrics, "gpt-x")
    assert (hits, queries) == (8, 9)


def cache(metrics: dict[str, list[Any]], model: str) -> list[int]:
    """Tokens that were in the prefix cache of a model, and all of its prompts."""
    return [
        point.value
        for name in ("hit", "query")
        for point in metrics[f"pipegen.engine.prefix_cache.{name}_tokens"]
        if point.attributes["gen_ai.request.model"] == model
    ]


DEFAULTS = {
    f"gen_ai.request.{name}" for name in ("top_p", "top_k", "frequency_penalty", "presence_penalty")
}


def test_metrics_have_the_tokens_of_all_samples_and_rounds(recorded: Recorded) -> None:
    route = pg.route(FakeEngine("four<|im_end|>"))
    pg.run(route, requests(1), {"samples": 3, "temperature": 1.0, "stop": ["END"]})
    points = recorded.metrics["gen_ai.client.token.usage"]
    usage = {point.attributes["gen_ai.token.type"]: point.sum for point in points}
    assert usage["output"] == 15
    (span,) = recorded.spans
    assert span.attributes["gen_ai.request.choice.count"] == 3
    assert span.attributes["gen_ai.request.stop_sequences"] == ("END",)
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",) * 3
    assert usage["input"] == span.attributes["gen_ai.usage.input_tokens"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 15


def test_the_engine_of_this_process_has_its_first_token_and_its_cache(recorded: Recorded) -> None:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded") as route:
        for _ in range(2):
            pg.run(route, [{"prompt": "word " * 80}], {"max_new_tokens": 2})
        metrics = recorded.metrics
    for span in recorded.spans:
        assert span.name == "text_completion embedded"
        assert span.kind.name == "INTERNAL"
        assert 0 < span.attributes["gen_ai.response.time_to_first_chunk"] < 60
    (first,) = metrics["gen_ai.server.time_to_first_token"]
    assert first.count == 2
    hits, queries = cache(metrics, "embedded")
    prompt = recorded.spans[0].attributes["gen_ai.usage.input_tokens"]
    assert 32 <= hits <= prompt
    assert queries == 2 * prompt


def test_the_queue_of_an_engine_is_seen_while_it_works(recorded: Recorded) -> None:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded", batch_size=2) as route:
        slots = pg.imap(route, ({"prompt": str(number)} for number in range(8)), in_flight=8)
        next(slots)
        points = recorded.metrics["pipegen.engine.requests"]
        assert len([*slots]) == 7
    counts = {point.attributes["pipegen.engine.state"]: point.value for point in points}
    assert counts["running"] == 2
    assert counts["waiting"] >= 1


def test_requests_that_are_left_end_too(recorded: Recorded) -> None:
    asked = threading.Event()
    with FaultyServer(share=1.0, kinds=("stall",)) as server:
        server._fault = lambda *_: asked.set() or "stall"  # type: ignore[func-returns-value, method-assign]
        backends: Any = pg.backends
        with backends.openai_server("m", base_url=server.url, timeout=60) as route:

            async def leave() -> None:
                running = asyncio.create_task(pg.arun(route, requests(2)))
                await asyncio.to_thread(asked.wait)
                running.cancel()
                await asyncio.wait([running])

            asyncio.run(leave())
    assert [span.attributes["error.type"] for span in recorded.spans] == ["Cancelled"] * 2


def test_a_bug_that_is_isolated_leaves_one_span_for_each_request(recorded: Recorded) -> None:
    def broken(encoded: Any) -> Any:
        if "1" in encoded.prompt.text:
            raise RuntimeError(SECRET)
        return REPLY

    slots = [*pg.imap(pg.route(FakeEngine(broken)), requests(), isolate_bugs=True)]
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    errors = [span.attributes.get("error.type") for span in recorded.spans]
    assert sorted(errors, key=str) == ["BackendFailed", None, None]
    assert SECRET not in recorded.text


def test_a_bug_that_comes_through_is_on_its_span(recorded: Recorded) -> None:
    route = pg.route(FakeEngine(REPLY))
    stage: Any = pg.pure("mine", lambda _: {}["no"])
    with pytest.raises(KeyError):
        pg.run(route >> stage, requests(1))
    assert [span.attributes["error.type"] for span in recorded.spans] == ["KeyError"]


def test_scores_are_requests_too(recorded: Recorded) -> None:
    pg.score(pg.route(FakeEngine("")), [{"prompt": "Hi", "continuation": "!"}])
    assert [span.name for span in recorded.spans] == ["score"]


def test_a_fallback_has_the_engine_that_answered(recorded: Recorded) -> None:
    from pipegen.core.fallback import fallback

    first = FakeEngine(lambda _: pg.RateLimited("no"), name="first")
    second = FakeEngine(REPLY, name="second")
    when = (pg.RateLimited,)
    pg.run(fallback(pg.route(first), pg.route(second), when=when), requests(1))
    (span,) = recorded.spans
    assert span.attributes["gen_ai.provider.name"] == "second"


def test_a_fallback_between_two_servers_has_the_one_that_answered(recorded: Recorded) -> None:
    backends: Any = pg.backends
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": ANSWER}}
    with (
        CannedServer(Canned({}, status=429)) as one,
        CannedServer(Canned({"choices": [choice]})) as two,
    ):
        first = backends.openai_server("a", base_url=one.url, retries=0, outage=0)
        second = backends.openai_server("b", base_url=two.url)
        with pg.fallback(first, second, when=(pg.RateLimited,)) as route:
            pg.run(route, requests(1))
    (span,) = recorded.spans
    assert span.attributes["gen_ai.request.model"] == "b"
    assert span.attributes["server.port"] == two.server_port


def test_engines_of_one_model_are_counted_together_and_after_they_are_closed(
    recorded: Recorded,
) -> None:
    backends: Any = pg.backends
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": ANSWER}}
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    with CannedServer(Canned({"choices": [choice], "usage": usage})) as server:
        for _ in range(2):
            with backends.openai_server("m", base_url=server.url) as route:
                pg.run(pg.watched(route, lambda now: None), requests(2))
            del route
            gc.collect()
    assert cache(recorded.metrics, "m") == [16, 36]


@pytest.mark.parametrize("driver", ["run", "imap", "stream", "job", "aimap"])
def test_a_conversation_has_one_span_with_the_tokens_of_all_its_turns(
    recorded: Recorded, driver: str, tmp_path: Path
) -> None:
    def look(word: str) -> str:
        """Look a word up."""
        return SECRET

    call = {"name": "look", "arguments": {"word": "a"}}
    calls = json.dumps([{"id": "call00000", "type": "function", "function": call}])
    engine = FakeEngine(
        lambda row: REPLY if row.request.messages[-1].role == "tool" else f"{calls}<|im_end|>"
    )
    agent = pg.turns(pg.route(engine), pg.tools([look]))
    asked = [{"messages": [{"role": "user", "content": "?"}]}]
    DRIVERS[driver](agent, asked, tmp_path)
    result = pg.run(agent, asked)[0].unwrap()
    first, second = recorded.spans
    for span in (first, second):
        usage = [span.attributes[f"gen_ai.usage.{kind}_tokens"] for kind in ("input", "output")]
        assert len(result.rounds) == 2
        assert usage == [
            sum(turn.prompt_tokens for turn in result.rounds),
            sum(turn.completion_tokens for turn in result.rounds),
        ]
        assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert SECRET not in recorded.text


@pytest.mark.parametrize("kind", ["hf", "vllm_server", "openai_server"])
@pytest.mark.parametrize("driver", ["run", "imap", "stream", "astream"])
def test_every_engine_has_the_tokens_of_its_samples_and_its_first_one(
    recorded: Recorded, driver: str, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    backends: Any = pg.backends
    with FaultyServer() as server:
        more = {} if kind == "hf" else {"base_url": server.url}
        with getattr(backends, kind)("embedded", **more) as route:
            options = {"samples": 2, "temperature": 1.0, "max_new_tokens": 5}
            asked = [{**request, "options": options} for request in requests(2)]
            given = DRIVERS[driver](route, asked, tmp_path)
    slots = [item.slot if isinstance(item, pg.Done) else item for item in given]
    results = [slot.unwrap() for slot in slots if not isinstance(slot, pg.Delta)]
    spans = [dict(span.attributes) for span in recorded.spans]
    assert len(spans) == len(results) == 2
    for span in spans:
        assert span["gen_ai.request.model"] == "embedded"
        assert span["gen_ai.provider.name"] == kind.partition("_")[0]
        assert len(span["gen_ai.response.finish_reasons"]) == 2
        first = span.get("gen_ai.response.time_to_first_chunk")
        assert (first is not None) == (kind == "hf" or driver.endswith("stream"))
    for name, count in {
        "output": lambda result: sum(each.completion_tokens for each in result.samples),
        "input": lambda result: result.prompt_tokens,
    }.items():
        wanted = sorted(map(count, results))
        assert sorted(span[f"gen_ai.usage.{name}_tokens"] for span in spans) == wanted


def test_the_next_turn_of_a_conversation_is_a_request_of_its_own(recorded: Recorded) -> None:
    route = pg.route(FakeEngine(REPLY))
    first = pg.run(route, requests(1))[0].unwrap()
    second = pg.run(route, [first.then("And?")])[0].unwrap()
    counts = [span.attributes["gen_ai.usage.input_tokens"] for span in recorded.spans]
    assert counts == [first.prompt_tokens, second.prompt_tokens]


def test_a_job_that_goes_on_has_spans_of_what_it_asks_again(
    recorded: Recorded, tmp_path: Path
) -> None:
    route = pg.route(FakeEngine(REPLY))
    assert len([*pg.job(route, requests(2), tmp_path / "job")]) == 2
    assert len([*pg.job(route, requests(3), tmp_path / "job")]) == 3
    assert len(recorded.spans) == 3


def test_spans_that_are_not_sampled_cost_no_attributes(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from pipegen.drivers.telemetry import Telemetry

    recorded.tracers.sampler = ALWAYS_OFF
    monkeypatch.setattr(Telemetry, "_describe", lambda *_: pytest.fail("it was described"))
    assert pg.is_ok(pg.run(pg.route(FakeEngine(REPLY)), requests(1))[0])
    assert recorded.spans == []
    assert recorded.metrics["gen_ai.client.operation.duration"][0].count == 1


def test_the_environment_switches_it_off(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "aiohttp-client, pipegen")
    pg.run(pg.route(FakeEngine(REPLY)), requests(1))
    assert recorded.spans == []
    assert recorded.metrics == {}


def test_without_a_provider_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.drivers.telemetry import telemetry_of

    pipe: Any = pg.route(FakeEngine(REPLY))
    assert telemetry_of(pipe, streams=False, sessions=None) is None
    trace = pytest.importorskip("opentelemetry.trace")
    metrics = pytest.importorskip("opentelemetry.metrics")
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    monkeypatch.setattr(metrics, "get_meter_provider", metrics.NoOpMeterProvider)
    assert telemetry_of(pipe, streams=False, sessions=None) is None


def test_the_names_are_those_of_the_conventions() -> None:
    gen_ai: Any = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes"
    )
    metrics: Any = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    from pipegen.drivers import telemetry

    known = {
        value
        for module in (gen_ai, metrics)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    written = Path(telemetry.__file__).read_text(encoding="utf-8")
    literals = {
        word
        for word in written.replace("'", '"').split('"')
        if word.startswith("gen_ai.") and "{" not in word
    }
    used = {*literals, *(f"gen_ai.request.{name}" for name in telemetry._OPTIONS.values())}
    used |= {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}
    assert len(used) > 20
    assert used <= known


def test_a_program_that_does_not_load_opentelemetry_does_not_get_it() -> None:
    code = (
        "import sys, pipegen as pg\n"
        "from pipegen.testing.fake import FakeEngine\n"
        "pg.run(pg.route(FakeEngine('a')), [{'prompt': 'Hi'}])\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_global_providers_are_used() -> None:
    pytest.importorskip("opentelemetry.sdk")
    code = (
        "import pipegen as pg\n"
        "from pipegen.testing.fake import FakeEngine\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))\n"
        "route = pg.route(FakeEngine('a'))\n"
        "pg.run(route, [{'prompt': 'Hi'}])\n"
        "trace.set_tracer_provider(provider)\n"
        "pg.run(route, [{'prompt': 'Hi'}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count('"name": "text_completion"') == 1
