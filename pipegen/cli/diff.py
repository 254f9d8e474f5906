"""`pipegen diff`: two files of results, compared request by request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolz import dissoc

from pipegen.cli.outputs import say
from pipegen.cli.usage import refuse
from pipegen.core.slots import Slot
from pipegen.engines.extras import MissingExtra
from pipegen.io.jsonl import from_plain
from pipegen.io.results_in import results_in
from pipegen.io.tables import TableError
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField, nearest
from pipegen.records.results import GenerationResult
from pipegen.report.diff import STAGES, compare, summary
from pipegen.report.gallery import printable

__all__ = ["run_diff"]


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


def _read(file: Path, flag: str) -> dict[str, Slot[GenerationResult]]:
    """The slots of a file of results, by their ids."""
    slots: dict[str, Slot[GenerationResult]] = {}
    try:
        for values in results_in(file):
            name = str(values["id"])
            if name in slots:
                refuse(f"{file}: the id {values['id']!r} occurs twice", flag)
            slots[name] = from_plain(_whole(dissoc(values, "row")))
    except OSError as refusal:
        refuse(f"{str(file)!r} cannot be read: {refusal.strerror}", flag)
    except (TableError, MissingExtra) as refusal:
        refuse(str(refusal), flag)
    except InvalidField as refusal:
        refuse(f"{file}: not results of pipegen generate: {refusal}", flag)
    return slots


def _whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """A result of a file; what a brief line leaves out is empty in it, and is not compared."""
    whole = {"raw_text": "", "options": {}, **values} if "text" in values else {**values}
    for name in ("samples", "rounds"):
        if isinstance(whole.get(name), list):
            whole[name] = [_whole(one) if isinstance(one, dict) else one for one in whole[name]]
    return whole
