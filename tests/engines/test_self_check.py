"""The comparison of the real vLLM with transformers on small models: settings that vLLM reads in
another way are found, and named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.vllm import self_check, start
from pipegen.engines.settings import ModelLoadConfig

EQUAL = ("mistral", "gemma2", "gemma3", "cohere2", "ministral3", "llama_yarn", "phi3_longrope")


@pytest.mark.parametrize("family", EQUAL)
def test_vllm_reads_the_lengths_as_transformers(family: str, model_of: Callable[..., str]) -> None:
    assert (
        self_check.check_lengths(
            Checkpoint(ModelLoadConfig(model=model_of(family), backend="vllm"))
        )
        is None
    )


def test_a_difference_is_named_and_rows_beyond_it_are_refused(
    vllm_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without what vLLM is told of Ministral 3, in all its versions."""
    monkeypatch.setattr(start, "corrections", lambda *_: {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    requests: list[Any] = [
        {"prompt_token_ids": [5 + length % 7] * length, "options": {"max_new_tokens": 2}}
        for length in (20, 62, 63, 100)
    ]
    with vllm_of("ministral3") as route:
        slots = pg.run(route, requests)
    refused = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert len(refused) >= 2
    assert all(isinstance(error, pg.UnsupportedOption) for error in refused)
    assert "gives another text than transformers" in refused[-1].message
