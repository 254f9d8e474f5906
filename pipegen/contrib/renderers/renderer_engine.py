"""The protocol of engines of the renderer-driven client, and its records."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from pipegen.backends.servers.wire import WireRequest

P = ParamSpec("P")
R = TypeVar("R")
_WORKERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = (
    weakref.WeakKeyDictionary()
)
"""One thread for each loop: renderers and tokenizers are not thread-safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """A rendered prompt and everything else that the engine needs."""

    model: str
    token_ids: Sequence[int]
    stop_token_ids: Sequence[int]
    sampling_params: Mapping[str, Any]
    """As given, with vLLM's names."""
    messages: Sequence[Mapping[str, Any]] = ()
    renderer: Any = None
    multi_modal_data: Any = None
    """The renderer's prepared images, with expanded placeholders in `token_ids`; None if there are
    none.
    """
    content_parts: Sequence[Mapping[str, str]] = ()
    """Images that the engine prepares, in prompt order, each with one placeholder: `{"type",
    "url"}`.
    """
    cache_salt: str | None = None
    priority: int | None = None
    extra_headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One completion, with as many logprobs as ids."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None = None
    routed_experts: Any = None
    """As the server wrote them; base64 data as a memoryview of its characters."""
    sampling_mask: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The answer of an engine."""

    completions: tuple[Completion, ...]
    request_id: str = ""
    usage: Any = None
    prompt_ids: list[int] | None = None
    """The prompt as the engine ran it, if it returns it."""
    mm_placeholders: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class RendererBackend(Protocol):
    """An engine. The client is the caller's own `AsyncOpenAI`, or anything with its `post`, `get`
    and `base_url`.
    """

    async def generate(self, client: Any, prompt: TokenPrompt) -> Generated:
        """Raises `MalformedGenerateResponseError` for a bad answer, `ValueError` for what must not
        be sent, and what the client raises.
        """
        ...

    async def resolve_max_prompt_len(self, client: Any, model: str) -> int | None:
        """The most tokens of a prompt; None if the server does not return it, or cannot be asked
        now.
        """
        ...

    def is_overflow_error(self, error: BaseException) -> bool:
        """Whether an exception of the client means that the prompt is too long."""
        ...


class KeywordBackend(Protocol):
    """An engine whose `generate` takes arguments by name. These are `client`, `token_ids`,
    `sampling_params` (with the stop token ids), `multi_modal_data`, and other fields of
    `TokenPrompt` that it names.
    """

    async def generate(
        self,
        *,
        client: Any,
        token_ids: list[int],
        sampling_params: dict[str, Any],
        multi_modal_data: Any,
    ) -> Generated:
        """As for `RendererBackend`."""
        ...

    async def resolve_max_prompt_len(self, *, client: Any, model: str) -> int | None:
        """As for `RendererBackend`."""
        ...

    def is_overflow_error(self, exc: BaseException) -> bool:
        """As for `RendererBackend`."""
        ...


def full_params(prompt: TokenPrompt) -> dict[str, object]:
    """The sampling parameters, with the renderer's stop tokens, logprobs, and special tokens
    kept.
    """
    return {
        "skip_special_tokens": False,
        **prompt.sampling_params,
        "stop_token_ids": list(prompt.stop_token_ids),
        "logprobs": 1,
    }


async def ask(
    backend: RendererBackend | KeywordBackend, client: object, prompt: TokenPrompt
) -> Generated:
    """Ask a backend of either form. Raises what it raises, and `TypeError` if it does not return
    `Generated`.
    """
    function: Any = backend.generate
    parameters = inspect.signature(function).parameters
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if any_name or "token_ids" in parameters:
        arguments = {field.name: getattr(prompt, field.name) for field in fields(prompt)}
        arguments |= {
            "client": client,
            "prompt": prompt,
            "token_ids": list(prompt.token_ids),
            "sampling_params": full_params(prompt),
        }
        result = await function(
            **{name: value for name, value in arguments.items() if any_name or name in parameters}
        )
    else:
        result = await function(client, prompt)
    if not isinstance(result, Generated):
        raise TypeError(
            f"{type(backend).__name__}.generate gives a Generated, not {type(result).__name__}"
        )
    return result


def root_of(client: Any) -> str:
    """The server's root: the client's address without `/v1`.

    >>> from types import SimpleNamespace
    >>> root_of(SimpleNamespace(base_url="http://localhost:8000/v1/"))
    'http://localhost:8000'
    """
    return str(client.base_url).rstrip("/").removesuffix("/v1").rstrip("/")


async def post(
    client: Any, wire_request: WireRequest, headers: Mapping[str, str] | None = None
) -> bytes:
    """Post through the caller's client to the server's root (not below `/v1`); the raw answer."""
    options = {"options": {"headers": dict(headers)}} if headers else {}
    url, body = f"{root_of(client)}{wire_request.path}", dict(wire_request.body or {})
    answer = await client.post(url, cast_to=_response_type(), body=body, **options)
    content: bytes = answer.content
    return content


def _response_type() -> object:
    """The raw response type of the openai client's HTTP library."""
    try:
        library = importlib.import_module("httpx")
    except ImportError:
        # the one of openai 3, which accepts the other too
        library = importlib.import_module("httpx2")
    return library.Response


async def off_loop(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in the thread of the running loop.

    >>> asyncio.run(off_loop(sum, [1, 2]))
    3
    """
    loop = asyncio.get_running_loop()
    worker = _WORKERS.get(loop)
    if worker is None:
        worker = _WORKERS[loop] = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="pipegen-renderer"
        )
    return await loop.run_in_executor(
        worker,
        functools.partial(contextvars.copy_context().run, work, *args, **kwargs),
    )
