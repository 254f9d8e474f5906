"""The few ratios that the benchmarks' page begins with, as a chart and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2
from typing import Any, NamedTuple

__all__ = ["HEADLINES", "MACHINES", "Headline", "chart", "headline_table", "headlines"]

MACHINES = {
    "A": "a CPU with 2 cores, x86-64 Linux, nothing else running",
    "B": "another CPU machine, x86-64 Linux",
}


class Headline(NamedTuple):
    """One ratio: in plain words, and which row of docs/contributing/benchmarks.json it is."""

    label: str
    peer: str
    row: tuple[str, str]
    elsewhere: tuple[float, str] | None = None
    """The ratio on another machine: the lower one is quoted."""


class Quoted(NamedTuple):
    """A headline with what is quoted: how many times as fast pipegen is, and on which machine."""

    label: str
    peer: str
    ratio: float
    machine: str


_SKEWED = "skewed lengths, embedded model"
HEADLINES = (
    Headline(
        "Text, answers of different lengths, tiny model",
        "transformers pipeline",
        (_SKEWED, "transformers pipeline"),
    ),
    Headline(
        "Text, answers of different lengths, tiny model",
        "lm-eval, batches sorted by length",
        (_SKEWED, "lm-eval HFLM"),
    ),
    Headline(
        "Text, answers of different lengths, SmolLM2-135M",
        "transformers generate_batch",
        ("skewed lengths, SmolLM2-135M", "transformers generate_batch"),
        elsewhere=(1.29, "B"),
    ),
    Headline(
        "Text, answers of equal lengths, tiny model",
        "fixed batches",
        ("equal lengths, batches of 8, embedded model", "static, arrival order"),
    ),
    Headline(
        "200 images of 512 to 4,096 pixels, tiny model",
        "transformers pipeline",
        (
            "200 images of 512 to 4,096 pixels, embedded model",
            "transformers image-text-to-text pipeline",
        ),
    ),
    Headline(
        "vLLM in this process, 256 chats, tiny model",
        "LLM.generate with ready ids",
        (
            "256 prompts of 32 tokens, embedded model: messages (template, tokenizer)",
            "LLM.generate",
        ),
    ),
    Headline(
        "Requests to a server, 1,000 at once",
        "AsyncOpenAI",
        ("pipegen.vllm_server, messages, 1,000 in flight", "AsyncOpenAI"),
    ),
    Headline(
        "Requests to a server, 256 at once",
        "a bare aiohttp loop",
        ("pipegen.vllm_server, messages, 256 in flight", "bare aiohttp"),
    ),
)


def headlines(rows: Sequence[dict[str, Any]]) -> list[Quoted]:
    """The headlines with their ratios of these rows, but for those that were not measured, such as
    vLLM's without its environment. Where a ratio was measured on two machines, the lower one.
    """
    measured = {(row["work"], row["peer"]): row["ratio"] for row in rows}
    quoted = []
    for label, peer, row, elsewhere in HEADLINES:
        if row not in measured:
            raise SystemExit(
                f"{row[0]}, against {row[1]}: no such row. An interrupted run left a part of its"
                " group in .bench, or a trial has fewer: remove the group's file there, or measure"
                " the group again"
            )
        if measured[row] is not None:
            ratio, machine = min(filter(None, ((measured[row], "A"), elsewhere)))
            quoted.append(Quoted(label, peer, ratio, machine))
    return quoted


def headline_table(shown: Sequence[Quoted]) -> str:
    lines = ["| work | times as fast | machine |", "| --- | --- | --- |"]
    lines += [
        f"| {one.label}<br>against {one.peer} | {one.ratio:.2f} | {one.machine} |" for one in shown
    ]
    return "\n".join(
        [*lines, "", *(f"- Machine {name}: {words}." for name, words in MACHINES.items())]
    )


def chart(shown: Sequence[Quoted]) -> str:
    """A bar for each ratio on a logarithmic scale, to the right of the line where pipegen is
    faster. It has its own background, light on any page.
    """
    width, step, one, doubling = 400, 64, 66, 66
    height = 40 + step * len(shown)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12" fill="#222222">'
        ),
        '<rect width="100%" height="100%" rx="6" fill="#fafafa"/>',
        '<text x="10" y="21" font-weight="bold">How many times as fast pipegen is, against:</text>',
    ]
    for place, (label, peer, ratio, machine) in enumerate(shown):
        y, length = 32 + place * step, log2(ratio) * doubling
        x, colour = (one, "#2e7d32") if length >= 0 else (one + length, "#c62828")
        lines.append(
            f'<text x="10" y="{y + 13}">{escape(peer)} <tspan fill="#666666">(machine'
            f" {machine})</tspan></text>"
        )
        lines.append(
            f'<text x="10" y="{y + 27}" font-size="11" fill="#666666">{escape(label)}</text>'
        )
        lines.append(f'<line x1="{one}" y1="{y + 31}" x2="{one}" y2="{y + 53}" stroke="#999999"/>')
        lines.append(
            f'<rect x="{x:.1f}" y="{y + 34}" width="{max(1.5, abs(length)):.1f}" height="16" rx="2"'
            f' fill="{colour}"/>'
        )
        words = f"{ratio:.2f}x as fast" if ratio >= 1 else f"{ratio:.2f}x: slower"
        lines.append(
            f'<text x="{max(one, one + length) + 6:.1f}" y="{y + 47}"'
            f' font-weight="bold">{words}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])
