"""`pipegen generate` on folders of tables: their subfolders are columns, and nothing in them is
left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Command = Callable[..., Any]
MODEL = ("--model", "fake", "--quiet")


def put(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)


def words(ran: Any) -> str:
    return " ".join(ran.err.replace("│", " ").split())


def test_folders_are_columns(command: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data / "lang=en" / "year=2025" / "part-0.parquet", prompt=["a", "b"])
    put(data / "lang=fr%20CA" / "year=-7" / "part-0.arrow", prompt=["c"])
    put(data / "lang=__HIVE_DEFAULT_PARTITION__" / "year=2026" / "part-0.parquet", prompt=["d"])
    put(data / "part-9.parquet", prompt=["e"])
    expected = [
        ("d", None, 2026),
        ("a", "en", 2025),
        ("b", "en", 2025),
        ("c", "fr CA", -7),
        ("e", None, None),
    ]
    table = pg.read_table(data)
    assert [(row["prompt"], row["lang"], row["year"]) for row in table] == expected
    assert [str(table.schema.field(name).type) for name in ("lang", "year")] == ["string", "int64"]
    assert command("generate", data, "-o", tmp_path / "out.parquet", *MODEL).code == 0
    assert [
        (row["prompt"], row["lang"], row["year"])
        for row in pq.read_table(tmp_path / "out.parquet").to_pylist()
    ] == expected
    assert command("generate", data, "-o", tmp_path / "out.jsonl", *MODEL).code == 0
    assert '"metadata": {"lang": "fr CA", "year": -7}' in (tmp_path / "out.jsonl").read_text()


def test_numbers_that_text_would_lose_stay_text(tmp_path: Path) -> None:
    for code in ("007", "7"):
        put(tmp_path / f"code={code}" / "a.parquet", prompt=["a"])
    assert [row["code"] for row in pg.read_table(tmp_path)] == ["007", "7"]


def test_a_folder_may_be_a_field_of_the_request(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    put(tmp_path / "data" / "question=Why%3F" / "a.parquet", label=[1])
    assert (
        command(
            "generate",
            tmp_path / "data",
            "-o",
            tmp_path / "out.jsonl",
            *MODEL,
            "--map",
            "prompt=question",
        ).code
        == 0
    )
    assert engine.calls[0][0].request.prompt == "Why?"


def test_parquet_and_arrow_of_one_folder_are_both_read(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    put(tmp_path / "data" / "1.parquet", prompt=["a"])
    put(tmp_path / "data" / "2.ARROW", prompt=["b"])
    for name in ("README.md", "dataset_info.json", "_SUCCESS"):
        (tmp_path / "data" / name).write_text("{}")
    assert command("generate", tmp_path / "data", "-o", tmp_path / "out.jsonl", *MODEL).code == 0
    assert [encoded.request.prompt for call in engine.calls for encoded in call] == ["a", "b"]


@pytest.mark.parametrize("name", ["more.jsonl", "more.csv", "sub/more.tsv.gz"])
def test_rows_of_another_form_in_a_folder_are_refused(
    name: str, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    put(tmp_path / "data" / "1.parquet", prompt=["a"])
    (tmp_path / "data" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "data" / name).write_text("")
    ran = command("generate", tmp_path / "data", "-o", tmp_path / "out.jsonl", *MODEL)
    assert (ran.code, engine.calls) == (2, [])
    assert f"holds tables, and {name}, which is" in words(ran)


def test_columns_of_one_name_are_refused(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    put(tmp_path / "both" / "lang=en" / "1.parquet", prompt=["a"], lang=["en"])
    put(tmp_path / "some" / "1.parquet", prompt=["a"], lang=["en"])
    put(tmp_path / "some" / "lang=en" / "1.parquet", prompt=["a"])
    twice = pa.table([["a"], [1], [2]], names=["prompt", "x", "x"])
    with pa.ipc.new_file(str(tmp_path / "twice.arrow"), twice.schema) as writer:
        writer.write_table(twice)
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["y", "y"])
    put(tmp_path / "inner.arrow", prompt=["a"], x=pa.ListArray.from_arrays([0, 1], inner))
    for name, message in {
        "both": "has a column 'lang', and is in a folder lang=...: rename one of them",
        "some": "has a column 'lang', and others are in folders lang=...: rename one of them",
        "twice.arrow": "has two columns 'x': give them different names",
        "inner.arrow": "has two columns 'y': give them different names",
    }.items():
        ran = command("generate", tmp_path / name, "-o", tmp_path / "out.jsonl", *MODEL)
        assert (ran.code, engine.calls) == (2, [])
        assert message in words(ran)


def test_columns_with_the_names_of_answers_get_another_one(
    command: Command, tmp_path: Path
) -> None:
    put(tmp_path / "in.parquet", prompt=["a"], text=["mine"], input_text=["mine too"], ok=[7])
    for name in ("out.parquet", "out.arrow"):
        assert command("generate", tmp_path / "in.parquet", "-o", tmp_path / name, *MODEL).code == 0
        (row,) = pg.read_table(tmp_path / name)
        seen = (row["text"], row["input_text"], row["input_input_text"], row["ok"], row["input_ok"])
        assert seen == ("Hello END of it", "mine", "mine too", True, 7)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".ipc", ".pq"])
def test_a_table_without_rows_is_answered_by_one(
    suffix: str, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    table = pa.table(
        {"prompt": pa.array([], pa.string_view()), "at": pa.array([], pa.timestamp("ns"))}
    )
    if suffix in (".parquet", ".pq"):
        pq.write_table(table, tmp_path / f"in{suffix}")
    else:
        with pa.ipc.new_file(str(tmp_path / f"in{suffix}"), table.schema):
            pass
    for out in ("out.parquet", "out.arrow", "out.csv", "out.jsonl"):
        assert command("generate", tmp_path / f"in{suffix}", "-o", tmp_path / out, *MODEL).code == 0
    assert engine.calls == []
    assert (
        len(pg.read_table(tmp_path / "out.parquet")),
        len(pg.read_table(tmp_path / "out.arrow")),
    ) == (0, 0)


def test_results_in_arrow_are_compared_and_exported(command: Command, tmp_path: Path) -> None:
    put(tmp_path / "in.arrow", prompt=["a", "b"])
    assert (
        command("generate", tmp_path / "in.arrow", "-o", tmp_path / "out.arrow", *MODEL).code == 0
    )
    assert command("export", tmp_path / "out.arrow.job", "-o", tmp_path / "again.jsonl").code == 0
    ran = command("diff", tmp_path / "out.arrow", tmp_path / "again.jsonl")
    assert ran.code == 0


def test_dictionaries_of_several_groups_of_rows_are_written(
    command: Command, tmp_path: Path
) -> None:
    schema = pa.schema([("prompt", pa.string()), ("kind", pa.dictionary(pa.int32(), pa.string()))])
    with pa.ipc.new_stream(str(tmp_path / "in.arrow"), schema) as writer:
        for kinds in (["x", "y"], ["z", "x"]):
            writer.write_batch(
                pa.record_batch(
                    [pa.array(["a", "b"]), pa.array(kinds).dictionary_encode()], schema=schema
                )
            )
    for out in ("out.parquet", "out.arrow"):
        assert command("generate", tmp_path / "in.arrow", "-o", tmp_path / out, *MODEL).code == 0
        assert [row["kind"] for row in pg.read_table(tmp_path / out)] == ["x", "y", "z", "x"]


def test_a_late_value_that_a_file_cannot_hold_is_refused_before_anything_is_asked(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    seconds = pa.array([1] * 3000 + [2**62], pa.timestamp("s"))
    put(tmp_path / "in.arrow", prompt=["a"] * 3001, at=seconds)
    ran = command("generate", tmp_path / "in.arrow", "-o", tmp_path / "out.parquet", *MODEL)
    assert (ran.code, engine.calls) == (2, [])
    assert (
        "the column 'at' holds timestamp[s], and a .parquet file would not hold its values as"
        " they are" in words(ran)
    )


def test_polars_writes_what_is_read(command: Command, engine: FakeEngine, tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "id": ["x", None],
            "prompt": ["a prompt of more than twelve bytes", "b"],
            "kind": pl.Series(["k", "l"], dtype=pl.Categorical),
        }
    )
    frame.write_ipc(tmp_path / "in.arrow", compat_level=pl.CompatLevel.newest())
    for out in ("out.parquet", "out.arrow"):
        assert command("generate", tmp_path / "in.arrow", "-o", tmp_path / out, *MODEL).code == 0
        seen = [(row["id"], row["prompt"], row["kind"]) for row in pg.read_table(tmp_path / out)]
        assert seen == [("x", "a prompt of more than twelve bytes", "k"), ("2", "b", "l")]
