"""`--ray` without Ray: what is refused, and how its value is read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import pipegen as pg
from pipegen.cli.app import app
from pipegen.cli.on_ray import OnRay, gpus_of, on_ray
from pipegen.cli.usage import load_of
from pipegen.testing.fake import FakeEngine


def test_gpus_of_a_replica_take_ray(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        *("generate", jsonl({"prompt": "Hi"}), "-o", tmp_path / "out.jsonl"),
        *("--model", "embedded", "--gpus-per-replica", "2"),
    )
    assert ran.code == 2
    assert "takes --replicas or --ray too" in ran.err


def test_a_run_on_ray_takes_no_shard(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        *("generate", jsonl({"prompt": "Hi"}), "-o", tmp_path / "out.jsonl"),
        *("--model", "embedded", "--ray", "--shard", "1/2"),
    )
    assert ran.code == 2
    assert "goes without --ray: these split" in ran.err


def test_a_run_on_ray_is_a_job(command: Callable[..., Any], jsonl: Callable[..., Path]) -> None:
    ran = command("generate", "--ray", jsonl({"prompt": "Hi"}), "--model", "embedded")
    assert ran.code == 2
    assert "takes a file or a folder as IN, and a file as -o OUT" in ran.err


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_ray_that_is_missing_is_bad_usage(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    ran = command(
        *("generate", jsonl({"prompt": "Hi"}), "-o", tmp_path / "out.jsonl"),
        *("--model", "embedded", "--ray"),
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
        *("generate", "--ray", "ray://head:10001", jsonl({"prompt": "Hi"})),
        *("-o", tmp_path / "out.jsonl", "--model", "embedded"),
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


def test_replicas_alone_are_a_new_ray_on_this_machine() -> None:
    on = on_ray(None, 2, None, load_of, ())
    assert on is not None
    assert (on.address, on.replicas, on.gpus, on.flag) == ("local", 2, None, "--replicas")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_replicas_name_what_to_install_and_what_needs_no_ray(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = jsonl({"prompt": "Hi"}), tmp_path / "out.jsonl"
    ran = command("generate", source, "-o", out, "--model", "embedded", "--replicas", "2")
    words = " ".join(ran.err.split())
    assert (ran.code, out.exists()) == (2, False)
    assert re.search(r"--replicas: .*pip install .*\[ray\].* --shard I/N .* needs no Ray", words)


def test_the_number_of_a_device_is_refused(
    command: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    flags = ("-o", tmp_path / "out.jsonl", "--model", "fake", "--device", "cuda:1")
    ran = command("generate", jsonl({"prompt": "Hi"}), *flags, "--replicas", "2")
    assert ran.code == 2
    assert "goes without the number of a device, as in cuda:1" in " ".join(ran.err.split())


def replicas(n: int | None, gpus: float | None = None, address: str | None = "local") -> OnRay:
    return OnRay(lambda: pg.route(FakeEngine("a")), address, n, gpus, "--replicas")


@pytest.mark.parametrize(
    ("on", "there", "each"),
    [
        *((replicas(4), 8, 2.0), (replicas(3), 8, 2.0), (replicas(4), 0, 0.0)),
        *((replicas(4, 0.5), 2, 0.5), (replicas(4, 0), 2, 0.0), (replicas(None), 8, 1.0)),
        (replicas(4, None, "10.0.0.1:6379"), 8, 1.0),  # others may use that cluster too
        (replicas(4, None, None), 8, 1.0),
    ],
)
def test_replicas_of_a_new_ray_have_like_parts_of_its_gpus(
    on: OnRay, there: float, each: float
) -> None:
    assert gpus_of(on, there) == each


def test_more_replicas_than_gpus_are_refused_with_the_share_that_fits() -> None:
    with pytest.raises(
        typer.BadParameter, match=r"4 replicas and 3 GPUs; .* --gpus-per-replica 0\.5"
    ):
        gpus_of(replicas(4), 3)
