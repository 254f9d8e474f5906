"""`--ray` without Ray: what is refused, and how its value is read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pipegen.cli.app import app
from pipegen.cli.on_ray import on_ray
from pipegen.cli.usage import load_of


def test_gpus_of_a_replica_take_ray(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        "generate",
        jsonl({"prompt": "Hi"}),
        "-o",
        tmp_path / "out.jsonl",
        "--model",
        "embedded",
        "--gpus-per-replica",
        "2",
    )
    assert ran.code == 2
    assert "takes --ray too" in ran.err


def test_a_run_on_ray_takes_no_shard(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        "generate",
        jsonl({"prompt": "Hi"}),
        "-o",
        tmp_path / "out.jsonl",
        "--model",
        "embedded",
        "--ray",
        "--shard",
        "1/2",
    )
    assert ran.code == 2
    assert "splits the rows itself" in ran.err


def test_a_run_on_ray_is_a_job(command: Callable[..., Any], jsonl: Callable[..., Path]) -> None:
    ran = command("generate", "--ray", jsonl({"prompt": "Hi"}), "--model", "embedded")
    assert ran.code == 2
    assert "takes a file as IN and a file as OUT" in ran.err


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_ray_that_is_missing_is_bad_usage(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        "generate",
        jsonl({"prompt": "Hi"}),
        "-o",
        tmp_path / "out.jsonl",
        "--model",
        "embedded",
        "--ray",
    )
    assert ran.code == 2
    assert "[ray]" in ran.err


def test_without_rows_to_ask_ray_is_not_started(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path, written: Any
) -> None:
    source, out = jsonl({"prompt": "Hi"}, "no JSON"), tmp_path / "out.jsonl"
    before = command("generate", source, "-o", out, "--model", "embedded")
    lines = out.read_bytes()
    ran = command("generate", source, "-o", out, "--model", "embedded", "--ray")
    assert (ran.code, before.code) == (1, 1)
    assert out.read_bytes() == lines
    assert "1 finished before" in ran.err


def test_the_address_may_be_left_out() -> None:
    assert on_ray(None, None, None, load_of, ()) is None
    assert [
        getattr(on_ray(address, 2, 0.5, load_of, ()), "address", "none")
        for address in ("", "local", "10.0.0.1:6379")
    ] == [None, "local", "10.0.0.1:6379"]


def test_a_client_of_a_cluster_is_told_to_send_the_command_there(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        "generate",
        "--ray",
        "ray://head:10001",
        jsonl({"prompt": "Hi"}),
        "-o",
        tmp_path / "out.jsonl",
        "--model",
        "embedded",
    )
    assert ran.code == 2
    assert "ray job submit" in ran.err


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "name", ["many-machines.md", "examples/ray.sbatch", "examples/rayjob.yaml"]
)
def test_the_commands_of_the_page_and_of_the_cluster_files_have_flags_that_are_there(
    name: str,
) -> None:
    commands = [
        line
        for line in (DOCS / name).read_text(encoding="utf-8").splitlines()
        if "pipegen generate " in line and " -o " in line
    ]
    known = {
        flag
        for parameter in get_command(app).commands["generate"].params
        for flag in parameter.opts
    }  # type: ignore[attr-defined]
    assert commands
    assert {
        flag
        for line in commands
        for flag in re.findall(
            r"(?<=\s)--[a-z-]+(?=[\s=]|$)", line.partition("pipegen generate")[2]
        )
    } <= known
