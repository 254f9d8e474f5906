"""What a newcomer tries, and does wrong: a short message that says what to do. Other tries are in
test_outputs, test_tables and test_table_readers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.cli import main
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]


@pytest.mark.parametrize("given", ["phots", "phots/", "no/such/photos"])
@pytest.mark.parametrize("flags", [(), ("--sidecar", "txt"), ("-o", "out.jsonl")])
def test_a_mistyped_folder_is_named(
    given: str,
    flags: tuple[str, ...],
    generate: Command,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = generate(given, "--prompt", "What is it?", *flags)
    output = " ".join(ran.err.split())
    assert (ran.code, engine.calls, os.listdir(tmp_path)) == (2, [], ["photos"])
    assert f"there is no file or folder {given}" in output
    assert ("did you mean 'photos'?" in output) is given.startswith("phots")


def test_a_device_that_is_not_there_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    monkeypatch.chdir(tmp_path)
    flags = ("-o", "out.jsonl", "--model", "embedded", "--device", "cuda")
    with pytest.raises(SystemExit) as leaving:
        main(["generate", "in.jsonl", *flags])
    output = capsys.readouterr().err
    assert leaving.value.code == 2
    assert len(output.splitlines()) < 10
    assert "there is no 'cuda' here" in output
    assert "Traceback" not in output
    assert os.listdir(tmp_path) == ["in.jsonl"]


TWICE = """
import os, signal, pipegen as pg, pipegen.cli, pipegen.cli.generate as generate
from pipegen.cli import main
from pipegen.testing.fake import FakeEngine

def script(encoded):
    if encoded.request.id == "3":
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    return "Hello"

generate.open_routes = lambda load: pg.route(FakeEngine(script))
pipegen.cli.main()
"""


def test_ctrl_c_twice_ends_at_once_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"id": "{row}", "prompt": "Hi"}}\n' for row in range(6))
    )
    flags = ["generate", "in.jsonl", "-o", "out.jsonl", "--model", "fake", "--in-flight", "1"]
    done = subprocess.run(
        [sys.executable, "-c", TWICE, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert "interrupted; the same command goes on" in done.stderr
    calm = TWICE.replace('"3"', "None")
    again = subprocess.run(
        [sys.executable, "-c", calm, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (again.returncode, "3 finished before" in again.stderr) == (0, True)
    assert (tmp_path / "out.jsonl").read_text().count("Hello") >= 6


def test_the_readme_shows_the_same_command_twice() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    commands = [
        line.split("#")[0].strip()
        for line in readme.splitlines()
        if line.strip().startswith("pipegen generate")
    ]
    assert any(commands.count(command) == 2 for command in commands)
