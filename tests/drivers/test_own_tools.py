"""Tools of one conversation (`pg.tools(make=f)`), and calls of one answer side by side."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise
from support.tool_talks import asked, calls, replies

import pipegen as pg
from pipegen.drivers.tool_loop import OwnLoop, PendingCalls
from pipegen.drivers.tool_schema import methods_of, says
from pipegen.testing.fake import FakeEngine

ROWS = 6


def script(row: Any) -> str:
    """Adds 1 three times, and then says what it has."""
    answers = replies(row)
    return f"{answers[-1]}.<|im_end|>" if len(answers) == 3 else calls(("add", {"amount": 1}))


class Accounts:
    """Makes an account for each conversation, and knows which are open."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.closed: list[Any] = []

    def __call__(self, request: pg.GenerationRequest) -> Account:
        account = Account(self, request.id or "")
        self.made.append(account)
        return account

    @property
    def all_closed(self) -> bool:
        return Counter(map(id, self.made)) == Counter(map(id, self.closed))


class Account:
    def __init__(self, accounts: Accounts, name: str) -> None:
        self._accounts, self.name, self.sum = accounts, name, 0

    @property
    def broken(self) -> Any:
        raise ValueError("nobody asks for it")

    def add(self, amount: int) -> str:
        """Adds to the account."""
        self.sum += amount
        return f"{self.name} has {self.sum}"

    @staticmethod
    def none() -> None:
        """Nothing."""

    def _hidden(self) -> None: ...

    def close(self) -> None:
        self._accounts.closed.append(self)


def agent(make: Any, script: Any = script, **more: Any) -> Any:
    return pg.turns(pg.route(FakeEngine(script)), pg.tools(make=make, **more))


async def collected(pipe: Any, requests: list[Any]) -> list[Any]:
    return [slot async for slot in pg.aimap(pipe, requests)]


DRIVERS: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "run": lambda pipe, requests: [*pg.run(pipe, requests)],
    "imap": lambda pipe, requests: [*pg.imap(pipe, requests)],
    "arun": lambda pipe, requests: [*asyncio.run(pg.arun(pipe, requests))],
    "aimap": lambda pipe, requests: asyncio.run(collected(pipe, requests)),
}


@pytest.mark.parametrize("drive", DRIVERS)
def test_each_conversation_has_its_own_tools(drive: str) -> None:
    accounts = Accounts()
    slots = DRIVERS[drive](agent(accounts), [asked(number) for number in range(ROWS)])
    assert [slot.unwrap().text for slot in slots] == [f"row {n} has 3." for n in range(ROWS)]
    assert len(accounts.made) == ROWS and accounts.all_closed
    schemas = slots[0].unwrap().turn.request.tools
    assert [one["function"]["name"] for one in schemas] == ["add", "none"]


@pytest.mark.parametrize("drive", DRIVERS)
def test_make_and_close_may_be_async(drive: str) -> None:
    loops: list[Any] = []

    class Counted:
        async def count(self) -> int:
            """Counts."""
            loops.append(asyncio.get_running_loop())
            return len(loops)

        async def close(self) -> None:
            loops.append(asyncio.get_running_loop())

    async def make(request: pg.GenerationRequest) -> Counted:
        loops.append(asyncio.get_running_loop())
        return Counted()

    def once(row: Any) -> str:
        return "done<|im_end|>" if replies(row) else calls(("count", {}))

    (slot,) = DRIVERS[drive](agent(make, once), [asked()])
    assert slot.unwrap().text == "done"
    assert len(loops) == 3 and len({*map(id, loops)}) == 1


def test_samples_have_an_object_each() -> None:
    accounts = Accounts()
    options = {"samples": 3, "temperature": 1.0, "seed": 1}
    (slot,) = pg.run(agent(accounts), [asked()], options)
    assert [sample.text for sample in slot.unwrap().samples] == ["row 0 has 3."] * 3
    assert len(accounts.made) == 3 and accounts.all_closed


def test_conversations_within_a_loop_and_a_fallback_are_each_their_own() -> None:
    accounts = Accounts()
    again = pg.repeat(agent(accounts), lambda result: asked(7), limit=2)
    (slot,) = pg.run(again, [asked()])
    assert [one.text for one in slot.unwrap().rounds] == ["row 0 has 3.", "row 7 has 3."]
    assert len(accounts.made) == 2 and accounts.all_closed
    broken = pg.route(FakeEngine("a", fault=pg.CallFailed(pg.BackendFailed("down"))))
    toolbox = pg.tools(make=accounts)
    pipe = pg.fallback(pg.turns(broken, toolbox), agent(accounts), when=pg.BackendFailed)
    assert pg.run(pipe, [asked()])[0].unwrap().text == "row 0 has 3."
    assert len(accounts.made) == 4 and accounts.all_closed


@pytest.mark.parametrize("drive", DRIVERS)
def test_what_make_raises_fails_its_own_row(drive: str, caplog: pytest.LogCaptureFixture) -> None:
    accounts = Accounts()

    def make(request: pg.GenerationRequest) -> Account:
        if request.id == "row 1":
            raise LookupError("no account")
        return accounts(request)

    with caplog.at_level(logging.ERROR, "pipegen"):
        first, second, third = DRIVERS[drive](agent(make), [asked(n) for n in range(3)])
    error = second.failure()
    assert type(error) is pg.StageFailed and "LookupError: no account" in error.message
    assert error.incident and error.incident in caplog.text and "Traceback" in caplog.text
    assert [first.unwrap().text, third.unwrap().text] == ["row 0 has 3.", "row 2 has 3."]
    assert len(accounts.made) == 2 and accounts.all_closed


def leaves(request: Any) -> Any:
    sys.exit(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda request: 3, "one function or more, and make= an object with methods"),
        (lambda request: [3], "a tool is a function or can be called"),
        (leaves, "it ended its thread, as sys.exit() does"),
    ],
)
def test_what_makes_no_tools_fails_the_row(make: Any, words: str) -> None:
    error = pg.run(agent(make), [asked()])[0].failure()
    assert type(error) is pg.StageFailed and words in error.message


def test_make_may_fail_its_row_itself() -> None:
    gone = pg.InvalidRequest("there is no such account")
    (slot,) = pg.run(agent(lambda request: pg.Failure(gone)), [asked()])
    assert slot.failure() is gone


def test_a_list_of_tools_may_be_made_too() -> None:
    def make(request: pg.GenerationRequest) -> Any:
        def add(amount: int) -> str:
            return f"{request.id} has {amount}"

        return [add]

    assert pg.run(agent(make), [asked()])[0].unwrap().text == "row 0 has 1."


def test_an_object_is_closed_when_its_row_fails() -> None:
    accounts = Accounts()

    def fails(row: Any) -> str:
        return calls(("add", {"amount": "wrong"})) if not replies(row) else "x" * 3000

    class Lost(FakeEngine):
        def generate(self, inputs: Any) -> Any:
            if any(replies(row) for row in inputs):
                raise pg.CallFailed(pg.BackendFailed("lost"))
            return super().generate(inputs)

    pipe = pg.turns(pg.route(Lost(fails)), pg.tools(make=accounts))
    assert isinstance(pg.run(pipe, [asked()])[0].failure(), pg.BackendFailed)
    assert len(accounts.made) == 1 and accounts.all_closed

    def wrong(result: pg.GenerationResult) -> Any:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        pg.run(
            pg.turns(pg.route(FakeEngine(script)), pg.tools(make=accounts)) >> wrong_stage(wrong),
            [asked()],
        )
    assert len(accounts.made) == 2 and accounts.all_closed


def wrong_stage(function: Any) -> Any:
    return pg.pure("wrong", function)


class Crashing(FakeEngine):
    """Its calls raise a bug once a tool has answered the row `bad`."""

    def generate(self, inputs: Any) -> Any:
        if any(row.request.id == "row 1" and replies(row) for row in inputs):
            raise ZeroDivisionError("a bug of the engine")
        return super().generate(inputs)


def test_rows_that_are_run_again_have_new_objects(tmp_path: Path) -> None:
    accounts = Accounts()
    pipe = pg.turns(pg.route(Crashing(script)), pg.tools(make=accounts))
    with pg.job(pipe, [asked(n) for n in range(3)], tmp_path / "job") as running:
        slots = [*running]
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    assert slots[0].unwrap().text == "row 0 has 3." and accounts.all_closed


@pytest.mark.parametrize("drive", ["imap", "aimap"])
def test_objects_are_closed_when_the_iterator_is_left(drive: str) -> None:
    accounts = Accounts()
    requests = (asked(number) for number in range(1000))
    if drive == "imap":
        slots = pg.imap(agent(accounts), requests, in_flight=4)
        next(iter(slots))
        slots.close()
    else:

        async def left() -> None:
            async for _ in (slots := pg.aimap(agent(accounts), requests, in_flight=4)):
                break
            await slots.aclose()

        asyncio.run(left())
    assert 1 <= len(accounts.made) < 1000 and accounts.all_closed


def test_an_object_that_comes_late_is_closed_at_once() -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Late:
        def look(self) -> str:
            return "seen"

        def close(self) -> None:
            closed.set()

    def make(request: pg.GenerationRequest) -> Late:
        begun.set()
        go_on.wait(60)
        return Late()

    error = pg.run(agent(make, timeout=0.05), [asked()])[0].failure()
    assert "TimeoutError" in error.message and begun.is_set() and not closed.is_set()
    go_on.set()
    assert closed.wait(60)


def test_a_cancelled_conversation_closes_its_object() -> None:
    accounts = Accounts()

    class Waiting(Account):
        async def wait(self) -> None:
            """Waits for ever."""
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()

    def make(request: pg.GenerationRequest) -> Account:
        accounts.made.append(Waiting(accounts, "a"))
        return accounts.made[-1]

    async def cancelled() -> None:
        pipe = agent(make, lambda row: calls(("wait", {})))
        running = asyncio.ensure_future(pg.arun(pipe, [asked()]))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(accounts.made) == 1 and accounts.all_closed

    asyncio.run(cancelled())


def test_what_close_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def add(self, amount: int) -> str:
            return "1"

        def close(self) -> None:
            raise OSError("no disk")

    class Leaving(Broken):
        def close(self) -> None:
            sys.exit(1)

    with caplog.at_level(logging.ERROR, "pipegen"):
        for kind in (Broken, Leaving):
            assert pg.run(agent(lambda request: kind()), [asked()])[0].unwrap().text == "1."  # noqa: B023
    assert "OSError: no disk" in caplog.text and "it ended its thread" in caplog.text


def test_a_request_with_other_tools_and_wrong_arguments_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    error = pg.run(agent(Accounts()), [asked(tools=[tool])])[0].failure()
    assert isinstance(error, pg.InvalidRequest)
    for wrong in ({}, {"make": 3}, {"functions": [leaves], "make": leaves}):
        with pytest.raises(TypeError, match="a list of functions, or make=f"):
            pg.tools(**wrong)  # type: ignore[arg-type]
    for name in ("parallel", "replays"):
        with pytest.raises(TypeError, match=f"{name} takes True or False, not 1"):
            pg.tools([leaves], **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["parallel", "replays"])
@pytest.mark.parametrize("where", ["function", "object"])
def test_what_a_tool_says_of_itself_is_true_or_false(name: str, where: str) -> None:
    class Own:
        def look(self) -> str:
            return "seen"

    def look() -> str:
        return "seen"

    own = Own()
    setattr(look if where == "function" else own, name, "no")
    with pytest.raises(TypeError, match=f"{name} of 'look' takes True or False, not 'no'"):
        pg.tools([look if where == "function" else own.look])
    if where == "object":
        error = pg.run(agent(lambda request: own), [asked()])[0].failure()
        assert f"{name} of 'look' takes True or False, not 'no'" in error.message
    for good in (True, False):
        setattr(look, name, good)
        assert pg.tools([look]).schemas


def test_the_name_of_make_is_a_part_of_a_jobs_key() -> None:
    def other(request: pg.GenerationRequest) -> Any: ...

    assert agent(leaves).stages == agent(leaves).stages != agent(other).stages


# A job that goes on.


def run_until(pipe: Any, folder: Path, requests: list[Any], **more: Any) -> list[Any]:
    slots: list[Any] = []
    try:
        with pg.job(pipe, requests, folder, grace=0, **more) as job:
            slots.extend(job)
    except KeyboardInterrupt:
        pass
    return slots


@pytest.mark.parametrize("samples", [1, 2])
def test_a_job_makes_the_earlier_calls_again_on_a_new_object(samples: int, tmp_path: Path) -> None:
    def run(folder: Path, fuse: Fuse, accounts: Accounts, **more: Any) -> list[Any]:
        pipe = pg.turns(pg.route(Rowwise(script, fuse)), pg.tools(make=accounts))
        options = {"samples": samples, "seed": 8, "temperature": 1.0}
        return run_until(pipe, folder, [asked(options=options)], **more)

    whole, accounts = Fuse(), Accounts()
    (wanted,) = run(tmp_path / "whole", whole, accounts)
    for at in range(len(whole.asked)):
        accounts = Accounts()
        assert run(tmp_path / str(at), Fuse(at), accounts) == []
        assert accounts.all_closed
        (slot,) = run(tmp_path / str(at), Fuse(), accounts)
        assert slot == wanted
        assert len(accounts.made) == 2 * samples and accounts.all_closed
        assert [one.sum for one in accounts.made[-samples:]] == [3] * samples


@pytest.mark.parametrize("where", ["tools", "object", "tool"])
def test_what_may_not_be_called_again_fails_the_row_in_words(where: str, tmp_path: Path) -> None:
    class Once(Account):
        def add(self, amount: int) -> str:
            return super().add(amount)

    if where == "tool":
        Once.add.replays = False  # type: ignore[attr-defined]
    if where == "object":
        Once.replays = False  # type: ignore[attr-defined]
    accounts = Accounts()

    def make(request: pg.GenerationRequest) -> Account:
        accounts.made.append(Once(accounts, request.id or ""))
        return accounts.made[-1]

    def run(fuse: Fuse, **more: Any) -> list[Any]:
        toolbox = pg.tools(make=make, replays=where != "tools")
        return run_until(
            pg.turns(pg.route(Rowwise(script, fuse)), toolbox), tmp_path / "job", [asked()], **more
        )

    assert run(Fuse(2)) == []
    (slot,) = run(Fuse())
    assert isinstance(slot.failure(), pg.StageFailed) and "replays=False" in slot.failure().message
    (slot,) = run(Fuse(), retry="StageFailed")  # from its beginning
    assert slot.unwrap().text == "row 0 has 3." and accounts.all_closed


def test_what_raises_when_it_is_called_again(tmp_path: Path) -> None:
    class Odd(Account):
        def add(self, amount: int) -> str:
            if len(self._accounts.made) > 1 and self.sum == 0:
                self.sum += amount
                raise ValueError("another time")
            return super().add(amount)

    for raised, text in (("message", "row 0 has 3."), ("fail", None)):
        accounts = Accounts()

        def make(request: pg.GenerationRequest, accounts: Accounts = accounts) -> Account:
            accounts.made.append(Odd(accounts, request.id or ""))
            return accounts.made[-1]

        def run(fuse: Fuse, make: Any = make, raised: Any = raised) -> list[Any]:
            toolbox = pg.tools(make=make, raised=raised)
            pipe = pg.turns(pg.route(Rowwise(script, fuse)), toolbox)
            return run_until(pipe, tmp_path / raised, [asked()])

        assert run(Fuse(2)) == []
        (slot,) = run(Fuse())
        if text is None:
            assert "another time" in slot.failure().message
        else:
            assert slot.unwrap().text == text


# Calls of one answer.


def both(row: Any) -> str:
    names = ("first", "second", "third")
    return "ok<|im_end|>" if replies(row) else calls(*((name, {}) for name in names))


def tools_that_meet(count: int) -> list[Any]:
    """Tools of which so many have to run at a time."""
    barrier = threading.Barrier(count)

    def tool(name: str) -> Any:
        def meet() -> str:
            if name == "second" and count == 2:
                return name
            barrier.wait(60)
            return name

        meet.__name__ = name
        meet.parallel = True  # type: ignore[attr-defined]
        return meet

    return [*map(tool, ("first", "second", "third"))]


def test_a_method_of_such_a_name_is_a_tool_and_says_nothing() -> None:
    class Match:
        def score(self) -> str:
            "The score."
            return "2:1"

        def replays(self, minute: int) -> str:
            "Replays of a goal."
            return f"goal {minute}"

        @staticmethod
        def parallel() -> str:
            "Another match."
            return "none"

    given = pg.tools(methods_of(Match()))
    assert [schema["function"]["name"] for schema in given.schemas] == [
        *("score", "replays", "parallel"),
    ]
    assert not says(given.functions["score"], "parallel", default=False)
    assert says(given.functions["score"], "replays", default=True)


@pytest.mark.parametrize("drive", DRIVERS)
def test_calls_run_side_by_side_where_the_tools_say_so(drive: str) -> None:
    pipe = pg.turns(pg.route(FakeEngine(both)), pg.tools(tools_that_meet(3)))
    (slot,) = DRIVERS[drive](pipe, [asked()])
    messages = slot.unwrap().turn.request.messages
    assert [one.content for one in messages[-3:]] == ["first", "second", "third"]


@pytest.mark.parametrize("drive", DRIVERS)
def test_async_calls_are_awaited_together(drive: str) -> None:
    met: list[str] = []
    event: list[asyncio.Event] = []

    def tool(name: str) -> Any:
        async def meet() -> str:
            event.append(asyncio.Event())
            met.append(name)
            if len(met) == 3:
                event[0].set()
            await event[0].wait()
            return name

        meet.__name__ = name
        return meet

    toolbox = pg.tools([*map(tool, ("first", "second", "third"))], parallel=True)
    (slot,) = DRIVERS[drive](pg.turns(pg.route(FakeEngine(both)), toolbox), [asked()])
    assert [one.content for one in slot.unwrap().turn.request.messages[-3:]] == [
        "first",
        "second",
        "third",
    ]
    assert sorted(met) == ["first", "second", "third"]


@pytest.mark.parametrize("raised", ["message", "fail"])
def test_an_error_of_one_call_loses_no_other(raised: Any) -> None:
    ran: list[str] = []

    def first() -> str:
        raise ValueError("no first")

    def second() -> str:
        ran.append("second")
        return "second"

    def third() -> str:
        ran.append("third")
        return "third"

    toolbox = pg.tools([first, second, third], parallel=True, raised=raised)
    (slot,) = pg.run(pg.turns(pg.route(FakeEngine(both)), toolbox), [asked()])
    assert sorted(ran) == ["second", "third"]
    if raised == "fail":
        assert "no first" in slot.failure().message
    else:
        contents = [one.content for one in slot.unwrap().turn.request.messages[-3:]]
        assert contents == ["error: ValueError: no first", "second", "third"]


def test_a_call_that_is_not_parallel_runs_alone_and_in_its_place() -> None:
    order: list[str] = []

    def tool(name: str, *, parallel: bool) -> Any:
        def run() -> str:
            order.append(name)
            return name

        run.__name__ = name
        run.parallel = parallel  # type: ignore[attr-defined]
        return run

    tools = [tool(n, parallel=n != "second") for n in ("first", "second", "third")]
    pg.run(pg.turns(pg.route(FakeEngine(both)), pg.tools(tools, parallel=True)), [asked()])
    assert order == ["first", "second", "third"]


def test_at_most_eight_calls_of_an_answer_run_at_a_time() -> None:
    running, most, lock = [0], [0], threading.Lock()
    barrier = threading.Barrier(8)

    def look() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait(60)
        with lock:
            running[0] -= 1

    def many(row: Any) -> str:
        return "ok<|im_end|>" if replies(row) else calls(*[("look", {})] * 16)

    toolbox = pg.tools([look], parallel=True)
    pipe = pg.turns(pg.route(FakeEngine(many, context_length=9000)), toolbox)
    (slot,) = pg.run(pipe, [asked()], {"max_new_tokens": 4000})
    assert slot.unwrap().text == "ok" and most[0] == 8


def test_calls_that_have_not_begun_are_left_and_bugs_come_through() -> None:
    ran: list[int] = []

    def look() -> None:
        ran.append(1)

    toolbox = pg.tools([look], parallel=True)
    them = [{"function": {"name": "look", "arguments": {}}}] * 16
    awaited = PendingCalls(OwnLoop())
    slots = toolbox.contents(them, lambda: len(ran) >= 8, awaited)
    assert 8 <= len(slots) < 16 and len(slots) == len(ran)

    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a bug")

    object.__setattr__(toolbox, "_content", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        toolbox.contents(them, lambda: False, awaited)


def test_a_tool_may_fail_its_row_itself() -> None:
    def first() -> Any:
        return pg.Failure(pg.InvalidRequest("not this one"))

    def second() -> Any:
        return pg.Failure(pg.StageFailed("gone", incident="4f"))

    def third() -> None: ...

    for tools, kind, words in (
        ([first, second, third], pg.InvalidRequest, "not this one"),
        ([second, third], pg.StageFailed, "the tool 'second' failed: gone"),
    ):
        pipe = pg.turns(pg.route(FakeEngine(both)), pg.tools(tools))
        error = pg.run(pipe, [asked()])[0].failure()
        assert type(error) is kind and words in error.message
        assert error.incident == ("4f" if kind is pg.StageFailed else "")


def test_a_tool_with_a_loop_of_its_own_is_awaited_there_or_refused_in_words() -> None:
    used: list[Any] = []

    class Looped:
        name, description, parameters = "first", "", {"type": "object"}

        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

        async def __call__(self) -> str:
            used.append(asyncio.get_running_loop())
            return "here"

    def once(row: Any) -> str:
        return f"{replies(row)[0]}<|im_end|>" if replies(row) else calls(("first", {}))

    async def main() -> Any:
        pipe = pg.turns(pg.route(FakeEngine(once)), pg.tools([Looped()]))
        (slot,) = await asyncio.to_thread(pg.run, pipe, [asked()])
        assert slot.unwrap().text == "here" and used == [asyncio.get_running_loop()]
        (slot,) = pg.run(pipe, [asked()])
        assert "await pg.arun(...)" in slot.failure().message
        return pipe

    (slot,) = pg.run(asyncio.run(main()), [asked()])
    assert "its event loop has ended" in slot.failure().message and len(used) == 1


KILLED = """
import os, sys
from pathlib import Path
import pipegen as pg
from pipegen.drivers.tool_loop import OwnLoop, PendingCalls
from pipegen.testing.fake import FakeEngine
sys.path.insert(0, sys.argv[2])
from support.tool_talks import asked
from test_own_tools import script

folder, die = Path(sys.argv[1]), int(sys.argv[3])
calls = 0

class Account:
    def __init__(self): self.sum = 0
    def add(self, amount: int) -> str:
        global calls
        calls += 1
        if calls == die:
            os.kill(os.getpid(), 9)
        self.sum += amount
        return f"has {self.sum}"

pipe = pg.turns(pg.route(FakeEngine(script)), pg.tools(make=lambda request: Account()))
with pg.job(pipe, [asked(n) for n in range(5)], folder, in_flight=2) as job:
    print([slot.unwrap().text for slot in job])
"""


def test_a_killed_process_goes_on_with_new_objects(tmp_path: Path) -> None:
    here = Path(__file__).parent

    def run(die: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "job"), str(here), str(die)]
        path = os.pathsep.join([str(here.parent), *sys.path])
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )

    assert [run(die).returncode for die in (3, 5, 6)] == [-9] * 3
    done = run(0)
    assert done.stdout.strip() == str(["has 3."] * 5), done.stderr
