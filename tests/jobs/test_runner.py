"""Jobs: what is finished is not asked again, whatever became of the input and of the process."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import CallFailed
from pipegen.jobs.journal import Journal
from pipegen.jobs.new_file import JournalError
from pipegen.jobs.row_keys import Keys
from pipegen.jobs.runner import Job, begin_anew, job, job_keyed
from pipegen.records.results import Encoded, Prompt, TokenLogprob
from pipegen.testing.fake import FakeEngine

PROMPTS = [f"prompt {number}" for number in range(10)]


def echo(encoded: Encoded) -> str:
    return f"re: {encoded.request.prompt}<|im_end|>"


def asked(engine: FakeEngine) -> list[str]:
    return [str(encoded.request.prompt) for call in engine.calls for encoded in call]


def run(
    engine: FakeEngine, folder: Path, prompts: list[str], options: Any = None, **more: Any
) -> tuple[list[str], Job[Any]]:
    with job(
        pg.route(engine),
        [{"id": f"id {prompt}", "prompt": prompt} for prompt in prompts],
        folder,
        options,
        **more,
    ) as running:
        return [
            slot.unwrap().text if pg.is_ok(slot) else type(slot.failure()).__name__
            for slot in running
        ], running


class Strange:
    """What JSON has no form for."""


@pytest.mark.parametrize(
    ("place", "change", "kind"),
    [
        ("trim", {"stop": Strange()}, pg.StageFailed),
        ("trim", {"token_ids": (Strange(),)}, pg.StageFailed),
        ("trim", {"logprobs": (Strange(),)}, pg.StageFailed),
        ("trim", {"finish": "eos"}, pg.StageFailed),
        ("fit", {"prompt": Prompt(token_ids=(1.5,), compact_token_ids=(1,))}, pg.InvalidRequest),  # type: ignore[arg-type]
        ("fit", {"prompt": Prompt(token_ids=("a",), compact_token_ids=(1,))}, pg.InvalidRequest),  # type: ignore[arg-type]
        ("fit", {"prompt": None}, pg.StageFailed),
        ("fit", {"options": {"max_new_tokens": 3}}, pg.StageFailed),
        ("tokenize", {"prompt": Prompt(token_ids=(Strange(),), compact_token_ids=(1,))}, None),  # type: ignore[arg-type]
    ],
)
def test_what_a_stage_makes_that_no_job_can_write_fails_its_row_alone(
    place: str, change: dict[str, Any], kind: type[pg.GenerationError] | None, tmp_path: Path
) -> None:
    def changed(value: Any) -> Any:
        words = value.prompt.text if isinstance(value, Encoded) else value.prompt_text
        return dataclasses.replace(value, **change) if words == "bad" else value

    route = pg.route(FakeEngine(echo)).insert(pg.pure("mine", changed), after=place)
    requests = [{"prompt": text} for text in ("good", "bad", "fine")]
    for _ in range(2):
        slots = list(job(route, requests, tmp_path / "job"))
        texts = [slot.unwrap().text for slot in slots[::2]]
        assert texts == ["re: good", "re: fine"]
        assert isinstance(slots[1].failure(), kind or pg.GenerationError)


class Odd(FakeEngine):
    """An engine whose answers to "bad" cannot be written."""

    def generate(self, inputs: Any) -> Any:
        strange: Any = (TokenLogprob(token_id=98, logprob=Decimal(-1), top=()),)  # type: ignore[arg-type]
        return [
            slot.map(lambda raw: dataclasses.replace(raw, prompt_logprobs=strange))
            if encoded.request.prompt == "bad"
            else slot
            for encoded, slot in zip(inputs, super().generate(inputs), strict=True)
        ]


def test_a_step_that_cannot_be_written_is_no_end_of_the_job(tmp_path: Path) -> None:
    """The answer to the first of two calls."""
    pipe = pg.repeat(pg.route(Odd(echo)), lambda result: {"prompt": "again"}, limit=2)
    slots = list(job(pipe, [{"prompt": "bad"}, {"prompt": "good"}], tmp_path / "job"))
    assert isinstance(slots[0].failure(), pg.StageFailed)
    assert slots[1].unwrap().text == "re: again"


def test_the_same_job_again_asks_nothing(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    first, _ = run(engine, tmp_path / "job", PROMPTS)
    again, running = run(engine, tmp_path / "job", PROMPTS)
    assert first == again == [f"re: {prompt}" for prompt in PROMPTS]
    assert (
        running.before,
        running.finished,
        running.reused,
        running.failed,
        len(asked(engine)),
    ) == (10, 10, 10, 0, 10)
    assert running.answered == 0


@pytest.mark.parametrize("count", [1, 20, 32, 40])
def test_what_came_before_an_input_that_raises_is_answered_and_kept(
    count: int, tmp_path: Path
) -> None:
    def prompts() -> Any:
        yield from ({"prompt": f"prompt {number}"} for number in range(count))
        raise OSError("the disk is gone")

    for reused in (0, count):
        texts: list[str] = []
        with job(pg.route(FakeEngine(echo)), prompts(), tmp_path, in_flight=2) as running:
            slots = iter(running)
            texts += [next(slots).unwrap().text for _ in range(count)]
            with pytest.raises(OSError, match="the disk is gone"):
                next(slots)
        assert texts == [f"re: prompt {number}" for number in range(count)]
        assert (running.finished, running.reused) == (count, reused)


def test_answers_are_counted_before_their_turn_comes(tmp_path: Path) -> None:
    engine = FakeEngine(
        lambda encoded: (
            pg.MalformedResponse("odd") if encoded.request.prompt == PROMPTS[5] else echo(encoded)
        )
    )
    with job(
        pg.route(engine), [{"prompt": prompt} for prompt in PROMPTS], tmp_path, in_flight=4
    ) as running:
        next(running)
        assert (running.finished, running.answered) == (1, 4)
        assert len(list(running)) == 9
        assert (running.failed, running.answered) == (1, 9)


def test_a_job_that_was_left_early_goes_on(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    with job(
        pg.route(engine), [{"prompt": prompt} for prompt in PROMPTS], tmp_path, in_flight=2
    ) as running:
        assert [next(running).unwrap().text for _ in range(3)] == [
            f"re: {prompt}" for prompt in PROMPTS[:3]
        ]
    texts, running = run(engine, tmp_path, PROMPTS, in_flight=2)
    assert texts == [f"re: {prompt}" for prompt in PROMPTS]
    # the fourth had ended beside the third, though its slot was not taken
    assert running.reused == 4
    assert sorted(asked(engine)) == sorted(PROMPTS)


def test_rows_are_known_by_content_wherever_they_stand(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS)
    texts, running = run(engine, tmp_path, ["new one", *reversed(PROMPTS[2:]), "new two"])
    assert texts == [
        "re: new one",
        *(f"re: {prompt}" for prompt in reversed(PROMPTS[2:])),
        "re: new two",
    ]
    assert (running.reused, asked(engine)[10:]) == (8, ["new one", "new two"])


def test_a_result_has_the_id_of_the_request_that_asks_now(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    for name in ("first", "second", None):
        with job(
            pg.route(engine),
            [{"id": name, "prompt": "Hi"}] if name else [{"prompt": "Hi"}],
            tmp_path,
        ) as running:
            assert next(running).unwrap().id == name
    assert len(asked(engine)) == 1


def test_equal_requests_are_two_answers(tmp_path: Path) -> None:
    texts = iter(["one<|im_end|>", "two<|im_end|>", "three<|im_end|>"])
    engine = FakeEngine(lambda encoded: next(texts))
    first, _ = run(engine, tmp_path, ["Hi", "Hi"])
    again, running = run(engine, tmp_path, ["Hi", "Hi", "Hi"])
    assert (first, again, running.reused) == (["one", "two"], ["one", "two", "three"], 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.7}, "temperature was 0.0, is 0.7"),
        ({"stop": ["END"]}, r"stop was \[\], is \['END'\]"),
        ({"seed": 1}, "seed was None, is 1"),
    ],
)
def test_other_options_ask_again_and_say_so(
    tmp_path: Path, options: Mapping[str, Any], words: str
) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS)
    _, running = run(engine, tmp_path, PROMPTS, options)
    assert (running.reused, len(asked(engine))) == (0, 20)
    assert [re.search(words, change) is not None for change in running.changed] == [True]
    _, running = run(engine, tmp_path, PROMPTS)
    assert running.reused == 10


def test_options_that_say_the_default_are_the_default(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS)
    _, running = run(engine, tmp_path, PROMPTS, {"temperature": 0.0})
    assert running.reused == 10


def test_an_option_of_the_request_counts_as_one_of_the_run(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    with job(
        pg.route(engine), [{"prompt": "Hi", "options": {"temperature": 0.7}}], tmp_path
    ) as running:
        list(running)
    _, running = run(engine, tmp_path, ["Hi"], {"temperature": 0.7})
    assert running.reused == 1


def test_another_model_plugin_or_version_asks_again(tmp_path: Path) -> None:
    engines = [FakeEngine(echo), FakeEngine(echo, name="other")]
    plugged = pg.attach(pg.route(engines[0]), pg.plugins.strip_prefix(["A:"]))
    other = pg.attach(pg.route(engines[0]), pg.plugins.strip_prefix(["B:"]))
    reused = []
    for route, version in [
        *((pg.route(engines[0]), ""), (pg.route(engines[1]), ""), (plugged, ""), (other, "")),
        *((plugged, "2"), (plugged, "")),
    ]:
        with job(route, [{"prompt": "Hi"}], tmp_path, version=version) as running:
            list(running)
        reused.append(running.reused)
    assert reused == [0, 0, 0, 0, 0, 1]


def test_a_stage_of_ones_own_makes_other_rows(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    route = pg.route(engine)
    mine = route.insert(pg.pure("shout", lambda request: request), before="resolve")
    reused = []
    for pipe in (route, mine, route, mine):
        with job(pipe, [{"prompt": "Hi"}], tmp_path) as running:
            list(running)
        reused.append(running.reused)
    assert reused == [0, 0, 1, 1]


def test_the_same_model_on_another_engine_is_the_same_row(tmp_path: Path) -> None:
    first, second = FakeEngine(echo, name="one"), FakeEngine(echo, name="two")
    first.identity = second.identity = "the model"
    run(first, tmp_path, PROMPTS[:5])
    texts, running = run(second, tmp_path, PROMPTS)
    assert (len(texts), running.reused, asked(second)) == (10, 5, PROMPTS[5:])


def test_images_count_by_their_bytes(tmp_path: Path) -> None:
    engine = FakeEngine("seen<|im_end|>")
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    reused = []
    for file, data in [
        (files[0], b"one"),
        (files[1], b"one"),
        (files[0], b"two"),
        (files[0], b"one"),
    ]:
        file.write_bytes(data)
        request = {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "image": str(file)},
                        {"type": "text", "text": "What?"},
                    ],
                }
            ]
        }
        with job(pg.route(engine), [request], tmp_path / "job") as running:
            assert next(running).unwrap().text == "seen"
        reused.append(running.reused)
    assert reused == [0, 1, 0, 1]


def test_failed_rows_are_asked_again_as_retry_says(tmp_path: Path) -> None:
    failures: dict[str, pg.GenerationError] = {
        PROMPTS[1]: pg.Timeout("slow"),
        PROMPTS[2]: pg.MalformedResponse("odd"),
    }
    engine = FakeEngine(lambda encoded: failures.get(str(encoded.request.prompt), echo(encoded)))
    texts, running = run(engine, tmp_path, PROMPTS[:3])
    assert (texts[1:], running.failed) == (["Timeout", "MalformedResponse"], 2)
    retryable = [kind for kind in (pg.Timeout, pg.MalformedResponse) if kind.retryable]
    for retry, again in [
        ("none", 0),
        ("retryable", len(retryable)),
        ("all", 2),
        ("MalformedResponse", 1),
        ("Timeout", 1),
    ]:
        before = len(asked(engine))
        texts, running = run(engine, tmp_path, PROMPTS[:3], retry=retry)
        assert (len(asked(engine)) - before, running.reused, running.failed) == (
            again,
            3 - again,
            2,
        ), retry
    failures.clear()
    texts, running = run(engine, tmp_path, PROMPTS[:3], retry="all")
    assert texts == [f"re: {prompt}" for prompt in PROMPTS[:3]]
    texts, running = run(engine, tmp_path, PROMPTS[:3], retry="all")
    assert running.reused == 3


def test_a_wrong_retry_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(pg.InvalidField, match=r"retry takes .*did you mean 'Timeout'"):
        job(pg.route(FakeEngine("")), [], tmp_path / "job", retry="Timeot")
    assert not (tmp_path / "job").exists()


def test_what_fails_before_it_has_a_key_is_looked_at_each_time(tmp_path: Path) -> None:
    engine, image = FakeEngine("seen<|im_end|>"), tmp_path / "late.png"
    requests = [
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": str(image)}]}]},
    ]
    for seen in (False, True):
        with job(pg.route(engine), requests, tmp_path / "job", retry="none") as running:
            slots = list(running)
        assert [pg.is_ok(slot) for slot in slots] == [False, seen]
        image.write_bytes(b"one")


def test_a_bug_fails_its_row_and_is_asked_again(tmp_path: Path) -> None:
    broken = [True]

    def script(encoded: Encoded) -> str:
        if broken[0] and encoded.request.prompt == PROMPTS[1]:
            raise ZeroDivisionError("a bug")
        return echo(encoded)

    engine = FakeEngine(script)
    texts, _ = run(engine, tmp_path, PROMPTS[:3])
    assert texts == ["re: prompt 0", "BackendFailed", "re: prompt 2"]
    broken[0] = False
    texts, running = run(engine, tmp_path, PROMPTS[:3])
    assert (texts, running.reused) == ([f"re: {prompt}" for prompt in PROMPTS[:3]], 2)


def test_restart_begins_anew(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path / "job", PROMPTS)
    _, running = run(engine, tmp_path / "job", PROMPTS, restart=True)
    assert (running.before, running.reused, len(asked(engine))) == (0, 0, 20)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "results-0001.jsonl").write_text("mine")
    for restart in (True, False):
        with pytest.raises(JournalError, match=r"no job|last line"):
            run(engine, tmp_path / "notes", PROMPTS, restart=restart)
    assert (tmp_path / "notes" / "results-0001.jsonl").read_text() == "mine"


def test_an_interrupt_while_a_job_opens_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    engine = FakeEngine(echo)
    with monkeypatch.context() as patch:
        patch.setattr("pipegen.jobs.runner.KeyMap", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(engine, tmp_path, PROMPTS)
    assert run(engine, tmp_path, PROMPTS, restart=True)[1].finished == len(PROMPTS)


@pytest.mark.parametrize("writer", [0, 1])
def test_a_job_is_not_begun_anew_while_another_run_is_at_work(tmp_path: Path, writer: int) -> None:
    engine, folder = FakeEngine(echo), tmp_path / "job"
    run(engine, folder, PROMPTS[:2])
    others = [Journal(folder), Journal(folder)]
    others[writer].append("0" * 32, {"id": "theirs", "ok": True})
    others.pop(1 - writer).close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        JournalError,
        match=(
            rf"job: another run of this job is running \(results-000{writer + 1}.jsonl is locked\),"
            r" and nothing is removed"
        ),
    ):
        run(engine, folder, PROMPTS, restart=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    others[0].close()
    _, running = run(engine, folder, PROMPTS, restart=True)
    assert (running.before, running.reused, running.finished) == (0, 0, 10)


def test_rows_that_cannot_be_removed_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS[:2])

    def refused(fd: int, length: int) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("os.ftruncate", refused)
        with pytest.raises(JournalError, match="cannot be removed: Read-only file system"):
            run(engine, tmp_path, PROMPTS, restart=True)
    assert run(engine, tmp_path, PROMPTS[:2])[1].reused == 2


def test_pairs_keep_their_names(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    for reused in (0, 2):
        with job_keyed(
            pg.route(engine), [(("T", n), {"prompt": PROMPTS[n]}) for n in range(2)], tmp_path
        ) as running:
            assert [(name, slot.unwrap().text) for name, slot in running] == [
                (("T", 0), "re: prompt 0"),
                (("T", 1), "re: prompt 1"),
            ]
        assert running.reused == reused


def test_finished_rows_are_given_out_while_nothing_is_in_flight(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS)
    taken = []

    def requests() -> Any:
        for number in range(10**6):
            taken.append(number)
            yield {"prompt": PROMPTS[number % 10] if number < 10 else f"new {number}"}

    with job(pg.route(engine), requests(), tmp_path) as running:
        next(running)
        assert len(taken) <= 96  # the ten, and as many as are in flight, in blocks of 32


def test_samples_logprobs_and_tries_come_back_as_they_were(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    route = pg.fallback(
        pg.route(FakeEngine(lambda encoded: pg.Timeout("slow"), name="first")),
        pg.route(engine),
        when=pg.Timeout,
    )
    slots = []
    for _ in range(2):
        with job(
            route,
            [{"prompt": "Hi", "options": {"samples": 3, "temperature": 1.0, "seed": 5}}],
            tmp_path,
        ) as running:
            slots.append(next(running))
    assert slots[0] == slots[1]
    assert (len(slots[1].unwrap().samples), running.reused) == (3, 1)
    assert isinstance(slots[1].unwrap().tried[0], pg.Timeout)


def test_one_request_for_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not one dict"):
        job(pg.route(FakeEngine("")), {"prompt": "Hi"}, tmp_path)  # type: ignore[arg-type]


def test_options_in_the_place_of_the_folder_are_refused() -> None:
    with pytest.raises(TypeError, match="folder takes the path where the job keeps its answers"):
        job(pg.route(FakeEngine("")), [{"prompt": "Hi"}], {"max_new_tokens": 4})  # type: ignore[arg-type]


def test_the_rows_of_a_job_can_be_had_at_any_time_without_an_engine(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS[:4], {"max_new_tokens": 99})
    asked_for = [
        ("gone", {"prompt": ""}),
        *((prompt, {"id": "now", "prompt": prompt}) for prompt in reversed(PROMPTS[2:6])),
    ]
    rows = dict(pg.finished_rows(tmp_path, [*asked_for, ("bad", {"messages": []})]))
    assert [name for name, slot in rows.items() if slot is None] == ["gone", PROMPTS[5], PROMPTS[4]]
    assert [rows[prompt].unwrap().text for prompt in (PROMPTS[3], PROMPTS[2])] == [
        "re: prompt 3",
        "re: prompt 2",
    ]  # type: ignore[union-attr]
    assert isinstance(rows["bad"].failure(), pg.InvalidRequest)  # type: ignore[union-attr]
    assert len(engine.calls) == 1
    with pytest.raises(JournalError, match=r"has no job\.json"):
        list(pg.finished_rows(tmp_path / "nothing", []))


def test_results_without_their_settings_are_no_job(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS[:1])
    (tmp_path / "job.json").unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match=r"holds results and no job\.json"):
            run(engine, tmp_path, PROMPTS[:1])


@pytest.mark.parametrize("name", ["cat.png", "notes/a.txt", "running-1", "job.json.bak"])
def test_a_folder_of_other_files_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "imgs"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    engine = FakeEngine(echo)
    with pytest.raises(
        JournalError, match=r"other files .* and no job\.json: it is no job's folder"
    ):
        run(engine, folder, PROMPTS)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / name]
    assert not engine.calls


def test_files_beside_the_rows_of_a_job_stay_and_hidden_ones_are_no_hindrance(
    tmp_path: Path,
) -> None:
    (tmp_path / ".gitignore").write_text("*")
    run(FakeEngine(echo), tmp_path, PROMPTS[:1])
    (tmp_path / "notes.txt").write_text("mine")
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS[:1])
    assert not engine.calls


def test_a_model_that_cannot_be_read_is_an_error_at_once(tmp_path: Path) -> None:
    class Unreadable(FakeEngine):
        @property
        def identity(self) -> str:
            raise CallFailed(pg.BackendFailed("no such file", backend="fake"))

        @identity.setter
        def identity(self, value: str) -> None:
            """What the fake engine sets is not taken."""

    with pytest.raises(pg.BackendFailed, match="no such file"):
        job(pg.route(Unreadable("")), [], tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_many_finished_rows_behind_one_that_is_asked_are_not_all_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS)
    monkeypatch.setattr("pipegen.jobs.kept_turns.WAITING", 4)
    texts, running = run(engine, tmp_path, ["new one", *PROMPTS, "new two", *PROMPTS[:2]])
    assert texts[:4] == ["re: new one", "re: prompt 0", "re: prompt 1", "re: prompt 2"]
    # the last two are equal to earlier ones: two answers of their own
    assert (len(texts), running.reused) == (14, 10)
    assert sum(len(call) for call in engine.calls[1:]) == 4


def test_equal_requests_are_counted_however_many_there_are() -> None:
    keys = Keys({"engines": [], "pipeline": "", "plugins": [], "version": "", "options": {}})
    requests = [
        pg.TextGenerationRequest(prompt=f"prompt {number % 2000}") for number in range(5000)
    ]
    found = [keys.of(request) for request in requests]
    assert len(set(found)) == 5000
    again = Keys({"engines": [], "pipeline": "", "plugins": [], "version": "", "options": {}})
    assert [again.of(request) for request in requests] == found


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    engine = FakeEngine(echo)
    run(engine, tmp_path, PROMPTS[:1], {"seed": 1, "max_new_tokens": 40})
    _, running = run(engine, tmp_path, PROMPTS[:1], {"seed": 2, "max_new_tokens": 40})
    assert running.changed == ("seed was 1, is 2",)


def test_a_job_that_was_killed_before_its_settings_were_written_begins_anew(tmp_path: Path) -> None:
    for restart in (False, True):
        folder = tmp_path / str(restart)
        folder.mkdir()
        (folder / "results-0001.jsonl").write_bytes(b"")
        texts, _ = run(FakeEngine(echo), folder, PROMPTS[:2], restart=restart)
        assert texts == ["re: prompt 0", "re: prompt 1"]


@pytest.mark.parametrize("made", ["text", None, 7])
def test_a_last_stage_that_gives_no_result_fails_its_own_row_and_is_named(
    made: Any, tmp_path: Path
) -> None:
    def odd(result: pg.GenerationResult) -> Any:
        return result if result.text == "re: b" else made

    requests = [{"prompt": prompt} for prompt in "abc"]
    pipe: Any = pg.route(FakeEngine(echo)) >> pg.pure("odd", odd)
    with job(pipe, requests, tmp_path) as running:
        slots = list(running)
    assert [pg.is_ok(slot) for slot in slots] == [False, True, False]
    error = slots[0].failure()
    assert isinstance(error, pg.StageFailed)
    assert (error.stage, bool(error.incident)) == ("odd", True)
    assert f"the stage 'odd' gave {type(made).__name__}, not a GenerationResult" in error.message
    right: Any = pg.route(FakeEngine(echo)) >> pg.pure("odd", lambda result: result)
    with job(right, requests, tmp_path) as running:
        assert all(map(pg.is_ok, running))
    assert running.reused == 1


def test_what_is_not_there_is_begun_anew_without_a_word(tmp_path: Path) -> None:
    begin_anew(tmp_path / "job")
    assert not (tmp_path / "job").exists()


def removing(folder: Path) -> FakeEngine:
    """An engine during whose first answer the job's folder is removed."""

    def script(encoded: Any) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        return "Hi<|im_end|>"

    return FakeEngine(script)


REMOVED = r"job was removed during the run: no finished request is kept there"


def test_a_folder_that_is_removed_during_the_run_ends_the_job_with_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    requests = [{"prompt": str(number)} for number in range(40)]
    running = job(pg.route(removing(folder)), requests, folder, in_flight=4)
    given: list[str] = []
    with pytest.raises(JournalError, match=REMOVED):
        given.extend(slot.unwrap().text for slot in running)
    assert given
    assert set(given) == {"Hi"}
    assert len(given) < 40  # the others are not asked for
    running.close()  # it was reported
    with job(pg.route(FakeEngine("Hi<|im_end|>")), requests, folder) as again:
        assert len(list(again)) == 40
        assert again.reused == 0


def test_a_removed_folder_is_an_error_too_where_the_job_is_left_early(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    requests = [{"prompt": "a"}, {"prompt": "b"}]
    with (
        pytest.raises(JournalError, match=REMOVED),
        job_keyed(pg.route(removing(folder)), enumerate(requests), folder) as running,
    ):
        next(running)


def test_what_dead_processes_left_of_finished_rows_is_removed(tmp_path: Path) -> None:
    _, first = run(FakeEngine(echo), tmp_path / "job", ["a"])
    with job(pg.route(FakeEngine(echo)), [{"prompt": "b"}], tmp_path / "job") as running:
        list(running)
        running.tidy(running.journal.has)
        left = sorted(path.name for path in (tmp_path / "job").glob("running-*"))
    assert (left, first.reused) == ([], 0)
