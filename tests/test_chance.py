"""What the README's command runs tries the same examples each time; only the nightly profile
searches.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent.parent


@pytest.mark.parametrize("profile", ["quick", "ci"])
def test_only_the_nightly_profile_draws_new_examples(profile: str) -> None:
    chosen = settings.get_profile(profile)
    assert (chosen.derandomize, chosen.database) == (True, None)
    assert not settings.get_profile("nightly").derandomize


def test_a_run_that_names_no_profile_takes_a_repeatable_one(tmp_path: Path) -> None:
    """In a process of its own: this one may run with the nightly profile."""
    (tmp_path / "conftest.py").write_bytes((HERE / "property_tests" / "conftest.py").read_bytes())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {HERE / 'tests'}\n")
    asked = (
        "from hypothesis import settings\n\ndef test_it():\n    assert settings().derandomize and"
        " settings().max_examples == 30\n"
    )
    (tmp_path / "test_profile.py").write_text(asked)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HYPOTHESIS_PROFILE", "PYTEST_ADDOPTS")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout


def test_no_session_of_the_readme_searches() -> None:
    code = (HERE / "noxfile.py").read_text(encoding="utf-8")
    assert "--hypothesis-profile" not in re.sub(r'""".*?"""', "", code, flags=re.DOTALL)
    # the order of sets, and with it the examples that are drawn from them
    assert '"PYTHONHASHSEED": "0"' in code
