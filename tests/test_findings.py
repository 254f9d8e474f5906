"""The scripts of findings/ have the form that CONTRIBUTING states. `nox -s findings` runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "findings").iterdir())
START = """\
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_finding_has_its_form(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    first, title, *_ = text.splitlines()
    comment, _, code = text.partition(START)
    assert re.fullmatch(r"[a-z0-9_]+\.sh", script.name)
    assert os.access(script, os.X_OK)
    assert first == "#!/usr/bin/env bash"
    assert re.fullmatch(r"# [A-Z_a-z].*\.", title)
    assert all(line.startswith("#") for line in comment.splitlines())
    assert re.search(r"^# .*\d\. Checked \d{4}-\d\d-\d\d\.\n\Z", comment, re.MULTILINE)
    assert "pipegen" not in text
    installs = re.findall(r"^.*\binstall\b(.*)$", code, re.MULTILINE)
    assert installs
    pins = [word for words in installs for word in words.split() if word != "--quiet"]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert [pin for pin in pins if pin.partition("==")[2] not in comment] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_can_read_a_finding(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
