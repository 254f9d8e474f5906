"""Sidecars: answers beside their images. Some may exist before a run. Those of finished rows are the
job's own, and stay, unless they hold another answer of the job. All others are refused before
anything is asked or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from returns.result import Failure, Success

from pipegen.cli.inputs import Origin, sidecar_exists
from pipegen.cli.usage import refuse
from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot
from pipegen.drivers.arguments import Admission
from pipegen.io.jsonl import LineId, to_plain
from pipegen.jobs.job_rows import rows_of
from pipegen.jobs.new_file import JournalError, new_file
from pipegen.jobs.row_keys import Keys
from pipegen.jobs.runner import Job
from pipegen.records import strict_json
from pipegen.records.results import GenerationResult

NOT_MADE = "this job has not made them"
"""Why sidecars that exist are refused."""


Asked: TypeAlias = tuple[Origin, Any]


def existing_sidecars(items: Iterator[Asked]) -> list[Asked]:
    """The requests whose sidecars exist."""
    return [item for item in items if sidecar_exists(item[0].sidecar) is not None]


def refuse_sidecars(origins: Sequence[Origin], why: str = NOT_MADE) -> None:
    """Refuse the sidecars of these requests, if there are some."""
    names = [str(origin.sidecar) for origin in origins]
    if names:
        refuse(
            f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}: {len(names)} of the files"
            f" that are to be written exist, and {why}; move them, or give --overwrite, which"
            " replaces them",
            "--sidecar",
        )


def check_sidecars(existing: Iterable[Asked], job: Job[Any], admission: Admission) -> None:
    """Refuse the sidecars of rows that are not finished. One of a finished row that holds another
    answer which the job keeps is removed: the row writes it anew.
    """
    answers = cache(lambda: {values.get("text") for values in job.journal.rows()})
    others, stale = list[Origin](), list[Path]()
    for row in rows_of(
        existing, job.journal, Keys(job.settings), admission, again=lambda error: True
    ):
        kept, file = row.kept and row.kept(), row.name.sidecar
        if kept is None or file is None:
            others.append(row.name)
            continue
        text = _text_in(file)
        own = kept.map(lambda result: result.text).value_or(text)
        if text is not None and text != own and text in answers():
            stale.append(file)
    refuse_sidecars(others)
    for file in stale:
        file.unlink(missing_ok=True)


def write_sidecar(
    file: Path, result: GenerationResult, name: LineId, *, brief: bool, overwrite: bool
) -> Slot[GenerationResult]:
    """Write an answer beside its image: the text as `.txt`, or the whole line as `.json`.

    Returns the slot, or `InvalidRequest` if the file cannot be written.
    """
    slot = Success(result)
    body = (
        result.text
        if _is_text(file)
        else strict_json.dump(to_plain(slot, name, brief=brief)) + "\n"
    )
    if not overwrite and (exists := sidecar_exists(file)) is not None:
        return Failure(exists)
    try:
        with new_file(file) as stream:
            stream.write(body.encode())
    except (JournalError, OSError) as refusal:
        why = refusal.strerror if isinstance(refusal, OSError) else str(refusal).rpartition(": ")[2]
        return Failure(
            InvalidRequest(
                f"the sidecar {file.name} cannot be written: {why}",
                hint="free some space, or make the folder writable",
            )
        )
    return slot


def _text_in(sidecar: Path) -> str | None:
    """The answer that a sidecar holds; None where it has another form."""
    try:
        body = sidecar.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    if _is_text(sidecar):
        return body
    values = strict_json.loaded(body, dict)
    return values.get("text") if isinstance(values, Mapping) else None


def _is_text(sidecar: Path) -> bool:
    """Whether it holds the answer alone."""
    return sidecar.suffix == ".txt"
