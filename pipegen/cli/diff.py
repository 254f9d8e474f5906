"""`pipegen diff`: two files of results, compared request by request."""

from __future__ import annotations

from pathlib import Path

from pipegen.cli.outputs import printable, say
from pipegen.cli.usage import refuse
from pipegen.core.slots import Slot
from pipegen.io.jsonl import from_plain, lines_of
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField
from pipegen.records.results import GenerationResult
from pipegen.report.diff import compare, summary

__all__ = ["run_diff"]


def run_diff(first: Path, second: Path, *, as_json: bool) -> int:
    """Print where the results differ, and a summary on stderr. The exit code: 0 if all are equal, else 1."""
    compared = list(compare(_read(first, "A"), _read(second, "B")))
    for name, difference in compared:
        if difference is None:
            continue
        if as_json:
            print(strict_json.dump({"id": name, **difference._asdict()}))
        else:
            print(printable(f"{name}: {difference.stage}: {difference.first} | {difference.second}"))
    counts = summary(compared)
    say(", ".join(f"{count} {stage}" if stage in ("requests", "equal") else f"{count} differ at {stage}" for stage, count in counts.items()))
    return 0 if counts["equal"] == counts["requests"] else 1


def _read(file: Path, flag: str) -> dict[str, Slot[GenerationResult]]:
    """The slots of a file of results, by their ids."""
    slots: dict[str, Slot[GenerationResult]] = {}
    try:
        with file.open("rb") as stream:
            for line in lines_of(stream):
                values = strict_json.load((line.data or b"").decode())
                if not isinstance(values, dict) or not isinstance(values.get("id"), (str, int)):
                    refuse(f"{file} line {line.number}: takes a result with an id, as pipegen generate writes it", flag)
                if str(values["id"]) in slots:
                    refuse(f"{file} line {line.number}: the id {values['id']!r} occurs twice", flag)
                slots[str(values["id"])] = from_plain(values)
    except OSError as refusal:
        refuse(f"{str(file)!r} cannot be read: {refusal.strerror}", flag)
    except (InvalidField, strict_json.NotStrict, UnicodeDecodeError) as refusal:
        refuse(f"{file}: not results of pipegen generate: {refusal}", flag)
    return slots
