"""Record what real servers answer, for the tests of the wire records: one JSON file for each case,
in tests/backends/servers/recorded/ENGINE/.

    python tests/servers/record.py vllm|sglang

starts that server with the embedded model (see launch.py for which python it uses). A file holds
the request and the answer: `status`, `kind` (the content type) and `body`, parsed where it is JSON,
else as it came. Folders are written as /models/embedded and /environment; ids and times are those
of the recording.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch import BY_IDS, PYTHONS, Answer, ask, server
from transformers import AutoTokenizer

from pipegen import embedded
from pipegen.testing.image_files import image_file

FOLDER = Path(__file__).parents[1] / "backends" / "servers" / "recorded"
CONTEXT = 4096
"""Tokens that the embedded model takes."""
Case = tuple[str, str, Any]
"""A name, a path, and a body (None for GET)."""

TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count things",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "count"}}
BLUE = "data:image/png;base64," + base64.b64encode(image_file(width=64, height=64)).decode()
tokenizer = AutoTokenizer.from_pretrained(embedded.path())


def ids(text: str, *, image_file: bool = False) -> list[int]:
    """The ids of one user turn as the embedded model is asked it, with one placeholder for an
    image.
    """
    before = "<|vision_start|><|image_pad|><|vision_end|>" if image_file else ""
    whole = f"<|im_start|>user\n{before}{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return list(tokenizer(whole, add_special_tokens=False)["input_ids"])


HI = ids("List the months of the year.")
LOOK = ids("What do you see?", image_file=True)
LONG = [HI[-1]] * (CONTEXT + 44)
SEEN = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": BLUE}},
            {"type": "text", "text": "What do you see?"},
        ],
    }
]
SAID = [{"role": "user", "content": "List the months of the year."}]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
ON = {"chat_template_kwargs": {"enable_thinking": True}}


def chats(name: str) -> Iterator[Case]:
    """Chat completions, the same for both engines."""
    path = "/v1/chat/completions"
    base = {"model": name, "messages": SAID, "max_tokens": 12, "temperature": 0, **OFF}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    yield "chat", path, base
    yield "chat_stream", path, {**base, **stream}
    yield "chat_stop_string", path, {**base, "stop": ["ch"]}
    yield (
        "chat_stop_token",
        path,
        {**base, "stop_token_ids": [tokenizer.convert_tokens_to_ids(",")]},
    )
    yield "chat_logprobs", path, {**base, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    yield (
        "chat_logprobs_stream",
        path,
        {**base, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, **stream},
    )
    yield "chat_two", path, {**base, "max_tokens": 4, "n": 2, "temperature": 1.0, "seed": 3}
    yield (
        "chat_token_ids",
        path,
        {**base, "return_token_ids": True, "return_prompt_token_ids": True},
    )
    yield "chat_image", path, {**base, "messages": SEEN}
    yield "chat_reasoning", path, {**base, **ON, "max_tokens": 40}
    yield "chat_reasoning_stream", path, {**base, **ON, "max_tokens": 40, **stream}
    yield "chat_tool", path, {**base, "tools": [TOOL], "tool_choice": FORCED, "max_tokens": 24}
    yield (
        "chat_tool_stream",
        path,
        {**base, "tools": [TOOL], "tool_choice": FORCED, "max_tokens": 24, **stream},
    )
    yield (
        "chat_tool_required",
        path,
        {**base, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
    )
    yield "chat_tools_auto", path, {**base, "tools": [TOOL]}
    yield (
        "chat_too_long",
        path,
        {**base, "messages": [{"role": "user", "content": "months " * CONTEXT}]},
    )
    yield (
        "chat_too_long_stream",
        path,
        {**base, "messages": [{"role": "user", "content": "months " * CONTEXT}], **stream},
    )
    yield "chat_does_not_fit", path, {**base, "max_tokens": CONTEXT}
    yield "chat_wrong_model", path, {**base, "model": "nobody"}
    yield "chat_no_messages", path, {**base, "messages": []}
    yield "chat_bad_temperature", path, {**base, "temperature": -1}
    yield (
        "chat_bad_image",
        path,
        {
            **base,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": BLUE[:60]}}],
                }
            ],
        },
    )


def vllm(name: str) -> Iterator[Case]:
    """What vLLM's own endpoints answer."""
    path = "/inference/v1/generate"
    greedy = {"max_tokens": 8, "temperature": 0}

    def generate(token_ids: list[int], sampling: Any = None, **more: Any) -> Any:
        return {
            "model": name,
            "token_ids": token_ids,
            "sampling_params": {**greedy, **(sampling or {})},
            **more,
        }

    part = {"type": "image_url", "url": BLUE}
    for asked in ("/version", "/v1/models", "/health"):
        yield asked.rpartition("/")[2], asked, None
    yield "tokenize", "/tokenize", {"model": name, "messages": SAID}
    yield "generate", path, generate(HI)
    yield "generate_prompt_ids", path, generate(HI, return_token_ids=True)
    yield (
        "generate_stop_token",
        path,
        generate(HI, {"stop_token_ids": [HI[-1], tokenizer.convert_tokens_to_ids(",")]}),
    )
    yield (
        "generate_stop_string",
        path,
        generate(HI, {"stop": ["ar"], "include_stop_str_in_output": True}),
    )
    yield "generate_eos", path, generate(HI, {"max_tokens": 200})
    yield "generate_logprobs", path, generate(HI, {"max_tokens": 3, "logprobs": 2})
    yield "generate_logprobs_none_on_top", path, generate(HI, {"max_tokens": 3, "logprobs": 0})
    yield "generate_stream", path, generate(HI, stream=True, stream_options={"include_usage": True})
    yield (
        "generate_logprobs_stream",
        path,
        generate(HI, {"max_tokens": 3, "logprobs": 2}, stream=True),
    )
    yield "generate_two", path, generate(HI, {"n": 2, "temperature": 1.0, "seed": 3})
    yield "generate_text", path, generate(HI, output_mode="text")
    yield "generate_image", path, generate(LOOK, content_parts=[part], return_token_ids=True)
    yield (
        "generate_image_stream",
        path,
        generate(LOOK, content_parts=[part], stream=True, return_token_ids=True),
    )
    yield (
        "generate_bad_image",
        path,
        generate(LOOK, content_parts=[{"type": "image_url", "url": BLUE[:60]}]),
    )
    yield "generate_image_without_placeholder", path, generate(HI, content_parts=[part])
    yield "generate_too_long", path, generate(LONG)
    yield "generate_too_long_stream", path, generate(LONG, stream=True)
    yield "generate_no_room", path, generate(LONG[:CONTEXT])
    yield "generate_clipped", path, generate(LONG[: CONTEXT - 3])
    yield "generate_bad_id", path, generate([1, 999_999])
    yield "generate_negative_id", path, generate([1, -5])
    yield "generate_empty", path, generate([])
    yield "generate_wrong_model", path, {**generate(HI), "model": "nobody"}
    yield "generate_bad_temperature", path, generate(HI, {"temperature": -1})
    yield "generate_no_sampling", path, {"model": name, "token_ids": HI, "sampling_params": None}
    yield (
        "completions",
        "/v1/completions",
        {"model": name, "prompt": HI, "return_token_ids": True, **greedy},
    )
    yield (
        "completions_logprobs",
        "/v1/completions",
        {"model": name, "prompt": HI, "return_token_ids": True, "logprobs": 2, **greedy},
    )
    yield (
        "completions_stream",
        "/v1/completions",
        {"model": name, "prompt": HI, "return_token_ids": True, "stream": True, **greedy},
    )
    yield "completions_too_long", "/v1/completions", {"model": name, "prompt": LONG, **greedy}
    yield "not_there", "/v1/nothing", {"model": name}


def sglang(name: str) -> Iterator[Case]:
    """What SGLang's own endpoints answer. Nothing that ends this version: an empty text, ids
    outside the vocabulary.
    """
    path = "/generate"
    greedy = {"max_new_tokens": 8, "temperature": 0}

    def generate(token_ids: Any, sampling: Any = None, **more: Any) -> Any:
        return {"input_ids": token_ids, "sampling_params": {**greedy, **(sampling or {})}, **more}

    logprobs = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2}
    for asked in ("/model_info", "/v1/models", "/health"):
        yield asked.rpartition("/")[2], asked, None
    yield "tokenize", "/tokenize", {"model": name, "prompt": "List the months."}
    yield "generate", path, generate(HI)
    yield "generate_prompt_ids", path, generate(HI, return_prompt_token_ids=True)
    yield (
        "generate_stop_token",
        path,
        generate(HI, {"stop_token_ids": [HI[-1], tokenizer.convert_tokens_to_ids(",")]}),
    )
    yield "generate_stop_string", path, generate(HI, {"stop": ["ar"], "no_stop_trim": True})
    yield "generate_eos", path, generate(HI, {"max_new_tokens": 200})
    yield "generate_logprobs", path, generate(HI, {"max_new_tokens": 3}, **logprobs)
    yield (
        "generate_logprobs_none_on_top",
        path,
        generate(HI, {"max_new_tokens": 3}, return_logprob=True, logprob_start_len=-1),
    )
    yield "generate_stream", path, generate(HI, stream=True)
    yield (
        "generate_logprobs_stream",
        path,
        generate(HI, {"max_new_tokens": 3}, stream=True, **logprobs),
    )
    yield "generate_two", path, generate(HI, {"n": 2, "temperature": 1.0})
    yield "generate_batch", path, generate([HI, HI[:9]])
    yield "generate_image", path, generate(LOOK, image_data=[BLUE], return_prompt_token_ids=True)
    yield "generate_image_stream", path, generate(LOOK, image_data=[BLUE], stream=True)
    yield "generate_bad_image", path, generate(LOOK, image_data=[BLUE[:60]])
    yield "generate_too_many_placeholders", path, generate(LOOK + LOOK, image_data=[BLUE])
    yield "generate_too_long", path, generate(LONG)
    yield "generate_too_long_stream", path, generate(LONG, stream=True)
    yield "generate_does_not_fit", path, generate(LONG[: CONTEXT - 3])
    yield "generate_beyond_the_margin", path, generate(LONG[: CONTEXT - 6], {"max_new_tokens": 2})
    yield "generate_clipped", path, generate(LONG[: CONTEXT - 8])
    yield "generate_empty", path, generate([])
    yield "generate_bad_temperature", path, generate(HI, {"temperature": -1})
    yield "generate_unknown_option", path, generate(HI, {"max_tokens": 5})
    yield "generate_wrong_type", path, generate(HI, {"max_new_tokens": "x"})
    yield "generate_malformed", path, {"input_ids": "x", "sampling_params": 3}
    yield (
        "generate_too_many_stops",
        path,
        generate(HI, {"stop": [str(number) for number in range(33)]}),
    )
    yield "abort_of_nobody", "/abort_request", {"rid": "nobody"}
    yield "not_there", "/v1/nothing", {"model": name}


def aborted(url: str, *, stream: bool) -> tuple[Case, Answer]:
    """A long request to SGLang, and its answer once another request has ended it."""
    rid = "long-one"
    body = {
        "input_ids": HI,
        "rid": rid,
        "stream": stream,
        "sampling_params": {"max_new_tokens": 3000, "temperature": 0, "ignore_eos": True},
    }
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(url + "/generate", body)))
    waiting.start()
    while waiting.is_alive():
        ask(url + "/abort_request", {"rid": rid})
        waiting.join(timeout=1.0)
    return ("abort_stream" if stream else "abort", "/generate", body), answers[0]


def write(engine: str, url: str, case: Case, answer: Answer) -> None:
    """Write one case."""
    name, path, body = case
    text = answer.text.replace(url, "http://127.0.0.1:8000")
    for folder, written in (
        (embedded.path(), "/models/embedded"),
        (Path(os.environ[PYTHONS[engine]]).parents[1], "/environment"),
    ):
        text = text.replace(str(folder), written)
    said = json.loads(text) if answer.kind == "application/json" and text else text
    whole = {
        "request": {"path": path, "body": body},
        "status": answer.status,
        "kind": answer.kind,
        "body": said,
    }
    file = FOLDER / engine / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    # On few lines, but the ids of a prompt that is too long.
    file.write_text(
        json.dumps(shortened(whole), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{name:40} {answer.status} {text[:150]!r}", flush=True)


def shortened(value: Any) -> Any:
    """The same, with the long repetitions of a request written as what they are."""
    if isinstance(value, dict):
        return {name: shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        return (
            [f"{len(value)} times {value[0]}"]
            if len(value) > 1000
            else [shortened(part) for part in value]
        )
    return (
        value[:40] + f"... ({len(value)} characters)"
        if isinstance(value, str) and "months months" in value
        else value
    )


def record(engine: str) -> None:
    """Ask everything, and write it."""
    own = {"vllm": vllm, "sglang": sglang}[engine]
    with server(
        engine, str(embedded.path()), embedded.NAME, *(BY_IDS if engine == "vllm" else ())
    ) as url:
        for case in (*own(embedded.NAME), *chats(embedded.NAME)):
            write(engine, url, case, ask(url + case[1], case[2]))
        if engine == "sglang":
            for stream in (False, True):
                write(engine, url, *aborted(url, stream=stream))


if __name__ == "__main__":
    record(sys.argv[1])
