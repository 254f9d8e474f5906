"""In which process torch computes: its threads are not there in a process that is forked off later, and it would wait for them for ever."""

from __future__ import annotations

import os
import uuid

import torch

from pipegen.core.errors import BackendFailed, CallFailed

__all__ = ["check_process"]


class _First:
    """The process that computed first; one that is forked off later finds it here."""

    process: int | None = None


def check_process() -> None:
    """Raise `CallFailed` in a process that was forked off after torch had computed in the one before, unless torch uses one thread alone."""
    here = os.getpid()
    if _First.process is None:
        _First.process = here
    bad_fork = getattr(torch.cuda, "_is_in_bad_fork", bool)()
    if _First.process != here and (bad_fork or torch.get_num_threads() > 1):
        words = f"process {here} was forked from process {_First.process}, in which torch had computed already: here it would wait for ever for its threads"
        hint = "start processes with 'spawn' or 'forkserver', or fork before the first request; on a CPU, OMP_NUM_THREADS=1 works too"
        raise CallFailed(BackendFailed(words, backend="hf", scope="batch", incident=uuid.uuid4().hex[:12], hint=hint))
