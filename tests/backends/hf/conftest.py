"""Tiny models of several families, each made and loaded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models import write_model

from pipegen.engines.settings import ModelLoadConfig

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model."""
    root = tmp_path_factory.mktemp("models")
    return functools.cache(lambda family: write_model(root / family, family))


@pytest.fixture(scope="session")
def engine_of(folder_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """A family's engine, in float32."""
    from pipegen.backends.hf.hf_engine import HFEngine

    return functools.cache(
        lambda family: HFEngine(ModelLoadConfig(model=str(folder_of(family)), dtype="float32"))
    )


@pytest.fixture
def engine(engine_of: Callable[[str], Any]) -> Iterator[Any]:
    """The Qwen3-like engine, which remembers no trouble with its memory."""
    made = engine_of("qwen3")
    made.computing.traits.max_tokens = None
    return made


@pytest.fixture
def forwards(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[int], None]], list[int]]:
    """Watch the model's forward passes: a list that takes down how many rows each one had, after
    `before(rows)` was called (which may raise).
    """

    def watch(before: Callable[[int], None] = lambda rows: None) -> list[int]:
        model = engine.computing.loaded()
        plain, sizes = model.forward, []

        @functools.wraps(plain)
        def forward(*args: Any, **kwargs: Any) -> Any:
            rows = kwargs["input_ids"].shape[0]
            before(rows)
            sizes.append(rows)
            return plain(*args, **kwargs)

        monkeypatch.setattr(model, "forward", forward)
        return sizes

    return watch
