"""The form of a tool call that an answer is to be: `tool_choice`.

The parts of the call are those that the chat template writes. The name is one of the tools' names,
and the arguments are JSON of its schema. What stands around them is written, and not generated (see
`pipegen.stages.parts.several_calls`).

>>> from pipegen.records.options import resolve
>>> tool_choice(resolve(GenerationOptions(structured={"tool_choice": "required"})))
'required'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records import strict_json
from pipegen.records.frozen import thaw
from pipegen.records.options import ChatTemplateOptions, GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import CallForm
from pipegen.stages.parts.detokenize import ids_behind
from pipegen.stages.parts.tool_calls import call_texts, writer_of

__all__ = ["call_form", "tool_choice"]

_OF_SERVERS = {
    "auto": (
        'tool_choice="auto" is what holds without the option: the model may call tools',
        "leave tool_choice out",
    ),
    "none": (
        'tool_choice="none" is not honoured: a model that sees tools may call them',
        "leave the tools out of the request",
    ),
}
"""Values of chat servers that are no tool: what is said, and what to do."""


def tool_choice(options: GenerationOptions) -> str | None:
    """The tool that is to be called, or `required`."""
    return None if options.structured is None else options.structured.tool_choice


def call_form(
    request: GenerationRequest, options: GenerationOptions, tokenizer: Tokenizer, renderer: Renderer
) -> Slot[CallForm]:
    """How the template writes a call of the chosen tools.

    `InvalidRequest` where the request has no such tool, and `UnsupportedOption` where the form of
    the template's calls cannot be forced.
    """
    chosen = tool_choice(options)
    tools = {name: schema for name, schema in map(_tool, thaw(request.tools)) if name}
    if chosen != "required":
        tools = {name: schema for name, schema in tools.items() if name == chosen}
    if chosen in _OF_SERVERS and not tools:
        words, hint = _OF_SERVERS[chosen]
        return Failure(InvalidRequest(words, hint=hint))
    if not tools or request.messages is None:
        words = "a request with messages and tools" if chosen == "required" else "its tool"
        return Failure(
            InvalidRequest(
                f"tool_choice={chosen!r:.80} takes {words}, and this request has none",
                hint="give the tools with the request",
            )
        )
    texts = call_texts(writer_of(renderer, options.chat or ChatTemplateOptions()))
    if not is_ok(texts):
        words = f"a tool call cannot be forced: {texts.failure().message}"
        hint = "leave tool_choice out: calls are read as the model writes them"
        return Failure(UnsupportedOption(words, option="tool_choice", hint=hint))
    before, opens, between, closes = texts.unwrap()
    return Success(
        CallForm(
            opens=ids_behind(tokenizer, before + opens),
            names=tuple(name + between for name in tools),
            schemas=tuple(map(strict_json.dump, tools.values())),
            closes=ids_behind(tokenizer, closes),
        )
    )


def _tool(tool: Any) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(function.get("name") or ""), function.get("parameters") or {"type": "object"}
