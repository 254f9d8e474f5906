"""Calls that share the steps of one engine, on an engine that only counts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

from pipegen.backends.step_loop import Mailbox, SharedSteps


class Counting(SharedSteps[int]):
    """Each step puts its number into every mailbox, but for the first `silent` ones."""

    def __init__(self, silent: int = 0) -> None:
        super().__init__()
        self.mailboxes: list[Mailbox[int]] = []
        self.silent, self.steps, self.drops = silent, 0, 0
        self.guest: threading.Thread | None = None
        self.entered_after: list[int] = []

    def _advance(self) -> None:
        self.steps += 1
        if self.guest is None:
            self.guest = threading.Thread(target=self._enter)
            self.guest.start()
            while not self._entering:
                pass
        for mailbox in self.mailboxes if self.steps > self.silent else ():
            mailbox.put(self.steps)

    def _drop(self) -> None:
        self.drops += 1

    def _enter(self) -> None:
        with self.entered():
            self.entered_after.append(self.steps)

    def mailbox(self, wake: Callable[[], object] | None = None) -> Mailbox[int]:
        self.mailboxes.append(Mailbox(wake))
        return self.mailboxes[-1]


async def awaited(shared: Counting, mailbox: Mailbox[int], woken: asyncio.Event) -> list[int]:
    """What comes for a mailbox whose `wake` sets `woken` from any thread."""
    while not (taken := shared.step(mailbox)):
        await woken.wait()
        woken.clear()
    return taken


def setter(woken: asyncio.Event) -> Callable[[], object]:
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there
            loop.call_soon_threadsafe(woken.set)

    return wake


def test_who_enters_goes_before_the_next_step_of_the_thread_that_steps_for_all() -> None:
    async def stepped(shared: Counting) -> list[int]:
        woken = asyncio.Event()
        return await awaited(shared, shared.mailbox(setter(woken)), woken)

    for _ in range(20):
        shared = Counting(silent=200)
        assert asyncio.run(stepped(shared)) == [201]
        assert shared.guest is not None
        shared.guest.join()
        assert shared.entered_after == [1]


def test_a_thread_steps_until_nobody_waits_and_each_box_has_every_step() -> None:
    async def both() -> None:
        woken = asyncio.Event(), asyncio.Event()
        one, other = (shared.mailbox(setter(event)) for event in woken)
        seen: tuple[list[int], list[int]] = [], []
        while len(seen[0]) < 4:
            for mailbox, event, taken in zip((one, other), woken, seen, strict=True):
                taken += await awaited(shared, mailbox, event)
        for mailbox, taken in zip((one, other), seen, strict=True):
            taken += mailbox.take()
        assert seen == ([*range(1, shared.steps + 1)],) * 2
        if shared._stepping is not None:
            await asyncio.to_thread(shared._stepping.join)
        assert shared.step(shared.mailbox()) == [shared.steps]

    shared = Counting()
    asyncio.run(both())


def test_who_leaves_is_not_stepped_for_any_more() -> None:
    shared = Counting(silent=10**9)
    mailbox = shared.mailbox(lambda: None)
    assert shared.step(mailbox) == []
    stepping = shared._stepping
    assert stepping is not None
    shared.leave(mailbox)
    stepping.join()
    assert shared._stepping is None
    assert shared.drops == 1


def test_what_was_left_is_dropped_once_before_the_next_step_or_at_once() -> None:
    shared = Counting()
    mailbox = shared.mailbox()
    shared.leave(mailbox)
    assert (shared.drops, shared.steps) == (1, 0)
    with shared.lock:
        other = threading.Thread(target=shared.leave, args=(mailbox,))
        other.start()
        other.join()  # it does not wait for the lock
        assert shared.drops == 1
    shared.step(mailbox)
    assert (shared.drops, shared.steps) == (2, 1)


@pytest.mark.parametrize("wake", [None, lambda: None])
def test_what_has_ended_a_call_is_raised_after_what_came_before(
    wake: Callable[[], object] | None,
) -> None:
    shared = Counting()
    mailbox = shared.mailbox(wake)
    mailbox.put(7)
    mailbox.fail(KeyError("gone"))
    assert shared.step(mailbox) == [7]
    with pytest.raises(KeyError, match="gone"):
        shared.step(mailbox)
    assert shared.steps == 0
