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
ROOMS = (
    *("core", "records", "media", "embedded", "engines", "ending", "template", "answer"),
    *(
        "stages",
        "plugins",
        "drivers",
        "backends",
        "io",
        "jobs",
        "evals",
        "report",
        "config",
        "cli",
        "testing",
        "contrib",
    ),
)
"""Each imports only itself and those before it."""
BUDGETS = {
    "backends": 121_800,
    "stages": 24_600,
    "template": 17_300,
    "answer": 11_100,
    "ending": 7_700,
    "cli": 41_000,
    "records": 37_500,
    "report": 35_000,
    "jobs": 33_000,
    "drivers": 26_200,
    "testing": 26_200,
    "io": 20_500,
    "core": 14_000,
    "media": 13_600,
    "config": 8_600,
    "engines": 7_700,
    "contrib": 6_500,
    "plugins": 5_600,
    "evals": 5_300,
    "embedded": 50,
}
"""How many nodes of the syntax tree each room may have."""
HEAVY = (
    *("torch", "transformers", "vllm", "PIL", "numpy", "peft", "accelerate", "aiohttp", "orjson"),
    *("tenacity", "pyarrow", "jsonschema"),
)


def tree_of(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def imported_by(name: str, *, for_types: bool = False) -> list[str]:
    """What a file imports, inside functions too; what only type checkers see where `for_types` asks
    for it.
    """
    tree = tree_of(name)
    guarded = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    hidden = set() if for_types else {id(inner) for node in guarded for inner in ast.walk(node)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in hidden:
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and id(node) not in hidden:
            assert node.level == 0, f"{name}: imports are written in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_every_file_lies_in_a_room() -> None:
    assert {name.split("/")[0] for name in FILES} - {"__init__.py", "__main__.py"} == set(ROOMS)


def test_the_pages_that_list_the_rooms_do_so_in_their_order() -> None:
    page = (HERE / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)) == ROOMS
    _, _, table = (
        (HERE / "docs" / "how-it-works.md")
        .read_text(encoding="utf-8")
        .partition("\n## The rooms\n")
    )
    assert tuple(re.findall(r"^\| (?:\[|`)(\w+)", table, re.MULTILINE)) == ROOMS


def test_a_room_imports_only_itself_and_the_rooms_before_it() -> None:
    upwards = [
        f"{name} imports {module}"
        for name in FILES
        if "/" in name
        for module in imported_by(name, for_types=True)
        if module.startswith("pipegen.")
        and module.split(".")[1] in ROOMS[ROOMS.index(name.split("/")[0]) + 1 :]
    ]
    assert upwards == []


# The doctor asks torch for a GPU.
ENGINE_IMPORTERS = ("backends/", "cli/doctor.py")


def test_only_backends_import_an_engine() -> None:
    names = [name for name in FILES if not name.startswith(ENGINE_IMPORTERS)]
    assert [
        name
        for name in names
        if {module.split(".")[0] for module in imported_by(name)}
        & (set(HEAVY) - {"PIL", "pyarrow", "jsonschema"})
    ] == []


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `code`."""
    script = (
        f"import sys\n{code}\nimport json; print(json.dumps(sorted({{name.split('.')[0] for name in"
        " sys.modules})))"
    )
    # -P: the package that is installed, not a folder that happens to lie here.
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


# C6
@pytest.mark.parametrize(
    "code",
    [
        "import pipegen",
        "import pipegen as pg; [getattr(pg, name) for name in pg.__all__]",
        (
            "import pipegen as pg; pg.GenerationOptions(temperature=0.5, stop=('END',));"
            " pg.VlmGenerationRequest(prompt='Hi', images=['a.png'])"
        ),
        "import pipegen as pg; pg.ModelLoadConfig(model='embedded', dtype='bf16')",
        "import pipegen.cli",
        (
            "import contextlib, pipegen.cli\nwith contextlib.suppress(SystemExit): sys.argv ="
            " ['pipegen', '--help']; pipegen.cli.main()"
        ),
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


def test_a_file_is_as_long_as_its_idea_and_those_over_600_lines_are_named() -> None:
    assert {
        name
        for name, path in FILES.items()
        if len(path.read_text(encoding="utf-8").splitlines()) > 600
    } == {
        "engines/settings.py",  # a record for each engine
        "io/table_out.py",  # every type of a table's columns
        "report/diagnose.py",  # every fault that verify names
        "report/audit_file.py",
        "jobs/journal.py",
        "records/messages.py",  # every part of a message
        "template/template.py",  # the guard of chat templates
    }


def test_no_room_has_more_code_than_its_budget() -> None:
    """A budget only falls. Who needs more takes it from another room, and says so in the commit."""
    nodes = dict.fromkeys(BUDGETS, 0)
    for name in FILES:
        room, _, rest = name.partition("/")
        if rest:
            nodes[room] += sum(1 for _ in ast.walk(tree_of(name)))
    assert {
        room: f"{count} nodes, and {BUDGETS[room]} are allowed"
        for room, count in nodes.items()
        if count > BUDGETS[room]
    } == {}


def test_each_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_nothing_catches_every_exception() -> None:
    """But where it raises again, and at the border with foreign code and data, which is one
    file.
    """
    for name in FILES:
        handlers = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.ExceptHandler)]
        broad = [
            node
            for node in handlers
            if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
        ]
        silent = [
            node.lineno
            for node in broad
            if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        ]
        assert not silent or name == "core/foreign_calls.py", f"{name}: lines {silent}"


def test_every_module_says_what_it_is_for() -> None:
    assert [
        name for name in FILES if not ast.get_docstring(tree_of(name)) and tree_of(name).body
    ] == []


def test_what_is_not_code_is_shipped_too() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert {path.name for path in (PACKAGE / "embedded" / "weights").iterdir()} >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "SHA256SUMS",
    }


def test_the_version_of_the_package_is_the_newest_of_the_changelog() -> None:
    newest = re.search(
        r"^## \[?(\d+\.\d+\.\d+)", (HERE / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert newest is not None
    assert newest.group(1) == pipegen.__version__


@pytest.mark.skipif(importlib.util.find_spec("nox") is None, reason="nox is not installed here")
def test_the_commands_of_the_readme_are_sessions_of_the_noxfile() -> None:
    sessions = set(
        re.findall(
            r"^def (\w+)\(session", (HERE / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    asked = set(
        re.findall(r"nox (?:-s|--session) (\w+)", (HERE / "README.md").read_text(encoding="utf-8"))
    )
    assert asked <= sessions
