"""A JSON array is cut into its items, whatever they hold, a piece at a time."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pipegen.io import text_tables
from pipegen.io.forms import TableError
from pipegen.io.jsonl import lines_of
from pipegen.io.text_tables import is_array, items_of, line_values

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{},: \n\u00e9\U0001f600'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='a"\\[]{},'), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(PLAIN, max_size=5), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_the_items_are_those_of_the_array_whatever_the_pieces(
    items: list[Any], indent: int | None, ascii_only: bool, size: int
) -> None:
    data = json.dumps(items, indent=indent, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_tables, "_PIECE", size)
        lines = list(items_of(io.BytesIO(b" " + data + b"\n")))
    assert [json.loads(line.data or b"") for line in lines] == items
    assert [line.number for line in lines] == list(range(1, len(items) + 1))
    assert all(line.what == "item" for line in lines)
    assert not lines or lines[-1].end == len(data) + 1


def test_an_item_that_is_too_long_has_no_bytes_and_the_next_ones_have() -> None:
    lines = list(
        items_of(io.BytesIO(b'["' + b"a" * 100 + b'", "b", ["' + b"c" * 2**17 + b'"]]'), limit=50)
    )
    assert [line.data for line in lines] == [None, b'"b"', None]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n" + b" " * 2**17])
def test_an_array_is_one_however_long_its_first_line_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, before: bytes
) -> None:
    monkeypatch.setattr(text_tables, "lines_of", partial(lines_of, limit=30))
    rows = [{"prompt": "a" * 20}] * 3
    path = tmp_path / "in.json"
    path.write_bytes(before + json.dumps(rows, indent=indent).encode())
    assert list(line_values(path)) == rows
    path.write_bytes(before + b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert not is_array(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[", "is cut off: its array has no ] at the end"),
        (b'[{"a": 1},', "is cut off"),
        (b'[{"a": "]', "is cut off"),
        (b"[1] 2", "has something after the end of its array"),
        (b"[1], [2]", "has something after the end of its array"),
        (b"[1]]", "has something after the end of its array"),
    ],
)
def test_an_array_that_is_not_whole_is_an_error(data: bytes, words: str) -> None:
    with pytest.raises(TableError, match=words):
        list(items_of(io.BytesIO(data)))
