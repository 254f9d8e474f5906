"""A deterministic engine on Hugging Face transformers: what a row gets does not depend on others,
and settings that would make it do so are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.models import FAMILIES, HYBRIDS, VARIANTS, write_model

import pipegen as pg
from pipegen.backends.hf.scheduler import Schedule

WORDS = "the a red dog cat runs over blue sky and counts one two three four tables of wood"
REQUESTS: Any = [
    {"prompt": " ".join((WORDS.split() * 4)[start : start + 3 + 5 * start % 23])}
    for start in range(16)
]
OPTIONS: Any = {"max_new_tokens": 16, "logprobs": True, "stop": {"ignore_eos": True}}


def bits(slot: Any) -> tuple[Any, ...]:
    result = slot.unwrap()
    return result.token_ids, tuple(one.logprob for one in result.logprobs)


def route(**settings: Any) -> pg.Route:
    return pg.backends.hf("embedded", dtype="bfloat16", **settings)


def differing(of: pg.Route, requests: Any = REQUESTS) -> int:
    """How many rows have other bits among the others than alone."""
    together = pg.run(of, requests, OPTIONS)
    return sum(
        bits(slot) != bits(pg.run(of, [request], OPTIONS)[0])
        for request, slot in zip(requests, together, strict=True)
    )


def test_in_bfloat16_rows_depend_on_their_batch_but_where_it_is_deterministic() -> None:
    assert differing(route()) > 0
    assert differing(route(deterministic=True)) == 0


@pytest.mark.parametrize("family", [*FAMILIES, *HYBRIDS, *VARIANTS])
def test_rows_of_every_kind_of_cache_do_not_depend_on_their_batch(
    family: str, tmp_path: Path
) -> None:
    folder = str(write_model(tmp_path / family, family))
    of = pg.backends.hf(folder, dtype="bfloat16", deterministic=True)
    assert differing(of, REQUESTS[::4]) == 0


@pytest.mark.parametrize("after", [2, 5])
def test_after_an_interruption_a_row_goes_on_with_the_same_bits(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are not read in one pass, as others are that wait again."""
    of = route(deterministic=True)
    whole = [bits(slot) for slot in pg.run(of, REQUESTS[:2], OPTIONS)]
    plain, steps = Schedule._decode, 0
    stream = pg.stream(of, REQUESTS[:2], OPTIONS)
    first = next(stream)

    def interrupted(schedule: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == after:
            raise KeyboardInterrupt
        return plain(schedule)

    monkeypatch.setattr(Schedule, "_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pg.run(of, REQUESTS[2:3], OPTIONS)
    done = [event for event in (first, *stream) if isinstance(event, pg.Done)]
    assert [bits(event.slot) for event in sorted(done, key=lambda event: event.index)] == whole


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 8), ("prefix_memory_bytes", 2**20), ("compile", True)]
)
def test_what_rows_that_run_alone_have_no_use_for_is_refused(name: str, value: object) -> None:
    with pytest.raises(pg.InvalidField, match=f"{name} is not for a deterministic engine"):
        route(deterministic=True, **{name: value})


def test_one_row_at_a_time_without_a_prefix_cache_is_what_it_does() -> None:
    of = route(deterministic=True, batch_size=1, prefix_memory_bytes=0)
    assert bits(pg.run(of, REQUESTS[:1], OPTIONS)[0]) == bits(
        pg.run(route(deterministic=True), REQUESTS[:3], OPTIONS)[0]
    )
