"""The conformance suite, through real servers by token ids and by chat."""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.drivers.batch import run
from pipegen.testing import conformance
from pipegen.testing.ask import answers, chat, greedy

SERVERS = ("vllm-embedded", "sglang-embedded", "vllm-text", "sglang-text")
CASES = [(served, check) for served in SERVERS for check in conformance.CHECKS]


@pytest.mark.parametrize(
    ("served", "check"),
    CASES,
    indirect=["served"],
    ids=[f"{served}-{check.__name__}" for served, check in CASES],
)
def test_a_server_conforms(served: Any, check: conformance.Check) -> None:
    with served.opened() as route:
        # its limits are known when it has been asked
        answers(run(route, [chat("Hi")], greedy(max_new_tokens=1)))
        check(route)


@pytest.mark.parametrize(
    ("served", "check"),
    CASES,
    indirect=["served"],
    ids=[f"{served}-{check.__name__}" for served, check in CASES],
)
def test_a_chat_route_conforms(served: Any, check: conformance.Check) -> None:
    with served.chat() as route:
        answers(run(route, [chat("Hi")], greedy(max_new_tokens=1)))
        check(route)
