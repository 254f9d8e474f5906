"""A chat server on loopback that a real model answers for through the Hugging Face engine, in the
wire of vLLM or of a plain server; and faults of it.

A fault is a few functions: on what is asked, on the rows of a batch, on one row, on the events of a
stream, on the choices of an answer; or it is another model.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import queue
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.loopback import JsonHandler, Loopback

import pipegen as pg

__all__ = ["RIGHT", "Asked", "Fault", "ModelServer", "Row"]


def templated(request: pg.GenerationRequest) -> pg.GenerationRequest:
    """The request with the template in its metadata: that of the server, or of whoever started
    it.
    """
    template = (request.metadata or {}).get("template")
    if template is None:
        return request
    options = request.options or pg.GenerationOptions()
    chat = dataclasses.replace(options.chat or pg.ChatTemplateOptions(), template=template)
    return dataclasses.replace(request, options=dataclasses.replace(options, chat=chat))


TEMPLATED: Any = pg.pure("templated", templated)


@dataclasses.dataclass
class Asked:
    """A request as the server read it; a fault may change it."""

    messages: list[Any] | None
    prompt: list[int] | None
    options: dict[str, Any]
    tools: list[Any] = dataclasses.field(default_factory=list)
    sent: list[int] = dataclasses.field(default_factory=list)
    """The ids of the prompt as they came, whatever a fault makes of them."""


@dataclasses.dataclass
class Row:
    """What the model made; a fault may change it."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[tuple[int, float, list[tuple[int, float]]]]
    text: str
    finish: str
    usage: dict[str, int]
    most: int
    ended: bool
    """Whether the last id is an end token."""


def same(value: Any, *_: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is wrong with a server. `kinds` are the names that `pipegen verify` may give it, or
    `failed` where its answers are refused as they come; empty where no answer changes.
    """

    name: str
    kinds: tuple[str, ...]
    ask: Callable[[Asked], Asked] = same
    batch: Callable[[list[Row]], list[Row]] = same
    row: Callable[[Row, Asked, Any], Row] = same
    events: Callable[[list[Any]], list[Any]] = same
    choices: Callable[[list[Row]], list[Row]] = same
    dialects: tuple[str, ...] = ("vllm", "plain")
    ways: tuple[str, ...] = ("chat", "ids")
    model: str = ""
    """The name of another model."""
    precision: str = "float32"
    """What the server is taken to compute in."""


RIGHT = Fault("right", ())
FIELDS = {
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty"),
            *("presence_penalty", "frequency_penalty"),
        )
    },
    "max_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
}


class ModelServer(Loopback):
    """Serves one model at a time; `fault` and `route` may be set between requests."""

    def __init__(self, route: pg.Route, dialect: str = "vllm") -> None:
        super().__init__(_Handler)
        self.route, self.dialect, self.fault = route, dialect, RIGHT
        self.sent: list[dict[str, Any]] = []
        self._waiting: queue.Queue[tuple[Asked, str, list[Any], threading.Event] | None] = (
            queue.Queue()
        )
        self._kept: dict[str, Any] = {}
        threading.Thread(target=self._work, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        super().__exit__()

    def made(self, asked: Asked, way: str) -> Row:
        """The row, made with whatever else waits."""
        out: list[Any] = []
        done = threading.Event()
        self._waiting.put((asked, way, out, done))
        done.wait()
        if not isinstance(out[0], Row):
            raise ValueError(refusal(out[0])) from None
        return out[0]

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while True:
                try:
                    more = self._waiting.get(timeout=0.03)
                except queue.Empty:
                    break
                if more is None:
                    return
                batch.append(more)
            for way in ("chat", "ids"):
                chosen = [one for one in batch if one[1] == way]
                if chosen:
                    self._answer(chosen, way)

    def _answer(self, batch: Sequence[Any], way: str) -> None:
        fault = self.fault if way in self.fault.ways else RIGHT
        try:
            asked = [fault.ask(copy.deepcopy(one[0])) for one in batch]
            requests = [self._request(one) for one in asked]
            keys = [
                json.dumps(
                    [id(self.route.engine), request, None if repeatable(request) else place],
                    default=str,
                )
                for place, request in enumerate(requests)
            ]
            fresh = {
                key: request
                for key, request in zip(keys, requests, strict=True)
                if key not in self._kept or not repeatable(request)
            }
            slots = pg.run(TEMPLATED >> self.route, list(fresh.values()))
            self._kept.update(zip(fresh, slots, strict=True))
            made = [
                (place, self._kept[key].unwrap())
                for place, key in enumerate(keys)
                if pg.is_ok(self._kept[key])
            ]
            rows = fault.batch([self._row(result) for _, result in made])
            answers: list[Any] = [self._kept[key] for key in keys]
            for (place, _), row in zip(made, rows, strict=True):
                answers[place] = fault.row(row, asked[place], self.route.engine.tokenizer)
        except Exception as raised:  # noqa: BLE001 - a server answers whatever happens
            answers = [raised] * len(batch)
        for (_, _, out, done), answer in zip(batch, answers, strict=True):
            out.append(answer)
            done.set()

    def _request(self, asked: Asked) -> dict[str, Any]:
        options = {**asked.options, "logprobs": True, "top_logprobs": 20}
        if asked.prompt is not None:
            return {"prompt_token_ids": asked.prompt, "options": options}
        template = options.pop("template", None)
        if self.dialect == "plain":
            template = "{%- set enable_thinking = nothing_at_all -%}" + (
                template or self.route.engine.renderer.template or ""
            )
        more = {"tools": asked.tools} if asked.tools else {}
        return {
            "messages": asked.messages,
            "options": options,
            "metadata": {"template": template},
            **more,
        }

    def _row(self, result: Any) -> Row:
        ended = bool(result.token_ids) and result.token_ids[-1] in self.route.engine.eos_token_ids
        return Row(
            prompt_ids=[*result.prompt_token_ids],
            ids=[*result.token_ids],
            logprobs=[(one.token_id, one.logprob, [*one.top]) for one in result.logprobs],
            text=result.text,
            finish="length" if result.finish == "length" else "stop",
            usage={
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
            },
            most=result.options.max_new_tokens,
            ended=ended,
        )


def refusal(out: Any) -> str:
    """Why there is no row, as vLLM says it."""
    error = out if isinstance(out, Exception) else out.failure()
    if isinstance(error, pg.PromptTooLong):
        prompt, limit = re.findall(r"\d+", error.message)[:2]
        return f"Input length ({prompt}) exceeds model's maximum context length ({limit})."
    return str(error)


def repeatable(request: dict[str, Any]) -> bool:
    return not request["options"].get("temperature") or request["options"].get("seed") is not None


def _named(token: int, value: float) -> dict[str, Any]:
    return {"token": f"token_id:{token}", "logprob": value}


class _Handler(JsonHandler):
    def do_GET(self) -> None:
        if self.path == "/v1/models":
            owner = "vllm" if self.server.dialect == "vllm" else "me"
            self.send(
                {
                    "object": "list",
                    "data": [{"id": "embedded", "owned_by": owner, "max_model_len": 4096}],
                }
            )
        elif self.path == "/version" and self.server.dialect == "vllm":
            self.send({"version": "0.32.0"})
        else:
            self.send({"error": {"message": "Not Found"}}, 404)

    def do_POST(self) -> None:
        body = self.body()
        self.server.sent.append(body)
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self.send({"detail": "Not Found"}, 404)
            return
        options = {
            name: body[field] for field, name in FIELDS.items() if body.get(field) is not None
        }
        if options.get("seed") is None and options.get("temperature") == 0:
            options.pop("seed", None)
        if isinstance(options.get("stop"), str):
            options["stop"] = [options["stop"]]
        options |= {
            name: value
            for name, value in (body.get("chat_template_kwargs") or {}).items()
            if name == "enable_thinking"
        }
        asked = Asked(body.get("messages"), body.get("prompt"), options, body.get("tools") or [])
        asked.sent = asked.prompt or []
        try:
            rows = self._made(asked, "chat" if chat else "ids", body.get("n") or 1)
        except Exception as raised:  # noqa: BLE001
            self.send({"error": {"message": str(raised)}}, 400)
            return
        if body.get("stream"):
            self.send_events(*self.server.fault.events(self._events(rows[0])))
        else:
            self.send(self._chat(rows, body) if chat else self._completion(rows[0]))

    def _made(self, asked: Asked, way: str, count: int) -> list[Row]:
        """The rows of the choices that were asked for, as the fault leaves them."""
        if count == 1:
            return [self.server.made(asked, way)]
        with ThreadPoolExecutor(count) as pool:
            rows = [*pool.map(lambda _: self.server.made(asked, way), range(count))]
        return self.server.fault.choices(rows)  # type: ignore[no-any-return]

    def _usage(self, row: Row) -> dict[str, int]:
        return {**row.usage, "total_tokens": sum(row.usage.values())}

    def _chat(self, rows: list[Row], body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "id": "c",
            "object": "chat.completion",
            "model": "embedded",
            "choices": [self._choice(place, row, body) for place, row in enumerate(rows)],
            "usage": self._usage(rows[0]),
        }
        if self.server.dialect == "vllm":
            answer["prompt_token_ids"] = rows[0].prompt_ids
        return answer

    def _choice(self, place: int, row: Row, body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": place,
            "message": {"role": "assistant", "content": row.text},
            "finish_reason": row.finish,
        }
        if self.server.dialect == "vllm":
            choice |= {"token_ids": row.ids, "stop_reason": None}
            if body.get("logprobs"):
                content = [
                    {**_named(one, value), "top_logprobs": [_named(*pair) for pair in top[:3]]}
                    for one, value, top in row.logprobs
                ]
                choice["logprobs"] = {"content": content}
        return choice

    def _completion(self, row: Row) -> dict[str, Any]:
        logprobs = {
            "tokens": [f"token_id:{one}" for one, _, _ in row.logprobs],
            "token_logprobs": [value for _, value, _ in row.logprobs],
            "top_logprobs": [
                {f"token_id:{one}": value for one, value in top[:3]} for _, _, top in row.logprobs
            ],
        }
        choice = {
            "index": 0,
            "text": row.text,
            "token_ids": row.ids,
            "finish_reason": row.finish,
            "stop_reason": None,
            "logprobs": logprobs,
        }
        return {
            "id": "c",
            "object": "text_completion",
            "model": "embedded",
            "choices": [{**choice, "prompt_token_ids": row.prompt_ids or None}],
            "usage": self._usage(row),
        }

    def _events(self, row: Row) -> list[Any]:
        decode, special = (
            self.server.route.engine.tokenizer.decode,
            frozenset(self.server.route.engine.tokenizer.special_tokens.values()),
        )
        events: list[Any] = []
        shown, first = "", 0
        for end in range(1, len(row.ids) + 1):
            whole = decode([one for one in row.ids[:end] if one not in special])
            last = end == len(row.ids)
            if (whole.endswith("\ufffd") or end % 3) and not last:
                continue
            text = row.text if last else whole
            if not text.startswith(shown):
                continue
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"content": text[len(shown) :]},
                "finish_reason": row.finish if last else None,
            }
            if self.server.dialect == "vllm":
                choice |= {"token_ids": row.ids[first:end]}
            events.append({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})
            shown, first = text, end
        if self.server.dialect == "vllm":
            events[0]["prompt_token_ids"] = row.prompt_ids
        return [
            *events,
            {
                "id": "c",
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(row),
            },
        ]
