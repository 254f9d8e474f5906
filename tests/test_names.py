"""Names: a class has one of its own."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from importlib import resources
from pathlib import Path

import pipegen

PACKAGE = Path(str(resources.files(pipegen)))
TWICE = {
    # A user imports either: from `pipegen.backends.servers`, what a server's wire answers; from
    # `pipegen.contrib.renderers`, what a backend of that contract gives.
    "Completion",
}
"""Names of several classes, all of them public."""


def module_of(path: Path) -> str:
    return ".".join(("pipegen", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


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
