"""A bug in a stage of the user's: it raises with the names of stage and request, or, where bugs are
isolated, fails its request alone.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.pipe import batch_stage
from pipegen.drivers.naming import request_words
from pipegen.testing.fake import FakeEngine


def answered(encoded: Any) -> str:
    return '{"objects": 1}' if "good" in (encoded.prompt.text or "") else "no JSON"


def boxes() -> Any:
    return pg.route(FakeEngine(answered)) >> pg.each(
        "boxes", lambda r: pg.Success(json.loads(r.text)["objects"])
    )


async def listed(items: Any) -> list[Any]:
    return [item async for item in items]


DRIVERS: dict[str, Callable[..., Any]] = {
    "run": pg.run,
    "arun": lambda *given: asyncio.run(pg.arun(*given)),
    "imap": lambda *given: list(pg.imap(*given)),
    "imap, one at a time": lambda *given: list(pg.imap(*given, in_flight=1)),
    "imap_keyed": lambda route, requests: list(pg.imap_keyed(route, enumerate(requests))),
    "aimap": lambda *given: asyncio.run(listed(pg.aimap(*given))),
    "stream": lambda *given: list(pg.stream(*given)),
    "astream": lambda *given: asyncio.run(listed(pg.astream(*given))),
}
driver = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
GOOD = {"prompt": "good"}
PROMPTS: Any = {
    "id": ({"id": "T-1", "prompt": "bad"}, "request 'T-1'"),
    "prompt": ({"prompt": "bad"}, "request 2 ('bad')"),
    "long prompt": ({"prompt": "bad" * 100}, f"request 2 ('{'bad' * 20}...')"),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "?"},
                {"role": "user", "content": "bad"},
            ]
        },
        "request 2 ('bad')",
    ),
    "parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "bad"}, {"type": "text", "text": "part"}],
                }
            ]
        },
        "request 2 ('bad part')",
    ),
    "no words": (
        {
            "messages": [{"role": "assistant", "content": "bad"}],
            "options": {"chat": {"continue_final_message": True}},
        },
        "request 2 ('')",
    ),
    "ids": ({"prompt_token_ids": [97, 98]}, "request 2 (ids 97, 98)"),
    "many ids": ({"prompt_token_ids": [97] * 9}, f"request 2 (ids {', '.join(['97'] * 8)}, ...)"),
}


@driver
@pytest.mark.parametrize(("request_", "words"), PROMPTS.values(), ids=PROMPTS)
def test_a_bug_raises_with_the_names_of_stage_and_request(
    driver: Callable[..., Any], request_: Any, words: str
) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        driver(boxes(), [GOOD, GOOD, request_, GOOD])
    advice = (
        "to fail such a request alone, list the error of bad data: pg.each('boxes', f,"
        " catch=(JSONDecodeError,)), where f returns a Result"
    )
    assert caught.value.__notes__ == [f"raised by the stage 'boxes' at {words}; {advice}"]


@driver
@pytest.mark.parametrize(
    "where", ["before the call", "in a fallback", "with samples", "with samples before"]
)
def test_the_request_is_the_right_one_wherever_the_stage_is(
    driver: Callable[..., Any], where: str
) -> None:
    def begun(request: pg.GenerationRequest) -> pg.GenerationRequest:
        if request.id == "T-2":
            raise KeyError("begin")
        return request

    def ended(result: pg.GenerationResult) -> pg.GenerationResult:
        if result.id == "T-2":
            raise KeyError("end")
        return result

    def each_decoded(decoded: Any) -> Any:
        if decoded.raw.encoded.request.id == "T-2":
            raise KeyError("decoded")
        return decoded

    route, begin, end = (
        pg.route(FakeEngine("a")),
        pg.pure("own", begun, keeps_text=True),
        pg.pure("own", ended, keeps_text=True),
    )
    failing: Any = pg.each(
        "fails",
        lambda request: (
            pg.Failure(pg.Timeout("slow")) if request.id in ("T-0", "T-2") else pg.Success(request)
        ),
    )
    pipes: dict[str, Any] = {
        "before the call": begin >> route,
        "in a fallback": pg.fallback(
            failing >> route, pg.route(FakeEngine("b")) >> end, when=pg.Timeout
        ),
        "with samples": route >> end,
        "with samples before": route.insert(
            pg.pure("own", each_decoded, keeps_text=True), after="decode"
        ),
    }
    options = {"samples": 3, "temperature": 1.0} if "samples" in where else {}
    with pytest.raises(KeyError) as caught:
        driver(
            pipes[where], [{"id": f"T-{n}", "prompt": "Hi", "options": options} for n in range(4)]
        )
    assert [note.partition(";")[0] for note in caught.value.__notes__] == [
        "raised by the stage 'own' at request 'T-2'"
    ]


def at_once(values: Any) -> Any:
    raise KeyError("at once")


@driver
def test_a_stage_of_a_whole_batch_is_named(driver: Callable[..., Any]) -> None:
    with pytest.raises(KeyError, match="at once") as caught:
        driver(batch_stage("own", at_once), [GOOD, GOOD])
    assert caught.value.__notes__ in (
        ["raised by the stage 'own' of pipegen at one of 2 requests"],
        ["raised by the stage 'own' of pipegen at request 0 ('good')"],
    )


def test_no_request_has_a_name_too() -> None:
    assert request_words(pg.Failure(pg.Timeout("slow"))) == "the request"
    # of a pipe that is applied to something else
    assert request_words(pg.Success(1), 3) == "request 3"  # type: ignore[arg-type]
    assert request_words(pg.Success(pg.GenerationRequest(prompt="Hi"))) == "the request ('Hi')"


BUGS: dict[str, tuple[Any, str, str, str]] = {
    "raises": (
        pg.each("own", lambda result: pg.Success(json.loads(result.text)["objects"])),
        "own",
        "the stage 'own' raised JSONDecodeError: Expecting value",
        (
            "correct the stage, or list the error of bad data: pg.each('own', f,"
            " catch=(JSONDecodeError,)), where f returns a Result"
        ),
    ),
    "raises an error of pipegen's": (
        pg.each(
            "own",
            lambda result: pg.Success(
                1 if result.text[0] == "{" else pg.Failure(pg.InvalidRequest("none")).unwrap()
            ),
        ),
        "own",
        "the stage 'own' raised UnwrapFailedError: InvalidRequest: none",
        "correct the stage, or list the error of bad data",
    ),
    "no Result": (
        pg.each("own", lambda result: pg.Success(1) if result.text[0] == "{" else 7),  # type: ignore[arg-type,return-value]
        "own",
        "the stage 'own' raised ContractError: stage 'own' returned int, not a Result: wrap it in",
        "correct the stage; the message says what is expected of it",
    ),
    "None": (
        pg.each("own", lambda result: pg.Success(1) if result.text[0] == "{" else None),  # type: ignore[arg-type,return-value]
        "own",
        "the stage 'own' raised ContractError: stage 'own' returned NoneType, not a Result",
        "correct the stage; the message says what is expected of it",
    ),
    "another record": (
        pg.pure("own", lambda result: result if result.text[0] == "{" else 1)
        >> pg.stages.decode(FakeEngine("a")),
        "own",
        "the stage 'decode' takes Raw, and 'own' before it gave ",
        "correct the stage; the message says what is expected of it",
    ),
}


@pytest.mark.parametrize("after", ["tokenize", "fit"])
def test_a_wrong_record_at_the_call_is_the_fault_of_the_stage_that_gave_it(after: str) -> None:
    engine = FakeEngine("a")
    pipe = pg.route(engine).insert(pg.pure("own", lambda encoded: encoded.prompt), after=after)
    taker = {"tokenize": "fit", "fit": "call"}[after]
    words = f"the stage {taker!r} takes Encoded, and 'own' before it gave Prompt"
    with pytest.raises(pg.ContractError, match=words) as caught:
        pg.run(pipe, [GOOD])
    assert caught.value.__notes__ == ["raised by the stage 'own' at request 0 ('good')"]
    (slot,) = pg.imap(pipe, [GOOD], isolate_bugs=True)
    error = slot.failure()
    assert isinstance(error, pg.StageFailed)
    assert (error.stage, words in error.message) == ("own", True)
    assert engine.calls == []


@pytest.mark.parametrize(("own", "stage", "message", "hint"), BUGS.values(), ids=BUGS)
def test_where_bugs_are_isolated_it_is_the_stage_that_failed(
    own: Any, stage: str, message: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "pipegen"):
        slots = list(
            pg.imap(
                pg.route(FakeEngine(answered)) >> own,
                [GOOD, {"prompt": "bad"}, GOOD],
                isolate_bugs=True,
            )
        )
    error = slots[1].failure()
    assert isinstance(error, pg.StageFailed)
    assert message in error.message
    assert error.hint.startswith(hint)
    assert (error.stage, bool(error.incident), error.incident in caplog.text) == (stage, True, True)
    assert "the request ('bad')" in caplog.text  # with the traceback
    if "before it gave" not in message:
        assert [pg.is_ok(slot) for slot in slots] == [True, False, True]


def test_of_a_stage_of_a_whole_batch_the_request_that_makes_it_raise_fails_alone() -> None:
    def prepare(requests: Any) -> Any:
        assert all(request.prompt != "bad" for request in requests)
        return pg.Success

    own: Any = batch_stage("own", prepare) >> pg.route(FakeEngine("a"))
    slots = list(pg.imap(own, [GOOD, {"prompt": "bad"}, GOOD], isolate_bugs=True))
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    assert isinstance(slots[1].failure(), pg.InternalError)


def test_a_bug_in_a_stage_of_pipegen_is_pipegens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pipegen.stages import ending

    monkeypatch.setattr(ending, "stop_row", lambda *given, **named: 1 // 0)
    (slot,) = pg.imap(pg.route(FakeEngine("a")), [GOOD], isolate_bugs=True)
    assert isinstance(slot.failure(), pg.InternalError)
    assert slot.failure().message.startswith("pipegen has a bug: ZeroDivisionError")
    assert "raised by the stage 'stop' of pipegen at the request ('good')" in caplog.text


def test_who_is_told_of_progress_and_raises_is_named() -> None:
    def tell(progress: pg.Progress) -> None:
        raise KeyError("tell")

    with pytest.raises(KeyError) as caught:
        pg.run(pg.watched(pg.route(FakeEngine("a")), tell), [GOOD, GOOD])
    assert caught.value.__notes__ == ["raised by the stage 'tell, of watched' at one of 2 requests"]


def test_a_job_asks_again_for_a_row_whose_stage_had_a_bug(tmp_path: Path) -> None:
    correct = [False]

    def look(result: pg.GenerationResult) -> pg.GenerationResult:
        if result.text == "no JSON" and not correct[0]:
            raise KeyError("a bug")
        return result

    route = pg.route(FakeEngine(answered)).insert(pg.pure("look", look), after="trim")
    for seen in ([True, False], [True, True]):
        with pg.job(route, [GOOD, {"prompt": "bad"}], tmp_path) as job:
            slots = list(job)
        assert [pg.is_ok(slot) for slot in slots] == seen
        correct[0] = True
    assert job.reused == 1


def test_a_job_does_not_ask_again_for_a_row_that_a_stage_refused(tmp_path: Path) -> None:
    refused = pg.each("look", lambda result: pg.Failure(pg.StageFailed("no", stage="look")))
    route: Any = pg.route(engine := FakeEngine("a")).insert(refused, after="trim")
    for _ in range(2):
        with pg.job(route, [GOOD], tmp_path) as job:
            assert [slot.failure().message for slot in job] == ["no"]
    assert len(engine.calls) == 1


class NoSlots(FakeEngine):
    """It answers with plain text in the place of slots."""

    def generate(self, inputs: Any) -> Any:
        return ["text" for _ in inputs]


def test_an_engine_that_answers_no_slots_is_told_what_an_answer_is() -> None:
    route = pg.route(NoSlots("a"))
    with pytest.raises(pg.ContractError, match="engine fake answered str, not a Result"):
        pg.run(route, [GOOD])
    (slot,) = pg.imap(route, [GOOD], isolate_bugs=True)
    assert "engine fake answered str, not a Result" in slot.failure().message


def test_a_bug_in_when_fails_its_own_request_where_bugs_are_isolated() -> None:
    fails: Any = pg.each("fails", lambda request: pg.Failure(pg.Timeout(request.prompt)))
    other: Any = pg.pure("other", lambda request: request.prompt)
    both = pg.fallback(fails, other, when=lambda error: int(error.message) > 0)
    good, bad = pg.imap(both, [{"prompt": "1"}, {"prompt": "x"}], isolate_bugs=True)
    assert good.unwrap() == "1"
    assert bad.failure().stage == "when of fallback(fails, other)"


def buggy(encoded: Any) -> str:
    if encoded.prompt.text == "bad":
        raise KeyError("logits")
    return "a"


@driver
def test_a_bug_in_an_engine_raises_with_the_engines_name(driver: Callable[..., Any]) -> None:
    with pytest.raises(KeyError) as caught:
        driver(pg.route(FakeEngine(buggy, name="mine")), [{"prompt": "bad"}])
    assert caught.value.__notes__ == ["raised by the engine 'mine'"]


def test_where_bugs_are_isolated_a_bug_in_an_engine_is_the_engines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    route = pg.route(FakeEngine(buggy, name="mine"))
    with caplog.at_level(logging.ERROR, "pipegen"):
        slots = list(pg.imap(route, [GOOD, {"prompt": "bad"}, GOOD], isolate_bugs=True))
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    error = slots[1].failure()
    assert isinstance(error, pg.BackendFailed)
    assert error.message == "the engine 'mine' raised KeyError: 'logits'"
    assert (error.backend, error.scope, error.retryable) == ("mine", "row", False)
    assert error.hint.startswith("correct the engine")
    assert error.incident in caplog.text


def test_a_call_that_fails_as_a_whole_is_no_bug_of_the_engine() -> None:
    failed = pg.CallFailed(pg.BackendFailed("no memory", backend="mine"))
    (slot,) = pg.run(pg.route(FakeEngine("a", fault=failed)), [GOOD])
    assert slot.failure().message == "no memory"
    assert not hasattr(failed, "__notes__")
