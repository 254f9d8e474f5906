"""Keys of chat files that are nearly right, or have another program's name: what to write."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.config import chat_from

BACKEND: dict[str, Any] = {"type": "vllm", "model": "m"}


@pytest.mark.parametrize("kind", ["vllm", "hf", "sglang", "openai", "vllm_server"])
@pytest.mark.parametrize("name", ["base_ulr", "baseurl", "bas_url"])
def test_a_misspelt_address_is_told_its_name(kind: str, name: str) -> None:
    with pytest.raises(pg.UnknownField, match="'base_url'"):
        chat_from({"backend": {"type": kind, "model": "m", name: "http://localhost:1"}})


def test_a_key_of_a_backend_beside_it_is_told_its_place() -> None:
    for name, near in (("base_ulr", "base_url"), ("temperature", "temperature")):
        with pytest.raises(
            pg.UnknownField, match=f"did you mean '{near}', which goes into backend"
        ):
            chat_from({name: "x", "backend": BACKEND})


@pytest.mark.parametrize("name", ["system_prompt", "system"])
def test_other_names_of_the_system_message_are_told_its_own(name: str) -> None:
    agent = {"id": "a", name: "Be brief.", "backend": BACKEND}
    for values in (agent, {"agents": [agent]}, {"agent": agent}):
        with pytest.raises(pg.UnknownField, match="did you mean 'system_message'"):
            chat_from(values)


@pytest.mark.parametrize("kind", ["vllm", "hf", "openai"])
def test_a_system_message_in_the_backend_is_told_its_place(kind: str) -> None:
    with pytest.raises(pg.UnknownField, match="system_message, beside backend, is the system"):
        chat_from({"backend": {"type": kind, "model": "m", "system_prompt": "Be brief."}})


NEAR = {
    "top-k": "top_k",
    "topK": "top_k",
    "Top_P": "top_p",
    "maxTokens": "max_tokens",
    "max-in-flight": "max_in_flight",
    "batchsize": "batch_size",
    "batch-size": "batch_size",
    "stop_words": "stop",
    "stopWords": "stop",
    "stop_sequences": "stop",
    "max_output_tokens": "max_new_tokens",
    "temp": "temperature",
    "num_return_sequences": "samples",
    "api_base": "base_url",
    "max_retries": "retries",
    "default_headers": "headers",
    "rpm": "requests_per_minute",
}
"""Keys that are another spelling, or another program's word, for one that there is."""


@pytest.mark.parametrize("kind", ["openai", "sglang", "vllm_server"])
@pytest.mark.parametrize("name", NEAR)
def test_a_key_that_is_written_otherwise_is_refused_with_the_right_one(
    kind: str, name: str
) -> None:
    backend = {"type": kind, "model": "m", "base_url": "http://localhost:1", name: 1}
    with pytest.raises(pg.UnknownField, match=f"{name}: .* did you mean '{NEAR[name]}'"):
        chat_from({"backend": backend})


@pytest.mark.parametrize("kind", ["openai", "vllm", "hf"])
@pytest.mark.parametrize("name", ["system_mesage", "systemMessage", "sys_promt", "instructions"])
def test_a_misspelt_system_message_in_the_backend_is_told_its_place(kind: str, name: str) -> None:
    with pytest.raises(pg.UnknownField, match="system_message, beside backend, is the system"):
        chat_from({"backend": {"type": kind, "model": "m", name: "Be brief."}})


@pytest.mark.parametrize(
    "name", ["response_format", "function_call", "functions", "random_seed", "user"]
)
def test_a_field_of_servers_that_another_program_names_so_is_passed_on(name: str) -> None:
    backend = {"type": "openai", "model": "m", "base_url": "http://localhost:1", name: {"a": 1}}
    assert chat_from({"backend": backend}).agents[0].backend.settings.extra_body == {name: {"a": 1}}


WITHIN: dict[str, Any] = {
    "options": {"num_ctx": 4096, "temperature": 0.1},
    "sampling_params": {"max_tokens": 5},
    "parameters": {"top_p": 0.5},
}


@pytest.mark.parametrize("kind", ["openai", "vllm", "vllm_server", "hf"])
@pytest.mark.parametrize("name", WITHIN)
def test_options_within_another_key_are_told_their_place(kind: str, name: str) -> None:
    backend = {"type": kind, "model": "m", name: WITHIN[name]}
    *_, option = WITHIN[name]
    with pytest.raises(
        pg.UnknownField, match=f"{name}: {option} is a key beside type and model"
    ) as raised:
        chat_from({"backend": backend})
    assert ("extra_body" in str(raised.value)) == (kind in ("openai", "vllm_server"))


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        {"structured_outputs": {"regex": "a"}},
        {"mm_processor_kwargs": {"max_pixels": 100_352, "fps": 2}},
        {"extra_body": {"nvext": {"top_k": 3}}},
    ],
)
def test_fields_of_servers_that_hold_such_names_are_passed_on(field: Any) -> None:
    backend = {"type": "vllm", "base_url": None, "model": "m", **field}
    sent = chat_from({"backend": backend}).agents[0].backend.settings.extra_body
    assert sent == field.get("extra_body", field)
