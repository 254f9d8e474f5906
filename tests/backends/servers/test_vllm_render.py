"""Images at sizes that a vLLM server's processor would change: what the server is asked, and what
is done where it does not keep them.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.served import ToyModel, route_to

import pipegen as pg
from pipegen.backends.servers import vllm_dialect
from pipegen.backends.servers.vllm_dialect import RENDER
from pipegen.backends.servers.wire import Facts, WireReply
from pipegen.records.results import PreparedImage, Prompt
from pipegen.testing.faulty import FaultyServer


def image(width: int, height: int) -> PreparedImage:
    return PreparedImage(
        width=width,
        height=height,
        rgb=bytes(width * height * 3),
        digest="",
        grid=(1, 2, 6),
        tokens=3,
    )


def test_the_server_is_told_a_budget_that_leaves_every_image_alone(ask: Any) -> None:
    asked = ask(images=(image(2, 2), image(4, 6)), model="m")._replace(
        resized=True, places=((1, 3), (6, 3))
    )
    request = vllm_dialect.to_wire(asked, Facts()).unwrap()
    assert (request.path, request.stream) == (RENDER, False)
    assert request.body is not None
    assert request.body["mm_processor_kwargs"] == {"min_pixels": 4, "max_pixels": 24}
    assert request.body["model"] == "m"
    (message,) = request.body["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "image_url"]


def rendered(*lengths: int, **more: Any) -> Any:
    """What a server makes of so many images, its chat template standing around them."""
    places = [{"offset": 40 + 20 * place, "length": length} for place, length in enumerate(lengths)]
    made = {
        "mm_hashes": [f"h{place}" for place in range(len(lengths))],
        "kwargs_data": ["AA=="] * len(lengths),
        "mm_placeholders": places,
    }
    return {
        "token_ids": [9],
        "features": {name: {"image": column} for name, column in {**made, **more}.items()},
    }


def test_what_the_server_made_is_put_where_the_images_lie_in_the_prompt(ask: Any) -> None:
    asked = ask(images=(image(2, 2),))._replace(resized=True, places=((1, 3),))
    (made,) = vllm_dialect.from_wire(rendered(3), asked).unwrap()
    ready = asked._replace(features=made.features, token_ids=(5, 9, 9, 9, 6))
    body = vllm_dialect.to_wire(ready, Facts()).unwrap().body
    assert body is not None
    assert body["features"]["mm_placeholders"] == {"image": [{"offset": 1, "length": 3}]}
    assert (body["features"]["mm_hashes"], body["features"]["kwargs_data"]) == (
        {"image": ["h0"]},
        {"image": ["AA=="]},
    )
    assert body["token_ids"] == [5, 9, 9, 9, 6]
    assert "content_parts" not in body


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"features": None},
        {"features": {"mm_hashes": {"image": "h"}}},
        rendered(),
        rendered(3, 3),
        rendered(3, kwargs_data=[None]),
        rendered(3, mm_hashes=[7]),
    ],
)
def test_an_answer_without_the_images_is_malformed(ask: Any, answer: Any) -> None:
    asked = ask(images=(image(2, 2),))._replace(resized=True, places=((1, 3),))
    assert isinstance(vllm_dialect.from_wire(answer, asked).failure(), pg.MalformedResponse)


@pytest.mark.parametrize(
    ("status", "message", "lacks"),
    [
        (404, "Not Found", "render"),
        (403, "Scale-out endpoints are disabled.", "render"),
        (501, "", "render"),
        (400, "Per-request mm_processor_kwargs are disabled by default", "render"),
        (404, "The model `m` does not exist.", ""),
        (400, "the image is broken", ""),
        (500, "mm_processor_kwargs", ""),
    ],
)
def test_a_refusal_tells_whether_the_server_keeps_sizes_at_all(
    ask: Any, status: int, message: str, lacks: str
) -> None:
    request = vllm_dialect.to_wire(
        ask(images=(image(2, 2),))._replace(resized=True), Facts()
    ).unwrap()
    assert vllm_dialect.lacking(WireReply(status=status, body=message.encode()), request) == lacks


class Sized(ToyModel):
    """Its images have a size that its processor would change."""

    def check_server_resize(self, prompt: Prompt) -> Any:
        return (
            pg.UnsupportedOption("the processor would resize it", option="max_pixels")
            if prompt.images
            else None
        )


pytest.importorskip("aiohttp")

LOOKS = [pg.VlmGenerationRequest(prompt="Hi", images=[b"x"]), pg.TextGenerationRequest(prompt="Hi")]


@pytest.mark.parametrize("streamed", [False, True])
def test_such_images_are_prepared_by_the_server_and_text_is_not(streamed: bool) -> None:
    with (
        FaultyServer(answers={RENDER: (200, rendered(3))}) as server,
        route_to(server, model=Sized(), retries=0) as route,
    ):
        server.keeps_bodies = True
        slots = (
            [event.slot for event in pg.stream(route, LOOKS) if isinstance(event, pg.Done)]
            if streamed
            else pg.run(route, LOOKS)
        )
        assert [pg.is_ok(slot) for slot in slots] == [True, True]
        assert server.paths[RENDER] == 1
        (body,) = (body for body in server.bodies if "features" in body)
    marks = [at for at, token_id in enumerate(body["token_ids"]) if token_id == 259]
    assert body["features"]["mm_placeholders"] == {"image": [{"offset": marks[0], "length": 3}]}
    assert marks == list(range(marks[0], marks[0] + 3))
    assert len([body for body in server.bodies if "features" not in body]) == 1


def test_a_server_that_does_not_keep_sizes_is_asked_once_and_the_image_is_refused() -> None:
    with (
        FaultyServer(
            answers={RENDER: (400, {"error": {"message": "mm_processor_kwargs are disabled"}})}
        ) as server,
        route_to(server, model=Sized(), retries=0) as route,
    ):
        for _ in range(2):
            image_file, text = pg.run(route, LOOKS)
            assert isinstance(image_file.failure(), pg.UnsupportedOption)
            assert image_file.failure().message == "the processor would resize it"
            assert pg.is_ok(text)
        assert server.paths[RENDER] == 1


def test_an_image_that_the_server_makes_another_size_of_is_refused() -> None:
    with (
        FaultyServer(answers={RENDER: (200, rendered(9))}) as server,
        route_to(server, model=Sized(), retries=0) as route,
    ):
        error = pg.run(route, LOOKS[:1])[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert "9 tokens" in error.message
    assert server.paths["/inference/v1/generate"] == 0


def test_a_failure_of_the_server_is_no_reason_to_think_that_it_keeps_none() -> None:
    with (
        FaultyServer(answers={RENDER: (500, {"error": {"message": "out of order"}})}) as server,
        route_to(server, model=Sized(), retries=0) as route,
    ):
        for _ in range(2):
            assert isinstance(pg.run(route, LOOKS[:1])[0].failure(), pg.BackendFailed)
        assert server.paths[RENDER] == 2


def test_an_engine_that_cannot_be_told_sizes_is_not_asked() -> None:
    with FaultyServer() as server, route_to(server, "sglang", model=Sized(), retries=0) as route:
        assert isinstance(pg.run(route, LOOKS[:1])[0].failure(), pg.UnsupportedOption)
        assert server.paths["/generate"] == 0
