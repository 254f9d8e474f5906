"""Where `pipegen generate` writes: what it keeps and never loses, and how a run ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.jobs.journal import Journal
from pipegen.jobs.new_file import TEMPORARY, JournalError
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
HI = {"prompt": "Hi"}


def test_an_existing_out_is_kept_unless_it_may_be_overwritten(
    generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    ran = generate(jsonl(HI), "-o", out)
    assert (ran.code, out.read_text(), engine.calls) == (2, "precious\n", [])
    assert "--overwrite" in ran.err
    assert generate(jsonl(HI), "-o", out, "--overwrite").code == 0
    assert len(written(out)) == 1


def test_what_is_read_is_never_written(
    command: Command, generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    source = jsonl(HI)
    before = source.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(source)
    options = tmp_path / "options.json"
    options.write_text("{}")
    assert generate(source, "-o", source, "--overwrite").code == 2
    assert generate(source, "-o", tmp_path / "link.jsonl", "--overwrite").code == 2
    chat = tmp_path / "chat.yaml"
    chat.write_text("backend: {type: hf, model: fake}")
    assert generate(source, "-o", options, "--options", options, "--overwrite").code == 2
    assert command("generate", source, "-o", chat, "--config", chat, "--overwrite").code == 2
    seen = (source.read_bytes(), options.read_text(), chat.read_text()[:7])
    assert seen == (before, "{}", "backend")


def test_places_that_cannot_be_written_or_read_are_bad_usage(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    assert generate(jsonl(HI), "-o", tmp_path).code == 2
    assert generate(jsonl(HI), "-o", tmp_path / "no" / "out.jsonl").code == 2
    assert generate(tmp_path / "nowhere.jsonl").code == 2


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    ("flags", "lost"),
    [
        ("generate IN -o FILE --overwrite --model f", "IN"),
        ("generate IN --options OPTIONS -o OUT --summary FILE --model f", "OPTIONS"),
        ("generate IN -o OUT --summary FILE --model f", "IN"),
        ("generate IN -o OUT --summary FILE --model f", "OUT"),
        ("export OUT.job -o FILE", "IN"),
        ("view OUT -o FILE", "OUT"),
        ("view OUT OTHER -o FILE", "OTHER"),
        ("view OUT --input IN -o FILE", "IN"),
        ("verify OUT IN --summary FILE --model f", "OUT"),
        ("verify OUT IN --summary FILE --model f", "IN"),
    ],
)
def test_a_file_of_the_command_is_never_written_over(
    command: Command, jsonl: Any, tmp_path: Path, flags: str, lost: str, linked: bool
) -> None:
    source, out = jsonl({"id": "a", **HI}), tmp_path / "out.jsonl"
    assert command("generate", source, "-o", out, "--model", "f").code == 0
    files = {"IN": source, "OUT": out, "OUT.job": Path(f"{out}.job")}
    files |= {"OTHER": tmp_path / "other.jsonl", "OPTIONS": tmp_path / "options.json"}
    files["OTHER"].write_bytes(out.read_bytes())
    files["OPTIONS"].write_text("{}")
    files["FILE"] = tmp_path / "link.jsonl" if linked else files[lost]
    if linked:
        os.link(files[lost], files["FILE"])
    before = files[lost].read_bytes()
    ran = command(*(files.get(word, word) for word in flags.split()))
    assert (ran.code, files[lost].read_bytes()) == (2, before)
    assert "would be lost" in ran.err


def test_a_summary_and_out_that_are_one_new_file_are_refused(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert generate(jsonl(HI), "-o", out, "--summary", tmp_path / "." / out.name).code == 2
    assert not out.exists() and not Path(f"{out}.job").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said_and_is_no_success(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl(HI), "-o", "/dev/full")
    assert ran.code == 1
    assert "No space left" in ran.err


def test_out_may_be_a_device(generate: Command, jsonl: Any) -> None:
    assert generate(jsonl(HI), "-o", os.devnull).code == 0
    assert not Path(os.devnull).is_file()
    assert not Path(f"{os.devnull}.job").exists()


def test_no_more_than_may_be_in_flight_is_read_ahead_and_lines_are_written_at_once(
    generate: Command, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    ahead: list[int] = []

    class Counted(io.BytesIO):
        reads = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            Counted.reads += 1
            return super().readline(size)

    def script(encoded: Any) -> str:
        ahead.append(Counted.reads - len(out.read_bytes().splitlines()))
        return "Hi"

    engine.script = script
    stdin = io.TextIOWrapper(Counted(b'{"prompt": "a"}\n' * 100))
    # what the `command` fixture wraps stdin in
    monkeypatch.setattr(io, "TextIOWrapper", lambda stream: stdin)
    assert generate("-", "-o", out, "--in-flight", "5").code == 0
    assert len(ahead) == 100
    assert max(ahead) <= 5 + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("times", "flags", "kept"), [(1, (), "abc"), (2, (), "ab"), (1, ("--grace", "0"), "ab")]
)
def test_an_interrupt_keeps_the_lines_so_far_and_those_that_end_in_time(
    number: int,
    times: int,
    flags: tuple[str, ...],
    kept: str,
    command: Command,
    engine: FakeEngine,
    jsonl: Any,
    tmp_path: Path,
    written: Any,
) -> None:
    def script(encoded: Any) -> str:
        for _ in range(times if encoded.request.id == "c" else 0):
            signal.raise_signal(number)
        return "Hi"

    engine.script = script
    out = tmp_path / "out.jsonl"
    again = (
        jsonl(*({"id": name, **HI} for name in "abcd")),
        *("-o", out, "--model", "fake", "--in-flight", "1"),
        *flags,
    )
    before = signal.getsignal(number)
    ran = command("generate", *again)
    assert ran.code == 130
    assert signal.getsignal(number) is before
    assert not out.exists()
    assert f"{len(kept)} requests" in ran.err
    assert (
        "ending: the requests in flight have 5 seconds; interrupt again to end at once" in ran.err
    ) is (len(kept) == 3)
    assert (
        f"the same command goes on, and `pipegen export {out}.job` writes what is finished"
        in ran.err
    )
    assert engine.closed == 1
    ran = command("export", f"{out}.job")
    assert ([line["id"] for line in ran.out], ran.code) == ([*kept], 1)
    assert f"{len(kept)} of 4 requests are finished; {4 - len(kept)} are missing" in ran.err
    engine.script = "Hi"
    ran = command("generate", *again)
    assert [line["id"] for line in written(out)] == ["a", "b", "c", "d"]
    assert f"{len(kept)} finished before" in ran.err
    assert ran.code == 0
    ran = command("export", f"{out}.job", "-o", tmp_path / "again.jsonl")
    assert ((tmp_path / "again.jsonl").read_bytes(), ran.code) == (out.read_bytes(), 0)


def test_an_interrupt_while_the_model_loads_or_without_a_job_ends_the_run(
    generate: Command,
    engine: FakeEngine,
    jsonl: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    engine.script = interrupted
    file = jsonl({"id": "a", **HI}, {"id": "b", **HI})
    assert generate(file).code == 130
    monkeypatch.setattr("pipegen.cli.generate.open_routes", interrupted)
    ran = generate(file, "-o", tmp_path / "out.jsonl")
    assert (ran.code, "interrupted" in ran.err, "ending" in ran.err) == (130, True, False)


def test_a_signal_that_is_ignored_stays_so(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    def script(encoded: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return "Hi"

    engine.script = script
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert generate(jsonl({"id": "a", **HI})).code == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_a_grace_that_is_none_is_bad_usage(
    seconds: str, generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    ran = generate(jsonl({"id": "a", **HI}), "-o", tmp_path / "out.jsonl", "--grace", seconds)
    assert (ran.code, "--grace" in ran.err) == (2, True)


def test_a_bug_fails_its_line_alone_and_the_exit_code_says_so(
    generate: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.stages import ending

    whole = ending.stop_row

    def buggy(decoded: Any, *more: Any) -> Any:
        if "bad" in (decoded.raw.encoded.request.prompt or ""):
            raise KeyError("a bug")
        return whole(decoded, *more)

    monkeypatch.setattr(ending, "stop_row", buggy)
    ran = generate(jsonl(*({"prompt": "bad" if n in (3, 70) else "Hi"} for n in range(100))))
    failed = [line for line in ran.out if not line["ok"]]
    assert [line["id"] for line in ran.out] == [str(n + 1) for n in range(100)]
    assert [line["id"] for line in failed] == ["4", "71"]
    assert {line["error"]["type"] for line in failed} == {"InternalError"}
    assert all(line["error"]["incident"] for line in failed)
    assert ran.code == 3
    assert "pipegen has a bug, which failed 2 of them" in ran.err


def test_a_result_that_cannot_be_written_fails_its_line_alone(
    generate: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.cli import outputs

    plain = outputs.to_plain

    def broken(slot: Any, id: Any, *, brief: bool, **more: Any) -> dict[str, Any]:
        return {"bad": object()} if id == "2" and pg.is_ok(slot) else plain(slot, id, brief=brief)

    monkeypatch.setattr(outputs, "to_plain", broken)
    ran = generate(jsonl(HI, HI, HI))
    assert [line["ok"] for line in ran.out] == [True, False, True]
    assert (ran.out[1]["error"]["type"], ran.code) == ("InternalError", 3)


def test_with_bugs_everywhere_every_line_is_answered(
    generate: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.stages import ending

    monkeypatch.setattr(ending, "stop_row", lambda *given: 1 // 0)
    ran = generate(jsonl(HI, HI))
    assert [line["error"]["type"] for line in ran.out] == ["InternalError"] * 2
    assert ran.code == 3


def test_an_engine_that_breaks_its_contract_fails_its_lines(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    engine.answers = 3
    ran = generate(jsonl(HI, HI))
    assert [line["error"]["type"] for line in ran.out] == ["BackendFailed"] * 2
    assert "the engine 'fake' raised ContractError" in ran.out[0]["error"]["message"]
    assert ran.code == 1


def test_a_failed_call_fails_its_lines(generate: Command, engine: FakeEngine, jsonl: Any) -> None:
    engine.fault = pg.CallFailed(pg.BackendFailed("down", backend="fake", incident="i1"))
    ran = generate(jsonl(HI, HI))
    assert [line["error"]["incident"] for line in ran.out] == ["i1", "i1"]
    assert ran.code == 1


def test_quiet_says_nothing(generate: Command, jsonl: Any) -> None:
    assert generate(jsonl("nonsense"), "--quiet").err == ""


def test_the_summary_shows_no_control_characters(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl({"id": "\x1b[2J", "prompt": 5}))
    assert "\x1b" not in ran.err
    assert r"\x1b[2J" in ran.err


FAKED = """
import pipegen.cli
import pipegen as pg
import pipegen.cli.generate as generate
from pipegen.jobs.journal import Journal
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.new_file import TEMPORARY
from pipegen.testing.fake import FakeEngine
generate.open_routes = lambda load: pg.route(FakeEngine("Hello"))
pipegen.cli.main()
"""


def test_a_reader_that_has_enough_ends_the_run_quietly(jsonl: Any) -> None:
    source = jsonl(*[HI] * 2000)
    with subprocess.Popen(
        [sys.executable, "-c", FAKED, "generate", str(source), "--model", "fake"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert json.loads(ran.stdout.readline())["text"] == "Hello"
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == 141


@pytest.mark.parametrize("name", ["out.xlsx", "out.txt", "out.json", "out.jsonl.gz"])
def test_out_of_another_form_is_refused_before_anything_is_asked(
    name: str, generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    ran = generate(jsonl(HI), "-o", tmp_path / name)
    assert (ran.code, engine.calls) == (2, [])
    assert "OUT is JSON Lines (.jsonl), Parquet" in ran.err


def test_a_file_that_is_no_jobs_is_kept_unless_it_is_to_be_replaced(
    generate: Command, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine\n")
    ran = generate(jsonl(HI), "-o", out)
    assert (ran.code, out.read_text()) == (2, "mine\n")
    ran = generate(jsonl(HI), "-o", out, "--overwrite")
    assert (ran.code, len(written(out))) == (0, 1)
    out.write_text("")  # what a failed start may leave
    (tmp_path / "empty.jsonl").write_text("")
    assert generate(jsonl(HI), "-o", tmp_path / "empty.jsonl").code == 0


def test_a_job_asks_nothing_twice_and_says_what_changed(
    generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path, written: Any
) -> None:
    file, out = jsonl(*({"id": name, "prompt": name} for name in "abc")), tmp_path / "out.jsonl"
    for _ in range(2):
        ran = generate(file, "-o", out)
    assert sum(map(len, engine.calls)) == 3
    assert f"{out}.job: 3 finished before\n" in ran.err
    ran = generate(file, "-o", out, "--temperature", "0.7")
    assert (
        f"{out}.job: 3 finished before; none was made with these settings; 3 with temperature 0.0"
        " (now 0.7)\n" in ran.err
    )
    assert [line["options"]["temperature"] for line in written(out)] == [0.7] * 3
    generate(file, "-o", out, "--restart")
    assert sum(map(len, engine.calls)) == 9
    ran = generate(file, "-o", out, "--retry", "sometimes")
    assert ran.code == 2
    assert "takes retryable, all, none or a type of error" in ran.err


@pytest.mark.parametrize("flag", ["--restart", "--overwrite"])
def test_a_job_is_not_begun_anew_while_another_process_runs_it(
    flag: str, command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    again = ("generate", jsonl({"id": "a", **HI}), "-o", tmp_path / "out.jsonl", "--model", "fake")
    command(*again)
    folder = tmp_path / "out.jsonl.job"
    rows = (folder / "results-0001.jsonl").read_bytes()
    with Journal(folder):
        ran = command(*again, flag)
    seen = (ran.code, (folder / "results-0001.jsonl").read_bytes(), len(engine.calls))
    assert seen == (1, rows, 1)
    assert [
        line for line in ran.err.splitlines() if "another run of this job is running" in line
    ] == [ran.err.splitlines()[0]]
    assert "Traceback" not in ran.err
    assert command(*again, flag).code == 0
    assert len(engine.calls) == 2


def test_a_command_says_when_another_one_runs_the_job(
    command: Command, jsonl: Any, tmp_path: Path
) -> None:
    again = (
        *("generate", jsonl({"id": "a", **HI}), "-o", tmp_path / "out.jsonl", "--model", "fake"),
        "--quiet",
    )
    folder = tmp_path / "out.jsonl.job"
    assert command(*again).err == ""
    advice = (
        "requests are sent twice; wait for its end, or give each command a part of the requests"
        " (--shard I/N)"
    )
    with Journal(folder):
        assert command(*again).err == f"{folder}: another process runs this job now, and {advice}\n"
        with Journal(folder):
            assert (
                command(*again).err
                == f"{folder}: 2 other processes run this job now, and {advice}\n"
            )
        assert command(*again, "--shard", "1/2").err == ""
    assert command(*again).err == ""


def test_an_export_takes_the_place_where_the_input_is_now(
    command: Command, generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / name).write_bytes(name.encode())
    file = jsonl(*({"id": name, **HI} for name in "ab"))
    for source, moved, flags in (
        (file, tmp_path / "moved.jsonl", ()),
        (tmp_path / "images", tmp_path / "moved", ("--prompt", "What?")),
    ):
        assert generate(source, "-o", out, "--overwrite", *flags).code == 0
        source.rename(moved)
        ran = command("export", f"{out}.job", "-o", again)
        assert (ran.code, "cannot be read" in ran.err or "holds no images" in ran.err) == (
            2,
            True,
        ), ran.err
        ran = command("export", f"{out}.job", "-o", again, "--input", moved)
        assert (ran.code, again.read_bytes()) == (0, out.read_bytes()), ran.err
    assert "--input" in command("export", f"{out}.job", "--input", tmp_path / "nowhere.jsonl").err
    assert generate("--prompt", "Hi", "-o", tmp_path / "one.jsonl").code == 0
    ran = command("export", f"{tmp_path}/one.jsonl.job", "--input", file)
    assert (ran.code, "is a job of one question, which has no input" in ran.err) == (2, True)


def test_an_export_removes_what_a_killed_one_was_writing(
    command: Command, generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    assert generate(jsonl(HI), "-o", out).code == 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f"{TEMPORARY}{os.uname().nodename}-{ended.pid}-abc"
    stale.write_bytes(b"half")
    assert command("export", f"{out}.job", "-o", tmp_path / "again.jsonl").code == 0
    assert not stale.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_line_that_is_lost_on_a_full_disk_is_not_counted(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    ran = generate(jsonl(HI, HI), "-o", "/dev/full", "--summary", tmp_path / "summary.json")
    assert ran.code == 1
    assert "0 requests" in ran.err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["succeeded"], summary["not_answered"]) == (0, 2)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_rows_that_are_kept_before_the_disk_is_full_are_counted(
    kept: int, command: Command, jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end together: none of them was given out when one could not be written."""
    out, append, left = tmp_path / "out.jsonl", Journal.append, [kept]

    def full(journal: Journal, key: str, values: Any) -> None:
        if not left[0]:
            raise JournalError(f"{journal.folder} cannot be written: No space left on device")
        left[0] -= 1
        append(journal, key, values)

    again = (
        "generate",
        jsonl(*({"id": name, **HI} for name in "abcde")),
        "-o",
        out,
        "--model",
        "fake",
    )
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        ran = command(*again, "--summary", tmp_path / "summary.json")
    assert (ran.code, f"{kept} succeeded, 0 failed" in ran.err) == (1, True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["succeeded"], summary["not_answered"]) == (kept, 5 - kept)
    assert (
        f"{kept} of 5 requests are finished"
        in command("export", f"{out}.job", "-o", tmp_path / "some.jsonl").err
    )
    ran = command(*again)
    assert (ran.code, f"{kept} finished before" in ran.err) == (0, kept > 0)


def test_a_folder_that_is_no_jobs_is_not_exported(command: Command, tmp_path: Path) -> None:
    ran = command("export", tmp_path)
    assert ran.code == 2
    assert "is no job's folder" in ran.err


def test_an_export_reads_what_the_run_was_allowed_to(
    command: Command, generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    lines = [{"prompt": "Hi", "options": {"samples": 2}}, {"prompt": "Ho"}]
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    assert (
        generate(
            jsonl(*lines), "-o", out, "--limit", "max_samples=2", "--limit", "max_stops=3"
        ).code
        == 0
    )
    ran = command("export", f"{out}.job", "-o", again)
    assert (ran.code, again.read_bytes()) == (0, out.read_bytes())
    kept = json.loads((tmp_path / "out.jsonl.job" / "command.json").read_text())
    assert (kept["policy"]["max_stops"], kept["allow_http"]) == (3, False)
