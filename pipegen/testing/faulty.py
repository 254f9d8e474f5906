"""A server that fails on demand, on loopback, with a part of the protocols of vLLM, SGLang and chat
completions.

It answers with the prompt's ids reversed, so each answer shows its prompt. Which call fails, and
how, depends on the seed, the prompt and the number of calls with that prompt, not on the order of
requests.

    with FaultyServer(share=0.2, seed=1) as server:
        route = pg.backends.vllm_server("embedded", base_url=server.url)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pipegen.testing.hostile import HOSTILE, respond

__all__ = ["FAULTS", "HOSTILE", "SAFE", "FaultyServer"]

FAULTS = (
    "reset",
    "stall",
    "slow",
    "429",
    "500",
    "503",
    "cut",
    "short",
    "choices",
    "garbage",
    "noise",
)
"""How a call may fail: a reset, silence, a slow first byte, a status, a cut answer, a short body, a
wrong number of choices, not JSON, not HTTP.
"""
SAFE = ("reset", "429", "503", "cut", "short", "choices", "garbage", "noise", "slow")
"""Those after which a client may ask again without a timeout; `slow` answers in the end."""
EOS = 257


class FaultyServer:
    """The server; as a context manager it runs in a thread of its own. `url` is its address.

    share, kinds: how many of the calls fail, and how (see `FAULTS` and `HOSTILE`).
    reply: makes the generated ids from the prompt's.
    limit: the context length of `/v1/models`, which is down while `models` is False.
    retry_after: the header of 429 and 503.
    without: paths that do not exist.
    answers: a status and an answer for further paths.

    `asked` counts calls by prompt, `answered` complete answers by prompt, `failed` faults by kind,
    `left` clients that left before the answer; `aborted` has the names of aborted requests.
    """

    def __init__(
        self,
        *,
        share: float = 0.0,
        seed: int = 0,
        kinds: Sequence[str] = FAULTS,
        reply: Callable[[Sequence[int]], Sequence[int]] = lambda ids: [*reversed(ids), EOS],
        limit: int = 4096,
        retry_after: str = "0",
        without: Sequence[str] = (),
        answers: Mapping[str, tuple[int, Any]] | None = None,
    ) -> None:
        self.share, self.seed, self.kinds, self.reply, self.limit, self.retry_after = (
            share,
            seed,
            tuple(kinds),
            reply,
            limit,
            retry_after,
        )
        self.without, self.answers = tuple(without), dict(answers or {})
        self.models = True
        self.url = ""
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.answered: Counter[tuple[int, ...]] = Counter()
        self.failed: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.bodies: list[Mapping[str, Any]] = []
        self.keeps_bodies = False
        self.left = 0
        self.aborted: list[str] = []
        self.open = 0
        self._stop: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="faulty-server", daemon=True
        )
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._thread.join()

    async def _serve(self, started: threading.Event) -> None:
        closed, loop = asyncio.Event(), asyncio.get_running_loop()
        writers, tasks = set[asyncio.StreamWriter](), set[asyncio.Task[None]]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connection(reader, writer)
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            writers.discard(writer)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # before its task has begun: a task that is cancelled before that closes nothing
            writers.add(writer)
            tasks.add(task := loop.create_task(connected(reader, writer)))
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._stop = lambda: loop.call_soon_threadsafe(closed.set)
        started.set()
        await closed.wait()
        server.close()
        while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()  # whatever the client has not read yet
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while await self._call(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        length = next(
            (
                int(line.split(":")[1])
                for line in head
                if line.lower().startswith("content-length:")
            ),
            0,
        )
        body = json.loads(await reader.readexactly(length)) if length else {}
        self.paths[path] += 1
        if path in self.without:
            writer.write(_http(404, b'{"detail":"Not Found"}'))
            return True
        if path not in _GENERATING or path in self.answers:
            status, answer = self._fact(path, body)
            writer.write(_http(status, json.dumps(answer).encode()))
            return True
        if self.keeps_bodies:
            self.bodies.append(body)
        prompt = tuple(
            body.get("token_ids")
            or body.get("input_ids")
            or body.get("prompt")
            or map(ord, _text_of(body["messages"][-1]["content"]))
        )
        self.asked[prompt] += 1
        fault = self._fault(prompt, self.asked[prompt])
        if fault:
            self.failed[fault] += 1
        return await self._respond(fault, path, body, prompt, reader, writer)

    def _fact(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if path == "/abort_request":
            self.aborted.append(str(body.get("rid")))
            return 200, {}
        if path in self.answers:
            return self.answers[path]
        if path == "/v1/models" and self.models:
            return 200, {"data": [{"id": "toy", "max_model_len": self.limit}]}
        return (
            (200, {"version": "0"})
            if path in ("/version", "/server_info", "/model_info")
            else (503, {"detail": "not here"})
        )

    def _fault(self, prompt: tuple[int, ...], attempt: int) -> str:
        drawn = hashlib.sha256(f"{self.seed}/{prompt}/{attempt}".encode()).digest()
        if int.from_bytes(drawn[:4], "big") / 2**32 >= self.share:
            return ""
        return self.kinds[drawn[4] % len(self.kinds)]

    async def _respond(
        self,
        fault: str,
        path: str,
        body: Mapping[str, Any],
        prompt: tuple[int, ...],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "stall":
            return await self._gone(reader)
        if fault == "slow":
            await asyncio.sleep(0.05)
        if fault == "noise":
            writer.write(b"\x00\x01 this is no HTTP \xff\r\n\r\n")
            return False
        if fault.isdigit():
            writer.write(
                _http(
                    int(fault),
                    b'{"error":{"message":"out of order"}}',
                    f"Retry-After: {self.retry_after}\r\n" if fault != "500" else "",
                )
            )
            return True
        params = body.get("sampling_params", body)
        most = params.get("max_tokens") or params.get("max_new_tokens") or 16
        reply = list(self.reply(prompt))
        ends = params.get("stop_token_ids") or (EOS,)
        if reply and reply[-1] == EOS and EOS not in ends:  # another model, which has its own
            reply[-1] = ends[0]
        ids, finish = (reply[:most], "length") if len(reply) > most else (reply, "stop")
        if fault in HOSTILE:
            last = None if fault == "flood" else finish
            events = [
                _event(path, ids[:count], last if count == len(ids) else None)
                for count in range(1, len(ids) + 1)
            ]
            await respond(
                fault,
                events,
                _answer(path, ids, finish, prompt, wrong=False),
                writer,
                stream=bool(body.get("stream")),
            )
            return False
        if body.get("stream"):
            return await self._stream(fault, path, ids, finish, prompt, writer)
        answer = json.dumps(_answer(path, ids, finish, prompt, wrong=fault == "choices")).encode()
        if fault == "garbage":
            answer = b"<html>" + bytes(range(128, 200))
        if fault in ("cut", "short"):
            writer.write(
                _http(200, answer, length=len(answer) if fault == "short" else len(answer) // 2)[
                    : -len(answer) // 2
                ]
            )
            return False
        if fault in ("", "slow"):
            self.answered[prompt] += 1
        writer.write(_http(200, answer))
        return True

    async def _gone(self, reader: asyncio.StreamReader) -> bool:
        """Say nothing until the client goes away."""
        await reader.read()
        self.left += 1
        return False

    async def _stream(
        self,
        fault: str,
        path: str,
        ids: list[int],
        finish: str,
        prompt: tuple[int, ...],
        writer: asyncio.StreamWriter,
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        if fault == "garbage":
            writer.write(b"data: {garbage\n\n")
            return False
        if fault == "choices":
            writer.write(b'data: {"choices": 7}\n\n')
            return False
        for count in range(1, len(ids) + 1):
            if fault in ("cut", "short") and count * 2 >= len(ids):
                writer.write(b'data: {"choi' if fault == "cut" else b"")
                return False
            writer.write(
                b"data: "
                + json.dumps(
                    _event(path, ids[:count], finish if count == len(ids) else None)
                ).encode()
                + b"\n\n"
            )
            await writer.drain()
        writer.write(b"data: [DONE]\n\n")
        self.answered[prompt] += 1
        return False


_GENERATING = ("/inference/v1/generate", "/generate", "/v1/completions", "/v1/chat/completions")


def _http(status: int, body: bytes, more: str = "", *, length: int | None = None) -> bytes:
    head = (
        f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body) if length is None else length}\r\n{more}\r\n"
    )
    return head.encode() + body


def _text_of(content: Any) -> str:
    """The text of a message; images say nothing."""
    return (
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    )


def _text(ids: Sequence[int]) -> str:
    return "".join(chr(token_id) for token_id in ids if token_id != EOS)


def _answer(
    path: str, ids: Sequence[int], finish: str, prompt: Sequence[int], *, wrong: bool
) -> Any:
    """A whole answer; a wrong one has one completion too many."""
    if path == "/generate":
        event = _event(path, ids, finish)
        return [event, event] if wrong else event
    message = (
        {"message": {"content": _text(ids)}}
        if path.endswith("chat/completions")
        else {"token_ids": ids}
    )
    choices = [
        {"index": index, "finish_reason": finish, **message} for index in range(2 if wrong else 1)
    ]
    return {
        "choices": choices,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
    }


def _event(path: str, ids: Sequence[int], finish: str | None) -> object:
    """One event of a stream, for the last of these ids; SGLang's hold all of them."""
    if path == "/generate":
        reason = (
            None
            if finish is None
            else (
                {"type": finish, "matched": ids[-1]}
                if finish == "stop"
                else {"type": finish, "length": len(ids)}
            )
        )
        return {
            "output_ids": list(ids),
            "meta_info": {"finish_reason": reason, "completion_tokens": len(ids)},
        }
    delta = (
        {"delta": {"content": _text(ids[-1:])}}
        if path.endswith("chat/completions")
        else {"token_ids": list(ids[-1:])}
    )
    return {"choices": [{"index": 0, "finish_reason": finish, **delta}]}
