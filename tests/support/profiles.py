"""How every test begins: with a profile of Hypothesis, which is `quick` (the default), `few` for
mutants, `ci` for more examples, or `nightly` to search for long; and with a garbage collector that
does not go through what was there before the first test, and what a test has imported.

All but `nightly` try the same examples each time, so a test run does not depend on chance; it alone
draws new ones. Chosen by `pytest property_tests --hypothesis-profile=nightly` or by the
environment variable HYPOTHESIS_PROFILE. The `conftest.py` of each folder of tests takes its
hooks from here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from returns.primitives.exceptions import UnwrapFailedError

__all__ = [
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_logfinish",
]

# No deadline: the machine may be busy, and a slow example is not a wrong one.
ALWAYS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", ALWAYS, max_examples=30, derandomize=True, print_blob=True)
settings.register_profile("few", ALWAYS, max_examples=15, derandomize=True, print_blob=True)
settings.register_profile("ci", ALWAYS, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile("nightly", ALWAYS, max_examples=5_000, derandomize=False)


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts what runs in the background so; the tests interrupt themselves
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = lambda fd: None  # no test cuts the power: what is written is there at once
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


class Collector:
    """The garbage collector, which is to leave alone what was imported: with torch and transformers
    a collection takes a quarter of a second, and each engine that is closed makes one.
    """

    imported = 0
    freeze = staticmethod(gc.freeze)

    @classmethod
    def leave_what_was_imported(cls) -> None:
        if len(sys.modules) > cls.imported + 50:
            gc.collect()
            cls.freeze()
            cls.imported = len(sys.modules)


def pytest_collection_finish() -> None:
    Collector.leave_what_was_imported()
    # `pipegen generate` ends with the second one, after which all would be gone through again
    gc.freeze = gc.unfreeze = lambda: None


def pytest_runtest_logfinish() -> None:
    Collector.leave_what_was_imported()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """The error of a row that was to have a result is a part of the message: else a summary does not
    say why a test failed.
    """
    try:
        return (yield)
    except UnwrapFailedError as error:
        error.args = (error.halted_container,)
        raise
