"""The rows of a job in the order of its input, at any time: finished ones with their slots, the
others without.

No engine is needed: the folder says which model and options the rows are of.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from returns.result import Failure

from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import check_settings, pairs
from pipegen.jobs.job_rows import Requests, retry_of, rows_of
from pipegen.jobs.journal import SETTINGS, Finished, SettingsDamaged, read_settings
from pipegen.jobs.key_map import KeyMap
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.row_keys import Keys, context_of
from pipegen.records.options import options_from
from pipegen.records.parse_request import Request
from pipegen.records.requests import ImagePolicy, RequestPolicy

K = TypeVar("K")


def finished_rows(
    folder: str | os.PathLike[str],
    requests: Iterable[tuple[K, Request]],
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Iterator[tuple[K, Slot[Any] | None]]:
    """For each pair of a key and a request of the job, in order: the key, and the slot (of a
    result, or of a score). It is None where the request is not finished.

    The options are those of the job's last run. A request that is refused before it is asked has
    its error. Raises `JournalError` where the folder is no job's.
    """
    rows = start_export(folder, requests, image_policy=image_policy, policy=policy)
    return ((name, slot) for name, slot, _ in rows)


def start_export(
    folder: str | os.PathLike[str],
    requests: Requests[K],
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    reading: str = "",
    as_written: bool = False,
) -> Iterator[tuple[K, Any, bool]]:
    """As `finished_rows`, for who knows more of the requests: see `pipegen.jobs.runner`. The third
    value says whether the slot is one that the job keeps.
    """
    pairs(requests)
    try:
        settings = read_settings(Path(folder))
    except SettingsDamaged as damaged:
        raise JournalError(f"{damaged}; run the job again: it writes the file anew") from damaged
    if settings is None:
        raise JournalError(f"{folder} has no {SETTINGS}: it is no job's folder")
    try:
        options = options_from(settings["options"])
    except InvalidField as refusal:
        raise JournalError(
            f"{Path(folder) / SETTINGS} is damaged, or of a later version of pipegen: {refusal}"
        ) from refusal
    admission = check_settings(options, image_policy, policy)
    key_map = KeyMap(Path(folder), context_of(settings, admission.policy, reading))
    row_settings: dict[str, Any] = {
        "again": retry_of("none"),
        "known": key_map,
        "as_written": as_written,
    }
    with Finished(folder) as finished, key_map:
        keys = Keys(settings)
        for row in rows_of(requests, finished, keys, admission, **row_settings):
            if row.kept is not None:
                yield row.name, row.kept(), True
            else:
                slot = None if is_ok(row.request) else Failure(row.request.failure())
                yield row.name, slot, False
