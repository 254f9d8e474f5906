"""`pipegen verify`: is a server serving this model right?"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.locate import NoSuchModel
from pipegen.cli.outputs import say, write_summary
from pipegen.cli.progress import progress
from pipegen.cli.sources import Question, open_source
from pipegen.cli.usage import refuse
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.io.tables import Columns, TableError
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.report.gallery import printable
from pipegen.report.verdict import Verdict
from pipegen.report.verify import prompts, verify

__all__ = ["run_verify"]

_SHOWN = 3
"""How many failed requests are shown."""


def run_verify(
    url: str,
    model: str,
    source: str | None,
    images: ImagePolicy,
    *,
    rows: int | None,
    as_json: bool,
    quiet: bool,
    summary: Path | None,
    settings: Mapping[str, Any],
) -> int:
    """Ask, judge, and print the verdict. The exit code: 0 where the server is right, else 1."""
    with contextlib.ExitStack() as stack:
        asked: list[Slot[GenerationRequest]] | list[dict[str, Any]] = [*itertools.islice(prompts(), rows)]
        if source is not None:
            opened = open_source(source, Question(), images, Columns(), stack)
            try:
                asked = [item.slot for item in itertools.islice(opened.items, rows)]
            except TableError as refusal:
                refuse(str(refusal), "IN")
        moved = stack.enter_context(progress(len(asked), shown=not quiet))
        try:
            verdict = verify(url, model, asked, image_policy=images, tell=lambda done, words: moved(done, f"{done}/{len(asked)} {words}"), **settings)
        except (NoSuchModel, ImportError) as refusal:  # a missing extra is an ImportError
            refuse(f"{model!r} cannot be used: {refusal}", "--model")
        except InvalidField as refusal:
            refuse(str(refusal))
        except CallFailed as failure:
            say(f"{failure.error.message}; {failure.error.hint}")
            return 1
    print(strict_json.dump(verdict.plain()) if as_json else printable(in_words(verdict)))
    return write_summary(summary, verdict.plain(), 0 if verdict.right else 1)


def in_words(verdict: Verdict) -> str:
    """The verdict for a reader."""
    ways = " and ".join(f"by {way}" for way in verdict.ways) or "none judged"
    lines = [
        f"{'right' if verdict.right else 'not right' if verdict.faults else 'not known'}: {verdict.model} at {verdict.url} ({verdict.dialect}), {ways}",
        f"{verdict.prompts:,} requests, {verdict.answers:,} answers; the reference would have written {verdict.agreeing:,} of them, token for token",
    ]
    if verdict.spread is not None:
        lines.append(f"log probabilities differ by {verdict.spread:.2g} (root of the mean square); {verdict.precision} explains {verdict.most_spread:g}")
    if verdict.margin:
        lines.append(f"the largest margin where another token was chosen is {verdict.margin:.2g}; {verdict.precision} explains {verdict.most_margin:g}")
    for fault in verdict.faults:
        lines += [f"{fault.kind}: {fault.words}", f"  in {fault.answers:,} of {fault.of:,} answers by {fault.first.way}, first in {fault.first.id}:"]
        lines.append(f"  {fault.example}")
    if verdict.too_long:
        lines.append(f"{verdict.too_long:,} requests are too long for the model or the server, and are not judged")
    for name, way, error in verdict.failed[:_SHOWN]:
        lines.append(f"failed by {way}: {name}: {type(error).__name__}: {error.message}")
    if len(verdict.failed) > _SHOWN:
        lines.append(f"... and {len(verdict.failed) - _SHOWN:,} more failed")
    return "\n".join(lines)
