"""Hand-written `__init__`s, which only type checkers see, say what the records' fields are: each
field, with a default where it has one.
"""

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
        module = ".".join(
            ("pipegen", *path.relative_to(PACKAGE).with_suffix("").parts)
        ).removesuffix(".__init__")
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for block in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
                    for node in block.body:
                        if (
                            isinstance(node, ast.FunctionDef)
                            and node.name == "__init__"
                            and isinstance(kind, ast.ClassDef)
                        ):
                            found[f"{module}.{kind.name}"] = (module, kind.name, node.args)
    return found


STUBS = stubs()


def test_they_are_found() -> None:
    assert {name.rpartition(".")[2] for name in STUBS} >= {
        "GenerationOptions",
        "GenerationRequest",
        "VlmGenerationRequest",
    }


@pytest.mark.parametrize("name", sorted(STUBS))
def test_each_has_every_field_and_its_default(name: str) -> None:
    module, kind, arguments = STUBS[name]
    made: Any = getattr(importlib.import_module(module), kind)
    fields = [field for field in dataclasses.fields(made) if field.init]
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    positional = arguments.args[1:]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + [
        *arguments.defaults
    ]
    written = {
        one.arg: default
        for one, default in zip(
            [*positional, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True
        )
    }
    assert set(written) == {field.name for field in fields}
    assert {argument for argument, default in written.items() if default is None} == required
    values = {
        argument: ast.literal_eval(default)
        for argument, default in written.items()
        if default is not None
    }
    assert {
        field.name: field.default for field in fields if values.get(field.name, ...) is not ...
    } == {argument: value for argument, value in values.items() if value is not ...}
