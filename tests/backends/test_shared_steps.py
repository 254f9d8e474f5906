"""Calls that share the steps of one engine, on an engine that only counts."""

from __future__ import annotations

import threading

import pytest

from pipegen.backends.shared_steps import Mailbox, SharedSteps


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

    def mailbox(self) -> Mailbox[int]:
        self.mailboxes.append(Mailbox())
        return self.mailboxes[-1]


def taken(shared: Counting, mailbox: Mailbox[int]) -> list[int]:
    """What comes for a mailbox next."""
    while not (events := shared.step(mailbox)):
        pass
    return events


def test_who_enters_goes_before_the_next_step() -> None:
    for _ in range(20):
        shared = Counting(silent=200)
        assert taken(shared, shared.mailbox()) == [201]
        assert shared.guest is not None
        shared.guest.join()
        assert shared.entered_after == [1]


def test_each_of_many_threads_has_every_step_and_none_waits_for_another() -> None:
    shared = Counting()
    seen: dict[Mailbox[int], list[int]] = {shared.mailbox(): [] for _ in range(64)}

    def work(mailbox: Mailbox[int]) -> None:
        while len(seen[mailbox]) < 20:
            seen[mailbox] += taken(shared, mailbox)

    threads = [threading.Thread(target=work, args=(mailbox,)) for mailbox in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for mailbox, events in seen.items():
        events += mailbox.take()
    assert all(events == [*range(1, shared.steps + 1)] for events in seen.values())


def test_what_has_come_waits_for_no_step_of_others() -> None:
    shared, events = Counting(), list[int]()
    mailbox = shared.mailbox()
    mailbox.put(7)
    with shared.lock:
        other = threading.Thread(target=lambda: events.extend(shared.step(mailbox)))
        other.start()
        other.join(60)
    assert (events, shared.steps) == ([7], 0)


def test_what_was_left_is_dropped_once_before_the_next_step_or_at_once() -> None:
    shared = Counting()
    mailbox = shared.mailbox()
    shared.leave()
    assert (shared.drops, shared.steps) == (1, 0)
    with shared.lock:
        other = threading.Thread(target=shared.leave)
        other.start()
        other.join()  # it does not wait for the lock
        assert shared.drops == 1
    shared.step(mailbox)
    assert (shared.drops, shared.steps) == (2, 1)


def test_what_is_left_during_a_step_is_dropped_after_it() -> None:
    class Leaving(Counting):
        def _advance(self) -> None:
            other = threading.Thread(target=self.leave)
            other.start()
            other.join()
            self.mailboxes[0].put(1)

    shared = Leaving()
    assert shared.step(shared.mailbox()) == [1]
    assert shared.drops == 1


def test_what_has_ended_a_call_is_raised_after_what_came_before() -> None:
    shared = Counting()
    mailbox = shared.mailbox()
    mailbox.put(7)
    mailbox.fail(KeyError("gone"))
    assert shared.step(mailbox) == [7]
    with pytest.raises(KeyError, match="gone"):
        shared.step(mailbox)
    assert shared.steps == 0
