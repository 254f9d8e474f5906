"""The codec: what a record declares is what every reader and writer of it goes by."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from returns.result import Failure, Success

import pipegen
from pipegen.answer.json_check import wrong_in_json
from pipegen.config import lines_schema
from pipegen.core.errors import GenerationError, Refused, Timeout
from pipegen.core.names import InvalidField
from pipegen.io.jsonl import from_plain, to_plain
from pipegen.records import codec, strict_json
from pipegen.records.codec import (
    declared,
    decode,
    encode,
    error_from,
    error_to_plain,
    is_plain,
    item_of,
    word_of,
)
from pipegen.records.fields import UNWRITTEN, record, unchecked_replace
from pipegen.records.frozen import freeze
from pipegen.records.messages import ImageSource, VideoSource
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import Finish, GenerationResult, TokenLogprob
from pipegen.records.rollouts import Rollout
from pipegen.testing import strategies

BOTH = 'FieldRow(brief=True, column="more")'
NEW = f"""
    sureness: Annotated[float | None, {BOTH}] = None
    tags: Annotated[tuple[str, ...], {BOTH}] = ()
    judged: Annotated[Literal["yes", "no"] | None, {BOTH}] = None
    about: Annotated[Mapping[str, Any] | None, {BOTH}] = None
    places: Annotated[tuple[tuple[int, ...] | None, ...], {BOTH}] = ()
    causes: Annotated[tuple[GenerationError, ...], BRIEF] = ()
    tokens: Annotated[tuple[TokenLogprob | None, ...] | None, BRIEF] = None
"""
"""Fields of all kinds of types."""
SEEN = """
import json, pathlib, sys
import pyarrow as pa
from hypothesis import Phase, find, settings
import pipegen as pg
from pipegen.config import lines_schema
from pipegen.io.results_in import slots_in
from pipegen.io.table_out import arrow_out
from pipegen.io.tables import Columns, TableRow
from pipegen.records import strict_json
from pipegen.records.frozen import freeze
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import Finish, GenerationResult
from pipegen.answer.json_check import wrong_in_json
from pipegen.testing.strategies import results

names = sys.argv[2:]
token = pg.TokenLogprob(token_id=1, logprob=float("-inf"), top=((2, -0.5),))
known = dict(text="a", raw_text="a", finish=Finish.EOS, options=resolve())
result = GenerationResult(
    **known, sureness=float("-inf"), tags=("a", "b"), judged="yes", about=freeze({"x": [1, {"y": None}]}),
    places=((1, 2), None), causes=(pg.Timeout("slow"),), tokens=(None, token),
)
line = strict_json.load(strict_json.dump(pg.to_plain(pg.Success(result), "r")))
read = pg.from_plain(line).unwrap()
brief = pg.to_plain(pg.Success(result), "r", brief=True)
short = pg.to_plain(pg.Success(GenerationResult(**known)), "r", brief=True)
file = pathlib.Path(sys.argv[1], "out.parquet")
with file.open("wb") as stream, arrow_out(stream, pa.schema([]), Columns(), form=".parquet", model="m") as write:
    write(TableRow({}, None, 0), "r", pg.Success(result))
(_, slot), = slots_in(file)
properties = lines_schema()["$defs"]["GenerationResult"]["properties"]
drawn = lambda name: find(
    results(), lambda result: getattr(result, name), settings=settings(phases=[Phase.generate])
)
print(json.dumps({
    "package": pg.__file__,
    "lines": [name for name in names if name in line and getattr(read, name) == getattr(result, name)],
    "brief": [name for name in names if brief.get(name) == line[name] and name not in short],
    "tables": [name for name in names if getattr(slot.unwrap(), name) == getattr(result, name)],
    "schema": [name for name in names if properties.get(name)],
    "wrong": [wrong_in_json(line, lines_schema()), wrong_in_json({**line, "tags": 1}, lines_schema())],
    "strategies": [name for name in names if drawn(name)],
}))
"""


def test_a_field_that_is_added_in_one_place_is_seen_in_all(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    package = Path(str(resources.files(pipegen)))
    shutil.copytree(package, tmp_path / "pipegen", ignore=shutil.ignore_patterns("*.safetensors"))
    results = tmp_path / "pipegen" / "records" / "results.py"
    before, mark, after = results.read_text(encoding="utf-8").partition(
        "    turn: Annotated[Turn | None, UNWRITTEN]"
    )
    results.write_text(before + NEW + mark + after, encoding="utf-8")
    names = re.findall(r"^    (\w+):", NEW, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", SEEN, str(tmp_path), *names],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    right, wrong = seen.pop("wrong")
    assert right == "" and wrong != ""
    assert seen == {
        "package": str(tmp_path / "pipegen" / "__init__.py"),
        "lines": names,
        "brief": names,
        "tables": [name for name in names if name not in ("causes", "tokens")],
        "schema": names,
        "strategies": names,
    }


@settings(max_examples=50)
@given(strategies.results() | strategies.errors())
def test_any_result_comes_back_and_its_line_is_of_the_schema(
    value: GenerationResult | GenerationError,
) -> None:
    slot: Any = Success(value) if isinstance(value, GenerationResult) else Failure(value)
    line = strict_json.load(strict_json.dump(to_plain(slot)))
    assert from_plain(line) == slot
    assert wrong_in_json(line, lines_schema()) == ""


def test_a_line_that_lacks_a_field_is_not_of_the_schema() -> None:
    for line in ({"ok": True, "text": "a"}, {"ok": False}, {"error": {}}):
        assert wrong_in_json(line, lines_schema())


def test_every_field_of_a_result_is_written_but_its_turn() -> None:
    names = {field.name for field in declared(GenerationResult)}
    assert set(GenerationResult.__dataclass_fields__) - names == {"turn"}


def test_a_record_inside_is_read_by_its_own_declaration() -> None:
    token = TokenLogprob(token_id=1, logprob=-0.5, top=((2, -0.25),), text="a", top_texts=("b",))
    assert decode(encode(token), TokenLogprob) == token
    assert decode({"token_id": 1, "logprob": "-Infinity"}, TokenLogprob).logprob == float("-inf")
    for values in ({"token_id": 1}, {"token_id": 1, "logprob": 0.0, "top": [[1, 2.0, 3]]}):
        with pytest.raises((TypeError, ValueError)):
            decode(values, TokenLogprob)
    with pytest.raises(InvalidField, match="TokenLogprob has no field 'txt'; did you mean 'text'"):
        decode({"token_id": 1, "logprob": 0.0, "txt": "a"}, TokenLogprob)


def test_an_empty_field_that_says_so_is_left_out_of_lines() -> None:
    result = GenerationResult(text="", raw_text="", finish=Finish.EOS, options=resolve())
    left_out = {field.key for field in declared(GenerationResult) if field.row.omit}
    assert left_out == {"transcript"} and not left_out & encode(result).keys()


def test_a_field_that_no_line_has_is_refused() -> None:
    result = GenerationResult(text="", raw_text="", finish=Finish.EOS, options=resolve())
    with pytest.raises(InvalidField, match="a line of GenerationResult has no field 'turn'"):
        decode({**encode(result), "turn": {}}, GenerationResult)


def test_an_error_inside_an_error_is_read_too() -> None:
    with pytest.raises(InvalidField, match="Timeout has no field 'mesage'; did you mean 'message'"):
        error_from({"type": "Refused", "earlier": [{"type": "Timeout", "mesage": "x"}]})
    with pytest.raises(InvalidField, match="error takes a mapping with a 'type', not str"):
        error_from("x")


def test_what_another_program_has_filled_in_with_null_says_nothing_of_an_error() -> None:
    """polars and pyarrow give each error of a file the fields of all its errors."""
    error = Timeout("slow", earlier=(Refused("no"),))
    nothing = {"earlier": None, "incident": None, "prompt_tokens": None}
    (first,) = error_to_plain(error)["earlier"]
    filled = {**nothing, **error_to_plain(error), "earlier": [{**nothing, **first}]}
    assert error_from(filled) == error
    assert error_from({**nothing, **first}) == Refused("no")


@pytest.mark.parametrize(
    "fields",
    [{"finish": "eos"}, {"options": None}, {"tried": None}, {"samples": None}, {"tried": ("x",)}],
)
def test_what_a_field_does_not_take_is_no_line(fields: dict[str, Any]) -> None:
    """A stage of one's own may have put it there; what was written would not be read."""
    result = GenerationResult(text="", raw_text="", finish=Finish.EOS, options=resolve())
    with pytest.raises((AttributeError, TypeError)):
        to_plain(Success(unchecked_replace(result, **fields)))


def test_images_and_videos_come_back_from_their_text() -> None:
    frames = (ImageSource(data=b"a"), ImageSource(path="b.png"))
    images = (
        ImageSource(url="https://example.org/a.png"),
        VideoSource(path="v.mp4"),
        VideoSource(frames=frames, times=(0.0, 0.5)),
    )
    rollout = Rollout(prompt_token_ids=(1,), token_ids=(), mask=(), images=images)
    line = strict_json.load(strict_json.dump(to_plain(Success(rollout))))
    assert line["images"][1:] == [
        {"video": "v.mp4"},
        {"frames": ["data:application/octet-stream;base64,YQ==", "b.png"], "times": [0.0, 0.5]},
    ]
    assert to_plain(from_plain(line, Rollout)) == line


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mask": [1]}, "Rollout.mask takes True or False for each of the 2 token_ids, not [1]"),
        ({"mask": [1, 0]}, "Rollout.mask takes True or False for each of the 2 token_ids"),
        ({"mask": []}, "Rollout.mask takes True or False for each of the 2 token_ids"),
        ({"mask": [True] * 3}, "Rollout.mask takes True or False for each of the 2 token_ids"),
        ({"logprobs": [0.0]}, "Rollout.logprobs takes a number for each of the 2 token_ids"),
        ({"logprobs": [0.0] * 3}, "Rollout.logprobs takes a number for each of the 2 token_ids"),
    ],
)
def test_a_rollout_whose_lists_do_not_go_together_is_refused(
    values: dict[str, Any], words: str
) -> None:
    line = {"ok": True, "prompt_token_ids": [1], "token_ids": [2, 3], "mask": [True, False]}
    assert from_plain(line, Rollout).unwrap().logprobs is None
    assert from_plain({**line, "logprobs": [-1, 0]}, Rollout).unwrap().logprobs == (-1.0, 0.0)
    with pytest.raises(InvalidField) as refusal:
        from_plain({**line, **values}, Rollout)
    assert words in str(refusal.value)


def test_options_that_are_no_plain_data_are_refused_by_name() -> None:
    line = {"ok": True, "text": "", "raw_text": "", "finish": "eos"}
    with pytest.raises(InvalidField, match="seed takes a whole number"):
        from_plain({**line, "options": {"seed": object()}})


@record
class Part:
    number: int


@record
class Own:
    name: str
    about: Mapping[str, Any] = freeze({})
    parts: tuple[Part | None, ...] = ()
    whole: tuple[Part, ...] = ()
    hidden: Annotated[int, UNWRITTEN] = 0


def test_a_record_of_one_s_own_comes_back() -> None:
    own = Own(
        name="a", about=freeze({"b": [1]}), parts=(None, Part(number=1)), whole=(Part(number=2),)
    )
    line = encode(own)
    assert line == {
        "name": "a",
        "about": {"b": [1]},
        "parts": [None, {"number": 1}],
        "whole": [{"number": 2}],
    }
    assert (decode(line, Own), hash(decode(line, Own).about)) == (own, hash(own.about))
    assert decode(line, Own, hidden=3).hidden == 3
    with pytest.raises(TypeError):
        decode({**line, "whole": [None]}, Own)


def test_a_record_within_a_record_is_read_by_its_own_rules() -> None:
    result = GenerationResult(
        text="a", raw_text="a", finish=Finish.EOS, options=resolve(GenerationOptions())
    )
    pair = dataclasses.make_dataclass("Pair", [("first", GenerationResult)])
    assert decode({"first": encode(result)}, pair).first == result


def test_a_record_of_one_field_is_written_by_its_name() -> None:
    assert encode(Part(number=7)) == {"number": 7}


@pytest.mark.parametrize(
    ("hint", "plain"),
    [
        *[(kind, True) for kind in (str, int, bool, float, object, Literal["a"], int | None)],
        *[(tuple[int | None, ...], True), (str | tuple[int, ...], True)],
        *[(kind, False) for kind in (ImageSource, Part, Mapping[str, int], list[int])],
        *[(tuple[Part, ...], False), (tuple[int, Part], False)],
    ],
)
def test_plain_types_are_those_of_json(hint: object, plain: bool) -> None:
    assert is_plain(hint) is plain


def test_only_a_tuple_of_any_length_has_items() -> None:
    assert (item_of(tuple[int | None, ...]), item_of(tuple[int]), item_of(int)) == (int, None, None)


def test_a_line_is_refused_in_the_words_of_its_record() -> None:
    line = encode(GenerationResult(text="", raw_text="", finish=Finish.EOS, options=resolve()))
    word = word_of(GenerationResult)
    assert word and word_of(int) == ""
    with pytest.raises(InvalidField, match=f"^a {word} takes text too$"):
        decode({key: value for key, value in line.items() if key != "text"}, GenerationResult)
    with pytest.raises(InvalidField, match=f"^finish does not have the form of a {word}'s: "):
        decode({**line, "finish": "never"}, GenerationResult)
    with pytest.raises(InvalidField, match=r"^options: \w+\.seed takes a whole number"):
        decode({**line, "options": {"seed": "x"}}, GenerationResult)
    with pytest.raises(ValueError, match="could not convert") as raised:
        decode({"token_id": 1, "logprob": "x"}, TokenLogprob)
    assert not isinstance(raised.value, InvalidField)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"earlier": 3}, "Timeout does not have the form of an error: 'int' object is not iter"),
        ({"type": "RateLimited", "retry_after": "soon"}, "could not convert string to float"),
        ({"type": "RateLimited", "retry_after": 10**400}, "int too large to convert to float"),
        ({"type": ["Timeout"]}, r"error.type takes one of .*, not \['Timeout'\]"),
        ({"earlier": [{"type": {}}]}, r"error.type takes one of .*, not \{\}"),
    ],
)
def test_an_error_of_another_form_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        error_from({**error_to_plain(Timeout("slow")), **values})


def test_a_number_beyond_floats_is_refused_by_its_field() -> None:
    line = encode(GenerationResult(text="", raw_text="", finish=Finish.EOS, options=resolve()))
    with pytest.raises(InvalidField, match=r"^margin does not have the form"):
        decode({**line, "margin": 10**400}, GenerationResult)


def test_what_an_error_does_not_have_is_left_out() -> None:
    assert not {"incident", "lasting", "earlier"} & error_to_plain(Timeout("slow")).keys()
    with pytest.raises(InvalidField, match=r"takes one of \w+(, \w+)+, not None$"):
        error_from({})


def test_a_brief_record_has_its_brief_fields_alone() -> None:
    codec._writes.cache_clear()  # what a test before has asked is not asked again
    result = GenerationResult(
        text="a", raw_text="a", finish=Finish.EOS, options=resolve(GenerationOptions())
    )
    assert {"text", "finish"} <= encode(result, brief=True).keys() < encode(result).keys()
