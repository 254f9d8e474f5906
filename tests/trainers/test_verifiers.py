"""verifiers' own dialect, graph and types, on turns of pipegen: a branch holds the ids that were
sampled.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("verifiers")

from openai import AsyncOpenAI
from verifiers.v1.clients import Client, ModelContext, TrainClientConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.dialects.responses import ResponsesDialect
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import prepare_turn
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import Trace
from verifiers.v1.types import SamplingConfig

import pipegen as pg
from pipegen.contrib.verifiers import PipegenClient
from pipegen.testing.fake import FakeEngine

pytestmark = pytest.mark.filterwarnings("default")  # verifiers' own

PRICE = {
    "name": "price",
    "description": "What an item costs.",
    "parameters": {
        "type": "object",
        "properties": {"item": {"type": "string"}},
        "required": ["item"],
    },
}
ADD = {
    "name": "add",
    "description": "The sum of two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
TOOLS = [{"type": "function", "function": tool} for tool in (PRICE, ADD)]
COST = {"role": "user", "content": "What do the lamp and the chair cost?"}
ANSWERS = {"price": {"lamp": "12", "chair": "30"}}


class Program:
    """What a harness does: it sends chat completions, and what it gets goes into a trace."""

    def __init__(self, client: Any, session: str = "one", **settings: Any) -> None:
        self.client, self.session, self.settings = client, session, settings
        self.trace: Any = Trace.model_construct()
        self.responses: list[Any] = []

    def ask(self, messages: list[Any], **fields: Any) -> Any:
        dialect = ChatDialect()
        body = {"model": "m", "messages": messages, **self.settings, **fields}
        request = dialect.parse_request(body)
        turn = prepare_turn(self.trace, request.messages, request.tools)
        response = asyncio.run(
            self.client.get_response(
                dialect, body, SamplingConfig(), session_id=self.session, turn=turn
            )
        )
        turn.commit(response)
        self.responses.append(response)
        return response.raw["choices"][0]["message"]


def called(message: Any) -> list[Any]:
    """The answers of tools to what a message calls."""
    answers = []
    for call in message["tool_calls"]:
        given = json.loads(call["function"]["arguments"])
        content = (
            ANSWERS["price"][given["item"]]
            if call["function"]["name"] == "price"
            else str(given["a"] + given["b"])
        )
        answers.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return answers


def test_a_branch_has_the_ids_that_were_sampled() -> None:
    with pg.backends.hf("embedded") as route:
        client = PipegenClient(route)
        assert isinstance(client, Client)
        program = Program(client, tools=TOOLS, temperature=1.0, max_tokens=96, stream=True, seed=1)
        messages: list[Any] = [COST]
        while True:
            answer = program.ask(messages)
            messages.append(answer)
            if not answer.get("tool_calls"):
                break
            messages += called(answer)
    assert len(program.responses) == 3
    assert [one.finish_reason for one in program.responses] == ["tool_calls", "tool_calls", "stop"]
    (branch,) = program.trace.branches
    last = program.responses[-1].tokens
    assert branch.token_ids == last.prompt_ids + last.completion_ids
    sampled = [one for one, own in zip(branch.token_ids, branch.sampled_mask, strict=True) if own]
    assert sampled == [one for each in program.responses for one in each.tokens.completion_ids]
    for response in program.responses:
        assert len(response.tokens.completion_logprobs) == len(response.tokens.completion_ids)


def test_sessions_do_not_see_each_other_and_the_oldest_are_forgotten() -> None:
    client = PipegenClient(pg.route(FakeEngine("Four.<|im_end|>")), conversations=2)
    programs = [Program(client, session=str(number)) for number in range(3)]
    answers = [program.ask([COST]) for program in programs]
    again = {"role": "user", "content": "Sure?"}
    branches = []
    for program, answer in zip(reversed(programs), reversed(answers), strict=True):
        program.ask([COST, answer, again])
        branches.append(len(program.trace.branches))
    # the template drops thoughts, so what is rendered anew is another branch
    assert branches == [1, 1, 2]


def test_an_answer_that_the_program_changed_is_rendered_anew() -> None:
    program = Program(PipegenClient(pg.route(FakeEngine("Four.<|im_end|>"))))
    program.ask([COST])
    program.ask([COST, {"role": "assistant", "content": "Five."}, COST])
    ids = program.responses[1].tokens.prompt_ids
    assert "Five." in bytes(one for one in ids if one < 256).decode()
    assert len(program.trace.branches) == 2


@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 3}])
def test_log_probabilities_of_another_distribution_are_left_out(settings: Any) -> None:
    with pg.backends.hf("embedded") as route:
        program = Program(PipegenClient(route), max_tokens=4, **settings)
        program.ask([COST])
    (response,) = program.responses
    assert response.finish_reason == "length"
    assert len(response.tokens.completion_ids) == 4
    assert response.tokens.completion_logprobs == []


@pytest.mark.parametrize(
    ("script", "fields", "status", "words"),
    [
        ("Yes", {"best_of": 3}, 400, "body.best_of=3 is not supported"),
        ("Yes", {"max_tokns": 3}, 400, "did you mean 'max_tokens'"),
        (lambda row: pg.Timeout(3.0), {}, 503, "hint"),
        (lambda row: pg.PromptTooLong(9, 4), {}, 400, "the prompt has 9 tokens"),
    ],
)
def test_a_request_that_fails_says_whether_to_try_again(
    script: Any, fields: Any, status: int, words: str
) -> None:
    program = Program(PipegenClient(pg.route(FakeEngine(script))))
    with pytest.raises(ProviderError, match=words) as raised:
        program.ask([COST], **fields)
    assert raised.value.status_code == status
    assert program.trace.nodes == []


def test_other_dialects_are_refused() -> None:
    client: Any = PipegenClient(pg.route(FakeEngine("Yes")))
    with pytest.raises(ProviderError, match="not ResponsesDialect"):
        asyncio.run(client.get_response(ResponsesDialect(), {}, SamplingConfig()))


def test_a_program_behind_the_interception_server_gets_these_turns() -> None:
    """Over HTTP, with OpenAI's client, as a harness asks; the last turn as a stream."""
    config = TrainClientConfig(api_key_var="NONE")
    client = PipegenClient(pg.route(FakeEngine("Four.<|im_end|>")))
    trace: Any = Trace.model_construct()

    async def talk() -> tuple[str, str]:
        async with InterceptionServer() as server:
            server.clients[config.model_dump_json()] = client
            session = RolloutSession(ModelContext("m", config), trace)
            secret, _ = server.register(session)
            async with AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=secret) as program:
                create: Any = program.chat.completions.create
                first = await create(model="m", messages=[COST])
                answer = first.choices[0].message.model_dump(exclude_none=True)
                later = [COST, answer, {"role": "user", "content": "Sure?"}]
                parts = await create(model="m", messages=later, stream=True)
                text = "".join([part.choices[0].delta.content or "" async for part in parts])
                return answer["content"], text

    assert asyncio.run(talk()) == ("Four.", "Four.")
    (branch,) = trace.branches
    assert sum(branch.sampled_mask) == 2 * len("Four.") + 2
