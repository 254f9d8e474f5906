"""`pipegen generate` carries a column of each type of Arrow's to every form of OUT as it is, or
refuses it before anything is asked.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Command = Callable[..., Any]
MODEL = ("--model", "fake", "--quiet")


class Case(NamedTuple):
    """A column of two values, the second of which is null where there is a null of its type."""

    array: Any
    shown: Any
    """The first value in JSON Lines and, where it is no text, as JSON in CSV."""
    refused: tuple[str, ...] = ()
    """The forms of OUT that cannot hold it."""


def of(kind: Any, value: Any, shown: Any, *refused: str) -> Case:
    return Case(pa.array([value, None], kind), shown, refused)


def extended(kind: Any, storage: Any, shown: Any) -> Case:
    return Case(pa.ExtensionArray.from_storage(kind, storage), shown)


def not_utf8() -> Any:
    offsets = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") * 2
    return pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(offsets), pa.py_buffer(b"\xff")]
    )


DAY = 86_400
CASES = {
    "bool": of(pa.bool_(), True, True),
    **{
        f"int{bits}": of(getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), -(2 ** (bits - 1)))
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": of(getattr(pa, f"uint{bits}")(), 2**bits - 1, 2**bits - 1)
        for bits in (8, 16, 32, 64)
    },
    "float32": of(pa.float32(), 1.5, 1.5),
    "float64": of(pa.float64(), 0.1, 0.1),
    "not a number": of(pa.float64(), float("nan"), "NaN"),
    "infinity": of(pa.float64(), float("-inf"), "-Infinity"),
    "string": of(pa.string(), "é", "é"),
    "large_string": of(pa.large_string(), "é", "é"),
    "string_view": of(
        pa.string_view(), "a text of more than twelve bytes", "a text of more than twelve bytes"
    ),
    "string that is not UTF-8": Case(not_utf8(), "/w=="),
    "binary": of(pa.binary(), b"\x00", "AA=="),
    "large_binary": of(pa.large_binary(), b"\x00", "AA=="),
    "binary_view": of(pa.binary_view(), b"\x00" * 15, "A" * 20),
    "fixed_size_binary": of(pa.binary(3), b"\x00" * 3, "AAAA"),
    "decimal128": of(pa.decimal128(20, 2), Decimal("1.50"), "1.50"),
    "decimal256": of(pa.decimal256(60, 2), Decimal("1.50"), "1.50"),
    "decimal of thousands": of(pa.decimal128(5, -3), Decimal("15E3"), "1.5E+4", ".parquet"),
    "date32": of(pa.date32(), 1, "1970-01-02"),
    "date64": of(pa.date64(), DAY * 1000, "1970-01-02"),
    "date of a far year": of(pa.date32(), 10**8, "100000000 days since 1970-01-01"),
    "time32[s]": of(pa.time32("s"), 1, "00:00:01"),
    "time32[ms]": of(pa.time32("ms"), 1, "00:00:00.001000"),
    "time64[us]": of(pa.time64("us"), 1, "00:00:00.000001"),
    "time64[ns]": of(pa.time64("ns"), 1_001, "00:00:00.000001001"),
    "timestamp[s]": of(pa.timestamp("s"), 1, "1970-01-01 00:00:01"),
    "timestamp[ms]": of(pa.timestamp("ms"), 1, "1970-01-01 00:00:00.001000"),
    "timestamp[us]": of(pa.timestamp("us"), 1, "1970-01-01 00:00:00.000001"),
    "timestamp[ns]": of(
        pa.timestamp("ns"), 1_767_312_000_123_456_789, "2026-01-02 00:00:00.123456789"
    ),
    "timestamp[ns] before 1970": of(pa.timestamp("ns"), -1, "1969-12-31 23:59:59.999999999"),
    "timestamp[ns] of whole microseconds": of(
        pa.timestamp("ns"), 1_000, "1970-01-01 00:00:00.000001"
    ),
    "timestamp with a zone": of(
        pa.timestamp("ns", "+02:00"), 1, "1970-01-01 02:00:00.000000001+02:00"
    ),
    "timestamp of an unknown zone": of(pa.timestamp("us", "Mars/Port"), 5, "5 us since 1970-01-01"),
    "timestamp of a far year": of(pa.timestamp("s"), 2**45, f"{2**45} s since 1970-01-01"),
    "timestamp beyond milliseconds": of(
        pa.timestamp("s"), 2**62, f"{2**62} s since 1970-01-01", ".parquet"
    ),
    "duration[s]": of(pa.duration("s"), DAY, "1 day, 0:00:00"),
    "duration[us]": of(pa.duration("us"), 1, "0:00:00.000001"),
    "duration[ns]": of(pa.duration("ns"), 1_001, "0:00:00.000001001"),
    "duration beyond Python's": of(pa.duration("s"), 2**60, f"{2**60} s"),
    "interval": Case(pa.array([pa.MonthDayNano([1, 2, 3]), None]), [1, 2, 3], (".parquet",)),
    "null": Case(pa.nulls(2), None),
    "list": of(pa.list_(pa.int64()), [1, None], [1, None]),
    "large_list": of(pa.large_list(pa.string_view()), ["a"], ["a"]),
    "list_view": of(pa.list_view(pa.int64()), [1], [1]),
    "large_list_view": of(pa.large_list_view(pa.int64()), [1], [1]),
    "fixed_size_list": of(pa.list_(pa.int64(), 2), [1, 2], [1, 2]),
    "list of times": of(pa.list_(pa.timestamp("ns")), [1], ["1970-01-01 00:00:00.000000001"]),
    "struct": of(
        pa.struct([("a", pa.int64()), ("b", pa.string_view())]),
        {"a": 1, "b": None},
        {"a": 1, "b": None},
    ),
    "struct in a list in a struct": of(
        pa.struct([("a", pa.list_(pa.struct([("t", pa.time64("ns"))])))]),
        {"a": [{"t": 1}]},
        {"a": [{"t": "00:00:00.000000001"}]},
    ),
    "struct without fields": of(pa.struct([]), {}, {}, ".parquet"),
    "map": of(pa.map_(pa.string(), pa.int64()), [("k", 1)], {"k": 1}),
    "dictionary of strings": Case(pa.array(["a", None]).dictionary_encode(), "a"),
    "dictionary of large strings": Case(
        pa.array(["a", None], pa.large_string()).dictionary_encode(), "a"
    ),
    "dictionary of numbers": Case(pa.array([7, None]).dictionary_encode(), 7),
    "dictionary of times": Case(
        pa.array([1, None], pa.timestamp("ns")).dictionary_encode(), "1970-01-01 00:00:00.000000001"
    ),
    "dictionary in a struct": Case(
        pa.StructArray.from_arrays([pa.array(["a", None]).dictionary_encode()], ["x"]), {"x": "a"}
    ),
    "dictionary in a list": Case(
        pa.ListArray.from_arrays([0, 1, 1], pa.array(["a"]).dictionary_encode()), ["a"]
    ),
    "run_end_encoded": Case(
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["a", None])), "a"
    ),
    "sparse union": Case(
        pa.UnionArray.from_sparse(
            pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
        ),
        1,
        (".parquet",),
    ),
    "dense union": Case(
        pa.UnionArray.from_dense(
            pa.array([0, 1], pa.int8()),
            pa.array([0, 0], pa.int32()),
            [pa.array([1]), pa.array(["b"])],
        ),
        1,
        (".parquet",),
    ),
    "bool8": extended(pa.bool8(), pa.array([1, None], pa.int8()), True),
    "uuid": extended(
        pa.uuid(),
        pa.array([b"a" * 16, None], pa.binary(16)),
        "61616161-6161-6161-6161-616161616161",
    ),
    "tensor": extended(
        pa.fixed_shape_tensor(pa.int32(), [2]),
        pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        [1, 2],
    ),
    "opaque": extended(pa.opaque(pa.int32(), "kind", "vendor"), pa.array([1, None], pa.int32()), 1),
}
if hasattr(pa, "json_"):
    CASES["arrow.json"] = extended(pa.json_(), pa.array(['{"a": 1}', None]), {"a": 1})
if hasattr(pa, "decimal32"):
    CASES |= {
        name: of(getattr(pa, name)(5, 2), Decimal("1.50"), "1.50")
        for name in ("decimal32", "decimal64")
    }


def arrow_file(path: Path, columns: dict[str, Any]) -> Path:
    """An Arrow file with a prompt and these columns, whose second row comes first: rows of a job
    are written as they are, wherever they were read.
    """
    table = pa.table({"prompt": ["a", "b"], **columns})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def values_of(column: Any) -> str:
    """The values of a column as text, whatever type stores them."""
    from pipegen.io.arrow_values import python_values

    return repr([value for chunk in column.chunks for value in python_values(chunk)])


@pytest.fixture
def carried(tmp_path: Path, command: Command) -> Callable[[str], Path]:
    """`carried(".csv")` is OUT of all columns that this form holds."""

    def run(form: str) -> Path:
        source = arrow_file(
            tmp_path / "in.arrow",
            {name: case.array for name, case in CASES.items() if form not in case.refused},
        )
        ran = command("generate", source, "-o", tmp_path / f"out{form}", *MODEL)
        assert (ran.code, ran.err) == (0, "")
        return tmp_path / f"out{form}"

    return run


@pytest.mark.parametrize("form", [".parquet", ".arrow", ".feather"])
def test_tables_hold_every_value_as_it_is(form: str, carried: Callable[[str], Path]) -> None:
    out = carried(form)
    table = pq.read_table(out) if form == ".parquet" else pa.ipc.open_file(str(out)).read_all()
    for name, case in CASES.items():
        if form not in case.refused:
            column = table.column(name)
            # Parquet has no seconds
            column = (
                column.cast(case.array.type) if pa.types.is_timestamp(case.array.type) else column
            )
            assert values_of(column) == values_of(pa.chunked_array([case.array])), name
    assert table.column("text").to_pylist() == ["Hello END of it"] * 2
    assert table.schema.field("string_view").type == pa.string_view()


def test_list_views_that_share_items_and_are_in_another_order_keep_their_values(
    tmp_path: Path, command: Command
) -> None:
    views = pa.ListViewArray.from_arrays([1, 0], [1, 2], pa.array([1, 2]))
    source, out = arrow_file(tmp_path / "in.arrow", {"views": views}), tmp_path / "out.parquet"
    assert command("generate", source, "-o", out, *MODEL).code == 0
    assert pq.read_table(out).column("views").to_pylist() == [[2], [1, 2]]


def test_lines_hold_every_value_in_words(carried: Callable[[str], Path]) -> None:
    first, second = map(json.loads, carried(".jsonl").read_text().splitlines())
    assert {name: first["metadata"].get(name) for name in CASES} == {
        name: case.shown for name, case in CASES.items()
    }
    assert second["metadata"].keys() == first["metadata"].keys() == CASES.keys()
    assert {name for name, value in second["metadata"].items() if value is not None} <= {
        "sparse union",
        "dense union",
        "dictionary in a struct",
        "dictionary in a list",
    }


@pytest.mark.parametrize(("form", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_cells_hold_every_value_in_words(
    form: str, delimiter: str, carried: Callable[[str], Path]
) -> None:
    with carried(form).open(newline="") as stream:
        row = next(csv.DictReader(stream, delimiter=delimiter))
    for name, case in CASES.items():
        assert row[name] == (
            ""
            if case.shown is None
            else case.shown
            if isinstance(case.shown, str)
            else json.dumps(case.shown)
        ), name


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, case in CASES.items() for form in case.refused]
)
def test_what_a_form_cannot_hold_is_refused_before_anything_is_asked(
    name: str, form: str, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = arrow_file(tmp_path / "in.arrow", {"x": CASES[name].array})
    ran = command("generate", source, "-o", tmp_path / f"out{form}", *MODEL)
    assert (ran.code, engine.calls) == (2, [])
    assert "the column 'x' holds" in " ".join(ran.err.split())
    assert "write .jsonl or .arrow" in " ".join(ran.err.split())


@pytest.mark.parametrize("form", [".parquet", ".arrow"])
def test_rows_that_python_reads_and_writes_hold_every_value_too(form: str, tmp_path: Path) -> None:
    # bytes to Python; seconds, which Parquet does not have
    other = {"string that is not UTF-8", "timestamp of a far year"}
    # Arrow makes none of Python's values
    unmade = {"sparse union", "dense union", "run_end_encoded"}
    names = [
        name
        for name, case in CASES.items()
        if form not in case.refused
        and name not in other
        and not (form == ".arrow" and name in unmade)
    ]
    table = pg.read_table(
        arrow_file(tmp_path / "in.arrow", {name: CASES[name].array for name in names})
    )
    assert (
        pg.write_table(
            tmp_path / f"out{form}",
            ((row, pg.Failure(pg.Timeout("slow"))) for row in table),
            schema=table.schema,
        )
        == 2
    )
    written = (
        pq.read_table(tmp_path / "out.parquet")
        if form == ".parquet"
        else pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all()
    )
    assert {name: values_of(written.column(name)) for name in names} == {
        name: values_of(pa.chunked_array([CASES[name].array])) for name in names
    }


@pytest.mark.parametrize(
    ("name", "form"),
    [("interval", ".parquet"), ("dense union", ".parquet"), ("dense union", ".arrow")],
)
def test_a_type_that_rows_of_python_cannot_have_there_is_refused_before_a_row_is_taken(
    name: str, form: str, tmp_path: Path
) -> None:
    schema = pa.schema([("prompt", pa.string()), ("x", CASES[name].array.type)])
    with pytest.raises(pg.TableError, match="the column 'x' holds"):
        pg.write_table(
            tmp_path / f"out{form}",
            (pytest.fail("a row is taken") for _ in range(1)),
            schema=schema,
        )
    assert list(tmp_path.iterdir()) == []
