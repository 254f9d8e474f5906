"""Stop strings: what it costs to set them up, and to look for them at each step of each row, with a real vocabulary of 150,000. Run by `nox -s bench`.

`python tests/bench/stops.py TOKENIZER`: the folder of a tokenizer. Seconds are those of the processor; 200 steps, in batches of 1, 8 and 32 rows.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from criteria import PROMPT
from measure import REPEATS, ROOT, paired, row, write
from workers import Worker

GROUP = "Stop strings"
STEPS = 200
OURS, THEIRS = "pipegen", "transformers stop_strings"
PEERS = {THEIRS: None, "lm-eval's criteria": "lm-eval", "ms-swift's criteria": "ms-swift"}
STOPS = (
    "\nObservation:", "</answer>", "\nQuestion:", "END OF TEXT", "\nUser:", "\nHuman:", "\nAssistant:", "[/INST]",
    "STOP!", "<end>", "---END---", "\n\nProblem", "</tool>", "\nFinal answer", "~~~", "\nThought:",
)  # fmt: skip


def work_of(folder: Path) -> dict[str, Any]:
    """Rows of ids from the documentation's own text, in which none of the stops stands."""
    from transformers import AutoTokenizer

    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    for stop in STOPS:
        text = text.replace(stop, " ")
    ids = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids
    starts = [place * (len(ids) - PROMPT - STEPS) // 32 for place in range(32)]
    return {"tokenizer": str(folder), "stops": STOPS, "rows": [ids[start : start + PROMPT + STEPS] for start in starts]}


def measured(work: dict[str, Any]) -> tuple[dict[str, dict[tuple[int, int], list[dict[str, float]]]], dict[str, str]]:
    """What each says of each number of stops and rows, once for each repeat."""
    said: dict[str, dict[tuple[int, int], list[dict[str, float]]]] = {}
    absent: dict[str, str] = {}
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "work.json")
        path.write_text(json.dumps(work), encoding="utf-8")
        try:
            for name, environment in {OURS: None, **PEERS}.items():
                try:
                    worker = Worker(name, path, "criteria.py", environment)
                    workers.append(worker)
                    worker.ready()
                    worker.run("1 1")
                    said[name] = {}
                except (RuntimeError, FileNotFoundError) as refusal:
                    absent[name] = str(refusal)
                    print(f"  {name}: {refusal}", flush=True)
            at_work = [worker for worker in workers if worker.arm in said]
            for stops in (0, 1, 4, 16):
                for rows in (1, 8, 32):
                    for repeat in range(min(REPEATS, 3)):
                        for worker in at_work if repeat % 2 else reversed(at_work):
                            if stops or worker.arm == OURS:
                                said[worker.arm].setdefault((stops, rows), []).append(worker.run(f"{stops} {rows}"))
        finally:
            for worker in workers:
                worker.close()
    return said, absent


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.2g} us" if seconds < 0.01 else f"{seconds:.2g} s"


def rows_of(said: dict[str, dict[tuple[int, int], list[dict[str, float]]]], absent: dict[str, str]) -> list[dict[str, Any]]:
    out = []

    def compare(work: str, peer: str, ours: list[float], theirs: list[float], target: str) -> None:
        ratio, spread = paired(theirs, ours)
        if target.startswith("at least"):
            ratio, spread = paired(ours, theirs)
        figures = {"ours": us(statistics.median(ours)), "theirs": us(statistics.median(theirs))}
        out.append(row(work, peer, ratio, target, group=GROUP, spread=spread, **figures))

    for stops in (1, 4, 16):
        for rows in (1, 8, 32):
            at, shown = (stops, rows), f"{stops} stops, batch of {rows}"
            runs = {name: said[name][at] for name in said}
            compare(f"{shown}: setting up", THEIRS, [run["setup"] for run in runs[OURS]], [run["setup"] for run in runs[THEIRS]], "at most 0.01")
            cheapest = min((name for name in runs if name != OURS), key=lambda name: statistics.median(run["step"] for run in runs[name]))
            compare(
                f"{shown}: a step of a row",
                f"the cheapest peer, {cheapest}",
                *([run["step"] for run in runs[name]] for name in (OURS, cheapest)),
                "at most 0.1",
            )
            for peer in runs:
                if peer != OURS:
                    compare(f"{shown}: setting up and {STEPS} steps", peer, *([run["whole"] for run in runs[name]] for name in (OURS, peer)), "at least 1")
    one = statistics.median(run["step"] for run in said[OURS][0, 8])
    cheapest_step = min(statistics.median(run["step"] for run in said[name][1, 8]) for name in said if name != OURS)
    figures = {"ours": us(one), "theirs": us(cheapest_step)}
    out.append(row("no stops, batch of 8: a step of a row", "the cheapest peer with 1 stop", one / cheapest_step, "at most 0.1", group=GROUP, **figures))
    for peer, why in absent.items():
        out.append(row("stop strings", peer, None, "at least 1", group=GROUP, note=f"not measured: {why}"))
    return out


def main() -> None:
    write("stops", rows_of(*measured(work_of(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
