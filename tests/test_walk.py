"""What one request goes through: the counts of CONTRIBUTING.md are those of the code, give or take
a fiftieth.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROW = re.compile(
    r"^\| (text|server|image|image error) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|",
    re.MULTILINE,
)


def test_a_request_goes_through_no_more_files_functions_and_frames_than_are_counted() -> None:
    """In a process of its own: nothing else has filled its caches, and nothing else is profiled.

    Where one falls by more, its new count is to be written, so that it does not grow back.
    """
    pytest.importorskip("torch")
    pytest.importorskip("aiohttp")
    printed = subprocess.run(
        [sys.executable, "-m", "support.walk"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout
    counted = {
        name: tuple(map(int, counts))
        for name, *counts in ROW.findall(
            (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
        )
    }
    walked = {
        name: tuple(map(int, counts))
        for name, *counts in re.findall(r"^(.+?) (\d+) (\d+) (\d+) (\d+)$", printed, re.MULTILINE)
    }
    assert set(walked) == set(counted) == {"text", "server", "image", "image error"}
    for name, counts in walked.items():
        for now, then in zip(counts, counted[name], strict=True):
            assert then * 98 <= now * 100 <= then * 102, (
                f"{name}: {counts} files, functions and frames, and CONTRIBUTING.md says"
                f" {counted[name]}"
            )
