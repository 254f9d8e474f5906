"""Kill a job again and again, and count what was lost, doubled and repeated: `nox -s kills`, or `python tests/jobs/kills.py --help`.

One process runs the job and is killed (SIGKILL) at a random row, until one run comes to its end. The rows that it gives out are compared with those of
an undisturbed run in another folder. On the stub server the parent counts what was asked; on the embedded model the journal's lines are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.testing.faulty import FaultyServer

IN_FLIGHT = 64
IMAGE = str(Path(__file__).parents[2] / "docs" / "examples" / "shapes.png")


def requests_of(kind: str, rows: int) -> Iterator[dict[str, Any]]:
    """The job's input: words for the server; questions, images and sampled rows for the model."""
    for row in range(rows):
        if kind == "server":
            yield {"id": f"row {row}", "prompt": f"prompt {row} of {rows}", "options": {"max_new_tokens": 64}}
        elif row % 5 == 3:
            yield {"id": f"row {row}", "prompt": "Describe the image.", "images": [IMAGE], "options": {"seed": row}}
        elif row % 5 == 4:
            options = {"temperature": 1.0, "seed": row, "samples": 2, "max_new_tokens": 12}
            yield {"id": f"row {row}", "messages": [{"role": "user", "content": f"What is {row % 9} + {row % 7}?"}], "options": options}
        else:
            yield {"id": f"row {row}", "messages": [{"role": "user", "content": f"What is {row} + 1?"}], "options": {"max_new_tokens": 12}}


def work(kind: str, rows: int, url: str, folder: Path, out: Path) -> None:
    """What is killed: the job, from its beginning or wherever it stopped."""
    route = pg.backends.vllm_server("embedded", base_url=url) if kind == "server" else pg.backends.hf("embedded")
    from pipegen.jobs.new_file import new_file

    with route, new_file(out) as stream, pg.job(route, requests_of(kind, rows), folder, in_flight=IN_FLIGHT) as running:
        for slot in running:
            stream.write(json.dumps(pg.to_plain(slot), ensure_ascii=False).encode() + b"\n")


def lines_in(folder: Path) -> list[bytes]:
    return [line[8:40] for path in sorted(folder.glob("results-*.jsonl")) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n")]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("results-*.jsonl"))


def run_until_killed(command: list[str], progress: Callable[[], int], enough: int) -> bool:
    """Start the job, and kill it when it has come so far; whether it came to its end before."""
    began = progress()
    process = subprocess.Popen(command, env={**os.environ, "PIPEGEN_KILLS": "1"})
    while process.poll() is None and progress() - began < enough:
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"the job ended with {code}")
    return code == 0


def kill(kind: str, rows: int, kills: int, seed: int) -> dict[str, Any]:
    """The figures of one such job."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, FaultyServer(share=0, seed=seed) as server:
        folder, whole = Path(name) / "job", Path(name) / "undisturbed"

        def command(job: Path) -> list[str]:
            return [sys.executable, __file__, "--work", kind, "--rows", str(rows), "--url", server.url, "--folder", str(job), "--out", f"{job}.jsonl"]

        subprocess.run(command(whole), check=True)
        server.asked.clear()

        def finished() -> int:
            return size_of(folder)

        step = size_of(whole) // (kills + 1)
        killed, ended = 0, False
        while killed < kills and not ended:
            ended = run_until_killed(command(folder), finished, rng.randint(1, 2 * step))
            killed += not ended
        if not ended:
            subprocess.run(command(folder), check=True)
        keys, asked = lines_in(folder), sum(server.asked.values())
        repeated = asked - rows if kind == "server" else len(keys) - len(set(keys))
        same = Path(f"{folder}.jsonl").read_bytes() == Path(f"{whole}.jsonl").read_bytes()
        return {
            "engine": kind,
            "rows": rows,
            "kills": killed,
            "lost": rows - len(Path(f"{folder}.jsonl").read_bytes().splitlines()),
            "doubled": len(keys) - len(set(keys)),
            "repeated": repeated,
            "repeated a kill": round(repeated / killed, 1) if killed else None,
            "under way": IN_FLIGHT,
            "the same bytes": same,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000, help="rows of the server's job; the model's has a tenth")
    parser.add_argument("--kills", type=int, default=20, help="kills of the server's job; the model's has a quarter")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("--work", "--url", "--folder", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.work, asked.rows, asked.url, Path(asked.folder), Path(asked.out))
        return
    bad = False
    for kind, share, fewer in (("server", 1, 1), ("hf", 10, 4)):
        figures = kill(kind, asked.rows // share, asked.kills // fewer, asked.seed)
        print(json.dumps(figures), flush=True)
        bad = bad or figures["lost"] or figures["doubled"] or not figures["the same bytes"] or figures["repeated"] > figures["kills"] * IN_FLIGHT
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
