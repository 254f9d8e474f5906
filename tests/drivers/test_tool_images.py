"""Images that tools give are images of the next prompt: in the tool's turn, or in a user's turn."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support.rowwise import Fuse, Rowwise
from support.tool_talks import asked, calls, replies

import pipegen as pg
from pipegen.testing.fake import FakeEngine

pytest.importorskip("PIL")

WRITES = "<tool_response>\\n' + content + '\\n</tool_response>'"
QUESTION = {"messages": [{"role": "user", "content": "What do the lamp and the chair cost?"}]}
PAD = "<|vision_start|><|image_pad|><|vision_end|>"


def image(colour: str, width: int = 64) -> Any:
    from PIL import Image

    return Image.new("RGB", (width, 64), colour)


def price(item: str) -> Any:
    """What an item costs."""
    return [{"lamp": "12", "chair": "30"}[item], image({"lamp": "red", "chair": "blue"}[item])]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def template(written: str) -> str:
    """The template of the embedded model, with this in the place of a tool's content."""
    source = (resources.files("pipegen") / "embedded/weights/chat_template.jinja").read_text(
        "utf-8"
    )
    assert source.count(WRITES) == 1
    return source.replace(WRITES, WRITES.replace("content", written))


DROPS = template(f"content | replace('{PAD}', '')")
RAISES = template("(content if message.content is string else raise_exception('texts alone'))")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Any]:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded") as route:
        yield route


def run(route: Any, source: str | None = None, **more: Any) -> Any:
    own = route if source is None else route.with_options({"chat": {"template": source}})
    return pg.run(pg.turns(own, pg.tools([price, add], **more)), [QUESTION])[0]


def test_a_template_that_takes_them_has_them_in_the_turn_of_the_tool(embedded: Any) -> None:
    result = run(embedded).unwrap()
    second = result.rounds[1]
    assert f"<tool_response>\n12{PAD}\n</tool_response>" in second.prompt_text
    assert f"<tool_response>\n30{PAD}\n</tool_response>" in second.prompt_text
    assert len(second.image_digests) == 2 and second.exact is True


def test_a_template_that_does_not_is_refused_in_words(embedded: Any) -> None:
    error = run(embedded, DROPS).failure()
    assert type(error) is pg.InvalidRequest and "images='user'" in error.hint
    assert error.message == (
        "the chat template writes no images in a tool's turn, and the messages have 2 there"
    )
    error = run(embedded, RAISES).failure()
    assert type(error) is pg.TemplateFailed and "texts alone" in error.message


@pytest.mark.parametrize("source", [None, DROPS, RAISES], ids=["takes", "drops", "raises"])
def test_they_may_be_in_a_turn_of_the_user_instead(embedded: Any, source: str | None) -> None:
    second = run(embedded, source, images="user").unwrap().rounds[1]
    *_, lamp, chair, user = second.turn.request.messages
    assert [lamp.content, chair.content] == ["12\n[image 1]", "30\n[image 2]"]
    assert user.role == "user"
    assert [getattr(part, "text", "image") for part in user.content] == [
        *("[image 1]", "image", "[image 2]", "image")
    ]
    assert f"<|im_start|>user\n[image 1]{PAD}[image 2]{PAD}<|im_end|>" in second.prompt_text
    assert second.exact is True
    in_tools = run(embedded).unwrap().rounds[1]
    assert second.image_digests == in_tools.image_digests  # the same, in the same order


def test_what_others_ask_with_images_is_refused_as_before(embedded: Any) -> None:
    part = {"type": "image", "image": image("red")}
    messages = [
        {"role": "user", "content": [part, {"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And?"},
    ]
    silent = "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string else m.content[1].text }}\n{% endfor %}"
    route = embedded.with_options({"chat": {"template": silent}})
    error = pg.run(route, [{"messages": messages}])[0].failure()
    assert "the prompt holds 0 image placeholders" in error.message


def look() -> Any:
    """Looks."""
    return ["Here:", image("red", 28), "and", image("blue", 56)]


def word() -> str:
    """Says a word."""
    return "word"


def script(row: Any) -> str:
    answers = replies(row)
    return f"I saw {len(answers)}.<|im_end|>" if answers else calls(("word", {}), ("look", {}))


def test_a_message_without_images_stays_and_marks_stand_in_their_places() -> None:
    def run(images: Any) -> pg.GenerationResult:
        pipe = pg.turns(pg.route(FakeEngine(script)), pg.tools([look, word], images=images))
        return pg.run(pipe, [asked()])[0].unwrap()

    result = run("user")
    *_, first, second, _ = result.turn.request.messages
    assert first.content == "word" and second.content == "Here:\n[image 1]\nand\n[image 2]"
    assert len({*result.image_digests}) == 2
    assert result.image_digests == run("tool").image_digests


def test_there_is_no_turn_of_the_user_where_no_tool_gives_an_image() -> None:
    def words(row: Any) -> str:
        return "ok<|im_end|>" if replies(row) else calls(("word", {}))

    pipe = pg.turns(pg.route(FakeEngine(words)), pg.tools([word], images="user"))
    (slot,) = pg.run(pipe, [asked()])
    assert slot.unwrap().turn.request.messages[-1].content == "word"


@pytest.mark.parametrize("images", ["tool", "user"])
def test_a_job_goes_on_with_the_images_that_it_has(images: Any, tmp_path: Path) -> None:
    def run(folder: str, fuse: Fuse) -> list[Any]:
        slots: list[Any] = []
        pipe = pg.turns(pg.route(Rowwise(script, fuse)), pg.tools([look, word], images=images))
        try:
            with pg.job(pipe, [asked(0), asked(1)], tmp_path / folder, grace=0) as job:
                slots.extend(job)
        except KeyboardInterrupt:
            pass
        return slots

    wanted = run("whole", Fuse())
    for at in range(4):
        run(str(at), Fuse(at))
        assert run(str(at), Fuse()) == wanted
    assert all(len(slot.unwrap().image_digests) == 2 for slot in wanted)


def test_where_the_images_go_is_a_part_of_a_jobs_key_and_checked() -> None:
    def stages(**more: Any) -> Any:
        return pg.turns(pg.route(FakeEngine("a")), pg.tools([look], **more)).stages

    assert stages() == stages(images="tool") != stages(images="user")
    with pytest.raises(TypeError, match='images takes "tool" or "user", not 1'):
        stages(images=1)
