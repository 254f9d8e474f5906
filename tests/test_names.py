"""Names: a class has one of its own, a name is imported from the module that defines it, and that of
a parameter has few types.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pipegen

PACKAGE = Path(str(resources.files(pipegen)))
HERE = Path(__file__).parent.parent
TWICE = {
    # A user imports either: from `pipegen.backends.servers`, what a server's wire answers; from
    # `pipegen.contrib.renderers`, what a backend of that contract gives.
    "Completion",
}
"""Names of several classes, all of them public."""
FACES = {
    *("pipegen", "pipegen.backends", "pipegen.plugins", "pipegen.stages", "pipegen.jobs.ray"),
    *("pipegen.backends.servers", "pipegen.config", "pipegen.contrib.renderers"),
    "pipegen.stages.ending",  # the reference shows its `cut`
}
"""Public modules, which give names that others define."""
TYPES = {
    "backends": 245,
    "cli": 84,
    "drivers": 70,
    "records": 62,
    "jobs": 51,
    "core": 46,
    "report": 38,
    "stages": 34,
    "io": 30,
    "testing": 27,
    "template": 26,
    "answer": 14,
    "contrib": 13,
    "config": 9,
    "ending": 9,
    "media": 8,
    "engines": 6,
    "evals": 5,
    "plugins": 2,
}
"""For each room, how many types its names of parameters have beyond the first of each name."""


def module_of(path: Path) -> str:
    return ".".join(("pipegen", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_in(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """From which module each name is imported, the name there, and the name here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (
                (node.module, alias.name, alias.asname or alias.name) for alias in node.names
            )


def test_each_class_has_a_name_of_its_own() -> None:
    """With or without an underscore, and within functions too."""
    places = defaultdict[str, list[str]](list)
    for module, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{module}.{node.name}, line {node.lineno}")
    assert {
        name: where for name, where in places.items() if len(where) > 1 and name not in TWICE
    } == {}
    assert {name for name in TWICE if len(places[name]) < 2} == set(), "no longer pinned"


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    """Public modules give names of others. All else is imported from where it is written."""
    imported = {
        module: {here for _, _, here in imports_in(tree_of(path))}
        for module, path in MODULES.items()
        if module not in FACES
    }
    paths = [
        *PACKAGE.rglob("*.py"),
        *(
            path
            for folder in ("tests", "property_tests", "docs")
            for path in (HERE / folder).rglob("*.py")
        ),
    ]
    assert [
        f"{path}: {name} from {module}"
        for path in sorted(paths)
        for module, name, _ in imports_in(tree_of(path))
        if name in imported.get(module, ()) and f"{module}.{name}" not in MODULES
    ] == []


def test_a_name_of_a_parameter_has_few_types_within_a_room() -> None:
    """The counts only fall. Who needs a name for another type finds one that says what the thing
    is. `Any` and `object` count as one: both take all values.
    """
    types = defaultdict[tuple[str, str], set[str]](set)
    for path in MODULES.values():
        room = path.relative_to(PACKAGE).parts[0]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.arg) and node.annotation is not None and room in TYPES:
                kind = re.sub(r"\bobject\b", "Any", ast.unparse(node.annotation))
                types[room, node.arg].add(kind.removesuffix(" | None"))
    counts = dict.fromkeys(TYPES, 0)
    for (room, _), several in types.items():
        counts[room] += len(several) - 1
    assert {
        room: f"{count} types, and {TYPES[room]} are allowed"
        for room, count in counts.items()
        if count > TYPES[room]
    } == {}
