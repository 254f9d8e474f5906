"""Slots, errors and pipes: the edges that the laws do not reach."""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure, Success

import pipegen as pg
from pipegen.core import errors
from pipegen.core.pipe import Pipe, call, each, identity
from pipegen.core.slots import Slot, Unread, all_of

ALL = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, pg.GenerationError)
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_a_frozen_picklable_record_with_a_hint(
    kind: type[pg.GenerationError],
) -> None:
    error = kind(message="seen", earlier=(pg.Timeout("slow"),))
    assert pickle.loads(pickle.dumps(error)) == error  # our own bytes
    assert hash(error) == hash(kind(message="seen", earlier=(pg.Timeout("slow"),)))
    assert error.hint == kind.default_hint
    assert "\n" not in error.hint
    assert isinstance(kind.retryable, bool)
    with pytest.raises(AttributeError):
        error.message = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_can_be_raised_and_says_what_to_do(kind: type[pg.GenerationError]) -> None:
    error = kind(message="seen", hint="do this")
    with pytest.raises(RuntimeError, match=r"^seen \(hint: do this\)$") as raised:
        raise error
    assert raised.value == error
    assert pickle.loads(pickle.dumps(raised.value)) == error


def test_unwrapping_a_failure_shows_the_message_and_the_hint() -> None:
    with pytest.raises(UnwrapFailedError) as raised:
        Failure(pg.PromptTooLong(10, 4)).unwrap()
    shown = "".join(traceback.format_exception(raised.value))
    assert "the prompt has 10 tokens; the limit is 4 (hint: shorten the prompt)" in shown


def test_an_error_leaves_a_context_manager_as_it_is() -> None:
    """Python sets the traceback of what passes through one."""

    @contextlib.contextmanager
    def passing() -> Iterator[None]:
        yield

    error = pg.Timeout("slow")
    with pytest.raises(pg.Timeout) as raised, passing():
        raise error
    assert raised.value is error
    error.__traceback__ = None
    assert error == pg.Timeout("slow")


def test_the_set_of_errors_is_closed() -> None:
    assert sorted(kind.__name__ for kind in ALL) == [
        "BackendFailed", "BadImage", "BadVideo", "GenerationError", "InternalError", "InvalidRequest", "MalformedResponse", "PluginFailed", "PromptTooLong",
        "RateLimited", "Refused", "StageFailed", "TemplateFailed", "Timeout", "UnsupportedMultimodal", "UnsupportedOption", "UnsupportedPlugin",
    ]  # fmt: skip
    seen = {kind.__name__ for kind in ALL if kind.retryable}
    assert seen == {"BackendFailed", "RateLimited", "Timeout"}


def test_errors_describe_themselves_where_no_message_is_given() -> None:
    assert pg.PromptTooLong(10, 4).message == "the prompt has 10 tokens; the limit is 4"
    assert (
        pg.PromptTooLong(300).message
        == "the prompt, which has 300 tokens, is longer than the model takes"
    )
    assert (
        pg.PromptTooLong(limit=256).message
        == "the prompt is longer than the model takes; the limit is 256 tokens"
    )
    assert pg.PromptTooLong().message == "the prompt is longer than the model takes"
    assert [
        pg.PromptTooLong(*counts).hint.startswith("shorten the prompt, lower")
        for counts in ((), (300,), (300, 256))
    ] == [True, True, False]
    assert pg.BadImage(2).message == "image 2 cannot be used"
    assert pg.Timeout().message == "Timeout"


def test_an_error_that_no_log_holds_hints_at_none() -> None:
    assert [pg.BackendFailed("died", incident=incident).hint for incident in ("", "abc")] == [
        "see the engine's own log; the request can be sent again",
        "look for the incident in the log; the request can be sent again",
    ]
    assert (
        pg.BackendFailed("no key", lasting=True).hint
        == "correct the setting that the message names"
    )


def test_history_is_kept_oldest_first() -> None:
    assert [
        error.message
        for error in pg.Timeout("c", earlier=(pg.Timeout("b"),)).after((pg.Timeout("a"),)).earlier
    ] == ["a", "b"]


class TooFew(pg.GenerationError):
    """An error of a user's own, whose class takes what he likes."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} are too few")


def test_an_error_of_your_own_travels_as_those_of_pipegen_do() -> None:
    error = TooFew(3)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(other), other) == (TooFew, error)
    always = pg.each("few", lambda text: Failure(TooFew(len(text))))
    last = (
        pg.fallback(always, pg.fallback(always, always, when=TooFew), when=TooFew)
        .apply((Success("abc"),))[0]
        .failure()
    )
    assert (last.message, last.earlier) == ("3 are too few", (error, error))


def test_an_error_that_a_stage_raises_is_its_rows_own_where_it_is_listed() -> None:
    def picky(number: int) -> pg.Slot[int]:
        if number < 3:
            raise TooFew(number)
        return Success(number)

    with pytest.raises(TooFew):
        pg.each("picky", picky).apply((Success(1),))
    for listed in (pg.GenerationError, RuntimeError):
        slots = pg.each("picky", picky, catch=(listed,)).apply((Success(1), Success(3)))
        assert slots == (Failure(TooFew(1)), Success(3))
        assert slots[0].failure().__traceback__ is None


def test_a_whole_call_fails_with_an_error_of_pipegen_alone() -> None:
    for wrong in ("no memory", ValueError("no memory"), pg.Timeout):
        with pytest.raises(
            TypeError, match="CallFailed takes a GenerationError, such as BackendFailed"
        ):
            pg.CallFailed(wrong)  # type: ignore[arg-type]  # that is the mistake


def test_a_pipe_that_calls_an_engine_cannot_be_applied_without_a_driver() -> None:
    from pipegen.testing.fake import FakeEngine

    with pytest.raises(pg.ContractError, match="use run, arun or stream"):
        pg.route(FakeEngine("a")).apply((Success(pg.TextGenerationRequest(prompt="x")),))


def test_a_pipe_without_engines_is_a_context_manager_too() -> None:
    pipe: Pipe[int, int] = each("fail", lambda n: Failure(pg.Timeout("slow")))
    with pipe as entered:
        assert entered is pipe


def test_a_joined_pipe_is_named_after_its_parts() -> None:
    assert (pg.pure("a", str) >> identity() >> pg.pure("b", str)).name == "a >> b"


def test_a_pipe_keeps_text_only_if_all_its_parts_say_so() -> None:
    keeps, changes = pg.pure("keeps", str, keeps_text=True), pg.pure("changes", str)
    assert [keeps.keeps_text, changes.keeps_text, identity().keeps_text] == [True, False, True]
    assert [
        (a >> b).keeps_text for a, b in ((keeps, keeps), (keeps, changes), (changes, keeps))
    ] == [True, False, False]
    routes = ((keeps, keeps), (keeps, changes), (changes, keeps))
    seen = [pg.fallback(a, b, when=pg.Timeout).keeps_text for a, b in routes]
    assert seen == [True, False, False]


def test_a_stage_gives_back_a_slot() -> None:
    with pytest.raises(pg.ContractError, match="returned int, not a Result"):
        # the very mistake
        each("number", lambda n: 3).apply((Success(1),))  # type: ignore[arg-type,return-value]


def test_what_a_slot_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Failure' object has no attribute 'text'"):
        _ = Failure("no error of pipegen").text  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Success' object has no attribute 'text'"):
        _ = Success(1).text  # type: ignore[attr-defined]


def test_a_request_that_was_not_read_is_pickled_as_its_failure() -> None:
    error = pg.InvalidRequest("no prompt")
    copied = pickle.loads(pickle.dumps(Unread(error, dict)))  # our own bytes
    assert (type(copied), copied.failure()) == (Failure, error)
    unread = Unread(pg.Timeout("slow"), lambda: "request")
    assert (unread.given(), unread.plain().failure()) == ("request", unread.failure())
    assert type(unread.plain()) is Failure


def test_a_private_name_is_missed_in_python_s_words() -> None:
    with pytest.raises(AttributeError, match=r"^'Success' object has no attribute '_numerator'$"):
        _ = Success(1)._numerator  # type: ignore[attr-defined]


def test_the_first_failure_of_many_is_theirs_and_no_more_are_drawn() -> None:
    slots = iter([Success(1), Failure("no"), Failure("never")])
    assert all_of(slots) == Failure("no")
    assert next(slots) == Failure("never")
    assert all_of([Success(1), Success(2)]) == Success((1, 2))


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name

    def generate(self, inputs: Sequence[int]) -> Sequence[Slot[int]]:
        return [Success(value) for value in inputs]


def test_a_call_is_named_so_and_is_bound_to_another_engine_with_its_pipe() -> None:
    one, other = Engine("one"), Engine("other")

    class Others:
        def engine(self, engine: object) -> object:
            return {one: other}[engine]

    others: Any = Others()
    pipe = call(one)
    assert (pipe.name, pipe.backend, pipe.rebound(others).backend) == ("call", one, other)
    wrong: Any = 1
    with pytest.raises(TypeError, match=r"^call is bound to an engine, not to int"):
        call(wrong)
