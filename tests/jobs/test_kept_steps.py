"""Steps: a row of several calls goes on in the middle."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise

import pipegen as pg
from pipegen.core.interpreter import Row
from pipegen.core.steps import EngineRequest
from pipegen.jobs.journal import STEPS, Journal
from pipegen.jobs.kept_steps import Steps, answer_from, answer_to_plain
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.row_keys import call_key
from pipegen.records import strict_json
from pipegen.records.fields import unchecked_replace
from pipegen.records.options import resolve
from pipegen.records.results import (
    ChatOutput,
    Encoded,
    Ending,
    Finish,
    Prompt,
    Raw,
    ResolvedRequest,
    TokenLogprob,
)
from pipegen.testing.fake import FakeEngine

ROWS = [{"id": str(row), "prompt": f"ticket {row}"} for row in range(3)]


def rollout(encoded: Encoded) -> str:
    return f"{encoded.prompt.text} by {encoded.options.seed}<|im_end|>"


def ask(result: pg.GenerationResult) -> pg.GenerationRequest:
    return pg.TextGenerationRequest(prompt=f"judge {result.text}")


def judged(fuse: Fuse, script: Any = rollout, **options: Any) -> Any:
    return (
        pg.route(Rowwise(script, fuse))
        >> pg.pure("ask", ask)
        >> pg.route(Rowwise(rollout, fuse, name="judge"), name="judge").with_options(options)
    )


def run(
    folder: Path, at: int | Fuse = -1, options: Any = None, script: Any = rollout, **more: Any
) -> tuple[list[pg.Slot[Any]], list[str]]:
    fuse, slots = at if isinstance(at, Fuse) else Fuse(at), list[Any]()
    try:
        with pg.job(
            judged(fuse, script), ROWS, folder, options, in_flight=1, grace=0, **more
        ) as job:
            slots.extend(job)
    except KeyboardInterrupt:
        pass
    return slots, fuse.asked


@pytest.mark.parametrize("samples", [1, 3])
def test_whatever_is_answered_is_not_asked_again_wherever_it_is_killed(
    samples: int, tmp_path: Path
) -> None:
    options = {"samples": samples, "seed": 7, "temperature": 1.0}
    wanted, asked = run(tmp_path / "whole", options=options)
    assert len(asked) == len(set(asked)) == 3 * 2 * samples
    for at in range(len(asked)):
        folder = tmp_path / str(at)
        fuse = Fuse(at)
        first, before = run(folder, fuse, options)
        assert len(first) == at // (2 * samples)
        slots, after = run(folder, options=options)
        assert slots == wanted
        # those in flight, and no others
        assert Counter(before) + Counter(after) - Counter(asked) == Counter(before) - Counter(
            fuse.answered
        )
        assert run(folder, options=options) == (wanted, [])


@pytest.mark.parametrize("samples", [1, 2])
def test_an_edited_pipe_in_a_loop_goes_on_where_it_was_killed(samples: int, tmp_path: Path) -> None:
    """A stage of one's own changes the ids between call and decode, and the route is repeated."""

    def pipe(fuse: Fuse) -> Any:
        cut = pg.pure("cut", lambda raw: unchecked_replace(raw, token_ids=raw.token_ids[2:]))
        route = pg.route(Rowwise(rollout, fuse)).insert(cut, after="call")
        return pg.repeat(route, again, limit=3)

    def again(result: pg.GenerationResult) -> pg.GenerationRequest | None:
        done = result.prompt_text.count(">") == 2
        return None if done else pg.TextGenerationRequest(prompt=f"{result.text} >")

    options = {"samples": samples, "seed": 7, "temperature": 1.0}

    def run_until(folder: Path, fuse: Fuse) -> list[pg.Slot[Any]]:
        slots = list[Any]()
        with (
            contextlib.suppress(KeyboardInterrupt),
            pg.job(pipe(fuse), ROWS, folder, options, in_flight=1, grace=0) as job,
        ):
            slots.extend(job)
        return slots

    undisturbed = Fuse()
    wanted = run_until(tmp_path / "whole", undisturbed)
    assert wanted == list(pg.run(pipe(Fuse()), ROWS, options))
    assert len(undisturbed.asked) > 2 * len(ROWS) * samples
    for at in range(len(undisturbed.asked)):
        first, second = Fuse(at), Fuse()
        run_until(tmp_path / str(at), first)
        assert run_until(tmp_path / str(at), second) == wanted
        answered = Counter(first.answered) + Counter(second.answered)
        assert answered == Counter(undisturbed.answered)


def test_a_row_of_one_call_writes_no_steps(tmp_path: Path) -> None:
    with pg.job(pg.route(Rowwise(rollout, Fuse())), ROWS, tmp_path / "job", in_flight=2) as job:
        assert len(list(job)) == 3
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == [
        "job.json",
        "keys.map",
        "results-0001.jsonl",
    ]


def test_a_judge_that_fails_for_now_does_not_cost_its_rollout(tmp_path: Path) -> None:
    slow = [True]

    def script(encoded: Encoded) -> Any:
        return pg.Timeout("slow") if slow[0] else rollout(encoded)

    for asked in (6, 3):
        fuse = Fuse()
        pipe = (
            pg.route(Rowwise(rollout, fuse))
            >> pg.pure("ask", ask)
            >> pg.route(Rowwise(script, fuse, name="judge"))
        )
        with pg.job(pipe, ROWS, tmp_path / "job") as job:
            assert [pg.is_ok(slot) for slot in job] == [not slow[0]] * 3
        assert len(fuse.asked) == asked
        slow[0] = False


def test_a_row_that_failed_for_good_is_asked_from_its_first_call(tmp_path: Path) -> None:
    odd = [True]

    def script(encoded: Encoded) -> Any:
        return (
            pg.MalformedResponse("odd")
            if odd[0] and str(encoded.prompt.text).startswith("judge")
            else rollout(encoded)
        )

    for retry, asked in (("none", 6), ("none", 0), ("MalformedResponse", 6), ("all", 0)):
        fuse = Fuse()
        pipe = (
            pg.route(Rowwise(script, fuse))
            >> pg.pure("ask", ask)
            >> pg.route(Rowwise(script, fuse, name="judge"))
        )
        with pg.job(pipe, ROWS, tmp_path / "job", retry=retry) as job:
            assert [pg.is_ok(slot) for slot in job] == [retry != "none"] * 3
        assert len(fuse.asked) == asked, retry
        odd[0] = retry == "none" and asked == 6


def test_a_route_that_answers_now_does_not_take_the_answer_of_the_one_that_took_over(
    tmp_path: Path,
) -> None:
    """Calls count on when the first route fails; a kept answer belongs to what was asked, not to
    its number alone.
    """
    down, slots = [True], list[Any]()
    for at in (2, -1):
        fuse = Fuse(at)
        first = pg.route(
            Rowwise(
                lambda encoded: (
                    pg.Timeout("slow") if down[0] else f"first {encoded.prompt.text}<|im_end|>"
                ),
                fuse,
                name="first",
            )
        )
        pipe: Any = (
            pg.fallback(first, pg.route(Rowwise(rollout, fuse, name="second")), when=pg.Timeout)
            >> pg.pure("ask", ask)
            >> pg.route(Rowwise(rollout, fuse, name="judge"))
        )
        try:
            with pg.job(pipe, ROWS[:1], tmp_path / "job", grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            down[0] = False
    (slot,) = slots
    assert slot.unwrap().previous.text == "first ticket 0"
    assert slot.unwrap().text.startswith("judge first ticket 0")


def test_equal_inputs_of_a_call_have_a_step_each(tmp_path: Path) -> None:
    options = {"samples": 3, "temperature": 1.0}
    numbers = iter(range(100))
    script = lambda encoded: f"{encoded.prompt.text[:5]} {next(numbers)}<|im_end|>"  # noqa: E731
    run(tmp_path / "job", 2, options, script)
    slots, _ = run(tmp_path / "job", -1, options, script)
    assert [one.previous.text for one in slots[0].unwrap().samples] == [
        "ticke 0",
        "ticke 1",
        "ticke 2",
    ]


def test_steps_go_where_the_rows_go(tmp_path: Path) -> None:
    run(tmp_path / "job", 1)
    files = sorted(path.name for path in (tmp_path / "job").iterdir())
    assert files == ["job.json", "keys.map", "results-0001.jsonl", "steps-0001.jsonl"]
    with (
        Journal(tmp_path / "job", "steps"),
        pytest.raises(
            JournalError, match=r"another run of this job is running \(steps-0001.jsonl is locked\)"
        ),
    ):
        run(tmp_path / "job", restart=True)
    _, asked = run(tmp_path / "job", restart=True)
    assert len(asked) == 6
    with pg.job(judged(Fuse()), ROWS, tmp_path / "job") as job:
        assert (job.before, len(list(job)), job.reused) == (3, 3, 3)


def test_answers_of_ones_own_and_of_other_versions_are_asked_again(tmp_path: Path) -> None:
    assert answer_to_plain("text") is None
    run(tmp_path / "job", 1)
    path = tmp_path / "job" / "steps-0001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"tokens"', b'"others"'))
    slots, asked = run(tmp_path / "job")
    assert (len(slots), len(asked)) == (3, 6)


def test_a_backend_of_ones_own_has_no_steps(tmp_path: Path) -> None:
    class Echo:
        name = "echo"

        def generate(self, inputs: Any) -> Any:
            return [pg.Success(one) for one in inputs]

    steps, row = Steps(tmp_path), Row(0, pg.Success("a"))
    turn: Any = type("Turn", (), {"row": type("Row", (), {"key": "0" * 32, "anew": False})})()
    for slot in (pg.Success("a"), pg.Failure(pg.Timeout("slow"))):
        steps.keep(turn, row, EngineRequest(Echo(), "a"), slot)
    assert steps.of(turn, row, EngineRequest(Echo(), "a")) is None
    steps.close()
    assert list(tmp_path.iterdir()) == []


def encoded(**more: Any) -> Encoded:
    fields: Mapping[str, Any] = {
        "request": pg.TextGenerationRequest(prompt="Hi"),
        "options": resolve(),
        "prompt": Prompt(token_ids=(1, 2), compact_token_ids=(1, 2)),
    }
    return Encoded(**{**fields, **more})


def test_answers_come_back_as_they_were() -> None:
    logprobs = (
        TokenLogprob(
            token_id=3,
            logprob=-0.1,
            top=((3, -0.1), (4, float("-inf"))),
            margin=None,
            text="é",
            top_texts=("é", "b"),
        ),
    )
    settled = ResolvedRequest(request=pg.TextGenerationRequest(prompt="Hi"), options=resolve())
    calls = ({"id": "1", "function": {"name": "f", "arguments": "{}"}},)
    how: dict[str, Any] = {
        "finish": Finish.STOP_STRING,
        "stop": "\u2028",
        "length": 3,
        "watched": ("a", "b"),
    }
    answers: list[tuple[Any, Any]] = [
        (
            encoded(),
            Raw(
                encoded=encoded(),
                token_ids=(3, 4),
                logprobs=logprobs,
                aborted=True,
                ended_by_plugin="json",
            ),
        ),
        (
            encoded(),
            Raw(
                encoded=encoded(),
                token_ids=(7,),
                ending=Ending(**how, token_ids=(7,), options=encoded().options),
            ),
        ),
        (
            settled,
            ChatOutput(
                resolved=settled,
                text="a",
                raw_text="a ",
                reasoning="r",
                tool_calls=calls,
                finish=Finish.EOS,
                stop=2,
                usage={"completion_tokens": 3},
            ),
        ),
        (
            settled,
            ChatOutput(
                resolved=settled,
                text="a",
                raw_text="a",
                finish=Finish.LENGTH,
                token_ids=(1,),
                logprobs=logprobs,
                usage={},
            ),
        ),
    ]
    for asked, answer in answers:
        values = answer_to_plain(answer)
        assert values is not None
        assert answer_from(strict_json.load(strict_json.dump(values)), asked) == answer


def test_what_is_asked_makes_the_key_of_a_step() -> None:
    other = pg.TextGenerationRequest(messages=[{"role": "user", "content": "Ho"}])
    settled = ResolvedRequest(request=pg.TextGenerationRequest(prompt="Hi"), options=resolve())
    seen = ResolvedRequest(
        request=pg.VlmGenerationRequest(
            messages=[{"role": "user", "content": "Hi"}], images=[b"one"]
        ),
        options=resolve(),
    )
    keys = [
        call_key("a", 1, "m", encoded()),
        call_key("b", 1, "m", encoded()),
        call_key("a", 2, "m", encoded()),
        call_key("a", 1, "n", encoded()),
        call_key("a", 1, "m", encoded(prompt=Prompt(token_ids=(1, 3), compact_token_ids=(1, 3)))),
        call_key("a", 1, "m", encoded(options=resolve(pg.GenerationOptions(seed=1)))),
        call_key("a", 1, "m", settled),
        call_key("a", 1, "m", ResolvedRequest(request=other, options=resolve())),
        call_key("a", 1, "m", seen),
        call_key("a", 1, "m", None),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == call_key("a", 1, "m", encoded(request=other))  # a prompt is its ids


@pytest.mark.parametrize("change", ["options", "order", "plugin"])
def test_what_differs_at_a_later_route_asks_again(change: str, tmp_path: Path) -> None:
    def pipe(changed: bool) -> Any:
        engines = [FakeEngine(rollout, name="one"), FakeEngine(rollout, name="two")]
        first, second = (
            pg.route(engine, name="same")
            for engine in (engines[::-1] if changed and change == "order" else engines)
        )
        if changed and change == "plugin":
            second = pg.attach(second, pg.plugins.strip_prefix(["A:"]))
        return (
            first
            >> pg.pure("ask", ask)
            >> second.with_options({"temperature": 0.5 if changed and change == "options" else 0.0})
        )

    reused = []
    for changed in (False, True, False, True):
        with pg.job(pipe(changed), ROWS[:1], tmp_path / "job") as job:
            assert len(list(job)) == 1
        reused.append(job.reused)
    assert reused == [0, 0, 1, 1]


def test_a_job_whose_last_rows_cannot_be_written_lets_go_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Journal, key: str, values: Any) -> None:
        raise JournalError("No space left on device")

    job = pg.job(pg.route(Rowwise(rollout, Fuse())), ROWS, tmp_path / "job", in_flight=2)
    next(job)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        with pytest.raises(JournalError, match="No space left"):
            job.close()
    slots, _ = run(tmp_path / "job", restart=True)
    assert len(slots) == 3


def test_a_step_of_another_version_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(tmp_path, STEPS) as journal:
        journal.append("0" * 32, {"answer": "in a form to come"})
        assert Steps._kept(journal, "0" * 32, encoded()) is None
        assert not journal.has("0" * 32)
    assert "its request is sent again" in caplog.text


def test_a_turn_that_has_ended_is_not_asked_again(tmp_path: Path) -> None:
    """Wherever a conversation is killed, it goes on with its next turn."""
    requests = [{"id": f"{row}", "turns": [f"{row}", "And?", "So?"]} for row in range(2)]

    def talk(folder: Path, fuse: Fuse) -> list[pg.Slot[Any]]:
        slots = list[Any]()
        pipe = pg.turns(pg.route(Rowwise("Yes.<|im_end|>", fuse)))
        try:
            with pg.job(pipe, requests, folder, in_flight=2, grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            pass
        return slots

    whole = Fuse()
    wanted = talk(tmp_path / "whole", whole)
    assert [len(slot.unwrap().rounds) for slot in wanted] == [3, 3]
    assert len(whole.answered) == 6
    for at in range(6):
        first, second, third = Fuse(at), Fuse(), Fuse()
        talk(tmp_path / str(at), first)
        assert talk(tmp_path / str(at), second) == wanted
        assert sorted(first.answered + second.answered) == sorted(whole.answered)
        assert len(first.answered) == at
        assert talk(tmp_path / str(at), third) == wanted and third.asked == []
    assert wanted[0].unwrap().rollout == wanted[0].unwrap().rounds[-1].rollout
