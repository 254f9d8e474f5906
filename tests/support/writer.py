"""One of many processes that run a job together: what test_many_writers.py starts. Its clock is
wrong by so many seconds.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

ROWS = 320


def requests() -> list[dict[str, Any]]:
    """The job's input: equal rows among it, and some that are none."""
    return [
        (
            {"prompt": 7}
            if number % 40 == 39
            else {"id": f"row {number}", "prompt": f"prompt {number % 290}"}
        )
        for number in range(ROWS)
    ]


def answer(encoded: Encoded) -> str:
    return (
        f"re: {encoded.request.prompt},"
        f" {'very ' * (len(str(encoded.request.prompt)) % 7)}well<|im_end|>"
    )


def with_wrong_clock(seconds: float) -> None:
    """Let every clock that Python code sees be wrong by so much."""
    for name in ("time", "monotonic", "perf_counter"):
        right = getattr(time, name)
        setattr(time, name, lambda right=right: right() + seconds)
    for name in ("time_ns", "monotonic_ns"):
        right = getattr(time, name)
        setattr(time, name, lambda right=right: right() + int(seconds * 1e9))

    class Wrong(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) + dt.timedelta(seconds=seconds)

    dt.datetime = Wrong  # type: ignore[misc]


def main(folder: str, i: str, n: str, skew: str) -> None:
    engine = FakeEngine(answer)
    with_wrong_clock(float(skew))
    with pg.job(
        pg.route(engine), pg.shard(requests(), int(i), int(n)), folder, in_flight=4
    ) as running:
        print("ready", flush=True)
        sys.stdin.readline()  # all begin together, and each has its own file
        for _ in running:
            own = Path(folder, "results-0001.jsonl")
            # the files' times are as wrong as the clock
            os.utime(own, (max(0, time.time()), max(0, time.time())))
    asked = [str(encoded.request.id) for call in engine.calls for encoded in call]
    print(json.dumps({"asked": asked, "reused": running.reused}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
