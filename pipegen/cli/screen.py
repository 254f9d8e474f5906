"""Answers side by side in the terminal: reasoning dimmed, token count and speed below each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipegen.cli.answers_shown import Answer
from pipegen.config import Agent
from pipegen.records.engine_list import shown
from pipegen.report.gallery import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.panel import Panel
    from rich.text import Text


NARROWEST = 32
"""The least width of a column in characters; answers that do not fit side by side go into further
rows.
"""


def under(answer: Answer) -> str:
    """The line below an answer: its tokens, its speed, how it ended, and the engine; of a fallback,
    what went wrong before it.
    """
    result, facts, engine_name = (
        answer.result,
        answer.facts(),
        shown(answer.speaker.agent.backend.type),
    )
    if answer.slot is None:
        return "…" if answer.first is None else "writing…"
    if result is None:
        return f"failed after {facts['seconds']:.1f} s · {engine_name}"
    count = result.completion_tokens
    facts_shown = [
        f"{count} token{'' if count == 1 else 's'}",
        f"{facts['tokens_per_second']:.1f}/s",
        result.finish.value,
    ]
    facts_shown += [f"one of {len(result.samples)}"] if len(result.samples) > 1 else []
    facts_shown += (
        [f"first {facts['seconds_to_first']:.1f} s"]
        if facts["seconds_to_first"] is not None
        else []
    )
    facts_shown += (
        [f"{type(result.tried[-1]).__name__} of {engine_name}", shown(result.route)]
        if result.tried
        else [engine_name]
    )
    return " · ".join(facts_shown)


def name_of(agent: Agent) -> str:
    """The agent's name on the screen: the engine's name if its id is only its type."""
    kind = agent.backend.type
    return (
        shown(kind) + agent.id.removeprefix(kind)
        if re.fullmatch(rf"{kind}(-\d+)?", agent.id)
        else agent.id
    )


def plain(answer: Answer) -> str:
    """The answer as plain text, for files and pipes, with the reasoning first."""
    agent = answer.speaker.agent
    head = f"{name_of(agent)} ({agent.backend.model})"
    error = answer.error
    if error is not None:
        return printable(
            f"{head}\n{type(error).__name__}: {error.message}\n{error.hint}\n[{under(answer)}]\n"
        )
    reasoning, text = answer.parts()
    thought = f"[reasoning]\n{reasoning}\n[answer]\n" if reasoning else ""
    answer_text = "\n".join(
        (answer.note or text, *(f"[tool call] {call}" for call in answer.calls))
    )
    return printable(f"{head}\n{thought}{answer_text}\n[{under(answer)}]\n")


def screen(answers: Sequence[Answer], console: Console, *, whole: bool) -> RenderableType:
    """The answers in columns. Unless `whole`, only the last lines that fit the terminal."""
    from rich.table import Table

    across = max(1, min(len(answers), console.width // NARROWEST))
    down = max(1, -(-len(answers) // across))
    first = None if whole else -max(3, (console.height - 1) // down - 2)
    table = Table.grid(expand=True)
    for _ in range(across):
        table.add_column(ratio=1)
    width = max(1, console.width // across - 4)
    bodies = [list(_text(answer).wrap(console, width))[first:] for answer in answers]
    for row in range(0, len(answers), across):
        tallest = max(len(body) for body in bodies[row : row + across])
        table.add_row(
            *(
                _panel(answer, body, tallest)
                for answer, body in zip(
                    answers[row : row + across], bodies[row : row + across], strict=True
                )
            )
        )
    return table


def _panel(answer: Answer, body: list[Text], tallest: int) -> Panel:
    from rich.panel import Panel
    from rich.text import Text

    agent = answer.speaker.agent
    title = Text.assemble(
        (printable(name_of(agent)), "bold"), " ", (printable(agent.backend.model), "dim")
    )
    border = "blue" if answer.error is None else "red"
    below = Text(under(answer), style="dim")
    return Panel(
        Text("\n").join(body),
        title=title,
        title_align="left",
        subtitle=below,
        subtitle_align="left",
        border_style=border,
        height=tallest + 2,
    )


def _text(answer: Answer) -> Text:
    from rich.text import Text

    error = answer.error
    if error is not None:
        return Text.assemble(
            (printable(f"{type(error).__name__}: {error.message}"), "red"),
            "\n",
            (printable(error.hint), "dim"),
        )
    reasoning, text = answer.parts()
    calls = "".join(f"\n[tool call] {call}" for call in answer.calls)
    answer_text = (
        (answer.note, "red") if answer.note else printable((text.strip() + calls).lstrip())
    )
    return (
        Text.assemble((printable(reasoning.strip()), "dim italic"), "\n\n", answer_text)
        if reasoning
        else Text.assemble(answer_text)
    )
