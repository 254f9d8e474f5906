"""Whatever is changed in an answer of a server, its request gets a result that can be written, or a
typed error; the split of a stream's bytes changes no event.
"""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.served import ToyModel

import pipegen as pg
from pipegen.backends.http.access import access_to
from pipegen.io.jsonl import to_plain
from pipegen.records import strict_json

pytest.importorskip("aiohttp")

RECORDED = Path(__file__).parent.parent / "tests" / "backends" / "servers" / "recorded"
PATHS = {
    "/v1/chat/completions": "chat",
    "/inference/v1/generate": "ids",
    "/v1/completions": "ids",
    "/generate": "ids",
}


def toy(value: Any) -> Any:
    """A recorded answer with ids of the toy vocabulary, and without the prompt, which was
    another.
    """
    if isinstance(value, dict):
        return {name: toy(entry) for name, entry in value.items() if name != "prompt_token_ids"}
    if isinstance(value, list):
        return [toy(entry) for entry in value]
    if type(value) is int and value > 255:
        return value % 200
    if isinstance(value, str) and value.startswith("token_id:"):
        return f"token_id:{toy(int(value.removeprefix('token_id:')))}"
    return value


def cases() -> Iterator[tuple[str, str, list[Any], bool]]:
    """The engine, the way to ask, and the recorded answer: one object, or the events of a
    stream.
    """
    for file in sorted(RECORDED.glob("*/*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        way = PATHS.get(case["request"]["path"])
        if way is not None and case["status"] == 200 and isinstance(case["body"], str):
            lines = [
                line.removeprefix("data: ")
                for line in case["body"].splitlines()
                if line.startswith("data: {")
            ]
            yield file.parent.name, way, [toy(json.loads(line)) for line in lines], True
        elif way is not None and case["status"] == 200:
            yield file.parent.name, way, [toy(case["body"])], False


CASES = list(cases())
ODD = st.one_of(
    st.sampled_from(
        [
            *(None, True, -1, 0, 2**31, 2**63, 10**400, 0.5, 1e308, "", "stop", "length"),
            *("\ud800", "é" * 50),
        ]
    ),
    st.sampled_from([[], {}, [[]], {"a": {}}, [None], "1" * 5000]),
    st.integers(),
    st.text(max_size=5),
    st.sampled_from([60, 70, 300]).map(lambda levels: json.loads("[" * levels + "]" * levels)),
)
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10**6), st.sampled_from(["set", "drop", "twice", "wrap", "swap"]), ODD
    ),
    min_size=1,
    max_size=4,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of plain data: its holder, and its key there."""
    for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(entry, (dict, list)):
            yield from places(entry)


def changed(answers: list[Any], changes: list[tuple[int, str, Any]]) -> list[Any]:
    """The answers with some of their places changed."""
    out = copy.deepcopy(answers)
    for number, how, value in changes:
        found = list(places(out))
        holder, key = found[number % len(found)]
        if how == "drop":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif how == "wrap":
            holder[key] = [holder[key]]
        elif how == "swap":
            other, place = found[(number * 7 + 1) % len(found)]
            holder[key] = copy.deepcopy(other[place])
        else:
            holder[key] = copy.deepcopy(value)
        if not out:
            return [None]
    return out


def route_for(engine: str, way: str) -> pg.Route:
    from pipegen.backends.servers.sending import Sender
    from pipegen.backends.servers.server import ServerEngine
    from pipegen.backends.servers.sglang_dialect import SGLANG
    from pipegen.backends.servers.vllm_dialect import VLLM
    from pipegen.engines.settings import ServerSettings

    backends: Any = pg.backends
    if way == "chat":
        route: pg.Route = backends.openai_server(
            "toy", base_url="http://localhost:9", dialect=engine, retries=0
        )
        return route
    access = access_to("http://localhost:9", default="", variable="NO_SUCH_KEY")
    wire = {"vllm": VLLM, "sglang": SGLANG}[engine]
    sender = Sender(wire, access, ServerSettings(retries=0), "toy")
    return pg.route(ServerEngine(sender, ToyModel()))


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Routes are answered with what stands here."""
    from pipegen.backends.http.transport import Transport
    from pipegen.backends.servers.facts import Directory
    from pipegen.backends.servers.wire import Facts, WireReply

    said: dict[str, list[bytes]] = {}

    async def once(self: Transport, *_: Any, **more: Any) -> WireReply:
        return WireReply(status=200, body=said["answer"][0])

    async def events(self: Transport, *_: Any, **more: Any) -> AsyncGenerator[bytes, None]:
        for event in said["answer"]:
            yield event

    async def facts(self: Directory) -> Facts:
        return Facts()

    async def abort(self: Transport, request: Any) -> None:
        """Nobody is there."""

    monkeypatch.setattr(Transport, "once", once)
    monkeypatch.setattr(Transport, "events", events)
    monkeypatch.setattr(Transport, "abort", abort)
    monkeypatch.setattr(Directory, "facts", facts)
    return said


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    case=st.sampled_from(CASES),
    changes=CHANGES,
    options=st.sampled_from(
        [{}, {"logprobs": True}, {"min_new_tokens": 3}, {"max_new_tokens": 2}, {"stop": ("e",)}]
    ),
)
def test_any_answer_is_a_result_or_a_typed_error(
    answering: dict[str, list[bytes]], case: Any, changes: Any, options: Any
) -> None:
    engine, way, answers, stream = case
    answering["answer"] = [written(answer) for answer in changed(answers, changes)]
    with route_for(engine, way) as route:
        request, asked = (
            [{"prompt": "Hi"}],
            pg.GenerationOptions(**{"max_new_tokens": 512, **options}),
        )
        if stream:
            slot = next(
                event.slot
                for event in pg.stream(route, request, asked)
                if not isinstance(event, pg.Delta)
            )
        else:
            (slot,) = pg.run(route, request, asked)
    if not pg.is_ok(slot):
        assert isinstance(slot.failure(), pg.GenerationError)
    strict_json.dump(to_plain(slot, "1"))
    pickle.loads(pickle.dumps(slot))


def test_the_recorded_answers_are_read(answering: dict[str, list[bytes]]) -> None:
    """Else the law above would hold of errors alone."""
    read = 0
    for engine, way, answers, stream in CASES:
        answering["answer"] = [written(answer) for answer in answers]
        with route_for(engine, way) as route:
            options = pg.GenerationOptions(max_new_tokens=512)
            if stream:
                slot = next(
                    event.slot
                    for event in pg.stream(route, [{"prompt": "Hi"}], options)
                    if not isinstance(event, pg.Delta)
                )
            else:
                (slot,) = pg.run(route, [{"prompt": "Hi"}], options)
            read += pg.is_ok(slot)
    assert read > len(CASES) / 2


@given(
    lines=st.lists(
        st.sampled_from(
            [
                *(b"data: {}", b"data:[1]", b"data: a", b": comment", b"", b"", b"event: x"),
                *(b"\r", b"data: [DONE]"),
            ]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 120), max_size=8),
    end=st.sampled_from([b"\n", b"\r\n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_events_do_not_depend_on_how_their_bytes_are_cut(
    lines: list[bytes], cuts: list[int], end: bytes, mark: bytes
) -> None:
    from pipegen.backends.http.client import Events

    plain = b"".join(line + end for line in lines)
    stream = mark + plain
    whole, cut = Events(), Events()
    edges = sorted({0, len(stream), *(at for at in cuts if at < len(stream))})
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(edges)]
    assert (
        [event for piece in pieces for event in cut.feed(piece)]
        == whole.feed(stream)
        == Events().feed(plain)
    )
    assert cut.done == whole.done


@given(st.text(alphabet="%4a1Gé \n", max_size=40), st.integers(3, 7))
def test_a_data_url_is_decoded_alike_however_it_is_cut(text: str, size: int) -> None:
    from urllib.parse import unquote_to_bytes

    from pipegen.media import source as loading

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "_PIECE", size)
        assert loading._unquoted(text) == unquote_to_bytes(text)
