"""Hand-written `__init__`s, which only type checkers see, say what the records' fields are: each field, with a default where it has one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import pipegen

PACKAGE = Path(str(resources.files(pipegen)))


def stubs() -> dict[str, tuple[str, str, ast.arguments]]:
    """Module, class and arguments of each `__init__` that is written for type checkers."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("pipegen", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for block in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
                    for node in block.body:
                        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and isinstance(kind, ast.ClassDef):
                            found[f"{module}.{kind.name}"] = (module, kind.name, node.args)
    return found


STUBS = stubs()


def test_they_are_found() -> None:
    assert {name.rpartition(".")[2] for name in STUBS} >= {"GenerationOptions", "GenerationRequest", "TextGenerationRequest", "VlmGenerationRequest"}


@pytest.mark.parametrize("name", sorted(STUBS))
def test_each_says_every_field_and_whether_it_has_a_default(name: str) -> None:
    module, kind, arguments = STUBS[name]
    made: Any = getattr(importlib.import_module(module), kind)
    fields = [field for field in dataclasses.fields(made) if field.init]
    wanted = {field.name: field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING for field in fields}
    positional = arguments.args[1:]
    defaults = [False] * (len(positional) - len(arguments.defaults)) + [True] * len(arguments.defaults)
    said = dict(zip((one.arg for one in positional), defaults, strict=True))
    said |= {one.arg: default is not None for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    assert said == wanted
