"""Gather what the programs of this folder measured into docs/benchmarks.json, docs/benchmarks.md and a chart: `python tests/bench/report.py`."""

from __future__ import annotations

import json
import platform
import re
from html import escape
from itertools import groupby
from typing import Any

from measure import RESULTS, ROOT

DOCS = ROOT / "docs"
ORDER = ("text-equal", "text-skewed", "text-real", "images-skewed", "images-large", "stops", "alone-preparing", "alone-answers", "alone-memory")
ORDER += ("alone-starting", "vllm", "plugins", "servers")
TABLES = ("profile_passes-skewed", "profile_passes-real", "compiled-embedded", "compiled-smollm2")
"""Tables of a form of their own, which `profile_passes.py` and `compiled.py` write."""
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def gathered() -> list[dict[str, Any]]:
    """All rows that were measured, in the order of the page."""
    rows: list[dict[str, Any]] = []
    for name in ORDER:
        path = RESULTS / f"{name}.json"
        rows += json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [{**row, "note": without_paths(row["note"])} for row in rows]


def without_paths(note: str) -> str:
    """A note without the folders of the machine that it was written on."""
    return re.sub(r"(?<!\w)/[\w.+-]+(/[\w.+-]+)+", "...", note)[:300]


def figure(row: dict[str, Any]) -> str:
    return "not measured" if row["ratio"] is None else f"{row['ratio']:.3g} ± {row['spread']:.2g}" if row["spread"] else f"{row['ratio']:.3g}"


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for group, members in groupby(rows, key=lambda row: str(row["group"])):
        lines += [
            f"### {group}",
            "",
            "| work | against | ratio | target | met | pipegen | peer | memory, MiB | |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in members:
            met = {True: "yes", False: "**no**", None: ""}[row["meets"]]
            memory = " / ".join("-" if held is None else str(held) for held in row.get("memory", ()))
            cells = (row["work"], row["peer"], figure(row), row["target"], met, row["ours"], row["theirs"], memory, row["note"].replace("|", "/"))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def levels_table() -> str:
    """Requests a second, the client's processor time and its memory, client by client and level by level."""
    path = RESULTS / "servers-levels.json"
    if not path.exists():
        return ""
    entries = json.loads(path.read_text(encoding="utf-8"))
    levels = sorted({entry["in_flight"] for entry in entries})
    said = "Requests a second, and microseconds of the client's processor for one request, by the number in flight; and the most memory."
    lines = ["### Clients, level by level", "", said, "", "| client | " + " | ".join(f"{level:,}" for level in levels) + " | MiB |"]
    lines.append("| --- |" + " --- |" * (len(levels) + 1))
    for name, members in groupby(entries, key=lambda entry: str(entry["client"])):
        at = {entry["in_flight"]: entry for entry in members}
        cells = [f"{at[level]['rate']:.0f} ({at[level]['cpu'] * 1e6:.0f})" if level in at else "" for level in levels]
        lines.append(f"| {name} | " + " | ".join([*cells, str(max(entry["peak"] for entry in at.values()))]) + " |")
    return "\n".join([*lines, ""])


def chart(rows: list[dict[str, Any]]) -> str:
    """Every measured ratio over its target, on a logarithmic scale: to the right of the line is better than the target."""
    from math import log10

    shown = [row for row in rows if row["ratio"] and not row["target"].startswith("exactly")]
    height, left, width = 22, 560, 520
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height * len(shown) + 50}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{left + width / 2:.0f}" y="18" text-anchor="middle">against the target: worse on the left, better on the right</text>',
    ]
    for place, row in enumerate(shown):
        bound = float(row["target"].rsplit(" ", 1)[1])
        better = row["ratio"] / bound if row["target"].startswith("at least") else bound / max(row["ratio"], 1e-6)
        length = max(-1.0, min(1.0, log10(better))) * width / 2
        y, middle = 32 + place * height, left + width / 2
        x, colour = (middle, "#2e7d32") if length >= 0 else (middle + length, "#c62828")
        label = escape(f"{row['work']} / {row['peer']}"[:92])
        lines.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end" font-size="11">{label}</text>')
        lines.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{max(1.0, abs(length)):.1f}" height="{height - 8}" fill="{colour}"/>')
        lines.append(f'<text x="{left + width + 6}" y="{y + 13}" font-size="11">{row["ratio"]:.3g}</text>')
    middle, end = left + width / 2, 30 + height * len(shown)
    lines.append(f'<line x1="{middle}" y1="26" x2="{middle}" y2="{end}" stroke="#333333"/>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    rows = gathered()
    (DOCS / "benchmarks.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (DOCS / "images" / "benchmarks.svg").write_text(chart(rows), encoding="utf-8")
    measured = [row for row in rows if row["ratio"] is not None]
    met = sum(bool(row["meets"]) for row in measured)
    said = f"{met} of {len(measured)} measured rows meet their targets; {len(rows) - len(measured)} were not measured, and say why."
    machine = f"Measured with Python {platform.python_version()} on {platform.system()}, {platform.machine()}, processors only."
    page = DOCS / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    more = [(RESULTS / f"{name}.md").read_text(encoding="utf-8") for name in TABLES if (RESULTS / f"{name}.md").exists()]
    body = "\n".join([BEGIN, "", said, machine, "", table(rows), levels_table(), *more, END])
    page.write_text(text[: text.index(BEGIN)] + body + text[text.index(END) + len(END) :], encoding="utf-8")
    print(said)


if __name__ == "__main__":
    main()
