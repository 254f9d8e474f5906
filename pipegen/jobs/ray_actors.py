"""Actors of Ray that answer the rows of a job: started, handed blocks of rows as they have room,
and ended.

Why not as a Ray dataset: the rows come from an iterator of this process, are read as they are
needed, and are handed out in small blocks until the end, so that no actor is left with a large
rest. A dataset is made of what any worker can read, in blocks of many rows. Starting actors again,
and sending them what they had not answered, is Ray's in both cases.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from returns.result import Success

from pipegen.engines.extras import need
from pipegen.jobs.ray import Counts, Keeper, Make
from pipegen.jobs.rows import Row
from pipegen.jobs.runner import GRACE
from pipegen.jobs.shards import numbers_of
from pipegen.records.options import GenerationOptions
from pipegen.records.requests import GenerationRequest, ImagePolicy

__all__ = ["Actors", "Block", "blocks_of", "connect", "itself"]

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
HELD_BYTES = 256 * 2**20
"""Bytes of images that an actor is handed at a time, about."""
_LOOK = 1.0
"""Seconds after which a wait looks whether the run is to end."""
_CLOSING = 10.0
"""Seconds that an actor has to release its engine."""
_log = logging.getLogger("pipegen")


def itself() -> Any:
    """Ray. Type checkers would take `import ray` for the file beside this one."""
    return importlib.import_module("ray")


def connect(address: str | None, *, quiet: bool, replicas: int = 1) -> None:
    """Connect to the cluster at an address. "local" is a new one on this machine, with room for so
    many replicas.

    None is the one of RAY_ADDRESS or of this machine, and else a new one on this machine. Raises
    `ConnectionError` where there is none, and `MissingExtra` without Ray.
    """
    need("ray", "ray", "running on Ray")
    ray = itself()
    if ray.is_initialized():
        return
    settings: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": logging.ERROR}
    with _signals_kept():
        if address != "local":
            try:
                ray.init(address or "auto", **settings)
            except ConnectionError:
                if address is not None:
                    raise
            else:
                return
        settings |= {"include_dashboard": False, "num_cpus": max(os.cpu_count() or 1, replicas)}
        # only this machine can reach it
        ray.init("local", _node_ip_address="127.0.0.1", **settings)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Give back the signals whose handlers Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def blocks_of(
    rows: Iterator[Row[Any]],
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


class _Actor:
    """An actor, and what it was handed and has not answered."""

    def __init__(self, number: int, handle: Any) -> None:
        self.number, self.handle = number, handle
        self.room = 0
        """How many rows are to be in flight there; 0 until it is ready."""
        self.rows = self.bytes = 0

    @property
    def has_room(self) -> bool:
        return self.rows < self.room + min(2 * self.room, MORE_ROWS) and (
            self.bytes < HELD_BYTES or not self.rows
        )


class Actors:
    """So many actors, each with a replica of the engine. `counts` hands rows to them; `close` ends
    them.

    tell: is called with a message about an actor that cannot go on. The others do its rows.
    """

    def __init__(
        self,
        make: Make,
        options: GenerationOptions | None,
        folder: Path,
        how: Mapping[str, Any],
        *,
        replicas: int,
        gpus: float,
        tell: Callable[[str], object],
    ) -> None:
        self._ray = ray = itself()
        run = uuid.uuid4().hex
        resources = {"num_gpus": gpus} if gpus else {"num_cpus": 1}
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=1000, **resources)(
            Keeper
        )
        self._actors = [
            _Actor(number, kind.remote(make, options, str(folder), run, how))
            for number in range(1, replicas + 1)
        ]
        self._tell, self._pending = tell, dict[Any, tuple[_Actor, Block | None]]()
        self._back = deque[Block]()
        """Blocks of actors that could not go on."""
        self._placed: dict[int, deque[Block]] = {actor.number: deque() for actor in self._actors}
        """Blocks for an actor that came before it asked for them."""
        self._ended = False
        """Whether all blocks of the input were taken."""
        self._failure: Exception | None = None
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

    def counts(self, blocks: Iterator[Placed]) -> Iterator[Counts]:
        """Hand out the blocks, and give the counts of each as soon as it is answered. Raises what
        an actor raised where no other can go on.

        An actor gets the blocks that are for it. It gets those of another actor where that one
        cannot go on, and where `PLACED_BLOCKS` wait.
        """
        self._pending.update({actor.handle.ready.remote(): (actor, None) for actor in self._actors})
        while not self.stopped:
            looks = self._hand_out(blocks)
            has_blocks = not self._ended or self._back or any(self._placed.values())
            if not has_blocks and all(block is None for _, block in self._pending.values()):
                return
            if not self._actors:
                raise self._failure or RuntimeError("there is no actor")
            refs, wait = list(self._pending), 0 if looks else _LOOK
            first, _ = self._ray.wait(refs, num_returns=1, timeout=wait, fetch_local=False)
            ended, _ = (
                self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
                if first
                else ([], refs)
            )
            for ref in ended:
                actor, block = self._pending.pop(ref)
                counted = self._taken(ref, actor, block)
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
        queue = self._back or self._placed[actor.number]
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

    def _taken(self, ref: Any, actor: _Actor, block: Block | None) -> Counts | None:
        """What a call gave. Where it raised, its actor is left out, and its rows go to the
        others.
        """
        try:
            reply = self._ray.get(ref)
        except self._ray.exceptions.RayError as failure:
            if block is not None:
                self._back.append(block)
            if actor in self._actors:
                self._actors.remove(actor)
                self._back.extend(self._placed.pop(actor.number))
                self._failure = failure
                self._ray.kill(actor.handle)
                _log.error("replica %s: %s", actor.number, failure)
                rest = f"; {len(self._actors)} go on" if self._actors else ""
                self._tell(f"replica {actor.number} cannot go on: {_words(failure)}{rest}")
            return None
        if block is None:
            actor.room = reply
            return None
        actor.rows -= len(block)
        actor.bytes -= _bytes(block)
        counts: Counts = reply
        return counts

    def close(self) -> None:
        """End the actors. Where the run was stopped, rows in flight have the time that is left.
        What is finished is kept.
        """
        try:
            if self.stopped:
                self._begun()
            grace = 0.0 if self._end is None else max(0.0, self._end - time.monotonic())
            ending = [actor.handle.close.remote(grace) for actor in self._actors if actor.room]
            # what has not ended in time is ended now
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(ending, timeout=grace + _CLOSING)
        finally:
            for actor in self._actors:
                self._ray.kill(actor.handle)


def _words(failure: Exception) -> str:
    """The cause of a failure, in its last line: before it, there are tracebacks."""
    lines = str(getattr(failure, "cause", None) or failure).strip().splitlines()
    return lines[-1].strip()[:500] if lines else type(failure).__name__
