"""Shards are a partition of the requests by content; their jobs together are the one job."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.jobs.shards import shard, shard_keyed
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

ROWS = st.one_of(
    st.builds(lambda number: {"prompt": f"prompt {number}"}, st.integers(0, 8)),
    st.builds(
        lambda number: {"messages": [{"role": "user", "content": f"question {number}"}]},
        st.integers(0, 8),
    ),
    st.builds(
        lambda number, image: {"prompt": f"look {number}", "images": [image]},
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    st.just({"prompt": 3}),
)
"""Requests, many of them equal; images by number: files of the same bytes have other names, and one
is missing.
"""


def with_images(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The rows with ids, and with paths in the place of numbers: 0 and 1 have the same bytes, and
    so have 2 and 3; 5 is missing.
    """
    for number in range(5):
        (folder / f"{number}.png").write_bytes(b"image %d" % (number // 2) * 2000)
    named = [
        {**row, "images": [str(folder / f"{row['images'][0]}.png")]} if "images" in row else row
        for row in rows
    ]
    return [{**row, "id": f"row {position}"} for position, row in enumerate(named)]


def shard_of(request: dict[str, Any], n: int) -> int:
    (found,) = [i for i in range(1, n + 1) if list(shard([request], i, n))]
    return found


@given(rows=st.lists(ROWS, max_size=70), n=st.integers(1, 9))
def test_shards_are_a_partition_in_order(rows: list[dict[str, Any]], n: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        requests = with_images(rows, Path(name))
        place = {id(request): position for position, request in enumerate(requests)}
        positions = [
            [place[id(request)] for request in shard(requests, i, n)] for i in range(1, n + 1)
        ]
        assert sorted(position for part in positions for position in part) == list(
            range(len(requests))
        )
        assert all(part == sorted(part) for part in positions)
        keyed = [list(shard_keyed(enumerate(requests), i, n)) for i in range(1, n + 1)]
        assert [[position for position, _ in part] for part in keyed] == positions


@given(
    rows=st.lists(ROWS, max_size=40),
    kept=st.lists(st.booleans(), min_size=40, max_size=40),
    n=st.integers(1, 9),
    options=st.booleans(),
)
def test_a_row_is_in_one_shard_whatever_is_around_it(
    rows: list[dict[str, Any]], kept: list[bool], n: int, options: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        requests = with_images(rows, Path(name))
        alone = {
            request["id"]: shard_of(
                {**request, "id": "other", **({"options": {"seed": 1}} if options else {})}, n
            )
            for request in requests
        }
        fewer = [request for request, keep in zip(requests, kept, strict=False) if keep]
        assert [
            (name, i)
            for i in range(1, n + 1)
            for name, _ in shard_keyed(((row["id"], row) for row in fewer), i, n)
        ] == sorted(((row["id"], alone[row["id"]]) for row in fewer), key=lambda item: item[1])


@given(
    rows=st.lists(ROWS, max_size=30),
    runs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 12)), max_size=6),
    last=st.integers(1, 5),
)
def test_jobs_of_shards_are_the_one_job(
    rows: list[dict[str, Any]], runs: list[tuple[int, int, int]], last: int
) -> None:
    """Runs of some shards, with another number of them each time, and left after some rows; then
    all shards of a last number.
    """
    engine, alone = FakeEngine(echo), FakeEngine(echo)
    with tempfile.TemporaryDirectory() as name:
        requests, folder, one = (
            with_images(rows, Path(name)),
            Path(name) / "job",
            Path(name) / "one",
        )
        with pg.job(pg.route(alone), requests, one) as running:
            wanted = [shown(slot) for slot in running]
        for i, n, taken in [
            *((min(i, n), n, taken) for i, n, taken in runs),
            *((i, last, len(rows)) for i in range(last, 0, -1)),
        ]:
            with pg.job(pg.route(engine), shard(requests, i, n), folder, in_flight=2) as running:
                for _ in zip(range(taken), running, strict=False):
                    pass
        found = [slot for _, slot in pg.finished_rows(folder, enumerate(requests))]
        assert [slot if slot is None else shown(slot) for slot in found] == wanted
        assert asked(engine) == asked(alone)


def echo(encoded: Encoded) -> str:
    return f"re: {encoded.request.prompt} {encoded.request.id}<|im_end|>"


def shown(slot: Any) -> Any:
    """A slot as it is compared: what a row was answered says which of its equals was asked, which
    order does not change.
    """
    return slot.unwrap() if pg.is_ok(slot) else str(slot.failure())


def asked(engine: FakeEngine) -> Counter[str]:
    return Counter(str(encoded.request.id) for call in engine.calls for encoded in call)
