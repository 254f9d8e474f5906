"""A chat template: how it is called, and what is found out about it by rendering small
conversations, whose words stand for others.

>>> from pipegen.testing.fake import ToyRenderer
>>> (
...     honours_thinking(Template(ToyRenderer())),
...     honours_thinking(Template(ToyRenderer(thinking=False))),
... )
(True, False)
>>> text = "Hello there [zqname] zqid."
>>> between(text, "zqname", "zqid"), between(text, "zqid", "zqname")
(('Hello there [', '] ', '.'), None)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pipegen.core.errors import TemplateFailed
from pipegen.core.foreign_calls import guard
from pipegen.core.slots import Slot
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, FrozenMapping, freeze, thaw
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.template.untrusted import Conversation

JsonObject: TypeAlias = dict[str, Any]
"""A message, a call or a tool as plain data."""
USER: JsonObject = {"role": "user", "content": "Hello there"}


def numbered_id(index: int) -> str:
    """The id of a call that has none. Some templates take nine letters and digits only."""
    return f"call{index:05d}"


FIRST_ID = numbered_id(0)


def between(text: str, *holes: str) -> tuple[str, ...] | None:
    """The texts before, between and behind the holes; None where these are not in the text, one
    after the other.
    """
    texts: list[str] = []
    for hole in holes:
        before, found, text = text.partition(hole)
        if not found:
            return None
        texts.append(before)
    return (*texts, text)


def assistant(content: str | None, *calls: Mapping[str, object]) -> JsonObject:
    """A message of the assistant."""
    message: JsonObject = {"role": "assistant", "content": content}
    return {**message, "tool_calls": [*calls]} if calls else message


def call(name: str, arguments: object, call_id: str = FIRST_ID) -> JsonObject:
    """A tool call."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(name: str, content: object) -> JsonObject:
    """The result of a call with the first id."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": FIRST_ID}


def tool(name: str, *keys: str) -> JsonObject:
    """A tool that takes strings of these names; each is described by its name."""
    properties = {key: {"type": "string", "description": key} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}


PROBE, BESIDE = "probe text", "other words"
_PARTS_SHOWN = ("'type': 'text'", '"type": "text"')
"""How a list of parts is rendered by a template that takes strings only."""


@dataclass(frozen=True, slots=True)
class PromptFunction:
    """A renderer that is a user's function of the messages."""

    write: Callable[[Sequence[Mapping[str, Any]]], str]
    template: str | None = ""  # its source is not known

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]],
        template: str | None,
        variables: Mapping[str, object],
    ) -> str:
        text: object = self.write(messages)
        if not isinstance(text, str):
            raise TypeError(f"it gave {type(text).__name__}, not the text of the prompt")
        return text


def author(renderer: Renderer) -> str:
    """Who writes the prompt, in words.

    >>> author(PromptFunction(print))
    "the function 'print' of pg.stages.render"
    """
    if not isinstance(renderer, PromptFunction):
        return "the chat template"
    write = renderer.write
    return f"the function {getattr(write, '__name__', type(write).__name__)!r} of pg.stages.render"


@functools.cache
def _refusals() -> tuple[type[Exception], ...]:
    """The errors with which a template rejects messages."""
    try:
        from jinja2 import TemplateError
    except ImportError:  # then there is no Jinja template
        return ()
    return (TemplateError,)


def _advice(renderer: Renderer, reason: str) -> str:
    """What to do where the template is broken, whatever the messages; empty where that is not
    known.
    """
    if isinstance(renderer, PromptFunction):
        return "correct the function: it gets messages as plain data, and gives the prompt's text"
    if reason.startswith("SecurityError"):
        return (
            "correct options.chat.template, or the model's chat_template.jinja: the installed"
            " version of what renders it does not allow this"
        )
    broken = reason.startswith(("TemplateSyntaxError", "TemplateAssertionError"))
    return (
        "correct options.chat.template, or the model's chat_template.jinja: no message can be"
        " rendered by it"
        if broken
        else ""
    )


def call_template(
    renderer: Renderer,
    template: str | None,
    switches: Mapping[str, object],
    conversation: Conversation,
    *,
    probes: bool = False,
) -> Slot[str]:
    """Call the template once; `TemplateFailed` with what it raised. With `probes` nothing is
    logged: a template may reject a probe.

    switches: variables of the template; those of the conversation override them.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> renderer = ToyRenderer(raises=TypeError("no"))
    >>> call_template(renderer, None, {}, Conversation([], [], {})).failure().message
    'the chat template raised TypeError: no'
    """
    messages, tools, variables = conversation
    variables = {**switches, **variables}
    return guard(
        functools.partial(
            renderer.render, messages, tools=tools, template=template, variables=variables
        ),
        lambda raised: TemplateFailed(
            f"{author(renderer)} raised {raised.words}",
            incident=raised.incident,
            hint=_advice(renderer, raised.words),
        ),
        known=(Exception,) if probes else _refusals(),
    )


class Template(NamedTuple):
    """A chat template with its variables."""

    renderer: Renderer
    source: str | None = None
    """The request's own; None for the renderer's."""
    variables: FrozenMapping = NOTHING

    def render(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject] = (),
        **more: object,
    ) -> Slot[str]:
        """A probe as text, with more variables; `TemplateFailed` where the template rejects it. By
        default no turn of the assistant is opened or continued.
        """
        ended = {"add_generation_prompt": False, "continue_final_message": False}
        probe = Conversation([*messages], [*tools], {**thaw(self.variables), **more})
        return call_template(self.renderer, self.source, ended, probe, probes=True)

    def write(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject] = (),
        **more: object,
    ) -> Slot[str]:
        """As `render`, with each content in a form that the template writes."""
        probed = self._replace(variables=probe_variables(self.variables))
        return self.render([shape_content(turn, probed) for turn in messages], tools, **more)


def probed_template(renderer: Renderer, chat: ChatTemplateOptions) -> Template:
    """The template with short variables, as what is found out about it is remembered."""
    return Template(renderer, chat.template, probe_variables(chat.template_kwargs or NOTHING))


def template_of(renderer: Renderer, chat: ChatTemplateOptions) -> Template:
    """The template as these options have it rendered."""
    template = probed_template(renderer, chat)
    honoured = honours_thinking(template)
    thinking = {"enable_thinking": bool(chat.enable_thinking)} if honoured else {}
    return template._replace(variables=freeze({**thinking, **(chat.template_kwargs or NOTHING)}))


@functools.lru_cache(maxsize=32)
def _switched(template: Template, thinking: bool) -> tuple[str | None, ...]:
    """Harmless conversations rendered with `thinking`; None for each that the template rejects."""
    system, user = (plain_turn(role, template) for role in ("system", "user"))
    return tuple(
        template.render(turns, add_generation_prompt=True, enable_thinking=thinking).value_or(None)
        for turns in ([user], [system, user])
    )


@functools.lru_cache(maxsize=32)
def honours_thinking(template: Template) -> bool:
    """Whether `enable_thinking` changes what the template writes. False if it rejects the probes."""
    pairs = zip(_switched(template, True), _switched(template, False), strict=True)
    return any(on is not None and off is not None and on != off for on, off in pairs)


@functools.lru_cache(maxsize=32)
def written_by(template: Template) -> str:
    """The template's source and its renders of harmless content in turns of every role: text with
    every control token that it is known to write.
    """
    renders = [
        *_switched(template, True),
        *_switched(template, False),
        *_turns(template._replace(variables=NOTHING)),
    ]
    renders += _turns(template) if template.variables and None in renders else ()
    return "\0".join(filter(None, (template.source, template.renderer.template, *renders)))


@functools.lru_cache(maxsize=32)
def _turns(template: Template) -> tuple[str | None, ...]:
    """Harmless conversations in which every role has a turn, and tools are defined and called; None
    for each that the template rejects.
    """
    return tuple(
        template.render(
            conversation(role, plain_turn(role, template)["content"], template),
            [tool(PROBE, PROBE)] if role == "user" else [],
            add_generation_prompt=True,
        ).value_or(None)
        for role in ("assistant", "developer", "tool", "user")
    )


@functools.lru_cache(maxsize=128)
def _takes(role: str, template: Template) -> tuple[bool, bool]:
    """Whether the template writes this role's content if it is a string, and if it is a list of
    text parts.
    """
    string, parts = (text or "" for text in role_renders(role, PROBE, template))
    return PROBE in string, PROBE in parts and not any(shown in parts for shown in _PARTS_SHOWN)


@functools.lru_cache(maxsize=128)
def role_renders(role: str, text: str, template: Template) -> tuple[str | None, ...]:
    """A conversation with these words in a turn of the role, as a string and as a text part; None
    where the template rejects it.
    """
    return tuple(
        template.render(conversation(role, form, template)).value_or(None)
        for form in (text, [{"type": "text", "text": text}])
    )


def conversation(role: str, content: object, template: Template) -> list[JsonObject]:
    """A conversation in which a turn of the role has this content."""
    turn: JsonObject = {"role": role, "content": content}
    if role == "user":
        return [turn]
    user = plain_turn("user", template)
    if role == "assistant":
        return [user, turn, user]
    if role == "tool":
        return [user, assistant("", call("probe", {"probe": "probe"})), result("probe", content)]
    return [turn, user]


def plain_turn(role: str, template: Template) -> JsonObject:
    """A turn of harmless words, as the template takes them."""
    return shape_content({"role": role, "content": BESIDE}, template)


@functools.lru_cache(maxsize=32)
def _calls_only_beside_null(template: Template) -> bool:
    """Whether the template writes tool calls beside content that is null, and drops them beside the
    empty text.
    """
    user = plain_turn("user", template)

    def writes(content: str | None) -> bool:
        first, other = (
            template.render([user, assistant(content, call(name, {name: name}))]).value_or(None)
            for name in ("probe", "other")
        )
        return first is not None and other is not None and first != other

    return not writes("") and writes(None)


def shape_content(
    message: JsonObject, template: Template, *, continued: bool = False
) -> JsonObject:
    """The message with its content in a form that the template writes.

    Text parts are joined to a string if the template takes only strings, and a string becomes a
    text part if it takes only parts. Content with images stays a list. No content is the empty
    text, or null where the template writes tool calls only beside null. It is a part too where the
    message is `continued`.
    """
    role, content = message["role"], message["content"]
    content = content or "" if continued else content
    if not content and message.get("tool_calls") and not continued:
        content = None if _calls_only_beside_null(template) else ""
    elif isinstance(content, list):
        only_text = all(part["type"] == "text" for part in content)
        if only_text and _takes(role, template) == (True, False):
            content = "".join(part["text"] for part in content)
    else:
        content = content or ""
        if (content or continued) and _takes(role, template) == (False, True):
            content = [{"type": "text", "text": content}]
    return {**message, "content": content}


_LONG = 200


def probe_variables(template_variables: Mapping[str, object]) -> FrozenMapping:
    """Variables for probes: short, and the same for requests that differ only in their documents.

    >>> probe_variables({"documents": [{"text": "a"}, {"text": "b"}], "reasoning_effort": "high"})
    FrozenMapping({'documents': (FrozenMapping({'text': 'x'}),), 'reasoning_effort': 'high'})
    """
    if not template_variables:
        return NOTHING  # the same object, for fast look-ups in the caches
    return FrozenMapping(
        {
            name: value if isinstance(value, str) and len(value) <= _LONG else _short(value)
            for name, value in template_variables.items()
        }
    )


def _short(value: object) -> object:
    if isinstance(value, str):
        return "x"
    if isinstance(value, Mapping):
        return FrozenMapping({key: _short(entry) for key, entry in value.items()})
    return tuple(map(_short, value[:1])) if isinstance(value, (tuple, list)) else value
