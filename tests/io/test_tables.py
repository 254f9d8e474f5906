"""Tables in: Parquet, Arrow and CSV, whole and broken, with columns of any name."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure

from pipegen.core.errors import Timeout
from pipegen.io.forms import TableError
from pipegen.io.tables import Columns, is_table, read_table
from pipegen.io.text_tables import column_kinds, csv_cells, csv_header, csv_values, schema_of_kinds
from pipegen.jobs.table_file import write_table
from pipegen.records.messages import ImagePart, TextPart
from pipegen.records.parse_request import request_from

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = [{"prompt": f"p{n}", "label": n} for n in range(5)]


def parquet(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **settings)
    return path


def test_a_folder_of_parquet_is_read_in_the_order_of_its_names_without_hidden_files(
    tmp_path: Path,
) -> None:
    for name in ("b/2.parquet", "a.parquet", ".hidden.parquet", "_temporary/x.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet(tmp_path / name, [{"prompt": name}])
    table = read_table(tmp_path)
    assert [row["prompt"] for row in table] == ["a.parquet", "b/2.parquet"]
    seen = (len(table), is_table(tmp_path), is_table(tmp_path / "a.parquet"), is_table("in.jsonl"))
    assert seen == (2, True, True, False)


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_both_formats_of_arrow_files_are_read(tmp_path: Path, kind: str) -> None:
    table = pa.Table.from_pylist(ROWS)
    path = tmp_path / "data.arrow"
    opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream  # `datasets` writes streams
    with opened(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    read = read_table(path)
    assert list(read) == ROWS
    assert list(read) == ROWS  # again
    assert (len(read), read.schema.names) == (5, ["prompt", "label"])


def test_files_of_one_folder_may_lack_columns_and_must_agree_on_types(tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet", [{"prompt": "a"}])
    parquet(tmp_path / "2.parquet", [{"prompt": "b", "label": 1}])
    assert read_table(tmp_path).schema.names == ["prompt", "label"]
    parquet(tmp_path / "3.parquet", [{"prompt": 3}])
    with pytest.raises(
        TableError, match="cannot be read: Unable to merge: Field prompt has incompatible types"
    ):
        read_table(tmp_path)


def test_what_is_no_table_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(TableError, match=r"x.parquet cannot be read: "):
        read_table(tmp_path / "x.parquet")
    (tmp_path / "x.arrow").write_bytes(b"nor arrow at all")
    with pytest.raises(TableError, match=r"x.arrow cannot be read: "):
        read_table(tmp_path / "x.arrow")
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_table(tmp_path / "gone.parquet")
    for name in ("in.jsonl", ""):
        (tmp_path / "in.jsonl").write_text("")
        (tmp_path / "x.parquet").unlink(missing_ok=True)
        (tmp_path / "x.arrow").unlink(missing_ok=True)
        with pytest.raises(
            TableError,
            match=r"is no Parquet or Arrow file \(.*\), and no folder of them; csv.DictReader",
        ):
            read_table(tmp_path / name)


def test_a_file_that_breaks_off_ends_in_words(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "x.parquet",
        [{"prompt": "word " * 50 + str(n)} for n in range(20_000)],
        row_group_size=5000,
        compression="none",
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200_000] = b"\xff" * 200_000
    path.write_bytes(data)
    rows = iter(read_table(path))
    assert next(rows)["prompt"].endswith(" 0")
    with pytest.raises(TableError, match="cannot be read: "):
        list(rows)


def test_times_that_python_has_a_type_for_have_it_and_others_are_what_arrow_stores(
    tmp_path: Path,
) -> None:
    for count, at, time, long in (
        (
            1_000,
            dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC),
            dt.time(0, 0, 0, 1),
            dt.timedelta(0, 0, 1),
        ),
        (1_001, *(1_001,) * 3),
    ):
        columns = {
            "prompt": ["a"],
            "at": pa.array([count], pa.timestamp("ns", "UTC")),
            "time": pa.array([count], pa.time64("ns")),
            "long": pa.array([count], pa.duration("ns")),
        }
        pq.write_table(pa.table(columns), tmp_path / "x.parquet")
        (row,) = read_table(tmp_path / "x.parquet")
        assert (row["at"], row["time"], row["long"]) == (at, time, long)


def test_large_rows_are_read_few_at_a_time(tmp_path: Path) -> None:
    parquet(
        tmp_path / "x.parquet",
        [{"image": bytes([n]) * 2**20} for n in range(32)],
        compression="none",
    )
    assert max(block.batch.num_rows for block in read_table(tmp_path / "x.parquet").blocks()) <= 8


# Columns


def test_columns_have_other_names_and_shadow_those_of_fields() -> None:
    columns = Columns({"prompt": "question", "id": "uid"}, frozenset({"options"}))
    row = {
        "question": "Is it so?",
        "uid": 7,
        "prompt": "old",
        "options": ["yes", "no"],
        "label": 1,
        "metadata": {"page": 3},
    }
    request = {
        "label": 1,
        "prompt": "Is it so?",
        "id": 7,
        "metadata": {"prompt": "old", "options": ["yes", "no"], "page": 3},
    }
    assert columns.request(row) == request
    assert columns.request({"question": "a", "metadata": "words"})["metadata"] == {
        "metadata": "words"
    }
    assert columns.reads(list(row)) == ["question", "uid", "metadata"]
    assert Columns().request(row) == row


@pytest.mark.parametrize(
    ("names", "columns", "words"),
    [
        (["prompt"], Columns({"id": "uid"}), "x has no column 'uid': its columns are prompt"),
        (["prompt", "uids"], Columns({"id": "uid"}), "x has no column 'uid'; did you mean 'uids'?"),
        (
            ["question"],
            Columns(),
            (
                "x has no column messages or prompt; say which one it is: --map user=COLUMN for"
                " questions, --map prompt=COLUMN for texts to continue. Its columns are question"
            ),
        ),
        ([], Columns(), "It has no columns"),
        (
            ["prompt", "seed"],
            Columns(),
            (
                "x has a column 'seed'; it is an option, and goes into options. --map metadata=seed"
                " carries it along"
            ),
        ),
        (["prompt"], Columns({}, frozenset({"prompt"})), "x has no column messages or prompt"),
    ],
)
def test_a_table_without_what_a_request_needs_is_refused_with_its_columns(
    names: list[str], columns: Columns, words: str
) -> None:
    with pytest.raises(TableError) as refused:
        columns.check(names, Path("x"))
    assert words in str(refused.value)


def test_a_mapped_column_is_a_turn_of_the_user() -> None:
    columns = Columns({"user": "question", "id": "uid"})
    row = {"uid": 3, "question": "Is it so?", "label": 1}
    turn = [{"role": "user", "content": "Is it so?"}]
    assert columns.request(row) == {"label": 1, "id": 3, "messages": turn}
    columns.check(list(row), Path("x"))
    assert columns.reads(list(row)) == ["uid", "question"]
    slot = request_from(columns.request({**row, "image": "a.png"}))
    (message,) = slot.unwrap().messages or ()
    assert message.role == "user"
    assert [type(part) for part in message.content] == [ImagePart, TextPart]


@pytest.mark.parametrize("field", ["image", "images", "video", "videos"])
@pytest.mark.parametrize("kind", ["list", "tuple", "text", "array", "missing"])
def test_a_mapped_column_is_the_same_turn_where_media_are_null_and_where_there_are_none(
    field: str, kind: str
) -> None:
    numpy = pytest.importorskip("numpy")
    no_media = {"list": [], "tuple": (), "text": "[]", "array": numpy.array([])}
    columns = Columns({"user": "question"})
    asked, null = (
        request_from(columns.request({"question": "Is it so?", field: value})).unwrap()
        for value in (no_media.get(kind, float("nan")), None)
    )
    assert asked == null
    assert asked.messages is not None and asked.messages[0].content == "Is it so?"


def test_beside_a_turn_of_the_user_other_prompts_are_carried_along() -> None:
    columns = Columns({"user": "question"})
    row = {"question": "Is it so?", "prompt": "p", "messages": "m", "user": "me"}
    assert columns.request(row) == {
        "messages": [{"role": "user", "content": "Is it so?"}],
        "metadata": {"prompt": "p", "messages": "m", "user": "me"},
    }
    assert Columns().request({"prompt": "p", "user": "me"}) == {"prompt": "p", "user": "me"}


def test_a_row_without_its_question_fails() -> None:
    row = Columns({"user": "question"}).request({"question": None, "label": 1})
    assert "messages" in request_from(row).failure().message


def test_columns_of_any_other_name_are_taken() -> None:
    Columns().check(["prompt", "label", "choices", "text", "answer", "image_id", "idx"], Path("x"))
    Columns({}, frozenset({"seed"})).check(["prompt", "seed"], Path("x"))
    Columns({"prompt": "n"}).check(["n"], Path("x"))


# CSV


def test_csv_has_rows_of_any_length_and_cells_of_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(
        '\ufeffid,prompt\r\n1,"two\nlines, and a "" quote"\r\n\r\n2\r\n3,a,b,c\r\n',
        encoding="utf-8",
    )
    header, *rows = csv_cells(path)
    assert csv_header(path) == header == ["id", "prompt"]
    assert [csv_values(header, cells) for cells in rows] == [
        {"id": "1", "prompt": 'two\nlines, and a " quote'},
        {"id": "2", "prompt": None},
        "it has 4 cells, and the header has 2",
    ]


def test_a_cell_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("prompt\n" + "a" * 500_000 + "\n")
    assert [len(cells[0]) for cells in csv_cells(path)] == [6, 500_000]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "has no header"),
        (b"a,a\n1,2", "has two columns 'a'"),
        (b"a\n\xff\n", "is no CSV in UTF-8"),
    ],
)
def test_what_is_no_csv_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    with pytest.raises(TableError, match=words):
        list(csv_cells(path))
    if b"\xff" not in data:
        with pytest.raises(TableError, match=words):
            csv_header(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'id,prompt\n1,fine\n2,"cut off, here\n3,lost\n',
            "up to line 4: unexpected end of data; a cell that begins with a quote ends with one",
        ),
        (
            'id,prompt\n1,fine\n2,"say "hi" now"\n',
            "up to line 3: ',' expected after '\"'; .* a quote within it is written twice",
        ),
        ('"id,prompt\n1,fine\n', "up to line 2: unexpected end of data"),
    ],
)
def test_a_quote_that_is_not_closed_takes_no_rows_along(
    tmp_path: Path, text: str, words: str
) -> None:
    for name, data in (("x.csv", text), ("x.tsv", text.replace(",", "\t"))):
        (tmp_path / name).write_text(data)
        with pytest.raises(TableError, match=words.replace("','", "'.*'")):
            list(csv_cells(tmp_path / name))


def test_the_types_of_columns_are_those_of_all_their_values() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": 1, "c": 2**70, "d": None, "e": True, "f": [1]},
        {"a": None, "b": 1.5, "e": 1, "f": {"x": 1}},
    ]
    kinds = column_kinds(rows)
    assert kinds == {
        "a": "int64",
        "b": "double",
        "c": "string",
        "d": "string",
        "e": "string",
        "f": "lists",
    }
    types = [str(field.type) for field in schema_of_kinds(kinds)]
    assert types == [kind.replace("lists", "string") for kind in kinds.values()]


def test_json_columns_are_values_to_python(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    messages = json.dumps(turns)
    kind = getattr(pa, "json_", None)
    if kind is None:
        pytest.skip("this pyarrow knows no arrow.json")
    column = pa.ExtensionArray.from_storage(kind(pa.utf8()), pa.array([messages]))
    pq.write_table(pa.table({"messages": column}), tmp_path / "x.parquet", store_schema=True)
    assert list(read_table(tmp_path / "x.parquet")) == [{"messages": turns}]


def written(path: Path, *late: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """The rows of a table whose first 1,000 rows hold whole numbers, and these rows after them."""
    failed: Any = Failure(Timeout("slow"))
    rows = [*({"id": 1, "reward": n % 2} for n in range(1000)), *late]
    write_table(path, [(row, failed) for row in rows], **settings)
    return [dict(row) for row in read_table(path)][1000:]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("value", [0.5, float("nan"), 2**70, "a"])
def test_a_value_that_a_column_of_whole_numbers_would_change_is_refused(
    tmp_path: Path, suffix: str, value: object
) -> None:
    with pytest.raises(TableError, match="'reward' holds int64, and a value does not fit"):
        written(tmp_path / f"out{suffix}", {"id": 1, "reward": value})
    assert not (tmp_path / f"out{suffix}").exists()


def test_a_value_that_fits_the_column_is_written_and_a_schema_takes_others(tmp_path: Path) -> None:
    late = [{"id": 1, "reward": 2.0}, {"id": 2}, {"id": 3, "reward": None}]
    rows = written(tmp_path / "out.parquet", *late)
    assert [row["reward"] for row in rows] == [2, None, None]
    schema = pa.schema([("id", pa.int64()), ("reward", pa.float64())])
    (row,) = written(tmp_path / "of.parquet", {"id": 1, "reward": 0.5, "x": 1}, schema=schema)
    assert (row["reward"], "x" in row) == (0.5, False)
    many = pa.schema([("id", pa.int64()), ("reward", pa.list_(pa.int64()))])
    failed: Any = Failure(Timeout("slow"))
    with pytest.raises(TableError, match="'reward' holds list"):
        write_table(tmp_path / "l.arrow", [({"id": 1, "reward": [1, 2.5]}, failed)], schema=many)


OF_ONE: Any = pa.struct([("n", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (OF_ONE, {"n": 1.0}, {"n": 1.5}),
        (pa.list_(OF_ONE), [{"n": 2**53 + 1}], [{"n": 2**53 + 1}, {"n": 1.5}]),
        (pa.struct([("s", OF_ONE)]), {"s": None}, {"s": {"n": 1.5}}),
        (pa.map_(pa.string(), pa.uint8()), {"a": 1}, {"a": 1.5}),
        (pa.map_(pa.int64(), pa.string()), {1: "a"}, {1.5: "a"}),
        (pa.dictionary(pa.int8(), pa.int64()), 7, 7.5),
        (pa.list_(pa.int32(), 1), [1], [Decimal("1.5")]),
        (pa.int64(), Fraction(4, 2), Fraction(3, 2)),
        (pa.timestamp("s"), 1, 1.5),
    ],
    ids=str,
)
def test_a_fraction_is_refused_wherever_whole_numbers_are_stored(
    tmp_path: Path, kind: Any, good: object, bad: object
) -> None:
    schema, failed = pa.schema([("id", pa.int64()), ("x", kind)]), Failure(Timeout("slow"))
    path = tmp_path / "out.arrow"
    assert write_table(path, [({"id": 1, "x": good}, failed)], schema=schema) == 1
    path.unlink()
    with pytest.raises(TableError, match=r"'x' holds .*, and a value does not fit: .*schema="):
        write_table(path, [({"id": 1, "x": bad}, failed)], schema=schema)
    assert not path.exists()


def test_a_fraction_after_a_large_number_and_in_an_array_is_refused(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TableError, match="'reward' holds int64, and a value does not fit"):
        written(tmp_path / "a.arrow", {"id": 1, "reward": 2**53 + 1}, {"id": 2, "reward": 0.5})
    schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.int64()))])
    torch = pytest.importorskip("torch")
    path, failed = tmp_path / "b.arrow", Failure(Timeout("slow"))
    for bad in (numpy.array([1.5]), torch.tensor([1.5]), [torch.tensor(1.5)], numpy.array(1)):
        with pytest.raises(TableError, match="'x' holds list"):
            write_table(path, [({"id": 1, "x": bad}, failed)], schema=schema)
    for good in (numpy.array([1, 2]), torch.tensor([1.0, 2.0]), [1.0, None, 2]):
        assert write_table(path, [({"id": 1, "x": good}, failed)], schema=schema) == 1
        path.unlink()


def test_a_name_that_is_no_text_names_its_column(tmp_path: Path) -> None:
    """As the columns of a table without a header."""
    rows: Any = [({0: "a", "id": 1}, Failure(Timeout("slow")))]
    assert write_table(tmp_path / "a.parquet", rows) == 1
    assert next(iter(read_table(tmp_path / "a.parquet")))["0"] == "a"


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("before", [0, 1000])
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("k", Failure(Timeout("slow"))), "its row is 'k'"),
        (({"id": 1}, "an answer"), "its slot is 'an answer'"),
        ({"id": 1, "x": 2}, "it is {'id': 1, 'x': 2}"),
        (({"id": 1},), "it is ({'id': 1},)"),
        (7, "it is 7"),
    ],
)
def test_an_entry_that_is_no_pair_of_a_row_and_a_slot_is_refused(
    tmp_path: Path, suffix: str, before: int, entry: Any, words: str
) -> None:
    good: Any = ({"id": 1}, Failure(Timeout("slow")))
    with pytest.raises(TypeError) as refusal:
        write_table(tmp_path / f"out{suffix}", [*[good] * before, entry])
    assert f"entry {before + 1} is no pair of a row, a mapping, and its slot: {words}" in str(
        refusal.value
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_a_column_that_the_first_rows_lack_is_refused_and_not_dropped(
    tmp_path: Path, suffix: str
) -> None:
    with pytest.raises(TableError, match="row 1001 has a column 'judge'"):
        written(tmp_path / f"out{suffix}", {"id": 1, "judge": "yes"})
    assert not (tmp_path / f"out{suffix}").exists()


def test_a_column_beside_an_entry_of_the_metadata_loses_neither() -> None:
    row = {"prompt": "a", "seed": 5, "metadata": {"seed": 7}}
    assert Columns(kept=frozenset(["seed"])).request(row)["metadata"] == {
        "input_seed": 5,
        "seed": 7,
    }
