"""The map of keys: a cache that may be missing, damaged or out of order, and is never wrong."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import pipegen as pg
from pipegen.drivers.arguments import Admission, record_of
from pipegen.jobs import job_rows, key_map
from pipegen.jobs.journal import Finished, read_settings
from pipegen.jobs.key_map import INPUT, KEY_MAP, KeyMap, entry_of, rows_in
from pipegen.jobs.row_keys import Keys, context_of
from pipegen.jobs.runner import job, job_keyed, start_job
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

ROWS: list[dict[str, Any]] = [
    {"id": f"row {number}", "prompt": f"prompt {number % 30}"} for number in range(40)
]
ENTRY = 44


def echo(encoded: Encoded) -> str:
    return f"re: {encoded.request.prompt}<|im_end|>"


def asked(engine: FakeEngine) -> list[str]:
    return [str(encoded.request.id) for call in engine.calls for encoded in call]


def run(engine: FakeEngine, folder: Path, requests: Any, options: Any = None, **more: Any) -> Any:
    """The names and texts of the job's rows, and the job."""
    with job(pg.route(engine), requests, folder, options, **more) as running:
        return [(slot.unwrap().id, slot.unwrap().text) for slot in running], running


def texts(requests: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["id"], f"re: {one['prompt']}") for one in requests]


def read_requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that are read as records from now on."""
    seen: list[Any] = []

    def noted(one: Any) -> Any:
        seen.append(one)
        return record_of(one)

    monkeypatch.setattr(job_rows, "record_of", noted)
    return seen


def entries(folder: Path) -> list[bytes]:
    data = (folder / KEY_MAP).read_bytes()
    return [data[start : start + ENTRY] for start in range(0, len(data), ENTRY)]


def test_a_finished_job_reads_no_request_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = run(FakeEngine(echo), tmp_path, ROWS[:30])
    seen, engine = read_requests(monkeypatch), FakeEngine(echo)
    again, running = run(engine, tmp_path, iter(ROWS[:30]))
    assert first == again == texts(ROWS[:30])
    assert (seen, engine.calls, running.reused) == ([], [], 30)
    assert [slot for _, slot in pg.finished_rows(tmp_path, enumerate(ROWS[:30]))] == [
        slot for _, slot in pg.finished_rows(tmp_path, enumerate(iter(ROWS[:30])))
    ]
    assert seen == []


def test_equal_requests_are_numbered_as_without_the_map(tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS)
    engine = FakeEngine(echo)
    again, running = run(engine, tmp_path, ROWS)
    assert (again, engine.calls, running.reused) == (texts(ROWS), [], 40)
    more = [*ROWS, ROWS[0], ROWS[0]]
    again, running = run(engine, tmp_path, more)
    assert (again, asked(engine), running.reused) == (texts(more), ["row 0"] * 2, 40)


Damage = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ rng.randint(1, 255)]) + data[place + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def lose(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 50) :]


def shuffle(data: bytes, rng: random.Random) -> bytes:
    parts = [data[start : start + ENTRY] for start in range(0, len(data), ENTRY)]
    rng.shuffle(parts)
    return b"".join(parts)


def swap_keys(data: bytes, rng: random.Random) -> bytes:
    """Each digest with the key and the checksum of another."""
    parts = [data[start : start + ENTRY] for start in range(0, len(data), ENTRY)]
    return b"".join(
        one[:16] + two[16:] for one, two in zip(parts, parts[1:] + parts[:1], strict=True)
    )


def fill(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(data))


@pytest.mark.parametrize("damage", [flip, cut, lose, shuffle, swap_keys, fill])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_map_costs_time_and_nothing_else(
    damage: Damage, seed: int, tmp_path: Path
) -> None:
    run(FakeEngine(echo), tmp_path, ROWS)
    whole = entries(tmp_path)
    path, engine = tmp_path / KEY_MAP, FakeEngine(echo)
    path.write_bytes(damage(path.read_bytes(), random.Random(seed)))
    again, running = run(engine, tmp_path, ROWS)
    assert (again, engine.calls, running.reused) == (texts(ROWS), [], 40)
    assert entries(tmp_path) == whole


@pytest.mark.parametrize("kind", ["missing", "a folder", "a link to nothing", "read only"])
def test_a_map_that_cannot_be_read_or_written_stops_no_job(kind: str, tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:-1])
    path = tmp_path / KEY_MAP
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link to nothing":
        path.symlink_to(tmp_path / "no" / "such")
    elif kind == "read only":
        path.write_bytes(b"x" * 100)
        path.chmod(0o444)
    engine = FakeEngine(echo)
    again, _ = run(engine, tmp_path, ROWS)
    assert (again, asked(engine)) == (texts(ROWS), ["row 39"])


def test_a_full_disk_ends_the_map_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(key_map, "_own_file", lambda path, opened: full)
    monkeypatch.setattr(key_map, "_TOGETHER", 2)
    again, _ = run(FakeEngine(echo), tmp_path, ROWS)
    assert again == texts(ROWS)
    assert not (tmp_path / KEY_MAP).exists()
    os.close(full)


def test_a_map_of_which_another_process_writes_is_read(tmp_path: Path) -> None:
    with KeyMap(tmp_path, "a") as writer:
        writer.keep(entry_of(writer.digest({"prompt": "a"}) or b"", b"k" * 16, 1))
        with KeyMap(tmp_path, "a") as other:
            other.keep(entry_of(other.digest({"prompt": "b"}) or b"", b"l" * 16, 2))
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"prompt": "a", "n": 1}, {"prompt": "a", "n": True}),
        ({"prompt": "a"}, {"prompt": "a", "id": None}),
        (b'{"prompt": "a"}', b'{"prompt": "b"}'),
        (b"a", {"prompt": "a"}),
    ],
)
def test_other_requests_have_other_digests(before: Any, after: Any, tmp_path: Path) -> None:
    keys = KeyMap(tmp_path, "a")
    assert keys.digest(before) != keys.digest(after)
    assert keys.digest(before) == KeyMap(tmp_path, "a").digest(before)
    assert keys.digest(before) != KeyMap(tmp_path, "b").digest(before)
    for foreign in ("a", pg.TextGenerationRequest(prompt="a"), {"prompt": object()}, None):
        assert keys.digest(foreign) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [*rows[:5], {**rows[5], "prompt": "another"}, *rows[6:]],
        lambda rows: [{"id": "new", "prompt": "new"}, *rows],
        lambda rows: [*rows, {"id": "new", "prompt": "new"}],
        lambda rows: rows[1:],
        lambda rows: rows[:-1],
        lambda rows: [*rows[10:], *rows[:10]],
        lambda rows: rows[::-1],
        lambda rows: random.Random(3).sample(rows, len(rows)),
        lambda rows: [row for row in rows for _ in range(2)],
        lambda rows: [{**row, "prompt": row["prompt"] + "?"} for row in rows],
        lambda rows: [],
    ],
)
@pytest.mark.parametrize("together", [2, 4096])
def test_whatever_is_changed_in_the_input_the_rows_are_those_of_a_job_without_a_map(
    change: Any, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_map, "_TOGETHER", together)
    changed, engines = change(ROWS), [FakeEngine(echo), FakeEngine(echo)]
    for engine, folder in zip(engines, ("with", "without"), strict=True):
        run(FakeEngine(echo), tmp_path / folder, ROWS)
        if folder == "without":
            (tmp_path / folder / KEY_MAP).unlink()
        assert run(engine, tmp_path / folder, changed)[0] == texts(changed)
    assert sorted(asked(engines[0])) == sorted(asked(engines[1]))
    for requests in (changed, ROWS):
        engine = FakeEngine(echo)
        assert run(engine, tmp_path / "with", requests)[0] == texts(requests)
        assert engine.calls == []


def test_the_map_of_a_changed_input_is_whole_again_after_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:30])
    changed = [*ROWS[20:30], {"id": "new", "prompt": "new"}, *ROWS[5:20]]
    run(FakeEngine(echo), tmp_path, changed)
    assert len(entries(tmp_path)) == len(changed)
    seen = read_requests(monkeypatch)
    run(FakeEngine(echo), tmp_path, changed)
    assert seen == []


def test_other_settings_find_nothing_in_the_map(tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:5], {"max_new_tokens": 20})
    for options, more in (
        ({"max_new_tokens": 21}, {}),
        ({"chat": {"template": "{{ messages }}"}}, {}),
        (None, {"version": "2"}),
    ):
        engine = FakeEngine(echo)
        run(engine, tmp_path, ROWS[:5], options, **more)
        assert len(asked(engine)) == 5
    engine = FakeEngine(echo)
    assert run(engine, tmp_path, ROWS[:5], {"max_new_tokens": 20})[0] == texts(ROWS[:5])
    assert engine.calls == []


def test_what_a_request_may_ask_for_is_judged_anew(tmp_path: Path) -> None:
    requests = [{"id": "a", "prompt": "a", "options": {"stop": ["x", "y", "z"]}}]
    run(FakeEngine(echo), tmp_path, requests)
    policy = pg.RequestPolicy(max_stops=2)
    with job(pg.route(FakeEngine(echo)), requests, tmp_path, policy=policy) as running:
        assert isinstance(next(running).failure(), pg.InvalidRequest)


def test_requests_with_images_are_not_in_the_map(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(b"one image")
    requests = [{"id": "a", "prompt": "a", "images": [str(image)]}, ROWS[1]]
    engine = FakeEngine(echo)
    for content, reused in ((b"one image", 0), (b"one image", 2), (b"other one", 1)):
        image.write_bytes(content)
        with job(pg.route(engine), requests, tmp_path / "job") as running:
            assert all(map(pg.is_ok, running))
        assert running.reused == reused
        assert len(entries(tmp_path / "job")) == 1


class Killed(BaseException):
    """As a kill: nothing is closed in order."""


@pytest.mark.parametrize("rows_before", [1, 7, 33, 39])
def test_what_was_read_before_a_kill_is_in_the_map(
    rows_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_map, "_TOGETHER", 4)
    monkeypatch.setattr(KeyMap, "close", lambda self: None)
    running = job(pg.route(FakeEngine(echo)), ROWS, tmp_path)
    for _ in range(rows_before):
        next(running)
    del running
    monkeypatch.undo()
    engine = FakeEngine(echo)
    assert run(engine, tmp_path, ROWS)[0] == texts(ROWS)
    assert len(entries(tmp_path)) == 40


@pytest.mark.parametrize("place", [0, 1, 17, 38, 39])
def test_a_missing_row_is_asked_before_others_are_given_out(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [{**row, "prompt": f"own {row['id']}"} for row in ROWS]
    run(FakeEngine(echo), tmp_path, [*requests[:place], *requests[place + 1 :]])
    monkeypatch.setattr("pipegen.jobs.kept_turns.WAITING", 4)
    given_out: list[Any] = []

    def answer(encoded: Encoded) -> str:
        assert given_out == []
        return echo(encoded)

    with job(pg.route(FakeEngine(answer)), requests, tmp_path) as running:
        given_out.extend(slot.unwrap().text for slot in running)
    assert given_out == [text for _, text in texts(requests)]
    assert (running.reused, running.answered) == (39, 1)


@pytest.mark.parametrize("keyed", [False, True])
def test_an_iterator_is_read_once_and_in_order(keyed: bool, tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:-1])
    engine, taken = FakeEngine(echo), list[str]()

    def requests() -> Any:
        for row in ROWS:
            taken.append(row["id"])
            yield (7, row) if keyed else row

    start: Any = job_keyed if keyed else job
    with start(pg.route(engine), requests(), tmp_path) as running:
        assert len(list(running)) == 40
    assert taken == [row["id"] for row in ROWS]
    assert asked(engine) == ["row 39"]


def test_pairs_in_a_list_may_be_read_twice(tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:-1])
    engine = FakeEngine(echo)
    with job_keyed(pg.route(engine), list(enumerate(ROWS)), tmp_path) as running:
        assert [(key, slot.unwrap().text) for key, slot in running] == [
            (number, text) for number, (_, text) in enumerate(texts(ROWS))
        ]
    assert asked(engine) == ["row 39"]


class Changing(list[Any]):
    """A sequence that holds other requests each time it is walked."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return iter(self[:20] if self.times > 1 else self)


def test_a_row_that_is_gone_once_its_turn_comes_is_not_given_out(tmp_path: Path) -> None:
    requests = [{"id": f"{number}", "prompt": f"own {number}"} for number in range(40)]
    run(FakeEngine(echo), tmp_path, requests[:30])
    given, running = run(FakeEngine(echo), tmp_path, Changing(requests))
    assert (len(given), running.finished) in ((20, 20), (40, 40))


class Broken(list[Any]):
    def __iter__(self) -> Any:
        yield from self[:32]
        raise LookupError("the input is broken")


def test_what_the_input_raises_is_raised_once_all_before_is_given_out(tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:2])
    given: list[Any] = []
    with job(pg.route(FakeEngine(echo)), Broken(ROWS), tmp_path) as running:  # noqa: SIM117
        with pytest.raises(LookupError):
            given.extend(running)
    assert len(given) == 32


def test_rows_that_failed_are_asked_ahead_where_retry_says_so(tmp_path: Path) -> None:
    def failing(encoded: Encoded) -> Any:
        return pg.Timeout("slow") if encoded.request.id == "row 29" else echo(encoded)

    requests = ROWS[:30]
    with job(pg.route(FakeEngine(failing)), requests, tmp_path) as running:
        assert sum(not pg.is_ok(slot) for slot in running) == 1
    for retry, again in (("none", []), ("retryable", ["row 29"])):
        engine = FakeEngine(echo)
        with job(pg.route(engine), requests, tmp_path, retry=retry) as running:
            list(running)
        assert asked(engine) == again


def test_who_runs_ahead_gives_up_where_the_map_knows_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:29])
    (tmp_path / KEY_MAP).unlink()
    monkeypatch.setattr(job_rows, "_LOOKS", 5)
    seen, engine = read_requests(monkeypatch), FakeEngine(echo)
    assert run(engine, tmp_path, ROWS[:30])[0] == texts(ROWS[:30])
    assert (len(seen), asked(engine)) == (35, ["row 29"])


def test_a_row_whose_line_cannot_be_read_is_read_as_a_request_and_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(FakeEngine(echo), tmp_path, ROWS[:3])
    engine = FakeEngine(echo)
    with job(pg.route(engine), ROWS[:3], tmp_path) as running:
        path = tmp_path / "results-0001.jsonl"
        path.write_bytes(path.read_bytes().replace(b"re: prompt 1", b"re: prompt 9"))
        assert [slot.unwrap().text for slot in running] == [f"re: prompt {n}" for n in range(3)]
    assert asked(engine) == ["row 1"]
    assert "line 2 cannot be read" in caplog.text


def test_rows_that_were_asked_ahead_and_not_given_out_are_kept_and_named(tmp_path: Path) -> None:
    requests = [{"id": f"row {number}", "prompt": f"own {number}"} for number in range(12)]
    run(FakeEngine(echo), tmp_path, requests[1:10])
    with job_keyed(
        pg.route(FakeEngine(echo)), [(row["id"], row) for row in requests], tmp_path, in_flight=1
    ) as running:
        assert next(running)[0] == "row 0"
        running.stop(5)
        list(running)
        assert {name for name, _ in running.rest()} <= {"row 10", "row 11"}
    assert run(FakeEngine(echo), tmp_path, requests)[0] == texts(requests)


def test_a_missing_row_that_is_refused_is_not_asked_ahead_of_its_turn(tmp_path: Path) -> None:
    run(FakeEngine(echo), tmp_path, [one for one in ROWS[:30] if one["id"] != ROWS[20]["id"]])
    why, engine = pg.BackendFailed("no", backend="fake"), FakeEngine(echo)

    def refused(name: int) -> pg.GenerationError | None:
        return why if name == 20 else None

    route = pg.route(engine)
    with job_keyed(route, [*enumerate(ROWS[:30])], tmp_path, refuse=refused) as running:
        slots = dict(running)
    assert slots[20].failure() is why
    assert [name for name, slot in slots.items() if not isinstance(slot, pg.Success)] == [20]
    assert engine.calls == []


def test_a_map_that_breaks_lets_go_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> KeyMap:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("pipegen.jobs.runner.KeyMap", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            run(FakeEngine(echo), tmp_path, ROWS[:3])
    rows_again, _ = run(FakeEngine(echo), tmp_path, ROWS[:3])
    assert rows_again == texts(ROWS[:3])


def read_to_the_end(folder: Path, requests: list[dict[str, Any]], stamp: str = "as it is") -> None:
    """Run a job over an input that has this stamp."""
    engine = pg.route(FakeEngine(echo))
    pairs = [(one["id"], one) for one in requests]
    with start_job(
        engine, iter(pairs), folder, Admission(), again=lambda: iter(pairs), stamp=stamp
    ) as running:
        assert len(list(running)) == len(requests)


def test_a_shard_asks_for_its_rows_alone_and_notes_those_of_the_others(tmp_path: Path) -> None:
    requests, answered = [*ROWS[:30], {"id": "no request", "prompt": 5}], []
    for shard in (1, 2):
        engine = FakeEngine(echo)
        with start_job(
            pg.route(engine), enumerate(requests), tmp_path, Admission(), part=(shard, 2)
        ) as running:
            mine = [slot.unwrap().id for _, slot in running if pg.is_ok(slot)]
        assert mine == asked(engine)
        assert len(entries(tmp_path)) == 30
        answered += mine
    assert sorted(answered) == sorted(one["id"] for one in ROWS[:30])


@pytest.mark.parametrize("part", [None, (1, 2), (2, 2)])
def test_what_is_missing_of_the_same_input_is_found_in_the_map(
    part: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [{"id": f"row {number}", "prompt": f"prompt {number}"} for number in range(40)]
    read_to_the_end(tmp_path, requests)
    (results,) = tmp_path.glob("results-*.jsonl")
    lines = results.read_bytes().splitlines(keepends=True)
    left_out = [line for line in lines if json.loads(line)["id"] in ("row 3", "row 30", "row 31")]
    results.write_bytes(b"".join(line for line in lines if line not in left_out))
    settings = read_settings(tmp_path) or {}
    context = context_of(settings, pg.RequestPolicy())
    wanted = [requests[number] for number in (3, 30, 31)]
    if part is not None:
        wanted = [*pg.shard(wanted, *part)]
    how: dict[str, Any] = {"again": job_rows.retry_of("retryable"), "part": part}
    for stamp, digests in (("as it is", 0), ("changed", 40)):
        known = KeyMap(tmp_path, context, stamp=stamp, writes=False).ahead()
        digest = mock.Mock(wraps=known.digest)
        monkeypatch.setattr(known, "digest", digest)
        with Finished(tmp_path) as finished:
            found = job_rows.missing_rows(
                lambda: ((one["id"], one) for one in requests),
                finished,
                Keys(settings),
                Admission(),
                known=known,
                **how,
            )
            assert [row.name for row in found] == [one["id"] for one in wanted]
        assert digest.call_count == digests


def test_an_input_counts_as_read_where_each_of_its_rows_has_an_entry(tmp_path: Path) -> None:
    requests = [{"id": f"row {number}", "prompt": f"prompt {number % 3}"} for number in range(9)]
    read_to_the_end(tmp_path / "whole", requests)
    assert rows_in(tmp_path / "whole", "as it is") == 9
    assert rows_in(tmp_path / "whole", "changed") is None
    read_to_the_end(tmp_path / "broken", [*requests, {"id": "broken", "prompt": 7}])
    read_to_the_end(tmp_path / "unstamped", requests, stamp="")
    with KeyMap(tmp_path / "whole", "of others", stamp="not read"):
        pass  # stopped before it read a row
    assert rows_in(tmp_path / "whole", "not read") is None
    for name in ("broken", "unstamped"):
        assert not (tmp_path / name / INPUT).exists()
