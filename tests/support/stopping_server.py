"""A chat server on loopback that ends rows as servers do: at stop strings, each dialect in its own
way, at the length, and at its end token. Its tokens are pieces of text of one width.

vLLM cuts the stop away and names it, SGLang leaves it in the text and names it, a plain server cuts
it away without a word. Of stops that complete with one token, the first of the list is taken.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["StoppingServer"]


class StoppingServer(ThreadingHTTPServer):
    """The server. `answer`, which is the whole text to a prompt, `width` and `dialect` may be set
    between requests; `asked` counts the calls.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer: Callable[[str], str] = lambda prompt: prompt
        self.dialect, self.width, self.asked = "vllm", 1, 0
        threading.Thread(target=lambda: self.serve_forever(0.01), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Made(NamedTuple):
    text: str
    pieces: int
    finish: str
    stop: str | None


def _made(text: str, stops: Sequence[str], most: int, width: int, *, keeps_stop: bool) -> _Made:
    pieces = [text[start : start + width] for start in range(0, len(text), width)]
    seen = ""
    for count, piece in enumerate(pieces[:most], 1):
        before, seen = len(seen), seen + piece
        for stop in stops:
            place = seen.find(stop, max(0, before + 1 - len(stop)))
            if place >= 0:
                return _Made(seen if keeps_stop else seen[:place], count, "stop", stop)
    if most <= len(pieces):
        return _Made(seen, most, "length", None)
    return _Made(seen, len(pieces) + 1, "stop", None)  # with the end token


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        models = {"data": [{"id": "toy", "max_model_len": 4096}]}
        self._send(json.dumps(models if self.path == "/v1/models" else {"version": "0"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":  # a request that is given up
            self._send("{}")
            return
        server = self.server
        server.asked += 1
        prompt = body["messages"][-1]["content"]
        stops, keeps_stop = body.get("stop") or (), server.dialect == "sglang"
        most = body.get("max_tokens") or body.get("max_completion_tokens") or 512
        made = _made(server.answer(prompt), stops, most, server.width, keeps_stop=keeps_stop)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": made.pieces}
        if not body.get("stream"):
            whole = self._choice("message", made, made.text, range(made.pieces), last=True)
            self._send(json.dumps({"choices": [whole], "usage": usage}))
            return
        width, count = server.width, made.pieces
        events = [
            self._choice(
                "delta",
                made,
                made.text[place * width : (place + 1) * width],
                [place],
                last=place == count - 1,
            )
            for place in range(count)
        ]
        told = [*({"choices": [event]} for event in events), {"choices": [], "usage": usage}]
        lines = [*map(json.dumps, told), "[DONE]"]
        self._send("".join(f"data: {line}\n\n" for line in lines), "text/event-stream")

    def _choice(
        self, name: str, made: _Made, text: str, ids: Sequence[int], *, last: bool
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            name: {"role": "assistant", "content": text},
            "finish_reason": made.finish if last else None,
        }
        if self.server.dialect == "vllm":
            choice |= {"token_ids": [*ids], "stop_reason": made.stop if last else None}
        elif self.server.dialect == "sglang":
            choice["matched_stop"] = made.stop if last else None
        return choice

    def _send(self, text: str, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
