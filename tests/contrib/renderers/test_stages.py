"""A renderer as stages of a pipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import pipegen as pg
from pipegen.contrib.renderers import parse_with, render_with
from pipegen.testing.fake import FakeEngine


class Letters:
    """Renders the last message to the toy ids of its characters."""

    def __init__(self, engine: FakeEngine) -> None:
        self.tokenizer = engine.tokenizer

    def render(self, messages: list[Any], *, tools: Any, add_generation_prompt: bool) -> Any:
        if messages[-1]["content"] == "refuse":
            raise ValueError("no such turn")
        return SimpleNamespace(
            token_ids=list(
                self.tokenizer.encode(
                    messages[-1]["content"] + (">" if add_generation_prompt else "")
                )
            )
        )

    def get_stop_token_ids(self) -> list[int]:
        return list(self.tokenizer.encode("!"))

    def parse_response(self, token_ids: list[int], *, prompt_ids: list[int]) -> Any:
        return SimpleNamespace(content=self.tokenizer.decode(token_ids), prompt_ids=prompt_ids)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("Hello! there")


def said(text: str, **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "options": options}


def test_a_renderer_renders_and_its_stop_tokens_end_the_row(engine: FakeEngine) -> None:
    renderer = Letters(engine)
    route = pg.route(engine)
    slots = pg.run(
        pg.each("render", render_with(renderer)) >> route,
        [said("Hi", stop_token_ids=[5]), said("Hi", add_generation_prompt=False), {"prompt": "Hi"}],
    )
    first, second, plain = (slot.unwrap() for slot in slots)
    assert first.prompt_token_ids == engine.tokenizer.encode("Hi>")
    assert second.prompt_token_ids == engine.tokenizer.encode("Hi")
    assert (first.text, first.finish) == ("Hello", pg.Finish.STOP_TOKEN)
    assert plain.text == "Hello! there"
    assert first.options.stop is not None
    assert first.options.stop.stop_token_ids == (5, *engine.tokenizer.encode("!"))


def test_what_was_generated_is_parsed_by_the_same_renderer(engine: FakeEngine) -> None:
    renderer = Letters(engine)
    pipe = (
        pg.each("render", render_with(renderer))
        >> pg.route(engine)
        >> pg.each("parse", parse_with(renderer))
    )
    parsed = pg.run(pipe, [said("Hi")])[0].unwrap()
    assert (parsed.content, parsed.prompt_ids) == ("Hello!", list(engine.tokenizer.encode("Hi>")))


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (said("refuse"), pg.TemplateFailed, "Letters: no such turn"),
        (
            said("Hi", enable_thinking=True),
            pg.UnsupportedOption,
            "Letters sets enable_thinking itself",
        ),
        ({"prompt": "What?", "images": [b"..."]}, pg.UnsupportedMultimodal, "without images"),
        ({"turns": ["Hi", "Why?"]}, pg.InvalidRequest, "the request has turns too"),
        ({**said("Hi"), "continuation": " you"}, pg.InvalidRequest, "has continuation too"),
    ],
)
def test_what_a_renderer_cannot_do_fails_its_slot(
    engine: FakeEngine, request_: Any, error: type[pg.GenerationError], words: str
) -> None:
    stage = render_with(Letters(engine))
    made = pg.request_from(request_).bind(stage)
    assert isinstance(made.failure(), error)
    assert words in made.failure().message


def test_a_rendered_request_keeps_its_id_and_metadata(engine: FakeEngine) -> None:
    request = pg.request_from({**said("Hi"), "id": "a", "label": 7}).bind(
        render_with(Letters(engine))
    )
    assert (request.unwrap().id, dict(request.unwrap().metadata)) == ("a", {"label": 7})
