"""Where results go: JSON Lines, sidecars, and a summary on stderr."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import category

from returns.result import Failure

from pipegen.cli.inputs import Origin
from pipegen.core.errors import InternalError, InvalidRequest
from pipegen.core.slots import Slot, is_ok
from pipegen.io.jsonl import LineId, to_plain
from pipegen.io.openai_batch import batch_line
from pipegen.jobs.journal import JournalError, new_file
from pipegen.records import strict_json
from pipegen.records.results import GenerationResult

__all__ = ["Tally", "line_of", "printable", "say", "write_sidecar"]

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text after them."""


def printable(text: str) -> str:
    r"""The text for a terminal or a page: control characters, except line feed and tab, become visible.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c.encode("unicode_escape").decode() if c not in "\n\t" and (category(c) in ("Cc", "Cs") or c in TURNING) else c for c in text)


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def line_of(slot: Slot[GenerationResult], origin: Origin, model: str, *, brief: bool) -> bytes:
    """The output line, in the format of the request's line."""
    line = to_plain(slot, origin.id, brief=brief) if origin.batch is None else batch_line(slot, str(origin.id), model, origin.batch)
    return strict_json.dump(line).encode() + b"\n"


def write_sidecar(file: Path, slot: Slot[GenerationResult], name: LineId, *, brief: bool, overwrite: bool) -> Slot[GenerationResult]:
    """Write an answer beside its image: the text as `.txt`, or the whole line as `.json`; nothing for a failed slot.

    Returns the slot, or `InvalidRequest` if the file cannot be written.
    """
    if not is_ok(slot):
        return slot
    body = slot.unwrap().text if file.suffix == ".txt" else strict_json.dump(to_plain(slot, name, brief=brief)) + "\n"
    if not overwrite and os.path.lexists(file):
        return Failure(InvalidRequest(f"the sidecar {file.name} exists already", hint="--overwrite replaces it"))
    try:
        with new_file(file) as stream:
            stream.write(body.encode())
    except (JournalError, OSError) as refusal:
        why = refusal.strerror if isinstance(refusal, OSError) else str(refusal).rpartition(": ")[2]
        return Failure(InvalidRequest(f"the sidecar {file.name} cannot be written: {why}", hint="free some space, or make the folder writable"))
    return slot


@dataclass
class Tally:
    """Counts of the results so far."""

    succeeded: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused: int = 0
    """How many were finished before."""
    fell_back: int = 0
    """How many succeeded on a fallback route."""
    lost_samples: int = 0
    """Failed samples of requests with other samples that succeeded."""
    unanswered: int = 0
    """Answers that reached the length limit while the model was thinking."""
    errors: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """The first request that failed with each type of error, and its message."""

    @property
    def failed(self) -> int:
        """How many failed."""
        return self.errors.total()

    @property
    def bugs(self) -> int:
        """How many failed because of a bug in pipegen."""
        return self.errors[InternalError.__name__]

    def count(self, slot: Slot[GenerationResult], name: LineId, *, reused: bool = False) -> None:
        """Count one request."""
        self.reused += reused
        if is_ok(slot):
            result = slot.unwrap()
            self.succeeded += 1
            self.fell_back += bool(result.tried)
            self.lost_samples += len(result.failed_samples)
            self.unanswered += sum(sample.thinking_unfinished for sample in result.samples or (result,))
            self.prompt_tokens += result.prompt_tokens
            self.completion_tokens += sum(sample.completion_tokens for sample in result.samples or (result,))
            return
        error = slot.failure()
        kind = type(error).__name__
        self.errors[kind] += 1
        self.first.setdefault(kind, f"{name}: {error.message}"[:300])

    def words(self, more_tokens: int = 0) -> str:
        """A short status; `more_tokens` are those of unfinished requests.

        >>> Tally(succeeded=2, completion_tokens=9).words(3)
        '2 done, 0 failed, 12 tokens'
        """
        return f"{self.succeeded} done, {self.failed} failed, {self.completion_tokens + more_tokens} tokens"

    def summary(self, seconds: float) -> str:
        """A summary of the run.

        >>> Tally(succeeded=2, prompt_tokens=30, completion_tokens=9).summary(1.5)
        '2 requests in 1.5 s: 2 succeeded, 0 failed; 30 prompt tokens, 9 generated'
        """
        total = self.succeeded + self.failed
        outcome = f"{self.succeeded} succeeded, {self.failed} failed; {self.prompt_tokens} prompt tokens, {self.completion_tokens} generated"
        outcome += f"; {self.fell_back} by fallback" if self.fell_back else ""
        outcome += f"; {self.reused} finished before" if self.reused else ""
        if self.lost_samples:
            outcome += f"; {self.lost_samples} sample{'' if self.lost_samples == 1 else 's'} failed beside others that succeeded"
        if self.unanswered:
            outcome += f"; {self.unanswered} without an answer: the tokens ran out while the model was thinking (max_new_tokens)"
        lines = [f"{total} request{'' if total == 1 else 's'} in {seconds:.1f} s: {outcome}"]
        if self.bugs:
            lines.append(f"pipegen has a bug, which failed {self.bugs} of them: please report it, with the traceback above")
        lines += [f"  {times} {kind}, the first is {self.first[kind]}" for kind, times in self.errors.most_common()]
        return "\n".join(lines)
