"""The law of jobs: whatever ends a run, and wherever, a later run gives out the rows of an undisturbed one, and repeats no more than was under way."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.jobs.journal import JournalError
from pipegen.jobs.runner import job
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

RUNS = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 40)), max_size=5)
"""How each run ends: after how many rows, by a write that fails or not, and how many bytes are torn from the journal's last line then."""


def script(encoded: Encoded) -> str | pg.GenerationError:
    prompt = str(encoded.request.prompt)
    return pg.MalformedResponse("odd") if prompt.endswith("3") else f"re: {prompt}<|im_end|>"


@given(
    prompts=st.lists(st.integers(0, 6), max_size=12),
    seed=st.integers(0, 9),
    runs=RUNS,
    in_flight=st.integers(1, 5),
)
def test_a_job_gives_what_an_undisturbed_run_gives(prompts: list[int], seed: int, runs: list[tuple[int, bool, int]], in_flight: int) -> None:
    shuffled = random.Random(seed)
    engine = FakeEngine(script)
    requests = [{"id": str(position), "prompt": f"prompt {number}"} for position, number in enumerate(prompts)]
    wanted = {request["id"]: slot for request, slot in zip(requests, pg.run(pg.route(FakeEngine(script)), requests), strict=True)}
    with tempfile.TemporaryDirectory() as name:
        folder, torn_rows = Path(name) / "job", 0
        for rows, fails, torn in runs:
            order = shuffled.sample(requests, len(requests))
            try:
                with job(pg.route(engine), order, folder, in_flight=in_flight, retry="none") as running:
                    for request, slot in zip(order[:rows], running, strict=False):
                        assert slot == wanted[request["id"]] or not pg.is_ok(slot)
                    if fails:
                        raise KeyboardInterrupt
            except (KeyboardInterrupt, JournalError):
                pass
            path = folder / "results-0001.jsonl"
            size = path.stat().st_size
            cut = min(torn, size)
            before = path.read_bytes()
            os.truncate(path, size - cut)
            torn_rows += before.count(b"\n") - before[: size - cut].count(b"\n")
        with job(pg.route(engine), requests, folder, in_flight=in_flight, retry="none") as running:
            slots = list(running)
        assert [pg.is_ok(slot) and slot for slot in slots] == [pg.is_ok(slot) and slot for slot in wanted.values()]
        assert [slot.failure().message for slot in slots if not pg.is_ok(slot)] == [slot.failure().message for slot in wanted.values() if not pg.is_ok(slot)]
        times = Counter(str(encoded.request.prompt) for call in engine.calls for encoded in call)
        under_way = len(runs) * in_flight
        assert sum(times.values()) <= len(requests) + torn_rows + under_way
        lines = [line[8:40] for line in path_lines(folder)]
        assert len(set(lines)) == len(requests)


def path_lines(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("results-*.jsonl")) for line in path.read_bytes().splitlines()]
