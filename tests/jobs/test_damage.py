"""A damaged journal: whatever became of its bytes, the job finishes with the right rows, and says
which lines it left out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.cli import main
from pipegen.core.slots import is_ok
from pipegen.jobs.new_file import JournalError
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

EVERY = 1 if os.environ.get("PIPEGEN_EVERY_FAULT") else 36
"""Of so many bytes one is damaged: `nox -s kills` damages each of them."""
ROWS = [{"id": f"row {number}", "prompt": f"prompt {number} é"} for number in range(3)]
OPTIONS = {"samples": 2, "temperature": 1.0, "seed": 3}


def echo(encoded: Encoded) -> str | pg.GenerationError:
    prompt = str(encoded.request.prompt)
    return (
        pg.MalformedResponse("odd")
        if "2" in prompt
        else f"re: {prompt} {encoded.options.seed}<|im_end|>"
    )


def judged(fuse: Fuse) -> Any:
    first, last = (
        pg.route(Rowwise(echo, fuse, name=name), name=name) for name in ("rollout", "judge")
    )
    return (
        first
        >> pg.pure("ask", lambda result: pg.TextGenerationRequest(prompt=f"judge {result.text}"))
        >> last
    )


def flipped(data: bytes, seed: int) -> Iterator[bytes]:
    """The data with one byte changed."""
    rng = random.Random(seed)
    for place, byte in enumerate(data):
        if (place + seed) % EVERY:
            continue
        yield data[:place] + bytes([byte ^ rng.randint(1, 255)]) + data[place + 1 :]


def cut(data: bytes, seed: int) -> Iterator[bytes]:
    """The data without its end."""
    rng = random.Random(seed)
    yield from (data[: rng.randrange(len(data))] for _ in range(240 // EVERY))


def zeroed(data: bytes, seed: int) -> Iterator[bytes]:
    """The data with zeros in the place of a block."""
    rng = random.Random(seed)
    for _ in range(480 // EVERY):
        start, size = rng.randrange(len(data)), rng.choice([1, 8, 40, 64, 512])
        size = min(size, len(data) - start)
        yield data[:start] + bytes(size) + data[start + size :]


def more(data: bytes, seed: int) -> Iterator[bytes]:
    """The data with something behind it, or between its lines."""
    rng, lines = random.Random(seed), data.splitlines(keepends=True)
    for size in (1, 3, 50, 4000):
        noise = rng.randbytes(size)
        yield from (
            data + noise,
            data + noise + b"\n",
            data[:-1] + noise,
            lines[0] + noise + b"".join(lines[1:]),
            noise + b"\n" + data,
        )


def joined(data: bytes, seed: int) -> Iterator[bytes]:
    """Lines joined with others, doubled, and in another order."""
    lines = data.splitlines(keepends=True)
    for number in range(1, len(lines)):
        yield b"".join(lines[:number]).removesuffix(b"\n") + b"".join(lines[number:])
        yield b"".join(lines[:number])[:-40] + b"".join(lines[number:])
    yield from (
        data * 2,
        b"".join(reversed(lines)),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"\n", b"\n\n"),
    )


DAMAGES: list[Callable[[bytes, int], Iterator[bytes]]] = [flipped, cut, zeroed, more, joined]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_job_finishes_with_the_right_rows_whatever_became_of_its_journal(
    damage: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "job"

    def run() -> tuple[list[Any], int]:
        with pg.job(pg.route(FakeEngine(echo)), ROWS, folder) as running:
            return list(running), running.reused

    wanted, _ = run()
    files = files_of(folder)
    for damaged in damage(files["results-0001.jsonl"], 0):
        restore(folder, {**files, "results-0001.jsonl": damaged})
        exported = [slot for _, slot in pg.finished_rows(folder, enumerate(ROWS))]
        assert all(slot in (None, right) for slot, right in zip(exported, wanted, strict=True))
        slots, reused = run()
        assert slots == wanted
        assert reused == len(ROWS) - exported.count(None)
        assert run() == (wanted, len(ROWS))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_finished_rows_are_reused_whatever_became_of_the_settings_beside_them(
    damage: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "job"

    def run(temperature: float) -> tuple[list[Any], int]:
        with pg.job(
            pg.route(FakeEngine(echo)), ROWS, folder, {"temperature": temperature}
        ) as running:
            return list(running), running.reused

    wanted, _ = run(0.5)
    run(0.0)
    files = files_of(folder)
    for damaged in damage(files["job.json"], 2):
        restore(folder, {**files, "job.json": damaged})
        exported: list[Any] = []
        with contextlib.suppress(JournalError):
            exported = [slot for _, slot in pg.finished_rows(folder, enumerate(ROWS))]
        assert {
            slot.unwrap().options.temperature
            for slot in exported
            if slot is not None and is_ok(slot)
        } <= {0.0, 0.5}
        try:
            assert run(0.5) == (wanted, len(ROWS))
        except JournalError as refusal:
            # it says another number than 1
            assert "of another version of pipegen" in str(refusal)  # noqa: PT017
        else:
            assert [slot for _, slot in pg.finished_rows(folder, enumerate(ROWS))] == wanted


def test_damaged_settings_say_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, route = tmp_path / "job", pg.route(FakeEngine(echo))
    list(pg.job(route, ROWS, folder))
    settings = folder / "job.json"
    settings.write_text("{")
    with pytest.raises(
        JournalError,
        match=r"job\.json is damaged, or no job's: .*; run the job again: it writes the file anew",
    ):
        list(pg.finished_rows(folder, []))
    with pytest.raises(JournalError, match="nothing is removed: run the job without restart"):
        pg.job(route, ROWS, folder, restart=True)
    with pg.job(route, ROWS, folder) as running:
        assert (len(list(running)), running.reused, running.changed) == (3, 3, ())
    assert [message.partition(":")[0] for message in caplog.messages] == [
        f"{settings} is damaged, or no job's"
    ]
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "options": {"warmth": 3}}))
    with pytest.raises(
        JournalError, match=r"of a later version of pipegen: .*there is no option 'warmth'"
    ):
        list(pg.finished_rows(folder, []))
    with pg.job(route, ROWS, folder) as running:
        assert running.changed == ("warmth was 3, is not set",)
    (tmp_path / "other").mkdir()
    for text in ('{"jobs": []}', "[]", "{"):
        (tmp_path / "other" / "job.json").write_text(text)
        with pytest.raises(JournalError, match=r"or no job's.*; give another folder"):
            pg.job(route, ROWS, tmp_path / "other")


WRONG_SETTINGS: tuple[dict[str, Any], ...] = (
    {"rewrites": None},
    {"rewrites": [7]},
    {"adapters": None},
    {"adapters": ["a"]},
    {"adapters": {"a": 7}},
    {"engines": [7]},
    {"options": []},
)


@pytest.mark.parametrize(
    ("wrong", "within"),
    [*itertools.product(WRONG_SETTINGS, (False, True)), ({"runs": {"a": 7}}, False)],
)
def test_settings_of_a_wrong_type_are_damaged(
    tmp_path: Path, wrong: dict[str, Any], *, within: bool
) -> None:
    route = pg.route(FakeEngine(echo))
    list(pg.job(route, ROWS, tmp_path))
    settings = tmp_path / "job.json"
    values = json.loads(settings.read_text())
    runs = {mark: {**run, **wrong} for mark, run in values["runs"].items()}
    settings.write_text(json.dumps({**values, "runs": runs} if within else {**values, **wrong}))
    with pytest.raises(JournalError, match="does not hold the settings of a run"):
        list(pg.finished_rows(tmp_path, []))
    with pg.job(route, ROWS, tmp_path) as running:
        assert (len(list(running)), running.reused) == (3, 3)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_row_of_several_calls_goes_on_whatever_became_of_its_steps(
    damage: Callable[..., Any], tmp_path: Path
) -> None:
    folder, rows = tmp_path / "job", ROWS[:2]
    wanted = list(pg.run(judged(Fuse()), rows, OPTIONS))
    with (
        contextlib.suppress(KeyboardInterrupt),
        pg.job(judged(Fuse(3)), rows, folder, OPTIONS, in_flight=1, grace=0) as running,
    ):
        list(running)
    files = files_of(folder)
    assert files["steps-0001.jsonl"].count(b"\n") > 1
    for damaged in damage(files["steps-0001.jsonl"], 1):
        restore(folder, {**files, "steps-0001.jsonl": damaged})
        with pg.job(judged(Fuse()), rows, folder, OPTIONS) as running:
            assert list(running) == wanted


def test_a_row_of_another_version_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its line agrees with its checksum, and this version does not know what it says."""
    from pipegen.jobs.journal import Journal

    folder = tmp_path / "job"
    with pg.job(pg.route(FakeEngine(echo)), ROWS, folder) as running:
        wanted = list(running)
    files = files_of(folder)
    lines = [json.loads(line) for line in files["results-0001.jsonl"].splitlines()]
    foreign: list[Callable[[dict[str, Any]], Any]] = [
        lambda values: {**values, "colour": "red"},
        lambda values: {**values, "finish": "bored"},
        lambda values: {**values, "options": {"warmth": 3}},
        lambda values: {"id": values["id"], "ok": "perhaps"},
        lambda values: {"id": None, "ok": False, "error": {"type": "TooCold"}},
        lambda values: {"id": None, "ok": False, "error": 7},
        lambda values: {"id": None, "ok": True, "token_logprobs": 5},
    ]
    for change in foreign:
        restore(folder, {name: data for name, data in files.items() if name == "job.json"})
        with Journal(folder) as journal:
            for line in lines:
                key, _ = line["key"], line["crc"]
                values = {name: value for name, value in line.items() if name not in ("key", "crc")}
                journal.append(key, change(values) if values["id"] == "row 1" else values)
        caplog.clear()
        exported = [slot for _, slot in pg.finished_rows(folder, enumerate(ROWS))]
        assert exported == [wanted[0], None, wanted[2]]
        assert [message.partition(" (")[0] for message in caplog.messages] == [
            f"{folder / 'results-0001.jsonl'}, line 2 cannot be read"
        ]
        engine = FakeEngine(echo)
        with pg.job(pg.route(engine), ROWS, folder) as running:
            assert list(running) == wanted
        assert (running.reused, len(engine.calls)) == (2, 1)


def test_the_command_line_names_the_damaged_line_and_writes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    log = logging.getLogger("pipegen")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)

    def command(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        monkeypatch.setattr(log, "handlers", [])
        return int(left.value.code or 0), capsys.readouterr().err

    monkeypatch.setattr("pipegen.cli.generate.open_routes", lambda load: pg.route(FakeEngine(echo)))
    generate = ("generate", str(source), "-o", str(out), "--model", "fake")
    assert command(*generate)[0] == 0
    wanted = out.read_bytes()
    rows = Path(f"{out}.job") / "results-0001.jsonl"
    data = rows.read_bytes()
    rows.write_bytes(data.replace(b"re: prompt 1", b"re: prompt 7", 1))
    warning = f"pipegen: {rows}, line 2: damaged, and left out; missing requests are sent again"
    code, output = command("export", f"{out}.job", "-o", str(tmp_path / "export.jsonl"))
    assert (code, output.splitlines()) == (
        1,
        [warning, "1 of 2 requests are finished; 1 are missing: run the job's command again"],
    )
    code, output = command(*generate)
    assert (code, out.read_bytes(), output.count(warning)) == (0, wanted, 1)
