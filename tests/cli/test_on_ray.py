"""`--ray` without Ray: what is refused, and how its value is read."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from support.fake_ray import replaced_ray
from typer.main import get_command

import pipegen as pg
from pipegen.cli.app import app
from pipegen.cli.on_ray import OnRay, _size, gpus_of, on_ray
from pipegen.cli.usage import load_of
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.jobs import ray_actors
from pipegen.testing.fake import FakeEngine

RAY_IS_HERE = pytest.mark.skipif(
    importlib.util.find_spec("ray") is not None, reason="Ray is installed here"
)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpus-per-replica", "2"), "takes --replicas or --ray too"),
        (("--ray", "--shard", "1/2"), "goes without --ray: these split"),
        (("--ray", "ray://head:10001"), "ray job submit"),
        pytest.param(("--ray",), "[ray]", marks=RAY_IS_HERE),
    ],
)
def test_what_does_not_go_with_ray_is_bad_usage(
    flags: tuple[str, ...],
    words: str,
    command: Callable[..., Any],
    jsonl: Callable[..., Path],
    tmp_path: Path,
) -> None:
    ran = command(
        *("generate", jsonl({"prompt": "Hi"}), "-o", tmp_path / "out.jsonl"),
        *("--model", "embedded", *flags),
    )
    assert ran.code == 2
    assert words in ran.err


def test_a_run_on_ray_is_a_job(command: Callable[..., Any], jsonl: Callable[..., Path]) -> None:
    ran = command("generate", "--ray", jsonl({"prompt": "Hi"}), "--model", "embedded")
    assert ran.code == 2
    assert "takes a file or a folder as IN, and a file as -o OUT" in ran.err


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


@RAY_IS_HERE
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


class Cluster:
    """As much of Ray as is needed to connect to it."""

    def __init__(self, init: Callable[..., Any]) -> None:
        self.init, self.is_initialized, self.shutdown = init, lambda: False, lambda: None


def connecting(monkeypatch: pytest.MonkeyPatch, init: Callable[..., Any], address: Any) -> Any:
    monkeypatch.setattr(ray_actors, "itself", lambda: Cluster(init))
    monkeypatch.setattr(ray_actors, "need", lambda *given: None)
    return ray_actors.connect(address, quiet=True)


def test_an_address_where_nothing_listens_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        ConnectionError, match=f"no cluster of Ray .* at 127.0.0.1:{port}: .*refused"
    ):
        connecting(monkeypatch, lambda address, **how: asked.append(address), f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=f"at 127.0.0.1:{port}"):
        connecting(monkeypatch, lambda address, **how: asked.append(address), None)
    assert asked == []


def test_a_cluster_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors, "CONNECTING", 0.05)
    ended = threading.Event()
    with pytest.raises(ConnectionError, match="at head: no answer"):
        connecting(monkeypatch, lambda address, **how: ended.wait(60), "head")
    ended.set()


def test_a_cluster_of_another_version_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(address: str, **how: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster has:\n    Ray: 2.50\nThis has:\n    2.60")

    with pytest.raises(ConnectionError) as refused:
        connecting(monkeypatch, init, "head")
    words = "Version mismatch: The cluster has: Ray: 2.50 This has: 2.60"
    assert str(refused.value) == f"there is no cluster of Ray to work with at head: {words}"


def test_without_an_address_and_a_cluster_a_new_one_is_started_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def init(address: str, **how: Any) -> None:
        asked.append(address)
        if address == "auto" or len(asked) == 3:
            raise ConnectionError("there is none")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    connecting(monkeypatch, init, None)
    with pytest.raises(ConnectionError, match="cannot start on this machine: there is none"):
        connecting(monkeypatch, init, "local")
    assert asked == ["auto", "local", "local"]


@pytest.mark.parametrize(
    ("free", "on", "words"),
    [
        (
            {"CPU": 1.0},
            replicas(3, None, "head:6379"),
            "2 of 3 replicas wait: each takes 1 CPU, and 1",
        ),
        ({}, replicas(2, None, "head:6379"), "2 of 2 replicas wait: each takes 1 CPU, and 0"),
        ({"GPU": 1.0}, replicas(2, 2, "head:6379"), "2 of 2 replicas wait: each takes 2 GPU"),
        ({"CPU": 3.0}, replicas(3, None, "head:6379"), ""),
    ],
)
def test_replicas_that_wait_are_told(
    free: dict[str, float],
    on: OnRay,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ray = replaced_ray(monkeypatch)
    ray.available_resources = lambda: free  # type: ignore[method-assign]
    assert _size(on, here=True)[0] == on.replicas
    output = capsys.readouterr().err
    assert words in output and bool(words) == bool(output)


@pytest.fixture
def on_replicas(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """Generate on two replicas of an engine, in this process."""

    def generate(engine: FakeEngine, source: Path, *flags: Any) -> Any:
        replaced_ray(monkeypatch)
        monkeypatch.setattr("pipegen.cli.on_ray.open_routes", lambda load: pg.route(engine))
        monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(engine))
        flags = ("-o", tmp_path / "out.jsonl", "--model", "fake", *flags)
        return command("generate", source, *flags)

    return generate


def test_a_model_that_cannot_load_ends_the_command_with_its_own_error(
    on_replicas: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    source = jsonl(*({"id": f"r{n}", "prompt": f"Hi {n}"} for n in range(40)))
    fault = CallFailed(BackendFailed("the weights are not there", backend="fake", hint="get them"))
    ran = on_replicas(FakeEngine("", fault=fault), source, "--replicas", "2")
    words = " ".join(ran.err.split())
    assert (ran.code, words.count("the weights are not there; get them")) == (2, 1)
    assert "Traceback" not in ran.err
    # a replica that was ended while it loaded may leave its file: it has answered nothing, and so
    # blames no request
    left = (tmp_path / "out.jsonl.job").glob("running-*")
    assert [file for file in left if file.read_bytes().startswith(b"+")] == []
    healthy = FakeEngine("yes<|im_end|>")
    assert on_replicas(healthy, source, "--replicas", "2").code == 0
    assert sum(map(len, healthy.calls)) == 40


def test_the_summary_of_replicas_is_that_of_one_process(
    on_replicas: Callable[..., Any], jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"id": f"r{n}", "prompt": f"Hi {n}"} for n in range(50)]
    source, counts = jsonl(*rows, "no JSON"), list[dict[str, Any]]()
    for flags in ((), ("--replicas", "2"), ("--replicas", "2")):
        engine, summary = FakeEngine("yes it is<|im_end|>"), tmp_path / "summary.json"
        more = ("--restart",) if len(counts) == 1 else ()
        ran = on_replicas(engine, source, *flags, *more, "--summary", summary)
        assert ran.code == 1
        counts.append(json.loads(summary.read_text()))
    without, replicas, again = counts
    for summary_counts in counts:
        rates = [summary_counts.pop(name) for name in list(summary_counts) if "second" in name]
        assert (rates[-1] > 0) == (summary_counts["reused"] == 0)
    assert without == replicas
    assert again == {**replicas, "reused": 50}
