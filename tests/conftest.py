"""For every test: no hub, no network, one thread (a busy machine must not decide how long a test
takes).
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support import profiles
from support.profiles import (
    pytest_collection_finish,
    pytest_runtest_call,
    pytest_runtest_logfinish,
)

__all__ = [
    "collect_ignore",
    "pytest_collect_file",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_logfinish",
]

# Before any test module imports torch or transformers.
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# what checks of engines find is kept for one run of the tests
_verdicts = tempfile.TemporaryDirectory(prefix="pipegen-tests-")
os.environ["XDG_CACHE_HOME"] = _verdicts.name

# Code for type checkers, which is not run; programs that measure; and real engines, in environments
# of their own: `nox -s engines`, `nox -s servers`.
collect_ignore = [
    *("typing", "engines", "servers", "programs/bench", "programs/gpu"),
]

HERE = Path(__file__).parent
# Tests whose coverage is measured, which takes twice the time: those of the rooms that hold the
# core, and the doctests. A branch of the core has its test there.
MEASURED = tuple(
    HERE / room
    for room in (
        *("answer", "core", "drivers", "ending", "jobs", "media", "records", "stages", "template"),
    )
)
# Of these rooms, what takes long and covers nothing that others do not.
UNMEASURED = (
    HERE / "jobs" / "test_faults.py",
    HERE / "jobs" / "test_ray_turns.py",
)


@functools.cache
def is_measured(file: Path) -> bool:
    if not file.is_relative_to(HERE):
        return True  # a doctest
    return file not in UNMEASURED and any(map(file.is_relative_to, MEASURED))


class Measuring:
    """Stops coverage before a test that is not measured, and its fixtures."""

    def __init__(self) -> None:
        self.stopped: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        from coverage import Coverage

        if not is_measured(item.path):
            if self.stopped is None and (running := Coverage.current()):
                running.stop()
                self.stopped = running
        elif self.stopped is not None:
            self.stopped.start()
            self.stopped = None


def pytest_configure(config: pytest.Config) -> None:
    profiles.pytest_configure(config)
    if config.pluginmanager.hasplugin("_cov"):
        config.pluginmanager.register(Measuring())


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """A file of tests is not searched for doctests: it has none, and that takes as long as to read
    it.
    """
    found = yield
    if file_path.name.startswith("test_"):
        return [one for one in found if type(one).__name__ != "DoctestModule"]
    return found
