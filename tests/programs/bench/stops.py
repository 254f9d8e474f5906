"""Stop strings: what it costs to set them up, and to look for them at each step of each row, with a
real vocabulary of 150,000. Run by `nox -s bench`.

`python tests/programs/bench/stops.py TOKENIZER`: the folder of a tokenizer. Seconds are those of the
processor; 200 steps, in batches of 1, 8 and 32 rows.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from criteria import PROMPT
from measure import REPEATS, ROOT, paired, peaks, row, write
from workers import running

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

    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
    )
    for stop in STOPS:
        text = text.replace(stop, " ")
    ids = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids
    starts = [place * (len(ids) - PROMPT - STEPS) // 32 for place in range(32)]
    return {
        "tokenizer": str(folder),
        "stops": STOPS,
        "rows": [ids[start : start + PROMPT + STEPS] for start in starts],
    }


Runs = dict[str, dict[tuple[int, int], list[dict[str, float]]]]
"""What each says of each number of stops and rows, once for each repeat."""


def measured(work: dict[str, Any]) -> tuple[Runs, dict[str, str]]:
    said: Runs = {}
    with running({OURS: None, **PEERS}, work, "criteria.py", "1 1") as (workers, absent):
        for stops in (0, 1, 4, 16):
            for rows in (1, 8, 32):
                for repeat in range(min(REPEATS, 3)):
                    for worker in workers if repeat % 2 else reversed(workers):
                        if stops or worker.arm == OURS:
                            said.setdefault(worker.arm, {}).setdefault((stops, rows), []).append(
                                worker.run(f"{stops} {rows}")
                            )
    return said, absent


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.2g} us" if seconds < 0.01 else f"{seconds:.2g} s"


def rows_of(said: Runs, absent: dict[str, str]) -> list[dict[str, Any]]:
    out = []

    def compare(
        what: str,
        work: str,
        peer: str,
        ours: list[dict[str, float]],
        theirs: list[dict[str, float]],
        target: str,
    ) -> None:
        mine, other = ([run[what] for run in runs] for runs in (ours, theirs))
        ratio, spread = (
            paired(mine, other) if target.startswith("at least") else paired(other, mine)
        )
        figures = {"ours": us(statistics.median(mine)), "theirs": us(statistics.median(other))}
        out.append(
            row(
                work,
                peer,
                ratio,
                target,
                group=GROUP,
                spread=spread,
                **figures,
                **peaks(ours[-1]["peak"], theirs[-1]["peak"]),
            )
        )

    def cheapest(at: tuple[int, int]) -> str:
        return min(
            (name for name in said if name != OURS),
            key=lambda name: statistics.median(run["step"] for run in said[name][at]),
        )

    for stops in (1, 4, 16):
        for rows in (1, 8, 32):
            at, shown = (stops, rows), f"{stops} stops, batch of {rows}"
            ours, least = said[OURS][at], cheapest(at)
            compare("setup", f"{shown}: setting up", THEIRS, ours, said[THEIRS][at], "at most 0.01")
            compare(
                "step",
                f"{shown}: a step of a row",
                f"the cheapest peer, {least}",
                ours,
                said[least][at],
                "at most 0.1",
            )
            for peer in filter(OURS.__ne__, said):
                compare(
                    "whole",
                    f"{shown}: setting up and {STEPS} steps",
                    peer,
                    ours,
                    said[peer][at],
                    "at least 1",
                )
    least = cheapest((1, 8))
    compare(
        "step",
        "no stops, batch of 8: a step of a row",
        f"the cheapest peer with 1 stop, {least}",
        said[OURS][0, 8],
        said[least][1, 8],
        "at most 0.1",
    )
    for peer, why in absent.items():
        out.append(
            row("stop strings", peer, None, "at least 1", group=GROUP, note=f"not measured: {why}")
        )
    return out


def main() -> None:
    write("stops", rows_of(*measured(work_of(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
