"""Rows whose messages another version of transformers gives to the chat template otherwise: their
prompts are others, so they are asked again. All other rows are reused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.jobs.row_keys import Keys
from pipegen.records.messages import Message
from pipegen.testing.fake import FakeEngine

SETTINGS: dict[str, Any] = {
    "engines": [],
    "pipeline": "",
    "plugins": [],
    "version": "",
    "options": {},
}
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
PLAIN: dict[str, Any] = {"role": "assistant", "content": "", "name": "a"}
EMPTY: dict[str, Any] = {"role": "assistant", "content": None, "name": "a"}


def thought(*names: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "yes", **dict.fromkeys(names, "hm")}


def chat(*messages: Any) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(messages=[USER, *messages, USER])


def key(request: Any, *rewrites: str) -> str:
    return Keys({**SETTINGS, "rewrites": [*rewrites]}).of(request)


@pytest.mark.parametrize(
    ("request_", "changed_by"),
    [
        (pg.TextGenerationRequest(prompt="Hi"), ()),
        (chat(PLAIN), ()),
        (chat(thought("reasoning_content", "thinking")), ()),
        (chat(EMPTY), ("null",)),
        (chat(Message(role="user", content="Hi", extras={"name": None})), ("null",)),
        (chat(thought("reasoning_content")), ("reasoning",)),
        (chat(thought("reasoning")), ("reasoning",)),
        (chat(thought("thinking")), ("reasoning",)),
        (chat(EMPTY, thought("reasoning")), ("null", "reasoning")),
        (pg.TextGenerationRequest(messages=[USER], turns=[EMPTY]), ("null",)),
        (
            pg.ScoringRequest(messages=[USER, EMPTY, USER], continuation="yes"),
            ("null",),
        ),
    ],
)
def test_a_key_changes_only_with_what_changes_a_message_of_its_request(
    request_: Any, changed_by: tuple[str, ...]
) -> None:
    before = Keys(SETTINGS).of(request_)
    assert key(request_) == before
    for name in ("null", "reasoning"):
        assert (key(request_, name) != before) is (name in changed_by)
    # from one version to the next a row is asked again only if more of it is changed
    both = key(request_, "null", "reasoning")
    assert (both == before) is (not changed_by)
    assert (both == key(request_, "reasoning")) is ("null" not in changed_by)


class Rewriting(FakeEngine):
    """An engine on a version of transformers that changes messages."""

    def __init__(self, *rewrites: str) -> None:
        super().__init__("yes<|im_end|>")
        if rewrites:
            self.rewrites = rewrites


def asked(engine: FakeEngine) -> int:
    return sum(map(len, engine.calls))


def test_rows_whose_prompt_another_version_changes_are_asked_again(tmp_path: Path) -> None:
    rows = [chat(PLAIN), chat(EMPTY), chat(thought("reasoning")), chat(thought("thinking"))]

    def run(*rewrites: str) -> tuple[int, pg.Job[Any]]:
        engine = Rewriting(*rewrites)
        with pg.job(pg.route(engine), rows, tmp_path) as job:
            assert all(map(pg.is_ok, job))
        return asked(engine), job

    assert run()[0] == 4
    later, job = run("reasoning")
    assert (later, job.reused) == (2, 2)
    assert job.changed == (
        (
            "what is rewritten in messages was nothing, is reasoning: requests without such"
            " messages are reused"
        ),
    )
    last, job = run("null", "reasoning")
    assert (last, job.reused) == (1, 3)
    assert (run("null", "reasoning")[0], run("reasoning")[0], run()[0]) == (0, 0, 0)


def test_the_rows_of_a_job_are_found_without_its_engine(tmp_path: Path) -> None:
    pairs = [("a", chat(EMPTY)), ("b", chat(PLAIN))]
    for rewrites in (("null",), (), ("null",)):
        with pg.job_keyed(pg.route(Rewriting(*rewrites)), pairs, tmp_path) as job:
            list(job)
        assert all(slot is not None for _, slot in pg.finished_rows(tmp_path, pairs))


def test_a_job_of_an_earlier_version_of_pipegen_keeps_its_rows(tmp_path: Path) -> None:
    rows, engine = [chat(PLAIN), chat(EMPTY)], Rewriting()
    with pg.job(pg.route(engine), rows, tmp_path) as job:
        list(job)
    written = json.loads((tmp_path / "job.json").read_text())
    for settings in (written, *written["runs"].values()):
        del settings["rewrites"]
    (tmp_path / "job.json").write_text(json.dumps(written))
    with pg.job(pg.route(engine), rows, tmp_path) as job:
        list(job)
    assert (job.reused, job.changed, asked(engine)) == (2, (), 2)
    engine = Rewriting("null", "reasoning")
    with pg.job(pg.route(engine), rows, tmp_path) as job:
        list(job)
    assert (job.reused, asked(engine)) == (1, 1)


def test_a_renderer_says_what_it_changes_where_its_engine_does_not(tmp_path: Path) -> None:
    class Renderer(type(FakeEngine("").renderer)):  # type: ignore[misc]
        rewrites = ("null",)

    engine = FakeEngine("yes<|im_end|>")
    for renderer, times in ((engine.renderer, 1), (Renderer(), 2), (Renderer(), 2)):
        engine.renderer = renderer
        with pg.job(pg.route(engine), [chat(EMPTY)], tmp_path) as job:
            list(job)
        assert asked(engine) == times


def test_options_that_earlier_versions_lack_change_a_key_only_where_they_are_set() -> None:
    def keyed(**options: Any) -> str:
        asked = pg.TextGenerationRequest(prompt="Hi", options=pg.GenerationOptions(**options))
        return key(asked)

    plain = "5c7343b4529f00c8fffe7b539a283976"  # as the versions before them had it
    assert keyed() == keyed(bad_words=(), logit_bias={}) == plain
    assert keyed(temperature=0.5, seed=1) == "a6b6edaaaf0af0ad3c567b539424a0f0"
    assert keyed(logit_bias={7: 1}) == keyed(logit_bias={"7": 1.0})
    others = [{"bad_words": ("no",)}, {"logit_bias": {7: 1}}, {"max_thinking_tokens": 0}]
    assert len({plain, *(keyed(**options) for options in others)}) == 4
