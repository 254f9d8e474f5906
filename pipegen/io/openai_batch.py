"""The format of OpenAI batch files, as `vllm run-batch` reads and writes it: requests with a
`custom_id` and a `body`, answers with a `response`.

>>> values = {
...     "custom_id": "a",
...     "method": "POST",
...     "url": "/v1/chat/completions",
...     "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
... }
>>> is_batch(values), request_from_batch(values, "line 1").unwrap().options.max_new_tokens
(True, 5)
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from returns.result import Failure

from pipegen.core import errors
from pipegen.core.errors import (
    BackendFailed,
    GenerationError,
    InternalError,
    InvalidRequest,
    RateLimited,
    Timeout,
)
from pipegen.core.names import CLOSE, InvalidField, nearest
from pipegen.core.slots import Slot, is_ok
from pipegen.records.answer_parts import whole_number
from pipegen.records.codec import error_from, error_to_plain
from pipegen.records.option_table import SERVER_NAMES
from pipegen.records.options import in_our_words, option_names
from pipegen.records.parse_request import request_from
from pipegen.records.request_forms import refused
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Finish, GenerationResult, TokenLogprob

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ENDPOINTS = {
    url.removeprefix(prefix): url for url in (CHAT, COMPLETIONS) for prefix in ("", "/v1")
}
"""The endpoints by their urls, of which Azure writes the rest behind the version."""
_RENAMED: Mapping[str, str] = {
    **SERVER_NAMES,
    "chat_template": "template",
    "response_format": "json_schema",
}
_SETTLED: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            "stream",
            "echo",
            "include_stop_str_in_output",
            "use_beam_search",
            "return_token_ids",
            "add_special_tokens",
        ),
        False,
    ),
    **dict.fromkeys(("parallel_tool_calls", "include_reasoning"), True),
    "best_of": 1,
    "length_penalty": 1,
    "modalities": ["text"],
}
"""Fields that are accepted only with the value that a server uses by default."""
_NOTES = (
    *("model", "user", "metadata", "store", "safety_identifier", "service_tier"),
    *("request_id", "priority", "cache_salt", "prompt_cache_key"),
)
"""Fields that do not affect what is generated. The run chooses the model."""
_TEXT = {"type": "text"}
_FORMS: Mapping[str, str] = {
    "json": "json_schema",
    "json_schema": "json_schema",
    "regex": "regex",
    "choice": "choice",
}
"""The keys of vLLM's `structured_outputs`, and the options that they set."""


def is_batch(values: Mapping[str, object]) -> bool:
    """Whether a line is a request of a batch file."""
    return "custom_id" in values and "body" in values


def endpoint_of(values: Mapping[str, object]) -> str | None:
    """The endpoint that a line is for, or None where its url is another. A line without a url, as
    Mistral and Fireworks take them, is one of a chat.

    >>> endpoint_of({"url": "/chat/completions"}), endpoint_of({"url": "/v1/embeddings"})
    ('/v1/chat/completions', None)
    """
    url = values.get("url", CHAT)
    return _ENDPOINTS.get(url) if isinstance(url, str) else None


def request_from_batch(values: Mapping[str, object], where: str) -> Slot[GenerationRequest]:
    """The request of a line of a batch file, or `InvalidRequest`, whose message begins with
    `where`.

    >>> request_from_batch(
    ...     {"custom_id": "a", "url": "/v1/embeddings", "body": {}}, "line 1"
    ... ).failure().message
    "line 1: url takes '/v1/chat/completions' or '/v1/completions', not '/v1/embeddings'"
    """
    unknown = next(
        (name for name in values if name not in ("custom_id", "method", "url", "body")), None
    )
    if unknown is not None:
        return _refused(
            f"{where}: there is no field {unknown!r} in a batch file's"
            f" line{nearest(unknown, ('custom_id', 'method', 'url', 'body'))}"
        )
    name, body, url = values["custom_id"], values["body"], endpoint_of(values)
    if (
        not isinstance(name, str)
        or not name
        or not isinstance(body, Mapping)
        or values.get("method", "POST") != "POST"
    ):
        return _refused(
            f"{where}: takes a custom_id that is not empty, a body that is an object, and the"
            " method POST"
        )
    if url is None:
        return _refused(
            f"{where}: url takes {CHAT!r} or {COMPLETIONS!r}, not {values['url']!r:.200}"
        )
    fields = {
        field: value for field, value in body.items() if value is not None and field not in _NOTES
    }
    for field, neutral in _SETTLED.items():
        if field in fields and fields.pop(field) != neutral:
            return _refused(f"{where}: body.{field}={body[field]!r:.80} is not supported here")
    request: dict[str, object] = {"id": name}
    for field in ("messages", "tools") if url == CHAT else ("prompt",):
        if field in fields:
            request[field] = fields.pop(field)
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        request["prompt"] = prompt[0]  # a list of prompts that has one
    elif isinstance(prompt, list) and any(isinstance(entry, (str, list)) for entry in prompt):
        return _refused(f"{where}: body.prompt takes one prompt, not {len(prompt)}")
    if isinstance(request.get("prompt"), list):
        request["prompt_token_ids"] = request.pop("prompt")
    forms = fields.pop("structured_outputs", {})
    if not isinstance(forms, Mapping) or not set(forms) <= set(_FORMS):
        return _refused(
            f"{where}: body.structured_outputs takes one of {', '.join(_FORMS)} here, not"
            f" {forms!r:.80}"
        )
    fields |= {_FORMS[name]: value for name, value in forms.items() if value is not None}
    form = fields.pop("response_format", _TEXT)
    schema = _schema_of(form)
    if schema is not None:
        fields["response_format"] = schema
    elif form != _TEXT:
        return _refused(
            f"{where}: body.response_format takes the type 'text', 'json_object' or 'json_schema'"
            f" here, the last with its schema, not {form!r:.80}"
        )
    choice = _forced(fields.pop("tool_choice", "auto"), request.get("tools"))
    if choice is not None:
        fields["tool_choice"] = choice
    options, refusal = _options(fields, where, chat=url == CHAT)
    return _refused(refusal) if refusal else request_from({**request, "options": options}, where)


def _refused(message: str) -> Slot[GenerationRequest]:
    return Failure(InvalidRequest(message))


def _schema_of(form: object) -> object:
    """The schema that a `response_format` asks for; None where it asks for another form."""
    form = form if isinstance(form, Mapping) else {}
    if form.get("type") == "json_object":
        return {"type": "object"}
    named = form.get("json_schema") if form.get("type") == "json_schema" else None
    return named.get("schema") if isinstance(named, Mapping) else None


def _forced(choice: object, tools: object) -> object:
    """The option for a `tool_choice`; None where it asks for what holds without it."""
    if choice == "auto" or (choice == "none" and not tools):
        return None
    named = choice.get("function") if isinstance(choice, Mapping) else None
    return (named.get("name") if isinstance(named, Mapping) else None) or choice


def _options(
    fields: Mapping[str, object], where: str, *, chat: bool
) -> tuple[dict[str, object], str]:
    """The options of a body, under pipegen's names, and why they are rejected, if they are."""
    options: dict[str, object] = {}
    for field, value in fields.items():
        name = _RENAMED.get(field, field)
        if name not in option_names():
            known = (refused(field) or "").replace("into options", "into the body")
            names = (*_RENAMED, *option_names())
            hint = nearest(field, names, CLOSE) or known or nearest(field, names)
            return {}, f"{where}: body.{field} is not supported here{hint}"
        if name in options and options[name] != value:
            return {}, f"{where}: body.{field} contradicts another name of {name}"
        options[name] = in_our_words(name, value)
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    if not chat and "logprobs" in options:  # a completion's `logprobs` is the number of top tokens
        options |= {"logprobs": True, "top_logprobs": options["logprobs"]}
    variables = options.get("template_kwargs")
    if isinstance(variables, Mapping) and variables.get("enable_thinking") is not None:
        options["enable_thinking"] = variables["enable_thinking"]
        options["template_kwargs"] = {
            name: value for name, value in variables.items() if name != "enable_thinking"
        }
    return options, ""


def batch_line(
    slot: Slot[GenerationResult],
    custom_id: str,
    model: str,
    url: str = CHAT,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """The output line for a line of a batch file, as `vllm run-batch` writes it: a response, or a
    status and an error.

    >>> from pipegen.core.errors import PromptTooLong
    >>> line = batch_line(Failure(PromptTooLong(10, 4)), "a", "m")
    >>> line["response"]["status_code"], line["error"]["code"], line["error"]["error"]["type"]
    (400, 'PromptTooLong', 'PromptTooLong')
    """
    name = hashlib.sha256(custom_id.encode()).hexdigest()[:24]
    line: dict[str, object] = {"id": f"pipegen-{name}", "custom_id": custom_id}
    response = {"status_code": 200, "request_id": f"pipegen-batch-{name}", "body": None}
    if not is_ok(slot):
        error, kind = slot.failure(), error_to_plain(slot.failure())["type"]
        fields = {
            "message": error.message,
            "type": kind,
            "param": None,
            "code": _status(error),
            "hint": error.hint,
        }
        # vLLM writes the server's error here, OpenAI a code and a message: this has the keys of
        # both.
        return {
            **line,
            "response": {**response, "status_code": _status(error)},
            "error": {"code": kind, "message": error.message, "error": fields},
        }
    result = slot.unwrap()
    completions = enumerate(completion.value_or(None) for completion in result.completions)
    answers = [(index, answer) for index, answer in completions if answer is not None]
    tokens = sum(answer.completion_tokens for _, answer in answers)
    usage = {
        "prompt_tokens": result.prompt_tokens,
        "total_tokens": result.prompt_tokens + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": None,
    }
    body = {
        "id": f"{'chatcmpl' if url == CHAT else 'cmpl'}-{name}",
        "object": "chat.completion" if url == CHAT else "text_completion",
        "created": int(clock()),
        "model": model,
        "choices": [_choice(answer, index, url) for index, answer in answers],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage,
    }
    return {**line, "response": {**response, "body": body}, "error": None}


def error_of_batch(values: Mapping[str, object]) -> GenerationError | None:
    """The error of an output line, in the form of this library, of OpenAI or of `vllm run-batch`;
    None where it has an answer.

    >>> error_of_batch({"response": {"status_code": 429, "body": None}, "error": None}).message
    'the line has status 429 and no answer'
    """
    response = values.get("response")
    response = response if isinstance(response, Mapping) else {}
    body, written = response.get("body"), response.get("status_code")
    status = whole_number(written)
    answer = body if isinstance(body, Mapping) else {}
    error = values.get("error") or answer.get("error")
    if not error and answer and status not in range(300, 600):
        return None
    outer = error if isinstance(error, Mapping) else {"message": error}
    nested = outer.get("error")
    inner = nested if isinstance(nested, Mapping) else outer
    message = outer.get("message") or inner.get("message")
    words = str(message or f"the line has status {written} and no answer")[:1000]
    kind = outer.get("code")
    if kind in errors.__all__:  # of this library
        with contextlib.suppress(InvalidField):
            return error_from({"type": kind, "message": words, "hint": inner.get("hint", "")})
    if status == 429:
        return RateLimited(words)
    if status == 504:
        return Timeout(words)
    if status in range(400, 500):
        return InvalidRequest(words)
    return BackendFailed(words, backend="the server", scope="row")


def _status(error: GenerationError) -> int:
    if isinstance(error, RateLimited):
        return 429
    return (
        504
        if isinstance(error, Timeout)
        else 500
        if error.retryable or isinstance(error, (BackendFailed, InternalError))
        else 400
    )


def _choice(result: GenerationResult, index: int, url: str) -> dict[str, object]:
    calls = [dict(call) for call in result.tool_calls]
    finish = "tool_calls" if calls else "length" if result.finish == Finish.LENGTH else "stop"
    ended = {
        "finish_reason": "abort" if result.finish == Finish.ABORTED else finish,
        "stop_reason": result.stop,
    }
    if url == COMPLETIONS:
        return {
            "index": index,
            "text": result.text,
            "logprobs": _completion_logprobs(result),
            **ended,
        }
    message = {
        "role": "assistant",
        "content": result.text,
        **dict.fromkeys(("refusal", "annotations", "audio", "function_call")),
    }
    message |= {
        **({"tool_calls": calls} if calls else {}),
        "reasoning": result.reasoning,
        "reasoning_content": result.reasoning,
    }
    return {"index": index, "message": message, "logprobs": _logprobs(result), **ended}


def _logprobs(result: GenerationResult) -> dict[str, object] | None:
    """Log probabilities, with the tokens' own texts and their bytes."""
    if result.logprobs is None:
        return None
    return {
        "content": [
            {
                **_token(logprob.text, logprob.token_id, logprob.logprob),
                "top_logprobs": [
                    _token(text, *top)
                    for text, top in zip(_tops(logprob), logprob.top, strict=True)
                ],
            }
            for logprob in result.logprobs
        ]
    }


def _token(text: str | None, token_id: int, logprob: float) -> dict[str, object]:
    """A token; the bytes of a part of a character are not known."""
    return {
        "token": _name(text, token_id),
        "logprob": logprob,
        "bytes": None if text is None or "\ufffd" in text else list(text.encode()),
    }


def _name(text: str | None, token_id: int) -> str:
    """The token's own text; its id where no tokenizer spelt it here."""
    return f"token_id:{token_id}" if text is None else text


def _tops(logprob: TokenLogprob) -> Sequence[str | None]:
    return logprob.top_texts or (None,) * len(logprob.top)


def _completion_logprobs(result: GenerationResult) -> dict[str, object] | None:
    """The same for a completion, with the offsets of the tokens. Likeliest tokens of one text are
    one entry, with the greater of their log probabilities.
    """
    if result.logprobs is None:
        return None
    names = [_name(logprob.text, logprob.token_id) for logprob in result.logprobs]
    return {
        "text_offset": [0, *accumulate(map(len, names))][: len(names)],
        "tokens": names,
        "token_logprobs": [logprob.logprob for logprob in result.logprobs],
        "top_logprobs": [
            {
                _name(text, top[0]): top[1]
                for text, top in reversed([*zip(_tops(logprob), logprob.top, strict=True)])
            }
            for logprob in result.logprobs
        ],
    }
