"""Engines for actors of Ray: stubs that count, wait, or kill their process, made in the actor."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pipegen as pg
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


class _Loaded(FakeEngine):
    """An engine whose weights are there: when it dies, it does not because it cannot begin."""

    loaded = True


def stub(
    seconds: float = 0.0, asked: str | None = None, poison: str = "", death: str = "kill"
) -> pg.Route:
    """A route whose answers end with the prompt's last word.

    seconds: how long a call takes. asked: a file that gets a line for each row that is asked.
    poison: a row whose prompt has this word ends its process, or (`death="engine"`) the engine in
    it.
    """

    def answered(encoded: Encoded, engine: list[FakeEngine]) -> Any:
        words = engine[0].tokenizer.decode(encoded.prompt.token_ids).partition("<|im_end|>")[0]
        if asked is not None:
            with open(asked, "a", encoding="utf-8") as file:
                file.write(words.rpartition(" ")[2] + "\n")
        if poison and poison in words:
            if death == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise CallFailed(BackendFailed("the device is gone", backend="fake"))
        time.sleep(seconds)
        return f"answer to {words.rpartition(' ')[2]}<|im_end|>"

    engine: list[FakeEngine] = []
    engine.append(_Loaded(partial(answered, engine=engine)))
    return pg.route(engine[0])


def holders(folder: Path, name: str = "running-") -> list[int]:
    """The processes that hold a file of the job's folder open whose name begins so: its actors, and
    the command that started them.
    """
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
            except OSError:
                continue  # it has ended
            if any(link.startswith(str(folder / name)) for link in links):
                found.append(int(process.name))
    return found
