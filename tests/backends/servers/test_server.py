"""The engine on a server: what it sends, what it refuses to send, and what it makes of the
answers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.calls import aanswers
from support.served import ToyModel, route_to

import pipegen as pg
from pipegen.backends.checkpoint.positions import Positions
from pipegen.engines.plugin import Plugin
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, Prompt
from pipegen.testing.faulty import EOS, FaultyServer, _http

pytest.importorskip("aiohttp")


def test_without_its_endpoint_text_goes_by_completions_and_images_are_refused() -> None:
    with FaultyServer(without=("/inference/v1/generate",)) as server, route_to(server) as route:
        slots = pg.run(route, [{"prompt": f"text {number}"} for number in range(20)])
        assert [slot.unwrap().text for slot in slots] == [
            f"text {number}"[::-1] for number in range(20)
        ]
        assert server.paths["/v1/completions"] == 20
        tried = server.paths["/inference/v1/generate"]
        pg.run(route, [{"prompt": "again"}])
        assert server.paths["/inference/v1/generate"] == tried  # it is remembered
        image = pg.run(route, [pg.VlmGenerationRequest(prompt="Hi", images=[b"x"])])[0]
        assert isinstance(image.failure(), pg.UnsupportedMultimodal)


def encoded(ids: tuple[int, ...], images: tuple[Any, ...] = (), **options: Any) -> Encoded:
    from pipegen.records.option_records import GenerationOptions
    from pipegen.records.options import resolve

    prompt = Prompt(token_ids=ids, compact_token_ids=ids, images=images)
    return Encoded(
        request=TextGenerationRequest(prompt="x"),
        options=resolve(GenerationOptions(**options)),
        prompt=prompt,
    )


class FewStops(FaultyServer):
    """A server with `/v1/completions` alone, which takes four stop strings as vLLM does."""

    def __init__(self) -> None:
        super().__init__(without=("/inference/v1/generate",))
        self.keeps_bodies = True

    async def _respond(self, fault: str, path: str, body: Any, *more: Any) -> bool:
        if len(body.get("stop") or ()) <= 4:
            return await super()._respond(fault, path, body, *more)
        message = (
            "[{'type': 'too_long', 'loc': ('body', 'stop'), 'msg': 'List should have at most 4"
            " items after validation, not 5'}]"
        )
        answer = json.dumps({"error": {"message": message, "type": "BadRequestError"}}).encode()
        more[-1].write(_http(400, answer))
        return True


def test_completions_learn_how_many_stops_the_server_takes() -> None:
    """As chat does: the answer is cut here, and the next request asks without them at once."""
    stops = ["one", "two", "three", "four", "END"]
    with FewStops() as server, route_to(server) as route:
        for asked in (2, 1):  # requests for one answer: with them and without, then without
            server.bodies.clear()
            result = pg.run(route, [{"prompt": "b DNE a"}], {"stop": stops})[0].unwrap()
            assert (result.text, result.stop) == ("a ", "END")
            assert [len(body.get("stop") or ()) for body in server.bodies] == [5, 0][-asked:]


def test_each_row_is_asked_with_its_own_stops_and_by_what_is_known_now() -> None:
    with FaultyServer() as server, route_to(server, served_model_name="toy") as route:
        engine: Any = route.engine
        one, two, none = (encoded((1, 2), stop=stop) for stop in (("one",), ("two",), ()))
        rows = [one, two, none, one]

        def stops() -> list[list[str]]:
            return [engine.prepare(row).unwrap().body["sampling_params"]["stop"] for row in rows]

        assert stops() == [["one"], ["two"], [], ["one"]]
        assert "images" in engine.capabilities.honours
        engine.sender.directory.learn("stops")
        assert stops() == [[]] * 4
        engine.sender.directory.learn("generate")
        assert "images" not in engine.capabilities.honours


def test_a_prepared_body_may_be_changed_and_changes_no_other() -> None:
    with FaultyServer() as server, route_to(server, served_model_name="toy") as route:
        engine: Any = route.engine
        row = encoded((1, 2), stop=("one",))
        for _ in range(2):
            params = engine.prepare(row).unwrap().body["sampling_params"]
            assert params["stop"] == ["one"]
            params["stop"].append("two")


# H10
@pytest.mark.parametrize("ids", [(), (-5,), (1, 999_999), (1, 259, 2)])
@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_ids_that_could_crash_or_mislead_a_server_are_not_sent(
    wire: str, ids: tuple[int, ...]
) -> None:
    image = (
        ToyModel().prepare_image(pg.ImageSource(data=b"x"), pg.VlmPreprocessOptions(), 0).unwrap()
    )
    with FaultyServer() as server, route_to(server, wire) as route:
        slots = asyncio.run(
            aanswers(route.engine, [encoded(ids), encoded((1, 2), (image,)), encoded((1, 2))])
        )  # type: ignore[attr-defined]
        assert [type(slot.failure()) for slot in slots[:2]] == [pg.InvalidRequest] * 2
        assert pg.is_ok(slots[2])
        assert list(server.asked) == [(1, 2)]


def test_a_server_that_clips_says_so_in_the_result() -> None:
    with FaultyServer(reply=lambda ids: [65, 66]) as server, route_to(server) as route:
        from pipegen.backends.servers.server import ServerRow
        from pipegen.backends.servers.wire import Completion

        engine: Any = route.engine
        row = ServerRow(engine, encoded((1,)))
        row.take_piece(Completion(token_ids=(65, 66), finish="length"))
        raw = row.slot().unwrap()
        assert (raw.encoded.options.max_new_tokens, raw.encoded.clipped_from) == (2, 512)
        error = pg.run(route, [{"prompt": "x"}])[0].failure()
        # it stopped, and nothing of the ids says why
        assert isinstance(error, pg.MalformedResponse)
        assert "the finish is stop, and the last id, 66, ends no answer" in error.message


@pytest.mark.parametrize("ran", [(1, 2, 3), (1,), (1, 9), ()])
def test_an_answer_to_another_prompt_is_no_answer(ran: tuple[int, ...]) -> None:
    from pipegen.backends.servers.server import ServerRow
    from pipegen.backends.servers.wire import Completion

    answer = Completion(token_ids=(65,), finish="stop", prompt_token_ids=ran)
    with FaultyServer() as server, route_to(server) as route:
        engine: Any = route.engine
        row = ServerRow(engine, encoded((1, 2)))
        assert row.take_piece(answer) is None
        assert isinstance(row.slot().failure(), pg.MalformedResponse)
        assert isinstance(engine.answer(encoded((1, 2)), answer).failure(), pg.MalformedResponse)


def test_an_id_that_is_none_is_no_answer_and_a_good_one_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole rows are ended by the stages after the engine; following them too would end them
    twice.
    """
    from pipegen.backends.servers import server as module
    from pipegen.backends.servers.wire import Completion

    monkeypatch.setattr(module, "ServerRow", None)
    with FaultyServer() as server, route_to(server) as route:
        engine: Any = route.engine
        asked = encoded((1, 2), max_new_tokens=2)
        for finish, last in (("stop", EOS), ("length", 66)):
            assert engine.answer(
                asked, Completion(token_ids=(65, last), finish=finish)
            ).unwrap().token_ids == (65, last)
            assert (
                "generated id"
                in engine.answer(asked, Completion(token_ids=(65, 10**6), finish=finish))
                .failure()
                .message
            )


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "options", [{}, {"min_new_tokens": 2}, {"ignore_eos": True}, {"stop_token_ids": [69]}]
)
def test_a_stop_ends_the_row_whoever_halts_it(wire: str, options: dict[str, Any]) -> None:
    """The server here knows no stops: it runs on, and the row is cut, or its stream left, at the
    same place.
    """
    with (
        FaultyServer(reply=lambda ids: [*b"abcdefghijkl"]) as server,
        route_to(server, wire) as route,
    ):
        result = pg.run(
            route, [{"prompt": "x", "options": {"stop": ["cd"], "max_new_tokens": 12, **options}}]
        )[0].unwrap()
    seen = (result.text, result.finish, result.stop, result.completion_tokens)
    assert seen == ("ab", pg.Finish.STOP_STRING, "cd", 4)


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_a_plugin_halts_the_row_at_the_very_token(wire: str) -> None:
    server_side_stops = Plugin(
        name="brace",
        start=lambda: None,
        feed=lambda state, text: (None, text.index("}") + 1 if "}" in text else None),
    )
    with (
        FaultyServer(reply=lambda ids: [*b"{ab} and so on and on"]) as server,
        pg.attach(route_to(server, wire), server_side_stops) as route,
    ):
        result = pg.run(route, [{"prompt": "x"}])[0].unwrap()
    assert (result.text, result.finish, result.completion_tokens) == ("{ab}", pg.Finish.PLUGIN, 4)


def test_samples_are_rows_of_their_own() -> None:
    with FaultyServer() as server, route_to(server) as route:
        result = pg.run(
            route, [{"prompt": "abc", "options": {"samples": 3, "temperature": 1.0, "seed": 1}}]
        )[0].unwrap()
    assert [sample.text for sample in result.samples] == ["cba"] * 3
    assert server.asked[tuple(b"abc")] == 3


def test_run_works_while_a_loop_is_running() -> None:
    async def inside(server: FaultyServer) -> str:
        with route_to(server) as route:
            return pg.run(route, [{"prompt": "abc"}])[0].unwrap().text

    with FaultyServer() as server:
        assert asyncio.run(inside(server)) == "cba"


def test_a_server_of_other_models_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipegen.backends.servers.facts.models_of", lambda answer: {"one": 100, "two": 100}
    )
    with FaultyServer() as server:
        with route_to(server) as route:
            error = pg.run(route, [{"prompt": "x", "options": {"max_new_tokens": 4}}])[0].failure()
            assert isinstance(error, pg.InvalidRequest)
            assert "one, two" in error.message
        with route_to(server, served_model_name="two") as route:
            assert pg.is_ok(pg.run(route, [{"prompt": "x", "options": {"max_new_tokens": 4}}])[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"max_in_flight": 0},
        {"retries": -1},
        {"batch_budget": -1.0},
        {"extra_body": {"a": object()}},
    ],
)
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(pg.InvalidField):
        pg.backends.openai_server("toy", **settings)
    with pytest.raises(pg.InvalidField, match="did you mean 'vllm'"):
        pg.backends.openai_server("toy", dialect="vlm")


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_of_megabytes_is_sent_without_a_warning(stream: bool) -> None:
    """aiohttp warns of more than one in a piece, and a warning is an error in these tests."""
    with (
        FaultyServer(limit=0) as server,
        route_to(server, extra_body={"filler": "x" * 3_000_000}) as route,
    ):
        server.keeps_bodies = True
        slot = (
            next(
                event.slot
                for event in pg.stream(route, [{"prompt": "abc"}])
                if isinstance(event, pg.Done)
            )
            if stream
            else pg.run(route, [{"prompt": "abc"}])[0]
        )
    assert slot.unwrap().text == "cba"
    assert len(server.bodies[0]["filler"]) == 3_000_000


@pytest.mark.parametrize("wire", ["vllm", "sglang"])
def test_short_prompts_are_not_sent_where_the_server_takes_the_long_factors(wire: str) -> None:
    with FaultyServer() as server, route_to(server, wire) as route:
        route.engine._checkpoint.positions = Positions(long_after=12)  # type: ignore[attr-defined]
        short, long = pg.run(
            route,
            [{"prompt": "short"}, {"prompt": "a prompt of more than twelve tokens"}],
            pg.GenerationOptions(max_new_tokens=4),
        )
        assert pg.is_ok(long)
        error = short.failure()
        assert isinstance(error, pg.UnsupportedOption)
        assert error.option == "max_model_len"
        assert (
            "uses the long factors of LongRoPE, and this prompt of 5 tokens is for the short ones"
            in error.message
        )
