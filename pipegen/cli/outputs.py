"""Where results go: JSON Lines, tables, and a summary on stderr. Reports for readers are
lines, by a table of what is written where a value is there.

>>> rows = (("", "{name}: {count:,} rows"), ("failed", "{failed} failed"), ("all", "- {kind}"))
>>> list(lines_of({"name": "a", "count": 2000, "failed": 0, "all": [{"kind": "x"}]}, rows))
['a: 2,000 rows', '- x']
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from pipegen.cli.inputs import Origin
from pipegen.cli.sources import Source
from pipegen.cli.usage import refuse
from pipegen.core.errors import GenerationError, InternalError
from pipegen.core.slots import Slot, is_ok
from pipegen.io.forms import DELIMITERS, WRITTEN, TableError
from pipegen.io.jsonl import LineId, Written, readable, to_plain
from pipegen.io.openai_batch import batch_line
from pipegen.io.table_out import AnswerTable, arrow_out, csv_out
from pipegen.jobs.journal import writers_of
from pipegen.jobs.new_file import JournalError, new_file
from pipegen.records import strict_json
from pipegen.records.frozen import thaw
from pipegen.records.parse_request import carried
from pipegen.records.results import GenerationResult
from pipegen.report.gallery import printable

Rows = Sequence[tuple[str, str]]
"""The name of a value, or none, and the words of its line."""


def lines_of(values: Mapping[str, object], rows: Rows) -> Iterator[str]:
    """The lines of the rows whose value is there: not None, not empty, and no count of 0. A list has
    a line for each of its entries, which are mappings.
    """
    for name, words in rows:
        value = values.get(name) if name else True
        if isinstance(value, list):
            yield from (words.format_map({**values, **entry}) for entry in value)
        elif value or type(value) is float:
            yield words.format_map(values)


@dataclass
class ErrorCounts:
    """How many requests failed, and with what.

    >>> from pipegen.core.errors import Timeout
    >>> counts = ErrorCounts()
    >>> counts.count_error("r1", Timeout("slow"))
    >>> counts
    ErrorCounts(errors=Counter({'Timeout': 1}), first={'Timeout': 'r1: slow'})
    """

    errors: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """The first request that failed with each type of error, and its message."""

    @property
    def failed(self) -> int:
        """How many failed."""
        return self.errors.total()

    def of_errors(self) -> dict[str, object]:
        """The counts and the first failures as plain data."""
        return {
            kind: {"count": count, "first": self.first[kind]}
            for kind, count in self.errors.most_common()
        }

    def count_error(self, name: object, error: GenerationError) -> None:
        """Count a request of this name."""
        kind = type(error).__name__
        self.errors[kind] += 1
        self.first.setdefault(kind, f"{name}: {error.message}"[:300])


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def say_shared(folder: Path) -> None:
    """Say so where other processes run the job already: they do not share what they are asking
    for.
    """
    process_count = writers_of(folder)
    if process_count:
        subject = (
            "another process runs" if process_count == 1 else f"{process_count} other processes run"
        )
        say(
            f"{folder}: {subject} this job now, and requests are sent twice; wait for its end, or"
            " give each command a part of the requests (--shard I/N)"
        )


def words_of(refusal: Exception) -> str:
    """What to say of a file that cannot be read or written. Raises an `OSError` that is about no
    file.
    """
    if isinstance(refusal, OSError) and refusal.filename is None:
        raise refusal
    return (
        f"{refusal.filename}: {refusal.strerror}" if isinstance(refusal, OSError) else str(refusal)
    )


Answered = Slot[GenerationResult] | Written
"""A slot, or the answer as a job's line has it."""
Make = Callable[[Origin, Answered, bool], Callable[[], object]]
"""Makes the line or the row of a result, and returns what writes it, which raises `OSError`, and
`TableError` for a value that its column does not take. The third argument is whether a line is
bare: without metadata."""


def slot_of(row: Answered) -> Slot[GenerationResult]:
    """The slot of a row that may be as an earlier run wrote it."""
    return row.slot if isinstance(row, Written) else row


@contextlib.contextmanager
def results_to(
    stream: BinaryIO,
    form: str,
    source: Source,
    model: str,
    *,
    brief: bool,
    at_once: bool = False,
) -> Iterator[Make]:
    """Results in a form of `WRITTEN`. What is written is whole when the block is left.

    at_once: each line is in the file when it has been written, for those who watch the file.
    """

    def write_line(line: bytes) -> None:
        stream.write(line)
        if at_once:
            stream.flush()

    def row(origin: Origin, slot: Answered, bare: bool) -> Callable[[], object]:
        return partial(write, origin.row, origin.id, slot_of(slot))

    def line(origin: Origin, slot: Answered, bare: bool) -> Callable[[], object]:
        if origin.batch is not None:
            values = batch_line(slot_of(slot), str(origin.id), model, origin.batch)
        else:
            metadata = None if bare else carried(source.columns.request(origin.row.values))
            if isinstance(slot, Written):
                text = slot.line(origin.id, brief=brief, metadata=metadata)
                return partial(write_line, text)
            values = to_plain(slot, origin.id, brief=brief, metadata=metadata)
        return partial(write_line, strict_json.dump(values).encode() + b"\n")

    if form in DELIMITERS:
        with csv_out(
            stream,
            source.names(),
            source.columns,
            source.folder,
            delimiter=DELIMITERS[form],
        ) as write:
            yield row
    elif form:
        with arrow_out(
            stream,
            source.schema(),
            source.columns,
            form=form,
            model=model,
            brief=brief,
            folder=source.folder,
        ) as write:
            yield row
    else:
        yield line


def check_columns(source: Source, out: str | None) -> None:
    """Refuse columns of a table that OUT cannot hold, before anything is asked."""
    form = form_of(out)
    blocks = iter(()) if source.table is None else source.table.blocks()
    try:
        if form and form not in DELIMITERS:
            AnswerTable(
                source.schema(), source.columns, source.folder, model="", brief=True, form=form
            ).check(blocks)
        else:
            strict_json.dump([thaw(block.rows, readable) for block in islice(blocks, 1)])
    except (TableError, TypeError, ValueError, RecursionError) as refusal:
        refuse(str(refusal), "IN", "--out")


def write_summary(file: Path | None, plain: Mapping[str, object], code: int) -> int:
    """Write the counts of a run and its exit code, where there is a file for them. Returns the exit
    code: at least 1 where they cannot be written.
    """
    if file is None:
        return code
    try:
        with new_file(file) as stream:
            stream.write(strict_json.dump({**plain, "exit_code": code}).encode() + b"\n")
    except JournalError as refusal:
        say(f"--summary: {refusal}")
        return code or 1
    return code


def file_of(out: str | None) -> Path | None:
    """OUT as a file; None where it is stdout."""
    return None if out in (None, "-") else Path(out or "")


def form_of(out: str | None) -> str:
    """The form of OUT, by its suffix. Another suffix is bad usage."""
    if out is not None and "://" in out and not Path(out).parent.is_dir():
        refuse(
            f"{out} is an address, and OUT is a file of this machine: write it here, and copy it"
            " from here",
            "--out",
        )
    file = file_of(out)
    suffix = "" if file is None else file.suffix.lower()
    if suffix not in WRITTEN:
        refuse(
            f"{out} ends with {suffix}: OUT is JSON Lines (.jsonl), Parquet (.parquet), Arrow"
            " (.arrow), CSV (.csv) or TSV (.tsv)",
            "--out",
        )
    return WRITTEN[suffix]


def refuse_used(flag: str, file: Path | None, used: Iterable[str | Path | None]) -> None:
    """Refuse a file that a flag says to write, and that is used otherwise."""
    if file is None or (os.path.exists(file) and not os.path.isfile(file)):
        return  # a device keeps nothing
    for other in [name for name in used if name is not None]:
        if os.path.realpath(file) == os.path.realpath(other) or (
            os.path.exists(file) and os.path.exists(other) and os.path.samefile(file, other)
        ):
            refuse(
                f"{file} is another file of this command, which would be lost; give another name",
                flag,
            )


@dataclass
class Tally(ErrorCounts):
    """Counts of the results so far."""

    succeeded: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    made_prompt_tokens: int = 0
    """Prompt tokens of requests that were not finished before."""
    made_tokens: int = 0
    """Generated tokens of requests that were not finished before."""
    reused: int = 0
    """How many were finished before."""
    fell_back: int = 0
    """How many succeeded on a fallback route."""
    lost_samples: int = 0
    """Failed samples of requests with other samples that succeeded."""
    unanswered: int = 0
    """Answers that reached the length limit while the model was thinking."""

    @property
    def done(self) -> int:
        """How many succeeded or failed."""
        return self.succeeded + self.failed

    @property
    def bugs(self) -> int:
        """How many failed because of a bug in pipegen."""
        return self.errors[InternalError.__name__]

    def count(self, slot: Answered, name: LineId, *, reused: bool = False) -> None:
        """Count one request."""
        self.reused += reused
        if isinstance(slot, Written):
            self.succeeded += 1
            self.unanswered += slot.thinking_unfinished
            self._tokens(slot.prompt_tokens, slot.completion_tokens, reused=reused)
            return
        if is_ok(slot):
            result = slot.unwrap()
            self.succeeded += 1
            self.fell_back += bool(result.tried)
            self.lost_samples += len(result.failed_samples)
            self.unanswered += sum(
                sample.thinking_unfinished for sample in result.samples or (result,)
            )
            answers = [
                answer
                for sample in result.samples or (result,)
                for answer in sample.rounds or (sample,)
            ]
            generated = sum(answer.completion_tokens for answer in answers)
            prompt_tokens = sum(answer.prompt_tokens for answer in result.rounds or (result,))
            self._tokens(prompt_tokens, generated, reused=reused)
            return
        self.count_error(name, slot.failure())

    def _tokens(self, prompt: int, generated: int, *, reused: bool) -> None:
        self.prompt_tokens += prompt
        self.completion_tokens += generated
        if not reused:
            self.made_prompt_tokens += prompt
            self.made_tokens += generated

    def count_all(self, rows: Iterable[tuple[Origin, Slot[GenerationResult]]]) -> None:
        """Count requests of this run."""
        for origin, slot in rows:
            self.count(slot, origin.id)

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the run."""
        for name, value in vars(other).items():
            setattr(
                self,
                name,
                {**value, **self.first} if name == "first" else getattr(self, name) + value,
            )

    def summary(self, seconds: float, loading: float = 0.0, left: int = 0) -> str:
        """A summary of the run, so many seconds of which were spent on loading; `left` requests
        were not answered.

        >>> Tally(succeeded=2, prompt_tokens=30, completion_tokens=9, made_tokens=9).summary(
        ...     1.5, loading=1.0
        ... )
        '2 requests in 1.5 s (loading 1.0 s): 2 succeeded, 0 failed; 30 prompt tokens, 9 generated (18.0/s)'
        """
        outcome = (
            f"{self.succeeded} succeeded, {self.failed} failed; {self.prompt_tokens} prompt tokens,"
            f" {self.completion_tokens} generated"
        )
        outcome += (
            f" ({self.made_tokens / (seconds - loading):,.1f}/s)"
            if self.made_tokens and seconds - loading > 0.05
            else ""
        )
        outcome += f"; {self.fell_back} by fallback" if self.fell_back else ""
        outcome += f"; {self.reused} finished before" if self.reused else ""
        if self.lost_samples:
            outcome += (
                f"; {self.lost_samples} sample{'' if self.lost_samples == 1 else 's'} failed beside"
                " others that succeeded"
            )
        if self.unanswered:
            outcome += (
                f"; {self.unanswered} without an answer: the tokens ran out while the model was"
                " thinking (max_new_tokens)"
            )
        outcome += f"; {left} more were not answered" if left else ""
        loaded = f" (loading {loading:.1f} s)" if loading >= 0.1 else ""
        lines = [
            (
                f"{self.done} request{'' if self.done == 1 else 's'} in {seconds:.1f} s{loaded}:"
                f" {outcome}"
            )
        ]
        if self.bugs:
            lines.append(
                f"pipegen has a bug, which failed {self.bugs} of them: please report it, with the"
                " traceback above"
            )
        lines += [
            f"  {times} {kind}, the first is {self.first[kind]}"
            for kind, times in self.errors.most_common()
        ]
        return "\n".join(lines)
