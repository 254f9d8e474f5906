"""Conversations of ten turns, with text, tools and images, are through real servers what they are
on the Hugging Face engine, and each prompt begins with the ids of the turns before.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.talks import Talk, broken_prefixes, greedy, held, parted

import pipegen as pg

# Grammars of servers split a form into tokens in ways of their own: no answer is forced here.
COUNTS = {"embedded": int(os.environ.get("PIPEGEN_CONVERSATIONS", "16")), "text": 12}
SERVERS = [f"{engine}-{model}" for engine in ("vllm", "sglang") for model in COUNTS]


def conversations(route: pg.Route, model: str) -> list[Talk]:
    return held(route, model, COUNTS[model], greedy, images=model == "embedded", calls=False)


@pytest.fixture(scope="session")
def wanted(hf_of: Callable[[str], pg.Route]) -> Callable[[str], list[Talk]]:
    """The conversations of a model on the Hugging Face engine; held once."""
    return functools.cache(lambda model: conversations(hf_of(model), model))


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_conversations_are_the_same_by_token_ids(
    served: Any,
    wanted: Callable[[str], list[Talk]],
    record_property: Callable[[str, object], None],
) -> None:
    theirs = wanted(served.model)
    with served.opened() as route:
        found = conversations(route, served.model)
    turns = sum(len(talk.results) for talk in theirs)
    record_property(
        "table", f"| {served.engine} | {served.model} | {len(theirs)} | {turns} turns |"
    )
    assert parted(theirs, found) == []
    assert broken_prefixes(found) == []
    assert turns == 10 * len(theirs)
