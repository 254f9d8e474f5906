"""Kill a job again and again, and count what was lost, doubled and repeated: `nox -s kills`, or
`python tests/jobs/kills.py --help`.

One process runs the job and is killed (SIGKILL) at a random row, until one run comes to its end.
The rows that it gives out are compared with those of an undisturbed run in another folder. A stage
of the job's own notes each row that is asked for, in a file.

Processes are forked from one that has imported everything and started nothing: an import of torch
takes longer than a run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.testing.faulty import FaultyServer

IN_FLIGHT = {"server": 64, "hf": 16}
PROCESSES = multiprocessing.get_context("forkserver")
IMAGE = str(Path(__file__).parents[2] / "docs" / "examples" / "shapes.png")


def requests_of(kind: str, rows: int) -> Iterator[dict[str, Any]]:
    """The job's input: words for the server; questions, images and sampled rows for the model."""
    for row in range(rows):
        if kind == "server":
            yield {
                "id": f"row {row}",
                "prompt": f"prompt {row} of {rows}",
                "options": {"max_new_tokens": 64},
            }
        elif row % 5 == 3:
            yield {
                "id": f"row {row}",
                "prompt": "Describe the image.",
                "images": [IMAGE],
                "options": {"seed": row},
            }
        elif row % 5 == 4:
            options = {"temperature": 1.0, "seed": row, "samples": 2, "max_new_tokens": 12}
            yield {
                "id": f"row {row}",
                "messages": [{"role": "user", "content": f"What is {row % 9} + {row % 7}?"}],
                "options": options,
            }
        else:
            yield {
                "id": f"row {row}",
                "messages": [{"role": "user", "content": f"What is {row} + 1?"}],
                "options": {"max_new_tokens": 12},
            }


def work(kind: str, rows: int, url: str, folder: Path) -> None:
    """What is killed: the job, from its beginning or wherever it stopped."""
    from pipegen.jobs.new_file import new_file

    asked = os.open(f"{folder}.asked", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(request: pg.GenerationRequest) -> pg.GenerationRequest:
        os.write(asked, f"{request.id}\n".encode())
        return request

    route = (
        pg.backends.vllm_server("embedded", base_url=url)
        if kind == "server"
        else pg.backends.hf("embedded")
    )
    pipe = route.insert(pg.pure("note", note), before="resolve")
    with (
        route,
        new_file(Path(f"{folder}.jsonl")) as out,
        pg.job(pipe, requests_of(kind, rows), folder, in_flight=IN_FLIGHT[kind]) as running,
    ):
        for slot in running:
            out.write(json.dumps(pg.to_plain(slot), ensure_ascii=False).encode() + b"\n")


def keys_in(folder: Path) -> list[bytes]:
    return [
        line[8:40]
        for path in sorted(folder.glob("results-*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"}\n")
    ]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("results-*.jsonl"))


def lines_in(file: str) -> list[bytes]:
    return Path(file).read_bytes().splitlines()


def run(kind: str, rows: int, url: str, folder: Path, enough: float = float("inf")) -> bool:
    """Start the job, and kill it when its journal has grown by so many bytes; whether it came to
    its end before.
    """
    began = size_of(folder)
    process = PROCESSES.Process(target=work, args=(kind, rows, url, folder))
    process.start()
    while process.is_alive() and size_of(folder) - began < enough:
        process.join(0.005)
    process.kill()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise SystemExit(f"the job ended with {process.exitcode}")
    return process.exitcode == 0


def kill(kind: str, rows: int, kills: int, seed: int) -> dict[str, Any]:
    """The figures of one such job."""
    rng, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as name, FaultyServer(share=0, seed=seed) as server:
        folder, whole = Path(name) / "job", Path(name) / "undisturbed"
        run(kind, rows, server.url, whole)
        step = size_of(whole) // (kills + 1)
        killed, ended = 0, False
        while killed < kills and not ended:
            left = size_of(whole) - size_of(folder)
            enough = rng.randint(1, max(1, min(2 * step, 2 * left // (kills - killed + 1))))
            ended = run(kind, rows, server.url, folder, enough)
            killed += not ended
        if not ended:
            run(kind, rows, server.url, folder)
        keys, asked = keys_in(folder), len(lines_in(f"{folder}.asked"))
        given = lines_in(f"{folder}.jsonl")
        return {
            "engine": kind,
            "rows": rows,
            "kills": killed,
            "lost": rows - len(given),
            "doubled": len(keys) - len(set(keys)),
            "repeated": asked - rows,
            "repeated a kill": round((asked - rows) / killed, 1) if killed else None,
            "in flight": IN_FLIGHT[kind],
            "the same bytes": given == lines_in(f"{whole}.jsonl"),
            "seconds": round(time.monotonic() - began),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--rows",
        type=int,
        default=2000,
        help="rows of the server's job; the model's has a twentieth",
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="kills of the server's job; the model's has a quarter"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    PROCESSES.set_forkserver_preload(
        ["pipegen.backends.hf.engine", "pipegen.jobs.runner", "aiohttp", "torch", "transformers"]
    )
    bad = False
    for kind, share, fewer in (("server", 1, 1), ("hf", 20, 4)):
        figures = kill(kind, asked.rows // share, asked.kills // fewer, asked.seed)
        print(json.dumps(figures), flush=True)
        bad = (
            bad
            or figures["lost"]
            or figures["doubled"]
            or not figures["the same bytes"]
            or figures["repeated"] > figures["kills"] * IN_FLIGHT[kind]
        )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
