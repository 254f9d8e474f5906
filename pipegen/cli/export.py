"""`pipegen export JOB`: what a job of `pipegen generate` has finished, in the order of its input, at any time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pipegen.cli.inputs import Item, from_folder, from_lines, with_system
from pipegen.cli.outputs import line_of, say
from pipegen.cli.usage import refuse
from pipegen.jobs.export import finished_rows
from pipegen.jobs.journal import JournalError, new_file
from pipegen.records import strict_json
from pipegen.records.requests import ImagePolicy

__all__ = ["Command", "items_of", "note_command", "run_export"]

COMMAND = "command.json"


class Command(NamedTuple):
    """The arguments of `pipegen generate` that `pipegen export` needs."""

    source: str
    prompt: str | None
    system: str | None
    """What goes before the messages of a request."""
    image_root: str | None
    model: str
    brief: bool


def note_command(folder: Path, command: Command) -> None:
    """Keep the command in the job's folder. Raises `JournalError`."""
    with new_file(folder / COMMAND) as stream:
        stream.write(strict_json.dump(command._asdict()).encode() + b"\n")


def _command_in(folder: Path) -> Command:
    try:
        return Command(**strict_json.load((folder / COMMAND).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        refuse(f"{folder} is no job's folder: that of -o OUT is OUT.job", "JOB")


def items_of(source: str, prompt: str | None, system: str | None, images: ImagePolicy, stack: contextlib.ExitStack) -> Iterator[Item]:
    """The requests of a file of lines, or of a folder of images, without sidecars."""
    if os.path.isdir(source):
        return from_folder(Path(source), prompt or "", system, None, True)
    try:
        stream = stack.enter_context(Path(source).open("rb"))  # noqa: SIM115  # the stack closes it
    except OSError as refusal:
        refuse(f"the job's input {source!r} cannot be read: {refusal.strerror}", "JOB")
    items = from_lines(stream, None if images.root is not None else Path(source).absolute().parent)
    return with_system(items, system)


def run_export(folder: Path, out: str | None) -> int:
    """Write the finished rows, and say how many are missing. Exit code: 0 where none is, else 1."""
    command = _command_in(folder)
    images = ImagePolicy(root=command.image_root)
    written = missing = 0
    try:
        with contextlib.ExitStack() as stack:
            items = items_of(command.source, command.prompt, command.system, images, stack)
            stream: BinaryIO = sys.stdout.buffer if out in (None, "-") else stack.enter_context(new_file(Path(out or "")))
            for origin, slot in finished_rows(folder, ((item.origin, item.slot) for item in items), image_policy=images):
                if slot is None:
                    missing += 1
                    continue
                written += 1
                stream.write(line_of(slot, origin, command.model, brief=command.brief))
            stream.flush()
    except JournalError as refusal:
        say(str(refusal))
        return 1
    say(f"{written} of {written + missing} rows are finished" + (f"; {missing} are missing: run the job's command again" if missing else ""))
    return 1 if missing else 0
