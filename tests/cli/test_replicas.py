"""`--shard` and `--replicas`: one job of several processes, and the same OUT as of one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipegen.cli import replicas
from pipegen.cli.replicas import TRIES, devices_of, visible_devices

Command = Callable[..., Any]
SCRIPT = Path(__file__).with_name("replica.py")
PROMPTS = [f"say {number % 20}" for number in range(30)]


class Ran(NamedTuple):
    code: int
    err: str


class Many(NamedTuple):
    """pipegen in other processes, over the scripted engine of replica.py, in a folder of its
    own.
    """

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> Ran:
        process = self.start(*arguments)
        err = process.communicate(timeout=120)[1]
        return Ran(process.returncode, err)

    def generate(self, *flags: str, prompts: list[str], out: str = "out.jsonl") -> Ran:
        lines = [
            json.dumps({"id": f"row {number}", "prompt": prompt})
            for number, prompt in enumerate(prompts)
        ]
        (self.folder / "in.jsonl").write_text("".join(f"{line}\n" for line in [*lines, "{broken"]))
        return self.run(
            "generate", "in.jsonl", "-o", out, "--model", "fake", "--in-flight", "1", *flags
        )

    def asked(self) -> Counter[str]:
        return Counter((self.folder / "asked.txt").read_text().splitlines())

    def bytes(self, name: str = "out.jsonl") -> bytes:
        return (self.folder / name).read_bytes()


@pytest.fixture
def many(tmp_path: Path) -> Many:
    return Many(tmp_path)


def outcome(err: str) -> str:
    """What a summary says, without times and rates."""
    return re.sub(r" \(.*?\)", "", err[err.index("30 succeeded") :])


def test_replicas_write_what_one_process_writes(many: Many) -> None:
    one = many.generate(prompts=PROMPTS, out="one.jsonl")
    wanted = many.asked()
    (many.folder / "asked.txt").unlink()
    ran = many.generate("--replicas", "2", "--summary", "summary.json", prompts=PROMPTS)
    assert (many.bytes(), many.asked(), ran.code, one.code) == (
        many.bytes("one.jsonl"),
        wanted,
        1,
        1,
    )
    assert outcome(ran.err) == outcome(one.err)
    summary = json.loads(many.bytes("summary.json"))
    assert {
        name: summary[name] for name in ("requests", "succeeded", "failed", "reused", "exit_code")
    } == {
        "requests": 31,
        "succeeded": 30,
        "failed": 1,
        "reused": 0,
        "exit_code": 1,
    }
    again = many.generate("--replicas", "3", prompts=PROMPTS)
    assert "30 finished before" in again.err
    assert (many.bytes(), many.asked()) == (many.bytes("one.jsonl"), wanted)


def test_a_table_goes_through_replicas(many: Many) -> None:
    pytest.importorskip("pyarrow")
    (many.folder / "in.csv").write_text(
        "question,label\n" + "".join(f"say {number},{number}\n" for number in range(8))
    )
    for out, flags in (("one.csv", ()), ("out.csv", ("--replicas", "2"))):
        assert (
            many.run(
                "generate",
                "in.csv",
                "-o",
                out,
                "--map",
                "prompt=question",
                "--model",
                "fake",
                *flags,
            ).code
            == 0
        )
    assert many.bytes("out.csv") == many.bytes("one.csv")


def test_a_replica_that_dies_is_started_again_and_its_rows_go_on(many: Many) -> None:
    ran = many.generate("--replicas", "2", prompts=[*PROMPTS, "once a", *PROMPTS, "once b"])
    assert ran.code == 1
    assert ran.err.count("was killed by SIGKILL after the line: on None; it is started again") == 2
    assert len(many.bytes().splitlines()) == 63
    assert set(many.asked().values()) <= {2, 4}
    assert "62 succeeded, 1 failed" in ran.err


def test_a_replica_that_dies_in_vain_again_and_again_is_given_up_and_the_others_go_on(
    many: Many,
) -> None:
    ran = many.generate(
        "--replicas", "2", prompts=[*PROMPTS, *(f"exit {number}" for number in range(12))]
    )
    assert ran.code == 1
    assert (
        f"{TRIES} times in a row it made no answer, and it is not started again; the others go on"
        in ran.err
    )
    missing = re.search(
        r"(\d+) rows? (?:is|are) missing: the same command goes on with them", ran.err
    )
    assert missing is not None
    assert not (many.folder / "out.jsonl").exists()
    exported = many.run("export", "out.jsonl.job", "-o", "some.jsonl")
    assert f"{missing[1]} are missing" in exported.err


def test_a_row_that_kills_its_replica_fails_and_the_others_are_answered(many: Many) -> None:
    ran = many.generate("--replicas", "1", prompts=["say a", "say b", "exit", "say c"])
    assert many.asked() == {"say a": 1, "say b": 1, "exit": 3, "say c": 1}
    assert (
        ran.code,
        ran.err.count("ended with code 7 after the line: memory; it is started again"),
    ) == (1, 3)
    assert "the process died 3 times while it worked on request 'row 2' and on no other" in ran.err
    # the last line is no JSON
    assert [line["ok"] for line in map(json.loads, many.bytes().splitlines())] == [
        True,
        True,
        False,
        True,
        False,
    ]
    asked = many.asked()
    assert (
        many.generate("--replicas", "1", prompts=["say a", "say b", "exit", "say c"]).code,
        many.asked(),
    ) == (1, asked)


def test_bad_usage_that_the_replicas_find_is_not_tried_again(many: Many) -> None:
    (many.folder / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    ran = many.run(
        "generate", "in.jsonl", "-o", "out.jsonl", "--model", "nowhere", "--replicas", "2"
    )
    assert (
        ran.code,
        ran.err.count("there is no model of this name"),
        "started again" in ran.err,
    ) == (2, 2, False)
    assert not (many.folder / "out.jsonl").exists()


def test_one_bar_counts_the_rows_of_all_replicas(
    many: Many, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.generate(prompts=["say a", "say b"])
    prompts = ["say a", "say b", "once c", *(f"say {number}" for number in range(20))]
    (many.folder / "in.jsonl").write_text(
        "".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts)
    )
    seen: list[tuple[int | None, str]] = []
    monkeypatch.chdir(many.folder)
    monkeypatch.setattr(replicas, "SELF", (sys.executable, str(SCRIPT)))
    monkeypatch.setattr(
        "pipegen.cli.generate.progress",
        lambda total, meter, shown: contextlib.nullcontext(
            lambda done, words: seen.append((done, words))
        ),
    )
    ran = command(
        "generate",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        "fake",
        "--replicas",
        "2",
        "--in-flight",
        "1",
    )
    done = [number for number, words in seen if number is not None][: -len(prompts)]
    assert (ran.code, done == sorted(done), done[-1], max(done)) == (0, True, 23, 23)
    assert "23/23 done, 0 failed" in seen[-len(prompts) - 1][1]
    assert "2 finished before" in ran.err


def test_a_signal_reaches_all_replicas_and_they_keep_what_ends_in_time(many: Many) -> None:
    prompts = ["end", *(f"say {number}" for number in range(40))]
    ran = many.generate("--replicas", "1", prompts=prompts)
    assert ran.code == 130
    assert "ending: the rows in flight have 5 seconds; interrupt again to end at once" in ran.err
    assert ran.err.count("interrupted; the same command goes on") == 1
    assert many.asked() == {"end": 1}
    assert not (many.folder / "out.jsonl").exists()
    ran = many.run("generate", "in.jsonl", "-o", "out.jsonl", "--model", "fake", "--replicas", "2")
    assert (many.asked()["end"], "1 finished before" in ran.err) == (1, True)
    assert len(many.bytes().splitlines()) == 42


def test_without_grace_the_first_signal_ends_it_all(many: Many) -> None:
    ran = many.generate("--replicas", "1", "--grace", "0", prompts=["end", "say a"])
    assert (ran.code, many.asked(), "ending" in ran.err) == (130, {"end": 1}, False)


def test_a_second_signal_ends_it_at_once(many: Many) -> None:
    ran = many.generate("--replicas", "1", prompts=["say a", "end twice", "say b"])
    assert (ran.code, ran.err.count("ending: "), ran.err.count("interrupted;")) == (130, 1, 1)
    assert many.asked() == {"say a": 1, "end twice": 1}
    assert "1 of 4 rows" not in ran.err
    # the broken line is one
    assert "2 of 4 rows are finished" in many.run("export", "out.jsonl.job", "-o", "some.jsonl").err


def test_half_a_line_about_progress_is_no_line(many: Many) -> None:
    ran = many.generate("--replicas", "1", prompts=["say a", "half"])
    assert (
        ran.code,
        ran.err.count("was killed by SIGKILL"),
        "the process died 3 times" in ran.err,
    ) == (1, 3, True)


def test_the_number_of_a_device_is_refused(many: Many) -> None:
    ran = many.generate("--replicas", "2", "--device", "cuda:1", prompts=["say a"])
    assert (ran.code, "goes without the number of a device, as in cuda:1" in ran.err) == (2, True)


def test_replicas_end_when_their_parent_is_gone(many: Many) -> None:
    ran = many.generate("--replicas", "1", prompts=["say a", "orphan", "say b", "say c"])
    assert ran.code == -9
    with (many.folder / "out.jsonl.job" / "results-0001.jsonl").open("rb") as rows:
        fcntl.flock(rows, fcntl.LOCK_EX)  # free when the replica has ended
        assert len(rows.readlines()) == 2
    assert many.asked() == {"say a": 1, "orphan": 1}


def test_each_replica_sees_its_own_devices(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7,2")
    ran = many.generate("--replicas", "3", prompts=["say a"])
    assert [
        f"replica {number}: on {device}\n" in ran.err
        for number, device in ((1, "4"), (2, "GPU-7"), (3, "2"))
    ] == [True] * 3
    ran = many.generate("--replicas", "4", prompts=["say a"])
    assert ran.code == 2
    assert (
        "4 replicas and 3 GPUs; for several replicas on a GPU, set CUDA_VISIBLE_DEVICES=4,GPU-7,2,4"
        in ran.err
    )
    ran = many.generate("--replicas", "4", "--device", "cpu", prompts=["say a"])
    assert "replica 4: on 4,GPU-7,2\n" in ran.err


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ("", []),
        ("-1", []),
        ("0", ["0"]),
        ("1, 0", ["1", "0"]),
        ("2,-1,3", ["2"]),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
    ],
)
def test_the_visible_devices_are_those_that_are_told(
    monkeypatch: pytest.MonkeyPatch, told: str, seen: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    assert visible_devices() == seen


def test_the_visible_devices_are_else_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho '  MIG 1g: (UUID: MIG-1)'\necho"
        " 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n"
    )
    tool.chmod(0o755)
    assert visible_devices() == ["0", "1"]


def test_devices_are_split_evenly_and_in_order() -> None:
    assert [
        part.get("CUDA_VISIBLE_DEVICES") for part in devices_of(2, ["0", "1", "2", "3", "4"])
    ] == ["0,1", "2,3"]


def test_shards_write_to_the_job_and_export_joins_them(many: Many) -> None:
    one = many.generate(prompts=PROMPTS, out="one.jsonl")
    wanted = many.asked()
    (many.folder / "asked.txt").unlink()
    for shard in ("3/3", "1/3"):
        ran = many.generate("--shard", shard, prompts=PROMPTS)
        assert (
            f"shard {shard} is done; once the others are, `pipegen export out.jsonl.job -o"
            " out.jsonl` writes all rows" in ran.err
        )
        assert not (many.folder / "out.jsonl").exists()
    asked = sum(many.asked().values())
    partly = many.run("export", "out.jsonl.job", "-o", "out.jsonl")
    assert (
        partly.code,
        f"{asked + 1} of 31 rows are finished; {30 - asked} are missing" in partly.err,
    ) == (1, True)
    many.generate("--shard", "1/1", prompts=PROMPTS)  # another number of shards
    assert many.run("export", "out.jsonl.job", "-o", "out.jsonl").code == 0
    assert (many.bytes(), many.asked(), one.code) == (many.bytes("one.jsonl"), wanted, 1)


def test_the_same_command_without_a_shard_writes_all(many: Many) -> None:
    many.generate("--shard", "2/2", prompts=PROMPTS)
    ran = many.generate(prompts=PROMPTS)
    assert "finished before" in ran.err
    assert len(many.bytes().splitlines()) == 31
    assert sum(many.asked().values()) == 30


@pytest.mark.parametrize(
    "shard",
    [
        "0/4",
        "5/4",
        "4",
        "1/0",
        "a/b",
        "1/2/3",
        "-1/4",
        "1.0/4",
        "\u0661/\u0662",
        "1/" + "9" * 400,
        "",
    ],
)
def test_a_shard_that_is_not_there_is_bad_usage(command: Command, jsonl: Any, shard: str) -> None:
    ran = command(
        "generate", jsonl({"prompt": "Hi"}), "-o", "out.jsonl", "--model", "fake", "--shard", shard
    )
    assert ran.code == 2
    assert "the parts of 4 are 1/4, 2/4, 3/4 and 4/4" in " ".join(ran.err.split())


@pytest.mark.parametrize("flag", [("--shard", "1/2"), ("--replicas", "2")])
def test_parts_of_what_is_no_job_are_refused(
    command: Command, jsonl: Any, tmp_path: Path, flag: tuple[str, ...]
) -> None:
    file, out = jsonl({"prompt": "Hi"}), str(tmp_path / "out.jsonl")
    for where in (
        (file,),
        (file, "-o", "-"),
        (file, "-o", "/dev/null"),
        ("-", "-o", out),
        ("--prompt", "Hi", "-o", out),
    ):
        ran = command("generate", *where, "--model", "fake", *flag)
        assert (ran.code, "the finished rows are kept in OUT.job" in ran.err) == (2, True)


def test_flags_that_would_harm_other_shards_are_refused(
    command: Command, jsonl: Any, tmp_path: Path
) -> None:
    file, out = jsonl({"prompt": "Hi"}), tmp_path / "out.jsonl"
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"image")
    for words, flags in {
        "would remove the rows of other shards": (file, "--shard", "1/2", "--restart"),
        "to start again, remove": (file, "--shard", "1/2", "--overwrite"),
        "goes without --replicas": (file, "--shard", "1/2", "--replicas", "2"),
        "splits the rows itself": (file, "--shard", "1/2", "--ray", "local"),
        "goes without --sidecar": (
            tmp_path / "images",
            "--prompt",
            "What?",
            "--sidecar",
            "txt",
            "--replicas",
            "2",
        ),
        "greater than or equal to 1": (file, "--replicas", "0"),
    }.items():
        ran = command("generate", *flags, "-o", out, "--model", "fake")
        assert (ran.code, words in ran.err) == (2, True), ran.err


def test_replicas_begin_anew_together(many: Many) -> None:
    many.generate(prompts=PROMPTS)
    ran = many.generate("--replicas", "2", "--restart", prompts=PROMPTS)
    assert "finished before" not in ran.err
    assert sum(many.asked().values()) == 60


def test_the_child_starts_this_program() -> None:
    assert (sys.executable, "-P", "-m", "pipegen") == replicas.SELF
