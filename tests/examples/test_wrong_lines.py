"""A line that is no JSON is bad usage of an example program, which names the file and the line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["agent", "stage_b", "vis_tools"])
def test_a_line_that_is_no_json_is_named(
    name: str, shell: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "a").write_text('{"id": "1"}\n\nid,question\n')
    out = (tmp_path / "drawn",) if name == "vis_tools" else ()
    done = shell(name, "--model", "embedded", tmp_path / "a", *out)
    assert done.returncode == 2
    assert "a, line 3: Expecting value at column 1" in " ".join(
        done.stderr.replace("│", " ").split()
    )
