"""The declared fields of chat requests are those of the servers' own classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from pipegen.backends.servers.chat_fields import FIELDS

launch: Any = sys.modules["launch"]  # which conftest.py has loaded
CLASSES = {
    "vllm": "vllm.entrypoints.openai.chat_completion.protocol",
    "sglang": "sglang.srt.entrypoints.openai.protocol",
}


@pytest.mark.parametrize("engine", CLASSES)
def test_the_declared_fields_are_those_of_the_class(engine: str) -> None:
    code = (
        f"import json; from {CLASSES[engine]} import ChatCompletionRequest as R;"
        " print(json.dumps(sorted(R.model_fields)))"
    )
    said = {**os.environ, **launch.ENVIRONMENT, "PYTHONPATH": launch.PATHS[engine]}
    python = os.environ[launch.PYTHONS[engine]]
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, env=said
    )
    assert set(json.loads(done.stdout.splitlines()[-1])) == FIELDS[engine]
