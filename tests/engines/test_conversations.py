"""Conversations of ten turns, with text, tools and images, are the same on HF and vLLM, and each
prompt begins with the ids of the turns before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support.talks import broken_prefixes, greedy, held, parted

import pipegen as pg

COUNTS = {"embedded": int(os.environ.get("PIPEGEN_CONVERSATIONS", "8")), "qwen3": 8, "qwen3_vl": 8}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_conversations_are_the_same_on_both_engines(
    name: str,
    vllm_of: Callable[..., Any],
    model_of: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    images = name in ("embedded", "qwen3_vl")
    with pg.backends.hf(model_of(name), dtype="float32") as safe:
        wanted = held(safe, name, COUNTS[name], greedy, images=images)
    with vllm_of(name) as fast:
        found = held(fast, name, COUNTS[name], greedy, images=images)
    turns = [result for talk in wanted for result in talk.results]
    calls = sum(len(result.tool_calls) for result in turns)
    with capfd.disabled():
        print(f"\n{name:10} {len(wanted)} conversations, {len(turns)} turns, {calls} calls")
    assert parted(wanted, found) == []
    assert broken_prefixes(found) == []
    if name == "embedded":  # the others are as full after some turns
        assert len(turns) == 10 * len(wanted) and calls > len(wanted)
