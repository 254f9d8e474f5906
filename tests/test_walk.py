"""How far one request walks: the counts of CONTRIBUTING.md are those of the code, give or take a third."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COUNTED = {
    name: (int(files), int(functions))
    for name, files, functions in re.findall(
        r"^\| (text|server|image error) \|[^|]*\| (\d+) \| (\d+) \|", (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
}


@pytest.mark.parametrize("name", ["text", "server", "image error"])
def test_a_request_goes_through_no_more_files_and_functions_than_are_counted(name: str) -> None:
    """In a process of its own: nothing else has filled its caches, and nothing else is profiled."""
    pytest.importorskip("torch")
    pytest.importorskip("aiohttp")
    done = subprocess.run([sys.executable, "-m", "support.walk", name], cwd=HERE, capture_output=True, text=True, check=True)
    *_, files, functions = done.stdout.splitlines()[0].split()
    counted = COUNTED[name]
    assert 0 < int(files) <= counted[0] * 4 / 3, done.stdout
    assert 0 < int(functions) <= counted[1] * 4 / 3, done.stdout
    assert (int(files), int(functions)) > (counted[0] / 2, counted[1] / 2), "the counts of CONTRIBUTING.md are too high by far: count again"
