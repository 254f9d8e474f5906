"""inspect on any engine: a `ModelAPI`, registered by an entry point.

    inspect eval task.py --model pipegen/Qwen/Qwen3-4B
    inspect eval task.py --model pipegen/Qwen/Qwen3-4B -M backend=vllm_server --model-base-url
        http://localhost:8000

Samples that run at the same time share the engine's batches. Messages, images and tools go into the
request as they are. What inspect asks that an engine cannot give is an error that names it, never
ignored. Tool calls are read from `<tool_call>{"name", "arguments"}</tool_call>`, as Qwen and Hermes
models write them, or are those that a chat server found. Reasoning is what stands in `<think>`, or
what a server returned apart.
"""

# inspect need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    TopLogprob,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolFunction

import pipegen as pg
from pipegen.core.functional import without_none
from pipegen.core.names import nearest
from pipegen.plugins import reasoning_of
from pipegen.records.option_table import OPTIONS

__all__ = ["PipegenAPI"]

MAX_TOKENS = 2048
"""What inspect's own local providers generate at most by default."""
_SENT = {
    **{name: name for name in OPTIONS if name in GenerateConfig.model_fields},
    "stop_seqs": "stop",
    "num_choices": "samples",
}
"""The settings of a generation, each with the option that it is."""
_REFUSED = (
    "best_of",
    "reasoning_effort",
    "reasoning_tokens",
    "effort",
    "verbosity",
    "modalities",
    "extra_body",
    "extra_headers",
)
_STOPS = {pg.Finish.LENGTH: "max_tokens", pg.Finish.ABORTED: "unknown"}
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


# inspect's types are not there where types are checked
class PipegenAPI(ModelAPI):  # type: ignore[misc]
    """A route as inspect's model.

    backend: an engine of `pg.backends`; `enable_thinking`: the template's switch; other model
    arguments (`-M`) are the engine's settings.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - as inspect has it
        *,
        backend: str = "hf",
        enable_thinking: bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        if backend not in pg.backends.BACKENDS:
            raise pg.InvalidField(
                f"-M backend takes one of {', '.join(pg.backends.BACKENDS)}, not"
                f" {backend!r}{nearest(str(backend), pg.backends.BACKENDS)}"
            )
        engine_settings = {
            **settings,
            **without_none(
                {"base_url": base_url, "api_key": api_key if base_url is not None else None}
            ),
        }
        self.route: pg.Route = getattr(pg.backends, backend)(model_name, **engine_settings)
        self.engine: Any = self.route.engine
        self.thinking = enable_thinking
        self._rows = int(settings.get("batch_size") or settings.get("max_in_flight") or 32)

    def max_connections(self) -> int:
        """A few times the engine's batch, so that it never waits for the next sample."""
        return 4 * self._rows

    def max_tokens(self) -> int:
        return MAX_TOKENS

    def connection_key(self) -> str:
        return f"pipegen {self.engine.name} {self.model_name}"

    def should_retry(self, ex: BaseException) -> bool:
        return isinstance(ex, pg.GenerationError) and ex.retryable

    def close(self) -> None:
        self.engine.close()

    async def count_tokens(self, input: Any, config: Any = None) -> int:
        """As the engine counts them, template and images included; by inspect's own estimate where
        it does not tell.
        """
        messages = input if isinstance(input, list) else []
        request = (
            {"messages": [_message(message) for message in messages]}
            if messages
            else {"prompt": input or ""}
        )
        counted = await asyncio.to_thread(
            pg.count_tokens, self.route, request, image_policy=_IMAGES
        )
        return (
            counted.unwrap()
            if pg.is_ok(counted)
            else int(await super().count_tokens(input, config))
        )

    async def generate(
        self, input: Sequence[Any], tools: Sequence[Any], tool_choice: Any, config: Any
    ) -> ModelOutput:
        """One answer, or as many as `num_choices`; none for a prompt that is too long, or
        that the server refuses, as inspect expects. Raises the request's `GenerationError`.
        """
        request = self._request(input, tools, tool_choice, config)
        (slot,) = await pg.arun(self.route, [request], image_policy=_IMAGES)
        if not pg.is_ok(slot):
            error = slot.failure()
            if isinstance(error, pg.PromptTooLong):
                return ModelOutput.from_content(
                    self.model_name, str(error), stop_reason="model_length"
                )
            if isinstance(error, pg.Refused):
                return ModelOutput.from_content(
                    self.model_name, error.text or error.refusal, stop_reason="content_filter"
                )
            raise error
        return self._output(
            slot.unwrap(),
            wants_tools=bool(tools) and tool_choice != "none",
            forced=_forced(tools, tool_choice) is not None,
        )

    def _request(
        self, messages: Sequence[Any], tools: Sequence[Any], tool_choice: Any, config: Any
    ) -> dict[str, Any]:
        for name in _REFUSED:
            if getattr(config, name, None) not in (None, [], {}):
                raise pg.UnsupportedOption(
                    f"pipegen does not honour inspect's {name}={getattr(config, name)!r:.80}",
                    option=name,
                    hint="leave it out",
                )
        if (config.prompt_logprobs or 0) > 1:
            words = (
                "pipegen gives the likeliest token in each place of the prompt, not"
                f" {config.prompt_logprobs}"
            )
            raise pg.UnsupportedOption(words, option="prompt_logprobs", hint="ask for 1")
        options: dict[str, Any] = {
            option_name: getattr(config, inspect_name)
            for inspect_name, option_name in _SENT.items()
        }
        options |= {
            "max_new_tokens": config.max_tokens,
            "enable_thinking": self.thinking,
            "prompt_logprobs": config.prompt_logprobs is not None or None,
        }
        if self._clips:
            options["on_overflow"] = "clip"
        if config.response_schema is not None:
            options["json_schema"] = json.dumps(
                config.response_schema.json_schema.model_dump(exclude_none=True)
            )
        forced = _forced(tools, tool_choice)
        options |= {} if forced is None else {"json_schema": json.dumps(forced)}
        tool_schemas = [_tool(tool) for tool in tools] if tool_choice != "none" else []
        return {
            "messages": [_message(message) for message in messages],
            "options": without_none(options),
            **({"tools": tool_schemas} if tool_schemas else {}),
        }

    @property
    def _clips(self) -> bool:
        """Whether pipegen knows the prompt's length: then an answer may have what is left of the
        model's, as inspect expects.
        """
        return "on_overflow" in self.engine.capabilities.honours

    def _output(
        self, result: pg.GenerationResult, *, wants_tools: bool, forced: bool = False
    ) -> ModelOutput:
        results = [slot.unwrap() for slot in result.completions if pg.is_ok(slot)]
        completion_tokens = sum(answer.completion_tokens for answer in results)
        usage = ModelUsage(
            input_tokens=result.prompt_tokens,
            output_tokens=completion_tokens,
            total_tokens=result.prompt_tokens + completion_tokens,
        )
        return ModelOutput(
            model=self.model_name,
            choices=[
                self._choice(answer, wants_tools=wants_tools, forced=forced) for answer in results
            ],
            usage=usage,
        )

    def _choice(
        self, result: pg.GenerationResult, *, wants_tools: bool, forced: bool
    ) -> ChatCompletionChoice:
        opened = (result.prompt_text or "").rstrip().endswith("<think>")
        split = reasoning_of(result.text, opened=opened)
        reasoning, text = (
            (split.reasoning, split.answer)
            if result.reasoning is None
            else (result.reasoning, result.text)
        )
        calls = [_served_call(call) for call in result.tool_calls] or (
            [_call(call_text) for call_text in ([text] if forced else _CALL.findall(text))]
            if wants_tools
            else []
        )
        if calls and not result.tool_calls:
            text = "" if forced else _CALL.sub("", text).strip()
        content: Any = (
            text
            if not reasoning
            else [ContentReasoning(reasoning=reasoning), ContentText(text=text)]
        )
        stop = (
            "model_length"
            if result.finish is pg.Finish.LENGTH and result.clipped_from is not None
            else _STOPS.get(result.finish, "stop")
        )
        message = ChatMessageAssistant(
            content=content, tool_calls=calls or None, model=self.model_name, source="generate"
        )
        return ChatCompletionChoice(
            message=message,
            stop_reason="tool_calls" if calls and stop == "stop" else stop,
            logprobs=self._logprobs(result.logprobs),
            prompt_logprobs=self._logprobs(result.prompt_logprobs),
        )

    def _logprobs(self, logprobs: Sequence[pg.TokenLogprob | None] | None) -> Logprobs | None:
        """Those of the tokens that were drawn, or of the prompt's, whose first token has none."""
        if logprobs is None:
            return None

        def token_fields(token_id: int, logprob: float) -> dict[str, Any]:
            text = (
                self.engine.tokenizer.decode((token_id,))
                if hasattr(self.engine, "tokenizer")
                else str(token_id)
            )
            return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}

        def entry(token_logprob: pg.TokenLogprob) -> Logprob:
            top = [TopLogprob(**token_fields(*pair)) for pair in token_logprob.top]
            return Logprob(
                **token_fields(token_logprob.token_id, token_logprob.logprob),
                top_logprobs=top or None,
            )

        return Logprobs(
            content=[
                entry(token_logprob) for token_logprob in logprobs if token_logprob is not None
            ]
        )


@modelapi(name="pipegen")  # type: ignore[untyped-decorator]  # as above
def pipegen() -> type[PipegenAPI]:
    """What inspect finds under `pipegen/...`."""
    return PipegenAPI


_IMAGES = pg.ImagePolicy(allow_http=True)


def _message(message: Any) -> dict[str, object]:
    """One turn in the OpenAI form."""
    if message.role == "tool":
        failed = f"Error: {message.error.message}\n" if message.error is not None else ""
        return {
            "role": "tool",
            "content": failed + message.text,
            **without_none({"tool_call_id": message.tool_call_id, "name": message.function}),
        }
    if message.role != "assistant":
        return {
            "role": message.role,
            "content": (
                message.content
                if isinstance(message.content, str)
                else [_part(part) for part in message.content]
            ),
        }
    parts = [] if isinstance(message.content, str) else message.content
    thought = "\n".join(
        part.reasoning for part in parts if isinstance(part, ContentReasoning) and not part.redacted
    )
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function, "arguments": dict(call.arguments)},
        }
        for call in message.tool_calls or ()
    ]
    return {
        "role": "assistant",
        "content": message.text,
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _part(part: Any) -> dict[str, object]:
    if isinstance(part, ContentText):
        return {"type": "text", "text": part.text}
    if isinstance(part, ContentImage):
        return {"type": "image", "image": part.image}
    raise pg.UnsupportedMultimodal(
        f"pipegen takes text and images, not inspect's content of type {part.type!r}"
    )


def _tool(tool: Any) -> dict[str, object]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _forced(tools: Sequence[Any], tool_choice: Any) -> dict[str, object] | None:
    """The JSON Schema of an answer that is a call of the tool, or of any of them, where inspect
    asks for one.
    """
    if not (tool_choice == "any" or isinstance(tool_choice, ToolFunction)):
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": tool.parameters.model_dump(exclude_none=True),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
        if tool_choice == "any" or tool.name == tool_choice.name
    ]
    if not calls:
        raise pg.InvalidRequest(f"tool_choice={tool_choice!r:.80} names none of the tools")
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _call(text: str) -> ToolCall:
    """A tool call from its JSON; one that cannot be read carries why, which inspect tells the
    model.
    """
    name, arguments, error = "unknown", {}, None
    try:
        call = json.loads(text)
        name, arguments = str(call["name"]), call.get("arguments", call.get("parameters", {}))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict):
            raise TypeError(f"arguments take an object, not {type(arguments).__name__}")
    except (ValueError, KeyError, TypeError, RecursionError) as refusal:
        arguments, error = (
            {},
            f"the tool call {text.strip()!r:.200} cannot be read: {refusal!r:.200}",
        )
    return ToolCall(
        id=f"call_{uuid.uuid4().hex[:12]}", function=name, arguments=arguments, parse_error=error
    )


def _served_call(call: Mapping[str, Any]) -> ToolCall:
    """A tool call that a server found, in the OpenAI form."""
    function = call.get("function") or {}
    tool_call = _call(
        json.dumps({"name": function.get("name"), "arguments": function.get("arguments") or {}})
    )
    tool_call.id = str(call.get("id") or tool_call.id)
    return tool_call
