"""A job that began on Hugging Face goes on in vLLM: its rows are kept, and the whole is that of one
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.parity import mixed_requests


@pytest.mark.parametrize("name", ["embedded", "qwen3_vl"])
def test_a_job_goes_on_in_another_engine(
    name: str, vllm_of: Callable[..., Any], model_of: Callable[[str], str], tmp_path: Path
) -> None:
    requests = mixed_requests(name, 40, images=True)

    def seen(slot: pg.Slot[pg.GenerationResult]) -> Any:
        """What both engines agree on; errors by their type."""
        if not pg.is_ok(slot):
            return type(slot.failure())
        result = slot.unwrap()
        return (
            *(result.id, result.text, result.raw_text, result.token_ids, result.finish),
            *(result.stop, result.prompt_token_ids, result.image_grid_thw),
        )

    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = [seen(slot) for slot in pg.run(safe, requests)]
        with pg.job(safe, requests, tmp_path / "job", in_flight=4) as first:
            began = [seen(next(first)) for _ in range(15)]
    assert began == wanted[:15]
    with vllm_of(name) as fast, pg.job(fast, requests, tmp_path / "job", retry="none") as second:
        slots = list(second)
    assert [seen(slot) for slot in slots] == wanted
    assert second.changed == ()
    assert 15 <= second.reused < 40
    routes = [slot.unwrap().route for slot in slots if pg.is_ok(slot)]
    assert set(routes) == {"hf", "vllm"}
