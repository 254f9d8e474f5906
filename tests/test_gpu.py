"""The programs that measure a GPU run on a CPU too, with small sizes, and find there what they have
to find.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
pytest.importorskip("transformers")
HERE = Path(__file__).parent


@pytest.mark.parametrize("program", ["parity", "skewed", "memory", "shared"])
def test_a_program_runs_and_all_is_as_it_has_to_be(program: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "programs" / "gpu" / "everything.py"), program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU, small sizes" in done.stdout
    assert (
        done.stdout.count("| yes |")
        >= {"parity": 4, "skewed": 3, "memory": 4, "shared": 1}[program]
    )
    assert "| NO |" not in done.stdout


def test_an_unknown_program_is_named() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "programs" / "gpu" / "everything.py"), "parties"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (
        2,
        "there is no parties: take some of parity, passes, skewed, memory, shared",
    )
