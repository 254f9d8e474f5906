"""What a fallback says where it takes over, and what it does of requests whose images cannot be
read.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pipegen as pg
from pipegen.drivers.route import with_options
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def echo(encoded: Encoded) -> str:
    return encoded.prompt.text or ""


def _without_images(request: Any) -> Any:
    """The request's words alone, with what the images said of themselves."""
    words = [why.message for source in request.sources if (why := source.unread) is not None]
    text = " ".join(
        part.text for part in request.messages[0].content if isinstance(part, pg.TextPart)
    )
    return pg.TextGenerationRequest(prompt=f"{text} ({'; '.join(words)})", options=request.options)


MISSING: dict[str, Any] = {"prompt": "What is it?", "images": ["no-such.png", "nor-this.png"]}


def _rescued() -> Any:
    eyes, words = pg.route(FakeEngine("seen")), pg.route(FakeEngine(echo), name="words")
    return pg.fallback(eyes, pg.pure("strip", _without_images) >> words, when=pg.BadImage)


def test_a_fallback_sees_an_image_whose_file_is_missing() -> None:
    good = {"prompt": "Hi", "images": [b"good"]}
    slots = pg.run(_rescued(), [MISSING, good], {"max_new_tokens": 400})
    rescued, plain = (slot.unwrap() for slot in slots)
    assert plain.text == "seen"
    assert rescued.text.startswith("What is it? (image 0: 'no-such.png' cannot be read")
    assert rescued.route == "words"
    assert [type(error) for error in rescued.tried] == [pg.BadImage]


def test_it_sees_it_in_streams_asynchronously_and_row_by_row() -> None:
    pipe, options = _rescued(), {"max_new_tokens": 400}
    (_, *_, done) = pg.stream(pipe, [MISSING], options)
    texts = [
        done.slot.unwrap().text,
        asyncio.run(pg.arun(pipe, [MISSING], options))[0].unwrap().text,
        next(pg.imap(pipe, [MISSING], options)).unwrap().text,
    ]
    assert {text[:11] for text in texts} == {"What is it?"}


def test_options_before_a_fallback_come_with_such_a_request() -> None:
    pipe = with_options(_rescued(), {"max_new_tokens": 4})
    assert pg.run(pipe, [MISSING])[0].unwrap().text == "What"


def test_a_loop_of_a_fallback_sees_it_too() -> None:
    loop = pg.repeat(_rescued(), lambda result: None, limit=2)
    assert pg.run(loop, [MISSING], {"max_new_tokens": 4})[0].unwrap().text == "What"


def test_a_second_route_that_takes_images_fails_with_the_reason() -> None:
    route = pg.route(FakeEngine("a"))
    error = pg.run(pg.fallback(route, route, when=pg.BadImage), [MISSING])[0].failure()
    assert isinstance(error, pg.BadImage)
    assert error.message.startswith("image 0: 'no-such.png' cannot be read")
    assert [one.message for one in error.earlier] == [error.message]


@pytest.mark.parametrize("when", [pg.Timeout, pg.BadVideo, ()])
def test_what_does_not_qualify_stays_a_plain_failure(when: Any) -> None:
    route = pg.route(FakeEngine("a"))
    alone = pg.run(route, [MISSING])[0]
    for pipe in (
        pg.fallback(route, route, when=when),
        pg.pure("mine", lambda request: request) >> pg.fallback(route, route, when=pg.BadImage),
        route >> pg.pure("ask", lambda result: MISSING) >> route,
    ):
        slot = pg.run(pipe, [MISSING])[0]
        assert (type(slot), slot) == (pg.Failure, alone)


def test_a_fallback_warns_once_that_an_engine_refuses(caplog: pytest.LogCaptureFixture) -> None:
    first = pg.route(FakeEngine("a", max_images=0), name="blind")
    second = pg.route(FakeEngine("b"), name="eyes")
    pipe = pg.fallback(first, second, when=(pg.UnsupportedMultimodal, pg.BadImage))
    with caplog.at_level("WARNING", "pipegen"):
        good: dict[str, Any] = {"prompt": "Hi", "images": [b"good"]}
        assert all(map(pg.is_ok, pg.run(pipe, [good, good])))
        assert all(map(pg.is_ok, pg.run(pipe, [good])))
        pg.run(pipe, [MISSING])
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "eyes answers in the place of blind: UnsupportedMultimodal: "
    )
