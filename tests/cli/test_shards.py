"""`--shard`: one job of several processes, and the same OUT as of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
PROMPTS = [f"say {number % 20}" for number in range(30)]


@pytest.fixture
def requested() -> Counter[str]:
    """How often each prompt was asked."""
    return Counter()


@pytest.fixture
def engine(requested: Counter[str]) -> FakeEngine:
    def answer(encoded: Encoded) -> str:
        prompt = str(encoded.request.prompt)
        requested[prompt] += 1
        return f"re: {prompt} END"

    return FakeEngine(answer)


@pytest.fixture
def generate(
    command: Command, jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`pipegen generate` of 30 rows and a broken one, in a folder of its own."""
    rows = [{"id": f"row {number}", "prompt": prompt} for number, prompt in enumerate(PROMPTS)]
    jsonl(*rows, "{broken")
    monkeypatch.chdir(tmp_path)

    def run(*flags: str, out: str = "out.jsonl") -> Any:
        return command("generate", "in.jsonl", "-o", out, "--model", "fake", *flags)

    return run


def test_shards_write_to_the_job_and_export_joins_them(
    generate: Command, command: Command, requested: Counter[str]
) -> None:
    one = generate(out="one.jsonl")
    wanted = Counter(requested)
    requested.clear()
    for shard in ("3/3", "1/3"):
        ran = generate("--shard", shard)
        words = f"shard {shard} is done; once the others are, `pipegen export out.jsonl.job"
        assert f"{words} -o out.jsonl` writes all answers" in ran.err
        assert not Path("out.jsonl").exists()
    done = sum(requested.values())
    partly = command("export", "out.jsonl.job", "-o", "out.jsonl")
    assert partly.code == 1
    assert f"{done + 1} of 31 requests are finished; {30 - done} are missing" in partly.err
    generate("--shard", "1/1")  # another number of shards
    assert command("export", "out.jsonl.job", "-o", "out.jsonl").code == 0
    assert Path("out.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert (requested, one.code) == (wanted, 1)


def test_the_same_command_without_a_shard_writes_all(
    generate: Command, requested: Counter[str]
) -> None:
    generate("--shard", "2/2")
    ran = generate()
    assert "finished before" in ran.err
    assert len(Path("out.jsonl").read_bytes().splitlines()) == 31
    assert sum(requested.values()) == 30


NO_SHARDS = ["0/4", "5/4", "4", "1/0", "a/b", "1/2/3", "-1/4", "1.0/4", "\u0661/\u0662"]


@pytest.mark.parametrize("shard", [*NO_SHARDS, "1/" + "9" * 400, ""])
def test_a_shard_that_is_not_there_is_bad_usage(command: Command, jsonl: Any, shard: str) -> None:
    file = jsonl({"prompt": "Hi"})
    ran = command("generate", file, "-o", "out.jsonl", "--model", "fake", "--shard", shard)
    assert ran.code == 2
    assert "the parts of 4 are 1/4, 2/4, 3/4 and 4/4" in " ".join(ran.err.split())


@pytest.mark.parametrize("flag", [("--shard", "1/2"), ("--replicas", "2"), ("--ray",)])
def test_parts_of_what_is_no_job_are_refused(
    command: Command, jsonl: Any, tmp_path: Path, flag: tuple[str, ...]
) -> None:
    file, out = jsonl({"prompt": "Hi"}), str(tmp_path / "out.jsonl")
    places = ((file,), (file, "-o", "-"), (file, "-o", "/dev/null"), ("-", "-o", out))
    for where in (*places, ("--prompt", "Hi", "-o", out)):
        ran = command("generate", *flag, *where, "--model", "fake")
        assert (ran.code, "the finished requests are kept in OUT.job" in ran.err) == (2, True), (
            where
        )


def test_flags_that_would_harm_other_shards_are_refused(
    command: Command, jsonl: Any, tmp_path: Path
) -> None:
    file, out = jsonl({"prompt": "Hi"}), tmp_path / "out.jsonl"
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"image")
    folder = (tmp_path / "images", "--prompt", "What?", "--sidecar", "txt")
    for words, flags in {
        "would remove the answers of other shards": (file, "--shard", "1/2", "--restart"),
        "to start again, remove": (file, "--shard", "1/2", "--overwrite"),
        "goes without --replicas": (file, "--shard", "1/2", "--replicas", "2"),
        "goes without --ray": (file, "--shard", "1/2", "--ray", "local"),
        "goes without --sidecar": (*folder, "--shard", "1/2"),
        "greater than or equal to 1": (file, "--replicas", "0"),
    }.items():
        ran = command("generate", *flags, "-o", out, "--model", "fake")
        assert (ran.code, words in ran.err) == (2, True), ran.err
