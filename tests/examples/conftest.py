"""For the tests of the example programs: the programs as modules, and images whose truth is
known.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from training.scenes import Scene, draw, sample_scene

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="session")
def program() -> Callable[[str], ModuleType]:
    """An example program as a module, by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses look for the module that they stand in
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def shell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run an example program as a reader does, but in this process, which has loaded torch."""

    def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", command)
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as left:
                code = int(left.code or 0)
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def draw_scene() -> Callable[[Path, int], Scene]:
    """Draw the image of a seed into a file; gives what it shows."""

    def drawn(file: Path, seed: int, count: int = 2, height: int = 128, width: int = 128) -> Scene:
        rng = random.Random(seed)
        scene = sample_scene(rng, count)
        draw(scene, height, width, rng).save(file)
        return scene

    return drawn
