"""How long a job takes on many replicas of an engine, by the rule that hands out its rows: a
simulation with plain events.

    python many_replicas.py                                    # the tables of docs/contributing/simulation.md, in about a minute
    python many_replicas.py --replicas 100 --rows 1000000      # a smaller cluster

A replica works on `IN_FLIGHT` rows at a time, and makes a token for each of them every `STEP`
seconds. Some replicas are slow, some die and start again, and a few are gone for good. A row takes
as many steps as it has tokens; lengths are lognormal, and may differ by where in the input a row
stands.

Work is counted in tokens. Rows are drawn one by one, and added up in pieces of 64; no event is
smaller than a piece.
"""

from __future__ import annotations

import argparse
import functools
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

IN_FLIGHT, STEP, MEAN = 256, 0.025, 200.0
"""Rows in flight on a replica, seconds for one token of each, and tokens of a row on average."""
RESTART = 180.0
"""Seconds from a death until the engine is loaded again."""
PIECE = 64
"""Rows that are added up."""
READ, KEYED = 36e-6, 54e-6
"""Seconds to read a row and find its shard, and to read it and make its key: `pipegen` on one core
(docs/contributing/benchmarks.md has the machine).
"""
RATE = IN_FLIGHT / STEP


@dataclass(frozen=True)
class World:
    """What may go wrong."""

    replicas: int = 1000
    rows: int = 100_000_000
    seed: int = 0
    spread: float = 1.0
    """Sigma of the lognormal lengths."""
    by_place: bool = False
    """Whether the input is a row of 40 data sets, whose rows are longer or shorter on average, by
    up to three times.
    """
    slow: float = 0.0
    """The share of replicas that run at half speed."""
    deaths: float = 0.0
    """Deaths of a replica a day."""
    gone: float = 0.0
    """The share of replicas that never come back from a death in the middle of the job."""
    reading: bool = False
    """Whether reading the input takes time."""


@dataclass
class Cluster:
    """The rows and the replicas of a world."""

    world: World
    pieces: np.ndarray = field(init=False)
    """Tokens of each piece of rows, in the order of the input."""
    longest: float = field(init=False)
    """Tokens of the longest row."""

    def __post_init__(self) -> None:
        world, self.random = self.world, np.random.default_rng(self.world.seed)
        count = world.rows // PIECE
        parts = (
            np.exp(np.linspace(-1, 1, 40) * np.log(3))[self.random.permutation(40)]
            if world.by_place
            else np.ones(40)
        )
        parts *= MEAN / parts.mean()
        sums, self.longest = [], 0.0
        for first in range(0, count, 2**16):
            size = min(2**16, count - first)
            lengths = np.exp(
                self.random.standard_normal((size, PIECE), dtype=np.float32) * world.spread
                - world.spread**2 / 2
            )
            means = parts[np.arange(first, first + size) * 40 // count]
            self.longest = max(self.longest, float((lengths.max(axis=1) * means).max()))
            sums.append(lengths.sum(axis=1) * means)
        self.pieces = np.concatenate(sums)
        self.speeds = np.where(
            self.random.permutation(world.replicas) < world.slow * world.replicas, 0.5, 1.0
        )
        self.ideal = float(self.pieces.sum()) / (RATE * float(self.speeds.sum()))
        self.gone = set(
            self.random.permutation(world.replicas)[: round(world.gone * world.replicas)].tolist()
        )

    def replica(self, number: int) -> Replica:
        """A replica at the beginning, with its own deaths."""
        ends = np.random.default_rng((self.world.seed, number))
        leaves = float(ends.uniform(0.2, 0.8)) * self.ideal if number in self.gone else np.inf
        return Replica(float(self.speeds[number]) * RATE, ends, self.world.deaths / 86_400, leaves)


class Replica:
    """One engine: when it ends what it is given."""

    def __init__(
        self, rate: float, random: np.random.Generator, deaths: float, leaves: float
    ) -> None:
        self.rate, self._random, self._deaths, self.leaves, self.now = (
            rate,
            random,
            deaths,
            leaves,
            0.0,
        )
        self._dies = self._next_death()

    def _next_death(self) -> float:
        return self.now + self._random.exponential(1 / self._deaths) if self._deaths else np.inf

    def work(self, tokens: float) -> float:
        """Do this next; what is left of it, where the replica is gone before its end. A death costs
        the restart, and half of each row in flight.
        """
        while self.now < self.leaves:
            if self._dies < self.now:  # it had nothing to do then
                self._dies = self._next_death()
            end = self.now + tokens / self.rate
            until = min(end, self._dies, self.leaves)
            if until == end:
                self.now = end
                return 0.0
            tokens -= (until - self.now) * self.rate
            self.now = until
            if until == self._dies:
                self.now += RESTART
                tokens += IN_FLIGHT * MEAN / 2
                self._dies = self._next_death()
        return tokens


def static(cluster: Cluster, shares: np.ndarray, read: float) -> float:
    """Each replica has a share of its own from the beginning. The share of one that is gone goes on
    with the first that has nothing left to do.
    """
    replicas = [cluster.replica(number) for number in range(len(shares))]
    left = [replica.work(float(share)) for replica, share in zip(replicas, shares, strict=True)]
    free = sorted(
        (replica.now for replica, rest in zip(replicas, left, strict=True) if not rest),
        reverse=True,
    )
    ends = [max(replica.now, read) for replica in replicas]
    for replica, rest in zip(replicas, left, strict=True):
        if rest:
            ends.append(max(free.pop(), replica.now) + RESTART + rest / RATE)
    return max(ends)


def by_range(cluster: Cluster) -> float:
    """Rule 1: replica k has the k-th part of the input."""
    bounds = np.linspace(0, len(cluster.pieces), cluster.world.replicas + 1).astype(int)
    return static(cluster, np.add.reduceat(cluster.pieces, bounds[:-1]), 0.0)


def shares_by_key(cluster: Cluster) -> np.ndarray:
    """Rows by a hash of what they say: whole rows at random; of many rows the sum is normal."""
    rows = cluster.random.multinomial(
        cluster.world.rows, [1 / cluster.world.replicas] * cluster.world.replicas
    )
    mean, deviation = cluster.pieces.mean() / PIECE, float(cluster.pieces.std()) / PIECE**0.5
    return np.asarray(
        rows * mean + cluster.random.standard_normal(len(rows)) * np.sqrt(rows) * deviation
    )


def by_key(cluster: Cluster) -> float:
    """Rule 2, `--shard`: a row belongs to a replica by its key. Each replica reads
    the whole input.
    """
    return static(
        cluster, shares_by_key(cluster), cluster.world.rows * READ if cluster.world.reading else 0.0
    )


def by_key_again(cluster: Cluster, ended: float = 0.9) -> float:
    """Rule 2, and when nine of ten shards have ended, the others are stopped, and what is left is
    split anew over all replicas that are there.
    """
    shares, read = (
        shares_by_key(cluster),
        (cluster.world.rows * READ if cluster.world.reading else 0.0),
    )
    ends = []
    for number, share in enumerate(shares):
        replica = cluster.replica(number)
        ends.append(np.inf if replica.work(float(share)) else max(replica.now, read))
    stop = float(np.sort(ends)[int(ended * len(ends)) - 1])
    speeds = cluster.speeds * np.array(
        [number not in cluster.gone for number in range(len(shares))]
    )
    done = [
        min(float(share), min(stop, cluster.replica(number).leaves) * cluster.speeds[number] * RATE)
        for number, share in enumerate(shares)
    ]
    left = float(shares.sum() - sum(done)) / np.count_nonzero(speeds)
    return stop + RESTART + max(left / (float(speeds[speeds > 0].min()) * RATE), read)


def stealing(
    cluster: Cluster, rows: int, held: int, dispatch: float = 0.001, read: float | None = None
) -> float:
    """Rule 3, `--ray`: blocks of so many rows in the order of the input. Each replica holds `held`
    blocks, and gets the next one when one has ended.

    One process reads the rows and hands the blocks out, one after another; `dispatch` is its time
    for a block.
    """
    world = cluster.world
    size = max(1, rows // PIECE)
    blocks = deque(
        np.add.reduceat(cluster.pieces, np.arange(0, len(cluster.pieces), size)).tolist()
    )
    cost = dispatch + rows * ((KEYED if world.reading else 0.0) if read is None else read)
    full = occupancy(rows, held)  # the last rows of a block hold up the next block
    replicas = [cluster.replica(number) for number in range(world.replicas)]
    for replica in replicas:
        replica.rate *= full
    asks = [(0.0, number) for _ in range(held) for number in range(world.replicas)]
    driver, last = 0.0, 0.0
    while blocks:
        if not asks:
            raise RuntimeError("all replicas are gone")
        now, number = heapq.heappop(asks)
        replica = replicas[number]
        if now >= replica.leaves:
            continue
        driver = max(driver, now) + cost
        replica.now = max(replica.now, driver)
        rest = replica.work(blocks.popleft())
        if rest:
            blocks.append(rest)  # its answered rows are kept; the others go to another replica
            continue
        last = max(last, replica.now)
        heapq.heappush(asks, (replica.now, number))
    return last


@functools.cache
def occupancy(rows: int, held: int, seed: int = 0) -> float:
    """The share of a replica's places that is in use, where a block ends with its longest row, and
    the next one comes only then.
    """
    random, heap, waiting = (
        np.random.default_rng(seed),
        list[tuple[float, int]](),
        deque[tuple[int, float]](),
    )
    left, now, work, block = dict[int, int](), 0.0, 0.0, 0
    total = max(40 * held * rows, 20 * IN_FLIGHT)

    def more() -> None:
        nonlocal block
        waiting.extend(
            (block, float(tokens)) for tokens in MEAN * np.exp(random.standard_normal(rows) - 0.5)
        )
        left[block] = rows
        block += 1

    for _ in range(held):
        more()
    done = 0
    while done < total:
        while waiting and len(heap) < IN_FLIGHT:
            number, tokens = waiting.popleft()
            heapq.heappush(heap, (now + tokens * STEP, number))
            work += tokens * STEP
        now, number = heapq.heappop(heap)
        done += 1
        left[number] -= 1
        if not left[number]:
            del left[number]
            more()
    return min(1.0, work / (now * IN_FLIGHT))


RULES: dict[str, Callable[[Cluster], float]] = {
    "position": by_range,
    "key": by_key,
    "key, split again": by_key_again,
    "blocks of 64": lambda cluster: stealing(cluster, 64, 8 * IN_FLIGHT // 64),
    "blocks of 256": lambda cluster: stealing(cluster, 256, 16 * IN_FLIGHT // 256),
    "blocks of 4096": lambda cluster: stealing(cluster, 4096, 4),
}
"""What is compared. A replica holds so many blocks that its engine is never short of rows; see
`occupancy`.
"""


def worlds(base: World) -> dict[str, World]:
    """One trouble at a time, all of them, and what reading the input costs."""
    each: dict[str, dict[str, float]] = {
        "nothing": {},
        "lengths by place": {"by_place": True},
        "3% at half speed": {"slow": 0.03},
        "a death a day": {"deaths": 1.0},
        "0.5% gone": {"gone": 0.005},
    }
    every = {name: value for changes in each.values() for name, value in changes.items()}
    made = {name: replace(base, **changes) for name, changes in each.items()}  # type: ignore[arg-type]
    return {
        **made,
        "all of these": replace(base, **every),
        "reading alone": replace(base, reading=True),
    }  # type: ignore[arg-type]


def table(base: World) -> Iterator[tuple[str, dict[str, float]]]:
    """For each world, and each rule, the time to the last row as a multiple of the ideal."""
    for name, world in worlds(base).items():
        cluster = Cluster(world)
        yield name, {rule: run(cluster) / cluster.ideal for rule, run in RULES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--seed", type=int, default=0)
    base = World(**vars(parser.parse_args()))
    print(
        f"ideal: {Cluster(base).ideal:,.0f} s\n\n| trouble | {' | '.join(RULES)} |\n| ---"
        f" |{' --- |' * len(RULES)}"
    )
    for name, ratios in table(base):
        print(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios.values())} |", flush=True)
    times = (1, 2, 4, 8, 16)
    print(
        f"\n| rows of a block | {' | '.join(f'{many}x' for many in times)} |\n| ---"
        f" |{' --- |' * len(times)}"
    )
    for rows in (16, 64, 256, 1024):
        shares = [
            f"{occupancy(rows, many * IN_FLIGHT // rows):.2f}" if many * IN_FLIGHT >= rows else ""
            for many in times
        ]
        print(f"| {rows} | {' | '.join(shares)} |", flush=True)
    print("\n| replicas | key | blocks of 64 |\n| --- | --- | --- |")
    for replicas in (10, 30, 100, 300, 1000):
        cluster = Cluster(replace(base, replicas=replicas, rows=replicas * 20_000, reading=True))
        print(
            f"| {replicas} | {by_key(cluster) / cluster.ideal:.2f} |"
            f" {RULES['blocks of 64'](cluster) / cluster.ideal:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
