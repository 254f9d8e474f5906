"""What real servers give is what the Hugging Face engine gives in this process, for hundreds of seeded greedy requests in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import pipegen as pg
from pipegen.slots import Slot, is_ok
from pipegen.testing.parity import chat_requests, mixed_requests, report

REQUESTS = {"embedded": 80, "qwen3": 60}
SERVERS = [f"{engine}-{model}" for engine in ("vllm", "sglang") for model in REQUESTS]
SEES = ("embedded",)


@pytest.fixture(scope="session")
def wanted(hf_of: Callable[[str], pg.Route]) -> Callable[..., Any]:
    """What the Hugging Face engine answers to these requests of that model; asked once."""

    @functools.cache
    def answers(model: str, make: Callable[..., Any], *more: Any) -> tuple[list[Any], tuple[Slot[pg.GenerationResult], ...]]:
        requests = make(model, REQUESTS[model], *more, pictures=model in SEES)
        return requests, pg.run(hf_of(model), requests)

    return answers


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_by_token_ids_everything_is_equal(served: Any, wanted: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    requests, theirs = wanted(served.model, mixed_requests)
    with served.opened() as route:
        found = pg.run(route, requests)
    counts, parted, words = report(requests, theirs, found)
    with capsys.disabled():
        print(f"\n{served.engine:7} {served.model:9} by ids    {counts}  {words}")
        for one in parted:
            print(f"  request {one.id}: {one.difference}")
    assert counts == {"requests": len(requests), "equal": len(requests)}
    assert sum(not is_ok(slot) for slot in theirs) < len(requests) / 4


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_by_chat_the_texts_are_equal(served: Any, wanted: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    requests, theirs = wanted(served.model, chat_requests, pg.GenerationOptions(stop=pg.StopOptions(ignore_eos=False)))
    with served.chat() as route:
        found = pg.run(route, requests)
    texts = [(one.unwrap().text, two.unwrap().text if is_ok(two) else two.failure()) for one, two in zip(theirs, found, strict=True)]
    equal = sum(one == two for one, two in texts)
    with capsys.disabled():
        print(f"\n{served.engine:7} {served.model:9} by chat   {{'requests': {len(requests)}, 'equal': {equal}}}  (texts)")
        for request, (one, two) in zip(requests, texts, strict=True):
            if one != two:
                print(f"  request {request.id}: {one!r} {two!r}")
    assert equal == len(requests)
