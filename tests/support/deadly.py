"""A job in a process of its own that some rows kill: what test_deadly_rows.py starts. Prints the
ids of the rows that failed, and how many it asked.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def answer(encoded: Encoded) -> str:
    prompt = str(encoded.request.prompt)
    with Path("asked.txt").open("a", encoding="utf-8") as asked:
        asked.write(f"{os.getpid()} {encoded.request.id}\n")
    if "kill" in prompt:
        os.kill(os.getpid(), signal.SIGKILL)
    if "leave" in prompt:
        sys.exit(5)
    return f"re: {prompt}<|im_end|>"


def main(rows: str, deadly: str, in_flight: str, how: str, i: str, n: str) -> None:
    words = {int(number): how for number in deadly.split(",") if number}
    requests = [
        {"id": f"row {number}", "prompt": f"{words.get(number, 'say')} {number}"}
        for number in range(int(rows))
    ]
    running = pg.job(
        pg.route(FakeEngine(answer)),
        pg.shard(requests, int(i), int(n)),
        "job",
        in_flight=int(in_flight),
    )
    for slot in running:
        if not pg.is_ok(slot):
            print(slot.failure().message, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
