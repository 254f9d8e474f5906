"""Shards: which request belongs to which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.jobs.shards import shard, shard_keyed
from pipegen.media.source import sample_of

REQUESTS: list[Any] = [{"prompt": f"prompt {number}"} for number in range(1000)]


@pytest.mark.parametrize(
    ("i", "n"),
    [(0, 4), (5, 4), (-1, 4), (1, 0), (0, 0), (True, 2), (1, True), (1.0, 2), ("1", 2), (1, None)],
)
def test_a_shard_that_is_not_there_is_refused_before_a_request_is_taken(i: Any, n: Any) -> None:
    with pytest.raises(ValueError, match="shards are whole numbers from 1 to their number"):
        shard(iter(REQUESTS), i, n)


def test_what_is_no_list_of_requests_is_refused() -> None:
    with pytest.raises(TypeError, match="not one dict"):
        shard({"prompt": "Hi"}, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\.items\(\)"):
        shard_keyed({"a": {"prompt": "Hi"}}, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="image_policy"):
        shard([], 1, 1, image_policy="all")  # type: ignore[arg-type]


def test_shards_are_of_like_sizes() -> None:
    sizes = [len(list(shard(REQUESTS, i, 4))) for i in range(1, 5)]
    assert sum(sizes) == 1000
    assert 200 < min(sizes) <= max(sizes) < 300


def test_the_input_is_taken_as_it_is_needed() -> None:
    taken = []

    def endless() -> Iterator[Any]:
        number = 0
        while True:
            taken.append(number)
            yield {"prompt": f"prompt {number}"}
            number += 1

    mine = shard(endless(), 2, 3)
    assert taken == []
    next(mine)
    assert len(taken) <= 64


def test_the_same_request_in_any_form_is_in_one_shard() -> None:
    plain = {
        "messages": [{"role": "user", "content": "How many?"}],
        "tools": [{"type": "function", "function": {"name": "count"}}],
    }
    record = pg.request_from(plain).unwrap()
    forms: list[Any] = [
        plain,
        record,
        pg.Success(record),
        {**plain, "id": "a", "options": {"seed": 3}},
    ]
    assert [len(list(shard(forms, i, 16))) for i in range(1, 17)].count(4) == 1


def test_what_is_no_request_belongs_to_the_first_shard() -> None:
    bad: list[Any] = [
        {"prompt": 3},
        {},
        pg.Failure(pg.InvalidRequest("line 4: it is no JSON")),
        "words",
        pg.Success("words"),
    ]
    assert [len(list(shard(bad, i, 5))) for i in range(1, 6)] == [5, 0, 0, 0, 0]


def test_two_requests_with_other_images_or_continuations_differ(tmp_path: Path) -> None:
    scored = [
        pg.ScoringRequest(prompt="2 + 2 =", continuation=f" {number}") for number in range(50)
    ]
    asked = [{"prompt": "What is it?", "images": [b"%d" % number]} for number in range(50)]
    for requests in (scored, asked):
        assert min(len(list(shard(requests, i, 3))) for i in (1, 2, 3)) > 5


def test_equal_files_have_equal_samples_wherever_they_lie(tmp_path: Path) -> None:
    data = bytes(range(256)) * 400
    for name in ("a.png", "b c.png"):
        (tmp_path / name).write_bytes(data)
    url = f"file://{tmp_path}/b%20c.png"
    rooted = pg.ImagePolicy(root=tmp_path)
    sources = [
        pg.ImageSource(path=str(tmp_path / "a.png")),
        pg.ImageSource(url=url),
        pg.ImageSource(data=data),
    ]
    samples = {sample_of(source, pg.ImagePolicy()) for source in sources} | {
        sample_of(pg.ImageSource(path="a.png"), rooted)
    }
    assert len(samples) == 1
    assert len(samples.pop()) < 3 * 4096 + 20


@pytest.mark.parametrize("changed", [0, 50_000, 99_999])
def test_a_sample_sees_start_middle_end_and_length(changed: int) -> None:
    data = bytearray(100_000)
    before = sample_of(pg.ImageSource(data=bytes(data)), pg.ImagePolicy())
    data[changed] = 1
    assert sample_of(pg.ImageSource(data=bytes(data)), pg.ImagePolicy()) != before
    assert sample_of(pg.ImageSource(data=bytes(100_001)), pg.ImagePolicy()) != before


def test_what_cannot_be_read_counts_by_what_its_source_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "large.png").write_bytes(b"a" * 100)
    outside = str(tmp_path / "large.png")
    (tmp_path / "no").mkdir()
    small, rooted = pg.ImagePolicy(max_bytes=10), pg.ImagePolicy(root=tmp_path / "no")
    for source, policy in [
        (pg.ImageSource(path=outside), small),
        (pg.ImageSource(path=outside), rooted),
        (pg.ImageSource(path="no\0path"), small),
        (pg.ImageSource(path="\udcff"), rooted),
        (pg.ImageSource(url="data:;base64,=!"), small),
        (pg.ImageSource(url="http://127.0.0.1:1/a.png"), pg.ImagePolicy(allow_http=True)),
        (pg.ImageSource(url="http://[half"), pg.ImagePolicy(allow_http=True)),
    ]:
        assert sample_of(source, policy) == (source.path or source.url or "").encode(
            "utf-8", "surrogatepass"
        )
    assert caplog.records == []
