"""`pipegen diff`: two files of results, compared request by request."""

from __future__ import annotations

from pathlib import Path

from pipegen.cli.outputs import say
from pipegen.cli.usage import reading, refuse
from pipegen.core.names import nearest
from pipegen.core.slots import Slot
from pipegen.io.results_in import slots_in
from pipegen.records import strict_json
from pipegen.records.results import GenerationResult
from pipegen.report.diff import STAGES, Occurrence, Occurrences, compare, summary
from pipegen.report.gallery import printable


def run_diff(first: Path, second: Path, *, as_json: bool, ignore: tuple[str, ...] = ()) -> int:
    """Print where the results differ, and a summary on stderr. The exit code: 0 if all are equal,
    else 1.
    """
    for stage in ignore:
        if stage not in STAGES:
            refuse(
                f"takes one of {', '.join(STAGES)}, not {stage!r}{nearest(stage, STAGES)}",
                "--ignore",
            )
    compared = list(compare(_read(first, "A"), _read(second, "B"), ignore=frozenset(ignore)))
    for name, difference in compared:
        if difference is None:
            continue
        if as_json:
            print(strict_json.dump({"id": name, **difference._asdict()}))
        else:
            print(
                printable(
                    f"{name}: {difference.stage}\n  A {difference.first}\n  B {difference.second}"
                )
            )
    counts = summary(compared)
    say(
        ", ".join(
            f"{count} {stage}" if stage in ("requests", "equal") else f"{count} differ at {stage}"
            for stage, count in counts.items()
        )
    )
    return 0 if counts["equal"] == counts["requests"] else 1


def _read(file: Path, flag: str) -> dict[Occurrence, Slot[GenerationResult]]:
    """The slots of a file of results, by their ids; of equal ids, by their order too."""
    name_of = Occurrences()
    with reading(file, flag):
        return {name_of(result_id): slot for result_id, slot in slots_in(file, brief=True)}
