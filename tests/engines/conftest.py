"""For tests on real engines: settings that must stand before vLLM is imported, tiny models, and one
vLLM at a time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.models import write_model

import pipegen as pg

os.environ.update(
    # one process: less memory, and a fault is seen where it happens
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

SMALL: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
"""What a tiny model runs with."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What engines warn of is theirs; the rule that a warning is an error holds for the other
    tests.
    """
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def _looked_at_in_this_process() -> Iterator[None]:
    """vLLM looks at the class of each model in a process that imports all of vLLM anew, so that CUDA
    is not started in the one that asks. Here is no CUDA.
    """
    from vllm.model_executor.models import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda look: look(), raising=False)
        yield


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The model of that name: `embedded`, or a tiny one of a family, with heads as large as vLLM's
    kernels for CPUs want them.
    """
    root: Path = tmp_path_factory.mktemp("models")

    @functools.cache
    def made(name: str, *, whole_text: bool = False) -> str:
        return (
            name
            if name == "embedded"
            else str(
                write_model(root / f"{name}-{whole_text}", name, head_dim=32, whole_text=whole_text)
            )
        )

    return made


@pytest.fixture(scope="session")
def vllm_of(model_of: Callable[..., str]) -> Callable[..., Any]:
    """A route through vLLM on that model, as a context manager; there is one at a time."""

    @contextmanager
    def opened(name: str, *, whole_text: bool = False, **settings: Any) -> Iterator[pg.Route]:
        with pg.backends.vllm(
            model_of(name, whole_text=whole_text), **{**SMALL, **settings}
        ) as route:
            yield route

    return opened
