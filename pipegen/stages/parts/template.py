"""Find out what a chat template does by rendering small conversations.

>>> from pipegen.testing.fake import ToyRenderer
>>> honours_thinking(ToyRenderer(), None, FrozenMapping())
True
>>> honours_thinking(ToyRenderer(thinking=False), None, FrozenMapping())
False
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pipegen.core.border import guard
from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.tokenizer import Renderer
from pipegen.records.frozen import NOTHING, FrozenMapping, thaw

__all__ = ["call_template", "composes", "decoded_by", "honours_thinking", "ignores_users", "known_words", "probe_variables", "shape_content", "written_by"]

_PROBE, _BESIDE = "probe text", "other words"
_PARTS_SHOWN = ("'type': 'text'", '"type": "text"')
"""How a list of parts is rendered by a template that takes strings only."""


@functools.cache
def _refusals() -> tuple[type[Exception], ...]:
    """The errors with which a template rejects messages."""
    try:
        from jinja2 import TemplateError
    except ImportError:  # then there is no Jinja template
        return ()
    return (TemplateError,)


def _advice(words: str) -> str:
    """What to do where the template is broken, whatever the messages; empty where that is not known."""
    broken = words.startswith(("TemplateSyntaxError", "TemplateAssertionError"))
    return "correct options.chat.template, or the model's chat_template.jinja: no message can be rendered by it" if broken else ""


def call_template(
    renderer: Renderer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    template: str | None,
    variables: Mapping[str, Any],
    probes: bool = False,
) -> Slot[str]:
    """Call the template once; `TemplateFailed` with what it raised. With `probes` nothing is logged: a template may reject a probe.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> call_template(ToyRenderer(raises=TypeError("no")), [], template=None, variables={}).failure().message
    'the chat template raised TypeError: no'
    """
    return guard(
        lambda: renderer.render(messages, tools=tools, template=template, variables=variables),
        lambda raised: TemplateFailed(f"the chat template raised {raised.words}", incident=raised.incident, hint=_advice(raised.words)),
        known=(Exception,) if probes else _refusals(),
    )


@functools.lru_cache(maxsize=32)
def _probes(renderer: Renderer, template: str | None, more: FrozenMapping, thinking: bool) -> tuple[str | None, ...]:
    """Harmless conversations rendered with `thinking`; None for each that the template rejects."""
    user = {"role": "user", "content": _content("user", renderer, template, more)}
    system = {"role": "system", "content": _content("system", renderer, template, more)}
    variables = {"add_generation_prompt": True, "continue_final_message": False, "enable_thinking": thinking, **thaw(more)}
    renders = (call_template(renderer, messages, template=template, variables=variables, probes=True) for messages in ([user], [system, user]))
    return tuple(slot.unwrap() if is_ok(slot) else None for slot in renders)


@functools.lru_cache(maxsize=32)
def honours_thinking(renderer: Renderer, template: str | None, more: FrozenMapping) -> bool:
    """Whether `enable_thinking` changes what the template writes; `more` are its other variables. False if it rejects the probes."""
    pairs = zip(_probes(renderer, template, more, True), _probes(renderer, template, more, False), strict=True)
    return any(on is not None and off is not None and on != off for on, off in pairs)


@functools.lru_cache(maxsize=32)
def written_by(renderer: Renderer, template: str | None, more: FrozenMapping) -> str:
    """The template's source and its renders of harmless content: text with every control token that it is known to write."""
    renders = (*_probes(renderer, template, more, True), *_probes(renderer, template, more, False))
    return "\0".join(text for text in (template, renderer.template, *renders) if text)


@functools.lru_cache(maxsize=128)
def _takes(role: str, renderer: Renderer, template: str | None, more: FrozenMapping) -> tuple[bool, bool]:
    """Whether the template writes this role's content if it is a string, and if it is a list of text parts."""
    forms: tuple[Any, Any] = (_PROBE, [{"type": "text", "text": _PROBE}])
    variables = {"add_generation_prompt": False, "continue_final_message": False, **thaw(more)}
    other = _BESIDE if role == "user" else _content("user", renderer, template, more)
    renders = [call_template(renderer, _conversation(role, form, other), template=template, variables=variables, probes=True) for form in forms]
    texts = [slot.unwrap() if is_ok(slot) else "" for slot in renders]
    return _PROBE in texts[0], _PROBE in texts[1] and not any(shown in texts[1] for shown in _PARTS_SHOWN)


def _conversation(role: str, content: Any, other: Any) -> list[dict[str, Any]]:
    user, probed = {"role": "user", "content": other}, {"role": role, "content": content}
    if role == "user":
        return [probed]
    if role == "assistant":
        return [user, probed, user]
    if role == "tool":
        call = {"type": "function", "id": "call00001", "function": {"name": "probe", "arguments": {}}}
        return [user, {"role": "assistant", "content": "", "tool_calls": [call]}, {**probed, "name": "probe", "tool_call_id": "call00001"}]
    return [probed, user]


def _content(role: str, renderer: Renderer, template: str | None, more: FrozenMapping) -> Any:
    strings, parts = _takes(role, renderer, template, more)
    return [{"type": "text", "text": _BESIDE}] if parts and not strings else _BESIDE


def ignores_users(renderer: Renderer) -> bool:
    """Whether the model's own template writes the same whatever a user says, as a page of HTML in its place does. False where it rejects the probes.

    >>> from pipegen.testing.fake import ToyRenderer
    >>> ignores_users(ToyRenderer())
    False
    """

    def written(words: str) -> list[str | None]:
        variables = {"add_generation_prompt": True, "continue_final_message": False}
        forms: tuple[Any, Any] = (words, [{"type": "text", "text": words}])
        slots = (call_template(renderer, [{"role": "user", "content": form}], template=None, variables=variables, probes=True) for form in forms)
        return [slot.unwrap() if is_ok(slot) else None for slot in slots]

    one = written(_PROBE)
    return any(text is not None for text in one) and one == written(_BESIDE)


def shape_content(message: Mapping[str, Any], renderer: Renderer, template: str | None, more: FrozenMapping) -> dict[str, Any]:
    """The message with its content in a form that the template writes.

    Text parts are joined to a string if the template takes only strings, and a string becomes a text part if it takes only parts. Content with images
    stays a list.
    """
    content = message["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content) and _takes(message["role"], renderer, template, more) == (True, False):
        return {**message, "content": "".join(part["text"] for part in content)}
    if isinstance(content, str) and content and _takes(message["role"], renderer, template, more) == (False, True):
        return {**message, "content": [{"type": "text", "text": content}]}
    return dict(message)


_LONG = 200


def probe_variables(more: Mapping[str, Any]) -> FrozenMapping:
    """Variables for probes: short, and the same for requests that differ only in their documents.

    >>> probe_variables({"documents": [{"text": "a"}, {"text": "b"}], "reasoning_effort": "high"})
    FrozenMapping({'documents': (FrozenMapping({'text': 'x'}),), 'reasoning_effort': 'high'})
    """
    if not more:
        return NOTHING  # the same object, for fast look-ups in the caches
    return FrozenMapping({name: value if isinstance(value, str) and len(value) <= _LONG else _short(value) for name, value in more.items()})


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return "x"
    if isinstance(value, Mapping):
        return FrozenMapping({key: _short(entry) for key, entry in value.items()})
    return tuple(map(_short, value[:1])) if isinstance(value, (tuple, list)) else value


_FILLED = re.compile(r"%[-+ #0-9.]*[a-z]|%\(\w+\)[a-z]|\{[^{}]*\}")
"""The place of a value in a format string."""
_PART_TAKEN = re.compile(r"\s*(?:\[|\.|\|(?!\s*(?:e|safe|string|trim)\b))")
_DECODES = {"striptags": "&", "unescape": "&", "decode": "&%+=\\"}
"""Filters and methods that make other characters of words, and the characters with which these are written."""
_ROLE = re.compile(r"""[\s+~\-{}(]*(?:\w+(?:\.role|\[['"]role['"]\])|role\b)""")


@functools.lru_cache(maxsize=32)
def composes(source: str, tokens: Collection[str]) -> bool:
    """Whether the template may compose a control token from parts, as in `'<' + key + '>'` or `'<%s>' % key`: some text in it ends with the start of one,
    or holds the start of one and is cut, as in `'<|end|>'[:2]`.

    The role may follow: it is not foreign text.

    >>> composes("{{ '<' ~ key ~ '>' }}", frozenset({"<think>"})), composes("{{ '<|' + m.role + '|>' }}", frozenset({"<|user|>"}))
    (True, False)
    >>> composes("{{ '<{}>'.format(key) }}", frozenset({"<think>"}))
    True
    """
    begun = frozenset(token[:end] for token in tokens for end in range(1, len(token)))
    longest = max(map(len, begun), default=0)

    def opens(text: str) -> bool:
        return any(text[-size:] in begun for size in range(1, longest + 1))

    def takes_words(text: str) -> bool:
        *before, _ = _FILLED.split(text)
        return any(map(opens, before))

    def is_cut(text: str, following: str) -> bool:
        return _PART_TAKEN.match(following) is not None and any(start in text for start in begun)

    def may_begin_one(text: str, following: str) -> bool:
        return takes_words(text) or ((opens(text) or opens(text.rstrip())) and not _ROLE.match(following)) or is_cut(text, following)

    return any(may_begin_one(text, following) for text, following in _literals(source))


@functools.lru_cache(maxsize=32)
def decoded_by(source: str) -> frozenset[str]:
    """The characters with which words may spell others that the template makes of them, as `striptags` makes `<` of `&lt;`.

    >>> sorted(decoded_by("{{ m.content | striptags }}")), sorted(decoded_by("{{ m.content | trim }}"))
    (['&'], [])
    """
    return frozenset(character for kind, name in _tokens(source) if kind == "name" for character in _DECODES.get(name, ""))


@functools.lru_cache(maxsize=32)
def known_words(source: str) -> frozenset[str]:
    """The words that the template may compare with: its strings, and the names of entries; any other text it can only write.

    In lower case, since a template may change the case first: `type | upper == 'STRING'`.

    >>> sorted(known_words("{% if m.name == 'Python' %}{{ m['type'] }}{% endif %}"))
    ['name', 'python', 'type']
    """
    tokens = _tokens(source)
    names = (name for (_, before), (kind, name) in itertools.pairwise(tokens) if kind == "name" and before == ".")
    return frozenset(word.lower() for word in (*names, *(text for kind, text in tokens if kind == "string")))


def _literals(source: str) -> Iterable[tuple[str, str]]:
    """Each literal text of a Jinja source, with the source after it."""
    tokens = _tokens(source)
    return ((text, "".join(after for _, after in tokens[row + 1 : row + 9])) for row, (kind, text) in enumerate(tokens) if kind in ("data", "string"))


def _tokens(source: str) -> list[tuple[str, str]]:
    """The tokens of a Jinja source, with strings unescaped; none without Jinja."""
    try:
        from jinja2 import Environment, TemplateError
    except ImportError:
        return []
    try:
        tokens = [(str(kind), str(text)) for _, kind, text in Environment().lex(source)]  # noqa: S701 - it renders nothing
    except TemplateError:  # then it does not render
        return []
    return [(kind, _unescaped(text[1:-1]) if kind == "string" else text) for kind, text in tokens]


def _unescaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("unicode-escape", "replace")
