"""An agent: a model that answers questions about prices with two tools.

Each line of the input is a question, {"id": "Q-1", "question": "...", "expected": "..."}. The model
may call `price` and `add`, and goes on with what they answered; a tool that fails tells the model
why. With `--rollouts FILE.parquet` the exact ids of each conversation are written for a trainer,
with a reward: whether the answer holds what was expected.

    python docs/examples/agent.py --model embedded docs/examples/prices.jsonl

With --job FOLDER what is answered is kept there, tools included: after a kill, the same command
goes on, in the middle of conversations too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import pipegen as pg
from pipegen.records import strict_json

SYSTEM = "Call the tools for what you do not know."
PRICES = {"apple": 2, "book": 18, "chair": 30, "lamp": 12, "pen": 3, "table": 145, "tea": 7}

Asking = pg.Pipe[pg.GenerationRequest, pg.GenerationResult]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def price(item: Annotated[str, "the name of an item"]) -> int:
    """What an item costs."""
    if item not in PRICES:
        raise LookupError(f"there is no {item}")
    return PRICES[item]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def agent(route: Asking) -> Asking:
    """The route with the tools: every request is a conversation."""
    return pg.turns(route, pg.tools([price, add], limit=6, timeout=30))


def request_of(line: Mapping[str, Any]) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(
        id=str(line["id"]),
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": str(line["question"])},
        ],
    )


def answers(
    pipe: Asking,
    lines: Iterable[Mapping[str, Any]],
    options: pg.GenerationOptions | None = None,
    job: Path | None = None,
) -> Iterator[tuple[Mapping[str, Any], pg.Slot[pg.GenerationResult]]]:
    """Each line with its slot, in order; kept in the job's folder, where there is one."""
    asked = ((line, request_of(line)) for line in lines)
    return (
        pg.imap_keyed(pipe, asked, options)
        if job is None
        else pg.job_keyed(pipe, asked, job, options)
    )


def record_of(line: Mapping[str, Any], slot: pg.Slot[pg.GenerationResult]) -> dict[str, Any]:
    """What is written of an answer: its text, and the calls of all turns."""
    if not pg.is_ok(slot):
        return {"id": line["id"], "ok": False, "error": pg.error_to_plain(slot.failure())}
    result = slot.unwrap()
    calls = [call["function"] for turn in result.rounds for call in turn.tool_calls]
    return {
        "id": line["id"],
        "ok": True,
        "text": result.text,
        "calls": [f"{call['name']}({call['arguments']})" for call in calls],
        "end": result.rounds_end,
    }


def reward_of(line: Mapping[str, Any], slot: pg.Slot[pg.GenerationResult]) -> float:
    return float(pg.is_ok(slot) and str(line.get("expected")) in slot.unwrap().text)


def lines_of(path: Path) -> Iterator[Any]:
    """The values of a file of JSON Lines. Raises `ValueError`, which names the line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        try:
            if line.strip():
                yield strict_json.load(line)
        except ValueError as refusal:
            raise ValueError(f"{path}, line {number}: {refusal}") from None


@app.command(help=__doc__)
def main(
    questions: Annotated[
        Path, typer.Argument(help="JSON Lines of questions.", exists=True, dir_okay=False)
    ],
    model: Annotated[str, typer.Option(help="A local folder, a hub name, or `embedded`.")],
    backend: Annotated[
        str, typer.Option(help=f"The engine: {' or '.join(pg.backends.BACKENDS)}.")
    ] = "hf",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="How long an answer may be.")] = 256,
    batch: Annotated[int, typer.Option(min=1, help="Answers in one batch.")] = 32,
    job: Annotated[
        Path | None, typer.Option(help="A folder that keeps what is finished.", file_okay=False)
    ] = None,
    rollouts: Annotated[
        Path | None, typer.Option(help="A .parquet file for a trainer.", dir_okay=False)
    ] = None,
) -> None:
    try:
        lines = [*lines_of(questions)]
        route = pg.backends.load(pg.ModelLoadConfig(model=model, backend=backend, batch_size=batch))
    except (ValueError, ImportError, OSError, pg.CallFailed) as refusal:
        # a bad value; a missing extra; a model that cannot be read
        raise typer.BadParameter(str(refusal)) from None
    options = pg.GenerationOptions(
        max_new_tokens=max_new_tokens, logprobs=True if rollouts is not None else None
    )
    with agent(route) as pipe:
        made = []
        for line, slot in answers(pipe, lines, options, job):
            print(strict_json.dump(record_of(line, slot)), flush=True)
            made.append((line, slot))
    if rollouts is not None:
        rows = (
            (
                {"id": str(line["id"]), "reward": reward_of(line, slot)},
                slot.map(lambda result: result.rollout),
            )
            for line, slot in made
        )
        pg.write_table(rollouts, rows, kind=pg.Rollout)
    answered = sum(pg.is_ok(slot) for _, slot in made)
    print(f"{len(made)} questions, {answered} answered", file=sys.stderr)
    raise typer.Exit(0 if answered == len(made) else 1)


if __name__ == "__main__":
    app()
