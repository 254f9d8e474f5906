"""The form of a tool call that an answer is to be: `tool_choice`.

The parts of the call are those that the chat template writes, after a thought those that it writes
there. The name is one of the tools' names. The arguments are JSON of its schema, or tagged values
(see `pipegen.answer.tagged_calls`). What stands around them is written, and not generated (see
`pipegen.stages.multi_call`).

>>> from pipegen.records.options import resolve
>>> tool_choice(resolve(GenerationOptions(structured={"tool_choice": "required"})))
'required'
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import GenerationError, InvalidRequest, TemplateFailed, UnsupportedOption
from pipegen.core.slots import Slot, all_of
from pipegen.ending.detokenize import ids_behind
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records import strict_json
from pipegen.records.call_form import ArgumentsForm, CallForm
from pipegen.records.frozen import thaw
from pipegen.records.option_groups import ChatTemplateOptions, StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.template.call_syntax import (
    ARGUMENTS,
    ID,
    NAME,
    THOUGHT,
    TOOLS,
    Syntax,
    Writer,
    arguments_in,
    loads,
    syntax_of,
    tool_of,
    writer_of,
)
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.template import FIRST_ID
from pipegen.template.thinking import call_after_thought

if TYPE_CHECKING:
    from pipegen.answer.tagged_calls import Tags

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


class CallTexts(NamedTuple):
    """What a template writes around the name and the arguments of one call."""

    opens: str
    """What is before the name, from the beginning of the answer, or from the end token of the
    thought before it.
    """
    between: str
    closes: str
    after: str = ""
    """The end token of the thought."""
    tags: Tags | None = None
    """Those of the arguments; None where they are JSON."""


def tool_choice(options: GenerationOptions) -> str | None:
    """The tool that is to be called, or `required`."""
    return None if options.structured is None else options.structured.tool_choice


def call_form(
    request: GenerationRequest,
    options: GenerationOptions,
    tokenizer: Tokenizer,
    renderer: Renderer,
    control: ControlTokens | None = None,
) -> Slot[CallForm]:
    """How the template writes a call of the chosen tools; after a thought, where there are
    `control` tokens, which end it.

    `InvalidRequest` where the request has no such tool, and `UnsupportedOption` where the form of
    the template's calls cannot be forced.
    """
    chosen = tool_choice(options)
    known = {name: schema for name, schema in map(tool_of, thaw(request.tools)) if name}
    tools = known
    if chosen != "required":
        tools = {name: schema for name, schema in known.items() if name == chosen}
    if chosen in _OF_SERVERS and not tools:
        text, hint = _OF_SERVERS[chosen]
        return Failure(InvalidRequest(text, hint=hint))
    if not tools or request.messages is None:
        text = "a request with messages and tools, and this request has none"
        if known and not tools:
            names = ", ".join(map(repr, known))
            text = f"a tool of this request, which has {names:.300}"
        return Failure(
            InvalidRequest(
                f"tool_choice={chosen!r:.80} takes {text}",
                hint="give the tools with the request",
            )
        )
    writer = writer_of(renderer, options.chat or ChatTemplateOptions())
    form = call_texts(writer, control).bind(lambda texts: _form(texts, tools, tokenizer))
    return form.alt(_unsupported)


def _unsupported(error: GenerationError) -> UnsupportedOption:
    text = f"a tool call cannot be forced: {error.message}"
    hint = "leave tool_choice out: calls are read as the model writes them"
    return UnsupportedOption(text, option="tool_choice", hint=hint)


def _form(texts: CallTexts, tools: Mapping[str, object], tokenizer: Tokenizer) -> Slot[CallForm]:
    """The form of a call of one of these tools."""
    from pipegen.answer.tagged_calls import tagged_form

    schemas, tags = {name: strict_json.dump(schema) for name, schema in tools.items()}, texts.tags
    ends, closes = "", texts.closes
    if tags is not None:
        tokens, between = tokenizer.control_tokens, "".join(tags)
        token = next((one for one in tokens if one in between or closes.startswith(one)), None)
        if token is not None:  # no regular expression has one
            return _not_forced(f"writes the control token {token!r} beside tagged values")
        # up to a control token the end is generated: the model ends the arguments
        size = min((place for place in map(closes.find, tokens) if place > 0), default=len(closes))
        ends, closes = closes[:size], closes[size:]

    def arguments(name: str, schema: str) -> Slot[ArgumentsForm]:
        if tags is None:
            return Success(ArgumentsForm(form=StructuredOptions(json_schema=schema)))
        message = "the template writes arguments as tagged values, and those of the tool"
        return tagged_form(schema, tags, ids_behind(tokenizer, tags.closes), ends).alt(
            lambda error: TemplateFailed(f"{message} {name!r:.80} are not: {error.message}")
        )

    return all_of(itertools.starmap(arguments, schemas.items())).map(
        lambda forms: CallForm(
            opens=ids_behind(tokenizer, texts.opens, after=texts.after),
            names=tuple(tools),
            between=texts.between,
            arguments=forms,
            closes=ids_behind(tokenizer, closes),
        )
    )


@functools.lru_cache(maxsize=64)
def call_texts(writer: Writer, control: ControlTokens | None = None) -> Slot[CallTexts]:
    """The parts of a call, after a thought where there are `control` tokens; `TemplateFailed` where
    its arguments are neither JSON nor tagged values, or where a call of these parts is not read
    back.
    """
    return syntax_of(writer).bind(lambda syntax: _call_texts(syntax, writer, control))


def _call_texts(syntax: Syntax, writer: Writer, control: ControlTokens | None) -> Slot[CallTexts]:
    from pipegen.answer.tagged_calls import tags_of
    from pipegen.answer.tool_calls import read_calls

    ahead, behind, begins, after = syntax.ahead, syntax.behind, "", ""
    if control is not None:
        called = call_after_thought(writer, control)
        if called is None:
            return _not_forced("does not write a thought before a call, with an end token")
        thought, behind = called
        ahead, after = thought.bridge, thought.end
        begins = f"{thought.opens}{THOUGHT}{thought.closes}{thought.end}"
    behind = behind.removesuffix(syntax.end)
    kind, arguments = arguments_in(behind) or ("", "")
    tags = tags_of(syntax, writer)
    if tags is not None:
        ((key, value),) = ARGUMENTS.items()
        arguments = f"{tags.opens}{key}{tags.middle}{value}{tags.closes}"
    if (kind != "json" and tags is None) or arguments not in behind:
        return _not_forced("writes arguments neither as JSON nor each with tags of its own")
    if ahead is None:
        return _not_forced("begins an answer that is a call otherwise than its prompts end")
    read = read_calls(f"{begins}{ahead}{NAME}{behind}", syntax.end.strip(), TOOLS, writer)
    functions = [call["function"] for call in read.calls]
    calls = [(function["name"], loads(function["arguments"])) for function in functions]
    if calls == [(NAME, ARGUMENTS)] and f"{begins}{ahead}".startswith(read.content or ""):
        between, _, closes = behind.partition(arguments)
        opens, between, closes = (text.replace(ID, FIRST_ID) for text in (ahead, between, closes))
        return Success(CallTexts(opens, between, closes, after, tags))
    message = "a call in the form that the chat template writes is not read back from its text"
    return Failure(TemplateFailed(message))


def _not_forced(why: str) -> Slot[Any]:
    return Failure(TemplateFailed(f"the chat template {why}"))
