"""For every law: how tests begin."""

import os
import tempfile

from support.profiles import (
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_call,
    pytest_runtest_logfinish,
)

__all__ = [
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_logfinish",
]

# what checks of engines find is kept for one run of the laws
_verdicts = tempfile.TemporaryDirectory(prefix="pipegen-tests-")
os.environ["XDG_CACHE_HOME"] = _verdicts.name
