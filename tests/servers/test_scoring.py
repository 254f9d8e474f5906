"""HF and real servers score the same, within 1e-4 a token in float32: text, choices, images, whole texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scored import scored_requests

import pipegen as pg

SERVERS = [f"{engine}-{model}" for engine in ("vllm", "sglang") for model in ("embedded", "text")]


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_servers_score_as_hf_does(served: Any, hf_of: Callable[[str], pg.Route], capsys: pytest.CaptureFixture[str]) -> None:
    asked = scored_requests(images=served.model == "embedded")
    wanted = pg.score(hf_of(served.model), asked)
    with served.opened() as route:
        found = pg.score(route, asked)
        chosen = pg.choose(route, {"prompt": "The cat sat on a"}, [" mat", " hill", " red bird"]).unwrap()
        read = pg.perplexity(route, ["the cat sat on a mat " * 20], window=40)[0].unwrap()
    assert [pg.is_ok(slot) for slot in wanted] == [pg.is_ok(slot) for slot in found]
    pairs = [(one.unwrap(), two.unwrap()) for one, two in zip(wanted, found, strict=True) if pg.is_ok(one)]
    assert len(pairs) >= len(asked) - 1
    assert all(one.token_ids == two.token_ids and one.prompt_token_ids == two.prompt_token_ids for one, two in pairs)
    worst = max(abs(a - b) for one, two in pairs for a, b in zip(one.token_logprobs, two.token_logprobs, strict=True))
    with capsys.disabled():
        print(f"\n| {served.engine} | {served.model} | scores | {len(pairs)} | largest difference {worst:.1e} |")
    assert worst < 1e-4
    assert [one.greedy for one, _ in pairs] == [two.greedy for _, two in pairs]
    own = hf_of(served.model)
    assert chosen.best == pg.choose(own, {"prompt": "The cat sat on a"}, [" mat", " hill", " red bird"]).unwrap().best
    assert read.logprob == pytest.approx(pg.perplexity(own, ["the cat sat on a mat " * 20], window=40)[0].unwrap().logprob, rel=1e-5)


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_servers_give_prompts_the_log_probabilities_that_hf_gives(served: Any, hf_of: Callable[[str], pg.Route], capsys: pytest.CaptureFixture[str]) -> None:
    """Beside an answer and without one, whatever the options of the answer; what of a prompt is asked as a score is the same asked another way."""
    asked = [{name: request[name] for name in request if name != "continuation"} for request in scored_requests(images=False) if request.get("prompt") != ""]
    options = {"prompt_logprobs": True, "temperature": 0.7, "seed": 1, "max_new_tokens": 3}
    wanted = pg.run(hf_of(served.model), asked, {**options, "max_new_tokens": 0})
    with served.opened() as route:
        found, also = pg.run(route, asked, options), pg.run(route, asked, {**options, "max_new_tokens": 0})
    read = [slot.unwrap() for slot in wanted]
    assert all(one.finish is pg.Finish.LENGTH and one.token_ids == () for one in read)
    pairs = [(one, slot.unwrap()) for one, slot in zip([*read, *read], [*found, *also], strict=True)]
    assert all(one.prompt_token_ids == two.prompt_token_ids and (two.prompt_logprobs or ("",))[0] is None for one, two in pairs)
    values = [(a, b) for one, two in pairs for a, b in zip(one.prompt_logprobs or (), two.prompt_logprobs or (), strict=True) if a and b]
    worst = max(abs(a.logprob - b.logprob) for a, b in values)
    with capsys.disabled():
        print(f"\n| {served.engine} | {served.model} | prompts | {len(values)} | largest difference {worst:.1e} |")
    assert len(values) > 1000
    assert worst < 1e-4
    assert all(a.token_id == b.token_id and (a.top[0][0] == b.top[0][0] or abs(a.top[0][1] - b.top[0][1]) < 1e-4) for a, b in values)
