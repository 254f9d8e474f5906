"""What a job says of the rows that were finished before: how many were made with the settings of
this run, and with which the others were.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toolz import dissoc

import pipegen as pg
from pipegen.engines.plugin import Plugin
from pipegen.jobs import history
from pipegen.jobs.new_file import JournalError
from pipegen.testing.fake import FakeEngine

PROMPTS = [{"prompt": f"prompt {number}"} for number in range(6)]


class Set(FakeEngine):
    """An engine that says what its answers depend on."""

    def __init__(self, **depends: Any) -> None:
        super().__init__("yes<|im_end|>")
        self.depends_on = {"model": "m", **depends}


def run(folder: Path, requests: Any, options: Any = None, route: Any = None, **more: Any) -> Any:
    with pg.job(
        route or pg.route(FakeEngine("yes<|im_end|>")), requests, folder, options, **more
    ) as job:
        list(job)
    return job


def test_rows_are_counted_by_the_settings_that_made_them(tmp_path: Path) -> None:
    run(tmp_path, PROMPTS[:4])
    hot = run(tmp_path, PROMPTS[:2], {"temperature": 0.7})
    assert (hot.before, hot.made_before, hot.changed) == (
        4,
        (0, ((4, "temperature 0.0 (now 0.7)"),)),
        ("temperature was 0.0, is 0.7",),
    )
    back = run(tmp_path, PROMPTS)
    assert (back.before, back.made_before, back.reused) == (
        6,
        (4, ((2, "temperature 0.7 (now 0.0)"),)),
        4,
    )
    again = run(tmp_path, PROMPTS)
    assert (again.before, again.made_before, again.reused, again.changed) == (
        8,
        (6, ((2, "temperature 0.7 (now 0.0)"),)),
        6,
        (),
    )


def test_a_job_of_one_setting_has_no_others(tmp_path: Path) -> None:
    assert run(tmp_path, PROMPTS).made_before == (0, ())
    assert run(tmp_path, PROMPTS).made_before == (6, ())


def test_a_default_that_is_written_out_is_no_change(tmp_path: Path) -> None:
    run(tmp_path, PROMPTS)
    job = run(
        tmp_path, PROMPTS, {"temperature": 0.0, "max_new_tokens": 512, "top_p": 1.0, "stop": []}
    )
    assert (job.changed, job.reused, job.made_before) == ((), 6, (6, ()))


def test_rows_with_options_of_their_own_are_told_apart(tmp_path: Path) -> None:
    own = [{**request, "options": {"seed": number}} for number, request in enumerate(PROMPTS)]
    run(tmp_path, own)
    job = run(tmp_path, [*own, *PROMPTS], {"temperature": 0.7})
    assert (job.made_before, job.reused) == (
        (0, ((6, "options of their own, reused where they are asked for again"),)),
        0,
    )
    later = run(tmp_path, own, route=pg.route(Set()))
    assert [count for count, _ in later.made_before.others] == [12, 6]
    assert "another model, and options of their own" in later.made_before.others[0][1]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {"dtype": "float16"}, "dtype not set (now 'float16')"),
        (
            {"served_model_name": "m2"},
            {"served_model_name": "m-lora"},
            "served_model_name 'm2' (now 'm-lora')",
        ),
        ({"extra_body": {"n": 1}}, {"extra_body": {"n": True}}, "extra_body.n 1 (now True)"),
        ({}, {"extra_body": {"a": {"b": "c"}}}, "extra_body.a.b not set (now 'c')"),
        ({}, {"extra_body": {"a": {}}}, "extra_body.a not set (now {})"),
        (
            {"model": "a"},
            {"model": "b", "dtype": "float16"},
            "another model, dtype not set (now 'float16')",
        ),
    ],
)
def test_what_differs_is_named(
    first: dict[str, Any], second: dict[str, Any], words: str, tmp_path: Path
) -> None:
    reused = []
    for depends in (first, second, first, second):
        job = run(tmp_path, PROMPTS, route=pg.route(Set(**depends)))
        reused.append(job.reused)
    assert reused == [0, 0, 6, 6]
    assert job.made_before == (6, ((6, words),))


def test_a_second_engine_and_its_plugins_are_named(tmp_path: Path) -> None:
    def pipe(dtype: str, *plugins: Plugin) -> Any:
        second = pg.route(Set(dtype=dtype), name="judge")
        ask = pg.pure("ask", lambda result: pg.TextGenerationRequest(prompt=result.text))
        return pg.route(Set()) >> ask >> (pg.attach(second, *plugins) if plugins else second)

    run(tmp_path, PROMPTS, route=pipe("float16"))
    assert run(tmp_path, PROMPTS, route=pipe("float32")).changed == (
        "engine 2: dtype was 'float16', is 'float32'",
    )
    assert (
        "engine 2: strip_prefix"
        in run(tmp_path, PROMPTS, route=pipe("float32", pg.plugins.strip_prefix(["A:"]))).changed[0]
    )
    assert "engine 2: the model is another" in run(tmp_path, PROMPTS, route=pg.route(Set())).changed


def test_what_a_server_does_not_say_is_as_the_last_run_had_it(tmp_path: Path) -> None:
    run(tmp_path, PROMPTS, route=pg.route(Set(served_model_name="old", dtype="float16")))
    run(tmp_path, PROMPTS, route=pg.route(Set(served_model_name="new", dtype="float16")))
    assert (
        run(tmp_path, PROMPTS, route=pg.route(Set(served_model_name=None, dtype="float16"))).reused
        == 6
    )
    assert (
        json.loads((tmp_path / "job.json").read_text())["engines"][0]["served_model_name"] == "new"
    )
    assert run(tmp_path, PROMPTS, route=pg.route(Set(served_model_name=None))).reused == 0


def test_a_server_that_is_down_gives_out_what_it_answered_before(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    from pipegen.testing.faulty import FaultyServer

    requests = [{"messages": [{"role": "user", "content": "abc"}]}]
    with FaultyServer() as server:
        for models in (True, False):
            server.models = models
            with pg.backends.openai_server(
                "another name", base_url=server.url, dialect="vllm", server_limit=True
            ) as route:
                job = run(tmp_path, requests, route=route)
            (depends,) = json.loads((tmp_path / "job.json").read_text())["engines"]
            assert (depends["served_model_name"], depends["server_limit"]) == ("toy", 4096)
    assert job.reused == 1


def test_only_so_many_runs_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_RUNS", 3)
    for seed in range(5):
        job = run(tmp_path, PROMPTS[:1], {"seed": seed})
    assert len(json.loads((tmp_path / "job.json").read_text())["runs"]) == 3
    assert (job.before, sum(count for count, _ in job.made_before.others)) == (4, 4)


def test_a_folder_of_another_rule_of_keys_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Earlier folders named no rule: their keys are others, so no row would be found."""
    run(tmp_path, PROMPTS)
    written = json.loads((tmp_path / "job.json").read_text())
    for rule in ({}, {"keys": 1}, {"keys": 3}):
        (tmp_path / "job.json").write_text(json.dumps({**dissoc(written, "keys"), **rule}))
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        for restart in (False, True):
            with pytest.raises(JournalError, match="of another version of pipegen"):
                pg.job(pg.route(FakeEngine("a")), PROMPTS, tmp_path, restart=restart)
        with pytest.raises(JournalError, match="of another version of pipegen"):
            list(pg.finished_rows(tmp_path, enumerate(PROMPTS)))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_fallback_counts_by_what_it_falls_back_for(tmp_path: Path) -> None:
    def own(error: pg.GenerationError) -> bool:
        return True

    engines = [FakeEngine("a<|im_end|>", name=name) for name in "ab"]
    reused = []
    for when in (
        *((pg.Timeout,), (pg.Timeout, pg.BackendFailed), (pg.BackendFailed, pg.Timeout), own),
        *(own, pg.Timeout),
    ):
        reused.append(
            run(
                tmp_path,
                PROMPTS,
                route=pg.fallback(pg.route(engines[0]), pg.route(engines[1]), when=when),
            ).reused
        )  # type: ignore[arg-type]
    assert reused == [0, 0, 6, 0, 6, 6]


def test_an_engine_counts_that_only_a_stage_is_bound_to(tmp_path: Path) -> None:
    def named(name: str) -> FakeEngine:
        engine = FakeEngine(f"{name}<|im_end|>")
        engine.identity = name
        return engine

    def replaced(name: str) -> Any:
        return pg.route(named("first")).replace("call", pg.call(named(name)))

    def fallback(name: str) -> Any:
        failing: Any = pg.each("fails", lambda request: pg.Failure(pg.Timeout("slow")))
        return pg.fallback(failing >> pg.route(named("first")), replaced(name), when=pg.Timeout)

    for kind in (replaced, fallback):
        seen = []
        for name in ("a", "b", "a"):
            with pg.job(kind(name), [{"prompt": "Hi"}], tmp_path / kind.__name__) as running:
                seen.append((next(running).unwrap().text, running.reused, running.changed))
        changed = "engine 2: the model is another"
        assert seen == [("a", 0, ()), ("b", 0, (changed,)), ("a", 1, (changed,))]


class TestRowsWithoutTurns:
    """`pg.turns(route)` adds nothing to the key of a row that has no turns."""

    def asked(self, route: Any, folder: Path, requests: Any) -> list[bool]:
        with pg.job(route, requests, folder) as running:
            return [pg.is_ok(slot) for slot in running]

    def test_they_are_reused_from_a_folder_of_the_plain_pipeline_and_there(
        self, tmp_path: Path
    ) -> None:
        engine = FakeEngine("fine<|im_end|>")
        for wrapped in (pg.route(engine), pg.turns(pg.route(engine)), pg.route(engine)):
            assert self.asked(wrapped, tmp_path, [{"prompt": "a"}, {"prompt": "b"}]) == [True, True]
        assert len(engine.calls) == 1
        again = pg.turns(pg.fallback(pg.route(engine), pg.route(engine), when=pg.Timeout))
        self.asked(again, tmp_path, [{"prompt": "a"}])
        assert len(engine.calls) == 2

    def test_what_a_plain_pipeline_refuses_is_asked_in_turns(self, tmp_path: Path) -> None:
        engine = FakeEngine("fine<|im_end|>")
        requests: list[Any] = [{"prompt": "a"}, {"turns": ["a", "b"]}]
        assert self.asked(pg.route(engine), tmp_path, requests) == [True, False]
        assert self.asked(pg.turns(pg.route(engine)), tmp_path, requests) == [True, True]
        assert [len(call) for call in engine.calls] == [1, 1, 1]

    def test_another_limit_asks_only_rows_with_turns_again(self, tmp_path: Path) -> None:
        engine = FakeEngine("fine<|im_end|>")
        requests: list[Any] = [{"prompt": "a"}, {"turns": ["a", "b"]}]
        self.asked(pg.turns(pg.route(engine)), tmp_path, requests)
        engine.calls.clear()
        self.asked(pg.turns(pg.route(engine), limit=1), tmp_path, requests)
        assert len(engine.calls) == 1
        exported = [slot for _, slot in pg.finished_rows(tmp_path, enumerate(requests))]
        assert [slot is not None and slot.unwrap().rounds_end for slot in exported] == [
            None,
            "limit",
        ]
        nested = pg.repeat(pg.turns(pg.route(engine)), lambda result: None, limit=1)
        assert "turns(" in nested.leads_on
        assert pg.turns(pg.route(engine), lambda result: None).leads_on == ""


@pytest.mark.parametrize("setting", [{"max_bytes": 40}, {"raised": "fail"}, {"timeout": 1.5}])
def test_what_tools_tell_a_model_is_part_of_the_key(setting: Any, tmp_path: Path) -> None:
    def look(city: str) -> str:
        """Look out."""
        return "sun " * 40

    def agent(**settings: Any) -> Any:
        return pg.turns(pg.route(FakeEngine("yes<|im_end|>")), pg.tools([look], **settings))

    requests = [{"messages": [{"role": "user", "content": "Hi"}]}]
    run(tmp_path, requests, route=agent())
    defaults = {"max_bytes": 65536, "raised": "message", "timeout": 60}
    assert run(tmp_path, requests, route=agent(**defaults)).reused == 1
    other = run(tmp_path, requests, route=agent(**setting))
    assert other.reused == 0
    assert other.changed and next(iter(setting)) in agent(**setting).stages
    assert run(tmp_path, requests, route=agent(**setting)).reused == 1


def schema(**words: Any) -> dict[str, Any]:
    inner = {"type": "integer", **({"description": "its age"} if words else {})}
    return {"json_schema": {"type": "object", "properties": {"title": inner}, **words}}


@pytest.mark.parametrize("in_request", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "reused"),
    [
        (schema(), schema(title="Cat", description="A cat.", examples=[1]), True),
        (schema(minProperties=1), schema(minProperties=1.0), True),
        (schema(anyOf=[{"title": "A"}]), schema(anyOf=[{"title": "B"}]), True),
        (schema(anyOf=[{"minimum": 1}]), schema(anyOf=[{"minimum": 2}]), False),
        (schema(), {"json_schema": {"type": "object", "properties": {}}}, False),
        ({"json_schema": {"const": 1}}, {"json_schema": {"const": 1.0}}, False),
        ({"json_schema": {"enum": ["a"]}}, {"json_schema": {"enum": ["b"]}}, False),
    ],
)
def test_schemas_that_mean_the_same_are_one(
    one: Any, other: Any, reused: bool, in_request: bool, tmp_path: Path
) -> None:
    route = pg.route(FakeEngine('{"title": 1}<|im_end|>'))
    counts = [
        run(
            tmp_path,
            [{"prompt": "a", "options": options}] if in_request else [{"prompt": "a"}],
            None if in_request else options,
            route,
        ).reused
        for options in (one, other)
    ]
    assert counts == [0, int(reused)]


def test_a_chat_server_may_show_its_model_the_words_of_a_schema(tmp_path: Path) -> None:
    engine = Set(base_url="http://a")
    del engine.depends_on["model"]
    for options, reused in ((schema(), 0), (schema(title="Cat"), 0), (schema(title="Cat"), 1)):
        assert run(tmp_path, PROMPTS[:1], options, pg.route(engine)).reused == reused


@pytest.mark.parametrize(
    ("one", "other", "reused"),
    [
        ({"base_url": "http://localhost:8000"}, {"base_url": "http://127.0.0.1:8000"}, True),
        ({"base_url": "http://localhost:8000"}, {"base_url": "http://localhost:8001"}, False),
        ({"base_url": "http://localhost.de"}, {"base_url": "http://127.0.0.1.de"}, False),
        ({"extra_body": {"top_a": 1}}, {"extra_body": {"top_a": 1.0}}, True),
        ({"extra_body": {"top_a": 1}}, {"extra_body": {"top_a": True}}, False),
    ],
)
def test_settings_that_mean_the_same_are_one(
    one: Any, other: Any, reused: bool, tmp_path: Path
) -> None:
    counts = [
        run(tmp_path, PROMPTS, route=pg.route(Set(**values))).reused for values in (one, other)
    ]
    assert counts == [0, 6 * reused]


def test_a_damaged_job_json_shows_no_change_of_what_means_the_same(tmp_path: Path) -> None:
    route = pg.route(Set(base_url="http://localhost:8000"))
    run(tmp_path, PROMPTS, route=route)
    (tmp_path / "job.json").write_text("{")
    again = run(tmp_path, PROMPTS, route=route)
    assert (again.reused, again.changed) == (6, ())


def test_an_adapter_that_has_changed_counts_for_the_rows_that_name_it(tmp_path: Path) -> None:
    requests = [
        {**row, "options": {"adapter": name}} for row, name in zip(PROMPTS[:4], "aabb", strict=True)
    ]
    first, other = (pg.route(Set(adapters={"a": digest, "b": "same"})) for digest in ("one", "two"))
    run(tmp_path, requests, route=first)
    job = run(tmp_path, requests, route=other)
    assert (job.reused, job.changed) == (2, ("the adapter 'a' is another",))
    assert run(tmp_path, requests, route=other).reused == 4
    # where the run names it
    folder = tmp_path / "of the run"
    run(folder, PROMPTS, {"adapter": "a"}, first)
    job = run(folder, PROMPTS, {"adapter": "a"}, other)
    assert (job.reused, job.made_before) == (0, (0, ((6, "another adapter 'a'"),)))
    assert run(folder, PROMPTS, {"adapter": "a"}, other).reused == 6
