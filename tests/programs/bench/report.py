"""Gather what the programs of this folder measured into docs/contributing/benchmarks.json, the page
beside it and a chart: `python tests/programs/bench/report.py`.
"""

from __future__ import annotations

import json
import platform
import re
from itertools import groupby
from typing import Any

from headlines import chart, headline_table, headlines
from measure import RESULTS, ROOT

DOCS = ROOT / "docs"
PAGES = DOCS / "contributing"
ORDER: tuple[str, ...] = (
    "text-equal",
    "text-skewed",
    "text-real",
    "images-skewed",
    "images-large",
    "stops",
    "alone-preparing",
    "alone-answers",
    "alone-memory",
)
ORDER += (
    "alone-starting",
    "start",
    "vllm",
    "plugins",
    "forms",
    "flow",
    "shared",
    "adapters",
    "servers",
)
GROUPS: tuple[str, ...] = (
    "Hugging Face, text",
    "Hugging Face, images",
    "Stop strings",
    "pipegen alone",
    "A cold start",
    "vLLM, in process",
    "Plugins",
    "The form of answers",
)
GROUPS += ("Continuous feeding", "Shared beginnings", "Adapters", "Servers")
WHOLE = ("A cold start", "Shared beginnings")
"""Groups of which the page has each row."""
HEAD, FIGURES = (
    ("<!-- headlines -->", "<!-- end of headlines -->"),
    (
        "<!-- figures -->",
        "<!-- end of figures -->",
    ),
)


def gathered() -> list[dict[str, Any]]:
    """All rows in the order of the page; of groups that were not measured now, those that were
    measured before.
    """
    rows: list[dict[str, Any]] = []
    for name in ORDER:
        path = RESULTS / f"{name}.json"
        rows += json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    measured = {row["group"] for row in rows}
    before = [
        row
        for row in json.loads((PAGES / "benchmarks.json").read_text(encoding="utf-8"))
        if row["group"] not in measured
    ]
    rows = [*before, *({**row, "note": without_paths(row["note"])} for row in rows)]
    return sorted(rows, key=lambda row: GROUPS.index(row["group"]))


def without_paths(note: str) -> str:
    """A note without the folders of the machine that it was written on."""
    return re.sub(r"(?<!\w)/[\w.+-]+(/[\w.+-]+)+", "...", note)[:300]


def shown_ratio(row: dict[str, Any]) -> str:
    return "not measured" if row["ratio"] is None else f"{row['ratio']:.3g}"


def distance(row: dict[str, Any]) -> float:
    """How far a row is from its target: 1 where it is met exactly, less where it is missed."""
    bound, ratio = float(row["target"].split()[-1]), float(row["ratio"])
    return bound / ratio if row["target"].startswith("at most") else ratio / bound


def table(rows: list[dict[str, Any]]) -> str:
    """Each row of the groups WHOLE; of the others how many rows meet their targets, and the row that
    misses its own by most.
    """
    whole = ["| work | against | ratio | target |", "| --- | --- | --- | --- |"]
    counted = [
        "| group | rows | targets met | missed by most | ratio | target |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for group, members in groupby(rows, key=lambda row: str(row["group"])):
        of_group = list(members)
        if group in WHOLE:
            whole += [
                f"| {row['work']} | {row['peer']} | {shown_ratio(row)} | {row['target']} |"
                for row in of_group
            ]
            continue
        missed = sorted((row for row in of_group if row["meets"] is False), key=distance)
        worst = "".join(
            f" {row['work']}, against {row['peer']} | {row['ratio']:.3g} | {row['target']} |"
            for row in missed[:1]
        )
        met = sum(row["meets"] is True for row in of_group)
        counted.append(f"| {group} | {len(of_group)} | {met} |{worst or '  |  |  |'}")
    return "\n".join([*whole, "", *counted])


def between(page: str, begin: str, end: str, body: str) -> str:
    """The page with what is between two marks replaced."""
    return f"{page[: page.index(begin)]}{begin}\n\n{body.strip()}\n\n{page[page.index(end) :]}"


def main() -> None:
    rows = gathered()
    (PAGES / "benchmarks.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shown = headlines(rows)
    (DOCS / "images" / "benchmarks.svg").write_text(chart(shown), encoding="utf-8")
    measured = [row for row in rows if row["ratio"] is not None]
    met = sum(bool(row["meets"]) for row in measured)
    said = (
        f"{met} of {len(measured)} measured rows meet their targets; {len(rows) - len(measured)}"
        " were not measured, and say why."
    )
    machine = (
        f"Measured with Python {platform.python_version()} on {platform.system()},"
        f" {platform.machine()}, processors only."
    )
    page = PAGES / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    text = between(text, *HEAD, headline_table(shown))
    page.write_text(
        between(text, *FIGURES, "\n".join([said, machine, "", table(rows)])), encoding="utf-8"
    )
    print(said)


if __name__ == "__main__":
    main()
