"""The command line run in this process, over a scripted engine."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.testing.fake import FakeEngine


class Ran(NamedTuple):
    """What a command left behind: its exit code, its lines on stdout, and what it said on
    stderr.
    """

    code: int
    out: list[dict[str, Any]]
    err: str


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("Hello END of it")


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], engine: FakeEngine
) -> Callable[..., Ran]:
    """`command("generate", ...)` runs pipegen with `engine` in place of every model; `stdin` is
    what it reads there.
    """
    monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(engine))

    def run(*arguments: str | Path, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as leaving:
            main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        lines = [json.loads(line) for line in out.splitlines()] if out.startswith(b"{") else []
        code = leaving.value.code
        return Ran(code if isinstance(code, int) else 0, lines, err.decode())

    return run


@pytest.fixture
def generate(command: Callable[..., Ran]) -> Callable[..., Ran]:
    """`generate(IN, ...)` runs `pipegen generate` with `engine` as its model."""
    return lambda *arguments, **more: command("generate", *arguments, "--model", "fake", **more)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """`jsonl(...)` writes lines (mappings, or text as it stands) to a file in the test's folder."""

    def write(*lines: Any, name: str = "in.jsonl") -> Path:
        file = tmp_path / name
        file.write_text(
            "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        )
        return file

    return write


@pytest.fixture
def written() -> Callable[[Path], list[dict[str, Any]]]:
    """The lines of a file of results."""

    def read(file: Path) -> list[dict[str, Any]]:
        lines: Iterable[bytes] = file.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    return read
