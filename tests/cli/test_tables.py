"""`pipegen generate` with tables in and out: what comes in goes out, beside the answers, and other
programs open it.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.io.results_in import slots_in
from pipegen.testing.fake import FakeEngine

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Command = Callable[..., Any]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
TURNS = [{"role": "user", "content": "Hi"}]


def parquet(path: Path, features: dict[str, Any] | None = None, **columns: Any) -> Path:
    table = pa.table(columns)
    pq.write_table(
        table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})} if features else None
        ),
        path,
    )
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return listed


def asked_of(engine: FakeEngine) -> list[Any]:
    """What the engine was asked, in the order of the requests' ids; it may be asked in another."""
    return sorted(
        (encoded for call in engine.calls for encoded in call),
        key=lambda encoded: encoded.request.id,
    )


# Parquet


def test_parquet_in_is_parquet_out_and_the_same_command_asks_nothing_twice(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source, out = (
        parquet(tmp_path / "in.parquet", id=[3, 1, 2], prompt=["c", "a", "b"]),
        tmp_path / "out.parquet",
    )
    for _ in range(2):
        ran = generate(source, "-o", out)
        assert ran.code == 0
    assert sum(map(len, engine.calls)) == 3
    assert [(row["id"], row["prompt"], row["ok"], row["text"]) for row in rows(out)] == [
        (n, p, True, "Hello END of it") for n, p in ((3, "c"), (1, "a"), (2, "b"))
    ]
    (row,) = rows(out)[:1]
    assert row["usage"] == {"prompt_tokens": 1, "completion_tokens": 15}
    seen = (row["finish"], row["error"], row["model"], row["token_ids"])
    assert seen == ("aborted", None, "fake", list(b"Hello END of it"))
    assert json.loads(row["options"])["max_new_tokens"] == 512
    assert "3 finished before" in ran.err


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_whole_numbers_that_pandas_made_floats_are_ids(
    generate: Command, engine: FakeEngine, tmp_path: Path, suffix: str
) -> None:
    source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    ids = [3.0, None, 1.0]
    if suffix == ".parquet":
        parquet(source, id=ids, prompt=["c", "a", "b"])
    else:
        lines = [{"id": name, "prompt": "Hi"} for name in ids]
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for _ in range(2):  # the second time every row was finished before
        assert generate(source, "-o", out).code == 0
        assert [str(name) for name, _ in slots_in(out)] == ["3", "2", "1"]
    assert [encoded.request.id for encoded in asked_of(engine)] == ["1", "2", "3"]


def test_columns_of_any_type_come_out_as_they_went_in(generate: Command, tmp_path: Path) -> None:
    columns = {
        "prompt": ["a", "b"],
        "label": [1, None],
        "text": ["an input's", None],  # an answer has such a column
        "at": pa.array([1, 2], pa.timestamp("ns", "UTC")),
        "tags": [["x"], None],
        "kind": pa.array(["cat", "dog"]).dictionary_encode(),
        "nested": [{"a": 1}, {"a": None}],
        "price": pa.array([None, 12], pa.decimal128(5, 2)),
    }
    source = parquet(
        tmp_path / "in.parquet",
        {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}},
        **columns,
    )
    assert generate(source, "-o", tmp_path / "out.parquet").code == 0
    given, made = pq.read_table(source), pq.read_table(tmp_path / "out.parquet")
    for name in columns:
        assert (
            made.column("input_text" if name == "text" else name).to_pylist()
            == given.column(name).to_pylist()
        ), name
        assert (
            made.schema.field("input_text" if name == "text" else name).type
            == given.schema.field(name).type
        ), name
    assert json.loads(made.schema.metadata[b"huggingface"])["info"]["features"] == {
        "label": {"names": ["no", "yes"], "_type": "ClassLabel"}
    }


@pytest.mark.parametrize("form", ["structs", "text", "json"])
def test_messages_are_structs_or_json_text(
    generate: Command, engine: FakeEngine, tmp_path: Path, form: str
) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho", "tool_calls": None},
        {"role": "user", "content": "And?"},
    ]
    text = [json.dumps(TURNS), json.dumps(turns)]
    if form == "json" and not hasattr(pa, "json_"):
        pytest.skip("this pyarrow knows no arrow.json")
    column = (
        [TURNS, turns]
        if form == "structs"
        else (
            text
            if form == "text"
            else pa.ExtensionArray.from_storage(pa.json_(pa.utf8()), pa.array(text))
        )
    )
    source = parquet(tmp_path / "in.parquet", messages=column)
    generate(source, "-o", tmp_path / "out.parquet", "--quiet")
    messages = [encoded.request.messages for encoded in asked_of(engine)]
    assert messages == [pg.TextGenerationRequest(messages=one).messages for one in (TURNS, turns)]
    assert (
        pq.read_table(tmp_path / "out.parquet").column("messages").to_pylist()
        == pq.read_table(source).column("messages").to_pylist()
    )


@pytest.mark.parametrize(
    "column",
    [
        [["good.png"], ["good.png", "good.png"], None],
        pa.array(
            [[{"bytes": b"good", "path": "x.png"}], [{"bytes": None, "path": "good.png"}] * 2, []],
            pa.list_(IMAGE),
        ),
        pa.array([[b"good"], [b"good", b"good"], []]),
    ],
    ids=["paths", "stored", "bytes"],
)
def test_images_go_in_in_every_form_and_come_out_stored(
    generate: Command, engine: FakeEngine, tmp_path: Path, column: Any
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    source = parquet(tmp_path / "in.parquet", prompt=["a", "b", "c"], images=column)
    assert generate(source, "-o", tmp_path / "out.parquet").code == 0
    assert [len(encoded.prompt.images) for encoded in asked_of(engine)] == [1, 2, 0]
    made = pq.read_table(tmp_path / "out.parquet")
    assert made.schema.field("images").type == pa.list_(IMAGE)
    stored = [image for row in made.column("images").to_pylist() for image in row or ()]
    assert len(stored) == 3
    assert all(
        image["bytes"] == b"good" or image["path"] == str(tmp_path / "good.png") for image in stored
    )
    features = json.loads(made.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["images"] == {"feature": {"_type": "Image"}, "_type": "List"}


def test_one_image_a_row_and_a_broken_one_fails_alone(generate: Command, tmp_path: Path) -> None:
    column = pa.array(
        [{"bytes": b"good", "path": None}, {"bytes": b"broken", "path": "b.png"}, None], IMAGE
    )
    source = parquet(tmp_path / "in.parquet", question=["a"] * 3, image=column)
    assert generate(source, "-o", tmp_path / "out.parquet", "--map", "prompt=question").code == 1
    first, second, third = rows(tmp_path / "out.parquet")
    assert (first["ok"], second["ok"], third["ok"]) == (True, False, True)
    seen = (second["error"]["type"], second["text"], second["usage"], second["image"]["bytes"])
    assert seen == ("BadImage", None, None, b"broken")
    assert second["error"]["hint"]
    assert [row["id"] for row in (first, second, third)] == ["1", "2", "3"]


LLAVA = [
    {
        "id": str(len(images)),
        "image": images[0] if len(images) == 1 else images,
        "conversations": [{"from": "human", "value": "<image>" * len(images) + "Look."}],
    }
    for images in (["good.png"], ["good.png", "good.png"])
]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("form", ["lines", "lists", "json"])
def test_a_column_of_one_image_or_several_loses_none(
    generate: Command, engine: FakeEngine, tmp_path: Path, form: str, suffix: str
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    if form == "lines":
        source = tmp_path / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in LLAVA))
    else:
        several = [["good.png"] * int(str(row["id"])) for row in LLAVA]
        images = [
            row["image"] if form == "json" else paths
            for row, paths in zip(LLAVA, several, strict=True)
        ]
        column = (
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(map(json.dumps, images)))
            if form == "json"
            else images
        )
        turns = [row["conversations"] for row in LLAVA]
        source = parquet(tmp_path / "in.parquet", id=["1", "2"], image=column, conversations=turns)
    assert generate(source, "-o", tmp_path / f"out.{suffix}").code == 0
    assert [len(encoded.prompt.images) for encoded in asked_of(engine)] == [1, 2]
    made = [row["image"] for row in pg.read_table(tmp_path / f"out.{suffix}")]
    stored = {"bytes": None, "path": str(tmp_path / "good.png")}
    assert made == [[stored], [stored, stored]]


def test_several_images_in_a_column_of_one_are_not_cut(generate: Command, tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    source = parquet(tmp_path / "in.parquet", prompt=["a"], image=['["good.png", "good.png"]'])
    ran = generate(source, "-o", tmp_path / "out.parquet")
    assert (ran.code, "a row holds 2: --map images=image" in ran.err) == (1, True)
    ran = generate(source, "-o", tmp_path / "more.parquet", "--map", "images=image")
    assert ran.code == 0, ran.err
    assert len(rows(tmp_path / "more.parquet")[0]["image"]) == 2


def test_other_names_of_columns(generate: Command, engine: FakeEngine, tmp_path: Path) -> None:
    source = parquet(
        tmp_path / "in.parquet",
        question=["a"],
        uid=["x7"],
        id=[5],
        seed=[3],
        options=[["yes", "no"]],
    )
    ran = generate(
        *(source, "-o", tmp_path / "out.parquet", "--map", "prompt=question,id=uid"),
        *("--map", "metadata=seed,metadata=options"),
    )
    assert ran.code == 0
    (row,) = rows(tmp_path / "out.parquet")
    seen = (row["id"], row["uid"], row["input_id"], row["seed"], row["input_options"])
    assert seen == ("x7", "x7", 5, 3, ["yes", "no"])
    assert engine.calls[0][0].request.id == "x7"


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (["prompt"], "takes FIELD=COLUMN, such as user=question, not 'prompt'"),
        (["promt=a"], "'promt' is no field of a request; did you mean 'prompt'?"),
        (["prompt=a,prompt=b"], "says two columns for prompt"),
        (["prompt=nope"], "has no column 'nope'"),
        (["user=nope"], "has no column 'nope'"),
        (["user=a,prompt=b"], "takes user or prompt, not both"),
    ],
)
def test_a_wrong_map_is_bad_usage(
    generate: Command, engine: FakeEngine, tmp_path: Path, maps: list[str], words: str
) -> None:
    source = parquet(tmp_path / "in.parquet", prompt=["a"])
    ran = generate(
        source,
        "-o",
        tmp_path / "out.parquet",
        *(flag for entry in maps for flag in ("--map", entry)),
    )
    assert (ran.code, engine.calls) == (2, [])
    assert words in " ".join(ran.err.split())


@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "stdin"])
@pytest.mark.parametrize("column", ["uidd", "nothing"])
def test_a_mapped_column_that_no_row_has_is_refused_in_every_form(
    form: str, column: str, command: Command, tmp_path: Path
) -> None:
    """Stdin is read once: there it is the end of the run that says so."""
    given = [{"question": "a"}, {"question": "b", "uid": "7"}]
    lines = "".join(json.dumps(row) + "\n" for row in given).encode()
    source = tmp_path / f"in.{form}"
    source.write_bytes(
        b"question,uid\na,\nb,7\n"
        if form == "csv"
        else json.dumps(given).encode()
        if form == "json"
        else lines
    )
    place = "-" if form == "stdin" else source

    def run(*maps: str) -> Any:
        flags = ("--model", "fake", "--map", "user=question", *maps)
        return command("generate", place, *flags, stdin=lines)

    ran = run("--map", f"id={column}")
    assert (ran.code, len(ran.out)) == ((1, 2) if form == "stdin" else (2, 0))
    hint = "; did you mean 'uid'?" if column == "uidd" else ": its columns are question, uid"
    assert f"{place if form != 'stdin' else form} has no column '{column}'{hint}" in " ".join(
        ran.err.split()
    )
    assert run("--map", f"metadata={column}").code == ran.code
    for maps in ("id=uid", "metadata=uid"):  # which the first row lacks
        assert run("--map", maps).code == 0


def test_lines_without_rows_lack_no_column(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl("[]", "no JSON", "{}"), "--map", "user=question")
    assert (ran.code, [line["ok"] for line in ran.out]) == (1, [False] * 3)


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("column", ["options.adapter", "options.tempreature", "Option"])
def test_a_column_of_options_under_another_name_is_refused(
    column: str, form: str, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source, value = tmp_path / f"in.{form}", '{"adapter": "a"}'
    row = {"prompt": "Hi", column: value}
    if form == "csv":
        with source.open("w", newline="") as stream:
            csv.writer(stream).writerows([row.keys(), row.values()])
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), source)
    else:
        source.write_text(json.dumps(row))
    result = generate(source, "-o", tmp_path / "out.jsonl")
    assert result.code in (1, 2)  # a row of its own; a header for all
    words = result.err + "".join(path.read_text() for path in tmp_path.glob("out.jsonl"))
    assert column in words
    assert "options" in words
    assert not engine.calls
    kept = tmp_path / "kept.jsonl"
    mapped = generate(source, "-o", kept, "--map", f"metadata={column}")
    assert mapped.code == 0, mapped.err
    assert json.loads(kept.read_text())["metadata"] == {column: value}


def test_a_map_names_the_fields_of_lines_too(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    ran = generate(jsonl({"question": "Is it so?", "label": 1}), "--map", "prompt=question")
    assert (ran.out[0]["ok"], ran.out[0]["metadata"]) == (True, {"label": 1})
    assert engine.calls[0][0].request.prompt == "Is it so?"


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "txt"])
def test_questions_of_any_file_are_asked_as_turns_of_the_user(
    command: Command, engine: FakeEngine, tmp_path: Path, form: str
) -> None:
    source, out, column = tmp_path / f"in.{form}", tmp_path / "out.jsonl", "question"
    if form == "parquet":
        parquet(source, question=["Is it so?"])
    elif form == "txt":
        source.write_text("Is it so?\n")
        column = "prompt"
    else:
        source.write_text(
            "question\nIs it so?\n" if form == "csv" else '{"question": "Is it so?"}\n'
        )
    flags = ("--model", "fake", "--map", f"user={column}", "--system", "Be brief.")
    assert command("generate", source, "-o", out, *flags).code == 0
    (asked,) = asked_of(engine)
    turns = [(message.role, message.content) for message in asked.request.messages]
    assert turns == [("system", "Be brief."), ("user", "Is it so?")]
    first = out.read_bytes()
    assert command("generate", source, "-o", out, *flags).code == 0
    assert command("export", f"{out}.job", "-o", tmp_path / "again.jsonl").code == 0
    assert len(engine.calls) == 1
    assert out.read_bytes() == (tmp_path / "again.jsonl").read_bytes() == first


def test_a_system_prompt_is_not_put_before_a_prompt_that_is_continued(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    ran = generate(jsonl({"prompt": "Once"}), "--system", "Be brief.")
    assert (ran.code, engine.calls) == (1, [])
    assert "--map user=COLUMN" in ran.out[0]["error"]["hint"]


def test_a_text_file_has_the_column_prompt_alone(generate: Command, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Hi\n")
    ran = generate(tmp_path / "in.txt", "--map", "user=question")
    assert ran.code == 2
    assert "has no column 'question'" in " ".join(ran.err.split())


def test_samples_logprobs_and_brief(generate: Command, engine: FakeEngine, tmp_path: Path) -> None:
    source = parquet(tmp_path / "in.parquet", prompt=["a"])
    generate(
        *(source, "-o", tmp_path / "two.parquet", "--samples", "2", "--brief"),
        *("--temperature", "1"),
    )
    (row,) = rows(tmp_path / "two.parquet")
    assert [sample["text"] for sample in row["samples"]] == ["Hello END of it"] * 2
    assert "token_ids" not in row
    assert pq.read_table(tmp_path / "two.parquet").schema.names[-1] == "options"


# JSON Lines and CSV


def test_lines_become_a_table_whose_types_are_those_of_all_lines(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    source = jsonl(
        {"id": 1, "prompt": "a", "label": 1},
        {"id": 2, "messages": TURNS, "label": 2.5, "tags": ["x"]},
        "no JSON",
        {"prompt": "c", "seen": True},
    )
    assert generate(source, "-o", tmp_path / "out.parquet").code == 1
    made = rows(tmp_path / "out.parquet")
    assert [(row["id"], row["label"], row["tags"], row["seen"], row["ok"]) for row in made] == [
        (1, 1.0, None, None, True),
        (2, 2.5, '["x"]', None, True),
        (3, None, None, None, False),
        (4, None, None, True, True),
    ]
    assert json.loads(made[1]["messages"]) == TURNS
    assert made[2]["error"]["message"].startswith("line 3: not JSON")


def test_a_label_fails_no_line_and_comes_back(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl({"prompt": "a", "label": 3, "metadata": {"page": 7}}, {"prompt": "b"}))
    assert [line["ok"] for line in ran.out] == [True, True]
    assert [line.get("metadata") for line in ran.out] == [{"label": 3, "page": 7}, None]
    assert pg.is_ok(pg.from_plain(ran.out[0]))


def test_a_table_becomes_lines_with_what_json_has_a_form_for(
    generate: Command, tmp_path: Path, written: Any
) -> None:
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    source = parquet(
        tmp_path / "in.parquet",
        prompt=["a"],
        at=pa.array([at], pa.timestamp("ns", "UTC")),
        raw=[b"\x00"],
        score=[float("nan")],
    )
    assert generate(source, "-o", tmp_path / "out.jsonl").code == 0
    (line,) = written(tmp_path / "out.jsonl")
    assert line["metadata"] == {
        "at": "2026-01-02 00:00:00+00:00",
        "raw": base64.b64encode(b"\x00").decode(),
        "score": "NaN",
    }


def test_csv_in_and_out(generate: Command, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    source = tmp_path / "in.csv"
    source.write_text(
        'id,prompt,images,label\n7,"a, b",good.png,x\n8,,,\n9,c,"[""good.png"",'
        ' ""good.png""]",y\n1,2,3,4,5\n'
    )
    assert generate(source, "-o", tmp_path / "out.csv").code == 1
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert (
        header
        == "id,prompt,images,label,ok,text,finish,stop,prompt_tokens,completion_tokens,error_type,error_message,error_hint"
    )
    assert lines[0].startswith(f'7,"a, b",{tmp_path}/good.png,x,true,Hello END of it,aborted,,')
    assert lines[1].startswith('8,,,,false,,,,,,InvalidRequest,"row 2: ')
    assert lines[2].startswith(f'9,c,"[""{tmp_path}/good.png"", ""{tmp_path}/good.png""]",y,true,')
    assert lines[3].startswith("4,,,,false,")
    assert lines[3].endswith(
        'InvalidRequest,"row 4: it has 5 cells, and the header has 4",correct the request at the'
        " place that the message names"
    )
    assert [len(encoded.prompt.images) for encoded in asked_of(engine)] == [1, 2]


def test_csv_out_of_a_table_has_flat_cells(generate: Command, tmp_path: Path) -> None:
    source = parquet(
        tmp_path / "in.parquet",
        messages=[TURNS],
        flag=[True],
        image=pa.array([{"bytes": b"good", "path": None}], IMAGE),
    )
    assert generate(source, "-o", tmp_path / "out.csv").code == 0
    assert (
        (tmp_path / "out.csv")
        .read_text()
        .splitlines()[1]
        .startswith('1,"[{""role"": ""user"", ""content"": ""Hi""}]",true,,true,Hello')
    )


def test_a_text_file_has_a_prompt_on_each_line(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = tmp_path / "prompts.txt"
    source.write_bytes("Once upon a time\r\n\n  Two é \n".encode() + b"\xff\n")
    ran = generate(source)
    seen = [(line["id"], line["ok"]) for line in ran.out]
    assert seen == [("1", True), ("3", True), ("4", False)]
    assert [encoded.request.prompt for encoded in asked_of(engine)] == [
        "Once upon a time",
        "  Two é ",
    ]


def test_one_question_needs_no_file(
    command: Command, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    ran = generate(
        *("--prompt", "What is it?", "--image", tmp_path / "good.png", "--system", "Be brief."),
    )
    assert [line["text"] for line in ran.out] == ["Hello END of it"]
    assert [message.role for message in engine.calls[0][0].request.messages or ()] == [
        "system",
        "user",
    ]
    assert len(engine.calls[0][0].prompt.images) == 1
    for _ in range(2):
        assert generate("--prompt", "Hi", "-o", tmp_path / "out.parquet").code == 0
    assert sum(map(len, engine.calls)) == 2
    (row,) = rows(tmp_path / "out.parquet")
    assert row["messages"] == '[{"role": "user", "content": "Hi"}]'
    assert command("export", tmp_path / "out.parquet.job", "-o", tmp_path / "again.csv").code == 0


@pytest.mark.parametrize("more", [(), ("--image", "good.png")])
def test_a_table_of_one_question_asks_the_same_when_it_is_read_again(
    more: tuple[str, ...],
    generate: Command,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.png").write_bytes(b"good")
    assert generate("--prompt", "Hi", *more, "-o", "out.parquet").code == 0
    table = pq.read_table("out.parquet")
    asked = [name for name in ("messages", "prompt", "images") if name in table.column_names]
    pq.write_table(table.select(asked), "in.parquet")
    assert generate("in.parquet", "-o", "again.jsonl").code == 0
    first, second = (call[0].prompt for call in engine.calls)
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "say what to ask: IN, a file or a folder, or --prompt with one question"),
        (["--image", "a.png"], "say what to ask"),
        (["--prompt", "a", "--sidecar", "txt"], "goes with a folder of images"),
        (["in.jsonl", "--image", "a.png"], "goes with --prompt, without IN"),
    ],
)
def test_what_does_not_go_with_one_question_is_bad_usage(
    generate: Command, engine: FakeEngine, flags: list[str], words: str
) -> None:
    ran = generate(*flags)
    assert (ran.code, engine.calls) == (2, [])
    assert words in " ".join(ran.err.split())


# Folders, exports, and what is refused


def test_a_folder_of_images_becomes_a_table_that_shows_them(
    generate: Command, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png"):
        (photos / name).write_bytes(b"good")
    assert generate(photos, "--prompt", "What?", "-o", tmp_path / "out.parquet").code == 0
    assert [(row["id"], row["image"]["path"]) for row in rows(tmp_path / "out.parquet")] == [
        (name, str(photos / name)) for name in ("a.png", "b.png")
    ]


def test_a_folder_of_tables_is_a_table(generate: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(2):
        parquet(tmp_path / "data" / f"{number}.parquet", prompt=[str(number)], label=[number])
    assert generate(tmp_path / "data", "-o", tmp_path / "out.parquet").code == 0
    assert [(row["prompt"], row["label"]) for row in rows(tmp_path / "out.parquet")] == [
        ("0", 0),
        ("1", 1),
    ]
    (tmp_path / "empty").mkdir()
    ran = generate(tmp_path / "empty", "--prompt", "What?")
    assert ran.code == 2
    assert "holds no images" in ran.err


def test_a_job_is_exported_in_every_form(
    command: Command, generate: Command, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    source = jsonl({"id": "a", "prompt": "a", "label": 1}, {"id": "b", "prompt": "b", "label": 2})
    generate(source, "-o", tmp_path / "out.jsonl")
    for name in ("x.parquet", "x.csv", "x.jsonl"):
        ran = command("export", tmp_path / "out.jsonl.job", "-o", tmp_path / name)
        assert (ran.code, ran.err) == (0, "2 of 2 requests are finished\n")
    assert [(row["id"], row["label"], row["text"]) for row in rows(tmp_path / "x.parquet")] == [
        ("a", 1, "Hello END of it"),
        ("b", 2, "Hello END of it"),
    ]
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    jsonl({"id": "a", "prompt": "a", "label": 1}, {"id": "c", "prompt": "c", "label": 3})
    assert command("export", tmp_path / "out.jsonl.job", "-o", tmp_path / "y.parquet").code == 1
    assert [row["id"] for row in rows(tmp_path / "y.parquet")] == ["a"]
    assert command("export", tmp_path / "out.jsonl.job", "-o", tmp_path / "y.xlsx").code == 2


def test_an_empty_table_is_answered_by_an_empty_one(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = parquet(tmp_path / "in.parquet", prompt=pa.array([], pa.string()))
    assert generate(source, "-o", tmp_path / "out.parquet").code == 0
    assert (rows(tmp_path / "out.parquet"), engine.calls) == ([], [])


def test_a_table_needs_a_file_to_read_and_to_write(
    generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    ran = generate("-", "-o", tmp_path / "out.parquet", stdin=b'{"prompt": "a"}')
    assert (ran.code, engine.calls) == (2, [])
    assert "takes a file as IN" in " ".join(ran.err.split())


def test_an_unreadable_table_is_bad_usage(
    generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "in.parquet").write_bytes(b"no table")
    refusals = {
        "in.parquet": "cannot be read",
        **dict.fromkeys(("gone.parquet", "gone.csv", "gone.txt"), "there is no file or folder"),
    }
    for name, words in refusals.items():
        ran = generate(tmp_path / name, "-o", tmp_path / "out.jsonl")
        assert (ran.code, engine.calls) == (2, [])
        assert words in " ".join(ran.err.split())


def test_an_old_result_stays_until_the_new_one_is_whole(
    generate: Command, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = parquet(tmp_path / "in.parquet", prompt=["a"] * 3), tmp_path / "out.parquet"
    out.write_bytes(b"precious")
    from pipegen.io import table_out

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_out.AnswerTable, "add", full)
    ran = generate(source, "-o", out, "--overwrite")
    assert (ran.code, out.read_bytes()) == (1, b"precious")
    assert "No space left on device; what is finished is kept in" in ran.err
    monkeypatch.undo()
    seen = {path.name for path in tmp_path.iterdir()}
    assert seen == {"in.parquet", "out.parquet", "out.parquet.job"}
