"""What real servers give is what the Hugging Face engine gives in this process, for hundreds of
seeded greedy requests in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.edits import disagreements
from support.small_tokenizers import longer_without_space
from support.thinking import thinking_requests

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.testing.ask import chat, greedy
from pipegen.testing.parity import chat_requests, mixed_requests, report

REQUESTS = {"embedded": 80, "text": 60}
SERVERS = [f"{engine}-{model}" for engine in ("vllm", "sglang") for model in REQUESTS]
SEES = ("embedded",)


@pytest.fixture(scope="session")
def wanted(hf_of: Callable[[str], pg.Route]) -> Callable[..., Any]:
    """What the Hugging Face engine answers to these requests of that model; asked once."""
    return functools.cache(lambda model, requests: pg.run(hf_of(model), requests))


def as_taken(request: Any, engine: str) -> Any:
    """The request without what that server would do otherwise, which is refused by name: see the
    test of that.
    """
    options = request.options
    if engine == "sglang":
        options = dataclasses.replace(options, repetition_penalty=1.0)
    if options.stop.ignore_eos:
        options = dataclasses.replace(options, min_new_tokens=0)
    return dataclasses.replace(request, options=options)


def line(served: Any, way: str, requests: int, equal: int, words: str = "") -> str:
    """A line of the table."""
    return f"| {served.engine} | {served.model} | {way} | {requests} | {equal} | {words} |"


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_thoughts_and_the_forms_after_them_are_equal(
    served: Any, wanted: Callable[..., Any]
) -> None:
    requests = tuple(as_taken(request, served.engine) for request in thinking_requests(24))
    with served.opened() as route:
        found = pg.run(route, requests)
    for request, here, there in zip(requests, wanted("embedded", requests), found, strict=True):
        one, other = here.unwrap(), there.unwrap()
        names = ["text", "reasoning", "raw_text", "finish", "stop"]
        # of a text that the form leaves no choice in, llguidance allows the tokenizer's own tokens
        # alone, and xgrammar any that spell it
        names += [] if request.options.structured else ["token_ids", "forced"]
        for name in names:
            assert getattr(one, name) == getattr(other, name), (request.options, name)


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_by_token_ids_everything_is_equal(
    served: Any, wanted: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    made = mixed_requests(served.model, REQUESTS[served.model], images=served.model in SEES)
    requests = tuple(as_taken(request, served.engine) for request in made)
    theirs = wanted(served.model, requests)
    with served.opened() as route:
        found = pg.run(route, requests)
    counts, parted, words = report(requests, theirs, found)
    record_property("table", line(served, "token ids", **counts, words=words))
    assert [(one.id, one.difference) for one in parted] == []
    assert sum(not is_ok(slot) for slot in theirs) < len(requests) / 4


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_an_early_exit_of_a_real_server_changes_nothing_in_an_edited_route(served: Any) -> None:
    for open_route in (served.opened, served.chat):
        with open_route() as route:
            assert disagreements(route) == []


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
def test_what_a_server_would_do_otherwise_is_refused_by_name(served: Any) -> None:
    """Both hold the end token back for the first tokens even where it is ignored; SGLang's
    repetition penalty leaves out the prompt; a vLLM server bars a word with a space before it only
    where that has as many tokens as the word alone.
    """
    with served.opened() as route:
        word, token = longer_without_space(route.engine.tokenizer)
        held, penalised, barred, biased = pg.run(
            route,
            [
                chat(
                    "Hi",
                    greedy(
                        min_new_tokens=1, stop=pg.StopOptions(ignore_eos=True, stop_token_ids=(5,))
                    ),
                ),
                chat("Hi", greedy(repetition_penalty=1.3)),
                chat("Hi", greedy(bad_words=[word])),
                chat("Hi", greedy(logit_bias={token: 100})),
            ],
        )
    assert held.failure().option == "min_new_tokens"
    assert barred.failure().option == "bad_words"
    assert {*biased.unwrap().token_ids} == {token}
    assert (
        is_ok(penalised)
        if served.engine == "vllm"
        else penalised.failure().option == "repetition_penalty"
    )


@pytest.mark.parametrize("served", SERVERS, indirect=True)
def test_by_chat_the_texts_are_equal(
    served: Any, wanted: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    requests = tuple(
        chat_requests(
            served.model,
            REQUESTS[served.model],
            pg.GenerationOptions(),
            images=served.model in SEES,
        )
    )
    theirs = wanted(served.model, requests)
    with served.chat() as route:
        found = pg.run(route, requests)
    # vLLM's parsers leave control tokens that are sampled in the text
    controls = json.loads(Path(served.folder, "tokenizer.json").read_text("utf-8"))["added_tokens"]
    special = "|".join(re.escape(token["content"]) for token in controls if token["special"])
    texts = [
        (
            one.unwrap().text,
            re.sub(special, "", two.unwrap().text) if is_ok(two) else two.failure(),
        )
        for one, two in zip(theirs, found, strict=True)
    ]
    parted = [
        (request.id, *pair)
        for request, pair in zip(requests, texts, strict=True)
        if pair[0] != pair[1]
    ]
    equal = len(requests) - len(parted)
    record_property("table", line(served, "chat (text)", len(requests), equal))
    assert parted == []
