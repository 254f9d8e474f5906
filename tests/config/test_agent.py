"""In code as on the command line, nothing in a chat file is ignored: `agent.open()` is the route
with all that the file says of the agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.config import Agent, chat_from
from pipegen.config.keys import KEYS
from pipegen.engines.settings import BESIDE, EngineSettings
from pipegen.records.fields import checks_of, help_of
from pipegen.records.option_table import OPTIONS, SERVER_NAMES
from pipegen.records.options import flat_values
from pipegen.records.secret import Secret, revealed
from pipegen.testing.fake import FakeEngine

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
Opened = list[tuple[str, Any]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Scripted engines in place of all; the list of those that were opened, with their settings."""
    seen: Opened = []

    def route_with(name: str, settings: EngineSettings) -> pg.Route:
        seen.append((name, settings))
        return pg.route(
            FakeEngine(
                "Hello",
                name=name,
                honours=pg.ENGINES["vllm_chat" if name == "openai_server" else name],
            )
        )

    monkeypatch.setattr("pipegen.backends.route_with", route_with)
    return seen


def agent(values: dict[str, Any] | None = None, **beside: Any) -> Agent:
    return chat_from(
        {"agent": {"backend": {"type": "hf", "model": "m", **(values or {})}, **beside}}
    ).agents[0]


def asked(pipe: Any, request: Any = MESSAGES, **how: Any) -> pg.GenerationRequest:
    """The request as it comes to the engine's first stage."""
    own = [
        part
        for part in pipe.parts
        if part.name == "system_message" or part.name.startswith("options")
    ]
    slot = pg.run(pipe.with_parts(own), [request], **how)[0]
    assert pg.is_ok(slot), slot
    return slot.unwrap()


def test_the_system_message_goes_before_messages_without_one(opened: Opened) -> None:
    own = {"messages": [{"role": "system", "content": "Sing."}, *MESSAGES["messages"]]}
    with agent(system_message="Be brief.").open() as route:
        slots = pg.run(route, [MESSAGES, own, {"prompt": "Hi"}])
    said = [slot.unwrap().prompt_text or "" for slot in slots[:2]]
    assert [("Be brief." in text, "Sing." in text) for text in said] == [
        (True, False),
        (False, True),
    ]
    assert (
        slots[2].failure().message
        == "the system prompt goes before messages, and this request has none: its prompt is"
        " continued as it is"
    )


def test_a_job_gives_out_no_answer_to_another_system_message(
    opened: Opened, tmp_path: Path
) -> None:
    reused = []
    for text in ("Be brief.", "Be long.", "Be brief.", None):
        beside = {} if text is None else {"system_message": text}
        with (
            agent(**beside).open() as route,
            pg.job(route, [MESSAGES], tmp_path / "job") as running,
        ):
            (slot,) = running
        assert ("Be" in (slot.unwrap().prompt_text or "")) == (text is not None)
        assert (text or "") in (slot.unwrap().prompt_text or "")
        reused.append(running.reused)
    assert reused == [0, 0, 1, 0]


def test_it_goes_before_what_the_second_engine_is_asked_too(opened: Opened) -> None:
    route = agent(
        {"type": "vllm", "fallback_backend": "hf", "no_repeat_ngram_size": 2},
        system_message="Be brief.",
    ).open()
    result = pg.run(route, [MESSAGES])[0].unwrap()
    assert "Be brief." in (result.prompt_text or "")
    assert (result.route, len(result.tried), result.options.no_repeat_ngram_size) == ("hf", 1, 2)


def test_without_a_system_message_nothing_goes_before(opened: Opened) -> None:
    assert [part.name for part in agent().open().parts][:1] == ["resolve"]


def test_requests_and_runs_win_over_the_file(opened: Opened) -> None:
    route = agent({"max_new_tokens": 40, "temperature": 0.5, "seed": 3}).open()
    options = asked(
        route, {**MESSAGES, "options": {"max_new_tokens": 10}}, options={"temperature": 0.7}
    ).options
    assert options is not None
    assert (options.max_new_tokens, options.temperature, options.seed) == (10, 0.7, 3)


def test_the_options_of_a_stream_are_the_same(opened: Opened) -> None:
    events = list(pg.stream(agent({"max_new_tokens": 2}).open(), [MESSAGES]))
    assert isinstance(events[-1], pg.Done)
    assert events[-1].slot.unwrap().options.max_new_tokens == 2


@pytest.mark.parametrize("name", [*OPTIONS, *SERVER_NAMES])
def test_every_option_of_a_file_takes_effect(name: str, opened: Opened) -> None:
    entry = OPTIONS[SERVER_NAMES.get(name, name)]
    beside = {BESIDE[name]: {entry.row.trial: "org/name"}} if name in BESIDE else {}
    taken = flat_values(
        asked(agent({name: entry.row.trial, **beside}).open()).options or pg.GenerationOptions()
    )
    assert taken[SERVER_NAMES.get(name, name)] not in (None, entry.row.default)


TRIALS = ("http://h:1", 3, True, 0.5, {"a": "b"}, "float16", "vlm", "plain")
"""Values, one of which each setting takes."""


@pytest.mark.parametrize("name", KEYS)
def test_every_setting_of_a_file_takes_effect(name: str, opened: Opened) -> None:
    key = KEYS[name]

    def takes(value: Any) -> bool:
        try:
            key.check(value)
        except ValueError:
            return False
        return True

    value = next(value for value in TRIALS if takes(value))
    kind = {"openai_server": "openai"}.get(key.takers[-1], key.takers[-1])
    agent({"type": kind, name: value}).open()
    given = getattr(opened[0][1], name)
    assert (given.reveal() if isinstance(given, Secret) else revealed(given)) == value


@pytest.mark.parametrize("name", ["cache_salt", "guided_grammar", "one_that_pipegen_does_not_know"])
def test_every_field_of_a_server_takes_effect(name: str, opened: Opened) -> None:
    agent({"type": "openai", "base_url": "http://h:1", "dialect": "vllm", name: {"a": 1}}).open()
    extra = revealed(opened[0][1].extra_body)
    assert {"a": 1} in (extra.get(name), *extra.get("structured_outputs", {}).values())


def test_no_key_of_an_agent_or_its_backend_is_left_out() -> None:
    """Those that are tried above, and these: an agent's name is for who prints it."""
    assert set(checks_of(Agent)) - {"backend"} == {"id", "system_message"}
    assert set(help_of(type(agent().backend))) - {"type", "backend", "settings", "options"} == {
        "fallback_backend",
        "fallback_when",
    }
