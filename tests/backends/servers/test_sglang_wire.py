"""SGLang's wire records, without a network."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from support.served import route_to

from pipegen.backends.servers import sglang_dialect
from pipegen.backends.servers.dry import wire_requests
from pipegen.backends.servers.wire import Facts, WireReply
from pipegen.core.errors import (
    BackendFailed,
    InvalidRequest,
    MalformedResponse,
    PromptTooLong,
    RateLimited,
    UnsupportedOption,
)
from pipegen.core.slots import is_ok
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import PreparedImage

IMAGE = PreparedImage(width=1, height=1, rgb=bytes(3), digest="0", tokens=3)


# H2
def test_the_body_is_written_in_full(ask: Any) -> None:
    said = ask(
        ending_ids=(99,),
        rid="r1",
        temperature=0.3,
        max_new_tokens=7,
        min_new_tokens=2,
        seed=5,
        stop=StopOptions(stop_token_ids=(99,)),
    )
    request = sglang_dialect.to_wire(said, Facts()).unwrap()
    assert (request.method, request.path, request.rid) == ("POST", "/generate", "r1")
    assert request.body == {
        "input_ids": [1, 2, 3],
        "rid": "r1",
        "sampling_params": {
            "temperature": 0.3,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": 5,
            "max_new_tokens": 7,
            "min_new_tokens": 2,
            "stop_token_ids": [99],
            "ignore_eos": False,
            "no_stop_trim": True,
            "skip_special_tokens": True,
            "spaces_between_special_tokens": False,
        },
    }


def test_images_logprobs_and_streams_are_asked_for(ask: Any) -> None:
    body = (
        sglang_dialect.to_wire(
            ask(images=(IMAGE,), stream=True, logprobs=True, top_logprobs=3), Facts()
        )
        .unwrap()
        .body
    )
    assert len(body["image_data"]) == 1
    assert body["image_data"][0].startswith("data:image/png;base64,")
    assert body["return_prompt_token_ids"] is True
    assert (
        body["stream"],
        body["return_logprob"],
        body["logprob_start_len"],
        body["top_logprobs_num"],
    ) == (True, True, -1, 3)


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        ({"regex": "[ab]"}, "regex", "[ab]"),
        ({"choice": ("a.b", "no")}, "regex", r"(a\.b|no)"),
        ({"json_schema": "{}"}, "json_schema", "{}"),
    ],
)
def test_the_form_of_the_answer_is_asked_for(ask: Any, form: Any, name: str, value: str) -> None:
    assert (
        sglang_dialect.to_wire(ask(structured=form), Facts()).unwrap().body["sampling_params"][name]
        == value
    )


def test_what_the_server_may_end_a_row_at(ask: Any) -> None:
    assert sglang_dialect.server_side_stops(ask().options) == {"ids", "stops"}
    assert sglang_dialect.server_side_stops(ask(stop=StopOptions(ignore_eos=True)).options) == {
        "stops"
    }
    assert sglang_dialect.server_side_stops(ask(min_new_tokens=2).options) == {"ids"}
    assert sglang_dialect.server_side_stops(ask(stop=tuple(map(str, range(33)))).options) == {"ids"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": 1e-7}, "temperature"),
        ({"min_new_tokens": 2, "stop": StopOptions(ignore_eos=True)}, "min_new_tokens"),
        ({"logprobs": True, "temperature": 0.5}, "logprobs"),
        ({"logprobs": True, "presence_penalty": 0.5}, "logprobs"),
        ({"logprobs": True, "min_new_tokens": 2}, "logprobs"),
    ],
)
def test_what_the_server_would_change_is_refused_by_name(ask: Any, options: Any, name: str) -> None:
    error = sglang_dialect.to_wire(ask(ending_ids=(5,), **options), Facts()).failure()
    assert isinstance(error, UnsupportedOption)
    assert error.option == name


MASKS = Facts(about={"sampling_mask_max_tokens": 64})
HOT = {"logprobs": "processed", "temperature": 0.7}


def test_processed_logprobs_are_those_of_the_sampling_masks(ask: Any) -> None:
    body = sglang_dialect.to_wire(ask(**HOT, top_k=9), MASKS).unwrap().body or {}
    assert (body["return_sampling_mask"], body["sampling_logprobs_mode"]) == (True, "selected")
    assert "return_logprob" not in body
    body = sglang_dialect.to_wire(ask(**HOT, top_k=9, top_logprobs=4), MASKS).unwrap().body or {}
    assert body["sampling_logprobs_mode"] == "support"
    greedy = sglang_dialect.to_wire(ask(logprobs="processed"), MASKS).unwrap().body or {}
    assert greedy["return_logprob"] is True and "return_sampling_mask" not in greedy


@pytest.mark.parametrize(
    ("options", "facts", "hint"),
    [
        ({**HOT, "top_k": 9}, Facts(), "use hf or vllm"),
        ({"logprobs": "processed"}, Facts(), "use hf or vllm"),
        (HOT, MASKS, "set top_k, to at most 64"),
        ({**HOT, "top_k": 65}, MASKS, "set top_k, to at most 64"),
    ],
)
def test_processed_logprobs_are_refused_where_there_are_none(
    ask: Any, options: Any, facts: Facts, hint: str
) -> None:
    error = sglang_dialect.to_wire(ask(**options), facts).failure()
    assert isinstance(error, UnsupportedOption)
    assert error.option == "logprobs" and hint in error.hint


def test_sampling_masks_are_read(ask: Any) -> None:
    masks: dict[str, Any] = {
        "output_token_sampling_mask": [[5, 7], [6]],
        "output_token_sampling_logprobs": [[-0.5, -0.9], [0.0]],
    }
    asked = ask(**HOT, top_k=9, top_logprobs=2)
    (completion,) = sglang_dialect.from_wire(answer(**masks), asked).unwrap()
    first, second = completion.logprobs or ()
    assert (first.token_id, first.logprob, first.top) == (5, -0.5, ((5, -0.5), (7, -0.9)))
    assert (second.logprob, second.top, second.margin) == (0.0, ((6, 0.0),), None)
    asked, whole = ask(**HOT, top_k=9, stream=True), {**masks, "completion_tokens": 2}
    whole["output_token_sampling_logprobs"] = [-0.5, -0.25]
    (piece,) = sglang_dialect.from_event(answer(**whole), asked, 1).unwrap()
    assert [(one.token_id, one.logprob) for one in piece.logprobs or ()] == [(6, -0.25)]
    masks["output_token_sampling_mask"] = [[8], [6]]
    error = sglang_dialect.from_wire(answer(**masks), ask(**HOT, top_k=9)).failure()
    assert "there is no logprob of generated token 0" in error.message


def answer(*, ids: Any = (5, 6), reason: Any = None, **meta: Any) -> dict[str, Any]:
    return {
        "output_ids": list(ids),
        "meta_info": {"finish_reason": reason or {"type": "length", "length": 2}, **meta},
    }


def test_an_answer_is_read(ask: Any) -> None:
    said = {**answer(reason={"type": "stop", "matched": 6}), "prompt_token_ids": [1, 2, 3]}
    (completion,) = sglang_dialect.from_wire(said, ask()).unwrap()
    assert (
        completion.token_ids,
        completion.finish,
        completion.stop,
        completion.prompt_token_ids,
    ) == ((5, 6), "stop", 6, (1, 2, 3))


def test_an_answer_may_come_in_an_array(ask: Any) -> None:
    (completion,) = sglang_dialect.from_wire([answer()], ask()).unwrap()
    assert completion.token_ids == (5, 6)
    assert (
        sglang_dialect.from_wire([answer(), answer()], ask()).failure().message
        == "the answer holds 2 completions, and 1 was asked"
    )


@pytest.mark.parametrize(
    "said",
    [
        *({}, [], "text", [answer(), answer()], {"output_ids": [1]}),
        {"output_ids": [1], "meta_info": {"finish_reason": "stop"}},
        {"output_ids": [1], "meta_info": {}},
        answer(ids=(True,)),
        {**answer(), "output_ids": "x"},
        {**answer(), "output_ids": None},
        {**answer(), "prompt_token_ids": 3},
        answer(reason={"type": "stop", "matched": "NaN happened"}),
    ],
)
def test_an_answer_that_the_protocol_does_not_allow_is_malformed(ask: Any, said: Any) -> None:
    assert isinstance(sglang_dialect.from_wire(said, ask()).failure(), MalformedResponse)


# H3
@pytest.mark.parametrize("value", [None, "-0.5", True, math.nan, math.inf, -9999.0])
def test_a_logprob_that_is_no_number_is_malformed_and_named(ask: Any, value: Any) -> None:
    said = answer(output_token_logprobs=[[-0.5, 5, None], [value, 6, None]])
    assert "token 1" in sglang_dialect.from_wire(said, ask(logprobs=True)).failure().message


@pytest.mark.parametrize(
    ("entries", "index"),
    [
        (None, 0),
        ([], 0),
        ([[-0.5, 5, None]], 1),
        ([[-0.5, 5], [-0.5, 7]], 1),
        (["x", [-0.5, 6]], 0),
    ],
)
def test_logprobs_that_are_missing_or_of_other_tokens_are_malformed_and_named(
    ask: Any, entries: Any, index: int
) -> None:
    assert (
        f"token {index}"
        in sglang_dialect.from_wire(answer(output_token_logprobs=entries), ask(logprobs=True))
        .failure()
        .message
    )


def test_logprobs_and_the_likeliest_are_read(ask: Any) -> None:
    said = answer(
        output_token_logprobs=[[0.0, 5, None], [-1.0, 6, None]],
        output_top_logprobs=[[[0.0, 5, None]], [[-1.0, 6, None]]],
    )
    (completion,) = sglang_dialect.from_wire(said, ask(logprobs=True, top_logprobs=1)).unwrap()
    assert [(one.token_id, one.logprob, one.top) for one in completion.logprobs] == [
        (5, 0.0, ((5, 0.0),)),
        (6, -1.0, ((6, -1.0),)),
    ]


@pytest.mark.parametrize("cumulative", [True, False])
def test_events_hold_all_ids_or_the_new_ones_and_either_is_understood(
    ask: Any, cumulative: bool
) -> None:
    follows, seen, got = ask(stream=True, logprobs=True), 0, []
    for count in (1, 3, 4):
        ids = list(range(10, 10 + count)) if cumulative else list(range(10 + seen, 10 + count))
        meta = {
            "finish_reason": None,
            "completion_tokens": count,
            "output_token_logprobs": [[-0.5, number, None] for number in ids],
        }
        (piece,) = sglang_dialect.from_event(
            {"output_ids": ids, "meta_info": meta}, follows, seen
        ).unwrap()
        assert [entry.token_id for entry in piece.logprobs] == list(piece.token_ids)
        got += piece.token_ids
        seen = len(got)
    assert got == [10, 11, 12, 13]
    wrong = {"output_ids": [1, 2], "meta_info": {"finish_reason": None, "completion_tokens": 9}}
    assert isinstance(sglang_dialect.from_event(wrong, follows, 4).failure(), MalformedResponse)


SHAPES = [
    lambda words: {"error": {"message": words}},
    lambda words: {"error": words},
    lambda words: {
        "object": "error",
        "message": words,
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    lambda words: {
        "error": {
            "message": words,
            "type": "invalid_request_error",
            "code": 400,
            "retryable": False,
        }
    },
    lambda words: {"detail": words},
]
WORDINGS = [
    (
        "The input (3000 tokens) is longer than the model's context length (2048 tokens).",
        3000,
        2048,
    ),
    (
        (
            "Requested token count exceeds the model's maximum context length of 2048 tokens. You"
            " requested a total of 2053 tokens: 2047 tokens from the input messages and 6 tokens"
            " for the completion. Please reduce the number of tokens in the input messages or the"
            " completion to fit."
        ),
        2047,
        2048,
    ),
    (
        (
            "Input length (2042 tokens) exceeds the maximum allowed length (2042 tokens). Use a"
            " shorter input or enable --allow-auto-truncate."
        ),
        2042,
        2042,
    ),
]


# H5
@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("message", "length", "limit"), WORDINGS)
def test_an_over_long_prompt_is_known_in_each_wording_and_shape(
    ask: Any, status: int, shape: Any, message: str, length: int, limit: int
) -> None:
    error = sglang_dialect.SGLANG.classify(
        WireReply(status=status, body=json.dumps(shape(message)).encode()),
        ask(tuple(range(length))),
    )
    assert isinstance(error, PromptTooLong)
    assert (error.prompt_tokens, error.limit) == (length, limit)


@pytest.mark.parametrize("shape", [*SHAPES, lambda words: words])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (500, BackendFailed), (503, RateLimited)]
)
def test_other_refusals_keep_their_words_in_any_shape(
    ask: Any, shape: Any, status: int, kind: type
) -> None:
    error = sglang_dialect.SGLANG.classify(
        WireReply(status=status, body=json.dumps(shape("at most 32 stop strings")).encode()), ask()
    )
    assert type(error) is kind
    assert "at most 32 stop strings" in error.message


def test_a_request_is_aborted_by_its_name() -> None:
    request = sglang_dialect.abort("r1")
    assert (request.path, request.body) == ("/abort_request", {"rid": "r1"})


def test_extra_body_is_merged_deeply(ask: Any) -> None:
    extra = {"sampling_params": {"custom_params": {"a": 1}}, "cache_salt": "s"}
    body = sglang_dialect.to_wire(ask(extra_body=extra), Facts()).unwrap().body
    assert body["sampling_params"]["custom_params"] == {"a": 1}
    assert body["sampling_params"]["max_new_tokens"] == 512
    assert body["cache_salt"] == "s"
    assert is_ok(sglang_dialect.to_wire(ask(), Facts()))


@pytest.mark.parametrize(
    ("stop", "hidden", "sent"),
    [("END", True, True), ("|", True, False), ("a<", True, False), ("|", False, True)],
)
def test_a_stop_that_sglang_would_find_in_a_special_token_is_pipegens_to_find(
    stop: str, hidden: bool, sent: bool
) -> None:
    """SGLang looks for stops where special tokens show; to pipegen they are invisible, unless they
    are asked for.
    """
    toy = route_to(None, "sglang")
    options = GenerationOptions(stop=(stop,), decode=DecodeOptions(skip_special_tokens=hidden))
    (slot,) = wire_requests(toy, [{"prompt": "Hi"}], options)
    body: Any = slot.unwrap().body
    assert body["sampling_params"].get("stop") == ([stop] if sent else None)


@pytest.mark.parametrize(
    ("listed", "longest", "limit"),
    [
        *((4096, 4090, 4094), (4096, 1000, 1004), (100, 4090, 100), (None, 4090, 4094)),
        *((4096, None, 4096), (4096, "4090", 4096), (4096, True, 4096), (None, None, None)),
    ],
)
def test_a_row_has_the_room_that_the_server_has(
    listed: int | None, longest: Any, limit: int | None
) -> None:
    """SGLang would end a longer row early, and say that its length was reached."""
    engine: Any = route_to(None, "sglang", served_model_name="toy").engine
    about = {} if longest is None else {"max_req_input_len": longest}
    assert engine.limit_of(Facts(models={"toy": listed}, about=about)) == limit
