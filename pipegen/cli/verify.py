"""`pipegen verify`: is a server serving this model right?"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, get_args

from pipegen.backends.checkpoint.locate import NoSuchModel
from pipegen.cli.outputs import say, write_summary
from pipegen.cli.progress import progress
from pipegen.cli.sources import Question, open_source
from pipegen.cli.usage import images_of, refuse
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.io.tables import Columns, TableError
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField
from pipegen.records.requests import GenerationRequest
from pipegen.report.gallery import printable
from pipegen.report.verdict import Precision, Verdict
from pipegen.report.verify import Dialect, verify

if TYPE_CHECKING:
    from pipegen.cli.app_results import VerifyFlags

__all__ = ["run_verify"]

_SHOWN = 3
"""How many failed requests are shown."""


_SETTINGS = ("dialect", "chat_only", "precision", "max_new_tokens", "revision", "trust_remote_code", "dtype", "device", "served_model_name", "timeout")
"""The flags that `pg.verify` takes by the same names."""


def run_verify(flags: VerifyFlags) -> int:
    """Ask, judge, and print the verdict. The exit code: 0 where the server is right, else 1."""
    for flag, value, taken in (("--precision", flags.precision, get_args(Precision)), ("--dialect", flags.dialect, get_args(Dialect))):
        if value is not None and value not in taken:
            refuse(f"takes one of {', '.join(taken)}, not {value!r}", flag)
    settings: dict[str, Any] = {name: getattr(flags, name) for name in _SETTINGS}
    images = images_of(flags.image_root, False, ())
    with contextlib.ExitStack() as stack:
        asked: list[Slot[GenerationRequest]] | list[dict[str, Any]] = None
        if flags.source is not None:
            opened = open_source(flags.source, Question(), images, Columns(), stack)
            try:
                asked = [item.slot for item in itertools.islice(opened.items, flags.rows)]
            except TableError as refusal:
                refuse(str(refusal), "IN")
        moved = stack.enter_context(progress(len(asked), shown=not flags.quiet))
        settings["tell"] = lambda done, words: moved(done, f"{done}/{len(asked)} {words}")
        try:
            verdict = verify(flags.url, flags.model, asked, image_policy=images, **settings)
        except (NoSuchModel, ImportError) as refusal:  # a missing extra is an ImportError
            refuse(f"{flags.model!r} cannot be used: {refusal}", "--model")
        except InvalidField as refusal:
            refuse(str(refusal))
        except CallFailed as failure:
            say(f"{failure.error.message}; {failure.error.hint}")
            return 1
    print(strict_json.dump(verdict.plain()) if flags.as_json else printable(in_words(verdict)))
    return write_summary(flags.summary, verdict.plain(), 0 if verdict.right else 1)


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
