"""JSON in bytes: whatever orjson makes of it, it means what the standard library means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from immutabledict import immutabledict

from pipegen.backends.http import plain_json
from pipegen.backends.http.plain_json import decoded, encoded


@pytest.fixture(autouse=True, scope="module", params=["as installed", "without orjson"])
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without orjson":
            patch.setattr(plain_json, "_orjson", lambda: None)
        yield


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return immutabledict({key: frozen(entry) for key, entry in value.items()})
    return tuple(frozen(entry) for entry in value) if isinstance(value, list) else value


@given(PLAIN)
def test_what_is_encoded_reads_back_the_same(value: Any) -> None:
    assert json.loads(encoded(value)) == value
    assert encoded(frozen(value)) == encoded(value)


@given(PLAIN)
def test_what_the_standard_library_writes_is_read_the_same(value: Any) -> None:
    beyond = 2**64  # a number of more bits is read as a float, which is no token id either
    text = json.dumps(value)
    if all(-(2**63) <= number < beyond for number in numbers(value)):
        assert decoded(text.encode()) == json.loads(text)


def numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for entry in value.values() for number in numbers(entry)]
    if isinstance(value, list):
        return [number for entry in value for number in numbers(entry)]
    return [value] if type(value) is int else []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_not_sent_as_null(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoded({"messages": ["all is null here"], "temperature": value})
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoded([value])


def test_half_a_surrogate_pair_is_refused_and_read() -> None:
    with pytest.raises(UnicodeEncodeError):
        encoded(["\ud83d"])
    assert decoded(b'["\\ud83d"]') == ["\ud83d"]


def test_what_is_no_plain_data_is_a_bug() -> None:
    with pytest.raises(TypeError):
        encoded({"image": b"bytes"})


@pytest.mark.parametrize("data", [b'{"a": ', b"", b"[1,]", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused_in_the_standard_librarys_words(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)) as ours:
        decoded(data)
    with pytest.raises(ours.type) as theirs:
        json.loads(data)
    assert str(ours.value) == str(theirs.value)


def test_what_only_the_standard_library_reads_is_read() -> None:
    assert math.isnan(decoded(b'{"logprob": NaN}')["logprob"])
    assert decoded(b"\xef\xbb\xbf[1]") == [1]
