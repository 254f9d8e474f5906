"""`pipegen estimate`: what a run of these requests will take."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import islice
from typing import Any

from pipegen.cli.plugins import attached
from pipegen.cli.progress_line import shown_time
from pipegen.cli.sources import Asked, open_source
from pipegen.cli.usage import open_route, refuse
from pipegen.core.slots import is_ok
from pipegen.io.tables import TableError
from pipegen.records import strict_json
from pipegen.report.estimate import Estimate, prepared
from pipegen.report.gallery import printable
from pipegen.report.lines import Rows, lines_of

_TOGETHER = 32
_SHOWN = 10
"""How many over-long requests are shown."""


def price_of(text: str | None) -> tuple[float, float] | None:
    """The prices of `--price IN,OUT`."""
    if text is None:
        return None
    try:
        prompt, generated = (float(part) for part in text.split(","))
    except ValueError:
        refuse(
            "takes two prices for a million tokens, prompt and generated, such as 0.15,0.60, not"
            f" {text!r}",
            "--price",
        )
    if not (0 <= prompt < 1e12 and 0 <= generated < 1e12):
        refuse(f"takes prices of at least 0, not {text!r}", "--price")
    return prompt, generated


def run_estimate(
    source: str | None,
    asked: Asked,
    price: tuple[float, float] | None,
    speed: float | None,
    *,
    as_json: bool,
) -> int:
    """Print the estimate. The exit code: 0 if every request has a prompt that fits, else 1."""
    if source is None and asked.question.prompt is None:
        refuse(
            "say what would be asked: IN, a file or a folder, or --prompt with one question", "IN"
        )
    if speed is not None and not 0 < speed < 1e12:
        refuse(f"takes tokens a second, above 0, not {speed}", "--speed")
    estimate = Estimate()
    with contextlib.ExitStack() as stack:
        opened = open_source(
            source, asked.question._replace(overwrite=True), asked.images, asked.columns, stack
        )
        route = stack.enter_context(attached(open_route(asked.load), asked.plugins))
        try:
            while batch := list(islice(opened.items, _TOGETHER)):
                requests = asked.admission.batch([item.slot for item in batch])
                first = [
                    slot.map(
                        lambda first_request: (
                            replace(first_request, turns=())
                            if first_request.turns
                            else first_request
                        )
                    )
                    for slot in requests
                ]
                prompts = prepared(route, tuple(first))
                for item, request, (slot, samples) in zip(batch, requests, prompts, strict=True):
                    if not is_ok(slot) and getattr(slot.failure(), "option", None) == "token_ids":
                        refuse(
                            f"{slot.failure().message}: take --backend hf, or a token server, with"
                            " the same model",
                            "--backend",
                        )
                    turns = len(request.unwrap().turns) if is_ok(request) else 0
                    estimate.add(str(item.origin.id), slot, samples, turns)
        except TableError as refusal:
            refuse(str(refusal), "IN")
    plain = estimate.plain(price, speed)
    print(strict_json.dump(plain) if as_json else printable(in_words(plain)))
    return 1 if estimate.errors else 0


_ROWS: Rows = (
    ("", "requests          {requests:,}"),
    ("longest_prompt", "prompt tokens     {prompt_tokens:,}, {mean_prompt_tokens:,} a request"),
    ("longest_prompt", "longest prompt    {longest_prompt[tokens]:,} ({longest_prompt[id]})"),
    ("images", "images            {images:,}, with {image_tokens:,} of the prompt tokens"),
    (
        "",
        (
            "shared prefixes   {shared_prefix_share:.1%} of the prompt tokens: a prefix cache saves"
            " {shared_prefix_tokens:,}"
        ),
    ),
    ("", "generated tokens  at most {most_completion_tokens:,} (max_new_tokens of each)"),
    (
        "later_turns",
        "later turns       {later_turns:,}: their answers are counted, and not their prompts",
    ),
    (
        "most_cost",
        "cost              at most {most_cost:,.2f}, of it {prompt_cost:,.2f} for the prompts",
    ),
    ("time", "time              at most {time}"),
    ("failed", "{failed:,} would fail:"),
    ("failures", "  {count:,} {kind}, the first is {first}"),
    ("long", "  too long: {long}"),
)


def in_words(plain: dict[str, Any]) -> str:
    """The estimate for a reader."""
    long = [
        f"{row['id']} ({'not counted' if row['tokens'] is None else format(row['tokens'], ',')})"
        for row in plain["too_long"]
    ]
    values = plain | {
        "time": shown_time(plain["most_seconds"]) if "most_seconds" in plain else None,
        "failures": [{"kind": kind, **failure} for kind, failure in plain["errors"].items()],
        "long": ", ".join([*long[:_SHOWN], *(["..."] if len(long) > _SHOWN else [])]),
    }
    return "\n".join(lines_of(values, _ROWS))
