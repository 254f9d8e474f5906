"""What a fresh process costs: commands that ask no engine beside `import torch`, and a first answer
beside importing the model's class alone. That of a token server is the first of its checkpoint:
nothing is kept of it. `python tests/programs/bench/start.py`, run by
`nox -s bench -- start`. Seconds are those of the processor.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import REPEATS, fresh_processes, paired, peaks, row, write
from support.canned_server import Canned, CannedServer

GROUP = "A cold start"
ROWS = 100
FROM_SERVER = "a first answer through a token server"
ANSWER = """
import pipegen as pg
with pg.backends.hf("embedded") as route:
    pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 1})
"""
SERVER = """
import os, sys, tempfile
with tempfile.TemporaryDirectory() as nothing_kept:
    os.environ["XDG_CACHE_HOME"] = nothing_kept
    import pipegen as pg
    with pg.backends.vllm_server("embedded", base_url=sys.argv[1]) as route:
        (slot,) = pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 2})
assert pg.is_ok(slot), slot
"""
CLASS = """
import transformers
from pipegen import embedded
config = transformers.AutoConfig.from_pretrained(embedded.path())
transformers.AutoModelForImageTextToText._model_mapping[type(config)]
"""
COMMANDS = {
    "a finished job of one row": ("generate", "one.jsonl", "-o", "one.out.jsonl"),
    "export of 100 rows": ("export", "many.out.jsonl.job", "-o", "exported.jsonl"),
    "diff of 100 rows": ("diff", "many.out.jsonl", "many.out.jsonl"),
    "view of 100 rows": ("view", "many.out.jsonl", "-o", "page.html"),
}
MODEL = ("--model", "embedded", "--max-new-tokens", "2")


def measured(folder: Path, address: str) -> list[dict[str, Any]]:
    """The rows, from a folder for two finished jobs, and a token server."""
    python, tool = sys.executable, str(Path(sys.executable).with_name("pipegen"))
    for name, count in (("one", 1), ("many", ROWS)):
        lines = (json.dumps({"id": str(n), "prompt": f"Say {n}."}) for n in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        made = (tool, "generate", f"{name}.jsonl", "-o", f"{name}.out.jsonl", *MODEL)
        subprocess.run(made, cwd=folder, check=True, capture_output=True)
    commands = {
        "import torch": (python, "-c", "import torch"),
        "the model's class": (python, "-c", CLASS),
        "a first answer": (python, "-c", ANSWER),
        FROM_SERVER: (python, "-c", SERVER, address),
        **{
            name: (tool, *given, *(MODEL if given[0] == "generate" else ()))
            for name, given in COMMANDS.items()
        },
    }
    seconds, most = fresh_processes(commands, folder=folder, rounds=2 * REPEATS)

    def beside(ours: str, theirs: str, target: str) -> dict[str, Any]:
        ratio, spread = paired(seconds[theirs], seconds[ours])
        figures = {
            "ours": f"{statistics.median(seconds[ours]):.2f} s",
            "theirs": f"{statistics.median(seconds[theirs]):.2f} s",
            **peaks(most[ours], most[theirs]),
        }
        return row(ours, theirs, ratio, target, group=GROUP, spread=spread, **figures)

    return [
        *(beside(name, "import torch", "at most 0.35") for name in COMMANDS),
        beside(FROM_SERVER, "import torch", "at most 0.5"),
        beside("a first answer", "the model's class", "at most 1.05"),
    ]


if __name__ == "__main__":
    reply = {"index": 0, "token_ids": [931, 1126], "finish_reason": "stop"}
    with (
        tempfile.TemporaryDirectory() as made,
        CannedServer(Canned({"request_id": "1", "choices": [reply]})) as server,
    ):
        write("start", measured(Path(made), server.url))
