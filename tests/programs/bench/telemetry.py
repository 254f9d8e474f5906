"""What OpenTelemetry costs a request: not loaded, loaded without a provider, and with in-memory
exporters of spans and metrics. Each is compared with pipegen that never looks for it (`unasked`).
Each runs in processes of its own, in turn; the best of some rounds counts.

    python tests/programs/bench/telemetry.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

ARMS = ("unasked", "not loaded", "no provider", "in memory")
REQUESTS, REPEATS, ROUNDS = 1_000, 5, 3


def provide(arm: str) -> None:
    """Load OpenTelemetry as the arm has it."""
    if arm == "unasked":
        from pipegen.drivers import drive

        drive.telemetry_of = lambda *_, **__: None  # type: ignore[assignment]
    if arm in ("unasked", "not loaded"):
        return
    from opentelemetry import metrics, trace

    if arm == "in memory":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


def measure(arm: str, work: str) -> float:
    """Microseconds of processor time for one request."""
    import pipegen as pg
    from pipegen.testing.fake import FakeEngine

    provide(arm)
    backends: Any = pg.backends
    route = backends.hf("embedded") if work == "embedded" else pg.route(FakeEngine("four"))
    count = 64 if work == "embedded" else REQUESTS
    asked = [{"prompt": f"request {number}"} for number in range(count)]
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        for slot in pg.imap(route, asked, {"max_new_tokens": 8}):
            slot.unwrap()
        best = min(best, time.process_time() - began)
    return best / count * 1e6


def main() -> None:
    if len(sys.argv) == 3:
        print(measure(sys.argv[1], sys.argv[2]))
        return
    for work in ("fake engine", "embedded"):
        best = dict.fromkeys(ARMS, float("inf"))
        for _ in range(ROUNDS):
            for arm in ARMS:
                done = subprocess.run(
                    [sys.executable, __file__, arm, work],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                best[arm] = min(best[arm], float(done.stdout.split()[-1]))
        for arm, cost in best.items():
            ratio = cost / best["unasked"]
            print(f"{work:12} {arm:12} {cost:8.1f} us a request  ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
