"""The sidecars that exist before a run. Those of finished rows are the job's own, and stay. All
others are refused before anything is asked or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipegen.cli.inputs import Origin, sidecar_exists
from pipegen.cli.usage import refuse
from pipegen.drivers.arguments import Admission
from pipegen.jobs.job_rows import rows_of
from pipegen.jobs.row_keys import Keys
from pipegen.jobs.runner import Job

NOT_MADE = "this job has not made them"
"""Why sidecars that exist are refused."""


def existing_sidecars(items: Iterable[tuple[Origin, Any]]) -> list[tuple[Origin, Any]]:
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


def check_sidecars(
    existing: Iterable[tuple[Origin, Any]], job: Job[Any], admission: Admission
) -> None:
    """Refuse the sidecars of rows that are not finished."""
    rows = rows_of(existing, job.journal, Keys(job.settings), admission, again=lambda error: True)
    refuse_sidecars([row.name for row in rows if row.kept is None])
