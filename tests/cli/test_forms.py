"""What `pipegen generate` reads, by the end of its name, and what it refuses before anything is
asked.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipegen.io.jsonl import lines_of
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
MODEL = ("--model", "fake")
ROWS = [
    {"id": "a", "prompt": "[{1}, ü]"},
    {"id": "b", "prompt": 'say "]" \\', "label": [1, {"x": None}]},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CELLS = b'id,prompt\na,one\nb,"t,w\to"\n'


def words(ran: Any) -> str:
    return " ".join(ran.err.replace("│", " ").split())


def prompts(engine: FakeEngine) -> dict[str, Any]:
    return {
        str(encoded.request.id): encoded.request.prompt for call in engine.calls for encoded in call
    }


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".GZ"])
@pytest.mark.parametrize("name", ["in.jsonl", "in.ndjson", "in", "in.json"])
def test_packed_lines_are_read(
    name: str, suffix: str, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    pack: Any = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix.lower()]
    (tmp_path / f"{name}{suffix}").write_bytes(pack(LINES))
    ran = generate(tmp_path / f"{name}{suffix}")
    assert (ran.code, [line["id"] for line in ran.out]) == (0, ["a", "b"])
    assert prompts(engine) == {row["id"]: row["prompt"] for row in ROWS}


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet", "out.csv"])
def test_packed_lines_are_read_with_arrow_too(
    out: str, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(LINES)
    (tmp_path / "in.jsonl.zst").write_bytes(packed.getvalue().to_pybytes())
    for _ in range(2):
        assert generate(tmp_path / "in.jsonl.zst", "-o", tmp_path / out).code == 0
    assert prompts(engine) == {row["id"]: row["prompt"] for row in ROWS}
    assert sum(map(len, engine.calls)) == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.csv.gz", gzip.compress(CELLS, mtime=0)),
        ("IN.CSV", CELLS),
        ("in.tsv", b'id\tprompt\na\tone\nb\t"t,w\to"\n'),
    ],
)
def test_packed_cells_and_cells_between_tabs_are_read(
    name: str, data: bytes, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    assert generate(tmp_path / name, "-o", tmp_path / "out.tsv").code == 0
    assert prompts(engine) == {"a": "one", "b": "t,w\to"}
    lines = (tmp_path / "out.tsv").read_text().splitlines()
    assert [line.split("\t")[:2] for line in lines[:2]] == [["id", "prompt"], ["a", "one"]]
    assert lines[2].startswith('b\t"t,w\to"\ttrue\t')


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_json_array_is_read_item_by_item(
    indent: int | None, pack: Any, generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = tmp_path / ("in.json" if pack is bytes else "in.json.gz")
    source.write_bytes(pack(b"\xef\xbb\xbf \n" + json.dumps(ROWS, indent=indent).encode()))
    ran = generate(source)
    assert (ran.code, [(line["id"], line.get("metadata")) for line in ran.out]) == (
        0,
        [("a", None), ("b", {"label": [1, {"x": None}]})],
    )
    assert prompts(engine) == {row["id"]: row["prompt"] for row in ROWS}
    assert "2 requests" in ran.err


def test_a_wrong_item_of_an_array_fails_alone(generate: Command, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('[{"prompt": "a"}, {"prompt" "b"}, 7, {"prompt": "c"}, ]')
    ran = generate(tmp_path / "in.json")
    seen = [(line["id"], line["ok"]) for line in ran.out]
    assert seen == [("1", True), ("2", False), ("3", False), ("4", True), ("5", False)]
    assert ran.out[1]["error"]["message"].startswith("item 2: not JSON: ")
    assert (
        ran.out[2]["error"]["message"]
        == 'item 3: takes an object such as {"prompt": "Hi"}, not int'
    )


@pytest.mark.parametrize(
    ("text", "count"), [("[]", 0), (" [ ] \n", 0), ("", 0), ('[{"prompt": "a"}]', 1)]
)
def test_arrays_of_few_items(text: str, count: int, generate: Command, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(text)
    ran = generate(tmp_path / "in.json")
    assert (ran.code, len(ran.out)) == (0, count)


def test_a_batch_file_may_be_an_array(generate: Command, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    (tmp_path / "in.json").write_text(
        json.dumps(
            [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}]
        )
    )
    assert generate(tmp_path / "in.json").out[0]["custom_id"] == "a"


REFUSED = {
    "in.xlsx": (b"PK\x03\x04", "is a workbook, which is not read: save the sheet as CSV"),
    "in.xlsx.gz": (b"", "is a workbook"),
    "in.zip": (b"PK\x03\x04", "is an archive, which is not read: unpack it"),
    "in.tar.gz": (b"", "is an archive"),
    "in.parquet.gz": (
        b"",
        "is a table in a packed file: unpack it first, and give the .parquet file",
    ),
    "in.yaml": (
        b"",
        (
            "ends with .yaml, which is not read: .jsonl, .ndjson, .json, .csv, .tsv, .txt,"
            " .parquet, .pq, .arrow, .feather, .ipc, and text packed"
        ),
    ),
    "in.jsonl.bak": (LINES, "ends with .bak, which is not read"),
    "in.orc": (b"", "ends with .orc"),
    "in.jsonl": (
        gzip.compress(LINES, mtime=0),
        "begins as a gzip file does: let its name end with .gz",
    ),
    "in": (b"PAR1....", "begins as a Parquet file does: let its name end with .parquet"),
    "in.txt": ("Hi".encode("utf-16"), "begins as UTF-16 does: save it as UTF-8"),
    "in.jsonl.gz": (
        gzip.compress(LINES * 50, mtime=0)[:-20],
        "cannot be unpacked: it is cut off or damaged",
    ),
    "in.csv.bz2": (bz2.compress(CELLS)[:-5], "cannot be unpacked: it is cut off or damaged"),
    "in.ndjson.xz": (b"no xz file", "cannot be unpacked: it is cut off or damaged"),
    **{f"no.jsonl{suffix}": (b"", "has 0 bytes") for suffix in (".gz", ".bz2", ".xz", ".zst")},
    "in.json": (b'[{"prompt": "a"}', "is cut off: its array has no ] at the end"),
    "more.json": (b'[{"prompt": "a"}] {"prompt": "b"}', "has something after the end of its array"),
    "one.json": (b'{\n"data": [{"prompt": "a"}]\n}', "is neither a JSON array"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_what_is_not_read_is_refused_before_anything_is_asked(
    name: str, quiet: tuple[str, ...], generate: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    data, message = REFUSED[name]
    (tmp_path / name).write_bytes(data)
    ran = generate(tmp_path / name, "-o", tmp_path / "out.jsonl", *quiet)
    assert (ran.code, engine.calls) == (2, [])
    assert message in words(ran)
    assert not (tmp_path / "out.jsonl.job").exists()


@pytest.mark.parametrize("form", ["jsonl", "txt"])
@pytest.mark.parametrize("flags", [(), ("--map", "user=prompt")])
def test_a_line_that_is_too_long_fails_alone(
    form: str,
    flags: tuple[str, ...],
    generate: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("cli.inputs", "io.text_tables"):
        monkeypatch.setattr(f"pipegen.{module}.lines_of", partial(lines_of, limit=50))
    texts = ["a" * 60, "Hi"]
    lines = [text if form == "txt" else json.dumps({"prompt": text}) for text in texts]
    (tmp_path / f"in.{form}").write_text("\n".join(lines))
    ran = generate(tmp_path / f"in.{form}", *flags)
    assert [line["ok"] for line in ran.out] == [False, True]
    assert ran.out[0]["error"]["type"] == "InvalidRequest"
    assert ran.out[0]["error"]["message"].startswith("line 1: longer than ")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://bucket/a b.parquet", "Fetch it first: aws s3 cp 's3://bucket/a b.parquet' ."),
        ("gs://bucket/a.parquet", "Fetch it first: gcloud storage cp gs://bucket/a.parquet ."),
        (
            "hf://datasets/user/set@v1/data/a.parquet",
            "hf download user/set data/a.parquet --repo-type dataset --revision v1 --local-dir .",
        ),
        ("hf://user/set", "hf download USER/NAME --repo-type dataset --local-dir ."),
        (
            "https://me:secret@host/a.jsonl?key=secret",
            (
                "https://host/a.jsonl is an address, and files are read from this machine. Fetch it"
                " first: curl -LO https://host/a.jsonl"
            ),
        ),
        ("abfs://box/a.parquet", "Fetch it first, with the tool of its storage, and give the file"),
        ("file:///data/a.jsonl", "is an address: give the path alone, such as /data/a.jsonl"),
    ],
)
def test_an_address_is_refused_with_the_command_that_fetches_it(
    address: str,
    message: str,
    command: Command,
    generate: Command,
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    ran = generate(address, "-o", tmp_path / "out.jsonl")
    assert (ran.code, engine.calls) == (2, [])
    assert message in words(ran)
    assert "secret" not in ran.err
    ran = command("estimate", address, *MODEL)
    assert ran.code == 2
    assert message in words(ran)


@pytest.mark.parametrize(
    "out", ["s3://bucket/out.jsonl", "out.xlsx", "out.jsonl.gz", "out.json", "out.txt"]
)
def test_out_of_another_form_is_refused_before_anything_is_asked(
    out: str, generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    ran = generate(jsonl(*ROWS), "-o", out)
    assert (ran.code, engine.calls) == (2, [])
    assert (
        "is an address" in words(ran)
        if "://" in out
        else "OUT is JSON Lines (.jsonl), Parquet (.parquet), Arrow (.arrow), CSV" in words(ran)
    )


def test_whole_numbers_beside_fractions_stay_exact(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    source = jsonl(
        {"prompt": "a", "x": 2**53 + 1, "y": 2**53 + 1}, {"prompt": "b", "x": 0.5, "y": 1}
    )
    assert generate(source, "-o", tmp_path / "out.parquet").code == 0
    assert [
        (row["x"], row["y"]) for row in pq.read_table(tmp_path / "out.parquet").to_pylist()
    ] == [(str(2**53 + 1), 2**53 + 1), ("0.5", 1)]
