"""What the installed transformers changes in messages before a chat template reads them, and what
it refuses in a template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers
from packaging.version import Version
from support.small_tokenizers import chatml_tokenizer

import pipegen as pg
from pipegen.backends.checkpoint import chat_jinja
from pipegen.backends.checkpoint.chat_jinja import rendering
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.jobs.history import settings_of
from pipegen.jobs.row_keys import Keys
from pipegen.records.messages import Message, plain_messages
from pipegen.testing.fake import FakeEngine

VERSION = Version(transformers.__version__)
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
AS_IT_IS = "{% for message in messages %}{{ message | tojson }}\n{% endfor %}"
MESSAGES = [
    Message(role="assistant", content="yes"),
    Message(role="assistant", content="", extras={"name": "a", "tool_calls": ()}),
    Message(role="assistant"),
    Message(role="user", content="Hi", extras={"name": None}),
    *(
        Message(role="assistant", content="yes", extras=dict.fromkeys(names, "hm"))
        for names in (
            ("reasoning_content",),
            ("reasoning",),
            ("thinking",),
            ("reasoning_content", "thinking"),
            ("reasoning", "thinking"),
            ("reasoning_content", "reasoning", "thinking"),
        )
    ),
]


def engine(template: str) -> Any:
    made: Any = FakeEngine("yes<|im_end|>")
    made.renderer = HFRenderer(chatml_tokenizer(), template)
    return made


def test_what_is_changed_is_that_of_the_version() -> None:
    expected = {"null": Version("5.23"), "reasoning": Version("5.21")}
    assert rendering().rewrites == tuple(
        name for name, first in expected.items() if first <= VERSION
    )


def test_what_is_known_of_a_version_is_what_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = rendering()
    assert chat_jinja.is_read()
    monkeypatch.setattr(chat_jinja, "_READ", ((99, 0, 0), (99, 0, 0)))
    assert not chat_jinja.is_read()
    assert [rendering.__wrapped__() for _ in range(2)] == [known, known]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_key_differs_exactly_where_the_template_reads_another_message(message: Message) -> None:
    request = pg.TextGenerationRequest(messages=[message, Message(role="user", content="Hi")])
    plain = plain_messages(request.messages or ())
    written = HFRenderer(chatml_tokenizer(), AS_IT_IS).render(
        plain, tools=(), template=None, variables={}
    )
    settings = settings_of(pg.route(engine(AS_IT_IS)), None, "")
    changed = Keys(settings).of(request) != Keys({**settings, "rewrites": []}).of(request)
    assert changed == ([json.loads(line) for line in written.splitlines()] != plain)


def test_the_prompt_is_the_one_that_transformers_makes() -> None:
    template = (
        "{% for message in messages %}{{ message.role }}:{{ message.content }}"
        "({{ message.thinking }}{{ message.reasoning_content }})\n{% endfor %}"
    )
    for message in MESSAGES:
        request = pg.TextGenerationRequest(messages=[message, Message(role="user", content="Hi")])
        plain = plain_messages(request.messages or ())
        plain[0]["content"] = plain[0]["content"] or ""  # null is the empty text, not "None"
        expected = chatml_tokenizer().apply_chat_template(
            plain, chat_template=template, tokenize=False
        )
        (slot,) = pg.run(pg.route(engine(template)), [request])
        assert slot.unwrap().prompt_text == expected


def test_engines_say_it_without_loading_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.backends.checkpoint import checkpoint

    monkeypatch.setattr(checkpoint, "load_tokenizer", lambda *_, **__: pytest.fail("was loaded"))
    with pg.backends.hf("embedded") as route:
        assert settings_of(route, None, "")["rewrites"] == sorted(rendering().rewrites)


def test_an_engine_that_renders_by_itself_changes_nothing_here() -> None:
    pytest.importorskip("aiohttp")
    with pg.backends.openai_server("m", base_url="http://127.0.0.1:9/v1") as route:
        assert settings_of(route, None, "")["rewrites"] == []


ALL = "{% for message in messages %}{{ message.content }}{% endfor %}"
HIDDEN = "{% set seen = namespace(_turns=0) %}" + ALL
OFTEN = "{% if messages | length > 1 %}" + HIDDEN + "{% else %}" + ALL + "{% endif %}"


@pytest.mark.skipif(Version("5.22") > VERSION, reason="this transformers takes such templates")
@pytest.mark.parametrize("template", [HIDDEN, OFTEN])
def test_a_template_that_transformers_refuses_fails_its_row_in_words(
    template: str, tmp_path: Path
) -> None:
    route = pg.route(engine(template))
    first, second = pg.run(route, [{"messages": [USER]}, {"messages": [USER, USER]}])
    assert pg.is_ok(first) is (template is OFTEN)
    error = second.failure()
    assert isinstance(error, pg.TemplateFailed)
    assert "cannot store underscore-prefixed attributes on a namespace" in error.message
    assert "chat_template.jinja" in error.hint
    assert not error.incident
    with pg.job(route, [{"messages": [USER, USER]}], tmp_path) as job:
        assert [type(slot.failure()) for slot in job] == [pg.TemplateFailed]


@pytest.mark.skipif(Version("5.22") <= VERSION, reason="this transformers refuses such templates")
@pytest.mark.parametrize("template", [HIDDEN, OFTEN])
def test_a_template_that_later_versions_refuse_is_rendered(template: str) -> None:
    (slot,) = pg.run(pg.route(engine(template)), [{"messages": [USER, USER]}])
    assert "Hi" in (slot.unwrap().prompt_text or "")


def test_what_a_sandbox_refuses_says_what_to_correct() -> None:
    (slot,) = pg.run(pg.route(engine("{{ messages.append(1) }}")), [{"messages": [USER]}])
    assert slot.failure().message.startswith("the chat template raised SecurityError: ")
    assert "chat_template.jinja" in slot.failure().hint
