"""What real servers answered, recorded (see tests/servers/record.py): the wire functions read all
of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipegen.backends.http.client import Events
from pipegen.backends.servers.facts import models_of
from pipegen.backends.servers.openai import DIALECTS
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.sglang_dialect import SGLANG
from pipegen.backends.servers.vllm_dialect import VLLM
from pipegen.backends.servers.wire import Completion, ServerRequest, Wire, WireReply
from pipegen.core.errors import BackendFailed, InvalidRequest, PromptTooLong
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve

FOLDER = Path(__file__).parent / "recorded"
CASES = {f"{path.parent.name}-{path.stem}": path for path in sorted(FOLDER.glob("*/*.json"))}
TOO_LONG = ("too_long", "does_not_fit", "no_room", "beyond_the_margin")
NO_ROOM = 4096


def recorded(name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(CASES[name].read_text(encoding="utf-8"))
    return said


def wire_for(name: str, path: str) -> Wire | None:
    engine = name.split("-", 1)[0]
    if path == "/v1/chat/completions":
        return DIALECTS[engine]
    return {"/inference/v1/generate": VLLM, "/v1/completions": VLLM, "/generate": SGLANG}.get(path)


def ask_of(case: dict[str, Any]) -> ServerRequest:
    """The ask that the recorded request stands for."""
    body = case["request"].get("body") or {}
    params = body.get("sampling_params") or body
    params = params if isinstance(params, dict) else {}
    tops = body.get("top_logprobs_num", params.get("logprobs"))
    wanted = ("return_logprob" in body or "logprobs" in params) and case["request"]["path"] in (
        "/inference/v1/generate",
        "/generate",
    )
    options = resolve(
        GenerationOptions(logprobs=bool(wanted), top_logprobs=int(tops or 0) if wanted else 0)
    )
    return ServerRequest(options=options, stream=bool(body.get("stream")), prompt_tokens=0)


def pieces_of(wire: Wire, case: dict[str, Any], request: ServerRequest) -> list[Completion]:
    """What the events of a recorded stream brought."""
    events, found, seen = Events(), [], 0
    for data in events.feed(case["body"].encode()):
        for piece in (
            json_of(data).bind(lambda value: wire.from_event(value, request, seen)).unwrap()  # noqa: B023
        ):
            found.append(piece)
            seen += len(piece.token_ids or ())
    assert events.done
    return found


GENERATING = [
    name for name in CASES if wire_for(name, recorded(name)["request"]["path"]) is not None
]
TOLD_IN_STREAM = [
    name
    for name in GENERATING
    if isinstance(recorded(name)["body"], str) and '"error"' in recorded(name)["body"]
]
SEVERAL = [name for name in GENERATING if name.endswith(("_two", "_batch"))]
ANSWERED = [
    name
    for name in GENERATING
    if recorded(name)["status"] == 200 and name not in (*TOLD_IN_STREAM, *SEVERAL)
]
REFUSED = [name for name in GENERATING if recorded(name)["status"] != 200]


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_is_read(name: str) -> None:
    case = recorded(name)
    wire, ask = wire_for(name, case["request"]["path"]), ask_of(case)
    assert wire is not None
    if ask.stream:
        pieces = pieces_of(wire, case, ask)
        assert [piece.finish for piece in pieces if piece.finish is not None]
        assert any(
            piece.token_ids or piece.text or piece.reasoning or piece.tool_calls for piece in pieces
        )
        return
    (completion,) = (
        json_of(json.dumps(case["body"]).encode())
        .bind(lambda value: wire.from_wire(value, ask))
        .unwrap()
    )
    assert completion.finish in ("stop", "length", "abort", "tool_calls")
    if "chat" not in name:
        assert completion.token_ids
    if ask.options.logprobs:
        assert [entry.token_id for entry in completion.logprobs or ()] == list(
            completion.token_ids or ()
        )


@pytest.mark.parametrize("name", SEVERAL)
def test_more_completions_than_the_one_that_is_asked_for_are_malformed(name: str) -> None:
    case = recorded(name)
    wire = wire_for(name, case["request"]["path"])
    assert wire is not None
    assert "and 1 was asked" in wire.from_wire(case["body"], ask_of(case)).failure().message


@pytest.mark.parametrize("engine", sorted({name.split("-")[0] for name in CASES}))
@pytest.mark.parametrize(
    ("whole", "stream"),
    [("generate", "generate_stream"), ("generate_logprobs", "generate_logprobs_stream")],
)
def test_the_pieces_of_a_stream_are_the_whole_answer(engine: str, whole: str, stream: str) -> None:
    one, other = recorded(f"{engine}-{whole}"), recorded(f"{engine}-{stream}")
    wire = wire_for(f"{engine}-{whole}", one["request"]["path"])
    assert wire is not None
    (completion,) = wire.from_wire(one["body"], ask_of(one)).unwrap()
    pieces = pieces_of(wire, other, ask_of(other))
    assert [token for piece in pieces for token in piece.token_ids or ()] == list(
        completion.token_ids or ()
    )
    assert [entry for piece in pieces for entry in piece.logprobs or ()] == list(
        completion.logprobs or ()
    )
    assert [piece.finish for piece in pieces if piece.finish] == [completion.finish]


@pytest.mark.parametrize("engine", sorted({name.split("-")[0] for name in CASES}))
@pytest.mark.parametrize("name", ["chat_reasoning", "chat_reasoning_stream"])
def test_reasoning_is_told_apart(engine: str, name: str) -> None:
    case = recorded(f"{engine}-{name}")
    wire, ask = DIALECTS[engine], ask_of(case)
    found = pieces_of(wire, case, ask) if ask.stream else wire.from_wire(case["body"], ask).unwrap()
    assert "".join(piece.reasoning or "" for piece in found).strip() == "I make a list."
    assert "".join(piece.text or "" for piece in found).strip().startswith("January, February")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_error(name: str) -> None:
    case = recorded(name)
    wire, body = wire_for(name, case["request"]["path"]), case["body"]
    assert wire is not None
    reply = WireReply(
        status=case["status"], body=(body if isinstance(body, str) else json.dumps(body)).encode()
    )
    error = wire.classify(reply, ask_of(case))
    if any(words in name for words in TOO_LONG):
        assert isinstance(error, PromptTooLong)
        assert NO_ROOM - 6 <= error.limit <= NO_ROOM
    else:
        assert type(error) is (BackendFailed if case["status"] == 500 else InvalidRequest)


@pytest.mark.parametrize("name", TOLD_IN_STREAM)
def test_an_error_that_a_stream_tells_of_is_the_same_one(name: str) -> None:
    from pipegen.backends.http.access import Access
    from pipegen.backends.http.transport import HttpStatusError
    from pipegen.backends.servers.sending import Sender
    from pipegen.engines.settings import ServerSettings

    pytest.importorskip("aiohttp")
    case = recorded(name)
    wire = wire_for(name, case["request"]["path"])
    assert wire is not None
    sender = Sender(wire, Access("http://h", {}), ServerSettings(), "m")
    (data,) = Events().feed(case["body"].encode())
    with pytest.raises(HttpStatusError) as refused:
        sender.pieces_in(ask_of(case), 0, json.loads(data))
    assert isinstance(wire.classify(refused.value.reply, ask_of(case)), PromptTooLong)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("-models")])
def test_the_context_length_is_found(name: str) -> None:
    assert list(models_of(recorded(name)["body"]).values()) == [NO_ROOM]


def test_there_are_recordings() -> None:
    assert len(ANSWERED) > 10
    assert len(REFUSED) > 5
    assert TOLD_IN_STREAM
