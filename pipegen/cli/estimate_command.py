"""`pipegen estimate`: the exact tokens of a run's prompts, and the most that it may generate.
No engine is called.

A prefix counts as shared where an earlier request has it too, in whole blocks of `BLOCK` tokens and
with the same images: that is what a prefix cache saves.

>>> estimate = Estimate()
>>> estimate.shared_of(range(40)), estimate.shared_of([*range(33), 7]), estimate.shared_of([1, 2])
(0, 32, 0)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pipegen.cli.outputs import ErrorCounts, Rows, lines_of
from pipegen.cli.plugins import attached
from pipegen.cli.progress_line import shown_time
from pipegen.cli.sources import RunSettings, open_source
from pipegen.cli.usage import open_route, refuse
from pipegen.core.errors import PromptTooLong
from pipegen.core.pipe import Pipe, identity
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.route import Route
from pipegen.io.forms import TableError
from pipegen.jobs.row_keys import NumberCounts
from pipegen.records import strict_json
from pipegen.records.answer_parts import common_prefix
from pipegen.records.engine_list import shown
from pipegen.records.requests import GenerationRequest
from pipegen.report.gallery import printable
from pipegen.stages import Encoded
from pipegen.stages.gather_samples import expand

BLOCK = 16
"""Tokens that are shared together: the block of vLLM's prefix cache."""
LISTED = 1000
"""The most ids of over-long requests that are kept."""


def prepared(route: Route, batch: Batch[GenerationRequest]) -> list[tuple[Slot[Encoded], int]]:
    """The prompts of requests, as the engine of the route would get them, each with the samples
    asked for. Its weights are not loaded.
    """
    start: Pipe[Any, Any] = identity()
    before = start.with_parts(itertools.takewhile(lambda part: part.backend is None, route.parts))
    rows = [slot.map(expand) for slot in batch]
    prompts = before.apply(tuple([slot.map(lambda samples: samples[0]) for slot in rows]))
    counts = [slot.map(len).value_or(1) for slot in rows]
    return list(zip(prompts, counts, strict=True))


@dataclass
class Estimate(ErrorCounts):
    """The counts of the requests so far."""

    requests: int = 0
    images: int = 0
    prompt_tokens: int = 0
    image_tokens: int = 0
    """Those of the prompt tokens that stand for images."""
    shared_tokens: int = 0
    """Those of the prompt tokens that an earlier request begins with too."""
    completion_tokens: int = 0
    """The most that may be generated, of all samples and turns together."""
    later_turns: int = 0
    """Turns that are asked after the first: what their prompts will have is not known."""
    longest: tuple[str, int] = ("", 0)
    """The id of the request with the longest prompt, and its tokens."""
    too_long: list[tuple[str, int | None]] = field(default_factory=list)
    """Requests whose prompts, or answers, the model has no room for, with the tokens of their
    prompts, where these were counted.
    """
    _blocks: NumberCounts = field(default_factory=NumberCounts, repr=False)

    def add(self, name: str, slot: Slot[Encoded], samples: int = 1, turns: int = 0) -> None:
        """Count a request, so many samples of its answer, and so many turns after it."""
        self.requests += 1
        if not is_ok(slot):
            error = slot.failure()
            self.count_error(name, error)
            if isinstance(error, PromptTooLong) and len(self.too_long) < LISTED:
                self.too_long.append((name, error.prompt_tokens))
            return
        encoded = slot.unwrap()
        prompt, options = encoded.prompt, encoded.options
        tokens = len(prompt.token_ids)
        self.prompt_tokens += tokens
        self.images += len(prompt.images)
        self.image_tokens += sum(image.tokens for image in prompt.images)
        self.completion_tokens += (options.max_new_tokens or 0) * samples * (1 + turns)
        self.later_turns += turns
        self.longest = max(self.longest, (name, tokens), key=lambda pair: pair[1])
        before = (
            common_prefix(prompt.token_ids, prompt.compact_token_ids) if prompt.images else tokens
        )
        self.shared_tokens += self.shared_of(
            prompt.token_ids, before, tuple(image.digest for image in prompt.images)
        )

    def shared_of(
        self, ids: Sequence[int], before_images: int | None = None, images: Sequence[str] = ()
    ) -> int:
        """How many of the ids an earlier prompt begins with. Past `before_images` also the images
        must be the same.
        """
        shared, is_shared, digest = 0, True, 0
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            seen = images if before_images is not None and start + BLOCK > before_images else ()
            digest = hash((digest, *ids[start : start + BLOCK], *seen)) & (1 << 63) - 1
            is_shared = bool(self._blocks.next(digest)) and is_shared
            shared += BLOCK if is_shared else 0
        return shared

    def plain(
        self, price: tuple[float, float] | None = None, speed: float | None = None
    ) -> dict[str, Any]:
        """The estimate as plain data: with prices for a million tokens, prompt and generated, the
        most that it costs; with a speed, how long it takes.
        """
        answered = self.requests - self.failed
        plain: dict[str, object] = {
            "requests": self.requests,
            "failed": self.failed,
            "prompt_tokens": self.prompt_tokens,
            "mean_prompt_tokens": round(self.prompt_tokens / answered, 1) if answered else 0.0,
            "longest_prompt": (
                {"id": self.longest[0], "tokens": self.longest[1]} if answered else None
            ),
            "images": self.images,
            "image_tokens": self.image_tokens,
            "shared_prefix_tokens": self.shared_tokens,
            "shared_prefix_share": (
                round(self.shared_tokens / self.prompt_tokens, 4) if self.prompt_tokens else 0.0
            ),
            "most_completion_tokens": self.completion_tokens,
            "later_turns": self.later_turns,
            "errors": self.of_errors(),
            "too_long": [{"id": name, "tokens": tokens} for name, tokens in self.too_long],
        }
        if price is not None:
            plain["most_cost"] = round(
                (self.prompt_tokens * price[0] + self.completion_tokens * price[1]) / 1e6, 6
            )
            plain["prompt_cost"] = round(self.prompt_tokens * price[0] / 1e6, 6)
        if speed is not None:
            plain["most_seconds"] = round(self.completion_tokens / speed, 1)
        return plain


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
    run_settings: RunSettings,
    price: tuple[float, float] | None,
    speed: float | None,
    *,
    as_json: bool,
) -> int:
    """Print the estimate. The exit code: 0 if every request has a prompt that fits, else 1."""
    if source is None and run_settings.question.prompt is None:
        refuse(
            "say what would be asked: IN, a file or a folder, or --prompt with one question", "IN"
        )
    if speed is not None and not 0 < speed < 1e12:
        refuse(f"takes tokens a second, above 0, not {speed}", "--speed")
    estimate = Estimate()
    with contextlib.ExitStack() as stack:
        opened = open_source(
            source,
            run_settings.question._replace(overwrite=True),
            run_settings.images,
            run_settings.columns,
            stack,
        )
        route = stack.enter_context(attached(open_route(run_settings.load), run_settings.plugins))
        try:
            while batch := list(islice(opened.items, _TOGETHER)):
                if "token_ids" not in route.engine.capabilities.honours:
                    refuse(
                        f"{shown(route.engine.name)} does not tell how many tokens a prompt has:"
                        " take --backend hf, or a token server, with the same model",
                        "--backend",
                    )
                requests = run_settings.admission.batch([item.slot for item in batch])
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
                    turns = request.map(lambda known: len(known.turns)).value_or(0)
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
