"""Gather what the programs of this folder measured into docs/benchmarks.json, docs/benchmarks.md
and a chart: `python tests/bench/report.py`.
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
ORDER = (
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
ORDER += ("alone-starting", "start", "vllm", "plugins", "forms", "flow", "shared", "servers")
GROUPS = (
    "Hugging Face, text",
    "Hugging Face, images",
    "Stop strings",
    "pipegen alone",
    "A cold start",
    "vLLM, in process",
    "Plugins",
    "The form of answers",
)
GROUPS += ("Continuous feeding", "Shared beginnings", "Servers")
TABLES = (
    "profile_passes-skewed",
    "profile_passes-real",
    "compiled-embedded",
    "compiled-smollm2",
    "gpu",
)
"""Tables of a form of their own, which `profile_passes.py`, `compiled.py` and
`tests/gpu/everything.py` write.
"""
HEAD, FIGURES = (
    ("<!-- headlines -->", "<!-- end of headlines -->"),
    (
        "<!-- figures -->",
        "<!-- end of figures -->",
    ),
)
FOLDED = re.compile(r'<details markdown id="([^"]+)">\n.*?</details>\n', re.DOTALL)


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
        for row in json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
        if row["group"] not in measured
    ]
    rows = [*before, *({**row, "note": without_paths(row["note"])} for row in rows)]
    return sorted(rows, key=lambda row: GROUPS.index(row["group"]))


def without_paths(note: str) -> str:
    """A note without the folders of the machine that it was written on."""
    return re.sub(r"(?<!\w)/[\w.+-]+(/[\w.+-]+)+", "...", note)[:300]


def figure(row: dict[str, Any]) -> str:
    return (
        "not measured"
        if row["ratio"] is None
        else f"{row['ratio']:.3g} ± {row['spread']:.2g}"
        if row["spread"]
        else f"{row['ratio']:.3g}"
    )


def folded(title: str, body: str) -> str:
    """A part of the page that a reader opens."""
    anchor = re.sub("[^a-z]+", "-", title.lower())[:40].strip("-")
    return (
        "<details markdown"
        f' id="{anchor}">\n<summary>{title}</summary>\n\n{body.strip()}\n\n</details>\n'
    )


def table(rows: list[dict[str, Any]]) -> str:
    """A folded table for each group: what was measured, the ratio and its target, and what is
    behind it.
    """
    parts = []
    for group, members in groupby(rows, key=lambda row: str(row["group"])):
        lines = ["| work | ratio | measured |", "| --- | --- | --- |"]
        for row in members:
            met = {True: "met", False: "**missed**", None: ""}[row["meets"]]
            memory = " / ".join(
                "-" if held is None else str(held) for held in row.get("memory", ())
            )
            seconds = f"{row['ours']} / {row['theirs']}" if row["ours"] else ""
            behind = "; ".join(
                filter(
                    None,
                    (seconds, f"{memory} MiB" if memory else "", row["note"].replace("|", "/")),
                )
            )
            lines.append(
                f"| {row['work']}<br>against {row['peer']} | {figure(row)}<br>{row['target']}:"
                f" {met} | {behind} |"
            )
        parts.append(
            folded(group, "\n".join(['<div class="stack" markdown>', "", *lines, "", "</div>"]))
        )
    return "\n".join(parts)


def levels_table() -> str:
    """Requests a second, the client's processor time and its memory, client by client and level by
    level.
    """
    path = RESULTS / "servers-levels.json"
    if not path.exists():
        return ""
    entries = json.loads(path.read_text(encoding="utf-8"))
    levels = sorted({entry["in_flight"] for entry in entries})
    said = (
        "Requests a second, and microseconds of the client's processor for one request, by the"
        " number in flight; and the most memory."
    )
    lines = [said, "", "| client | " + " | ".join(f"{level:,}" for level in levels) + " | MiB |"]
    lines.append("| --- |" + " --- |" * (len(levels) + 1))
    for name, members in groupby(entries, key=lambda entry: str(entry["client"])):
        at = {entry["in_flight"]: entry for entry in members}
        cells = [
            f"{at[level]['rate']:.0f} ({at[level]['cpu'] * 1e6:.0f})" if level in at else ""
            for level in levels
        ]
        lines.append(
            f"| {name} | "
            + " | ".join([*cells, str(max(entry["peak"] for entry in at.values()))])
            + " |"
        )
    return folded("Clients, level by level", "\n".join(lines))


def between(page: str, begin: str, end: str, body: str) -> str:
    """The page with what is between two marks replaced."""
    return f"{page[: page.index(begin)]}{begin}\n\n{body.strip()}\n\n{page[page.index(end) :]}"


def main() -> None:
    rows = gathered()
    (DOCS / "benchmarks.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
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
    page = DOCS / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    more = [
        (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        for name in TABLES
        if (RESULTS / f"{name}.md").exists()
    ]
    more = [
        folded(title.removeprefix("### "), body)
        for title, _, body in (one.partition("\n") for one in more)
    ]
    groups = table(rows)
    # those not measured now stay
    others = {
        match[1]: match[0]
        for part in (text, levels_table(), *more)
        for match in FOLDED.finditer(part)
    }
    kept = [body for name, body in others.items() if f'id="{name}"' not in groups]
    text = between(text, *HEAD, headline_table(shown))
    page.write_text(
        between(text, *FIGURES, "\n".join([said, machine, "", groups, *kept])), encoding="utf-8"
    )
    print(said)


if __name__ == "__main__":
    main()
