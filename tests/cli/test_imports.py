"""What each command imports: one that asks no engine starts neither torch nor transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HEAVY = {
    *("torch", "transformers", "tokenizers", "numpy", "PIL", "jinja2", "huggingface_hub"),
    *("safetensors", "asyncio", "aiohttp", "vllm", "pyarrow", "jsonschema", "mcp", "peft"),
}
SCRIPT = """
import contextlib, json, sys
import pipegen.cli
sys.argv = ["pipegen", *sys.argv[1:]]
with contextlib.suppress(SystemExit):
    pipegen.cli.main()
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def imported_by(folder: Path, *arguments: str) -> set[str]:
    """The heavy packages that a command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that is finished."""
    made = tmp_path_factory.mktemp("finished")
    (made / "in.jsonl").write_text('{"id": "a", "prompt": "What is the capital of Japan?"}\n')
    assert "torch" in imported_by(made, *GENERATE)
    return made


GENERATE = ("generate", "in.jsonl", "-o", "out.jsonl", "--model", "embedded")


@pytest.mark.parametrize(
    "arguments",
    [
        GENERATE,
        ("export", "out.jsonl.job", "-o", "exported.jsonl"),
        ("diff", "out.jsonl", "out.jsonl"),
        ("view", "out.jsonl", "-o", "page.html"),
        ("generate", "--help"),
        ("schema",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_that_asks_no_engine_imports_nothing_heavy(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    assert imported_by(folder, *arguments) == set()
