"""Chat templates that are not the checkpoint's: they come with the options of a run or a route, and
no request has one of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import CHATML, chatml_tokenizer

import pipegen as pg
from pipegen.backends.checkpoint.tokenizers import HFRenderer
from pipegen.testing.fake import FakeEngine

REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
OWN: dict[str, Any] = {"template": "{{ messages[0].content }}?"}


def engine(templates: Any = CHATML) -> Any:
    made: Any = FakeEngine(lambda encoded: encoded.prompt.text or "")
    made.renderer = HFRenderer(chatml_tokenizer(), templates)
    return made


def test_a_request_with_a_template_of_its_own_is_refused() -> None:
    route = pg.route(engine())
    first, refused, last = pg.run(route, [REQUEST, {**REQUEST, "options": OWN}, REQUEST])
    assert first == last
    assert isinstance(refused.failure(), pg.InvalidRequest)
    assert "route.with_options(...)" in refused.failure().hint


def test_the_template_of_a_run_or_of_a_route_is_used() -> None:
    route = pg.route(engine())
    for slots in (pg.run(route, [REQUEST], OWN), pg.run(route.with_options(OWN), [REQUEST])):
        assert slots[0].unwrap().prompt_text == "Hi?"


def test_a_message_is_continued_under_the_template_of_a_run() -> None:
    request = {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
    }
    options = {
        "template": "{% for m in messages %}[{{ m.content }}]{% endfor %}",
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert pg.run(pg.route(engine()), [request], options)[0].unwrap().prompt_text == "[Hi][He"


def test_one_of_the_checkpoints_own_templates_may_be_named() -> None:
    route = pg.route(
        engine({"default": "{{ messages[0].content }}", "rag": "{{ messages[0].content }} by rag"})
    )
    assert (
        pg.run(route, [{**REQUEST, "options": {"template": "rag"}}])[0].unwrap().prompt_text
        == "Hi by rag"
    )


def test_a_template_that_transformers_cannot_run_fails_the_row() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ [].append(1) }}", "{% for %}"):
        assert isinstance(
            pg.run(pg.route(engine()), [REQUEST], {"template": source})[0].failure(),
            pg.TemplateFailed,
        )
