"""The shape of the code: who may import whom, what importing costs, and how long a file may be."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import pipegen

HERE = Path(__file__).parent.parent
PACKAGE = Path(str(resources.files(pipegen)))
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
PURE = [name for name in FILES if name in ("records.py", "errors.py", "slots.py", "pipe.py", "capabilities.py") or name.startswith("stages/")]
OUTER = ("backends", "drive", "stream", "route", "cli", "io", "loading", "testing", "embedded")
HEAVY = ("torch", "transformers", "vllm", "PIL", "numpy", "peft", "accelerate", "aiohttp", "orjson", "tenacity")


def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def imported_by(name: str) -> list[str]:
    """What a file imports, inside functions too, but not what only type checkers see."""
    tree = tree_of(name)
    for_types = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) for inner in ast.walk(node)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in for_types:
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            assert node.level == 0, f"{name}: imports are written in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("name", PURE)
def test_the_pure_core_imports_nothing_from_engines_or_drivers(name: str) -> None:
    assert [module for module in imported_by(name) if module.startswith(tuple(f"pipegen.{outer}" for outer in OUTER))] == []


# Also: the embedded model is trained with torch, test models are made with it, and the doctor asks it for a GPU.
ENGINE_IMPORTERS = ("backends/", "embedded/", "testing/models.py", "testing/vision_models.py", "testing/prompts.py", "cli/doctor.py")


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(ENGINE_IMPORTERS)])
def test_only_backends_import_an_engine(name: str) -> None:
    assert [module for module in imported_by(name) if module.split(".")[0] in ("torch", "transformers", "vllm", "peft")] == []


def test_the_pure_core_is_found() -> None:
    assert {"records.py", "slots.py", "pipe.py", "stages/stop.py", "stages/render.py"} <= set(PURE)


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nimport json; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    # -P: the package that is installed, not a folder that happens to lie here.
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


# C6
@pytest.mark.parametrize(
    "code",
    [
        "import pipegen",
        "import pipegen as pg; [getattr(pg, name) for name in pg.__all__]",
        "import pipegen as pg; pg.GenerationOptions(temperature=0.5, stop=('END',)); pg.VlmGenerationRequest(prompt='Hi', images=['a.png'])",
        "import pipegen as pg; pg.ModelLoadConfig(model='embedded', dtype='bf16')",
        "import pipegen.cli",
        "import contextlib, pipegen.cli\nwith contextlib.suppress(SystemExit): sys.argv = ['pipegen', '--help']; pipegen.cli.main()",
    ],
)
def test_importing_and_building_records_loads_nothing_heavy(code: str) -> None:
    loaded = loaded_by(code)
    assert "pipegen" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_importing_loads_no_event_loop() -> None:
    """It would double what the import costs, and code without `await` needs none."""
    assert loaded_by("from pipegen import *").isdisjoint({"asyncio", "ssl", "hashlib", "difflib"})


def test_naming_an_engine_loads_no_weights() -> None:
    pytest.importorskip("torch")
    engine: Any = pipegen.backends.hf("embedded").engine
    assert engine.tokenizer.vocab_size > 0
    assert not engine.loaded


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_much_longer_than_250_lines(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("name", FILES)
def test_nothing_catches_every_exception(name: str) -> None:
    """But where it raises again, and at the border with foreign code and data, which is one file."""
    handlers = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.ExceptHandler)]
    broad = [node for node in handlers if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")]
    for node in broad:
        assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)) or name == "border.py", f"line {node.lineno}"


@pytest.mark.parametrize("name", FILES)
def test_every_module_says_what_it_is_for(name: str) -> None:
    assert ast.get_docstring(tree_of(name)) or not tree_of(name).body


def test_what_is_not_code_is_shipped_too() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert {path.name for path in (PACKAGE / "embedded" / "weights").iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json", "SHA256SUMS"}


def test_the_version_of_the_package_is_the_newest_of_the_changelog() -> None:
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", (HERE / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == pipegen.__version__


@pytest.mark.skipif(importlib.util.find_spec("nox") is None, reason="nox is not installed here")
def test_the_commands_of_the_readme_are_sessions_of_the_noxfile() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (HERE / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    asked = set(re.findall(r"nox (?:-s|--session) (\w+)", (HERE / "README.md").read_text(encoding="utf-8")))
    assert asked <= sessions
