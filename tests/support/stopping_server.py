"""A chat server on loopback that ends rows as servers do: at stop strings, each dialect in its own
way, at the length, and at its end token. Its tokens are pieces of text of one width.

vLLM cuts the stop away and names it, SGLang leaves it in the text and names it, a plain server cuts
it away without a word. Of stops that complete with one token, the first of the list is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.loopback import JsonHandler, Loopback

__all__ = ["StoppingServer"]


class StoppingServer(Loopback):
    """The server. `answer`, which is the whole text to a prompt, `width` and `dialect` may be set
    between requests; `asked` counts the calls.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.answer: Callable[[str], str] = lambda prompt: prompt
        self.dialect, self.width, self.asked = "vllm", 1, 0


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


class _Handler(JsonHandler):
    def do_GET(self) -> None:
        models = {"data": [{"id": "toy", "max_model_len": 4096}]}
        self.send(models if self.path == "/v1/models" else {"version": "0"})

    def do_POST(self) -> None:
        body = self.body()
        if self.path != "/v1/chat/completions":  # a request that is given up
            self.send({})
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
            self.send({"choices": [whole], "usage": usage})
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
        self.send_events(*told)

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
