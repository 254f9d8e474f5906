"""Adapters over one file: asked, verified, exported, and asked again where one has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from support.adapters import write_adapter

from pipegen.cli.usage import open_routes

Command = Callable[..., Any]
MODEL = ("--model", "embedded", "--quiet")
NAMES = ("a", "b", "")


@pytest.fixture
def command(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with the model that it names."""
    monkeypatch.setattr("pipegen.cli.generate.open_routes", open_routes)
    return command


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, str]:
    return {name: write_adapter(tmp_path / name, seed) for seed, name in enumerate("ab")}


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    file = tmp_path / "in.jsonl"
    rows = [
        {"id": f"r{row}", "prompt": "Name a colour.", "options": {"adapter": NAMES[row % 3]}}
        for row in range(6)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


DRAWN = ("--temperature", "1", "--seed", "1")


@pytest.mark.parametrize("drawn", [(), DRAWN])
def test_a_file_with_adapters_is_verified_with_them(
    drawn: tuple[str, ...],
    command: Command,
    adapters: dict[str, str],
    requests: Path,
    tmp_path: Path,
) -> None:
    out, given = tmp_path / "out.jsonl", ("--adapters", json.dumps(adapters))
    length = ("--max-new-tokens", "8", "--ignore-eos")
    made = command("generate", requests, "-o", out, *MODEL, *given, *length, *drawn)
    assert made.code == 0, made.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["options"]["adapter"] for line in lines] == [*NAMES, *NAMES]
    assert len({tuple(line["token_ids"]) for line in lines}) == 3
    right = command("verify", out, requests, *MODEL, *given, "--json")
    assert (right.code, right.out[0]["counts"]) == (0, {"right": 6})
    if drawn:  # any token may be
        return
    swapped = json.dumps({"a": adapters["b"], "b": adapters["a"]})
    wrong = command("verify", out, requests, *MODEL, "--adapters", swapped, "--json")
    assert wrong.code == 1
    assert [row["verdict"] == "right" for row in wrong.out[0]["rows"]] == [
        name == "" for name in (*NAMES, *NAMES)
    ]
    without = command("verify", out, requests, *MODEL, "--json")
    assert without.out[0]["counts"] == {"not judged": 4, "right": 2}
    assert "has no adapter 'a': it was given none" in json.dumps(without.out)
    exported = tmp_path / "exported.jsonl"
    assert command("export", f"{out}.job", "-o", exported).code == 0
    assert exported.read_bytes() == out.read_bytes()


def test_only_rows_of_an_adapter_that_has_changed_are_asked_again(
    command: Command, adapters: dict[str, str], requests: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def asked(**more: str) -> int:
        given = ("--adapters", json.dumps({**adapters, **more}), "--max-new-tokens", "4")
        ran = command("generate", requests, "-o", out, *MODEL, *given, "--summary", tmp_path / "s")
        assert ran.code == 0, ran.err
        reused: int = json.loads((tmp_path / "s").read_text())["reused"]
        return 6 - reused

    assert asked() == 6
    assert asked() == 0
    moved = tmp_path / "moved"
    Path(adapters["a"]).rename(moved)
    assert asked(a=str(moved)) == 0  # its content counts, not its place
    assert asked(a=write_adapter(tmp_path / "new", 7)) == 2


def test_the_adapter_of_all_rows_of_a_file_is_given_to_verify(
    command: Command, adapters: dict[str, str], tmp_path: Path
) -> None:
    asked, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"
    asked.write_text('{"id": "a", "prompt": "Name a colour."}\n')
    given = ("--adapter", adapters["a"])
    assert command("generate", asked, "-o", out, *MODEL, *given, "--max-new-tokens", "8").code == 0
    assert command("verify", out, *MODEL, *given).code == 0
    assert command("verify", out, *MODEL).code == 1


def test_adapters_are_for_files(command: Command) -> None:
    ran = command("verify", "http://127.0.0.1:1", *MODEL, "--adapter", "a")
    assert (ran.code, "--adapter: is for files" in ran.err) == (2, True)
