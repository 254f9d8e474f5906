"""`pipegen generate --ray`: the output of one process, whatever is killed."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from support.on_ray import holders, stub

import pipegen as pg
from pipegen.cli.generate import Files
from pipegen.cli.inputs import from_lines
from pipegen.cli.on_ray import OnRay, ray_slots
from pipegen.cli.outputs import Tally, slot_of
from pipegen.cli.progress_line import Meter, Moved
from pipegen.cli.run_flags import AskedFlags
from pipegen.cli.sources import RunSettings
from pipegen.cli.usage import load_of
from pipegen.io import jsonl
from pipegen.io.tables import Columns
from pipegen.jobs.in_flight import DEATHS
from pipegen.records.messages import plain_messages
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("ray", reason="Ray is not installed here")
pytestmark = pytest.mark.filterwarnings("default")
IMAGE = str(Path(__file__).parents[2] / "docs" / "examples" / "shapes.png")
IN_FLIGHT = 32
LIMIT = 1200.0
"""Seconds. A run with kills takes 100 on two idle cores, most of it to start actors again."""


def rows_in(file: Path, count: int) -> Path:
    """Text, images, sampled rows, and broken ones of several kinds."""
    lines = []
    for number in range(count):
        row: dict[str, Any] = {
            "id": f"r{number}",
            "label": number,
            "prompt": f"number {number}",
            "options": {"max_new_tokens": 2},
        }
        if number % 50 == 3:
            row |= {
                "prompt": "Describe the image.",
                "images": [IMAGE],
                "options": {"max_new_tokens": 2, "seed": number},
            }
        elif number % 50 == 7:
            row |= {"images": ["nowhere.png"]}
        elif number % 50 == 13:
            row |= {
                "options": {
                    "max_new_tokens": 2,
                    "temperature": 1.0,
                    "seed": number % 7,
                    "samples": 2,
                }
            }
        lines.append(json.dumps(row) if number % 50 != 21 else '{"id": "broken')
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return file


def command(
    source: Path, out: Path, *flags: str, err: Path | None = None
) -> subprocess.Popen[bytes]:
    arguments = [
        *(sys.executable, "-m", "pipegen", "generate", str(source), "-o", str(out)),
        *("--model", "embedded", "--image-root", "/", "--quiet"),
        *flags,
    ]
    with Path(err or os.devnull).open("wb") as stream:
        return subprocess.Popen(
            arguments,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stderr=stream,
            start_new_session=True,
        )


def test_the_output_is_that_of_one_process(cluster: str, tmp_path: Path) -> None:
    source = rows_in(tmp_path / "in.jsonl", 5000)
    assert command(source, tmp_path / "one.jsonl").wait(LIMIT) == 1
    wanted = (tmp_path / "one.jsonl").read_bytes()
    assert Counter(json.loads(line)["ok"] for line in wanted.splitlines()) == {
        True: 4800,
        False: 200,
    }
    for actors in (1, 2, 4):
        out = tmp_path / f"{actors}.jsonl"
        assert (
            command(
                source, out, "--ray", cluster, "--replicas", str(actors), "--gpus-per-replica", "0"
            ).wait(LIMIT)
            == 1
        )
        assert out.read_bytes() == wanted


def lines_of(folder: Path) -> list[str]:
    files = folder.glob("results-*.jsonl")
    return [
        line[8:40].decode()
        for path in files
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"}\n")
    ]


def progress(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("results-*.jsonl"))


def wait_for(folder: Path, size: int, process: subprocess.Popen[bytes], end: float) -> bool:
    """Wait until the journal has grown to this size; whether the command still runs."""
    while process.poll() is None and progress(folder) < size:
        assert time.monotonic() < end
        time.sleep(0.01)
    return process.poll() is None


@pytest.mark.parametrize("killed", ["actor", "driver"])
def test_five_kills_lose_and_double_nothing(cluster: str, tmp_path: Path, killed: str) -> None:
    rows, rng, end = 1500, random.Random(killed), time.monotonic() + LIMIT
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(
            json.dumps(
                {"id": f"r{n}", "prompt": f"prompt {n} of many", "options": {"max_new_tokens": 64}}
            )
            + "\n"
            for n in range(rows)
        )
    )
    out, folder = tmp_path / "out.jsonl", tmp_path / "out.jsonl.job"
    with FaultyServer(share=0.05, kinds=["slow"]) as server:
        there = (
            *("--backend", "vllm_server", "--base-url", server.url),
            *("--in-flight", str(IN_FLIGHT)),
        )
        assert command(source, tmp_path / "one.jsonl", *there).wait(LIMIT) == 0
        step = progress(tmp_path / "one.jsonl.job") // 7
        server.asked.clear()
        on_ray = (*there, "--ray", cluster, "--replicas", "2")
        running = command(source, out, *on_ray)
        for kill in range(1, 6):
            assert wait_for(folder, kill * step + rng.randrange(step), running, end)
            if killed == "driver":
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                while holders(folder):
                    assert time.monotonic() < end
                    time.sleep(0.05)
                running = command(source, out, *on_ray)
            else:
                # the command holds such a file too
                while not (actors := [pid for pid in holders(folder) if pid != running.pid]):
                    assert time.monotonic() < end
                    time.sleep(0.05)
                os.kill(rng.choice(actors), signal.SIGKILL)
        assert running.wait(LIMIT) == 0
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert list(folder.glob("running-*")) == []
    keys = lines_of(folder)
    assert len(keys) == len(set(keys)) == rows
    count = 1 if killed == "actor" else 2
    assert 0 <= sum(server.asked.values()) - rows <= 5 * count * IN_FLIGHT


def slots_of(
    folder: Path,
    on: OnRay,
    opened: Any,
    meter: Meter | None = None,
    moved: Moved = lambda done, words: None,
    **flags: Any,
) -> Iterator[Any]:
    files = Files(
        out=str(folder / "out"),
        quiet=True,
        asked=RunSettings(load_of(AskedFlags(model="fake"), {})),
        **flags,
    )
    return ray_slots(
        files,
        on,
        stub(),
        opened,
        meter or Meter(Tally()),
        moved,
        lambda stops: None,
        lambda run, files: None,
    )


@pytest.mark.parametrize("death", ["kill", "engine"])
def test_a_poisoned_row_fails_after_three_tries_alone_and_the_rest_is_done(
    cluster: str, tmp_path: Path, death: str
) -> None:
    source, asked = tmp_path / "in.jsonl", tmp_path / "asked"
    rows = ["the poisoned row 123" if number == 123 else f"row {number}" for number in range(400)]
    source.write_text(
        "".join(
            json.dumps({"id": f"r{number}", "prompt": words}) + "\n"
            for number, words in enumerate(rows)
        )
    )

    def opened() -> Any:
        return from_lines(jsonl.lines_of(io.BytesIO(source.read_bytes())), Columns())

    on = OnRay(partial(stub, asked=str(asked), poison="poisoned", death=death), cluster, 2, 0)
    slots = {
        origin.id: slot_of(slot) for origin, slot, _ in slots_of(tmp_path, on, opened, in_flight=20)
    }
    assert [name for name, slot in slots.items() if slot.value_or(None) is None] == ["r123"]
    assert "died 3 times" in slots["r123"].failure().message
    times = Counter(asked.read_text().split())
    assert len(times) == 400
    assert max(times.values()) <= DEATHS


def test_an_interrupt_ends_the_run_and_the_same_command_goes_on(
    cluster: str, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        "".join(
            json.dumps({"id": f"r{n}", "prompt": f"prompt {n}", "options": {"max_new_tokens": 64}})
            + "\n"
            for n in range(600)
        )
    )
    end = time.monotonic() + LIMIT
    with FaultyServer(share=0.05, kinds=["slow"]) as server:
        flags = (
            *("--backend", "vllm_server", "--base-url", server.url, "--in-flight", "4"),
            *("--ray", cluster),
        )
        summary = ("--summary", str(tmp_path / "summary.json"))
        running = command(source, out, *flags, *summary, err=tmp_path / "err")
        assert wait_for(Path(f"{out}.job"), 4000, running, end)
        running.send_signal(signal.SIGINT)
        assert running.wait(LIMIT) == 130
        assert not out.exists()
        assert "Traceback" not in (tmp_path / "err").read_text()
        counts = json.loads((tmp_path / "summary.json").read_text())
        assert (
            counts["succeeded"] == len(lines_of(Path(f"{out}.job"))) == 600 - counts["not_answered"]
        )
        assert counts["completion_tokens"] > 0 < counts["tokens_a_second"]
        assert list(Path(f"{out}.job").glob("running-*")) == []
        assert command(source, out, *flags).wait(LIMIT) == 0
        assert sum(server.asked.values()) == 600
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == [
        f"r{n}" for n in range(600)
    ]


def test_replicas_that_cannot_begin_end_the_run(cluster: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "Hi"}\n')

    def opened() -> Any:
        return from_lines(jsonl.lines_of(io.BytesIO(source.read_bytes())), Columns())

    with pytest.raises(typer.BadParameter, match=r"^there is no route$"):
        list(slots_of(tmp_path, OnRay(_no_route, cluster, 2, 0), opened))


def _no_route() -> Any:
    raise RuntimeError("there is no route")


def test_a_model_that_cannot_load_ends_the_command_with_its_own_error(
    cluster: str, tmp_path: Path
) -> None:
    """It starts one process for each replica, and blames no row."""
    model, source, out = tmp_path / "model", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}'
    )
    source.write_text("".join(f'{{"id": "r{n}", "prompt": "Say {n}"}}\n' for n in range(20)))
    flags = ("--model", str(model), "--replicas", "2", "--ray", cluster)
    assert command(source, out, *flags, err=tmp_path / "err").wait(LIMIT) == 2
    err = (tmp_path / "err").read_text()
    assert err.count("the tokenizer's files are missing") == 1
    assert "Traceback" not in err and "died" not in err
    assert lines_of(Path(f"{out}.job")) == []
    # the other replica may be killed while it loads: what it has noted by then is no row's fault
    assert command(source, out, "--max-new-tokens", "2").wait(LIMIT) == 0
    assert [json.loads(line)["ok"] for line in out.read_bytes().splitlines()] == [True] * 20


def test_a_replica_whose_process_is_killed_while_it_loads_blames_no_row(
    cluster: str, tmp_path: Path
) -> None:
    source, started = tmp_path / "in.jsonl", tmp_path / "started"
    source.write_text('{"id": "r0", "prompt": "Hi"}\n')

    def opened() -> Any:
        return from_lines(jsonl.lines_of(io.BytesIO(source.read_bytes())), Columns())

    on = OnRay(partial(stub, asked=str(started), poison="Hi"), cluster, 1, 0)
    with pytest.raises(typer.BadParameter, match="3 processes in a row died here before a request"):
        list(slots_of(tmp_path, on, opened))
    assert len(started.read_text().split()) == 3
    assert lines_of(tmp_path / "out.job") == []


def summary_of(file: Path) -> dict[str, Any]:
    """What a summary counts, without times and rates."""
    counts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {name: value for name, value in counts.items() if "second" not in name}


def test_replicas_alone_write_and_count_what_one_process_does(tmp_path: Path) -> None:
    source = rows_in(tmp_path / "in.jsonl", 100)
    one, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"

    def run(to: Path, *flags: str) -> dict[str, Any]:
        code = command(source, to, "--summary", str(tmp_path / "summary.json"), *flags).wait(LIMIT)
        counts = summary_of(tmp_path / "summary.json")
        assert code == counts["exit_code"] == 1
        return counts

    wanted = run(one)
    assert run(out, "--replicas", "2") == wanted
    assert out.read_bytes() == one.read_bytes()
    assert run(out, "--replicas", "3")["reused"] == wanted["succeeded"]
    assert run(out, "--replicas", "2", "--restart")["reused"] == 0
    assert out.read_bytes() == one.read_bytes()


def test_a_table_goes_through_replicas(cluster: str, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("question,label\n" + "".join(f"say {n},{n}\n" for n in range(8)))
    outs = {"one.csv": (), "out.csv": ("--ray", cluster, "--replicas", "2")}
    for out, flags in outs.items():
        assert command(source, tmp_path / out, "--map", "prompt=question", *flags).wait(LIMIT) == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_conversations_go_through_replicas(cluster: str, tmp_path: Path) -> None:
    """As without Ray; the next turns of a conversation are answered on one replica."""
    source = tmp_path / "in.jsonl"
    asked = [
        {"id": f"{n}", "messages": [{"role": "user", "content": f"What is {n} + 1?"}]}
        for n in range(8)
    ]
    lines: list[dict[str, Any]] = []
    request: Any
    with pg.backends.hf("embedded") as route:
        results = [slot.unwrap() for slot in pg.run(route, asked, {"max_new_tokens": 2})]
    for branch in range(4):
        lines.append({"id": f"turns {branch}", "turns": [f"Say {branch}.", "Again.", "Why?"]})
        for result in results:
            request = result.then(f"And {branch} + 2?")
            lines.append(
                {
                    "id": f"talk {result.id} {branch}",
                    "messages": plain_messages(request.messages or ()),
                    "continues": dataclasses.asdict(request.continues),
                }
            )
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    outs = {"one.jsonl": (), "out.jsonl": ("--ray", cluster, "--replicas", "2")}
    few = ("--max-new-tokens", "2", "--in-flight", "2")
    for out, flags in outs.items():
        assert command(source, tmp_path / out, *few, *flags).wait(LIMIT) == 0
    written = (tmp_path / "out.jsonl").read_bytes()
    assert written == (tmp_path / "one.jsonl").read_bytes()
    of_talk: dict[str, list[str]] = {}
    for file in (tmp_path / "out.jsonl.job").glob("results-*.jsonl"):
        for line in file.read_bytes().splitlines():
            kind, talk, *_ = json.loads(line)["id"].split()
            if kind == "talk":
                of_talk.setdefault(talk, []).append(file.name)
    assert {talk: (len(files), len(set(files))) for talk, files in of_talk.items()} == {
        f"{n}": (4, 1) for n in range(8)
    }
    assert len({file for files in of_talk.values() for file in files}) == 2
    before = {file: file.stat().st_size for file in tmp_path.glob("out.jsonl.job/results-*")}
    assert command(source, tmp_path / "out.jsonl", *few, "--replicas", "2").wait(LIMIT) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == written
    assert {file: file.stat().st_size for file in before} == before


def test_an_interrupt_of_the_terminal_and_a_killed_command_leave_nothing_running(
    tmp_path: Path,
) -> None:
    """A terminal's Ctrl-C reaches Ray and the replicas too."""
    source, out, folder = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.job"
    row = {"options": {"max_new_tokens": 64}}
    lines = [json.dumps({"id": f"r{n}", "prompt": f"prompt {n}", **row}) for n in range(600)]
    source.write_text("".join(f"{line}\n" for line in lines))
    end = time.monotonic() + LIMIT
    with FaultyServer(share=0.05, kinds=["slow"]) as server:
        there = ("--backend", "vllm_server", "--base-url", server.url, "--in-flight", "4")
        flags = (*there, "--replicas", "2")
        running = command(source, out, *flags)
        assert wait_for(folder, 4000, running, end)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(LIMIT) == 130
        assert (out.exists(), holders(folder), list(folder.glob("running-*"))) == (False, [], [])
        interrupted = sum(server.asked.values())
        running = command(source, out, *flags)
        assert wait_for(folder, 2 * progress(folder), running, end)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        while holders(folder):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert command(source, out, *flags).wait(LIMIT) == 0
        assert interrupted < sum(server.asked.values()) <= 600 + 2 * 4
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == [
        f"r{n}" for n in range(600)
    ]


def test_a_second_signal_ends_it_at_once(cluster: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Hi"}\n')
    begun = time.monotonic()
    with FaultyServer(share=1.0, kinds=["stall"]) as server:
        there = ("--backend", "vllm_server", "--base-url", server.url, "--grace", "600")
        running = command(source, out, *there, "--ray", cluster, err=tmp_path / "err")
        while not server.asked:
            assert time.monotonic() < begun + LIMIT
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGTERM)
        assert running.wait(LIMIT) == 130
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert list(Path(f"{out}.job").glob("running-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_that_waits_for_a_cluster(number: int, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "Hi"}\n')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        running = command(source, out, "--ray", address, err=tmp_path / "err")
        silent.settimeout(LIMIT)
        silent.accept()[0].close()  # Ray tries next
        running.send_signal(number)
        assert running.wait(LIMIT) == 130
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_the_meter_counts_the_rows_of_all_replicas(cluster: str, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [json.dumps({"id": f"r{n}", "prompt": f"row {n}"}) for n in range(100)]
    source.write_text("".join(f"{row}\n" for row in [*rows, "{broken"]))
    seen: list[int] = []
    meter = Meter(Tally())

    def opened() -> Any:
        return from_lines(jsonl.lines_of(io.BytesIO(source.read_bytes())), Columns())

    def moved(done: int | None, words: str | None) -> None:
        seen.append(meter.tally.done)

    assert len(list(slots_of(tmp_path, OnRay(stub, cluster, 2, 0), opened, meter, moved))) == 101
    assert (seen == sorted(seen), seen[-1]) == (True, 101)
