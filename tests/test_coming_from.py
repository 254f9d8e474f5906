"""The pages for those who come from another library: the program before and the program after print
the same. That of vLLM is in tests/engines/.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.loopback import JsonHandler, Loopback
from support.pages import DOCS, before_and_after

pytestmark = pytest.mark.filterwarnings("default")  # what the other library warns of


def printed(program: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(program, "<program of the page>", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs run."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_transformers_pipeline_and_pipegen_print_the_same(folder: Path) -> None:
    pytest.importorskip("torch")
    from support.models import write_model

    write_model(folder / "my-model", "qwen3")
    before, after = map(printed, before_and_after("transformers.md"))
    assert before == after
    assert before.count("\n") >= 3


class BatchApi(JsonHandler):
    """As much of the batch API as the page uses. The answers come from pipegen, as they would come
    from a model there.
    """

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/files":
            # the file, within the parts of the form
            begin, end = sent.index(b'{"custom_id"'), sent.rindex(b"}") + 1
            Path("uploaded.jsonl").write_bytes(sent[begin:end] + b"\n")
            self.send({"id": "file-1", "object": "file"})
        else:
            command = [
                *("pipegen", "generate", "uploaded.jsonl", "-o", "there.jsonl"),
                *("--model", "embedded", "--quiet"),
            ]
            subprocess.run(command, check=True, timeout=120)
            batch = {"id": "batch-1", "object": "batch", "status": "completed"}
            self.send({**batch, "output_file_id": "file-2", **json.loads(sent)})

    def do_GET(self) -> None:
        self.send(Path("there.jsonl").read_bytes())


@pytest.fixture
def batch_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Loopback(BatchApi) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
        yield


@pytest.mark.slow
def test_the_batch_api_and_pipegen_print_the_same(folder: Path, batch_api: None) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    before, after = map(printed, before_and_after("openai-batch.md"))
    assert before == after == "colors red, green, blue, yellow\n"
