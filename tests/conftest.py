"""For every test: no hub, no network, one thread (a busy machine must not decide how long a test
takes).
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import pytest
from support.profiles import (
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_logfinish,
)

__all__ = [
    "collect_ignore",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
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
    *("typing", "bench", "engines", "servers", "gpu/device.py", "gpu/everything.py"),
    *("gpu/programs.py", "gpu/vllm_arm.py"),
]

HERE = Path(__file__).parent
# Tests whose coverage is not measured, which would take 40% more time: the core has its own. The
# files beside this one are not measured either.
UNMEASURED = tuple(
    HERE / name
    for name in (
        *("backends", "cli", "config", "conformance", "contrib", "embedded", "evals", "examples"),
        *("golden", "gpu", "on_ray", "real_tokenizers", "report"),
        *("jobs/test_faults.py", "jobs/test_ray_turns.py"),
        *("plugins/test_hf_hooks.py", "plugins/test_plugins_hf.py"),
    )
)


@functools.cache
def is_measured(file: Path) -> bool:
    return file.parent != HERE and not any(file.is_relative_to(place) for place in UNMEASURED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("_cov"):
        for item in items:
            if not is_measured(item.path):
                item.add_marker("no_cover")
