"""Which files of this machine the rows of IN may name: those below its own folder, unless a flag
names another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
MODEL = ("--model", "fake", "--quiet")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of requests that other people wrote, beside an image that is none of their
    business.
    """
    folder = tmp_path / "theirs"
    (folder / "images").mkdir(parents=True)
    for path in (folder / "images" / "good.png", tmp_path / "private.png"):
        path.write_bytes(b"good")
    (folder / "link.png").symlink_to(tmp_path / "private.png")
    (folder / "inside.png").symlink_to(folder / "images" / "good.png")
    return folder


def outside(folder: Path) -> list[str]:
    """Ways to name the image that is not below the folder."""
    private = folder.parent / "private.png"
    return [
        str(private),
        private.as_uri(),
        "../private.png",
        "images/../../private.png",
        "link.png",
        f"{folder}/../private.png",
    ]


def inside(folder: Path) -> list[str]:
    image = folder / "images" / "good.png"
    return [
        "images/good.png",
        "./images/../images/good.png",
        "inside.png",
        str(image),
        image.as_uri(),
    ]


def chat(image: str) -> dict[str, Any]:
    return {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": image}},
                    {"type": "text", "text": "What?"},
                ],
            }
        ]
    }


def batch(image: str) -> dict[str, Any]:
    return {
        "custom_id": image,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": chat(image),
    }


def write(source: Path, images: list[str]) -> Path:
    """A file of requests that name these images, one each, in the form that its name says."""
    rows: list[dict[str, Any]] = [{"prompt": "What?", "images": [image]} for image in images]
    if source.name.startswith("batch"):
        rows = [
            batch(image if "://" in image else f"file://{source.parent / image}")
            for image in images
        ]
    if source.name.startswith("chat"):
        rows = [
            chat(image if "://" in image else f"file://{source.parent / image}") for image in images
        ]
    if source.suffix == ".json":
        source.write_text(json.dumps(rows))
    elif source.suffix == ".csv":
        source.write_text("prompt,image\n" + "".join(f"What?,{image}\n" for image in images))
    elif source.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"prompt": ["What?"] * len(images), "image": images}), source)
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return source


NAMES = ["in.jsonl", "batch.jsonl", "chat.jsonl", "in.json", "in.csv", "in.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_images_below_the_folder_of_their_file(
    name: str, theirs: Path, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    ran = command(
        "generate", write(theirs / name, inside(theirs)), "-o", tmp_path / "out.jsonl", *MODEL
    )
    assert (ran.code, sum(map(len, engine.calls))) == (0, len(inside(theirs)))


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_no_other_files(
    name: str, theirs: Path, command: Command, engine: FakeEngine, tmp_path: Path, written: Any
) -> None:
    ran = command(
        "generate", write(theirs / name, outside(theirs)), "-o", tmp_path / "out.jsonl", *MODEL
    )
    assert (ran.code, engine.calls) == (1, [])
    for line in written(tmp_path / "out.jsonl"):
        error = line["error"]["error"] if "custom_id" in line else line["error"]
        assert f"is outside '{theirs}'" in error["message"]
        assert "--image-root DIR" in error["hint"]


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_names_another_folder(
    name: str, theirs: Path, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source = write(
        theirs / name, [str(tmp_path / "private.png"), (tmp_path / "private.png").as_uri()]
    )
    for root in (tmp_path, "/"):
        assert (
            command(
                *("generate", source, "-o", tmp_path / "out.jsonl", "--image-root", root),
                "--restart",
                *MODEL,
            ).code
            == 0
        )
    assert sum(map(len, engine.calls)) == 4


def test_a_file_in_the_working_directory_names_images_below_it(
    theirs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(theirs / "in.jsonl", ["images/good.png", "../private.png"])
    monkeypatch.chdir(theirs)
    assert [line["ok"] for line in command("generate", "in.jsonl", *MODEL).out] == [True, False]


def test_lines_from_stdin_name_images_below_the_working_directory(
    theirs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(theirs)
    lines = "".join(
        json.dumps({"prompt": "What?", "images": [image]}) + "\n"
        for image in ("images/good.png", *outside(theirs))
    ).encode()
    ran = command("generate", "-", *MODEL, stdin=lines)
    assert [line["ok"] for line in ran.out] == [True, *[False] * len(outside(theirs))]


def test_lines_from_a_pipe_name_images_below_the_working_directory(
    theirs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(theirs)
    reader, writer = os.pipe()
    os.write(
        writer,
        b'{"prompt": "What?", "images": ["images/good.png"]}\n{"prompt": "What?", "images":'
        b' ["../private.png"]}\n',
    )
    os.close(writer)
    ran = command("generate", f"/dev/fd/{reader}", *MODEL)
    os.close(reader)
    assert [line["ok"] for line in ran.out] == [True, False]


def test_images_that_the_user_names_may_be_anywhere(
    theirs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(theirs)
    assert command("generate", "--prompt", "What?", "--image", "../private.png", *MODEL).code == 0
    ran = command("generate", theirs, "--prompt", "What?", *MODEL)
    assert [line["ok"] for line in ran.out] == [True] * 3


def test_an_export_and_a_page_follow_the_rule_of_the_run(
    theirs: Path, command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    source, out = (
        write(theirs / "in.jsonl", ["images/good.png", "../private.png"]),
        tmp_path / "out.jsonl",
    )
    assert command("generate", source, "-o", out, *MODEL).code == 1
    ran = command("export", f"{out}.job", "-o", tmp_path / "again.jsonl")
    assert (ran.code, "1 of 2 requests are finished" in ran.err) == (1, True)
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    assert (
        json.loads((tmp_path / "out.jsonl.job" / "command.json").read_text())["image_root"] is None
    )
    assert command("view", out, "--input", source).code == 0
    page = (tmp_path / "out.html").read_text()
    assert "is outside" in page


def test_an_image_as_in_is_that_of_the_one_question(generate: Any, engine: Any) -> None:
    image = "docs/examples/shapes.png"
    ran = generate(image, "--prompt", "What is it?")
    assert ran.code == 0
    alone = generate("--prompt", "What is it?", "--image", image)
    assert ran.out == alone.out
    assert len(ran.out[0]["image_digests"]) == 1
    both = generate(image, "--image", image, "--prompt", "What is it?")
    assert len(both.out[0]["image_digests"]) == 2


def test_an_image_as_in_takes_a_question(generate: Any) -> None:
    ran = generate("docs/examples/shapes.png")
    assert ran.code == 2
    assert "is an image: say what to ask of it" in " ".join(ran.err.replace("│", " ").split())
