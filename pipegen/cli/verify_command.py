"""`pipegen verify`: is a server serving this model right, or was a file of results made by it?"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipegen import backends
from pipegen.backends.checkpoint.locate import NoSuchModel
from pipegen.backends.checkpoint.tokenizer_file import READERS
from pipegen.backends.checkpoint.verdicts import keep, kept
from pipegen.cli.export_command import command_of
from pipegen.cli.flags import flag_of, setting_values
from pipegen.cli.inputs import Item
from pipegen.cli.outputs import Rows, lines_of, refuse_used, say, write_summary
from pipegen.cli.progress_line import progress
from pipegen.cli.run_flags import InputFlags
from pipegen.cli.sources import (
    Question,
    columns_of,
    images_in_source,
    is_image_folder,
    open_source,
)
from pipegen.cli.usage import reading, refuse
from pipegen.core.errors import CallFailed
from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.engines.settings import ModelLoadConfig
from pipegen.io.forms import WRITTEN
from pipegen.io.results_in import slots_in
from pipegen.io.tables import Columns
from pipegen.records import strict_json
from pipegen.records.engine_list import DIALECTS
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.report.audit_file import ROW_KINDS, Recorded, verify_results
from pipegen.report.diff import Occurrences
from pipegen.report.gallery import printable
from pipegen.report.questions import prompts
from pipegen.report.verdict import Precision, Verdict
from pipegen.report.verify import noise_of, verify

if TYPE_CHECKING:
    from pipegen.cli.app_results import VerifyFlags


_SHOWN = 3
"""How many failed requests are shown."""


_SETTINGS = (
    "dialect",
    "chat_only",
    "deterministic",
    "precision",
    "max_new_tokens",
    "revision",
    "trust_remote_code",
    "dtype",
    "device",
    "served_model_name",
    "timeout",
)
"""The flags that `pg.verify` takes by the same names."""


def run_verify(flags: VerifyFlags) -> int:
    """Ask or read, judge, and print the verdict. The exit code: 0 where the server, or the file, is
    right, else 1.
    """
    for flag, value, choices in (
        ("--precision", flags.precision, get_args(Precision)),
        ("--dialect", flags.dialect, tuple(DIALECTS)),
    ):
        if value is not None and value not in choices:
            refuse(f"takes one of {', '.join(choices)}, not {value!r}", flag)
    if flags.source is None:
        _refuse_set(flags, [field.name for field in fields(InputFlags)], "goes with IN")
    if flags.prompt is not None and not is_image_folder(flags.source or "", flags.prompt):
        refuse("goes with a folder of images; each line of a file says its own", "--prompt")
    is_file = "://" not in flags.url and (
        Path(flags.url).suffix.lower() in {*WRITTEN} - {""} or Path(flags.url).exists()
    )
    if not is_file and "://" not in flags.url:
        refuse(f"there is no file {flags.url}, and an address begins with http://", "URL")
    refuse_used("--summary", flags.summary, [flags.url if is_file else None, flags.source])
    try:
        right, plain, words = _of_file(flags) if is_file else _of_server(flags)
    except (NoSuchModel, ImportError) as refusal:  # a missing extra is an ImportError
        refuse(f"{flags.model!r} cannot be used: {refusal}", "--model")
    except InvalidField as refusal:
        refuse(str(refusal))
    except CallFailed as failure:
        say(f"{failure.error.message}; {failure.error.hint}")
        return 1
    print(strict_json.dump(plain) if flags.as_json else printable(words))
    return write_summary(flags.summary, plain, 0 if right else 1)


def _refuse_set(flags: VerifyFlags, names: Collection[str], why: str) -> None:
    """Refuse those of the flags that are set."""
    for field in fields(flags):
        if field.name in names and getattr(flags, field.name) != field.default:
            refuse(why, flag_of("map" if field.name == "columns" else field.name))


_SERVER_ALONE = (
    "dialect",
    "chat_only",
    "deterministic",
    "served_model_name",
    "timeout",
    "max_new_tokens",
)
_FILE_ALONE = ("adapter", "adapters")
_MOST_KEPT = 2**24
"""The bytes of the longest verdict on a file that is kept."""
_JUDGED_BY = ("torch", "torchvision", "pillow", *READERS)
"""The packages that a verdict on a file is of."""


def _of_server(flags: VerifyFlags) -> tuple[bool, dict[str, object], str]:
    _refuse_set(flags, _FILE_ALONE, "is for files, and URL is a server")
    settings: dict[str, Any] = {name: getattr(flags, name) for name in _SETTINGS}
    images = images_in_source(flags, flags.source)
    with contextlib.ExitStack() as stack:
        requests: list[Slot[GenerationRequest]] | list[dict[str, Any]] | None = (
            None if flags.rows is None else [*itertools.islice(prompts(), flags.rows)]
        )
        if flags.source is not None:
            requests = [item.slot for item in _requests(flags, columns_of(flags), images, stack)]
        total = None if requests is None else len(requests)
        show_progress = stack.enter_context(progress(total, shown=not flags.quiet))
        settings["tell"] = lambda done, words: show_progress(
            done, f"{done}{'' if total is None else f'/{total}'} {words}"
        )
        verdict = verify(flags.url, flags.model, requests, image_policy=images, **settings)
    return verdict.right, verdict.plain(), in_words(verdict)


def _as_run(flags: VerifyFlags) -> tuple[VerifyFlags, Columns]:
    """The flags, and the columns that requests are read from. Where they are silent, IN is read as
    the run that wrote the file has read it.
    """
    columns = columns_of(flags)
    command = None if flags.source is None else command_of(Path(flags.url))
    if command is None:
        return flags, columns
    if command.image_root is not None and flags.image_root is None:
        say(f"the run had --image-root {command.image_root}: without it, images are not looked for")
    drops = flags.drop_final_answer or command.drop_final_answer
    columns = (columns if flags.columns else command.read)._replace(drops_answer=drops)
    prompt, system = (
        getattr(command if getattr(flags, name) is None else flags, name)
        for name in ("prompt", "system")
    )
    return replace(flags, prompt=prompt, system=system), columns


def _requests(
    flags: VerifyFlags, columns: Columns, images: ImagePolicy, stack: contextlib.ExitStack
) -> list[Item]:
    question = Question(flags.prompt, flags.system, overwrite=True)
    opened = open_source(flags.source, question, images, columns, stack)
    with reading(flags.source, "IN"):
        return [*itertools.islice(opened.items, flags.rows)]


def _of_file(flags: VerifyFlags) -> tuple[bool, dict[str, object], str]:
    """The verdict on a file of results; IN is the file of their requests. It is kept: the same
    command on the same files, model and versions imports no engine.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint

    _refuse_set(flags, _SERVER_ALONE, "is for servers, and URL is a file")
    file, (flags, columns) = Path(flags.url), _as_run(flags)
    images = images_in_source(flags, flags.source)
    checkpoint: dict[str, Any] = {
        "revision": flags.revision,
        "trust_remote_code": flags.trust_remote_code,
    }
    given = {name: getattr(flags, name) for name in _FILE_ALONE}
    checkpoint |= setting_values(without_none(given))
    about = "" if any(checkpoint.values()) else _about(flags, columns)
    judged = kept("results", model=about, packages=_JUDGED_BY, most=_MOST_KEPT) if about else None
    if judged:
        if not flags.quiet:
            say(f"{file} was judged before, by this model and these versions")
        return judged["right"], judged["plain"], judged["words"]
    with contextlib.ExitStack() as stack:
        request_name, row_name = Occurrences(), Occurrences()  # equal ids are paired by their order
        requests: dict[Hashable, Slot[GenerationRequest]] = (
            {
                request_name(item.origin.id): item.slot
                for item in _requests(flags, columns, images, stack)
            }
            if flags.source is not None
            else {}
        )
        with reading(file, "URL"):
            slots = [
                (row_name(name), slot)
                for name, slot in itertools.islice(slots_in(file), flags.rows)
            ]
        for name, count in row_name.counts.items() if flags.rows is None else ():
            requests_count = request_name.counts[name]
            if requests_count and count != requests_count:
                refuse(
                    f"{requests_count} of its requests have the id {name!r}, and {count} rows of"
                    f" {file}: which is whose is not known",
                    "IN",
                )
        unasked = sum(name not in requests for name, _ in slots)
        if requests and slots and unasked == len(slots):
            refuse(f"holds a request of no row of {file}: the ids are others", "IN")
        reference = stack.enter_context(
            backends.hf(flags.model, dtype=flags.dtype, device=flags.device, **checkpoint)
        )
        precision: Any = (
            flags.precision or Checkpoint(ModelLoadConfig(model=flags.model, **checkpoint)).dtype
        )
        show_progress = stack.enter_context(progress(len(slots), shown=not flags.quiet))

        noises = list[float | None]()

        def noise(candidate: Precision, rows: Any) -> float | None:
            noises.append(
                noise_of(candidate, rows, flags.model, device=flags.device, **checkpoint)
                if flags.dtype == "float32"
                else None
            )
            return noises[-1]

        verdict = verify_results(
            slots,
            flags.model,
            reference,
            requests=requests.get,
            precision=precision,
            noise=noise,
            image_policy=images,
            tell=lambda done: show_progress(done, f"{done}/{len(slots)}"),
        )
    words = of_file_in_words(verdict, file)
    if requests and unasked:
        words += f"\n{unasked:,} rows have no request in IN: their prompts are not rendered"
    plain = {"file": str(file), **verdict.plain()}
    sources = [slot.map(attrgetter("sources")).value_or(()) for slot in requests.values()]
    # what could not be judged, or measured, perhaps can another time
    is_final = not any(sources) and None not in noises and "not judged" not in verdict.counts
    if about and is_final and about == _about(flags, columns):  # nothing was changed meanwhile
        final = {"right": verdict.right, "plain": plain, "words": words}
        keep("results", final, model=about, packages=_JUDGED_BY, most=_MOST_KEPT)
    return verdict.right, plain, words


def _about(flags: VerifyFlags, columns: Columns) -> str:
    """A digest of what a verdict on a file rests on: the model, the files, the flags, and the code
    that judges. Empty where a file cannot be read twice.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint

    files = [Path(name) for name in (flags.url, flags.source) if name is not None]
    if flags.source == "-" or not all(file.is_file() for file in files):
        return ""
    model = Checkpoint(ModelLoadConfig(model=flags.model, check_weights=True)).identity
    settings = replace(flags, as_json=False, summary=None, quiet=False)
    read_as = (columns._replace(kept=frozenset()), sorted(columns.kept))
    digest = hashlib.blake2b(repr((settings, read_as)).encode(), digest_size=16)
    for file in (*files, *sorted(Path(backends.__file__).parents[1].rglob("*.py"))):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return f"{model} {digest.hexdigest()}"


_DISTANCE = (
    "spread",
    (
        "log probabilities differ by {spread:.2g} (root of the mean square); {precision} explains"
        " {most_spread:.2g}"
    ),
)
_OF_FILE: Rows = (
    ("", "{outcome}: {file} by {model}: {tally}"),
    _DISTANCE,
    ("whole", "all rows together: {whole}"),
    (
        "other_prompts",
        (
            "no prompt is as expected: if the run had --map, --system, --drop-final-answer or"
            " --image-root, give them here too"
        ),
    ),
    ("kinds", "{kind}: {words}{shown}"),
)


def of_file_in_words(found: Recorded, file: Path) -> str:
    """The verdict on a file for a reader."""
    counts = Counter(found.counts)
    tally = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()) or "no rows"
    wrong = found.whole or not set(counts) <= {"right", "not judged"}
    kinds = []
    for kind, words in ROW_KINDS.items():
        rows = [f"\n  {row.id}: {row.evidence}" for row in found.rows if row.verdict == kind]
        more = [f"\n  ... and {len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else []
        shown = "".join(rows[:_SHOWN] + more)
        kinds += [{"kind": kind, "words": words, "shown": shown}] if rows else []
    values = found.plain() | {
        "outcome": "right" if found.right else "not right" if wrong else "not known",
        "file": file,
        "tally": tally,
        "other_prompts": set(counts) == {"template"},
        "kinds": kinds,
    }
    return "\n".join(lines_of(values, _OF_FILE))


_OF_SERVER: Rows = (
    ("", "{outcome}: {model} at {url} ({dialect}), {by}"),
    (
        "",
        (
            "{prompts:,} requests, {answers:,} answers; the reference would have written {agreeing:,}"
            " of them, token for token"
        ),
    ),
    (
        "asked_again",
        (
            "{asked_again:,} requests more, about answers that came: cut short, with stop strings, as"
            " streams, with seeds, for several samples"
        ),
    ),
    _DISTANCE,
    (
        "margin",
        (
            "the largest margin where another token was chosen is {margin:.2g}; {precision} explains"
            " {most_margin:.2g}"
        ),
    ),
    (
        "faults",
        (
            "{kind}: {words}\n  in {answers:,} of {of:,} answers by {way}, first in {first}:\n"
            "  {example}\n  evidence: {evidence}"
        ),
    ),
    (
        "too_long",
        "{too_long:,} requests are too long for the model or the server, and are not judged",
    ),
    ("unknown", "not judged: {reason}"),
    ("shown", "failed by {way}: {id}: {error[type]}: {error[message]}"),
    ("more", "... and {more:,} more failed"),
)


def in_words(verdict: Verdict) -> str:
    """The verdict for a reader."""
    plain = verdict.plain()
    values = plain | {
        "outcome": ("right" if verdict.right else "not right" if verdict.faults else "not known"),
        "by": " and ".join(f"by {way}" for way in verdict.ways) or "none judged",
        "most_spread": verdict.most_spread,
        "most_margin": verdict.most_margin,
        "margin": verdict.margin or None,
        "unknown": [{"reason": reason} for reason in verdict.not_judged],
        "shown": plain["failed"][:_SHOWN],
        "more": max(0, len(verdict.failed) - _SHOWN),
    }
    return "\n".join(lines_of(values, _OF_SERVER))
