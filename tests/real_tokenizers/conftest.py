"""The modules that these tests share are beside them; without a folder of real tokenizers there are
no tests here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if "PIPEGEN_REAL_TOKENIZERS" in os.environ else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one tokenizer run one after another in one process, so that it is loaded
    once.
    """

    def tokenizer(item: pytest.Item) -> tuple[str, str]:
        # of parametrised tests
        pair = getattr(item, "callspec", None) and item.callspec.params.get("pair")  # type: ignore[attr-defined]
        return (f"{pair.tokenizer}{pair.lent}", str(pair)) if pair else ("", "")

    items.sort(key=tokenizer)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(tokenizer(item)[0] or "others"))
