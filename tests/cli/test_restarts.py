"""A job that goes on reads the requests of finished rows no more, whatever the form of its input,
and a shard none of those of the others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.fake_ray import replaced_ray

import pipegen as pg
from pipegen.cli.sources import stamp_of
from pipegen.drivers.arguments import record_of
from pipegen.io.text_tables import csv_count
from pipegen.jobs import job_rows, key_map
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
COUNT = 60
ROWS: list[dict[str, Any]] = [
    {"id": f"row {number}", "prompt": f"say {number}", "label": str(number % 7)}
    for number in range(COUNT)
]


@pytest.fixture
def asked() -> list[str]:
    """The ids of the rows that were asked."""
    return []


@pytest.fixture
def engine(asked: list[str]) -> FakeEngine:
    def answer(encoded: Encoded) -> str:
        asked.append(str(encoded.request.id))
        return f"re: {encoded.request.prompt}<|im_end|>"

    return FakeEngine(answer)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that jobs have made records of."""
    seen: list[Any] = []

    def noted(one: Any) -> Any:
        seen.append(one)
        return record_of(one)

    monkeypatch.setattr(job_rows, "record_of", noted)
    return seen


def write(folder: Path, form: str, given: list[dict[str, Any]]) -> Path:
    """An input of these rows."""
    file = folder / f"in.{form}"
    if form in ("csv", "tsv"):
        tab = "," if form == "csv" else "\t"
        cells = [list(ROWS[0]), *(list(row.values()) for row in given)]
        file.write_text("".join(tab.join(line) + "\n" for line in cells))
    elif form in ("parquet", "arrow"):
        pa = pytest.importorskip("pyarrow")
        import pyarrow.feather
        import pyarrow.parquet

        table = pa.table(
            {
                "id": [row["id"] for row in given],
                "messages": [[{"role": "user", "content": row["prompt"]}] for row in given],
                "label": [row["label"] for row in given],
            }
        )
        if form == "parquet":
            pyarrow.parquet.write_table(table, file, row_group_size=7)
        else:
            pyarrow.feather.write_feather(table, str(file))
    elif form == "txt":
        file.write_text("".join(row["prompt"] + "\n" for row in given))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in given))
    return file


FORMS = ("parquet", "arrow", "csv", "tsv", "jsonl", "txt")


@pytest.fixture
def generate(command: Command, tmp_path: Path) -> Command:
    out = tmp_path / "out.jsonl"
    return lambda source, *flags: command("generate", source, "-o", out, "--model", "fake", *flags)


@pytest.mark.parametrize("form", FORMS)
def test_finished_rows_of_a_table_are_written_again_and_not_read_as_requests(
    form: str, generate: Command, asked: list[str], read: list[Any], tmp_path: Path
) -> None:
    source = write(tmp_path, form, ROWS)
    assert generate(source).code == 0
    first = (tmp_path / "out.jsonl").read_bytes()
    asked.clear()
    read.clear()
    assert generate(source).code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == first
    assert (asked, read) == ([], [])


@pytest.mark.parametrize("form", ["parquet", "csv", "txt", "jsonl"])
@pytest.mark.parametrize("shard", [None, 3])
@pytest.mark.parametrize("same", [True, False])
def test_a_missing_row_of_a_table_is_asked_before_others_are_read(
    form: str,
    shard: int | None,
    same: bool,
    generate: Command,
    asked: list[str],
    read: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = write(tmp_path, form, ROWS)
    generate(source)
    job = tmp_path / "out.jsonl.job"
    (results,) = job.glob("results-*.jsonl")
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:-1]))
    if not same:  # what the input is compared with
        (job / key_map.INPUT).unlink()
    monkeypatch.setattr("pipegen.jobs.kept_turns.WAITING", 4)
    read.clear()
    asked.clear()
    for number in range(1, (shard or 1) + 1):
        flags = () if shard is None else ("--shard", f"{number}/{shard}")
        assert generate(source, *flags).code == 0
    last = str(COUNT) if form == "txt" else f"row {COUNT - 1}"
    assert asked == [last]
    assert len(read) <= 2 * (shard or 1)


def test_a_file_that_is_as_it_was_is_not_counted_again(
    generate: Command, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def count(path: str) -> int:
        counted.append(path)
        return csv_count(path)

    monkeypatch.setattr("pipegen.cli.sources.csv_count", count)
    source, known = write(tmp_path, "csv", ROWS), tmp_path / "out.jsonl.job" / key_map.INPUT
    assert [generate(source).code, generate(source).code] == [0, 0]
    assert len(counted) == 1
    write(tmp_path, "csv", [*ROWS, {**ROWS[0], "id": "more"}])
    assert [generate(source).code, generate(source).code] == [0, 0]
    assert len(counted) == 2
    for damaged in (b"[1]", b"{", b"7", b""):
        known.write_bytes(damaged)
        assert generate(source).code == 0
    assert (len(counted), len(asked)) == (6, COUNT + 1)


def test_a_file_that_was_changed_and_cut_off_is_refused(
    generate: Command, asked: list[str], tmp_path: Path
) -> None:
    source = write(tmp_path, "csv", ROWS)
    assert generate(source).code == 0
    source.write_text(source.read_text()[:-1] + '\n1,"and')
    ran = generate(source)
    assert (ran.code, len(asked)) == (2, COUNT)
    assert "unexpected end of data" in ran.err


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_only_seems_to_be_as_it_was_gives_its_own_rows(
    form: str, generate: Command, command: Command, asked: list[str], tmp_path: Path
) -> None:
    """Another one of the same size and time: what is known of the first is a hint."""
    source = write(tmp_path, form, ROWS)
    assert generate(source).code == 0
    before, size = source.stat(), source.stat().st_size
    known = (tmp_path / "out.jsonl.job" / key_map.INPUT).read_bytes()
    changed = [{**row, "prompt": row["prompt"].replace("say", "ask")} for row in ROWS[::2]]
    rows = [*changed, *ROWS[1::2]][::-1]
    write(tmp_path, form, rows)
    if source.stat().st_size != size:  # of a packed form
        stamp = stamp_of(source)
        known = json.dumps([stamp, *json.loads(known)[1:]]).encode()
        (tmp_path / "out.jsonl.job" / key_map.INPUT).write_bytes(known)
    else:
        os.utime(source, ns=(before.st_mtime_ns, before.st_mtime_ns))
    asked.clear()
    assert generate(source).code == 0
    assert len(asked) == len(changed)
    written = (tmp_path / "out.jsonl").read_bytes()
    assert command("generate", source, "-o", tmp_path / "new.jsonl", "--model", "fake").code == 0
    assert (tmp_path / "new.jsonl").read_bytes() == written


@pytest.mark.parametrize("form", FORMS)
def test_replicas_read_no_request_of_a_finished_row_again(
    form: str,
    generate: Command,
    engine: FakeEngine,
    asked: list[str],
    read: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced_ray(monkeypatch)
    monkeypatch.setattr("pipegen.cli.on_ray.open_routes", lambda load: pg.route(engine))
    source, flags = write(tmp_path, form, ROWS), ("--replicas", "2")
    assert generate(source, *flags).code == 0
    first = (tmp_path / "out.jsonl").read_bytes()
    assert len(asked) == len(read) == COUNT
    results = max(
        (tmp_path / "out.jsonl.job").glob("results-*.jsonl"), key=lambda f: f.stat().st_size
    )
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:-1]))
    for missing in (1, 0):
        read.clear()
        asked.clear()
        ran = generate(source, *flags)
        assert (ran.code, len(asked)) == (0, missing)
        assert f"{COUNT - missing} finished before" in ran.err
        assert len(read) == 2 * missing  # ahead of the others, and in its turn
        assert (tmp_path / "out.jsonl").read_bytes() == first


def test_shards_read_no_request_of_a_finished_job_again(
    generate: Command, command: Command, asked: list[str], read: list[Any], tmp_path: Path
) -> None:
    source = write(tmp_path, "jsonl", [*ROWS, *ROWS[:10]])
    for number in (1, 2, 3):
        assert generate(source, "--shard", f"{number}/3").code == 0
    assert len(asked) == COUNT + 10
    read.clear()
    for shards in (3, 2):
        done = [generate(source, "--shard", f"{n}/{shards}") for n in range(1, shards + 1)]
        reused = [int(ran.err.split(" succeeded")[0].split()[-1]) for ran in done]
        assert sum(reused) == COUNT + 10
        assert min(reused) > 0
    assert len(asked) == COUNT + 10
    # the second of two equal requests is read: its key is not the one that the map has
    assert len(read) == 20
    job = tmp_path / "out.jsonl.job"
    assert command("export", job, "-o", tmp_path / "out.jsonl").code == 0
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == COUNT + 10


def test_the_map_tells_the_shard_that_the_request_tells(generate: Command, tmp_path: Path) -> None:
    source = write(tmp_path, "csv", ROWS)
    generate(source, "--shard", "2/2")
    data = (tmp_path / "out.jsonl.job" / key_map.KEY_MAP).read_bytes()
    entries = [data[at : at + 44] for at in range(0, len(data), 44)]
    shards = [key_map.number_in(entry) % 4 + 1 for entry in entries]
    given = [{"id": row["id"], "prompt": row["prompt"]} for row in ROWS]
    for number in range(1, 5):
        wanted = [
            name for name, _ in pg.shard_keyed([(row["id"], row) for row in given], number, 4)
        ]
        assert [
            row["id"] for row, shard in zip(ROWS, shards, strict=True) if shard == number
        ] == wanted


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_of_a_table_with_images_are_read_again_and_reused(
    form: str, command: Command, asked: list[str], read: list[Any], tmp_path: Path
) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    file = tmp_path / f"in.{form}"
    if form == "csv":
        file.write_text("id,prompt,image\n1,What is it?,a.png\n2,Say hi.,\n")
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        values = {"id": ["1", "2"], "prompt": ["What is it?", "Say hi."], "image": ["a.png", None]}
        pyarrow.parquet.write_table(pa.table(values), file)
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        read.clear()
        ran = command("generate", file, "-o", out, "--model", "fake")
        assert ran.code == 0, ran.err
    assert sorted(asked) == ["1", "2"]
    assert len(read) > 0


def test_a_folder_of_the_plain_pipeline_is_gone_on_with(
    generate: Command, engine: FakeEngine, asked: list[str], tmp_path: Path
) -> None:
    given = [{"id": row["id"], "prompt": row["prompt"]} for row in ROWS]
    options = {"max_new_tokens": 16}
    with pg.job(pg.route(engine), given[:-1], tmp_path / "out.jsonl.job", options) as running:
        assert len(list(running)) == COUNT - 1
    asked.clear()
    ran = generate(write(tmp_path, "jsonl", ROWS), "--max-new-tokens", "16")
    assert (ran.code, asked) == (0, [f"row {COUNT - 1}"])
    assert f"{COUNT - 1} finished before" in ran.err


def test_the_stamp_of_a_file_changes_with_its_size_and_with_its_time(tmp_path: Path) -> None:
    def stamp(text: str, nanoseconds: int) -> str:
        file = tmp_path / "in.jsonl"
        file.write_text(text)
        os.utime(file, ns=(0, nanoseconds))
        return stamp_of(file)

    first = stamp("one", 1_000)
    assert stamp("two", 1_000) == first
    assert stamp("three", 1_000) != first
    assert stamp("one", 2_000) != first


def test_what_others_wrote_to_out_meanwhile_stays(
    command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def script(encoded: Any) -> str:
        out.write_text("precious")
        return "Hi<|im_end|>"

    engine.script = script
    flags = (jsonl({"prompt": "a"}, {"prompt": "b"}), "--model", "fake", "-o", out)
    ran = command("generate", *flags)
    assert (ran.code, out.read_text()) == (2, "precious")
    assert "written by others in the meantime" in ran.err
    assert f"pipegen export {out}.job -o FILE" in ran.err
    other = tmp_path / "other.jsonl"
    assert command("export", f"{out}.job", "-o", other).code == 0
    assert len(other.read_text().splitlines()) == 2


def test_an_input_that_changes_and_a_job_that_vanishes_are_said(
    command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    out, requests = tmp_path / "out.jsonl", jsonl({"prompt": "a"}, {"prompt": "b"})

    def change(encoded: Any) -> str:
        requests.write_text(requests.read_text() + "\n\n")
        return "Hi<|im_end|>"

    engine.script = change
    ran = command("generate", requests, "--model", "fake", "-o", out)
    assert (ran.code, "was changed during the run" in ran.err) == (0, True)
    assert "was changed" not in command("generate", requests, "--model", "fake", "-o", out).err

    def remove(encoded: Any) -> str:
        shutil.rmtree(f"{out}.job", ignore_errors=True)
        return "Hi<|im_end|>"

    engine.script = remove
    ran = command("generate", requests, "--model", "fake", "-o", out, "--temperature", "0.7")
    assert (ran.code, f"{out}.job was removed during the run" in ran.err) == (1, True)
    assert [line["ok"] for line in written(out)] == [True, True]
