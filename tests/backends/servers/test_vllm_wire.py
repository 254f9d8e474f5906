"""vLLM's wire records, without a network."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pipegen.backends.servers import openai, vllm_dialect
from pipegen.backends.servers.wire import Facts, Wire, WireReply, WireRequest
from pipegen.core.errors import (
    BackendFailed,
    InvalidRequest,
    MalformedResponse,
    PromptTooLong,
    RateLimited,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.slots import is_ok
from pipegen.records.option_groups import StopOptions
from pipegen.records.results import PreparedImage
from pipegen.testing.toy import ToyTokenizer

IMAGE = PreparedImage(width=1, height=1, rgb=bytes(3), digest="0", tokens=3)


# H1
def test_the_body_is_written_in_full(ask: Any) -> None:
    request = vllm_dialect.to_wire(
        ask(
            ending_ids=(99,),
            model="tiny",
            temperature=0.3,
            max_new_tokens=7,
            min_new_tokens=2,
            seed=5,
            stop=StopOptions(stop_token_ids=(99,)),
            extra_body={"cache_salt": "s"},
        ),
        Facts(),
    ).unwrap()
    seen = (request.method, request.path, request.stream)
    assert seen == ("POST", "/inference/v1/generate", False)
    assert request.body == {
        "model": "tiny",
        "token_ids": [1, 2, 3],
        "sampling_params": {
            "n": 1,
            "temperature": 0.3,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": 5,
            "max_tokens": 7,
            "min_tokens": 2,
            "stop": [],
            "stop_token_ids": [99],
            "ignore_eos": True,
            "include_stop_str_in_output": True,
            "skip_special_tokens": True,
            "spaces_between_special_tokens": False,
            "detokenize": False,
        },
        "cache_salt": "s",
    }


def test_what_is_none_is_not_sent_and_zero_is(ask: Any) -> None:
    params = vllm_dialect.to_wire(ask(top_k=0), Facts()).unwrap().body["sampling_params"]
    assert params["top_k"] == 0
    assert "seed" not in params
    assert "logprobs" not in params


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"json_schema": {"type": "object"}}, {"json": '{"type":"object"}'}),
        ({"regex": "[ab]"}, {"regex": "[ab]"}),
        ({"choice": ("yes", "no")}, {"choice": ["yes", "no"]}),
    ],
)
def test_the_form_of_the_answer_is_asked_for(ask: Any, form: Any, said: Any) -> None:
    params = vllm_dialect.to_wire(ask(structured=form), Facts()).unwrap().body["sampling_params"]
    assert json.dumps(params["structured_outputs"]).replace(" ", "") == json.dumps(said).replace(
        " ", ""
    )


def test_extra_body_is_merged_deeply_and_stays_as_it_was(ask: Any) -> None:
    extra = {"sampling_params": {"bad_words": ["x"], "top_k": None}, "priority": 3}
    body = vllm_dialect.to_wire(ask(extra_body=extra), Facts()).unwrap().body
    assert body["sampling_params"]["bad_words"] == ["x"]
    assert body["sampling_params"]["max_tokens"] == 512
    assert "top_k" not in body["sampling_params"]
    assert body["priority"] == 3
    assert extra == {"sampling_params": {"bad_words": ["x"], "top_k": None}, "priority": 3}


def test_images_go_as_content_parts_beside_one_placeholder_each(ask: Any) -> None:
    body = vllm_dialect.to_wire(ask((1, 7, 2), images=(IMAGE,)), Facts()).unwrap().body
    assert body["token_ids"] == [1, 7, 2]
    assert [part["type"] for part in body["content_parts"]] == ["image_url"]
    assert body["content_parts"][0]["url"].startswith("data:image/png;base64,")
    assert body["return_token_ids"] is True


def test_without_the_endpoint_text_goes_by_completions_and_images_do_not(ask: Any) -> None:
    lacks = Facts(lacks=frozenset({"generate"}))
    request = vllm_dialect.to_wire(ask(model="tiny", logprobs=True), lacks).unwrap()
    assert request.path == "/v1/completions"
    assert request.body["prompt"] == [1, 2, 3]
    assert request.body["return_token_ids"] is True
    assert request.body["logprobs"] == 2  # for the margin
    assert isinstance(
        vllm_dialect.to_wire(ask(images=(IMAGE,)), lacks).failure(), UnsupportedMultimodal
    )


@pytest.mark.parametrize(
    ("status", "body", "lacks"),
    [
        (404, b'{"detail":"Not Found"}', "generate"),
        (
            403,
            (
                b'{"error":{"message":"Scale-out endpoints are'
                b' disabled.","type":"PermissionDeniedError"}}'
            ),
            "generate",
        ),
        (405, b"", "generate"),
        (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError"}}', ""),
        (
            400,
            b'{"error":{"message":"stop strings are not supported on a --tokens-only server"}}',
            "stops",
        ),
        (400, b'{"error":{"message":"other"}}', ""),
    ],
)
def test_what_a_refusal_shows_the_server_to_lack(status: int, body: bytes, lacks: str) -> None:
    request = WireRequest(path=vllm_dialect.GENERATE, lacks="generate")
    assert vllm_dialect.lacking(WireReply(status=status, body=body), request) == lacks
    if lacks == "generate":
        assert (
            vllm_dialect.lacking(
                WireReply(status=status, body=body), WireRequest(path=vllm_dialect.COMPLETIONS)
            )
            == ""
        )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": 0.001}, "temperature"),
        ({"temperature": 1.0, "logprobs": True, "top_logprobs": 20}, "top_logprobs"),
        ({"min_new_tokens": 2, "stop": StopOptions(ignore_eos=True)}, "min_new_tokens"),
    ],
)
def test_what_the_server_would_change_is_refused_by_name(ask: Any, options: Any, name: str) -> None:
    facts = Facts(about={"max_logprobs": 20})
    error = vllm_dialect.to_wire(ask(ending_ids=(5,), **options), facts).failure()
    assert isinstance(error, UnsupportedOption)
    assert error.option == name


@pytest.mark.parametrize("most", [None, 64, -1])
def test_as_many_of_the_likeliest_are_asked_for_as_the_server_may_give(
    ask: Any, most: int | None
) -> None:
    facts = Facts(about={} if most is None else {"max_logprobs": most})
    request = vllm_dialect.to_wire(ask(logprobs=True, top_logprobs=32, temperature=1.0), facts)
    assert request.unwrap().body["sampling_params"]["logprobs"] == 33


@pytest.mark.parametrize("wire", [vllm_dialect.VLLM, openai.DIALECTS["vllm"]], ids=["ids", "chat"])
def test_a_server_that_gives_fewer_is_an_error_that_names_the_option(ask: Any, wire: Wire) -> None:
    words = "Requested sample logprobs of 33, which is greater than max allowed: 20"
    reply = WireReply(status=400, body=json.dumps({"error": {"message": words}}).encode())
    error = wire.classify(reply, ask(logprobs=True, top_logprobs=32))
    assert isinstance(error, UnsupportedOption)
    assert (error.option, "at most 20" in error.message) == ("top_logprobs", True)


PROCESSED = Facts(about={"logprobs_mode": "processed_logprobs"})
HOT = {"temperature": 0.7, "top_k": 5}


@pytest.mark.parametrize("facts", [Facts(), Facts(about={"logprobs_mode": "raw_logprobs"})])
def test_processed_logprobs_take_a_server_that_says_it_gives_them(ask: Any, facts: Facts) -> None:
    for options in (HOT, {}):
        error = vllm_dialect.to_wire(ask(logprobs="processed", **options), facts).failure()
        assert isinstance(error, UnsupportedOption) and error.option == "logprobs"
        assert "--logprobs-mode processed_logprobs" in error.hint
        asked = vllm_dialect.to_wire(ask(logprobs="processed", **options), PROCESSED).unwrap()
        assert asked.body["sampling_params"]["logprobs"] >= 2


def test_raw_logprobs_are_refused_where_the_server_says_it_gives_others(ask: Any) -> None:
    error = vllm_dialect.to_wire(ask(logprobs=True, **HOT), PROCESSED).failure()
    assert isinstance(error, UnsupportedOption) and error.option == "logprobs"
    assert "temperature, top_k" in error.message
    for options in ({}, {"top_k": 5}, {"temperature": 1.0}):  # those are the same
        assert is_ok(vllm_dialect.to_wire(ask(logprobs=True, **options), PROCESSED))
        assert is_ok(vllm_dialect.to_wire(ask(logprobs=True, **HOT), Facts()))


def test_the_likeliest_without_what_a_filter_left_out_are_read(ask: Any) -> None:
    tops = [
        {"token_id": token, "logprob": value}
        for token, value in ((5, -0.5), (6, -1.0), (7, -9999.0), (8, -9999.0))
    ]
    entries = {"content": [{**tops[at], "top_logprobs": tops} for at in (0, 1)]}
    answer = {"choices": [choice(token_ids=[5, 6], logprobs=entries)]}
    asked = ask(logprobs="processed", top_logprobs=3, temperature=1.0)
    (completion,) = vllm_dialect.from_wire(answer, asked).unwrap()
    first, second = completion.logprobs or ()
    assert first.top == second.top == ((5, -0.5), (6, -1.0))
    assert (first.margin, second.logprob) == (0.5, -1.0)
    raw = ask(logprobs=True, top_logprobs=3, temperature=1.0)
    assert not is_ok(vllm_dialect.from_wire(answer, raw))


def choice(**more: Any) -> dict[str, Any]:
    return {"index": 0, "token_ids": [5, 6], "finish_reason": "length", **more}


def test_an_answer_is_read(ask: Any) -> None:
    answer = {"choices": [choice(stop_reason=None)], "prompt_token_ids": [1, 2, 3]}
    (completion,) = vllm_dialect.from_wire(answer, ask()).unwrap()
    seen = (completion.token_ids, completion.finish, completion.prompt_token_ids)
    assert seen == ((5, 6), "length", (1, 2, 3))


@pytest.mark.parametrize(
    "answer",
    [
        *({}, {"choices": None}, {"choices": []}, {"choices": [choice(), choice(index=1)]}),
        *({"choices": ["x"]}, {"choices": [choice(token_ids=None)]}),
        *({"choices": [choice(token_ids=[True])]}, {"choices": [choice(token_ids=[-1])]}),
        {"choices": [choice(token_ids="56")]},
        {"choices": [choice(finish_reason=None)]},
        {"choices": [choice(finish_reason=3)]},
        {"choices": [choice(index="1")]},
        {"choices": [choice()], "prompt_token_ids": "123"},
    ],
)
def test_an_answer_that_the_protocol_does_not_allow_is_malformed(ask: Any, answer: Any) -> None:
    assert isinstance(vllm_dialect.from_wire(answer, ask()).failure(), MalformedResponse)


def content(*entries: Any) -> dict[str, Any]:
    return {"choices": [choice(logprobs={"content": list(entries)})]}


# H3
@pytest.mark.parametrize("value", [None, "-0.5", True, math.nan, math.inf, -math.inf, -9999.0])
def test_a_logprob_that_is_no_number_is_malformed_and_named(ask: Any, value: Any) -> None:
    answer = content({"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": value})
    error = vllm_dialect.from_wire(answer, ask(logprobs=True)).failure()
    assert isinstance(error, MalformedResponse)
    assert "token 1" in error.message


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ({"choices": [choice()]}, 0),
        ({"choices": [choice(logprobs="x")]}, 0),
        (content({"token_id": 5, "logprob": -0.5}), 1),
        (content({"token_id": 5, "logprob": -0.5}, {"token_id": 7, "logprob": -0.5}), 1),
        (content({"token_id": 5}, {"token_id": 6, "logprob": -0.5}), 0),
        (content("x", {"token_id": 6, "logprob": -0.5}), 0),
    ],
)
def test_logprobs_that_are_missing_or_of_other_tokens_are_malformed_and_named(
    ask: Any, answer: Any, index: int
) -> None:
    assert f"token {index}" in vllm_dialect.from_wire(answer, ask(logprobs=True)).failure().message


def test_a_logprob_of_zero_is_one(ask: Any) -> None:
    answer = content({"token_id": 5, "logprob": 0.0}, {"token_id": 6, "logprob": 0})
    (completion,) = vllm_dialect.from_wire(answer, ask(logprobs=True)).unwrap()
    assert [entry.logprob for entry in completion.logprobs] == [0.0, 0.0]


def test_the_likeliest_tokens_are_the_best_of_those_sent(ask: Any) -> None:
    tops = [
        {"token_id": 5, "logprob": -2.0},
        {"token_id": 8, "logprob": -0.1},
        {"token_id": 9, "logprob": -1.0},
    ]
    entry = {"token_id": 5, "logprob": -2.0, "top_logprobs": tops}
    answer = {"choices": [choice(token_ids=[5], logprobs={"content": [entry]})]}
    drawn = ask(logprobs=True, top_logprobs=2, temperature=1.0)
    assert vllm_dialect.to_wire(drawn, Facts()).unwrap().body["sampling_params"]["logprobs"] == 3
    (completion,) = vllm_dialect.from_wire(answer, drawn).unwrap()
    assert completion.logprobs[0].top == ((8, -0.1), (9, -1.0))
    few = {
        "choices": [
            choice(token_ids=[5], logprobs={"content": [{**entry, "top_logprobs": tops[:1]}]})
        ]
    }
    assert isinstance(vllm_dialect.from_wire(few, drawn).failure(), MalformedResponse)


def test_words_are_barred_and_biases_sent_under_the_ids_as_keys(ask: Any) -> None:
    asked = ask(bad_words=("no", " a b"), logit_bias={7: -100, 5: 2})
    params = vllm_dialect.to_wire(asked, Facts()).unwrap().body["sampling_params"]
    assert (params["bad_words"], params["logit_bias"]) == (["no", " a b"], {"5": 2.0, "7": -100.0})


class Spaced(ToyTokenizer):
    """Has tokens for some words, with a space before them or without it."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        if text in self.words:
            return (200 + self.words.index(text),)
        return super().encode_plain(text, first=first)


def test_a_word_that_the_server_would_leave_in_one_spelling_is_refused() -> None:
    both = Spaced("no", " no")
    assert vllm_dialect.unsupported_words(("no", " no"), both) is None
    assert (
        vllm_dialect.unsupported_words(("no",), ToyTokenizer()) is None
    )  # the one ends with the other
    for tokenizer in (Spaced("no"), Spaced(" no")):
        refusal = vllm_dialect.unsupported_words((" no",), tokenizer)
        assert refusal is not None
        assert (refusal.option, "' no'" in refusal.message) == ("bad_words", True)
    many = tuple(f"w{number}" for number in range(65))
    spelled = Spaced(*many, *(f" {word}" for word in many))
    assert vllm_dialect.unsupported_words(many[:64], spelled) is None
    refusal = vllm_dialect.unsupported_words(many, spelled)
    assert refusal is not None
    assert "128 spellings" in refusal.message


CHANGED: list[dict[str, Any]] = [
    {"allowed_token_ids": (5, 6)},
    {"bad_words": ("no",)},
    {"logit_bias": {5: 1.0}},
    {"min_new_tokens": 1},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 1.0},
    {"repetition_penalty": 1.5},
]


@pytest.mark.parametrize("options", CHANGED)
def test_a_greedy_token_that_need_not_be_the_likeliest_takes_no_place(
    ask: Any, options: dict[str, Any]
) -> None:
    asked = ask((9,), logprobs=True, top_logprobs=2, ending_ids=(7,), **options)
    params = vllm_dialect.to_wire(asked, Facts()).unwrap().body["sampling_params"]
    assert params["logprobs"] == 3
    newer = vllm_dialect.to_wire(asked, Facts(about={"version": "0.33.0"})).unwrap()
    assert newer.body["sampling_params"]["logprobs"] == 2
    plain = ask((9,), logprobs=True, top_logprobs=2, ending_ids=(7,))
    assert vllm_dialect.to_wire(plain, Facts()).unwrap().body["sampling_params"]["logprobs"] == 2


def test_logprobs_of_completions_are_read_too(ask: Any) -> None:
    said = {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"token_id:5": -0.5}, {"token_id:6": -0.25}],
    }
    (completion,) = vllm_dialect.from_wire(
        {"choices": [choice(logprobs=said)]}, ask(logprobs=True, top_logprobs=1)
    ).unwrap()
    assert [(entry.token_id, entry.logprob, entry.top) for entry in completion.logprobs] == [
        (5, -0.5, ((5, -0.5),)),
        (6, -0.25, ((6, -0.25),)),
    ]


# H5
WORDINGS = [
    ("Input length (300) exceeds model's maximum context length (256).", 300),
    (
        (
            "The decoder prompt (length 300) is longer than the maximum model length of 256. Make"
            " sure that `max_model_len` is no smaller."
        ),
        300,
    ),
    (
        (
            "The decoder prompt (length 256) plus the number of requested output tokens (at least"
            " 1) is longer than the maximum model length of 256."
        ),
        256,
    ),
    (
        (
            "This model's maximum context length is 256 tokens. However, your prompt contains 300"
            " input tokens, please shorten it."
        ),
        300,
    ),
    (
        (
            "This model's maximum context length is 256 tokens. However, you requested 320 tokens"
            " (300 in the messages, 20 in the completion)."
        ),
        300,
    ),
    (
        (
            "This model's maximum context length is 256 tokens. However, your request has 300 input"
            " tokens."
        ),
        300,
    ),
    (
        (
            "This model's maximum context length is 256 tokens. However, your messages resulted in"
            " 300 tokens."
        ),
        300,
    ),
]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(("message", "length"), WORDINGS)
def test_an_over_long_prompt_is_known_in_each_wording_whatever_the_status(
    ask: Any, status: int, message: str, length: int
) -> None:
    reply = WireReply(
        status=status,
        body=json.dumps(
            {
                "error": {
                    "message": message,
                    "type": "BadRequestError",
                    "param": None,
                    "code": status,
                }
            }
        ).encode(),
    )
    error = vllm_dialect.VLLM.classify(reply, ask(tuple(range(length))))
    assert isinstance(error, PromptTooLong)
    assert (error.prompt_tokens, error.limit) == (length, 256)


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        *((400, {}, InvalidRequest), (500, {}, BackendFailed), (501, {}, BackendFailed)),
        *((401, {}, BackendFailed), (302, {}, BackendFailed)),
        *((429, {"retry-after": "3"}, RateLimited), (503, {}, RateLimited)),
    ],
)
def test_other_refusals_have_errors_of_their_own(
    ask: Any, status: int, headers: Any, kind: type
) -> None:
    error = vllm_dialect.VLLM.classify(
        WireReply(status=status, body=b'{"error":{"message":"no"}}', headers=headers), ask()
    )
    assert type(error) is kind
    assert "no" in error.message
    if kind is RateLimited:
        assert error.retry_after == (3.0 if headers else None)


def test_events_bring_new_tokens_and_the_end(ask: Any) -> None:
    follows = ask(stream=True)
    (first,) = vllm_dialect.from_event(
        {"choices": [choice(finish_reason=None)], "prompt_token_ids": [1, 2, 3]}, follows, 0
    ).unwrap()
    (last,) = vllm_dialect.from_event(
        {"choices": [choice(token_ids=[], finish_reason="stop", stop_reason=7)]}, follows, 2
    ).unwrap()
    assert (first.token_ids, first.finish, first.prompt_token_ids) == ((5, 6), None, (1, 2, 3))
    assert (last.token_ids, last.finish, last.stop) == ((), "stop", 7)
    assert vllm_dialect.from_event({"choices": [], "usage": {}}, follows, 2).unwrap() == ()
    assert is_ok(vllm_dialect.from_event({"choices": [choice(token_ids=None)]}, follows, 2))


def test_the_index_of_a_bad_logprob_in_a_stream_counts_all_tokens(ask: Any) -> None:
    event = {
        "choices": [choice(token_ids=[6], logprobs={"content": [{"token_id": 6, "logprob": None}]})]
    }
    assert (
        "token 4"
        in vllm_dialect.from_event(event, ask(stream=True, logprobs=True), 4).failure().message
    )


@pytest.mark.parametrize(
    ("temperature", "top", "asked"),
    [(0.0, 0, 2), (0.0, 1, 2), (0.0, 5, 5), (1.0, 0, 3), (1.0, 5, 6)],
)
def test_two_of_the_likeliest_are_asked_for_the_margin_besides_a_drawn_one(
    temperature: float, top: int, asked: int, ask: Any
) -> None:
    request = vllm_dialect.to_wire(
        ask(logprobs=True, top_logprobs=top, temperature=temperature), Facts()
    ).unwrap()
    assert request.body["sampling_params"]["logprobs"] == asked


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        ("0.27.1", 6),
        ("0.32.0", 6),
        ("0.33.0", 5),
        ("0.33.0+cpu", 5),
        ("0.33.1.post1", 5),
        ("1.0.0", 5),
        ("0.33.0rc1", 6),  # it may be older than the change, and one more is right with both
        ("0.33.1.dev5+gabc", 6),
        ("dev", 6),
        (None, 6),
    ],
)
def test_a_server_that_gives_the_drawn_token_as_an_extra_one_is_not_asked_for_one_more(
    version: Any, asked: int, ask: Any
) -> None:
    facts = Facts(about={} if version is None else {"version": version})
    drawn = ask(logprobs=True, top_logprobs=5, temperature=1.0)
    request = vllm_dialect.to_wire(drawn, facts).unwrap()
    assert request.body["sampling_params"]["logprobs"] == asked


@pytest.mark.parametrize(
    "facts", [Facts(about={"version": "0.33.0"}), Facts(lacks=frozenset({"generate"}))]
)
def test_twenty_of_the_likeliest_besides_a_drawn_one_can_be_had_where_it_is_an_extra_one(
    facts: Facts, ask: Any
) -> None:
    drawn = ask(logprobs=True, top_logprobs=20, temperature=1.0)
    body = vllm_dialect.to_wire(drawn, facts).unwrap().body
    assert body.get("sampling_params", body)["logprobs"] == 20


@pytest.mark.parametrize("drawn", [3, 20], ids=["among the likeliest", "an extra one"])
def test_as_many_as_were_asked_or_one_more_are_read_as_the_likeliest_of_them(
    drawn: int, ask: Any
) -> None:
    values = {token: -0.5 - token for token in range(20)}
    ids = [drawn, *(token for token in values if token != drawn)]  # the drawn one is first
    tops = [{"token_id": token, "logprob": values.get(token, -99.0)} for token in ids]
    entry = {**tops[0], "top_logprobs": tops}
    answer = {"choices": [choice(token_ids=[drawn], logprobs={"content": [entry]})]}
    asked = ask(logprobs=True, top_logprobs=20, temperature=1.0)
    (completion,) = vllm_dialect.from_wire(answer, asked).unwrap()
    (read,) = completion.logprobs or ()
    assert read.top == tuple(values.items())
    assert (read.margin, read.logprob) == (1.0, tops[0]["logprob"])
