"""An engine's function keeps its name, although a package beside it bears the same."""

from __future__ import annotations

import importlib

import pytest

import pipegen as pg


def test_an_engine_can_be_named_again_after_its_package_was_imported() -> None:
    pytest.importorskip("torch")
    first = pg.backends.hf("embedded")
    importlib.import_module("pipegen.backends.hf.computing")
    assert pg.backends.hf("embedded").name == first.name == "hf"


def test_an_unknown_backend_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(pg.InvalidField, match="did you mean 'hf'"):
        pg.backends.load(pg.ModelLoadConfig(model="embedded", backend="hff"))
