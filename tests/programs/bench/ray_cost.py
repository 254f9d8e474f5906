"""What Ray costs beside one process: to start, and for each row. `nox -s ray -- bench [rows]`.

The engine waits 20 ms for each row and computes nothing, so that a busy machine does not decide.
Both ways ask the same rows with as many in flight; the ratio is that of the time from the first
row's beginning to the last row's end, and what comes before it is hooks apart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.cli.generate import Files
from pipegen.cli.inputs import from_lines
from pipegen.cli.on_ray import OnRay, ray_slots
from pipegen.cli.outputs import Tally
from pipegen.cli.progress_line import Meter
from pipegen.cli.run_flags import AskedFlags
from pipegen.cli.sources import RunSettings
from pipegen.cli.usage import load_of
from pipegen.engines.protocol import RowDone
from pipegen.io.jsonl import Written, lines_of
from pipegen.io.tables import Columns
from pipegen.jobs.ray_actors import connect
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

SECONDS = 0.02
IN_FLIGHT = 64


class Waiting(FakeEngine):
    """An engine that takes rows while it works, one after the other, and 20 ms for each."""

    in_flight = IN_FLIGHT

    def open(self, wake: Any, **how: Any) -> Any:
        return _Call(self)


class _Call:
    side_by_side = 1

    def __init__(self, engine: Waiting) -> None:
        self._engine, self._rows = engine, list[tuple[int, Encoded]]()

    def add(self, inputs: Mapping[int, Encoded]) -> None:
        self._rows.extend(inputs.items())

    def step(self) -> Sequence[RowDone]:
        time.sleep(SECONDS)
        number, encoded = self._rows.pop(0)
        return [RowDone(row=number, slot=self._engine.generate([encoded])[0])]

    def close(self) -> None:
        self._rows.clear()


def waiting() -> pg.Route:
    return pg.route(Waiting("yes<|im_end|>"))


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.jsonl"
        source.write_text(
            "".join(
                json.dumps({"id": str(row), "prompt": f"Is {row} even?"}) + "\n"
                for row in range(rows)
            ),
            encoding="utf-8",
        )

        def opened() -> Iterator[Any]:
            with source.open("rb") as stream:
                yield from from_lines(lines_of(stream), Columns())

        began = time.monotonic()
        with pg.job_keyed(waiting(), opened(), folder / "one.job") as job:
            one_slots = [slot for _, slot in job]
        one = time.monotonic() - began
        began = time.monotonic()
        connect("local", quiet=True)
        connected = time.monotonic() - began
        files = Files(
            out=str(folder / "ray"),
            quiet=True,
            asked=RunSettings(load_of(AskedFlags(model="fake"), {})),
        )
        quiet = Meter(Tally()), lambda done, text: None, lambda stops: None, lambda run, files: None
        began = time.monotonic()
        slots = [
            slot
            for _, slot, _ in ray_slots(
                files, OnRay(partial(waiting), "local", 1, 0), waiting(), opened, *quiet
            )
        ]
        on_ray = time.monotonic() - began
        assert [slot.unwrap().text for slot in slots if not isinstance(slot, Written)] == [
            slot.unwrap().text for slot in one_slots
        ]
    figures = {
        "rows": rows,
        "one process": round(one, 2),
        "on Ray": round(on_ray, 2),
        "ratio": round(on_ray / one, 3),
        "to start Ray": round(connected, 2),
    }
    print(json.dumps({**figures, "ratio with the start": round((on_ray + connected) / one, 3)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
