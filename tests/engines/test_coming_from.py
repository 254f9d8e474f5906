"""The page for those who come from `LLM.generate`: the program before and the program after print
the same, each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.models import write_model
from support.pages import before_and_after

pytest.importorskip("vllm")


def test_llm_generate_and_pipegen_print_the_same(tmp_path: Path) -> None:
    write_model(tmp_path / "my-model", "qwen3", head_dim=32, whole_text=True)
    before, after = (
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for program in before_and_after("vllm.md")
    )
    assert before == after
    assert before.count("\n") >= 3
