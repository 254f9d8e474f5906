"""Requests from lines, and slots to plain data and back."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.core import errors
from pipegen.core.errors import GenerationError, InvalidRequest, RateLimited, Timeout
from pipegen.core.names import InvalidField
from pipegen.core.slots import is_ok
from pipegen.io.jsonl import (
    Line,
    from_plain,
    lines_of,
    request_from_row,
    to_plain,
    values_of_line,
    written_from,
)
from pipegen.records import strict_json
from pipegen.records.codec import error_from
from pipegen.records.option_groups import ChatTemplateOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import options_from, resolve
from pipegen.records.parse_request import request_from
from pipegen.records.results import Finish, GenerationResult, TokenLogprob
from pipegen.records.scores import Scored

texts = st.text(max_size=12) | st.sampled_from(
    ["\u2028", "\x85", "\x1b[2J", "<|im_end|>", 'say "no"\\n', "\U0001f600"]
)
ids = st.lists(st.integers(0, 10**6), max_size=4).map(tuple)
numbers = st.floats(allow_nan=False)
kinds = [
    getattr(errors, name)
    for name in errors.__all__
    if issubclass(getattr(errors, name), GenerationError)
]


def _flat_errors() -> st.SearchStrategy[GenerationError]:
    own = {
        "backend": texts,
        "scope": st.sampled_from(["row", "batch"]),
        "index": st.integers(0, 9),
        "prompt_tokens": st.integers(0),
        "limit": st.integers(0),
    }
    own |= {
        "option": texts,
        "plugin": texts,
        "stage": texts,
        "incident": texts,
        "retry_after": st.none() | numbers,
        "message": texts,
        "hint": texts,
    }
    return st.one_of(
        [
            st.builds(
                kind,
                **{name: made for name, made in own.items() if name in kind.__dataclass_fields__},
            )
            for kind in kinds
        ]
    )


flat_errors = _flat_errors()
failures = st.builds(
    lambda error, earlier: error.after(tuple(earlier)),
    flat_errors,
    st.lists(flat_errors, max_size=2),
)
plain_data: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
options = st.builds(
    lambda stops, kwargs, seed, top_k: resolve(
        GenerationOptions(
            stop=StopOptions(stop=tuple(stops)),
            chat=ChatTemplateOptions(template_kwargs=kwargs),
            seed=seed,
            top_k=top_k,
        )
    ),
    st.lists(texts.filter(bool), max_size=3),
    st.dictionaries(texts, plain_data, max_size=2),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 9),
)
tops = st.lists(st.tuples(st.integers(0, 99), numbers), max_size=2).map(tuple)
logprobs = st.lists(
    st.builds(TokenLogprob, token_id=st.integers(0, 99), logprob=numbers, top=tops), max_size=3
)
grids = st.lists(
    st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), max_size=2
).map(tuple)


def _results(
    samples: st.SearchStrategy[tuple[GenerationResult, ...]],
) -> st.SearchStrategy[GenerationResult]:
    return st.builds(
        GenerationResult,
        id=st.none() | texts,
        text=texts,
        raw_text=texts,
        prompt_text=st.none() | texts,
        prompt_token_ids=ids,
        token_ids=ids,
        finish=st.sampled_from(Finish),
        stop=st.none() | texts | st.integers(0, 9),
        prompt_tokens=st.integers(0),
        completion_tokens=st.integers(0),
        logprobs=st.none() | logprobs.map(tuple),
        route=texts,
        tried=st.lists(failures, max_size=2).map(tuple),
        thinking=st.sampled_from([None, "honoured", "unsupported"]),
        image_grid_thw=grids,
        image_digests=st.lists(texts, max_size=2).map(tuple),
        options=options,
        clipped_from=st.none() | st.integers(1, 99),
        samples=samples,
        failed_samples=st.lists(st.tuples(st.integers(0, 9), failures), max_size=1).map(tuple),
    )


results = _results(st.lists(_results(st.just(())), max_size=2).map(tuple))


@settings(max_examples=60)
@given(results | failures)
def test_a_slot_survives_being_written_as_a_line_and_read_back(
    value: GenerationResult | GenerationError,
) -> None:
    slot = Success(value) if isinstance(value, GenerationResult) else Failure(value)
    line = strict_json.dump(to_plain(slot))
    assert len(line.splitlines()) == 1
    assert from_plain(json.loads(line)) == slot


@given(options)
def test_the_options_of_a_line_sent_again_give_the_same_call(said: GenerationOptions) -> None:  # C8
    line = strict_json.dump(
        to_plain(Success(GenerationResult(text="", raw_text="", finish=Finish.EOS, options=said)))
    )
    again = request_from({"prompt": "Hi", "options": strict_json.load(line)["options"]}).unwrap()
    assert resolve(again.options) == resolve(options_from(json.loads(line)["options"])) == said


def text_of(values: dict[str, Any]) -> bytes:
    """The values as a line of a journal has them, without the opening brace."""
    return strict_json.dump(values).encode()[1:] + b"\n"


@settings(max_examples=100)
@given(
    _results(st.just(())).map(lambda result: dataclasses.replace(result, tried=())),
    st.booleans(),
    st.none() | st.dictionaries(texts, texts, max_size=2),
)
def test_a_line_that_is_copied_is_the_line_that_its_result_is_written_as(
    result: GenerationResult, plain: bool, metadata: dict[str, Any] | None
) -> None:
    if plain:
        result = dataclasses.replace(result, logprobs=None, failed_samples=())
    values = to_plain(Success(result))
    found = written_from(text_of(values), lambda: "new")
    again = to_plain(from_plain(values), "new", metadata=metadata)
    assert found is not None or not plain
    if found is not None:
        assert found.line("new", metadata=metadata) == strict_json.dump(again).encode() + b"\n"
        assert found.slot.unwrap() == dataclasses.replace(from_plain(values).unwrap(), id="new")
        counts = result.prompt_tokens, result.completion_tokens, result.thinking_unfinished
        assert found[3:] == counts


PLAIN = GenerationResult(
    id="a", text="é", raw_text="é", finish=Finish.EOS, options=resolve(), prompt_tokens=3
)


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({}, True),
        ({"text": '", "prompt_tokens": 7, "x": "\\'}, True),
        ({"id": None, "reasoning": "[{", "stop": '"', "margin": 0.5}, True),
        ({"tool_calls": ({"name": "f", "arguments": {"prompt_tokens": ["]}"]}},)}, True),
        ({"tool_calls": ({"name": "f", "arguments": {"deep": [[1]]}},)}, False),
        ({"image_grid_thw": ((1, 2, 3), None), "video_times": ((0.5,),)}, True),
        ({"options": resolve(options_from({"stop": ["}, "], "template_kwargs": {"a": {}}}))}, True),
        ({"samples": (PLAIN,)}, False),
        ({"logprobs": (TokenLogprob(token_id=1, logprob=-0.5),)}, False),
        ({"tried": (Timeout("slow"),)}, False),
        ({"margin": math.inf}, False),
    ],
)
def test_which_lines_are_copied(changes: dict[str, Any], copied: bool) -> None:
    text = text_of(to_plain(Success(dataclasses.replace(PLAIN, **changes))))
    found = written_from(text, lambda: "a")
    assert (found is not None) == copied
    if found is not None:
        assert found[3:] == (3, 0, False)


@pytest.mark.parametrize(
    "change",
    [
        ('"ok": true', '"ok": false'),
        ('"text": "é"', '"text": "\\u00e9", "more": 1'),
        ('"temperature": 0.0', '"temperature": -1'),
        ('"temperature": 0.0', '"temperature": '),
        ('"finish": "eos"', '"finish": "other"'),
        ('"thinking": null, ', ""),
        ('"forced": []', '"forced": null'),
        ('"rounds_end": null', '"rounds_end": null, "turn": {}'),
    ],
)
def test_a_line_that_would_be_written_otherwise_is_not_copied(change: tuple[str, str]) -> None:
    text = text_of(to_plain(Success(PLAIN))).decode()
    assert change[0] in text
    assert written_from(text.replace(*change).encode(), lambda: "a") is None


def test_a_brief_result_is_what_people_read() -> None:
    result = GenerationResult(
        id="r",
        text="a",
        raw_text="a<|im_end|>",
        finish=Finish.EOS,
        prompt_tokens=3,
        completion_tokens=1,
        token_ids=(1,),
        prompt_token_ids=(2,),
        logprobs=(),
        options=resolve(GenerationOptions()),
    )
    assert to_plain(Success(result), brief=True) == {
        "id": "r",
        "ok": True,
        "text": "a",
        "finish": "eos",
    }
    whole = dataclasses.replace(
        result,
        text="",
        finish=Finish.STOP_TOKEN,
        stop=0,
        reasoning="b",
        thinking_unfinished=True,
        tool_calls=({"function": {"name": "f"}},),
        samples=(result, result),
        failed_samples=((1, Timeout("slow")),),
        rounds=(result,),
        rounds_end="done",
    )
    plain = to_plain(Success(whole), 7, brief=True, metadata={"label": 1})
    assert plain.pop("failed_samples")[0]["error"]["message"] == "slow"
    assert plain == {
        "id": 7,
        "ok": True,
        "text": "",
        "finish": "stop_token",
        "stop": 0,
        "reasoning": "b",
        "thinking_unfinished": True,
        "tool_calls": [{"function": {"name": "f"}}],
        "samples": [{"text": "a", "finish": "eos"}] * 2,
        "rounds": [{"text": "a", "finish": "eos"}],
        "rounds_end": "done",
        "metadata": {"label": 1},
    }


def test_a_brief_line_is_not_read_back() -> None:
    words = "a result takes raw_text, options too: a brief line is not read back"
    with pytest.raises(InvalidField, match=words):
        from_plain({"id": "a", "ok": True, "text": "a", "finish": "eos"})


def test_a_line_begins_with_its_id_and_whether_it_is_ok() -> None:
    assert list(to_plain(Failure(Timeout("slow")), id=7).items())[:2] == [("id", 7), ("ok", False)]


def test_an_error_tells_type_message_hint_its_own_fields_and_what_came_before() -> None:
    error = to_plain(Failure(RateLimited("busy", retry_after=2.5, earlier=(Timeout("slow"),))))[
        "error"
    ]
    seen = (error["type"], error["message"], error["retry_after"], error["earlier"][0]["type"])
    assert seen == ("RateLimited", "busy", 2.5, "Timeout")
    assert error["hint"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ok": 1}, "ok takes true or false"),
        ({"ok": False, "error": "x"}, "error takes a mapping"),
        ({"ok": False, "error": {"type": "KeyError"}}, "error.type takes one of"),
        ({"ok": False, "error": {"type": "Timeout", "mesage": "x"}}, "did you mean 'message'"),
        ({"ok": True, "text": "a"}, "takes raw_text, finish, options too"),
        (
            {"ok": True, "text": "a", "raw_text": "a", "finish": "EOS?", "options": {}},
            "finish does not have the form",
        ),
        (
            {
                "ok": True,
                "text": "a",
                "raw_text": "a",
                "finish": "eos",
                "options": {},
                "logprobs": [{}],
            },
            "logprobs does not have the form",
        ),
        (
            {"ok": True, "text": "a", "raw_text": "a", "finish": "eos", "options": {}, "txet": "b"},
            "did you mean 'text'",
        ),
        (
            {
                "ok": True,
                "text": "a",
                "raw_text": "a",
                "finish": "eos",
                "options": {"temprature": 1},
            },
            "did you mean 'temperature'",
        ),
    ],
)
def test_what_is_no_slot_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        from_plain(values)


def test_infinite_log_probabilities_are_strict_json_and_come_back() -> None:
    never = TokenLogprob(
        token_id=1, logprob=-math.inf, top=((2, -math.inf),), text="a", top_texts=("b",)
    )
    result = GenerationResult(
        text="a",
        raw_text="a",
        finish=Finish.EOS,
        logprobs=(never,),
        options=resolve(GenerationOptions()),
    )
    line = strict_json.dump(to_plain(Success(result)))
    assert strict_json.load(line)["logprobs"] == [
        {
            "token_id": 1,
            "logprob": "-Infinity",
            "top": [[2, "-Infinity"]],
            "margin": None,
            "text": "a",
            "top_texts": ["b"],
        }
    ]
    assert from_plain(json.loads(line)).unwrap() == result


def test_margins_come_back() -> None:
    near = TokenLogprob(token_id=1, logprob=-0.5, margin=0.25)
    result = GenerationResult(
        text="a",
        raw_text="a",
        finish=Finish.EOS,
        logprobs=(near,),
        margin=0.25,
        options=resolve(GenerationOptions()),
    )
    plain = json.loads(strict_json.dump(to_plain(Success(result))))
    assert from_plain(plain) == Success(result)
    del plain["logprobs"][0]["margin"], plain["margin"]  # a line of an older version
    older = from_plain(plain).unwrap()
    assert (older.margin, older.logprobs) == (None, (TokenLogprob(token_id=1, logprob=-0.5),))


def test_nested_immutable_mappings_become_dicts() -> None:
    said = resolve(
        GenerationOptions(
            chat=ChatTemplateOptions(
                template_kwargs=immutabledict({"a": immutabledict({"b": (1,)})})
            )
        )
    )
    plain = to_plain(
        Success(GenerationResult(text="", raw_text="", finish=Finish.EOS, options=said))
    )
    assert plain["options"]["template_kwargs"] == {"a": {"b": [1]}}
    assert type(plain["options"]["template_kwargs"]["a"]) is dict


def test_error_from_is_the_inverse_for_an_error_with_history() -> None:
    error = InvalidRequest("no", earlier=(Timeout("slow"),))
    assert error_from(to_plain(Failure(error))["error"]) == error


# Lines


def request_of(line: Line) -> tuple[Any, Any]:
    read = values_of_line(line)
    return (
        request_from_row(read.unwrap(), line.number, "line")
        if is_ok(read)
        else (str(line.number), Failure(read.failure()))
    )


def only(text: str | bytes) -> tuple[Any, Any]:
    (line,) = lines_of(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    return request_of(line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "line 1: not JSON: Expecting value at column 1"),
        ('{"prompt": "a"', "line 1: not JSON"),
        ("[1]", "line 1: takes an object such as"),
        ("null", "not NoneType"),
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' occurs twice"),
        ('{"prompt": "a", "options": {"temperature": NaN}}', "NaN is not a number in JSON"),
        ('{"prompt": "a", "options": {"temperature": 1e999}}', "inf is not a number in JSON"),
        ('{"prompt": "a\\ud800"}', "is half a character"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested more than 64 deep"),
        ("[" * 10**6, "nested more than 64 deep"),
        ('{"prompt": ' + "9" * 5000 + "}", "line 1: not JSON"),
        (b'{"prompt": "\xff"}', "line 1: not UTF-8: byte 0xff at position 12"),
        (
            '{"prompt": "a", "id": true}',
            "id takes a string that is not empty or a whole number, not True",
        ),
        ('{"prompt": "a", "id": ""}', "id takes a string that is not empty"),
        ('{"prompt": "a", "id": 1.5}', "not 1.5"),
        # C1
        (
            '{"prompt": "a", "options": {"temprature": 1}}',
            "line 1: options: there is no option 'temprature'; did you mean 'temperature'?",
        ),
        ('{"promt": "a"}', "line 1: there is no field 'promt'; did you mean 'prompt'?"),
        # T8
        (
            '{"messages": [{"role": "user", "content": [{"type": "smell"}]}]}',
            "messages[0].content[0].type",
        ),
        ('{"prompt": 5}', "prompt takes a string"),
        ('{"prompt": "a", "tools": [5]}', "tools"),
        ('{"prompt": "a", "tools": 5}', "tools"),
        ('{"prompt": "a", "images": [5]}', "images[0]"),
    ],
)
def test_a_malformed_line_is_a_failure_that_names_the_place(text: str | bytes, words: str) -> None:
    name, slot = only(text)
    assert name == "1"
    assert isinstance(slot.failure(), InvalidRequest)
    assert words in slot.failure().message


def test_blank_lines_are_left_out_but_counted_and_a_byte_order_mark_is_no_matter() -> None:
    text = '\ufeff{"prompt": "a"}\r\n\n  \r\n{"prompt": "b"}'
    found = [request_of(line) for line in lines_of(io.BytesIO(text.encode()))]
    assert [(name, slot.unwrap().prompt) for name, slot in found] == [("1", "a"), ("4", "b")]


def test_an_id_that_was_rounded_is_refused_and_the_hint_says_how_to_read_it() -> None:
    _, slot = only('{"prompt": "a", "id": 9007199254740992.0}')
    assert "not 9007199254740992.0" in slot.failure().message
    assert 'dtype={"id": "Int64"}' in slot.failure().hint


@pytest.mark.parametrize(
    ("given_id", "kept"), [('"x"', "x"), ("5", 5), ("5.0", 5), ('"5.0"', "5.0"), ("null", "1")]
)
def test_an_id_is_given_back_as_it_stands_and_a_missing_one_is_the_line_number(
    given_id: str, kept: Any
) -> None:
    name, slot = only(f'{{"id": {given_id}, "prompt": "a"}}')
    assert (name, slot.unwrap().id) == (kept, str(kept))


def test_a_line_that_is_too_long_fails_alone_and_is_never_held() -> None:
    stream = io.BytesIO(b'{"prompt": "' + b"a" * 3_000_000 + b'"}\n{"prompt": "b"}\n')
    first, second = lines_of(stream, limit=1000)
    assert first == Line(1, None, 3_000_015)
    assert "longer than 268435456 bytes" in request_of(first)[1].failure().message
    assert request_of(second)[1].unwrap().prompt == "b"


def test_a_line_of_just_the_limit_is_taken() -> None:
    text = b'{"prompt": "abc"}'
    assert [line.data for line in lines_of(io.BytesIO(text + b"\n" + text), limit=len(text))] == [
        text + b"\n",
        text,
    ]


names = st.sampled_from(
    ["id", "messages", "prompt", "prompt_token_ids", "images", "tools", "options", "else"]
)
likely = st.sampled_from(["user", "system", [{"type": "image", "image": "a.png"}]])
message = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls"]), plain_data | likely, max_size=3
)


@settings(max_examples=300)
@given(st.dictionaries(names, plain_data | st.lists(message, max_size=2), max_size=4))
def test_no_json_object_whatever_crashes_the_reader(values: dict[str, Any]) -> None:
    _, slot = only(json.dumps(values))
    assert is_ok(slot) or isinstance(slot.failure(), InvalidRequest)


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_no_bytes_whatever_crash_the_reader(data: bytes) -> None:
    for line in lines_of(io.BytesIO(data), limit=16):
        request_of(line)


def test_a_score_comes_back_whole_and_a_brief_one_without_its_context() -> None:
    scored = Scored(
        id="a",
        logprob=-math.inf,
        token_logprobs=(-math.inf, -0.1),
        token_ids=(1, 2),
        greedy=False,
        likeliest=((7, -0.5), (2, -0.1)),
        tokens=2,
        bytes=3,
        prompt_token_ids=(7,),
        prompt_tokens=1,
        tried=(Timeout("slow"),),
        image_grid_thw=((1, 4, 6), None),
    )
    assert (
        from_plain(strict_json.load(strict_json.dump(to_plain(Success(scored)))), Scored).unwrap()
        == scored
    )
    assert from_plain(
        to_plain(Success(scored), brief=True), Scored
    ).unwrap() == dataclasses.replace(scored, prompt_token_ids=())
    failed = to_plain(Failure(Timeout("slow")))
    assert from_plain(failed, Scored).failure() == Timeout("slow")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"logprob": -1.0}, "a score takes token_logprobs, token_ids, greedy, tokens, bytes too"),
        ({"token_logprobs": 3}, "token_logprobs does not have the form"),
    ],
)
def test_what_is_no_score_is_refused(values: dict[str, Any], words: str) -> None:
    if "token_logprobs" in values:
        values = {
            "logprob": 0.0,
            "token_ids": [],
            "greedy": True,
            "tokens": 0,
            "bytes": 0,
            **values,
        }
    with pytest.raises(InvalidField, match=words):
        from_plain({"ok": True, **values}, Scored)
