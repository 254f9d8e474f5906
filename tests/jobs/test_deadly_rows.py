"""Rows that kill their process: they are found and given up, the others are answered, and a kill
from outside blames nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import deadly

import pipegen as pg
from pipegen.jobs.in_flight import DEATHS, TRIES, InFlight, SuspectQueue
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.runner import job
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def key_of(number: int) -> str:
    return f"{number:04x}" * 8


def start(
    folder: Path,
    rows: int,
    deadly_rows: Sequence[int],
    in_flight: int = 16,
    how: str = "kill",
    shard: tuple[int, int] = (1, 1),
) -> tuple[int, str]:
    """Run the job in a process; how that ended, and which errors it gave out."""
    command = [
        *(sys.executable, str(deadly.__file__), str(rows), ",".join(map(str, deadly_rows))),
        *(str(in_flight), how),
        *map(str, shard),
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 5, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout


def texts_in(folder: Path) -> list[str]:
    """The texts that are kept."""
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("results-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [line["text"] for line in lines if line["ok"]]


@pytest.mark.parametrize(
    ("deadly_rows", "in_flight"),
    [([5], 16), ([0], 1), pytest.param([3, 4, 29], 8, marks=pytest.mark.slow)],
)
def test_a_row_that_kills_its_process_is_given_up_and_named_and_the_others_are_answered(
    deadly_rows: list[int], in_flight: int, tmp_path: Path
) -> None:
    deaths = 0
    while (ended := start(tmp_path, 30, deadly_rows, in_flight))[0]:
        deaths += 1
        assert deaths <= DEATHS * len(deadly_rows)
    assert deaths >= TRIES
    named = [
        f"the process died 3 times while it worked on request 'row {number}' and on no other"
        for number in deadly_rows
    ]
    assert ended[1].splitlines() == named
    assert sorted(texts_in(tmp_path / "job")) == sorted(
        f"re: say {number}" for number in range(30) if number not in deadly_rows
    )
    asked = (tmp_path / "asked.txt").read_text()
    assert start(tmp_path, 30, deadly_rows, in_flight) == ended
    assert (tmp_path / "asked.txt").read_text() == asked
    assert list(tmp_path.glob("job/running-*")) == []


def test_a_deadly_row_holds_up_its_own_shard_alone(tmp_path: Path) -> None:
    for shard in (1, 2):
        while start(tmp_path, 30, [5], shard=(shard, 2))[0]:
            pass
    assert len(texts_in(tmp_path / "job")) == 29
    killed = Counter(
        line
        for line in (tmp_path / "asked.txt").read_text().splitlines()
        if line.endswith(" row 5")
    )
    assert len(killed) <= DEATHS


def test_a_program_that_leaves_its_job_open_has_not_died(tmp_path: Path) -> None:
    for _ in range(TRIES + 1):
        assert start(tmp_path, 3, [1], 1, "leave") == (5, "")
        assert list(tmp_path.glob("job/running-*")) == []


def test_kills_from_outside_blame_no_row_and_cost_no_order(tmp_path: Path) -> None:
    """Whatever row a kill comes at, and however often; each time at least one row had ended."""
    rng = random.Random(0)
    keys = [key_of(number) for number in range(300)]
    finished: set[str] = set()
    for _ in range(200):
        noted = InFlight(tmp_path, finished=finished.__contains__)
        noted._remove.detach()  # it is killed
        assert max(noted.alone.values(), default=0) < TRIES
        waiting, in_flight = SuspectQueue[str](noted), list[str]()
        for key in keys:
            if key not in finished:
                waiting.add(key, key)
        for _ in range(rng.randint(1, 12)):
            while len(in_flight) < 16 and (key := waiting.next()) is not None:
                noted.begin(key)
                in_flight.append(key)
            if in_flight:
                ended = in_flight.pop(rng.randrange(len(in_flight)))
                finished.add(ended)
                noted.end(ended)
                waiting.ended()
        os.close(noted._fd)
    assert len(finished) == len(keys)
    InFlight(tmp_path, finished=finished.__contains__).close()
    assert list(tmp_path.glob("running-*")) == []


def left(folder: Path, *numbers: int) -> None:
    """What a killed process leaves that had these rows in flight."""
    noted = InFlight(folder)
    noted._remove.detach()
    for number in numbers:
        noted.begin(key_of(number))
    os.close(noted._fd)


def test_suspects_are_asked_before_the_others_few_at_a_time_and_the_blamed_last(
    tmp_path: Path,
) -> None:
    left(tmp_path, *range(10, 19))
    left(tmp_path, 12)
    left(tmp_path, 13, 14)
    noted = InFlight(tmp_path)
    assert (noted.deaths[key_of(12)], noted.alone) == (2, {key_of(12): 1})
    waiting = SuspectQueue[int](noted)
    for number in range(30):
        waiting.add(key_of(number), number)
    groups = []
    while waiting:
        group = []
        while (row := waiting.next()) is not None:
            group.append(row)
        groups.append(group)
        for _ in group:
            waiting.ended()
    assert groups == [[10, 11, 15], [16, 17, 18], [14], [13], [12], [*range(10), *range(19, 30)]]
    noted.close()


def test_rows_of_processes_that_live_and_of_finished_rows_are_no_suspects(tmp_path: Path) -> None:
    alive = InFlight(tmp_path)
    alive.begin(key_of(1))
    left(tmp_path, 2, 3)
    left(tmp_path, 2)
    (tmp_path / "running-notes").write_text("mine")
    noted = InFlight(tmp_path, finished={key_of(2)}.__contains__)
    assert (noted.deaths, noted.alone) == ({key_of(3): 1}, {})
    # that of both, and the one that names row 3
    assert len(list(tmp_path.glob("running-*-*"))) == 3
    noted.close()
    alive.close()
    assert (tmp_path / "running-notes").read_text() == "mine"


def test_a_row_that_was_given_up_is_asked_again_alone_where_retry_names_its_error(
    tmp_path: Path,
) -> None:
    requests = [{"id": f"row {number}", "prompt": f"prompt {number}"} for number in range(6)]
    deadly_engine = FakeEngine(lambda encoded: "yes<|im_end|>")

    def died(times: int) -> None:
        (tmp_path / "key").mkdir(exist_ok=True)
        for _ in range(times):
            noted = InFlight(tmp_path / "job")
            noted._remove.detach()
            noted.begin(key)
            os.close(noted._fd)

    with job(pg.route(deadly_engine), requests[3:4], tmp_path / "key") as running:
        list(running)
    key = (tmp_path / "key" / "results-0001.jsonl").read_text()[8:40]
    (tmp_path / "job").mkdir()
    died(TRIES)
    reused = []
    for retry, calls in (
        ("retryable", [5]),
        ("retryable", []),
        ("Timeout", []),
        ("BackendFailed", [1]),
    ):
        engine = FakeEngine(lambda encoded: "yes<|im_end|>")
        with job(pg.route(engine), requests, tmp_path / "job", retry=retry) as running:
            slots = list(running)
        reused.append(running.reused)
        assert [len(call) for call in engine.calls] == calls
        assert [pg.is_ok(slot) for slot in slots] == [
            number != 3 or retry == "BackendFailed" for number in range(6)
        ]
    assert reused == [0, 6, 6, 5]


def test_a_run_that_is_stopped_or_begun_anew_leaves_no_suspects(tmp_path: Path) -> None:
    def slow(encoded: Encoded) -> str:
        return "yes<|im_end|>"

    requests = [{"prompt": f"prompt {number}"} for number in range(9)]
    with job(
        pg.route(FakeEngine(slow)), requests, tmp_path / "job", in_flight=2, grace=0
    ) as running:
        next(running)
        assert len(list(tmp_path.glob("job/running-*"))) == 1
    assert list(tmp_path.glob("job/running-*")) == []
    left(tmp_path / "job", 1, 2)
    with job(pg.route(FakeEngine(slow)), requests, tmp_path / "job", restart=True) as running:
        assert len(list(running)) == 9
    assert list(tmp_path.glob("job/running-*")) == []


def test_a_job_asks_suspects_first_and_gives_out_all_in_order(tmp_path: Path) -> None:
    requests = [{"id": f"row {number}", "prompt": f"prompt {number}"} for number in range(40)]
    with job(pg.route(FakeEngine("yes<|im_end|>")), requests, tmp_path / "other") as running:
        list(running)
    keys = [
        line[8:40] for line in (tmp_path / "other" / "results-0001.jsonl").read_text().splitlines()
    ]
    (tmp_path / "job").mkdir()
    noted = InFlight(tmp_path / "job")
    noted._remove.detach()
    for number in range(20, 29):
        noted.begin(keys[number])
    os.close(noted._fd)
    engine = FakeEngine(lambda encoded: f"re: {encoded.request.id}<|im_end|>")
    with job(pg.route(engine), requests, tmp_path / "job") as running:
        assert [slot.unwrap().text for slot in running] == [
            f"re: row {number}" for number in range(40)
        ]
    seen = [[int(str(asked.request.id)[4:]) for asked in call] for call in engine.calls]
    assert seen == [[20, 21, 22], [23, 24, 25], [26, 27, 28], [*range(20), *range(29, 40)]]


def test_a_file_that_another_process_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, times = fcntl.flock, [1]

    def late(fd: int, how: int) -> None:
        if times and times.pop():
            next(tmp_path.glob("running-*")).unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    noted = InFlight(tmp_path)
    noted.begin(key_of(1))
    assert [key_of(1) in path.read_text() for path in tmp_path.glob("running-*")] == [True]
    noted.close()


def test_the_file_of_a_process_is_not_removed_by_one_that_was_forked_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = InFlight(tmp_path)
    noted.begin(key_of(1))
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    noted.close()
    assert len(list(tmp_path.glob("running-*"))) == 1
    (tmp_path / "running-000000000000-000000000000-000001").symlink_to(tmp_path / "nowhere")
    assert InFlight(tmp_path).deaths == {}  # it runs, and the link leads to no file
    os.close(noted._fd)
    assert InFlight(tmp_path).deaths == {key_of(1): 1}


def test_a_file_that_cannot_be_written_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(JournalError, match="No space left on device"):
            InFlight(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_dead_processes_are_gone_once_their_rows_are_finished(tmp_path: Path) -> None:
    requests = [{"id": f"row {number}", "prompt": f"say {number}"} for number in range(3)]
    with job(pg.route(FakeEngine("fine<|im_end|>")), requests[:1], tmp_path) as running:
        list(running)
    key = (tmp_path / "results-0001.jsonl").read_bytes()[8:40]
    names = [f"running-{'a' * 12}-{'b' * 12}-00000{number}" for number in (1, 2)]
    for name, row in zip(names, (key, b"f" * 32), strict=True):
        (tmp_path / name).write_bytes(b"-" * 32 + b"\n" + row + b"\n")
    with job(pg.route(FakeEngine("fine<|im_end|>")), requests, tmp_path) as running:
        list(running)
    assert [path.name for path in tmp_path.glob("running-*")] == names[1:]
    missing = InFlight(tmp_path)  # a process that died within a row that the next run answers
    missing.begin(key_of(1))
    os.close(missing._fd)
    missing._remove.detach()
    with job(pg.route(FakeEngine("fine<|im_end|>")), requests, tmp_path) as running:
        row = (tmp_path / "results-0001.jsonl").read_bytes().splitlines()[1][8:40]
        (tmp_path / names[1]).write_bytes(b"-" * 32 + b"\n" + row + b"\n")
        list(running)
    assert names[1] not in {path.name for path in tmp_path.iterdir()}
