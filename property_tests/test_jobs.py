"""Whatever ends a job, a later run gives the answers of an undisturbed one; it repeats no more than
was in flight.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.runner import job
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

RUNS = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 40)), max_size=5)
"""How each run ends: after how many rows, by a write that fails or not, and how many bytes are torn
from the journal's last line then.
"""


def script(encoded: Encoded) -> str | pg.GenerationError:
    prompt = str(encoded.request.prompt)
    return pg.MalformedResponse("odd") if prompt.endswith("3") else f"re: {prompt}<|im_end|>"


@given(
    prompts=st.lists(st.integers(0, 6), max_size=12),
    seed=st.integers(0, 9),
    runs=RUNS,
    in_flight=st.integers(1, 5),
)
def test_a_job_gives_what_an_undisturbed_run_gives(
    prompts: list[int], seed: int, runs: list[tuple[int, bool, int]], in_flight: int
) -> None:
    shuffled = random.Random(seed)
    engine = FakeEngine(script)
    requests = [
        {"id": str(position), "prompt": f"prompt {number}"}
        for position, number in enumerate(prompts)
    ]
    wanted = {
        request["id"]: slot
        for request, slot in zip(
            requests, pg.run(pg.route(FakeEngine(script)), requests), strict=True
        )
    }
    with tempfile.TemporaryDirectory() as name:
        folder, torn_rows = Path(name) / "job", 0
        for rows, fails, torn in runs:
            order = shuffled.sample(requests, len(requests))
            try:
                with job(
                    pg.route(engine), order, folder, in_flight=in_flight, retry="none"
                ) as running:
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
        assert [pg.is_ok(slot) and slot for slot in slots] == [
            pg.is_ok(slot) and slot for slot in wanted.values()
        ]
        assert [slot.failure().message for slot in slots if not pg.is_ok(slot)] == [
            slot.failure().message for slot in wanted.values() if not pg.is_ok(slot)
        ]
        times = Counter(str(encoded.request.prompt) for call in engine.calls for encoded in call)
        repeated = len(runs) * in_flight
        assert sum(times.values()) <= len(requests) + torn_rows + repeated
        lines = [line[8:40] for line in path_lines(folder)]
        assert len(set(lines)) == len(requests)


@given(
    tickets=st.lists(st.integers(0, 4), max_size=5),
    samples=st.integers(1, 3),
    kills=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 300)), max_size=4),
    in_flight=st.integers(1, 4),
)
def test_rows_of_several_calls_go_on_in_the_middle(
    tickets: list[int], samples: int, kills: list[tuple[int, int]], in_flight: int
) -> None:
    """Killed at any answer, and with any bytes of the steps lost: the slots are those of an
    undisturbed run. Only what was in flight or lost is asked again.
    """
    options = {"samples": samples, "seed": 3, "temperature": 1.0}
    requests = [
        {"id": str(position), "prompt": f"ticket {number}"}
        for position, number in enumerate(tickets)
    ]

    def pipe(fuse: Fuse) -> Any:
        first, last = (
            pg.route(Rowwise(said, fuse, name=name), name=name) for name in ("rollout", "judge")
        )
        return (
            first
            >> pg.pure(
                "ask", lambda result: pg.TextGenerationRequest(prompt=f"judge {result.text}")
            )
            >> last
        )

    def said(encoded: Encoded) -> str:
        return f"{encoded.prompt.text} {encoded.options.seed}<|im_end|>"

    wanted = list(pg.run(pipe(Fuse()), requests, options))
    with tempfile.TemporaryDirectory() as name:
        folder, asked, lost = Path(name) / "job", 0, 0
        for at, torn in kills:
            fuse = Fuse(at)
            with (
                contextlib.suppress(KeyboardInterrupt),
                job(pipe(fuse), requests, folder, options, in_flight=in_flight, grace=0) as running,
            ):
                list(running)
            asked += len(fuse.asked)
            lost += len(fuse.asked) - min(at, len(fuse.asked))
            steps = folder / "steps-0001.jsonl"
            if steps.exists():
                data = steps.read_bytes()
                kept = data[: max(0, len(data) - torn)]
                steps.write_bytes(kept)
                lost += data.count(b"\n") - kept.count(b"\n")
        fuse = Fuse()
        with job(pipe(fuse), requests, folder, options, in_flight=in_flight) as running:
            assert list(running) == wanted
        assert asked + len(fuse.asked) <= 2 * samples * len(tickets) + lost


def path_lines(folder: Path) -> list[bytes]:
    return [
        line
        for path in sorted(folder.glob("results-*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
