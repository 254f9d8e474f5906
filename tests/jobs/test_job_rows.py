"""The rows of a job: scores are rows of their own, and a request is admitted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.drivers.arguments import Admission
from pipegen.io.jsonl import Written
from pipegen.jobs.job_export import start_export
from pipegen.jobs.job_rows import kept_slot, retry_of, rows_of
from pipegen.jobs.journal import Finished
from pipegen.jobs.row_keys import Keys
from pipegen.jobs.runner import Job, job
from pipegen.testing.fake import FakeEngine


def test_scores_of_one_context_are_rows_of_their_own_and_come_back_as_they_were(
    tmp_path: Path,
) -> None:
    engine = FakeEngine("")
    ways: list[Any] = ["ab", "b", [98], "ab"]
    requests = [
        {"id": str(number), "prompt": "Hi", "continuation": way} for number, way in enumerate(ways)
    ]
    wanted = list(pg.score(pg.route(engine), requests))
    assert len({slot.unwrap().token_ids for slot in wanted}) == 2
    for reused in (0, 4):
        with job(
            pg.scoring(pg.route(engine)), [*requests, {"prompt": "", "continuation": "b"}], tmp_path
        ) as running:
            slots = list(running)
        assert slots[:4] == wanted
        assert isinstance(slots[4].failure(), pg.InvalidRequest)
        assert (running.reused, running.failed) == (reused and reused + 1, 1)
    assert sum(map(len, engine.scored)) == 8
    assert [
        slot for _, slot in pg.finished_rows(tmp_path, [(None, request) for request in requests])
    ] == wanted
    lines = (tmp_path / "results-0001.jsonl").read_bytes().splitlines()
    assert len({line[8:40] for line in lines}) == 5


def test_another_continuation_or_start_of_an_empty_context_is_asked_again(tmp_path: Path) -> None:
    engine = FakeEngine("")
    for start, reused in (("refuse", 0), (5, 0), (6, 0), (5, 1)):
        with job(
            pg.scoring(pg.route(engine), empty_context=start),
            [{"prompt": "", "continuation": "b"}],
            tmp_path,
        ) as running:  # type: ignore[arg-type]
            assert pg.is_ok(next(running)) is (start != "refuse")
        assert running.reused == reused
    with job(
        pg.scoring(pg.route(engine), empty_context=5),
        [{"prompt": "", "continuation": "c"}],
        tmp_path,
    ) as running:
        assert next(running).unwrap().text == "c"


def test_a_request_of_a_job_is_admitted_once_with_the_options_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, admitted = Admission.admitted, []

    def noted(admission: Admission, request: Any) -> Any:
        admitted.append(request)
        return admit(admission, request)

    monkeypatch.setattr(Admission, "admitted", noted)
    own = [{"prompt": "a"}, {"prompt": "b", "options": {"max_new_tokens": 3}}]
    # which a request may not have, and a run may
    options = {"max_new_tokens": 7, "chat": {"template": "{{ messages[0].content }}"}}
    results = [
        slot.unwrap()
        for slot in job(pg.route(FakeEngine("fine<|im_end|>")), own, tmp_path, options)
    ]
    assert [result.options.max_new_tokens for result in results] == [7, 3]
    assert len(admitted) == 2


def test_a_row_of_a_job_can_be_handed_to_who_admits_it_again(tmp_path: Path) -> None:
    options = pg.GenerationOptions(
        max_new_tokens=7, chat=pg.ChatTemplateOptions(template="{{ messages[0].content }}")
    )
    run: Job[Any] = Job(
        pg.route(FakeEngine("fine<|im_end|>")), tmp_path, options, "retryable", "", restart=False
    )
    own = [
        pg.TextGenerationRequest(prompt="a"),
        pg.TextGenerationRequest(prompt="b", options=pg.GenerationOptions(max_new_tokens=3)),
    ]
    rows = list(
        rows_of(
            [*enumerate(own)],
            run.journal,
            Keys(run.settings),
            Admission(options),
            again=retry_of("retryable"),
        )
    )
    run.close()
    assert [row.unmerged.unwrap() for row in rows] == own
    assert list(Admission(options).batch([row.unmerged for row in rows])) == [
        row.request for row in rows
    ]


def test_a_failed_row_is_kept_where_it_is_not_to_be_asked_again(tmp_path: Path) -> None:
    late = pg.Timeout("late")
    engine = FakeEngine(
        lambda encoded: late if encoded.request.prompt == "late" else "fine<|im_end|>"
    )
    own = [pg.TextGenerationRequest(prompt=text) for text in ("fine", "late", "not asked")]
    options = pg.GenerationOptions(max_new_tokens=7)
    with job(pg.route(engine), own[:2], tmp_path, options) as running:
        assert [pg.is_ok(slot) for slot in running] == [True, False]
        keys, finished = Keys(running.settings), Finished(tmp_path)
    rows = rows_of([*enumerate(own)], finished, keys, Admission(options), again=retry_of("none"))
    kept: list[list[Any]] = [
        [kept_slot(finished, str(row.key), "mine", retry_of(retry)) for retry in ("none", "all")]
        for row in rows
    ]
    finished.close()
    assert kept[0][0] == kept[0][1]
    assert kept[0][0].unwrap().id == "mine"
    assert isinstance(kept[1][0].failure(), pg.Timeout)
    assert kept[1][1] is None
    assert kept[2] == [None, None]


def test_lines_that_would_be_written_in_another_way_are_read_and_others_are_given_as_written(
    tmp_path: Path,
) -> None:
    route = pg.route(FakeEngine("fine<|im_end|>"))
    own: list[Any] = [{"prompt": "a"}, {"prompt": "b", "options": {"samples": 2, "seed": 1}}]
    slots = list(job(route, own, tmp_path))
    rows = start_export(tmp_path, enumerate(own), as_written=True)
    written, read = (slot for _, slot, _ in rows)
    assert isinstance(written, Written)
    assert written.completion_tokens == slots[0].unwrap().completion_tokens
    assert read == slots[1]
    assert len(read.unwrap().samples) == 2
