"""`pipegen export`: what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

Run = Callable[..., Any]


@pytest.fixture
def finished(command: Run, jsonl: Any, tmp_path: Path) -> Path:
    """The folder of a finished job."""
    assert (
        command("generate", jsonl({"prompt": "Hi"}), "-o", tmp_path / "o", "--model", "f").code == 0
    )
    return tmp_path / "o.job"


@pytest.mark.parametrize(
    "values",
    [
        *({"source": 3}, {"model": None}, {"columns": 5}, {"columns": {"prompt": 5}}),
        *({"kept": "ab"}, {"images": [1]}, {"policy": [1]}, {"policy": {"max_stops": "many"}}),
        *({"allowed_hosts": 7}, {"allow_http": "yes"}, {"brief": None}, {"image_root": ["a"]}),
        *({"image_root": ""}, {"odd": 1}),
    ],
)
def test_a_damaged_command_is_said_in_a_line(values: Any, command: Run, finished: Path) -> None:
    path = finished / "command.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    ran = command("export", finished)
    assert ran.code == 2
    assert f"{path} is damaged, or of another version of pipegen" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b"{", b"\xff{}", b'{"source": null}', b"\0" * 99]
)
def test_a_command_that_is_none_is_said_in_a_line(
    data: bytes, command: Run, finished: Path
) -> None:
    (finished / "command.json").write_bytes(data)
    ran = command("export", finished)
    assert (ran.code, "Traceback" in ran.err) == (2, False)
    assert "command.json" in ran.err


def test_stdin_is_no_place_that_an_input_was_moved_to(command: Run, finished: Path) -> None:
    ran = command("export", finished, "--input", "-")
    assert ran.code == 2
    assert "takes the file or the folder of the input, not stdin" in ran.err


def test_a_csv_that_is_cut_off_is_refused_before_anything_is_asked(
    generate: Run, engine: FakeEngine, tmp_path: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("prompt\nHi\n" * 20 + 'prompt\n"cut off\nand more')
    ran = generate(source, "-o", tmp_path / "o.jsonl")
    assert (ran.code, engine.calls) == (2, [])
    assert "in.csv, up to line" in ran.err


def test_what_a_job_read_and_is_gone_is_named(
    command: Run, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    root, out = tmp_path / "images", tmp_path / "o.jsonl"
    root.mkdir()
    source = jsonl({"prompt": "Hi"})
    assert command("generate", source, "-o", out, "--model", "f", "--image-root", root).code == 0
    root.rmdir()
    ran = command("export", f"{out}.job")
    assert ran.code == 2
    assert f"there is no folder '{root}', the job's --image-root" in " ".join(ran.err.split())
    assert command("view", out, "-o", tmp_path / "page.html").code == 0
    root.mkdir()
    source.unlink()
    ran = command("export", f"{out}.job")
    assert ran.code == 2
    assert "--input says where it is now" in " ".join(ran.err.split())


def test_the_job_of_a_program_says_how_its_rows_are_read(command: Run, tmp_path: Path) -> None:
    with pg.job(pg.route(FakeEngine("yes")), [{"prompt": "Hi"}], tmp_path / "own.job") as job:
        assert all(map(pg.is_ok, job))
    ran = command("export", tmp_path / "own.job")
    assert ran.code == 2
    assert "pg.finished_rows(folder, pairs)" in " ".join(ran.err.split())


def test_an_input_in_a_folder_that_does_not_exist_is_said_in_a_line(
    command: Run, tmp_path: Path
) -> None:
    ran = command("generate", tmp_path / "no" / "in.jsonl", "--model", "f")
    assert (ran.code, "Traceback" in ran.err) == (2, False)
    assert "in.jsonl" in ran.err


def test_a_file_of_results_in_the_place_of_its_job_is_told_the_folder(
    command: Any, generate: Any, jsonl: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert generate(jsonl({"id": "a", "prompt": "a"}), "-o", out).code == 0
    ran = command("export", out)
    assert ran.code == 2
    assert f"its job is {out}.job" in "".join(ran.err.replace("│", " ").split("\n")).replace(
        "  ", " "
    )
    (lonely := tmp_path / "lonely.jsonl").write_text("{}")
    ran = command("export", lonely)
    assert (ran.code, "there is no job of it" in " ".join(ran.err.split())) == (2, True)
