"""The border with foreign code and data: one function through which all of it goes."""

from __future__ import annotations

import logging

import pytest
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Success

from pipegen.core.errors import PluginFailed, Timeout
from pipegen.core.foreign_calls import EXHAUSTED, call_tokenizer, guard, report


def fails(raised: BaseException, **how: object) -> PluginFailed:
    def work() -> None:
        raise raised

    return guard(
        work, lambda seen: PluginFailed(seen.words, incident=seen.incident), **how
    ).failure()  # type: ignore[arg-type]


def test_what_works_comes_through() -> None:
    assert guard(lambda: 3, lambda seen: PluginFailed(seen.words)) == Success(3)


@pytest.mark.parametrize(
    "kind",
    [
        *(ValueError, MemoryError, RecursionError, StopIteration, AssertionError),
        type("Own", (Exception,), {}),
    ],
)
def test_any_exception_becomes_a_typed_error_with_its_traceback_in_the_log(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    error = fails(kind("because"))
    assert error.message == f"{kind.__name__}: because"
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pipegen", logging.ERROR)
    assert error.incident in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[2] is not None


def test_an_exception_without_words_is_its_name() -> None:
    assert fails(KeyError()).message == "KeyError"


def test_long_words_are_cut() -> None:
    assert len(fails(ValueError("x" * 10**6)).message) < 600


def test_an_exception_that_cannot_say_what_it_is_has_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert fails(Mute()).message == "Mute: (its message cannot be read)"


def test_known_kinds_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    error = fails(ValueError("no"), known=(ValueError,))
    assert (error.message, error.incident, caplog.records) == ("ValueError: no", "", [])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_comes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        fails(kind())


def test_only_the_kinds_asked_for_are_caught() -> None:
    assert fails(MemoryError(), only=EXHAUSTED).message == "MemoryError"
    assert fails(RecursionError("deep"), only=EXHAUSTED).message == "RecursionError: deep"
    with pytest.raises(KeyError):
        fails(KeyError("a bug"), only=EXHAUSTED)


def test_a_panic_of_a_package_in_rust_is_caught_though_it_is_no_exception() -> None:
    panic = type("PanicException", (BaseException,), {})
    assert fails(panic("index out of bounds")).message == "PanicException: index out of bounds"
    with pytest.raises(panic):
        fails(panic(), only=EXHAUSTED)


def test_a_report_may_do_without_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert report(ValueError("no"), traced=False) == ("ValueError: no", "")
    assert caplog.records == []


def test_two_errors_that_differ_in_their_incident_are_equal() -> None:
    assert fails(ValueError("no")) == fails(ValueError("no"))


def test_an_interrupt_within_a_tokenizer_is_no_failure_of_it() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_tokenizer(interrupted)


def test_what_ends_the_program_comes_through_a_tokenizer() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_tokenizer(interrupted)


def test_an_exception_without_a_message_is_told_by_its_cause() -> None:
    with pytest.raises(UnwrapFailedError) as caught:
        Failure(Timeout("slow")).unwrap()
    assert str(caught.value) == ""
    assert report(caught.value, traced=False).words.startswith("UnwrapFailedError: Timeout: slow")
    assert report(KeyError(), traced=False).words == "KeyError"
