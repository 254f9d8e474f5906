"""verifiers on pipegen: a `Client` whose turns have the ids that were sampled, on any engine.

    from pipegen.contrib.verifiers import PipegenClient

    config = TrainClientConfig()
    server = InterceptionServer()
    server.clients[config.model_dump_json()] = PipegenClient(route)
    agent = Agent(AgentConfig(client=config, ...), interception=server)

Made for verifiers 0.4.0, which need not be installed to import this.
"""

# verifiers need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pipegen as pg
from pipegen.contrib.sampled_logprobs import sampled_logprobs
from pipegen.io.openai_batch import CHAT, request_from_batch

if TYPE_CHECKING:

    class _VerifiersClient: ...

else:
    try:
        from verifiers.v1.clients.client import Client as _VerifiersClient
    except ImportError:
        _VerifiersClient = object

__all__ = ["PipegenClient"]

_Pipe: TypeAlias = pg.Pipe[pg.GenerationRequest, pg.GenerationResult]
_STREAMED = ("stream", "stream_options")
"""verifiers streams an answer to the program itself, once it is whole."""


class _Answered(NamedTuple):
    """An answer, and what verifiers calls the conversation that ends with it."""

    key: tuple[str, ...]
    result: pg.GenerationResult


class PipegenClient(_VerifiersClient):
    """A client of verifiers that generates with a pipe.

    pipe: a route, or what goes on in one turn.
    conversations: of how many rollouts the turns are kept. A turn of another one is rendered anew,
        and verifiers makes a branch of it where its ids differ.
    options: of the runs, where a request has none.

    A turn that goes on with an answer keeps the ids before it. The fields of a request are those of
    an OpenAI batch file. What is not honoured, or fails, is a `ProviderError`, whose status says
    whether to try again. The log probabilities are left out where they are not of the distribution
    that was sampled from.

    >>> from pipegen.testing.fake import FakeEngine
    >>> PipegenClient(pg.route(FakeEngine("Yes"))).conversations
    1024
    """

    def __init__(self, pipe: _Pipe, *, conversations: int = 1024, **options: Any) -> None:
        self.pipe, self.conversations, self.options = pipe, conversations, options
        self._answered: OrderedDict[str, list[_Answered]] = OrderedDict()

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One turn. The sampling is that of the body."""
        from verifiers.v1.dialects.chat import ChatDialect, parse_message
        from verifiers.v1.errors import ProviderError
        from verifiers.v1.graph import message_hash

        if not isinstance(dialect, ChatDialect):
            raise ProviderError(
                f"pipegen takes chat completions, not {type(dialect).__name__}", status_code=400
            )
        fields = {name: value for name, value in body.items() if name not in _STREAMED}
        values = {"custom_id": session_id or "request", "url": CHAT, "body": fields}
        asked = request_from_batch(values, "the request")
        if not pg.is_ok(asked):
            raise ProviderError(str(asked.failure()), status_code=400)
        messages = dialect.parse_request(body).messages
        tools = json.dumps(body.get("tools"), sort_keys=True)
        key = (tools, *map(message_hash, messages))
        request = self._going_on(session_id, key, asked.unwrap())
        (slot,) = await pg.arun(self.pipe, [request], {"logprobs": True, **self.options})
        if not pg.is_ok(slot):
            error = slot.failure()
            raise ProviderError(str(error), status_code=503 if error.retryable else 400)
        result = slot.unwrap()
        message = parse_message(dict(result.message))
        answered = _Answered((*key, message_hash(message)), result)
        if session_id is not None:
            self._answered.setdefault(session_id, []).append(answered)
            self._answered.move_to_end(session_id)
            while len(self._answered) > self.conversations:
                self._answered.popitem(last=False)
        return _response(result, message, str(body.get("model", "")))

    def _going_on(self, session_id: str | None, key: tuple[str, ...], asked: Any) -> Any:
        """The request, on the ids of the longest conversation that it goes on with."""
        kept = [
            one
            for one in self._answered.get(session_id or "", ())
            if one.key == key[: len(one.key)] and len(one.key) < len(key)
        ]
        last = max(kept, key=lambda one: len(one.key), default=None)
        later = () if last is None else asked.messages[len(last.key) - 1 :]
        if last is None or any(message.role == "assistant" for message in later):
            return asked  # an answer in it was not sampled here
        return last.result.then(later, options=asked.options)


def _response(result: pg.GenerationResult, message: Any, model: str) -> Any:
    from verifiers.v1.clients.train import serialize_completion
    from verifiers.v1.types import Response, TurnTokens, Usage

    values = None if result.logprobs is None else [token.logprob for token in result.logprobs]
    cut = result.finish is pg.Finish.LENGTH
    response = Response(
        id=result.id or "pipegen",
        created=int(time.time()),
        model=model,
        message=message,
        finish_reason="length" if cut else "tool_calls" if message.tool_calls else "stop",
        usage=Usage(prompt_tokens=result.prompt_tokens, completion_tokens=result.completion_tokens),
        tokens=TurnTokens(
            prompt_ids=list(result.prompt_token_ids),
            completion_ids=list(result.token_ids),
            completion_logprobs=sampled_logprobs(result, values) or [],
        ),
    )
    response.raw = serialize_completion(response, model)
    return response
