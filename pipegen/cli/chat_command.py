"""`pipegen chat`: ask the models of a file at the same time and show their answers side by side;
without a prompt, an interactive session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipegen.backends.servers.dry import wire_requests
from pipegen.cli.answers_shown import Speaker, StreamedAnswer, as_line, ask
from pipegen.cli.flags import flag_of
from pipegen.cli.outputs import say
from pipegen.cli.usage import refuse
from pipegen.config import Agent, BackendConfig, ChatConfig, Place, chat_from, read_chat
from pipegen.core.errors import CallFailed
from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField
from pipegen.core.pipe import Pipe
from pipegen.core.slots import is_ok
from pipegen.records import strict_json
from pipegen.records.codec import error_to_plain
from pipegen.records.engine_list import shown
from pipegen.records.options import flat_values
from pipegen.report.gallery import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.panel import Panel
    from rich.text import Text

    from pipegen.drivers.route import Route


NARROWEST = 32
"""The least width of a column in characters; answers that do not fit side by side go into further
rows.
"""


def under(answer: StreamedAnswer) -> str:
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


def plain(answer: StreamedAnswer) -> str:
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


def screen(answers: Sequence[StreamedAnswer], console: Console, *, whole: bool) -> RenderableType:
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


def _panel(answer: StreamedAnswer, body: list[Text], tallest: int) -> Panel:
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


def _text(answer: StreamedAnswer) -> Text:
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


LOG = Path(".pipegen") / "chat.jsonl"
"""Where `ui.logging_enabled` writes, below the current folder."""
INTERRUPTED = 130
P = TypeVar("P", bound=Pipe[Any, Any])


def chat_of(file: Path | None, model: str | None, **flags: str | None) -> ChatConfig:
    """The chat of a file, or of one model with its flags. Anything wrong is bad usage."""
    given = without_none({"model": model, **flags})
    if file is not None and given:
        refuse("goes without --config: the chat file sets it", flag_of(next(iter(given))))
    if file is None and model is None:
        refuse(
            "say which model to ask: --model NAME (a folder, a hub name, or embedded), or --config"
            " FILE",
            "--model",
        )
    try:
        if file is not None:
            return read_chat(file)
        type_of = flags.get("backend") or "hf"
        backend = {"type": type_of, "model": model, "base_url": flags.get("base_url")}
        values = {"backend": without_none(backend), "system_message": flags.get("system")}
        return chat_from(without_none(values), Place("--model"))
    except InvalidField as refusal:
        refuse(str(refusal), "--config" if file is not None else "--model")


def run_chat(
    chat: ChatConfig, prompt: str | None, *, as_json: bool, dry_run: bool, flag: str = "--config"
) -> int:
    """The exit code: 0 if all answered, 1 if some failed or reached the length limit while
    thinking, 130 if interrupted.
    """
    if dry_run and prompt is None:
        refuse("takes a PROMPT", "--dry-run")
    with contextlib.ExitStack() as stack:
        if dry_run and prompt is not None:
            routes = _opened(chat, stack, lambda backend: backend.first(dry=True), flag)
            lines = [
                _dry_line(agent, route, prompt)
                for agent, route in zip(chat.agents, routes, strict=True)
            ]
            print("\n".join(line for line, _ in lines), flush=True)
            return 0 if all(complete for _, complete in lines) else 1
        speakers = [
            Speaker(agent, route)
            for agent, route in zip(
                chat.agents, _opened(chat, stack, BackendConfig.open, flag), strict=True
            )
        ]
        with asyncio.Runner() as runner:
            turn = _ChatTurn(chat, speakers, runner, as_json=as_json)
            if prompt is None:
                return _session(turn)
            try:
                return 0 if turn.ask(prompt) else 1
            except KeyboardInterrupt:
                return INTERRUPTED


def _opened(
    chat: ChatConfig,
    stack: contextlib.ExitStack,
    open_backend: Callable[[BackendConfig], P],
    flag: str,
) -> list[P]:
    """The routes to the models of the chat; the stack releases them."""
    routes: list[P] = []
    for position, agent in enumerate(chat.agents):
        try:
            routes.append(open_backend(agent.backend))
        except (InvalidField, ImportError, CallFailed) as refusal:
            where = f"agents[{position}] ({agent.id}): " if flag == "--config" else ""
            refuse(f"{where}{refusal}", flag)
        stack.enter_context(routes[-1])
    return routes


def _dry_line(agent: Agent, route: Route, prompt: str) -> tuple[str, bool]:
    """One line of JSON with `agent`, `method`, `url` and `body` (or `error`), and whether there is
    a request.

    For a model in this process, `method` is `call`, `url` is null, and `body` is a line for
    `pipegen generate`.
    """
    messages = Speaker(agent, route).messages(prompt)
    engine: Any = route.engine
    if not hasattr(engine, "prepare"):
        options = without_none(flat_values(agent.backend.options))
        return (
            strict_json.dump(
                {
                    "agent": agent.id,
                    "method": "call",
                    "url": None,
                    "body": {"messages": messages, "options": options},
                }
            ),
            True,
        )
    slot = wire_requests(route, [{"messages": messages}], agent.backend.options, stream=True)[0]
    if not is_ok(slot):
        return strict_json.dump({"agent": agent.id, "error": error_to_plain(slot.failure())}), False
    request = slot.unwrap()
    url = engine.sender.access.url(request.path)
    return (
        strict_json.dump(
            {"agent": agent.id, "method": request.method, "url": url, "body": request.body}
        ),
        True,
    )


class _ChatTurn:
    """One prompt to all models, shown as the file and the flags say."""

    def __init__(
        self, chat: ChatConfig, speakers: list[Speaker], runner: asyncio.Runner, *, as_json: bool
    ) -> None:
        from rich.console import Console

        self.chat, self.speakers, self.runner, self.as_json = chat, speakers, runner, as_json
        self.console = Console()
        self.lively = (
            chat.ui.display_type == "rich_terminal" and self.console.is_terminal and not as_json
        )

    def ask(self, prompt: str) -> bool:
        """Ask, show and log; whether all answered. After an interrupt the answers so far are
        shown.
        """
        answers: list[StreamedAnswer] = []
        try:
            with _live(self.console, answers, shown=self.lively):
                self.runner.run(ask(self.speakers, prompt, answers.extend, lambda answer: None))
        finally:
            self._show(prompt, answers)
        return all(answer.answered for answer in answers)

    def _show(self, prompt: str, answers: list[StreamedAnswer]) -> None:
        finished = [answer for answer in answers if answer.slot is not None]
        if self.lively and answers:
            self.console.print(screen(answers, self.console, whole=True))
        for answer in [] if self.lively else finished:
            print(as_line(answer, brief=False) if self.as_json else plain(answer), flush=True)
        if self.chat.ui.logging_enabled and finished:
            _log(prompt, finished)


@contextlib.contextmanager
def _live(console: Console, answers: list[StreamedAnswer], *, shown: bool) -> Iterator[None]:
    """Draw the answers several times a second while they are generated. The caller draws the final
    ones.
    """
    if not shown:
        yield
        return
    from rich.live import Live

    with Live(
        console=console,
        get_renderable=lambda: screen(answers, console, whole=False),
        refresh_per_second=8,
        transient=True,
    ):
        yield


def _session(turn: _ChatTurn) -> int:
    """Prompts from the terminal or stdin until they end; each model keeps its conversation."""
    with contextlib.suppress(ImportError):  # line editing, if available
        import readline  # noqa: F401
    asks = sys.stdin.isatty()
    if asks:
        say(
            f"{len(turn.speakers)} model{'s' if len(turn.speakers) > 1 else ''}; /clear forgets the"
            " conversation, Ctrl-D ends"
        )
    all_good = True
    while True:
        try:
            prompt = input("> " if asks else "").strip()
        except EOFError:
            return 0 if all_good else 1
        except KeyboardInterrupt:
            return INTERRUPTED
        if prompt == "/clear":
            for speaker in turn.speakers:
                speaker.last = None
        elif prompt:
            try:
                all_good = turn.ask(prompt) and all_good
            except KeyboardInterrupt:
                say("interrupted; this prompt is forgotten")


def _log(prompt: str, answers: list[StreamedAnswer]) -> None:
    """Append the turn: a line for the prompt, and one for each answer. Only the owner can read the
    folder and the file.
    """
    lines = [
        strict_json.dump(
            {"time": datetime.now(UTC).isoformat(timespec="seconds"), "prompt": prompt}
        ),
        *(as_line(answer) for answer in answers),
    ]
    try:
        LOG.parent.mkdir(mode=0o700, exist_ok=True)
        with open(
            os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        ) as stream:
            stream.write("".join(f"{line}\n" for line in lines))
    except OSError as refusal:
        say(f"{LOG} cannot be written: {refusal.strerror}")
