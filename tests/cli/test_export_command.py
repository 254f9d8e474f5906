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


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("rooted", [False, True])
def test_a_job_is_exported_from_any_working_directory(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, rooted: bool
) -> None:
    """The folder that it is exported from has another image of the same name."""
    for name in ("here", "there"):
        (tmp_path / name / "images").mkdir(parents=True)
        (tmp_path / name / "images" / "a.png").write_bytes(name.encode())
    monkeypatch.chdir(tmp_path / "here")
    image = ("a.png", "--image-root", "images") if rooted else ("images/a.png",)
    asked = ("--prompt", "What is it?", "--image", *image, "--image", "data:image/png;base64,aGk=")
    out, again = tmp_path / f"o.{form}", tmp_path / f"again.{form}"
    assert command("generate", *asked, "-o", out, "--model", "f").code == 0
    monkeypatch.chdir(tmp_path / "there")
    ran = command("export", f"{out}.job", "-o", again)
    assert (ran.code, ran.err) == (0, "1 of 1 requests are finished\n")
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("field", ["images", "videos"])
def test_an_answer_whose_image_is_gone_is_not_finished(
    command: Run, jsonl: Any, tmp_path: Path, written: Any, field: str
) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    source = jsonl(*({"prompt": "What is it?", field: [name]} for name in "ab"), {"messages": 1})
    out = tmp_path / "o.jsonl"
    assert command("generate", source, "-o", out, "--model", "f").code == 1
    ran = command("export", f"{out}.job", "-o", tmp_path / "all.jsonl")
    assert (ran.code, ran.err) == (0, "3 of 3 requests are finished\n")
    (tmp_path / "b").unlink()
    ran = command("export", f"{out}.job", "-o", tmp_path / "some.jsonl")
    assert ran.code == 1
    assert "2 of 3 requests are finished; of 1 the images or videos cannot be read" in ran.err
    lines, before = written(tmp_path / "some.jsonl"), written(out)
    assert (lines[0], lines[2]) == (before[0], before[2])
    assert lines[1]["error"]["type"] == ("BadImage" if field == "images" else "BadVideo")


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
