"""The note on the exception of a bug: which stage raised, at which slot, and whose the stage is."""

import dataclasses
import pickle
from typing import Any

import pytest
from returns.result import Failure, Success

import pipegen as pg
from pipegen.core.error_notes import StageNote, blamed, blamed_on, engine_of, named, note_of
from pipegen.core.foreign_calls import attempt
from pipegen.core.pipe import batch_stage, call
from pipegen.testing.fake import FakeEngine


def note(raised: BaseException) -> StageNote:
    found = note_of(raised)
    assert found is not None
    return found


def first_letter(text: str) -> str:
    return text[0]


def raised_by(pipe: Any, *values: Any) -> StageNote:
    done = attempt(lambda: pipe.apply(tuple(Success(value) for value in values)))
    return note(done.failure())


def test_the_note_names_the_stage_and_the_slot() -> None:
    found = raised_by(pg.pure("first", first_letter), "a", "")
    assert (
        found == "raised by the stage 'first' at slot 1 of the batch; to fail such a request alone,"
        " list the error of bad data: pg.each('first', f, catch=(IndexError,)), where f returns a"
        " Result"
    )
    assert (found.stage, found.internal, found.row) == ("first", False, 1)


def no_next(text: str) -> str:
    return next(letter for letter in text if letter == "b")


def no_next_route(error: Exception) -> bool:
    return bool(next(iter([])))


def test_a_stage_without_a_next_value_is_named_though_no_generator_lets_its_exception_through() -> (
    None
):
    own = pg.pure("own", no_next)
    failing: Any = pg.each("fails", lambda text: Failure(pg.Timeout("slow")))
    for pipe, stage in (
        (own, "own"),
        (pg.pure("same", str) >> own, "own"),
        (pg.fallback(failing, own, when=no_next_route), "when of fallback(fails, own)"),
    ):
        with pytest.raises(
            RuntimeError, match="StopIteration was raised: there was no next one"
        ) as caught:
            pipe.apply((Success("a"),))
        assert isinstance(caught.value.__cause__, StopIteration)
        assert note(caught.value).stage == stage
    (failed,) = pg.each("own", lambda text: Success(no_next(text)), catch=(StopIteration,)).apply(
        (Success("a"),)
    )
    assert isinstance(failed.failure(), pg.StageFailed)
    assert "catch=(StopIteration,)" in raised_by(own, "a").advice


def test_an_exception_of_a_stage_keeps_its_context() -> None:
    def own(text: str) -> str:
        try:
            return no_next(text)
        except StopIteration:
            raise KeyError("later")  # noqa: B904 - the context is what counts here

    with pytest.raises(KeyError) as caught:
        pg.pure("own", own).apply((Success("a"),))
    assert (
        isinstance(caught.value.__context__, StopIteration)
        and not caught.value.__suppress_context__
    )


def test_among_several_stages_the_one_that_raised_is_named() -> None:
    pipe = (
        pg.pure("same", lambda text: text)
        >> pg.pure("first", first_letter)
        >> pg.pure("upper", str.upper)
    )
    assert (raised_by(pipe, "a", "b", "").stage, raised_by(pipe, "").row) == ("first", 0)


def test_a_broken_promise_has_no_exception_to_catch() -> None:
    # the very mistake
    found = raised_by(pg.each("none", lambda text: None), "a")  # type: ignore[arg-type,return-value]
    assert found == "raised by the stage 'none' at slot 0 of the batch"


def of_two(text: str, more: str) -> str:
    return text + more


def changed(text: str) -> str:
    Frozen("a").words = text  # type: ignore[misc]  # the very mistake
    return text


@pytest.mark.parametrize(
    "mistake",
    [
        of_two,
        changed,
        lambda text: text.uper(),
        lambda text: txt,  # type: ignore[name-defined]  # noqa: F821
        len,
        lambda text: pg.GenerationRequest(prompt=7),  # type: ignore[arg-type]
        lambda text: pg.score(None, None),  # type: ignore[call-overload]
    ],
    ids=["arity", "frozen", "attribute", "name", "kind", "record", "pipegen"],
)
def test_of_a_mistake_in_code_no_error_is_to_be_listed(mistake: Any) -> None:
    found = raised_by(pg.pure("own", mistake), 7 if mistake is len else "a")
    assert found == "raised by the stage 'own' at slot 0 of the batch"


def test_an_error_that_does_not_name_its_stage_gets_the_name() -> None:
    def refuse(text: str) -> Any:
        return Failure(pg.StageFailed("no", stage="other" if text == "b" else ""))

    first, second = pg.each("own", refuse).apply((Success("a"), Success("b")))
    assert (first.failure(), second.failure()) == (
        pg.StageFailed("no", stage="own"),
        pg.StageFailed("no", stage="other"),
    )


def refuse(text: str) -> Any:
    raise pg.StageFailed("no", stage="own")


def test_an_error_of_pipegens_is_to_be_returned_and_not_raised() -> None:
    assert raised_by(pg.each("own", refuse), "a") == (
        "raised by the stage 'own' at slot 0 of the batch; to fail such a request alone, return"
        " pg.Failure(StageFailed(...)), and do not raise it"
    )


def at_once(values: Any) -> Any:
    raise KeyError("at once")


@pytest.mark.parametrize("joined", [False, True])
def test_a_stage_that_prepares_a_whole_batch_is_named_too(joined: bool) -> None:
    own: Any = batch_stage("own", at_once)
    pipe = pg.pure("same", lambda text: text) >> own if joined else own
    for texts in (("a",), ("a", "b")):
        with pytest.raises(KeyError, match="at once") as caught:
            pipe.apply(tuple(map(Success, texts)))
        assert note(caught.value) == "raised by the stage 'own' of pipegen at slot 0 of the batch"


def test_a_stage_that_is_given_what_it_does_not_take_is_the_fault_of_who_put_the_pipe_together() -> (
    None
):
    for stage in (pg.stages.decode(FakeEngine("a")), pg.stages.render(FakeEngine("a"))):
        found = raised_by(pg.pure("same", lambda text: text) >> stage, "a", "b")
        assert (found.stage, found.internal, found.row) == ("same", False, 0)


def test_a_wrong_record_is_named_with_the_stage_that_gave_it_beyond_what_puts_samples_together() -> (
    None
):
    engine = FakeEngine("a")
    own = pg.route(engine).replace("trim", pg.pure("own", lambda decoded: decoded.text))
    taken: Any = own >> pg.stages.trim(engine)
    with pytest.raises(pg.ContractError, match="and 'own' before it gave str") as bug:
        pg.run(taken, [{"prompt": "a"}])
    assert (note(bug.value).stage, note(bug.value).internal) == ("own", False)


def test_within_a_fallback_the_slot_is_that_of_the_whole_batch() -> None:
    slow: Any = pg.each(
        "slow", lambda text: Success(text) if text == "a" else Failure(pg.Timeout("slow"))
    )
    assert (
        found := raised_by(
            pg.fallback(slow, pg.pure("first", first_letter), when=pg.Timeout), "a", "b", ""
        )
    ).stage == "first"
    assert found.row == 2
    assert (
        raised_by(pg.fallback(pg.pure("first", first_letter), slow, when=pg.Timeout), "a", "").row
        == 1
    )


def test_a_function_that_says_when_to_fall_back_is_named() -> None:
    slow: Any = pg.each("slow", lambda text: Failure(pg.Timeout("slow")))
    # the bug
    found = raised_by(pg.fallback(slow, slow, when=lambda error: error.retry_after > 1), "a")  # type: ignore[attr-defined]
    assert (found.stage, found.internal, found.row) == ("when of fallback(slow, slow)", False, 0)


def test_of_a_stage_that_runs_a_pipe_of_its_own_both_are_named() -> None:
    inner = pg.pure("inner", first_letter)
    with pytest.raises(IndexError) as caught:
        pg.pure("outer", lambda text: inner.apply((Success(text),))).apply(
            (Success("a"), Success(""))
        )
    assert [(one.stage, one.row) for one in caught.value.__notes__] == [("inner", 0), ("outer", 1)]
    assert note(caught.value).stage == "outer"


def test_an_exception_that_is_raised_twice_is_named_after_the_last_time() -> None:
    bug = ValueError("the same one")
    blamed(bug, StageNote("first", internal=False, row=0))
    blamed(bug, StageNote("second", internal=False, row=1))
    assert [one.stage for one in bug.__notes__] == ["second"]


def test_what_has_no_note_or_a_whole_one_is_left_alone() -> None:
    plain = ValueError("no note")
    named(plain, lambda row: "request 7")
    assert note_of(plain) is None
    odd = ValueError("notes that are none")
    odd.__notes__ = "text"  # type: ignore[assignment]  # the very mistake
    assert note_of(odd) is None
    blamed(plain, StageNote("own", internal=False, row=0))
    named(plain, lambda row: f"request {row}")
    before = note(plain)
    named(plain, lambda row: "another")
    assert note(plain) is before


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no attributes."""

    words: str


def test_an_exception_that_takes_no_attributes_gets_the_note_too() -> None:
    def broken(text: str) -> str:
        raise Frozen(text)

    assert raised_by(pg.pure("broken", broken), "a").stage == "broken"


def test_a_note_travels_with_its_exception() -> None:
    bug = KeyError("objects")
    bug.add_note("of the user's")
    blamed(
        bug,
        StageNote(
            "boxes", internal=False, advice="list KeyError", row=3, request="request 3 ('Hi')"
        ),
    )
    again = note(pickle.loads(pickle.dumps(bug)))
    assert again == note(bug)
    seen = (again.stage, again.internal, again.advice, again.row, again.request)
    assert seen == ("boxes", False, "list KeyError", 3, "request 3 ('Hi')")


def test_every_stage_that_pipegen_makes_is_its_own() -> None:
    tokens = pg.route(FakeEngine("a"))
    pipes: list[Any] = [
        tokens,
        tokens.with_options({"seed": 1}),
        pg.scoring(tokens),
        pg.watched(tokens, print),
        pg.samples(tokens),
    ]
    for pipe in (*pipes, pg.fallback(tokens, tokens, when=pg.Timeout), call(FakeEngine("a"))):
        assert [step.name for step in pipe.steps if not step.internal] == []
    longer = tokens.insert(pg.pure("own", str), after="trim")
    assert [step.name for step in longer.steps if not step.internal] == ["own"]


@pytest.mark.parametrize("kind", [MemoryError, RecursionError])
def test_a_row_that_is_too_much_for_a_stage_names_the_stage(kind: type[Exception]) -> None:
    def fail(value: Any) -> Any:
        raise kind

    (slot,) = pg.each("boxes", fail).apply((pg.Success(1),))
    assert slot.failure().message == f"the stage 'boxes' raised {kind.__name__}"
    (slot,) = pg.each("boxes", fail, catch=(kind,)).apply((pg.Success(1),))
    assert slot.failure().message == kind.__name__


def test_the_note_on_an_engine_is_put_once_and_travels() -> None:
    bug = KeyError("logits")
    for name in ("mine", "other"):
        blamed_on(bug, name)
    assert bug.__notes__ == ["raised by the engine 'mine'"]
    again = pickle.loads(pickle.dumps(bug.__notes__[0]))
    assert (again, again.engine) == (bug.__notes__[0], "mine")
    assert engine_of(ValueError()) == ""
