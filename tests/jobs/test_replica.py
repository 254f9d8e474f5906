"""A replica: rows handed over at any time go through one engine, are kept, and a row that kills its
process is found.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.drivers.arguments import Admission
from pipegen.jobs.in_flight import InFlight, SuspectQueue
from pipegen.jobs.journal import Finished, Journal
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.replica import FRUITLESS, UNTRIED, Replica
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

WAIT = 60.0


def key_of(number: int) -> str:
    return f"{number:04x}" * 8


def request(number: int) -> Any:
    return Success(pg.TextGenerationRequest(id=f"row {number}", prompt=f"prompt {number}"))


def prompts(engine: FakeEngine) -> list[list[int]]:
    """The numbers of the rows of each call."""
    return [
        [int(engine.tokenizer.decode(asked.prompt.token_ids).rpartition(" ")[2]) for asked in call]
        for call in engine.calls
    ]


@contextlib.contextmanager
def replica(engine: FakeEngine, folder: Path | None = None, **how: Any) -> Iterator[Replica]:
    made = Replica(pg.route(engine), Admission(), folder=folder, run="run", owner="a", **how)
    try:
        yield made
    finally:
        made.close(0)


def dead(folder: Path, *numbers: int, owner: str = "a", answered: bool = False) -> None:
    """A process of the run that died while these rows were in flight."""
    folder.mkdir(exist_ok=True)
    left = InFlight(folder, "run", owner)
    left._remove.detach()
    if answered:
        left.worked()
    for number in numbers:
        left.begin(key_of(number))


def test_rows_get_the_slots_that_a_batch_gives() -> None:
    engine = FakeEngine(lambda encoded: f"answer {len(encoded.prompt.token_ids)}<|im_end|>")
    rows = [request(number) for number in range(40)] + [Failure(pg.InvalidRequest("broken"))]
    with replica(engine) as one:
        slots = tuple(one.ask(None, row).result(WAIT) for row in rows)
    assert slots == pg.run(pg.route(engine), rows)
    assert engine.closed == 1


def test_equal_keys_share_one_answer_and_a_finished_row_is_not_asked_again(tmp_path: Path) -> None:
    engine = FakeEngine("yes<|im_end|>")
    for _ in range(2):
        with replica(engine, tmp_path) as one:
            slots = [one.ask(key_of(1), request(1)) for _ in range(3)]
            assert [slot.result(WAIT).unwrap().text for slot in slots] == ["yes"] * 3
    assert prompts(engine) == [[1]]
    with Finished(tmp_path) as finished:
        assert len(finished) == 1
    assert list(tmp_path.glob("running-*")) == []


def test_a_failure_is_asked_again_where_the_retry_says_so(tmp_path: Path) -> None:
    for error, asked in ((pg.Timeout("slow"), 2), (pg.BadImage(0), 1)):
        engine, folder = (
            FakeEngine(lambda encoded, error=error: error),
            tmp_path / type(error).__name__,
        )
        for _ in range(2):
            with replica(engine, folder) as one:
                assert one.ask(key_of(1), request(1)).result(WAIT).failure() == error
        assert len(engine.calls) == asked


def test_rows_that_were_in_flight_at_a_death_go_first_and_in_small_groups(tmp_path: Path) -> None:
    dead(tmp_path, *range(9), answered=True)
    engine = FakeEngine("yes<|im_end|>")
    with replica(engine, tmp_path) as one:
        slots = [one.ask(key_of(number), request(number)) for number in range(30)]
        assert all(pg.is_ok(slot.result(WAIT)) for slot in slots)
    calls = prompts(engine)
    assert sorted(chain.from_iterable(calls)) == list(range(30))
    with_suspects = [call for call in calls if min(call) < 9]
    assert all(max(call) < 9 and len(call) <= 3 for call in with_suspects)


def test_rows_that_were_in_flight_at_two_deaths_go_alone(tmp_path: Path) -> None:
    dead(tmp_path, *range(9))
    dead(tmp_path, 4, 5)
    engine = FakeEngine("yes<|im_end|>")
    with replica(engine, tmp_path) as one:
        for slot in [one.ask(key_of(number), request(number)) for number in range(12)]:
            assert pg.is_ok(slot.result(WAIT))
    assert {tuple(call) for call in prompts(engine) if 4 in call or 5 in call} == {(4,), (5,)}


def test_a_row_whose_process_died_three_times_fails_and_is_kept(tmp_path: Path) -> None:
    for _ in range(3):
        dead(tmp_path, 7, answered=True)
    engine = FakeEngine("yes<|im_end|>")
    for _ in range(2):
        with replica(engine, tmp_path) as one:
            failure = one.ask(key_of(7), request(7)).result(WAIT).failure()
            assert pg.is_ok(one.ask(key_of(8), request(8)).result(WAIT))
    assert (type(failure), failure.scope) == (BackendFailed, "row")
    assert "request 'row 7' and on no other" in failure.message
    assert "died 3 times" in failure.message
    assert prompts(engine) == [[8]]
    lines = [line for path in tmp_path.glob("results-*") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["key"] for line in lines) == [key_of(7), key_of(8)]


def test_only_deaths_of_the_same_run_count(tmp_path: Path) -> None:
    tmp_path.joinpath("job").mkdir()
    other = InFlight(tmp_path / "job", "another run", "a")
    other.begin(key_of(1))
    alive = InFlight(tmp_path / "job", "run", "b")
    alive.begin(key_of(2))
    assert InFlight(tmp_path / "job", "run", "a").deaths == {}
    alive.close()
    alive.close()
    assert not any("another" in path.name for path in tmp_path.glob("job/running-*"))


def test_a_row_has_a_place_of_its_own_as_long_as_it_is_in_flight(tmp_path: Path) -> None:
    way = InFlight(tmp_path, "run", "a")
    for number in range(3):
        way.begin(key_of(number))
    way.end(key_of(1))
    way.begin(key_of(3))
    second = InFlight(tmp_path, "run", "a")
    assert (second.deaths, second.alone) == ({key_of(number): 1 for number in (0, 2, 3)}, {})
    # the second file is that of who looked
    assert sum(path.stat().st_size for path in tmp_path.glob("running-*")) == (1 + 3) * 33 + 33


def test_a_folder_that_cannot_be_written_is_an_error_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        InFlight(tmp_path / "missing", "run", "a")


def test_the_death_of_the_engine_is_told_and_raises_for_all_rows(tmp_path: Path) -> None:
    died: list[CallFailed] = []
    fault = CallFailed(BackendFailed("the device is gone", backend="fake"))
    answers = iter(["yes<|im_end|>"])

    def script(encoded: Encoded) -> str:
        made = next(answers, None)
        if made is None:
            raise fault
        return made

    with replica(FakeEngine(script), tmp_path, died=died.append) as one:
        assert pg.is_ok(one.ask(key_of(0), request(0)).result(WAIT))
        for number in (1, 2):
            with pytest.raises(CallFailed, match="the device is gone"):
                one.ask(key_of(number), request(number)).result(WAIT)
    assert len(died) == 1
    with Finished(tmp_path) as finished:
        assert len(finished) == 1


def test_a_process_that_has_answered_nothing_blames_no_row(tmp_path: Path) -> None:
    """Perhaps its engine cannot load: a row beside the suspect is asked first, and then it."""
    for _ in range(UNTRIED - 1):
        dead(tmp_path, 7)
    assert InFlight(tmp_path, "run", "a").alone == {}
    engine = FakeEngine("yes<|im_end|>")
    with replica(engine, tmp_path) as one:
        slots = [one.ask(key_of(number), request(number)) for number in (7, 8)]
        assert all(pg.is_ok(slot.result(WAIT)) for slot in slots)
    noted = InFlight(tmp_path, "run", "b")
    waiting = SuspectQueue[str](noted)
    dead(tmp_path, 3, owner="c")
    later = SuspectQueue[str](InFlight(tmp_path, "run", "c"))
    for rows in (waiting, later):
        rows.add(key_of(3), "suspect")
        rows.add(key_of(4), "another")
    assert [later.next(), later.next()] == ["another", None]
    later.ended()
    assert later.next() == "suspect"


def test_a_death_counts_from_the_first_answer_of_its_replica_on(tmp_path: Path) -> None:
    for answered in (False, True, False):
        dead(tmp_path, 7, answered=answered)
    noted = InFlight(tmp_path, "run", "a")
    assert (noted.answers, noted.deaths, noted.alone) == (True, {key_of(7): 3}, {key_of(7): 2})
    # what a process without a name leaves counts as before
    left = InFlight(tmp_path)
    left._remove.detach()
    left.begin(key_of(8))
    os.close(left._fd)
    assert InFlight(tmp_path, "run", "b").alone[key_of(8)] == 1


def test_processes_that_die_before_any_answer_end_the_replica_soon(tmp_path: Path) -> None:
    for number in range(UNTRIED):
        dead(tmp_path, number)
    with (
        pytest.raises(
            CallFailed, match="3 processes in a row died here before a request succeeded"
        ),
        replica(FakeEngine("yes<|im_end|>"), tmp_path),
    ):
        pass


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"")
    with (
        pytest.raises(JournalError, match="holds other files"),
        replica(FakeEngine("yes<|im_end|>"), tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["cat.png"]


def test_an_engine_that_does_not_load_has_not_died(tmp_path: Path) -> None:
    died: list[CallFailed] = []
    fault = CallFailed(BackendFailed("the weights are not there", backend="fake"))
    with (
        replica(FakeEngine("", fault=fault), tmp_path, died=died.append) as one,
        pytest.raises(CallFailed, match="not there"),
    ):
        one.ask(key_of(0), request(0)).result(WAIT)
    assert died == []
    assert list(tmp_path.glob("running-*")) == []


def test_a_row_that_cannot_be_kept_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise JournalError("no space")

    with replica(FakeEngine("yes<|im_end|>"), tmp_path) as one:
        monkeypatch.setattr("pipegen.jobs.journal.Journal.append", full)
        with pytest.raises(JournalError, match="no space"):
            one.ask(key_of(0), request(0)).result(WAIT)


def test_a_closed_replica_takes_no_rows() -> None:
    with replica(FakeEngine("yes")) as one:
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        one.ask(None, request(1)).result(WAIT)


def test_an_engine_that_kills_every_process_ends_the_replica(tmp_path: Path) -> None:
    dead(tmp_path, 0, answered=True)
    for number in range(FRUITLESS - 1):
        dead(tmp_path, number)
    with replica(FakeEngine("yes<|im_end|>"), tmp_path):
        pass  # one more may begin
    dead(tmp_path, 77)
    with (
        pytest.raises(CallFailed, match="died here before a request succeeded"),
        replica(FakeEngine("yes<|im_end|>"), tmp_path),
    ):
        pass


def test_a_process_that_answered_a_row_ends_the_count(tmp_path: Path) -> None:
    for worked in (False, True, False, False):
        way = InFlight(tmp_path, "run", "a")
        way._remove.detach()
        if worked:
            way.worked()
    fruitful_last = sorted(tmp_path.glob("running-*"), key=lambda path: b"+" in path.read_bytes())
    for path, when in zip(fruitful_last, (1000, 3000, 4000, 2000), strict=True):
        os.utime(path, ns=(0, when))
    assert InFlight(tmp_path, "run", "a").fruitless == 2
    assert InFlight(tmp_path, "run", "b").fruitless == 0


def test_a_conversation_goes_on_where_its_process_died(tmp_path: Path) -> None:
    turns = ("One?", "Two?", "Three?", "Four?")
    talk: Any = Success(pg.TextGenerationRequest(id="talk", turns=turns))
    wanted = pg.run(pg.turns(pg.route(FakeEngine("yes<|im_end|>"))), [talk])[0].unwrap()

    def dies(encoded: Encoded) -> Any:
        if "Three?" in str(encoded.request.messages):
            raise CallFailed(BackendFailed("the device is gone", backend="fake"))
        return "yes<|im_end|>"

    for engine, calls in ((FakeEngine(dies), 3), (FakeEngine("yes<|im_end|>"), 2)):
        one = Replica(
            pg.turns(pg.route(engine)), Admission(), folder=tmp_path, run="run", owner="a"
        )
        slot = one.ask(key_of(1), talk)
        if calls == 3:
            with pytest.raises(CallFailed, match="the device is gone"):
                slot.result(WAIT)
        else:
            assert slot.result(WAIT).unwrap() == wanted
        one.close(0)
        assert len(engine.calls) == calls


def test_a_row_that_failed_for_good_and_is_asked_again_begins_anew(tmp_path: Path) -> None:
    talk: Any = Success(pg.TextGenerationRequest(id="talk", turns=("One?", "Two?")))

    def fails(encoded: Encoded) -> Any:
        return pg.BadImage(0) if "Two?" in str(encoded.request.messages) else "yes<|im_end|>"

    for retry, calls in (("retryable", 2), ("retryable", 0), ("all", 2)):
        engine = FakeEngine(fails)
        one = Replica(
            pg.turns(pg.route(engine)), Admission(), folder=tmp_path, run="run", retry=retry
        )
        assert one.ask(key_of(1), talk).result(WAIT).failure() == pg.BadImage(0)
        one.close(0)
        assert len(engine.calls) == calls


def test_arguments_that_make_no_sense_leave_no_lock(tmp_path: Path) -> None:
    wrong: Any = "many"
    with pytest.raises((TypeError, ValueError), match="in_flight"):
        Replica(pg.route(FakeEngine("yes")), Admission(), folder=tmp_path, in_flight=wrong)
    with Journal(tmp_path):
        assert [path.name for path in tmp_path.glob("*")] == ["results-0001.jsonl"]
