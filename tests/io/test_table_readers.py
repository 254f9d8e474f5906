"""What others make of pipegen's tables, and pipegen of theirs: polars, duckdb, pandas and
datasets.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import pipegen as pg
from pipegen.core.errors import BadImage
from pipegen.io.results_in import slots_in
from pipegen.io.text_tables import csv_cells
from pipegen.records.codec import declared
from pipegen.records.options import resolve
from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pytest.importorskip("PIL")

OPTIONS = resolve(pg.GenerationOptions())
TURNS = [{"role": "user", "content": "Hi"}]


def png(color: str) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (8, 4), color).save(data, "PNG")
    return data.getvalue()


def answer(text: str, **more: Any) -> Any:
    return pg.Success(
        pg.GenerationResult(
            text=text,
            raw_text=text,
            finish=pg.Finish.EOS,
            options=OPTIONS,
            prompt_tokens=3,
            completion_tokens=2,
            **more,
        )
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """An answer with log probabilities, one of two samples, and an error; with images and
    messages.
    """
    logprobs = (pg.TokenLogprob(token_id=5, logprob=-0.5, text="ja"),)
    two = answer("one").unwrap(), answer("two").unwrap()
    slots = [
        answer("ja", logprobs=logprobs, token_ids=(5,), prompt_logprobs=(None, *logprobs)),
        answer("one", samples=two),
        pg.Failure(BadImage(0, message="no image")),
    ]
    rows = [
        {"id": n, "messages": TURNS, "image": png(color), "label": n % 2}
        for n, color in enumerate(("red", "green", "blue"))
    ]
    assert pg.write_table(tmp_path / "out.parquet", zip(rows, slots, strict=True), model="m") == 3
    return tmp_path / "out.parquet"


def test_polars_filters_it_lazily(table: Path) -> None:
    pl = pytest.importorskip("polars")
    good = (
        pl.scan_parquet(table)
        .filter(pl.col("ok"))
        .select("id", "text", pl.col("usage").struct.field("completion_tokens"))
        .collect()
    )
    assert good.rows() == [(0, "ja", 2), (1, "one", 2)]
    assert pl.read_parquet(table)["logprobs"].to_list() == [[-0.5], None, None]
    assert pl.read_parquet(table)["prompt_logprobs"].to_list() == [[None, -0.5], None, None]


def test_duckdb_reads_its_structs_and_its_json(table: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    asked = (
        "select id, error.type, usage.prompt_tokens, json_extract_string(messages, '$[0].role'),"
        " samples[2].text, tokens[1]"
    )
    assert duckdb.sql(f"{asked} from '{table}' order by id").fetchall() == [
        (0, None, 3, "user", None, "ja"),
        (1, None, 3, "user", "two", None),
        (2, "BadImage", None, "user", None, None),
    ]


def test_pandas_reads_it(table: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(table)
    assert list(frame["ok"]) == [True, True, False]
    assert frame["error"][2]["message"] == "no image"


def test_datasets_shows_its_images(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_parquet(str(table), cache_dir=str(tmp_path / "cache"))
    assert made.features["image"] == datasets.Image()
    assert [row["image"].size for row in made] == [(8, 4)] * 3
    assert made[2]["image"].getpixel((0, 0)) == (0, 0, 255)


def test_a_sample_that_failed_and_metadata_of_another_form(tmp_path: Path) -> None:
    one = answer("one").unwrap()
    lost = answer("one", samples=(one,), failed_samples=((1, pg.Timeout("slow")),))
    schema = pa.schema([("prompt", pa.string())], metadata={"huggingface": "no JSON"})
    pg.write_table(
        tmp_path / "out.parquet", [({"prompt": "a"}, lost)] * 2001, schema=schema, brief=True
    )
    rows = list(pg.read_table(tmp_path / "out.parquet"))
    assert len(rows) == 2001
    assert rows[0]["samples"] == [
        {"text": "one", "finish": "eos", "completion_tokens": 2},
        {"text": None, "finish": "Timeout", "completion_tokens": 0},
    ]


# The other way


def rows_of_datasets(tmp_path: Path, *, streaming: bool) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    rows = [
        {"id": n, "messages": TURNS, "image": {"bytes": png("red"), "path": None}, "label": n % 2}
        for n in range(3)
    ]
    made = datasets.Dataset.from_list(rows, features=features)
    return made.to_iterable_dataset() if streaming else made


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("decoded", [True, False])
def test_rows_of_datasets_are_requests(tmp_path: Path, streaming: bool, decoded: bool) -> None:
    datasets = pytest.importorskip("datasets")
    rows = rows_of_datasets(tmp_path, streaming=streaming)
    rows = rows if decoded else rows.cast_column("image", datasets.Image(decode=False))
    engine = FakeEngine("Hello")
    slots = list(pg.imap(pg.route(engine), rows))
    assert [slot.unwrap().id for slot in slots] == ["0", "1", "2"]
    requests = sorted(
        (encoded.request for call in engine.calls for encoded in call),
        key=lambda request: str(request.id),
    )
    assert [request.metadata for request in requests] == [{"label": 0}, {"label": 1}, {"label": 0}]
    assert all(request.sources[0].data is not None for request in requests)


def test_a_dataset_goes_to_a_table_and_comes_back(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = rows_of_datasets(tmp_path, streaming=False)
    pairs = pg.imap_keyed(pg.route(FakeEngine("Hello")), ((row, row) for row in rows))
    assert pg.write_table(tmp_path / "out.parquet", pairs, schema=rows.features.arrow_schema) == 3
    again = datasets.Dataset.from_parquet(
        str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert (again.features["label"], again.features["image"]) == (
        rows.features["label"],
        datasets.Image(),
    )
    assert [(row["id"], row["label"], row["messages"], row["text"]) for row in again] == [
        (n, n % 2, TURNS, "Hello") for n in range(3)
    ]
    assert again[0]["image"].getpixel((0, 0)) == (255, 0, 0)
    saved = tmp_path / "saved"
    rows.save_to_disk(str(saved))
    assert [row["id"] for row in pg.read_table(saved)] == [0, 1, 2]


def test_rows_of_polars_and_pandas_are_requests(tmp_path: Path) -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    rows = {"prompt": ["a", "b"], "label": [1, 2]}
    for frame in (
        polars.DataFrame(rows).iter_rows(named=True),
        pandas.DataFrame(rows).to_dict("records"),
    ):
        assert [slot.unwrap().text for slot in pg.imap(pg.route(FakeEngine("Hi")), frame)] == [
            "Hi",
            "Hi",
        ]


# What write_table refuses


@pytest.mark.parametrize(
    ("name", "pairs", "words"),
    [
        ("out.xlsx", [], "ends with .xlsx: a table is .parquet, .arrow, .csv or .tsv"),
        ("out", [], "ends with no suffix"),
        (
            "out.parquet",
            [({"prompt": "a", "n": 1}, answer("x"))] * 1001
            + [({"prompt": "a", "n": "many"}, answer("x"))],
            "the column 'n' holds int64",
        ),
    ],
)
def test_what_cannot_be_written_is_an_error_and_leaves_no_file(
    tmp_path: Path, name: str, pairs: Any, words: str
) -> None:
    with pytest.raises(pg.TableError, match=words):
        pg.write_table(tmp_path / name, pairs)
    assert list(tmp_path.iterdir()) == []


def test_half_characters_and_odd_values_are_written_as_text(tmp_path: Path) -> None:
    odd = {"prompt": "a", "x": {"y": b"\x00"}, "s": "\ud800"}
    pg.write_table(tmp_path / "out.parquet", [(odd, answer("half \ud800"))])
    (row,) = pg.read_table(tmp_path / "out.parquet")
    assert (row["x"], row["s"], row["text"]) == ('{"y": "AA=="}', "?", "half ?")
    pg.write_table(tmp_path / "out.csv", [(odd, answer("half \ud800"))])
    assert "half ?" in (tmp_path / "out.csv").read_text()


def test_half_characters_within_nested_values_are_written_as_text(tmp_path: Path) -> None:
    text = pa.string()
    schema = pa.schema(
        {
            "prompt": text,
            "images": text,
            "list": pa.list_(text),
            "struct": pa.struct({"a": pa.list_(text)}),
            "map": pa.map_(text, text),
        }
    )
    row = {"prompt": "a", "images": ["\udcff.png"], "list": ["\ud800", None]}
    row |= {"struct": {"a": ("\ud800",)}, "map": [("\ud800", "\udc00")]}
    pg.write_table(tmp_path / "out.parquet", [(row, answer("x"))], schema=schema)
    (read,) = pg.read_table(tmp_path / "out.parquet")
    assert read["images"] == [{"bytes": None, "path": "?.png"}]
    assert (read["list"], read["struct"], read["map"]) == (["?", None], {"a": ["?"]}, {"?": "?"})


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("value", ["one\rtwo", "one\ntwo", "one\r\ntwo", "\r", "a\x85b\u2028c"])
def test_a_value_with_a_line_end_is_one_cell_for_every_reader(
    tmp_path: Path, suffix: str, value: str
) -> None:
    pandas, csv = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.csv")
    path, mark = tmp_path / f"out{suffix}", "," if suffix == ".csv" else "\t"
    pg.write_table(path, [({"note": value, "last": "b"}, answer(value))] * 2)
    assert path.read_bytes().endswith(b"\n") and not path.read_bytes().endswith(b"\r\n")
    header, *cells = csv_cells(path)
    own = [dict(zip(header, row, strict=True)) for row in cells]
    parsing = csv.ParseOptions(delimiter=mark, newlines_in_values=True)
    arrow = csv.read_csv(path, parse_options=parsing).to_pylist()
    others = pandas.read_csv(path, sep=mark, keep_default_na=False).to_dict("records")
    for read in (own, arrow, others):
        assert [(row["note"], row["text"]) for row in read] == [(value, value)] * 2


def test_values_that_json_has_no_form_for_are_the_same_text_in_every_table(
    tmp_path: Path,
) -> None:
    odd = {"day": dt.date(2026, 1, 2), "price": Decimal("1.50"), "uid": UUID(int=5), "blob": b"ab"}
    odd |= {"rate": float("inf"), "word": "s", "list": [dt.date(2026, 1, 2)]}
    rows = [odd, {**odd, "rate": "high"}]
    pairs = [({"prompt": "a", **row}, answer("x")) for row in rows]
    for suffix in (".csv", ".parquet"):
        pg.write_table(tmp_path / f"out{suffix}", pairs)
    header, *cells = csv_cells(tmp_path / "out.csv")
    tables = [dict(zip(header, row, strict=True)) for row in cells]
    for read, row in zip(pg.read_table(tmp_path / "out.parquet"), tables, strict=True):
        assert [(name, read[name]) for name in odd] == [(name, row[name]) for name in odd]
        assert (read["day"], read["blob"]) == ("2026-01-02", "YWI=")


def test_an_image_of_any_form_is_stored(tmp_path: Path) -> None:
    data = "data:image/png;base64,eHl6"
    rows = [
        {
            "prompt": "a",
            "images": ["a.png", data, "https://h/a.png", "data:image/png;base64,?", None, 5],
        }
    ]
    pg.write_table(tmp_path / "out.parquet", [(row, answer("x")) for row in rows])
    (row,) = pg.read_table(tmp_path / "out.parquet")
    assert row["images"] == [
        {"bytes": None, "path": "a.png"},
        {"bytes": b"xyz", "path": None},
        {"bytes": None, "path": "https://h/a.png"},
        {"bytes": b"", "path": None},
        None,
        None,
    ]


def test_lines_and_tables_say_by_one_name_how_an_answer_ended(tmp_path: Path) -> None:
    from pipegen.io.answer_columns import CSV_COLUMNS, answer_columns
    from pipegen.io.jsonl import to_plain

    line = to_plain(pg.Success(_ended()), "a")
    assert line["finish"] == "length"
    for names in (answer_columns(brief=True).names, [*CSV_COLUMNS]):
        assert "finish" in names
        assert not [name for name in names if name.startswith("finish") and name != "finish"]


def test_a_table_without_the_columns_of_ids_and_counts_is_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipegen.io.results_in import results_in

    sample = {"text": "one", "finish": "eos", "completion_tokens": 2}
    row = {
        "id": "a",
        "ok": True,
        "text": "one",
        "finish": "length",
        "samples": [sample],
        "options": "{}",
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "old.parquet")
    (result,) = results_in(tmp_path / "old.parquet")
    assert (result["finish"], result["samples"][0]["finish"]) == ("length", "eos")


FULL: dict[str, Any] = {
    "stop": "!",
    "reasoning": "It rains.",
    "tool_calls": ({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},),
    "route": "hf",
    "prompt_token_ids": (3, 4),
    "token_ids": (5, 6),
    "forced": (1,),
    "logprobs": (
        pg.TokenLogprob(token_id=5, logprob=-0.5, top=((5, -0.5), (7, -1.0)), text="ja"),
        pg.TokenLogprob(token_id=6, logprob=-0.25, text="!"),
    ),
    "prompt_logprobs": (None, pg.TokenLogprob(token_id=4, logprob=-2.0, top=((8, -0.75),))),
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_row_is_read_back_with_all_that_its_columns_hold(suffix: str, tmp_path: Path) -> None:
    """But for samples and rounds, of which tables have less than lines."""
    parts = (answer("ja", route="hf").unwrap(), answer("nein", route="hf").unwrap())
    written = answer("ja", samples=parts, rounds=parts, **FULL).unwrap()
    pg.write_table(tmp_path / f"rows{suffix}", [({"id": "a"}, pg.Success(written))])
    ((_, slot),) = slots_in(tmp_path / f"rows{suffix}")
    read = slot.unwrap()
    fields = [field for field in declared(pg.GenerationResult) if field.row.column]
    columns = {
        field.name
        for field in fields
        if field.name not in ("samples", "rounds", "written_transcript")
    }
    assert {name: getattr(read, name) for name in columns} == {
        name: getattr(written, name) for name in columns
    }
    assert columns >= {*FULL}
    for name in ("samples", "rounds"):
        assert [(one.text, one.finish, one.completion_tokens) for one in getattr(read, name)] == [
            (one.text, one.finish, one.completion_tokens) for one in parts
        ]


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        *((word, "eos") for word in ("stop", "end_turn", "STOP", "tool_calls", "", None)),
        *((word, "length") for word in ("length", "max_tokens", "MAX_TOKENS", "model_length")),
        *((word, "aborted") for word in ("abort", "cancelled", "error")),
    ],
)
def test_the_words_of_a_line_of_a_batch_are_those_of_servers(
    word: str | None, finish: str, tmp_path: Path
) -> None:
    ((_, slot),) = slots_in(batch_file(tmp_path, word))
    assert slot.unwrap().finish.value == finish


def test_a_line_of_a_batch_that_was_refused_or_ends_in_an_unknown_word_is_no_answer(
    tmp_path: Path,
) -> None:
    ((_, slot),) = slots_in(batch_file(tmp_path, "content_filter"))
    assert slot.failure() == pg.Refused(
        "the server refused to answer (content_filter)", text="so far"
    )
    ((_, slot),) = slots_in(batch_file(tmp_path, "stop", refusal="I cannot."))
    assert slot.failure().refusal == "I cannot."  # type: ignore[attr-defined]
    ((_, slot),) = slots_in(batch_file(tmp_path, "moon"))
    assert isinstance(slot.failure(), pg.MalformedResponse)
    assert "'moon'" in slot.failure().message


def batch_file(folder: Path, word: str | None, **message: str) -> Path:
    choice = {"finish_reason": word, "message": {"content": "so far", **message}}
    line = {"custom_id": "a", "response": {"body": {"choices": [choice]}}, "error": None}
    file = folder / "batch.jsonl"
    file.write_text(json.dumps(line))
    return file


def _ended() -> pg.GenerationResult:
    return pg.GenerationResult(
        text="a", raw_text="a", finish=pg.Finish.LENGTH, options=pg.GenerationOptions()
    )
