"""A chat server gets the messages of a conversation, and its result says that no ids were kept."""

from __future__ import annotations

import pytest

pytest.importorskip("aiohttp")

from pipegen.backends.servers.chat_engine import result_of
from pipegen.backends.servers.image_urls import messages_of
from pipegen.records.continues import Continues
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import ChatOutput, Finish, GenerationResult, ResolvedRequest


def answered(request: TextGenerationRequest) -> GenerationResult:
    job = ResolvedRequest(request=request, options=resolve())
    output = ChatOutput(resolved=job, text="Yes.", raw_text="Yes.", finish=Finish.EOS, usage={})
    return result_of(output, "openai_chat", ()).unwrap()


def test_the_turns_go_as_messages_and_the_result_is_not_exact() -> None:
    first = answered(TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}]))
    request = first.then("And?")
    assert isinstance(request, TextGenerationRequest)
    second = answered(request)
    assert (first.exact, second.exact) == (None, False)
    sent = messages_of(request).unwrap()
    assert [message["content"] for message in sent] == ["Hi", "Yes.", "And?"]
    assert request.continues == Continues(messages=2)
    assert [message.content for message in second.then("Why?").messages or ()][-2:] == [
        "Yes.",
        "Why?",
    ]
