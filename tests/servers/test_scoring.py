"""HF and real servers score the same, within 1e-4 a token in float32: text, choices, images, whole
texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scored import compared_prompts, prompts_read, scored_requests

import pipegen as pg

SERVERS = [f"{engine}-{model}" for engine in ("vllm", "sglang") for model in ("embedded", "text")]


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_servers_score_as_hf_does(
    served: Any,
    hf_of: Callable[[str], pg.Route],
    record_property: Callable[[str, object], None],
) -> None:
    asked = scored_requests(images=served.model == "embedded")
    wanted = pg.score(hf_of(served.model), asked)
    with served.opened() as route:
        found = pg.score(route, asked)
        chosen = pg.choose(
            route, {"prompt": "The cat sat on a"}, [" mat", " hill", " red bird"]
        ).unwrap()
        read = pg.perplexity(route, ["the cat sat on a mat " * 20], window=40)[0].unwrap()
    assert [pg.is_ok(slot) for slot in wanted] == [pg.is_ok(slot) for slot in found]
    pairs = [
        (one.unwrap(), two.unwrap())
        for one, two in zip(wanted, found, strict=True)
        if pg.is_ok(one)
    ]
    assert len(pairs) >= len(asked) - 1
    assert all(
        one.token_ids == two.token_ids and one.prompt_token_ids == two.prompt_token_ids
        for one, two in pairs
    )
    worst = max(
        abs(a - b)
        for one, two in pairs
        for a, b in zip(one.token_logprobs, two.token_logprobs, strict=True)
    )
    record_property(
        "table",
        f"| {served.engine} | {served.model} | scores | {len(pairs)} | largest difference"
        f" {worst:.1e} |",
    )
    assert worst < 1e-4
    assert [one.greedy for one, _ in pairs] == [two.greedy for _, two in pairs]
    own = hf_of(served.model)
    assert (
        chosen.best
        == pg.choose(own, {"prompt": "The cat sat on a"}, [" mat", " hill", " red bird"])
        .unwrap()
        .best
    )
    assert read.logprob == pytest.approx(
        pg.perplexity(own, ["the cat sat on a mat " * 20], window=40)[0].unwrap().logprob, rel=1e-5
    )


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_servers_give_prompts_the_log_probabilities_that_hf_gives(
    served: Any,
    hf_of: Callable[[str], pg.Route],
    record_property: Callable[[str, object], None],
) -> None:
    """Beside an answer and without one, whatever the options of the answer; what of a prompt is
    asked as a score is the same asked another way.
    """
    wanted = prompts_read(hf_of(served.model))
    with served.opened() as route:
        found = [*prompts_read(route, 3), *prompts_read(route)]
    count, worst = compared_prompts(wanted, found)
    record_property(
        "table",
        f"| {served.engine} | {served.model} | prompts | {count} | largest difference {worst:.1e} |",
    )
    assert count > 1000
    assert worst < 1e-4
