"""The engine of docs/extending.md, in sixty lines, keeps the contract that the page promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipegen.testing import conformance

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def own() -> Any:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("\n## An engine\n") :]
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[:2]:
        exec(compile(block, str(PAGE), "exec"), names)
    return names["route"]


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_it_conforms(check: conformance.Check, own: Any) -> None:
    check(own)
