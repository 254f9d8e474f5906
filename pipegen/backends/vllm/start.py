"""Starting vLLM: which versions are taken, which files must be whole, and what it means where it does not start."""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pipegen.backends.checkpoint.foreign import broken_file, load_failed, weight_files
from pipegen.core.errors import CallFailed
from pipegen.engines.extras import MissingExtra
from pipegen.records.fields import InvalidField
from pipegen.records.results import ModelLoadConfig

__all__ = ["HIGHEST", "LOWEST", "CannotStart", "check_files", "check_version", "starting"]

LOWEST, HIGHEST = (0, 27), (0, 32)
"""The versions of vLLM on which the tests of the real engine were run, the lowest and the newest, and what lies between them."""
_HINT = "vLLM's own log, above, says why; where memory is short, lower gpu_memory_utilization, max_model_len or max_num_seqs"


class CannotStart(Exception):
    """vLLM is not started, for this reason; `hint` says what to do."""

    def __init__(self, words: str, hint: str) -> None:
        super().__init__(words, hint)
        self.hint = hint

    def __str__(self) -> str:
        return str(self.args[0])


def check_version() -> None:
    """Raise `CannotStart` where the installed vLLM is none that pipegen was run on: its parts have other names and rules."""
    import vllm

    found = re.match(r"(\d+)\.(\d+)", str(vllm.__version__))
    if found is None or not LOWEST <= (int(found[1]), int(found[2])) <= HIGHEST:
        low, high = (".".join(map(str, version)) for version in (LOWEST, HIGHEST))
        words = f"vLLM {vllm.__version__} is installed, and pipegen runs on {low} to {high}"
        raise CannotStart(words, f'install one of these: pip install "vllm>={low},<{HIGHEST[0]}.{HIGHEST[1] + 1}"; or ask a server of yours with vllm_server')


def check_files(load: ModelLoadConfig, source: str) -> None:
    """Raise `CannotStart` where a file of the weights, or of the adapter, is missing or not whole. What is no folder is left to vLLM."""
    for folder in (Path(source), Path(load.adapter or source).expanduser()):
        found = broken_file(weight_files(folder)) if folder.is_dir() else None
        if found is not None:
            raise CannotStart(*found)


@contextlib.contextmanager
def starting(load: ModelLoadConfig, source: str) -> Iterator[None]:
    """Around code that starts vLLM: whatever it raises is one failure of the whole call; see `load_failed`. What pipegen refuses comes through."""
    try:
        yield
    except (CallFailed, InvalidField, MissingExtra):
        raise
    except Exception as raised:  # vLLM and what it stands on raise anything while they start
        raise load_failed(load, "cannot start vLLM on", raised, source, hint=getattr(raised, "hint", _HINT)) from raised
