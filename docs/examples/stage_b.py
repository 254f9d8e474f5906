"""Stage B: rollouts over tickets, and one reflection over what came of them.

Each line of the input is a ticket, {"id": "T-1", "text": "..."}. Each is judged under three
sampling settings, several times with a seed for each, and each answer must be a verdict of two
lines: `Verdict: pass` (or fail), and `Reason: ...`. Tickets whose prompt is too long are dropped
and named. At last one long prompt, packed with as many judged tickets as fit into its tokens, asks
where the verdicts differ, and a second turn what to learn from that.

    python docs/examples/stage_b.py --model embedded docs/examples/tickets.jsonl

With --job FOLDER finished rollouts are kept there: after a kill, the same command goes on.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track

import pipegen as pg
from pipegen.records import strict_json

SETTINGS = {
    "cool": pg.GenerationOptions(temperature=0.3, top_p=0.9),
    "warm": pg.GenerationOptions(temperature=0.7, top_p=0.95),
    "hot": pg.GenerationOptions(temperature=1.0, top_p=1.0),
}
JUDGE = (
    "Judge the ticket. Answer in two lines: `Verdict: pass` or `Verdict: fail`, then `Reason: ` and"
    " one sentence."
)
REVIEW = (
    "Below are tickets with the verdicts that they got. Where do the verdicts differ, and why?"
    " Answer in one sentence."
)
REFLECT = "What rule would have made the verdicts agree? Answer in one sentence."
REFLECTION_TOKENS = 128
"""How long each of the two answers of the reflection may be."""
MARKERS = ("<|im_start|>assistant", "assistant\n", "Assistant:")
VERDICT = re.compile(r"Verdict: (pass|fail)\nReason: (\S[^\n]*)")

P = TypeVar("P")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Verdict:
    """The answer of a rollout."""

    verdict: str
    reason: str


@dataclass(frozen=True)
class Rollout:
    """One answer to one ticket: under which setting, with which seed, and the verdict or why there
    is none.
    """

    ticket: str
    setting: str
    seed: int
    slot: pg.Slot[Verdict]


def verdict_of(result: pg.GenerationResult) -> pg.Slot[Verdict]:
    """The verdict of an answer: exactly two lines, or a failure that shows what there was
    instead.
    """
    found = VERDICT.fullmatch(result.text.strip())
    if found is None:
        return pg.Failure(
            pg.StageFailed(
                f"not a verdict: {result.text!r:.200}",
                stage="verdict",
                hint="the answer must be the two lines and nothing else",
            )
        )
    return pg.Success(Verdict(found[1], found[2]))


def judging(route: pg.Route) -> pg.Route:
    """The route, without the assistant's markers. A job keeps what it answers; the verdict is read
    from that.
    """
    return pg.attach(route, pg.plugins.strip_prefix(MARKERS))


def request_of(key: str, system: str, text: str) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(
        id=key, messages=[{"role": "system", "content": system}, {"role": "user", "content": text}]
    )


def cells_of(samples: int, seed: int) -> dict[tuple[str, int], pg.GenerationOptions]:
    """The grid: every setting with every seed, by both."""
    return {
        (name, own): replace(setting, seed=own)
        for name, setting in SETTINGS.items()
        for own in range(seed, seed + samples)
    }


def rollouts(
    route: pg.Route,
    texts: Mapping[str, str],
    cells: Mapping[tuple[str, int], pg.GenerationOptions],
    options: pg.GenerationOptions | None = None,
    batch: int = 32,
    job: Path | None = None,
) -> Iterator[Rollout]:
    """Every ticket in every cell of the grid, in that order; kept in the job's folder, where there
    is one.
    """
    asked = (
        ((key, *cell), request)
        for key, text in texts.items()
        for cell, request in pg.grid(request_of(key, JUDGE, text), cells).items()
    )
    how: dict[str, Any] = {"in_flight": 4 * batch}
    slots = (
        pg.imap_keyed(route, asked, options, **how)
        if job is None
        else pg.job_keyed(route, asked, job / "rollouts", options, **how)
    )
    for key, slot in slots:
        yield Rollout(*key, slot.bind(verdict_of))


def pack(pieces: Iterable[P], costs: Iterable[int], budget: int) -> tuple[list[P], list[P]]:
    """The pieces that fit into the budget, taken in their order, and those left out; a piece too
    large does not keep later ones out.

    >>> pack("abcd", [3, 9, 2, 1], budget=6)
    (['a', 'c', 'd'], ['b'])
    """
    kept: list[P] = []
    left: list[P] = []
    for piece, cost in zip(pieces, costs, strict=True):
        fits = cost <= budget
        (kept if fits else left).append(piece)
        budget -= cost if fits else 0
    return kept, left


def reflection(
    route: pg.Route, cases: Mapping[str, str], budget: int, job: Path | None = None
) -> dict[str, Any]:
    """Two turns over one prompt: a review of the cases, and what it means. Both prompts have at most
    `budget` tokens. Each case is counted once, by itself; the growing prompt never.
    """
    frame = pg.count_tokens(route, frame_of("")).unwrap() + REFLECTION_TOKENS
    costs = [pg.count_tokens(route, {"prompt": case}).unwrap() for case in cases.values()]
    kept, left = pack(cases, costs, budget - frame)
    asked = replace(
        request_of("reflection", REVIEW, "".join(cases[key] for key in kept)),
        turns=(pg.Message(role="user", content=REFLECT),),
    )
    options = pg.GenerationOptions(max_new_tokens=REFLECTION_TOKENS, max_prompt_tokens=budget)
    talk = pg.turns(route)  # the second turn goes on by the ids of the first
    (slot,) = (
        pg.run(talk, [asked], options)
        if job is None
        else pg.job(talk, [asked], job / "reflection", options)
    )
    record = {"kind": "reflection", "packed": kept, "left_out": left}
    if not pg.is_ok(slot):
        return {**record, "ok": False, "error": pg.error_to_plain(slot.failure())}
    review, rule = slot.unwrap().rounds
    return {
        **record,
        "ok": True,
        "prompt_tokens": rule.prompt_tokens,
        "review": review.text,
        "text": rule.text,
    }


def frame_of(review: str) -> pg.TextGenerationRequest:
    """The prompt of the second turn, without the cases."""
    first = request_of("reflection", REVIEW, "")
    answer = pg.Message(role="assistant", content=review)
    second = pg.Message(role="user", content=REFLECT)
    return replace(first, messages=(*(first.messages or ()), answer, second))


def cases_of(texts: Mapping[str, str], made: Iterable[Rollout]) -> dict[str, str]:
    """One piece of text for each ticket with its votes; those that split the rollouts come
    first.
    """
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for rollout in made:
        votes[rollout.ticket][
            rollout.slot.map(lambda answer: answer.verdict).value_or("unreadable")
        ] += 1
    split_first = sorted(votes, key=lambda key: max(votes[key].values()) / votes[key].total())
    return {
        key: (
            f"Ticket {key}: {texts[key]}\nVotes:"
            f" {', '.join(f'{n} {word}' for word, n in votes[key].most_common())}\n\n"
        )
        for key in split_first
    }


def is_dropped(rollout: Rollout) -> bool:
    """Whether its ticket is too long to be judged at all."""
    return not pg.is_ok(rollout.slot) and isinstance(rollout.slot.failure(), pg.PromptTooLong)


def line_of(rollout: Rollout) -> dict[str, Any]:
    record = {
        "kind": "rollout",
        "ticket": rollout.ticket,
        "setting": rollout.setting,
        "seed": rollout.seed,
    }
    if not pg.is_ok(rollout.slot):
        return {**record, "ok": False, "error": pg.error_to_plain(rollout.slot.failure())}
    return {**record, "ok": True, **asdict(rollout.slot.unwrap())}


def say(line: Mapping[str, Any]) -> None:
    print(strict_json.dump(line), flush=True)


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
    tickets: Annotated[
        Path,
        typer.Argument(help="JSON Lines of tickets: id and text.", exists=True, dir_okay=False),
    ],
    model: Annotated[str, typer.Option(help="A local folder, a hub name, or `embedded`.")],
    backend: Annotated[
        str, typer.Option(help=f"The engine: {' or '.join(pg.backends.BACKENDS)}.")
    ] = "hf",
    samples: Annotated[int, typer.Option(min=1, help="Rollouts for each ticket and setting.")] = 4,
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of the first sample; the next has the next.")
    ] = 17,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Tickets with longer prompts are dropped.")
    ] = 2048,
    reflection_tokens: Annotated[
        int, typer.Option(min=1, help="How long the prompt of the reflection may be.")
    ] = 3072,
    batch: Annotated[int, typer.Option(min=1, help="Rollouts in one batch.")] = 32,
    job: Annotated[
        Path | None, typer.Option(help="A folder that keeps what is finished.", file_okay=False)
    ] = None,
) -> None:
    try:
        lines = [*lines_of(tickets)]
        route = pg.backends.load(pg.ModelLoadConfig(model=model, backend=backend, batch_size=batch))
        judge = judging(route)
        if job is not None:
            job.mkdir(parents=True, exist_ok=True)
    except (ValueError, ImportError, OSError, pg.CallFailed) as refusal:
        # a bad value; a missing extra; a model that cannot be read
        raise typer.BadParameter(str(refusal)) from None
    texts, cells = {str(line["id"]): str(line["text"]) for line in lines}, cells_of(samples, seed)
    options = pg.GenerationOptions(
        max_new_tokens=96,
        max_prompt_tokens=max_prompt_tokens,
        decode=pg.DecodeOptions(strip_whitespace=True),
    )
    console = Console(stderr=True)
    dropped: set[str] = set()
    made: list[Rollout] = []
    with route:
        total = len(texts) * len(cells)
        for rollout in track(
            rollouts(judge, texts, cells, options, batch, job),
            "rollouts",
            total,
            console=console,
            disable=not console.is_terminal,
        ):
            if not is_dropped(rollout):
                say(line_of(rollout))
                made.append(rollout)
            elif rollout.ticket not in dropped:  # once, and not for every cell
                dropped.add(rollout.ticket)
                say(
                    {
                        "kind": "dropped",
                        "ticket": rollout.ticket,
                        "error": pg.error_to_plain(rollout.slot.failure()),
                    }
                )
                print(
                    f"dropped {rollout.ticket}: {rollout.slot.failure().message}", file=sys.stderr
                )
        if made:
            say(reflection(route, cases_of(texts, made), reflection_tokens, job))
    readable = sum(pg.is_ok(rollout.slot) for rollout in made)
    print(
        f"{len(texts)} tickets, {len(texts) - len(dropped)} judged: {len(made)} rollouts,"
        f" {readable} of them verdicts",
        file=sys.stderr,
    )


if __name__ == "__main__":
    app()
