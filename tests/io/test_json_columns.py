"""Columns that hold JSON, maps and periods, and nulls that Arrow adds, as requests and as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.io.tables import Columns
from pipegen.records.frozen import thaw
from pipegen.records.parse_request import request_from
from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TOOLS: list[Any] = [
    [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": {argument: {"type": "string"}}},
            },
        }
    ]
    for name, argument in (("look", "a"), ("find", "b"))
]
TURNS: list[Any] = [
    [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
        },
        {"role": "tool", "content": "42"},
    ]
    for arguments in ({"a": 1}, {"b": {"c": [1]}})
]
ROWS = [
    {"messages": turns, "tools": tools, "meta": {"a": index} if index else {"b": "x"}}
    for index, (turns, tools) in enumerate(zip(TURNS, TOOLS, strict=True))
]


def as_json(value: Any) -> str:
    return json.dumps(value)


def written(folder: Path, kind: Any, values: list[Any], name: str = "messages") -> Path:
    plain = pa.array(values, _storage(kind)).cast(kind)
    path = folder / "table.parquet"
    pq.write_table(pa.table({name: plain}), path)
    return path


def _storage(kind: Any) -> Any:
    if kind == pa.json_():
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_storage(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _storage(field.type)) for field in kind])
    return kind


def messages_in(path: Path) -> list[Any]:
    slots = [request_from({"messages": row["messages"]}) for row in pg.read_table(path)]
    return [
        [(message.role, message.content) for message in slot.unwrap().messages or ()]
        for slot in slots
    ]


EXPECTED = [[(turn["role"], turn["content"]) for turn in turns] for turns in TURNS]


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="this pyarrow has no JSON")
@pytest.mark.parametrize("form", ["whole", "list", "content", "calls"])
def test_json_is_read_wherever_it_stands_in_a_column(tmp_path: Path, form: str) -> None:
    text, kind = pa.string(), pa.json_()
    if form == "whole":
        path = written(tmp_path, kind, [as_json(turns) for turns in TURNS])
    elif form == "list":
        path = written(tmp_path, pa.list_(kind), [[*map(as_json, turns)] for turns in TURNS])
    else:
        struct = pa.struct([("role", text), ("content", kind), ("tool_calls", kind)])
        turns = [
            [
                {"role": turn["role"], **{k: as_json(v) for k, v in turn.items() if k != "role"}}
                for turn in turns
            ]
            for turns in TURNS
        ]
        path = written(tmp_path, pa.list_(struct), turns)
    assert messages_in(path) == EXPECTED
    calls = [
        request_from(row).unwrap().messages[1].extras["tool_calls"][0]["function"]["arguments"]  # type: ignore[index]
        for row in pg.read_table(path)
    ]
    assert [dict(call) for call in calls] == [{"a": 1}, {"b": {"c": (1,)}}]


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="this pyarrow has no JSON")
def test_nulls_that_someone_wrote_as_json_stay(tmp_path: Path) -> None:
    turns = [*TURNS[0]]
    turns[1] = {**turns[1], "tool_calls": [{"function": {"name": "f", "arguments": {"a": None}}}]}
    path = written(tmp_path, pa.list_(pa.json_()), [[*map(as_json, turns)]])
    (row,) = pg.read_table(path)
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": None}


def test_rows_get_no_nulls_from_the_tools_and_arguments_of_others(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    rows = [*pg.read_table(path)]
    assert [row["tools"] for row in rows] == TOOLS
    assert [row["messages"][1]["tool_calls"] for row in rows] == [
        turns[1]["tool_calls"] for turns in TURNS
    ]
    assert [row["meta"] for row in rows] == [{"b": "x", "a": None}, {"b": None, "a": 1}]


def test_a_list_keeps_its_nulls(tmp_path: Path) -> None:
    tool = {"parameters": {"properties": {"a": {"enum": ["x", None]}}}}
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "Hi", "tools": [tool]}]), path)
    (row,) = pg.read_table(path)
    assert row["tools"] == [tool]


def test_lists_of_json_texts_are_read() -> None:
    request = request_from(
        {"messages": [*map(as_json, TURNS[0])], "tools": [*map(as_json, TOOLS[0])]}
    ).unwrap()
    assert [message.role for message in request.messages or ()] == ["user", "assistant", "tool"]
    assert request.tools[0]["function"]["name"] == "look"
    call = TURNS[0][1]["tool_calls"][0]
    for calls in (as_json([call]), [as_json(call)]):
        turns = [{"role": "assistant", "tool_calls": calls}]
        (message,) = request_from({"messages": turns}).unwrap().messages or ()
        assert message.extras["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    error = request_from({"messages": ["Hi"]}).failure()
    assert "messages[0] takes a mapping" in error.message


def test_maps_with_text_for_keys_are_dicts(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    maps = pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int64()))
    numbers = pa.array([[(1, "x")], []], pa.map_(pa.int64(), pa.string()))
    pq.write_table(pa.table({"prompt": ["a", "b"], "counts": maps, "numbers": numbers}), path)
    rows = [*pg.read_table(path)]
    assert [row["counts"] for row in rows] == [{"a": 1, "b": None}, None]
    assert [row["numbers"] for row in rows] == [[(1, "x")], {}]


def test_periods_are_what_they_say(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    path = tmp_path / "table.parquet"
    months = pd.period_range("2026-01", periods=2, freq="M")
    pd.DataFrame({"prompt": ["a", "b"], "month": months}).to_parquet(path)
    table = pg.read_table(path)
    assert [row["month"] for row in table] == ["2026-01", "2026-02"]
    route = pg.route(FakeEngine("Yes.<|im_end|>"))
    pairs = pg.imap_keyed(route, ((row, row) for row in table))
    pg.write_table(tmp_path / "out.parquet", pairs, schema=table.schema)
    again = [row["month"] for row in pg.read_table(tmp_path / "out.parquet")]
    assert again == ["2026-01", "2026-02"]


def test_the_recipe_for_data_sets_writes_json_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    if not hasattr(datasets, "Json"):
        pytest.skip("this datasets writes no JSON")
    lines = tmp_path / "rows.jsonl"
    odd = [{**TURNS[0][0], "name": "x", "content": [{"type": "text", "text": "Hi"}]}]
    lines.write_text("\n".join(as_json({"messages": turns}) for turns in (*TURNS, odd)))
    data_set = datasets.load_dataset(
        "json", data_files=str(lines), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert "Json" in str(data_set.features)
    route = pg.route(FakeEngine("Yes.<|im_end|>"))
    pairs = pg.imap_keyed(route, ((row, row) for row in data_set))
    out = tmp_path / "out.parquet"
    assert pg.write_table(out, pairs, schema=data_set.features.arrow_schema) == 3
    assert messages_in(out)[:2] == EXPECTED
    data_set.save_to_disk(str(tmp_path / "saved"))
    assert messages_in(tmp_path / "saved")[:2] == EXPECTED
    nested = datasets.Features(
        {"messages": [{"role": datasets.Value("string"), "content": datasets.Json()}]}
    )
    contents: tuple[Any, ...] = ("Hi", [])
    rows = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    pairs = ((row, pg.run(route, [rows[0]])[0]) for row in rows)
    pg.write_table(out, pairs, schema=nested.arrow_schema)
    assert [row["messages"][0]["content"] for row in pg.read_table(out)] == ["Hi", []]


def test_json_lists_of_duckdb_are_messages(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "table.parquet"
    messages = ", ".join(f"'{as_json(turn)}'::JSON" for turn in TURNS[0])
    duckdb.sql(f"COPY (SELECT [{messages}] AS messages) TO '{path}'")
    assert messages_in(path) == EXPECTED[:1]


def test_an_entry_that_is_null_is_carried_along_as_one() -> None:
    for row in (
        {"prompt": "Hi", "label": None},
        {"prompt": "Hi", "metadata": {"label": None}},
        {"prompt": "Hi", "label": None, "id": None, "images": None, "metadata": None},
    ):
        assert dict(request_from(row).unwrap().metadata) == {"label": None}
    assert Columns({"prompt": "text"}).request({"text": "Hi", "prompt": None, "n": None}) == {
        "prompt": "Hi",
        "n": None,
        "metadata": {"prompt": None},
    }


def test_an_option_that_is_null_is_not_misplaced() -> None:
    assert request_from({"prompt": "Hi", "seed": None}).unwrap().prompt == "Hi"
    assert "seed" in request_from({"prompt": "Hi", "seed": 1}).failure().message


def test_rows_that_datasets_gives_get_no_nulls_from_other_tools_and_calls() -> None:
    datasets = pytest.importorskip("datasets")
    named = [[{**TURNS[0][0]}, {**TURNS[0][1]}] for _ in TOOLS]
    for turns, tools, argument in zip(named, TOOLS, "ab", strict=True):
        function = {"name": tools[0]["function"]["name"], "arguments": {argument: "x"}}
        turns[1] = {**turns[1], "tool_calls": [{"type": "function", "function": function}]}
    rows = [{"messages": m, "tools": t} for m, t in zip(named, TOOLS, strict=True)]
    data_set = datasets.Dataset.from_list(rows)
    assert data_set[0]["tools"][0]["function"]["parameters"]["properties"]["b"] is None
    for given, row in zip(rows, data_set, strict=True):
        assert request_from(row).unwrap().tools == request_from(given).unwrap().tools
        assert request_from(row).unwrap().messages == request_from(given).unwrap().messages


def test_nulls_that_a_caller_may_mean_stay() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": None}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": None}}]
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": None}}}
    other = {"type": "function", "function": {"name": "g", "arguments": {"b": None}}}
    row = {"messages": [{"role": "assistant", "tool_calls": [call, other]}], "tools": tools}
    request = request_from(row).unwrap()
    assert thaw(request.tools) == tools
    assert thaw((request.messages or ())[0].extras["tool_calls"]) == [call, other]
