"""pipegen's command over a scripted engine, also in the processes of its replicas: what
test_replicas.py starts. What a prompt says, happens.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import pipegen as pg
from pipegen.cli import generate, main, replicas
from pipegen.cli.usage import Load, refuse
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def answer(encoded: Encoded) -> str:
    prompt = str(encoded.request.prompt)
    with Path("asked.txt").open("a", encoding="utf-8") as asked:
        asked.write(f"{prompt}\n")
    what, _, name = prompt.partition(" ")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "once" and not Path(name).exists():
        Path(name).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        print("out of\nmemory", file=sys.stderr, flush=True)
        os._exit(7)
    if what == "end":
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell)
        for _ in range(2 if name == "twice" else 1):
            os.kill(os.getppid(), signal.SIGTERM)
            select.select([told], [], [])  # until the parent has handed it on
            os.read(told, 1)
    if what == "half":  # a line that says how far it is, cut off
        os.write(int(os.environ["PIPE"]), b'{"tally": {"succee')
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "orphan":
        parent = os.pidfd_open(os.getppid())
        os.kill(os.getppid(), signal.SIGKILL)
        select.select([parent], [], [])
    return f"re: {prompt} END"


def opened(load: Load) -> pg.Route:
    if load.model == "nowhere":
        refuse("there is no model of this name", "--model")
    return pg.route(FakeEngine(answer))


if __name__ == "__main__":
    generate.open_routes = opened
    replicas.SELF = (sys.executable, __file__)
    if replicas.VARIABLE in os.environ:
        os.environ["PIPE"] = os.environ[replicas.VARIABLE].rpartition(":")[2]
        print(f"on {os.environ.get('CUDA_VISIBLE_DEVICES')}", file=sys.stderr)
    main()
