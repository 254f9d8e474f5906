"""Scores on the wire: what servers are asked, how their answers are read, and what of them is
refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

import pytest
from support.served import route_to

import pipegen as pg
from pipegen.backends.http.client import most_bytes
from pipegen.backends.servers import sglang_dialect, vllm_dialect
from pipegen.backends.servers.wire import Facts, ServerRequest
from pipegen.core.slots import is_ok
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("aiohttp")

ASK = ServerRequest(
    options=resolve(GenerationOptions(max_new_tokens=1)),
    token_ids=(1, 2, 3, 4),
    prompt_tokens=4,
    scored=2,
)
TABLES = [
    None,
    {"2": {"logprob": -9.0}},
    {"3": {"logprob": -0.5}, "7": {"logprob": -0.25}},
    {"4": {"logprob": -1.5}, "8": {"logprob": -1.5}},
]
META = {
    "input_token_logprobs": [[None, 2, None], [-0.5, 3, None], [-1.5, 4, None]],
    "input_top_logprobs": [None, [[-0.25, 7, None]], [[-1.5, 8, None]]],
}
SCORES = ((-0.5, (7, -0.25), ()), (-1.5, (4, -1.5), ()))


def by_ids(**more: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "token_ids": [5], "finish_reason": "length"}],
        "prompt_logprobs": TABLES,
        **more,
    }


def by_meta(**more: Any) -> dict[str, Any]:
    return {
        "output_ids": [],
        "meta_info": {"finish_reason": {"type": "length"}, "completion_tokens": 0, **META, **more},
    }


def test_vllm_is_asked_for_the_prompt_s_log_probabilities() -> None:
    body = vllm_dialect.to_wire(ASK, Facts()).unwrap().body or {}
    assert (body["sampling_params"]["prompt_logprobs"], body["sampling_params"]["max_tokens"]) == (
        1,
        1,
    )
    other = vllm_dialect.to_wire(ASK, Facts(lacks=frozenset({"generate"}))).unwrap().body or {}
    assert (other["prompt_logprobs"], other["max_tokens"]) == (1, 1)
    assert (
        "prompt_logprobs"
        not in (vllm_dialect.to_wire(ASK._replace(scored=0), Facts()).unwrap().body or {})[
            "sampling_params"
        ]
    )


def test_sglang_is_asked_from_the_last_token_of_the_context_on() -> None:
    """An earlier start would switch its prefix cache off."""
    body = sglang_dialect.to_wire(ASK, Facts()).unwrap().body or {}
    seen = (body["return_logprob"], body["logprob_start_len"], body["top_logprobs_num"])
    assert seen == (True, 1, 1)
    assert "return_logprob" not in (
        sglang_dialect.to_wire(ASK._replace(scored=0), Facts()).unwrap().body or {}
    )


def test_answers_are_read_and_a_tie_is_greedy() -> None:
    assert vllm_dialect.from_wire(by_ids(), ASK).unwrap()[0].scores == SCORES
    choice = {**by_ids()["choices"][0], "prompt_logprobs": TABLES}
    assert vllm_dialect.from_wire({"choices": [choice]}, ASK).unwrap()[0].scores == SCORES
    assert sglang_dialect.from_wire(by_meta(), ASK).unwrap()[0].scores == SCORES


def test_as_many_of_the_likeliest_as_were_asked_for_are_read_best_first() -> None:
    asked = ASK._replace(scored_top=2)
    params = vllm_dialect.to_wire(asked, Facts()).unwrap().body["sampling_params"]
    assert params["prompt_logprobs"] == 2
    tables = [*TABLES[:3], {"4": {"logprob": -1.5}, "9": {"logprob": -9999.0}}]
    scores = vllm_dialect.from_wire(by_ids(prompt_logprobs=tables), asked).unwrap()[0].scores
    assert scores is not None
    assert [top for _, _, top in scores] == [((7, -0.25), (3, -0.5)), ((4, -1.5),)]
    error = vllm_dialect.to_wire(asked, Facts(about={"max_logprobs": 1})).failure()
    assert isinstance(error, pg.UnsupportedOption) and error.option == "top_logprobs"
    body = sglang_dialect.to_wire(asked, Facts()).unwrap().body or {}
    assert body["top_logprobs_num"] == 2


def test_sglang_writes_0_for_the_last_id_of_the_vocabulary() -> None:
    own = [*META["input_token_logprobs"][:2], [-1.5, 0, None]]
    assert (
        sglang_dialect.from_wire(by_meta(input_token_logprobs=own), ASK).unwrap()[0].scores
        == SCORES
    )
    other = [META["input_token_logprobs"][0], [-0.5, 0, None], META["input_token_logprobs"][2]]
    assert isinstance(
        sglang_dialect.from_wire(by_meta(input_token_logprobs=other), ASK).failure(),
        pg.MalformedResponse,
    )


def test_what_stands_for_minus_infinity_is_that() -> None:
    tables = [*TABLES[:3], {"4": {"logprob": -9999.0}, "8": {"logprob": -0.5}}]
    assert vllm_dialect.from_wire(by_ids(prompt_logprobs=tables), ASK).unwrap()[0].scores == (
        (-0.5, (7, -0.25), ()),
        (-math.inf, (8, -0.5), ()),
    )


@pytest.mark.parametrize(
    "tables",
    [
        *(None, "none", TABLES[:3], [*TABLES[:3], None], [*TABLES[:3], {"8": {"logprob": -1.5}}]),
        [*TABLES[:3], {"4": {"logprob": "-1.5"}}],
        [*TABLES[:3], {"4": {"logprob": math.nan}}],
        [*TABLES[:3], {"4": -1.5}],
        [*TABLES[:3], {"4": {"logprob": True}}],
        [*TABLES[:3], {"4": {"logprob": -1.5}, "eight": {"logprob": -0.5}}],
    ],
)
def test_a_malformed_answer_of_vllm_is_refused(tables: Any) -> None:
    assert isinstance(
        vllm_dialect.from_wire(by_ids(prompt_logprobs=tables), ASK).failure(), pg.MalformedResponse
    )


@pytest.mark.parametrize(
    "meta",
    [
        {"input_token_logprobs": None},
        {"input_token_logprobs": META["input_token_logprobs"][:2]},
        {"input_top_logprobs": []},
        {"input_top_logprobs": [None, [[-0.25, 7, None]], None]},
        {"input_token_logprobs": [[None, 2, None], [-0.5, 9, None], [-1.5, 4, None]]},
        {"input_token_logprobs": [[None, 2, None], [None, 3, None], [-1.5, 4, None]]},
        {"input_token_logprobs": [[None, 2, None], 7, [-1.5, 4, None]]},
        {"input_top_logprobs": [None, [[None, 7, None]], [[-1.5, 8, None]]]},
    ],
)
def test_a_malformed_answer_of_sglang_is_refused(meta: Any) -> None:
    assert isinstance(
        sglang_dialect.from_wire(by_meta(**meta), ASK).failure(), pg.MalformedResponse
    )


def test_a_long_prompt_may_have_a_long_answer() -> None:
    long = ASK._replace(prompt_tokens=100_000)
    assert most_bytes(long) - most_bytes(long._replace(scored=0)) >= 100_000 * 300


REQUESTS: list[dict[str, Any]] = [
    {"prompt_token_ids": [1, 2], "continuation": [3, 4]},
    {"prompt_token_ids": [1], "continuation": [999]},
]


@pytest.mark.parametrize(
    ("wire", "path", "answer"),
    [
        (vllm_dialect.VLLM, "/inference/v1/generate", by_ids()),
        (sglang_dialect.SGLANG, "/generate", by_meta()),
    ],
)
def test_each_row_is_one_request(wire: Any, path: str, answer: Any) -> None:
    with FaultyServer(answers={path: (200, answer)}) as server, route_to(server, wire) as route:
        good, bad = pg.score(route, REQUESTS)
        assert good.unwrap().token_logprobs == (-0.5, -1.5)
        assert (good.unwrap().greedy, good.unwrap().likeliest) == (False, ((7, -0.25), (4, -1.5)))
        assert isinstance(bad.failure(), pg.InvalidRequest)
        assert asyncio.run(pg.arun(pg.scoring(route), REQUESTS)) == (good, bad)
        assert pg.score(route, []) == ()
        assert server.paths[path] == 2


def test_the_server_s_limit_counts_once_it_is_known() -> None:
    with (
        FaultyServer(limit=4, answers={"/inference/v1/generate": (200, by_ids())}) as server,
        route_to(server) as route,
    ):
        assert route.engine.longest_scored is None
        assert isinstance(pg.score(route, REQUESTS[:1])[0].failure(), pg.PromptTooLong)
        assert route.engine.longest_scored == 3
        assert server.paths["/inference/v1/generate"] == 0


def test_a_server_that_ran_another_prompt_is_not_believed() -> None:
    answer = by_ids(prompt_token_ids=[1, 2, 3, 5])
    with (
        FaultyServer(answers={"/inference/v1/generate": (200, answer)}) as server,
        route_to(server, retries=0) as route,
    ):
        assert isinstance(pg.score(route, REQUESTS[:1])[0].failure(), pg.MalformedResponse)


def test_a_server_that_answers_without_scores_is_not_believed() -> None:
    with FaultyServer() as server, route_to(server, retries=0) as route:
        slot = pg.score(route, REQUESTS[:1])[0]
        assert not is_ok(slot)
        assert isinstance(slot.failure(), pg.MalformedResponse)


def test_a_wire_that_says_nothing_of_scores_gives_none() -> None:
    with (
        FaultyServer() as server,
        route_to(
            server, dataclasses.replace(vllm_dialect.VLLM, scores=lambda facts, adapter: False)
        ) as route,
    ):
        slot = pg.score(route, REQUESTS[:1])[0]
        assert isinstance(slot.failure(), pg.UnsupportedOption)
        assert slot.failure().option == "continuation"


def test_a_refusal_of_the_server_fails_its_row() -> None:
    with (
        FaultyServer(
            answers={"/inference/v1/generate": (400, {"error": {"message": "no"}})}
        ) as server,
        route_to(server) as route,
    ):
        assert isinstance(pg.score(route, REQUESTS[:1])[0].failure(), pg.InvalidRequest)
