"""Actors of Ray that answer the rows of a job: started, handed blocks of rows as they have room,
and ended.

Why not as a Ray dataset: the rows come from an iterator of this process and are read as they are
needed. They are given out in small blocks until the end, so that no actor is left with a large
rest. A dataset is made of what any worker can read, in blocks of many rows. Starting actors again,
and sending them what they had not answered, is Ray's in both cases.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import signal
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Generic

from returns.result import Result, Success

from pipegen.core.distribution import need
from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import is_ok
from pipegen.drivers.arguments import Admission
from pipegen.jobs.job_rows import JobRow
from pipegen.jobs.kept_turns import WAITING
from pipegen.jobs.ray import Counts, Keeper, Make, Metered, T
from pipegen.jobs.runner import GRACE
from pipegen.jobs.shards import numbers_of
from pipegen.records.requests import GenerationRequest, ImagePolicy

Block = list[tuple[str, GenerationRequest]]
"""Rows that are handed over together, with their keys."""
Placed = tuple[int | None, Block]
"""A block, and the number of the replica that has its rows' conversations; None is any replica. A
block may have no rows: then there were none to be asked in the part of the input that was read.
"""
BLOCK_ROWS, BLOCK_BYTES = 16, 4 * 2**20
LOOKS = 1024
"""Rows that are read for one block at most. Most are finished rows, where a job goes on."""
MORE_ROWS = 1024
"""Rows that an actor holds at most beyond those that are to be in flight there: blocks come back
whole, and most rows of one end before its slowest.
"""
PLACED_BLOCKS = 64
"""Blocks that wait for their own replica at most."""
EARLY_ROWS = WAITING + MORE_ROWS
"""Rows that are read before an actor has room for them, and wait: those found ahead of the others,
and some of the others.
"""
HELD_BYTES = 256 * 2**20
"""Bytes of images that an actor is handed at a time, and of those that wait, about."""
_SIGNALS = 0.1
"""Seconds after which signal handlers are put back, while Ray starts."""
_LOOK = 1.0
"""Seconds after which a wait looks whether the run is to end."""
_CLOSING, _ENDING = 10.0, 2.0
"""Seconds that an actor has to release its engine, and where all is to end at once."""
CONNECTING = 30.0
"""Seconds that a cluster has to answer."""


def itself() -> Any:
    """Ray. Type checkers would take `import ray` for the file beside this one."""
    return importlib.import_module("ray")


def connect(address: str | None, *, quiet: bool, replicas: int = 1) -> Callable[[], object]:
    """Connect to the cluster at an address. "local" is a new one on this machine, with room for so
    many replicas. Gives what ends the connection.

    None is the one of RAY_ADDRESS or of this machine, and else a new one on this machine. Raises
    `ConnectionError` where there is none within `CONNECTING` seconds, or none that this Ray can work
    with, and `MissingExtra` without Ray.
    """
    need("ray", "ray", "running on Ray")
    ray = itself()
    if ray.is_initialized():
        return lambda: None
    ended: Callable[[], object] = ray.shutdown
    settings: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": logging.ERROR}
    if address != "local":
        there = address or os.environ.get("RAY_ADDRESS") or "auto"
        connected = _in_thread(
            partial(_reach, there, partial(ray.init, there, **settings)), CONNECTING
        )
        if connected is not None and is_ok(connected):
            return ended
        if there != "auto" or connected is None:
            words = "no answer" if connected is None else _line(connected.failure())
            raise ConnectionError(f"there is no cluster of Ray to work with at {there}: {words}")
    settings |= {"include_dashboard": False, "num_cpus": max(os.cpu_count() or 1, replicas)}
    # only this machine can reach it
    begun = _in_thread(partial(ray.init, "local", _node_ip_address="127.0.0.1", **settings))
    if begun is None or not is_ok(begun):
        words = "" if begun is None else _line(begun.failure())
        raise ConnectionError(f"Ray cannot start on this machine: {words}")
    return ended


def _in_thread(
    work: Callable[[], object], seconds: float = math.inf
) -> Result[object, Exception] | None:
    """What the work gives, or raised; None where that takes longer.

    Another thread does it, and this one handles signals. The thread stays, since processes that Ray
    starts end with the thread that started them.
    """
    ended = Queue[Result[object, Exception]]()

    def run() -> None:
        ended.put(attempt(work))
        threading.Event().wait()

    threading.Thread(target=run, name="pipegen-ray", daemon=True).start()
    end, outcome = time.monotonic() + seconds, None
    while outcome is None and (left := end - time.monotonic()) > 0:
        with contextlib.suppress(Empty):
            outcome = ended.get(timeout=min(left, _SIGNALS))
        _keep_signals()
    return outcome


def _keep_signals() -> None:
    """Put back the handlers that Ray replaces, below Python, by its own, which ends the process."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def _line(failure: Exception) -> str:
    return " ".join(str(failure).split())[:500] or type(failure).__name__


def _reach(address: str, init: Callable[[], object]) -> None:
    """Connect, where something listens at HOST:PORT. Raises `OSError` where nothing does: Ray would
    try for minutes.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECTING).close()
    init()


def blocks_of(
    rows: Iterator[JobRow[Any]],
    most: int = BLOCK_ROWS,
    replicas: int = 1,
    images: ImagePolicy | None = None,
) -> Iterator[Placed]:
    """The rows that are to be asked, in blocks of at most so many rows.

    Rows that continue one conversation are for one replica, by the number that tells their shard:
    its cache has what they begin with. Any replica has the rows of first turns, and those that do
    not know what their conversation began with.
    """
    blocks: dict[int | None, Block] = {}
    held_bytes = looked = 0
    for row in rows:
        looked += 1
        if row.key is not None and row.is_asked:
            request, place = row.unmerged.unwrap(), None
            if request.continues is not None and request.continues.first is not None:
                (number,) = numbers_of([Success(request)], images or ImagePolicy())
                place = number % replicas + 1
            block = blocks.setdefault(place, [])
            block.append((row.key, request))
            held_bytes += _bytes(block[-1:])
            if len(block) >= most or held_bytes >= BLOCK_BYTES:
                held_bytes -= _bytes(block)
                looked = 0
                yield place, blocks.pop(place)
        if looked >= LOOKS:  # what was found need not wait for more
            yield from blocks.items() or [(None, [])]
            blocks, held_bytes, looked = {}, 0, 0
    yield from blocks.items()


def _bytes(block: Block) -> int:
    return sum(
        len(piece)
        for _, request in block
        for source in request.sources
        for piece in source.contents
    )


class NoReplica(RuntimeError):
    """No replica can go on."""

    def __init__(self, words: str, answered: bool = False) -> None:
        super().__init__(words)
        self.answered = answered
        """Whether any had answered a row."""


class _Actor:
    """An actor, and what it was handed and has not answered."""

    def __init__(self, number: int, handle: Any) -> None:
        self.number, self.handle = number, handle
        self.room = 0
        """How many rows are to be in flight there; 0 until it is ready."""
        self.rows = self.bytes = 0
        self.is_looked_at = False
        """Whether it was asked what became of its rows, and has not replied."""

    @property
    def has_room(self) -> bool:
        return self.rows < self.room + min(2 * self.room, MORE_ROWS) and (
            self.bytes < HELD_BYTES or not self.rows
        )


class Actors(Generic[T]):
    """So many actors, each with a replica of the engine. `counts` hands rows to them; `close` ends
    them.

    tally, meter: see `Keeper`. tell: is called with a message about an actor that cannot go on,
    once another one has answered rows: it does them.
    """

    def __init__(
        self,
        make: Make,
        admission: Admission,
        folder: Path,
        how: Mapping[str, Any],
        tally: Callable[[], T],
        meter: Callable[[], Metered],
        *,
        replicas: int,
        gpus: float,
        tell: Callable[[str], object],
    ) -> None:
        self._ray = ray = itself()
        given = (make, admission, str(folder), uuid.uuid4().hex, how, tally, meter)
        resources = {"num_gpus": gpus} if gpus else {"num_cpus": 1}
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=1000, **resources)(
            Keeper
        )
        self._actors = [_Actor(number, kind.remote(*given)) for number in range(1, replicas + 1)]
        self._tell, self._pending = tell, dict[Any, tuple[_Actor, Block | None]]()
        self._looks = dict[Any, _Actor]()
        """The calls that tell what became of the rows of an actor."""
        self._back, self._ready = deque[Block](), deque[Block]()
        """Blocks of actors that could not go on, and those for any actor that were read early."""
        self._placed: dict[int, deque[Block]] = {actor.number: deque() for actor in self._actors}
        """Blocks for an actor that came before it asked for them."""
        self.partial: dict[str, T] = {}
        """What was seen of blocks that were not answered, by the key of their first row."""
        self._ended = self._answered = False
        """Whether all blocks of the input were taken, and whether any row was answered."""
        self._failures: dict[str, list[int]] = {}
        """Why actors cannot go on, and which."""
        self._end: float | None = None
        """When rows in flight are given up, where the run is to end early."""
        self._begun: Callable[[], object] = lambda: None

    def stop(self, grace: float | None = None, begun: Callable[[], object] = lambda: None) -> None:
        """Hand out no more rows; those in flight have so many seconds. A signal handler may call
        it, again too, with less time.
        """
        end = time.monotonic() + (GRACE if grace is None else grace)
        self._end, self._begun = end if self._end is None else min(end, self._end), begun

    @property
    def stopped(self) -> bool:
        """Whether it is to stop."""
        return self._end is not None

    def counts(self, blocks: Iterator[Placed]) -> Iterator[Counts[T]]:
        """What became of the blocks, as they end, until all have or the run is stopped; those that
        have not ended are in `partial`, as they were seen last. Raises `NoReplica`.

        An actor gets the blocks that are for it. It gets those of another actor where that one
        cannot go on, and where `PLACED_BLOCKS` wait. While all are full, blocks are read early, so
        that rows which need no answer are counted.
        """
        self._pending.update({actor.handle.ready.remote(): (actor, None) for actor in self._actors})
        looked = time.monotonic()
        while not self.stopped:
            looks = self._hand_out(blocks) or self._read_early(blocks)
            has_blocks = not self._ended or self._back or self._ready or any(self._placed.values())
            if not has_blocks and all(block is None for _, block in self._pending.values()):
                return
            if not self._actors:
                raise NoReplica("; ".join(self._failures), answered=self._answered)
            if time.monotonic() - looked >= _LOOK:
                looked = time.monotonic()
                self._look()
            refs, wait = [*self._pending, *self._looks], 0 if looks else _LOOK
            first, _ = self._ray.wait(refs, num_returns=1, timeout=wait, fetch_local=False)
            ended, _ = (
                self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
                if first
                else ([], refs)
            )
            for ref in ended:
                counted = self._seen(ref) if ref in self._looks else self._taken(ref)
                if counted is not None:
                    yield counted

    def _hand_out(self, blocks: Iterator[Placed]) -> bool:
        """Give each actor blocks until it is full, one at a time in turn. True where actors have
        room, there is no block for them now, and more of the input is to be read.
        """
        free = [actor for actor in self._actors if actor.has_room]
        while free:
            handed = False
            for actor in free:
                block = self._next_for(actor, blocks)
                if block:
                    self._pending[actor.handle.answer.remote(block)] = actor, block
                    actor.rows += len(block)
                    actor.bytes += _bytes(block)
                    handed = True
            if not handed:
                return not self._ended
            free = [actor for actor in free if actor.has_room]
        return False

    def _next_for(self, actor: _Actor, blocks: Iterator[Placed]) -> Block | None:
        """The next block for an actor; None, or one without rows, where there is none for it
        now.
        """
        queue = self._back or self._placed[actor.number] or self._ready
        if queue:
            return queue.popleft()
        while sum(map(len, self._placed.values())) < PLACED_BLOCKS:
            placed = next(blocks, None)
            if placed is None:
                self._ended = True
                return None
            place, block = placed
            if place is None or place == actor.number or place not in self._placed:
                return block
            self._placed[place].append(block)
        return max(self._placed.values(), key=len).popleft()  # rather than to let it wait

    def _read_early(self, blocks: Iterator[Placed]) -> bool:
        """Read a block before an actor has room for it; whether there was one."""
        waiting = list(chain(self._ready, *self._placed.values()))
        is_full = (
            sum(map(len, waiting)) >= EARLY_ROWS
            or sum(map(_bytes, waiting)) >= HELD_BYTES
            or sum(map(len, self._placed.values())) >= PLACED_BLOCKS
        )
        placed = None if self._ended or is_full else next(blocks, None)
        if placed is None:
            self._ended |= not is_full
            return False
        place, block = placed
        if block:
            self._placed.get(place or 0, self._ready).append(block)
        return True

    def _look(self) -> None:
        """Ask the actors what became of their rows."""
        for actor in self._actors:
            if actor.rows and not actor.is_looked_at:
                actor.is_looked_at = True
                self._looks[actor.handle.seen.remote()] = actor

    def _seen(self, ref: Any) -> Counts[T] | None:
        """What became of the rows of an actor; of blocks alone that were not answered since."""
        self._looks[ref].is_looked_at = False
        del self._looks[ref]
        try:
            counts: Counts[T] = self._ray.get(ref)
        except self._ray.exceptions.RayError:
            return None  # its other calls raise too
        waiting = {block[0][0] for _, block in self._pending.values() if block}
        self.partial |= {name: of for name, of in counts.blocks.items() if name in waiting}
        return Counts({}, counts.worked)

    def _taken(self, ref: Any) -> Counts[T] | None:
        """What a call gave. Where it raised, its actor is left out, and its rows go to the
        others.
        """
        actor, block = self._pending.pop(ref)
        if block:
            self.partial.pop(block[0][0], None)
        try:
            reply = self._ray.get(ref)
        except self._ray.exceptions.RayError as failure:
            if block is not None:
                self._back.append(block)
            if actor in self._actors:
                self._actors.remove(actor)
                self._back.extend(self._placed.pop(actor.number))
                self._failures.setdefault(_words(failure), []).append(actor.number)
                self._ray.kill(actor.handle)
                self._tell_failures()
            return None
        if block is None:
            actor.room = reply
            return None
        actor.rows -= len(block)
        actor.bytes -= _bytes(block)
        self._answered = True
        self._tell_failures()
        counts: Counts[T] = reply
        return counts

    def _tell_failures(self) -> None:
        """Say which actors cannot go on, where others do."""
        if self._actors and self._answered:
            for words, numbers in self._failures.items():
                names = " and ".join(map(str, numbers))
                self._tell(f"replica {names} cannot go on: {words}; {len(self._actors)} go on")
            self._failures.clear()

    def close(self) -> None:
        """End the actors. Where the run was stopped, rows in flight have the time that is left.
        What is finished is kept; `partial` has what became of the blocks that were not answered.
        """
        try:
            if self.stopped:
                self._begun()
            grace = 0.0 if self._end is None else max(0.0, self._end - time.monotonic())
            try:
                self._close_all(grace, grace + _CLOSING)
            except KeyboardInterrupt:
                self._close_all(0.0, _ENDING)
                raise
        finally:
            for actor in self._actors:
                self._ray.kill(actor.handle)

    def _close_all(self, grace: float, wait: float) -> None:
        """End the actors, which have so many seconds. `partial` has what became of the blocks that
        were not answered.
        """
        ending = [actor.handle.close.remote(grace) for actor in self._actors if actor.room]
        # what has not ended in time is ended now
        closed = self._ended_of(ending, wait)
        answers = self._ended_of([ref for ref, (_, block) in self._pending.items() if block], _LOOK)
        for ref in [*answers, *closed]:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self.partial |= self._ray.get(ref).blocks

    def _ended_of(self, refs: list[Any], wait: float) -> list[Any]:
        return (
            [*self._ray.wait(refs, num_returns=len(refs), timeout=wait, fetch_local=False)[0]]
            if refs
            else []
        )


def _words(failure: Exception) -> str:
    """The cause of a failure, in its last line: before it, there are tracebacks."""
    cause = getattr(failure, "cause", None) or failure
    if isinstance(cause, CallFailed):
        return f"{cause.error.message}; {cause.error.hint}"
    lines = str(cause).strip().splitlines()
    return lines[-1].strip()[:500] if lines else type(failure).__name__
