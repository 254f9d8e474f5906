"""`pipegen generate` over a folder of images, and the sidecars beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_ray import replaced_ray

import pipegen as pg
from pipegen.cli import generate
from pipegen.media.folder import images_in, natural
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
ASK = ("--model", "fake", "--prompt", "What is it?")


def made(folder: Path, *names: str, data: bytes = b"good") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def found(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in images_in(folder)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return made(
        tmp_path / "photos",
        "img10.png",
        "img9.PNG",
        "a.JPeG",
        "notes.txt",
        ".hidden.png",
        ".git/x.png",
        "b/2.webp",
        "b/11.webp",
        "b/c/1.tif",
    )


def test_images_come_in_natural_order_with_their_subfolders(photos: Path) -> None:
    seen = found(photos)
    assert seen == ["a.JPeG", "b/2.webp", "b/11.webp", "b/c/1.tif", "img9.PNG", "img10.png"]


@pytest.mark.parametrize(
    "names", [["2", "10", "a2", "a10", "A10b"], ["01", "1", "1a"], ["x", "x1", "x1.5", "x1.10"]]
)
def test_numbers_in_names_count_by_their_value(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(backwards, key=natural) == names


def test_links_are_followed_and_loops_end(tmp_path: Path, photos: Path) -> None:
    elsewhere = made(tmp_path / "elsewhere", "far.png", "deep/er.png")
    (photos / "loop").symlink_to(photos)
    (photos / "up").symlink_to(tmp_path)
    (photos / "b" / "again").symlink_to(photos / "b")
    (photos / "far").symlink_to(elsewhere)
    (photos / "far2").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(photos)
    (elsewhere / "itself").symlink_to(elsewhere)
    (photos / "one.png").symlink_to(elsewhere / "far.png")
    (photos / "self").symlink_to("self")
    links = [
        name for name in found(photos) if name.startswith(("far", "loop", "up", "b/again", "one"))
    ]
    assert links == ["far/deep/er.png", "far/far.png", "one.png"]


def test_what_cannot_be_read_is_named(photos: Path) -> None:
    (photos / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(photos / "pipe.png")
    assert "gone.png" in found(photos)
    assert "pipe.png" not in found(photos)


def test_one_prompt_for_all_and_the_path_for_an_id(
    command: Command, engine: FakeEngine, photos: Path, tmp_path: Path, written: Any
) -> None:
    out = tmp_path / "out.jsonl"
    ran = command("generate", photos, *ASK, "--system", "Be brief.", "-o", out)
    assert (ran.code, ran.out) == (0, [])
    assert [line["id"] for line in written(out)] == found(photos)
    prompt = engine.calls[0][0].prompt.text
    assert prompt is not None
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert prompt.index("<|image_pad|>") < prompt.index("What is it?")


def test_an_image_that_cannot_be_read_fails_alone(command: Command, photos: Path) -> None:
    (photos / "gone.png").symlink_to("nowhere.png")
    made(photos, "bad.png", data=b"broken")
    ran = command("generate", photos, *ASK)
    assert {line["id"] for line in ran.out if not line["ok"]} == {"gone.png", "bad.png"}
    assert ran.code == 1


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_a_name_that_is_no_text_is_written_and_exported(
    command: Command, tmp_path: Path, form: str
) -> None:
    folder = made(tmp_path / "photos", os.fsdecode(b"\xff.png"), "a.png")
    out, again = tmp_path / f"out.{form}", tmp_path / f"again.{form}"
    assert command("generate", folder, *ASK, "-o", out).code == 0
    assert command("export", f"{out}.job", "-o", again).code == 0
    assert again.read_bytes() == out.read_bytes()


def test_text_sidecars_hold_the_answer_just_as_it_is(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = made(tmp_path / "photos", "a.png", "b/c.d.JPG")
    engine.script = " Ein Bär.\r\n\n"
    ran = command("generate", folder, *ASK, "--sidecar", "txt")
    assert (ran.code, ran.out) == (0, [])
    assert (
        (folder / "a.txt").read_bytes()
        == (folder / "b" / "c.d.txt").read_bytes()
        == " Ein Bär.\r\n\n".encode()
    )


def test_json_sidecars_hold_the_line(command: Command, tmp_path: Path, written: Any) -> None:
    folder = made(tmp_path / "photos", "a.png")
    command(
        "generate",
        folder,
        *ASK,
        *("--sidecar", "json", "-o", tmp_path / "out.jsonl", "--samples", "2"),
    )
    assert [json.loads((folder / "a.json").read_text())] == written(tmp_path / "out.jsonl")


def test_a_failed_image_writes_no_sidecar(command: Command, tmp_path: Path) -> None:
    folder = made(made(tmp_path / "photos", "a.png"), "bad.png", data=b"broken")
    assert command("generate", folder, *ASK, "--sidecar", "txt").code == 1
    assert sorted(os.listdir(folder)) == ["a.png", "a.txt", "bad.png"]


def test_an_existing_sidecar_is_kept_and_its_image_never_reaches_the_engine(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = made(tmp_path / "photos", "a.png", "b.png")
    (folder / "a.txt").write_text("precious")
    ran = command("generate", folder, *ASK, "--sidecar", "txt", "-o", "-")
    assert (ran.code, ran.out) == (2, [])
    assert sorted(os.listdir(folder)) == ["a.png", "a.txt", "b.png"]
    assert (folder / "a.txt").read_text() == "precious"
    assert "1 of the files that are to be written exist" in ran.err
    assert not engine.calls
    assert command("generate", folder, *ASK, "--sidecar", "txt", "--overwrite").code == 0
    assert (folder / "a.txt").read_text() == "Hello END of it"


def test_a_sidecar_that_appears_in_the_meantime_is_kept(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = made(tmp_path / "photos", "a.png")

    def script(encoded: Any) -> str:
        (folder / "a.txt").write_text("precious")
        return "Hi"

    engine.script = script
    ran = command("generate", folder, *ASK, "--sidecar", "txt", "-o", "-")
    assert (ran.code, ran.out[0]["ok"], (folder / "a.txt").read_text()) == (1, False, "precious")


def test_two_images_never_share_a_sidecar(command: Command, tmp_path: Path) -> None:
    folder = made(tmp_path / "photos", "a.jpg", "a.png")
    for _ in range(2):
        ran = command("generate", folder, *ASK, "--sidecar", "txt", "--overwrite", "-o", "-")
        assert [line["ok"] for line in ran.out] == [True, False]
        assert "a.txt is the sidecar of a.jpg already" in ran.out[1]["error"]["message"]


def test_a_sidecar_that_cannot_be_written_fails_its_image(command: Command, tmp_path: Path) -> None:
    folder = made(tmp_path / "photos", "a.png", "b.png")
    (folder / "a.txt").mkdir()
    ran = command("generate", folder, *ASK, "--sidecar", "txt", "--overwrite", "-o", "-")
    assert [line["ok"] for line in ran.out] == [False, True]
    assert "a.txt cannot be written" in ran.out[0]["error"]["message"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "fake"], "--prompt"),
        ([*ASK, "--sidecar", "txt", "--samples", "2"], "--sidecar json"),
        ([*ASK, "--sidecar", "xml"], "txt or json"),
    ],
)
def test_a_folder_takes_a_prompt_and_a_sidecar_one_answer(
    command: Command, photos: Path, flags: list[str], words: str
) -> None:
    ran = command("generate", photos, *flags)
    assert ran.code == 2
    assert words in ran.err


def test_a_folder_without_images_is_bad_usage(command: Command, tmp_path: Path) -> None:
    ran = command("generate", made(tmp_path / "photos", "notes.txt"), *ASK)
    assert ran.code == 2
    assert "holds no images" in ran.err


def test_the_sidecars_of_a_job_are_its_own_and_those_of_others_are_kept(
    command: Command, engine: FakeEngine, tmp_path: Path, written: Any
) -> None:
    folder, out = made(tmp_path / "photos", "a.png", "b.png"), tmp_path / "out.jsonl"
    (folder / "b.txt").write_text("precious")
    for _ in range(2):
        ran = command("generate", folder, *ASK, "--sidecar", "txt", "-o", out)
        assert (ran.code, "b.txt" in ran.err, out.exists()) == (2, True, False)
        assert (folder / "b.txt").read_text() == "precious"
    (folder / "b.txt").unlink()
    assert command("generate", folder, *ASK, "--sidecar", "txt", "-o", out).code == 0
    (folder / "a.txt").unlink()
    assert command("generate", folder, *ASK, "--sidecar", "txt", "-o", out).code == 0
    assert (folder / "a.txt").read_text() == (folder / "b.txt").read_text() == "Hello END of it"
    assert sum(map(len, engine.calls)) == 2


def test_a_job_that_starts_again_keeps_sidecars_and_answers_until_they_may_be_replaced(
    command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    folder, out = made(tmp_path / "photos", "a.png"), tmp_path / "out.jsonl"
    flags = (folder, *ASK, "--sidecar", "txt", "-o", out)
    assert command("generate", *flags).code == 0
    good = out.read_bytes()
    ran = command("generate", *flags, "--restart")
    assert (ran.code, out.read_bytes()) == (2, good)
    assert "a.txt" in ran.err and "--restart alone keeps them" in ran.err
    assert command("generate", *flags).code == 0  # the answers are kept
    assert (out.read_bytes(), sum(map(len, engine.calls))) == (good, 1)
    (folder / "a.txt").unlink()
    assert command("generate", *flags, "--restart").code == 0
    assert command("generate", *flags, "--restart", "--overwrite").code == 0
    assert ((folder / "a.txt").is_file(), sum(map(len, engine.calls))) == (True, 3)


@pytest.mark.parametrize("form", ["txt", "json"])
@pytest.mark.parametrize("edited", [False, True])
def test_a_sidecar_with_another_answer_of_its_job_is_written_anew_and_an_edited_one_is_not(
    command: Command, engine: FakeEngine, tmp_path: Path, written: Any, form: str, edited: bool
) -> None:
    engine.script = lambda encoded: "B." if "why" in encoded.prompt.text else "A."
    folder, out = made(tmp_path / "photos", "a.png"), tmp_path / "out.jsonl"
    flags = ("generate", folder, "--model", "fake", "--sidecar", form, "-o", out)
    sidecar = folder / f"a.{form}"
    first = (*flags, "--prompt", "What is it?")
    assert command(*first).code == 0
    own = sidecar.read_bytes()
    sidecar.unlink()
    assert command(*flags, "--prompt", "And why?").code == 0
    if edited:
        sidecar.write_text("mine")
    assert command(*first).code == 0
    assert written(out)[0]["text"] == "A."
    assert sidecar.read_bytes() == (b"mine" if edited else own)
    assert sum(map(len, engine.calls)) == 2


@pytest.mark.parametrize("there", [(), ("--replicas", "2")])
def test_a_job_whose_sidecars_others_made_is_refused_before_anything_is_asked(
    command: Command,
    engine: FakeEngine,
    tmp_path: Path,
    there: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced_ray(monkeypatch)
    monkeypatch.setattr("pipegen.cli.on_ray.open_routes", lambda load: pg.route(engine))
    folder, out = made(tmp_path / "photos", "a.png", "b.png"), tmp_path / "out.jsonl"
    flags = (folder, *ASK, "--sidecar", "txt", "-o", out, *there)
    assert command("generate", *flags).code == 0
    good = out.read_bytes()
    ran = command("generate", *flags, "--temperature", "0.7")  # other answers than those beside
    assert (ran.code, out.read_bytes()) == (2, good)
    assert "--sidecar" in ran.err and "a.txt" in ran.err and "--overwrite" in ran.err
    assert sum(map(len, engine.calls)) == 2
    assert command("generate", *flags).code == 0
    assert out.read_bytes() == good


@pytest.mark.parametrize("there", [(), ("--replicas", "2")])
def test_a_sidecar_that_others_make_while_a_job_is_begun_fails_its_row(
    command: Command,
    engine: FakeEngine,
    tmp_path: Path,
    there: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced_ray(monkeypatch)
    monkeypatch.setattr("pipegen.cli.on_ray.open_routes", lambda load: pg.route(engine))
    folder, out = made(tmp_path / "photos", "a.png", "b.png"), tmp_path / "out.jsonl"
    begun = generate._begun

    def another(*given: Any, **how: Any) -> None:
        begun(*given, **how)
        (folder / "b.txt").write_text("precious")

    monkeypatch.setattr(generate, "_begun", another)
    ran = command("generate", folder, *ASK, "--sidecar", "txt", "-o", out, *there)
    assert ran.code == 1
    assert "the sidecar b.txt exists already" in ran.err
    assert (folder / "b.txt").read_text() == "precious"
    assert sum(map(len, engine.calls)) == 1
