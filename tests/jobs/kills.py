"""Kill a job again and again, and count what was lost, doubled and repeated: `nox -s kills`, or
`python tests/jobs/kills.py --help`. `test_kills.py` does so for some rows.

One process runs the job and is killed (SIGKILL) at a random row, until one run comes to its end.
The rows that it gives out are compared with those of an undisturbed run in another folder. A stage
of the job's own notes each row that is asked for, in a file.

The rows of `loops` call a tool once, twice or three times before they answer. Of these, what was
finished when a process died is looked up in the job's folder: no engine and no tool may be asked
for it again.

Processes are forked from one that has imported everything and started nothing: an import of torch
takes longer than a run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.testing.faulty import EOS, FaultyServer

IN_FLIGHT = {"server": 64, "hf": 16, "loops": 16}
PROCESSES = multiprocessing.get_context("forkserver")
BLAMED = b"the process died 3 times while it worked on request"
"""What is reported of a row that was alone in flight at three kills, as it may be near the end of a
job. It is asked again with `retry="all"`.
"""
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
        elif kind == "loops":
            yield {
                "id": f"row {row}",
                "messages": [{"role": "user", "content": f"Look at row {row}."}],
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


def work(kind: str, rows: int, url: str, folder: Path, retry: str) -> None:
    """What is killed: the job, from its beginning or wherever it stopped."""
    from pipegen.jobs.new_file import new_file

    asked = os.open(f"{folder}.asked", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(request: pg.GenerationRequest) -> pg.GenerationRequest:
        os.write(asked, f"{request.id}\n".encode())
        return request

    route = (
        pg.backends.hf("embedded")
        if kind == "hf"
        else pg.backends.vllm_server("embedded", base_url=url)
    )
    pipe: Any = route.insert(pg.pure("note", note), before="resolve")

    def look(what: str) -> str:
        """Look at something."""
        os.write(asked, f"{what}\n".encode())
        return f"seen {what}"

    if kind == "loops":
        pipe = pg.turns(route, pg.tools([look]))
    with (
        route,
        new_file(Path(f"{folder}.jsonl")) as out,
        pg.job(
            pipe, requests_of(kind, rows), folder, in_flight=IN_FLIGHT[kind], retry=retry
        ) as running,
    ):
        for slot in running:
            out.write(json.dumps(pg.to_plain(slot), ensure_ascii=False).encode() + b"\n")


class Script:
    """What the server answers to the rows of `loops`: in turn 0 to 2 of a row a call of the tool,
    and then an answer. Each answer names its row and turn; `asked` counts the calls by these names.
    """

    def __init__(self) -> None:
        with pg.backends.vllm_server("embedded", base_url="http://127.0.0.1:1") as route:
            self._tokenizer: Any = route.engine.tokenizer
        self.asked: Counter[str] = Counter()
        self._named: dict[str, tuple[int, ...]] = {}

    def __call__(self, prompt: Sequence[int]) -> list[int]:
        text = self._tokenizer.decode(prompt)
        row, turn = int(re.findall(r"Look at row (\d+)\.", text)[0]), text.count("seen row ")
        name = f"row {row} turn {turn}"
        self.asked[name] += 1
        if turn > row % 3:
            said = f"Done with {name}."
        else:
            call = json.dumps({"name": "look", "arguments": {"what": name}})
            said = f"<tool_call>\n{call}\n</tool_call>"
        self._named[name] = tuple(self._tokenizer.encode(said))
        return [*self._named[name], EOS]

    def finished(self, folder: Path) -> set[str]:
        """The calls whose answers, and the tools' calls whose replies, are in the job's folder. A
        kill may tear the line that is being written, so its call is not finished.
        """
        kept = b"".join(line for path in journals(folder) for line in lines_of(path)).decode()
        ids = kept.replace(" ", "")
        answered = {name for name, own in self._named.items() if ",".join(map(str, own)) in ids}
        return answered | {f"tool: {name}" for name in re.findall(r"seen (row \d+ turn \d+)", kept)}


def journals(folder: Path) -> list[Path]:
    return [
        path for name in ("results", "steps") for path in sorted(folder.glob(f"{name}-*.jsonl"))
    ]


def keys_in(folder: Path) -> list[bytes]:
    return [
        line[8:40] for path in sorted(folder.glob("results-*.jsonl")) for line in lines_of(path)
    ]


def lines_of(path: Path) -> list[bytes]:
    """The lines of a journal, but for a last one that is torn."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n")]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in journals(folder))


def lines_in(file: str) -> list[bytes]:
    return Path(file).read_bytes().splitlines()


def run(
    kind: str,
    rows: int,
    url: str,
    folder: Path,
    enough: float = float("inf"),
    retry: str = "retryable",
) -> bool:
    """Start the job, and kill it when its journal has grown by so many bytes; whether it came to
    its end before.
    """
    began = size_of(folder)
    process = PROCESSES.Process(target=work, args=(kind, rows, url, folder, retry))
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
    script = Script() if kind == "loops" else None
    more: dict[str, Any] = {"reply": script} if script else {}
    with tempfile.TemporaryDirectory() as name, FaultyServer(share=0, seed=seed, **more) as server:
        folder, whole = Path(name) / "job", Path(name) / "undisturbed"
        run(kind, rows, server.url, whole)
        calls = sum(script.asked.values()) if script else 0
        finished: dict[str, int] = {}
        """What was finished at the last kill, and how often each was asked for then."""

        def again() -> int:
            """How much of that was asked for again; and note what is finished now."""
            if script is None:
                return 0
            counts = Counter(script.asked)
            counts.update(f"tool: {line.decode()}" for line in lines_in(f"{folder}.asked"))
            repeated = sum(counts[each] > before for each, before in finished.items())
            finished.update({each: counts[each] for each in script.finished(folder)})
            return repeated

        step = size_of(whole) // (kills + 1)
        killed, ended, finished_again = 0, False, 0
        while killed < kills and not ended:
            left = size_of(whole) - size_of(folder)
            enough = rng.randint(1, max(1, min(2 * step, 2 * left // (kills - killed + 1))))
            ended = run(kind, rows, server.url, folder, enough)
            killed += not ended
            finished_again += again()
        if not ended:
            run(kind, rows, server.url, folder)
            finished_again += again()
        keys, asked = keys_in(folder), len(lines_in(f"{folder}.asked"))
        if script:
            asked, expected = sum(script.asked.values()) - calls, calls
        else:
            expected = rows
        given = lines_in(f"{folder}.jsonl")
        lost, blamed = rows - len(given), sum(BLAMED in line for line in given)
        if blamed:
            run(kind, rows, server.url, folder, retry="all")
            given = lines_in(f"{folder}.jsonl")
        return {
            "engine": kind,
            "rows": rows,
            "kills": killed,
            "lost": lost,
            "blamed for the kills": blamed,
            "doubled": len(keys) - len(set(keys)),
            "repeated": asked - expected,
            "repeated a kill": round((asked - expected) / killed, 1) if killed else None,
            "finished before a kill": len(finished),
            "finished, and asked again": finished_again,
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
        help="rows of the server's job; the model's has a twentieth, the loops' a tenth",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=20,
        help="kills of the server's job; the model's has a quarter, the loops' two and a half times",
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    PROCESSES.set_forkserver_preload(
        ["pipegen.backends.hf.computing", "pipegen.jobs.runner", "aiohttp", "torch", "transformers"]
    )
    bad = False
    for kind, share, kills in (("server", 1, 1.0), ("hf", 20, 0.25), ("loops", 10, 2.5)):
        figures = kill(kind, asked.rows // share, int(asked.kills * kills), asked.seed)
        print(json.dumps(figures), flush=True)
        bad = (
            bad
            or figures["lost"]
            or figures["doubled"]
            or not figures["the same bytes"]
            or figures["finished, and asked again"]
            or figures["repeated"] > figures["kills"] * IN_FLIGHT[kind]
        )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
