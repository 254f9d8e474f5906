"""`pipegen export JOB`: what a job of `pipegen generate` has finished, in the order of its input,
at any time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipegen.cli.outputs import file_of, form_of, refuse_used, results_to, say, words_of
from pipegen.cli.sources import Question, open_source, within
from pipegen.cli.usage import refuse
from pipegen.core.errors import BadImage, BadVideo
from pipegen.io.forms import TableError
from pipegen.io.tables import Columns
from pipegen.jobs.job_export import start_export
from pipegen.jobs.journal import SETTINGS
from pipegen.jobs.new_file import JournalError, new_file, remove_stale
from pipegen.records import strict_json
from pipegen.records.requests import ImagePolicy, RequestPolicy

COMMAND = "command.json"


class Command(NamedTuple):
    """The arguments of `pipegen generate` that `pipegen export` needs."""

    source: str | None
    """None for one question."""
    prompt: str | None
    system: str | None
    """What goes before the messages of a request."""
    image_root: str | None
    """That of `--image-root`; None where it was not given."""
    model: str
    brief: bool
    columns: Mapping[str, str] = {}
    """The columns that fields of requests are read from, where their names differ."""
    kept: Sequence[str] = ()
    """Columns that are carried along."""
    images: Sequence[str] = ()
    """The images of one question."""
    allow_http: bool = False
    allowed_hosts: Sequence[str] = ()
    policy: Mapping[str, Any] = {}
    """What a request might ask for."""
    drop_final_answer: bool = False
    """Whether the answers that end a conversation were left out."""

    @property
    def read(self) -> Columns:
        """The columns, as requests were read from them."""
        return Columns(dict(self.columns), frozenset(self.kept), self.drop_final_answer)


def note_command(folder: Path, command: Command) -> None:
    """Keep the command in the job's folder. Raises `JournalError`."""
    with new_file(folder / COMMAND) as stream:
        stream.write(strict_json.dump(command._asdict()).encode() + b"\n")


def command_of(results: Path) -> Command | None:
    """The command that wrote a file of results; None where its job is not beside it."""
    job = Path(f"{results}.job")
    return command_in(job) if os.path.isfile(job / COMMAND) else None


def command_in(folder: Path) -> Command:
    """The command of a job's folder. A folder without one, and a damaged one, are bad usage."""
    path = folder / COMMAND
    if os.path.isfile(folder):  # what cannot be looked at is reported below
        job = folder.with_name(f"{folder.name}.job")
        there = f": its job is {job}" if os.path.isdir(job) else ", and there is no job of it"
        refuse(f"{folder} is a file, and JOB is a job's folder{there}", "JOB")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if os.path.exists(folder / SETTINGS):
            refuse(
                f"{folder} is a job of a program (pg.job), which alone knows its requests:"
                " pg.finished_rows(folder, pairs) gives its answers there",
                "JOB",
            )
        refuse(f"{folder} is no job's folder: that of -o OUT is OUT.job", "JOB")
    except (OSError, UnicodeDecodeError) as refusal:
        refuse(f"{path} cannot be read: {refusal}", "JOB")
    try:
        command = Command(**strict_json.load(text))
        for name, value in command._asdict().items():
            if not _CHECKS[name](value):
                raise ValueError(f"{name} is {value!r:.80}")
        root_missing = command.image_root and not os.path.isdir(command.image_root)
        _policies(command._replace(image_root=None) if root_missing else command)
    except (TypeError, ValueError) as refusal:
        refuse(
            f"{path} is damaged, or of another version of pipegen ({refusal}): run the job's"
            " command again, which writes it anew",
            "JOB",
        )
    return command


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("source", "prompt", "system", "image_root"), lambda value: value is None or _is_text(value)
    ),
    **dict.fromkeys(
        ("brief", "allow_http", "drop_final_answer"), lambda value: isinstance(value, bool)
    ),
    **dict.fromkeys(("kept", "images", "allowed_hosts"), _are_texts),
    "model": _is_text,
    "columns": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "policy": lambda value: isinstance(value, dict),
}


def _policies(command: Command) -> tuple[ImagePolicy, RequestPolicy]:
    """What may be read, and what requests may ask for. Raises `InvalidField`."""
    images = ImagePolicy(
        root=command.image_root,
        allow_http=command.allow_http,
        allowed_hosts=tuple(command.allowed_hosts),
    )
    return images, RequestPolicy(**command.policy)


def run_export(folder: Path, out: str | None, moved: str | None = None) -> int:
    """Write the finished rows, and say how many are missing. Where an image cannot be read, its
    row's answer is not found. Exit code: 0 where no answer is missing, else 1.

    moved: where the input is now, if it is not where the job read it.
    """
    command = command_in(folder)
    if moved is not None:
        if command.source is None:
            refuse(f"{folder} is a job of one question, which has no input", "--input")
        if moved == "-":
            refuse("takes the file or the folder of the input, not stdin", "--input")
        command = command._replace(source=os.path.abspath(moved))
    elif command.source not in (None, "-") and not os.path.exists(command.source or ""):
        refuse(
            f"the job's input {command.source!r} cannot be read: it does not exist; --input says"
            " where it is now",
            "JOB",
        )
    if command.image_root is not None and not os.path.isdir(command.image_root):
        refuse(f"there is no folder {command.image_root!r}, the job's --image-root", "JOB")
    form = form_of(out)
    images, policy = _policies(command)
    images = within(images, command.source, command.prompt)
    finished_count = missing = unread = 0
    try:
        refuse_used("--out", file_of(out), [command.source, *folder.glob("*")])
        with contextlib.ExitStack() as stack:
            question = Question(
                command.prompt, command.system, tuple(command.images), overwrite=True
            )
            columns = command.read
            source = open_source(
                command.source,
                question,
                images,
                columns,
                stack,
                "JOB" if moved is None else "--input",
            )
            stream: BinaryIO = sys.stdout.buffer
            if (file := file_of(out)) is not None:
                remove_stale(file.absolute().parent)
                stream = stack.enter_context(new_file(file))
            make = stack.enter_context(
                results_to(stream, form, source, command.model, brief=command.brief)
            )
            rows = source.items if source.unread is None else source.unread()
            row_settings: dict[str, Any] = {"image_policy": images, "policy": policy}
            row_settings |= {"reading": source.reading, "as_written": True}
            for origin, slot, is_kept in start_export(folder, rows, **row_settings):
                if slot is None:
                    missing += 1
                    continue
                if not is_kept and isinstance(slot.failure(), BadImage | BadVideo):
                    unread += 1
                else:
                    finished_count += 1
                make(origin, slot, False)()
    except (JournalError, TableError, OSError) as refusal:
        say(words_of(refusal))
        return 1
    say(
        f"{finished_count} of {finished_count + missing + unread} requests are finished"
        + (f"; {missing} are missing: run the job's command again" if missing else "")
        + (
            f"; of {unread} the images or videos cannot be read, and answers to them not be found:"
            " their errors are written"
            if unread
            else ""
        )
    )
    return 1 if missing or unread else 0
