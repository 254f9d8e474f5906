"""`nox --install-only` makes the environments of every session, and runs nothing in them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parents[1]
Session = Callable[[Any], None]


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Any, dict[str, Session]]:
    """The noxfile, over a stand-in for nox, with its environments in a temporary folder; and its
    sessions.
    """
    sessions: dict[str, Session] = {}

    def session(made: Session | None = None, **_: Any) -> Any:
        if made is None:
            return lambda made: session(made)
        sessions[made.__name__] = made
        return made

    nox: Any = ModuleType("nox")
    nox.Session, nox.session, nox.options = object, session, SimpleNamespace()
    nox.command = SimpleNamespace(CommandFailed=RuntimeError)
    nox.project = SimpleNamespace(
        load_toml=lambda name: tomllib.loads((HERE / name).read_text(encoding="utf-8")),
        dependency_groups=lambda project, *groups: groups,
    )
    monkeypatch.setitem(sys.modules, "nox", nox)
    spec = importlib.util.spec_from_file_location("noxfile", HERE / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("ENGINE", "VLLM", "SGLANG", "VLLM_LOWEST", "BENCH_PEERS"):
        monkeypatch.setattr(module, name, environment(tmp_path / name))
    monkeypatch.setattr(module, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))
    return module, sessions


def environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    for tool in [
        "python",
        "pytest",
        "ruff",
        "pipegen",
        "mkdocs",
        "coverage",
        "uv",
        "mypy",
        "pyright",
    ]:
        (folder / "bin" / tool).touch()
    (folder / "lib" / "python3" / "site-packages").mkdir(parents=True)
    return folder


class InstallOnly:
    """A session as `--install-only` has it."""

    posargs: tuple[str, ...] = ()

    def __init__(self, folder: Path, *, sandboxed: bool) -> None:
        self.virtualenv = SimpleNamespace(is_sandboxed=sandboxed, location=str(environment(folder)))
        self.folder, self.installed = folder, list[str]()

    def run(self, *_: object, **__: object) -> None:
        return None

    def run_install(self, *args: str, **_: object) -> object:
        if "--report" in args:
            planned = [{"metadata": {"name": "torch", "version": "1"}}]
            Path(args[args.index("--report") + 1]).write_text(json.dumps({"install": planned}))
        if "venv" in args:
            environment(Path(args[-1]))
        self.installed.append(" ".join(args))
        return '[{"name": "torch", "version": "1"}]' if "list" in args else True

    def install(self, *args: str, **_: object) -> None:
        self.run_install("pip", "install", *args)

    def create_tmp(self) -> str:
        return str(self.folder)

    def chdir(self, _: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def error(self, words: str) -> None:
        raise AssertionError(words)

    def log(self, *_: object) -> None: ...

    notify = log


@pytest.mark.parametrize("sandboxed", [True, False])
def test_every_session_can_only_install(
    sandboxed: bool, noxfile: tuple[Any, dict[str, Session]], tmp_path: Path
) -> None:
    _, sessions = noxfile
    assert {"engine", "tests", "newest", "wheel", "bench", "engines"} <= sessions.keys()
    installing = set()
    del sessions["release"]  # the changelog stops it before anything is made
    for name, made in sessions.items():
        session = InstallOnly(tmp_path / name, sandboxed=sandboxed)
        made(session)
        if any(" install " in f"{line} " for line in session.installed):
            installing.add(name)
    assert sessions.keys() - installing == {"wheel", "findings", "demo"}
