"""The public names: explicit, sorted, importable, documented, and said to be pipegen's own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import pipegen

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"
NEEDS_TORCH = ("pipegen.backends.hf.", "pipegen.embedded.")


def light_modules() -> list[str]:
    names = [info.name for info in pkgutil.walk_packages(pipegen.__path__, "pipegen.", onerror=lambda name: None)]
    return [name for name in names if not f"{name}.".startswith(NEEDS_TORCH)]


def test_the_public_names_are_sorted_and_distinct() -> None:
    assert list(pipegen.__all__) == sorted(set(pipegen.__all__))


@pytest.mark.parametrize("name", pipegen.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(pipegen, name) is not None


def test_what_looks_public_is_public() -> None:
    visible = {name for name, value in vars(pipegen).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert visible - {"annotations"} <= set(pipegen.__all__)


@pytest.mark.parametrize("name", pipegen.__all__)
def test_every_public_function_and_class_says_what_it_does(name: str) -> None:
    value = getattr(pipegen, name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        assert inspect.getdoc(value)


@pytest.mark.parametrize("name", light_modules())
def test_every_name_that_a_module_exports_exists(name: str) -> None:
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", ()):
        assert hasattr(module, exported)


def test_every_public_name_is_in_the_reference() -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    missing = [name for name in pipegen.__all__ if not re.search(rf"[`.]{name}\b", page)]
    assert missing == []
