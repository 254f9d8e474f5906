"""Chat templates that somebody else brought: rendered as transformers renders its own, but bounded in steps and in size.

A template is a program. Jinja's sandbox keeps it from reading what it should not; here it is also kept from running for ever and from filling the memory.
The bounds are counts, not seconds, so that the same template fails or passes everywhere. Every value that is made has at most `SIZE` characters, and each
step is charged to one account of `WORK`: an iteration, a call, a filter, a test, an entry of a list that is looked at, 64 characters of text.

How each thing is bounded:

- loops, output, `~`, comparisons, subscripts and keys by calls that are written into the parsed template (`_instrument`);
- `+`, `*`, `**` and `%` by the sandbox's own interception of operators;
- methods of strings, macros and other calls by `call`; filters and tests by a wrapper around each;
- recursion by Python's limit, and the length of the source by `SOURCE`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Environment, Template, TemplateRuntimeError, nodes
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["SIZE", "SOURCE", "WORK", "TemplateTooLarge", "render_bounded"]

SOURCE = 2**17
"""Characters of a template."""
SIZE = 2**23
"""Characters of one value, and of all that is written."""
WORK = 1_000_000
BITS = 2**14
"""Binary digits of a whole number."""
_WIDTH = re.compile(r"[0-9]{1,30}")


class TemplateTooLarge(TemplateRuntimeError):
    """A template takes more steps, or makes more text, than it may."""


@dataclass(slots=True)
class _Account:
    """What one render may still do."""

    work: int = WORK
    written: int = 0
    call: int = 1
    """What the call of a macro costs: it runs a part of the source."""


_account: ContextVar[_Account] = ContextVar("_account")


def _charge(work: int) -> None:
    account = _account.get(None)
    if account is not None:  # while it is compiled there is none; what is folded then is bounded in size
        account.work -= work
        if account.work < 0:
            raise TemplateTooLarge(f"the template takes more than {WORK} steps")


def _fits(size: int) -> int:
    if size > SIZE:
        raise TemplateTooLarge(f"the template makes a value of more than {SIZE} characters")
    return size


def _weigh(value: Any) -> int:
    """The characters of a value with all that it holds, as far as they would be written; charged."""
    if isinstance(value, (str, bytes)):
        _charge(1 + (len(value) >> 6))
        return _fits(len(value))
    size, left = 0, [value]
    while left:
        entry = left.pop()
        _charge(1)
        if isinstance(entry, (str, bytes)):
            size += len(entry)
        elif isinstance(entry, int):
            size += 1 + entry.bit_length() // 3
        elif isinstance(entry, (Mapping, ItemsView)):
            left += [part for pair in (entry.items() if isinstance(entry, Mapping) else entry) for part in pair]
        elif isinstance(entry, (list, tuple, set, frozenset, KeysView, ValuesView)):
            left += entry
        elif isinstance(entry, Namespace):
            left.append(vars(entry).get("_Namespace__attrs", ()) if hasattr(entry, "__dict__") else object.__getattribute__(entry, "_Namespace__attrs"))
        size += 1
        _fits(size + len(left))
    _charge(size >> 6)
    return size


def _made(value: Any) -> Any:
    """A new value, charged."""
    if isinstance(value, (str, bytes)):
        _charge(_fits(len(value)) >> 6)
    elif isinstance(value, (list, tuple, set, dict)):
        _charge(_fits(len(value)))
    return value


def _formatted(text: str, arguments: Iterable[Any]) -> None:
    """The bound of a format string, in either style: its widths, and its arguments as often as there are places."""
    if ("{" in text and re.search(r":[^{}]*\{", text)) or re.search(r"%[^a-zA-Z%]*\*", text):
        raise TemplateTooLarge("a template's format may not take its width from an argument")
    width = max((int(found) for found in _WIDTH.findall(text)), default=0)
    places = text.count("{") + text.count("%")
    _fits(len(text) + places * (width + sum(map(_weigh, arguments))))


def _replaced(text: str, old: str, new: str) -> None:
    _fits(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _width(text: Any, width: Any = 0, *_: Any) -> None:
    _fits(max(len(text), width if isinstance(width, int) else 0))


_REFUSED = ("translate", "maketrans")
_SIZES: Mapping[str, Callable[..., object]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), _width),
    "expandtabs": lambda text, tabs=8, *_: _fits(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * max(tabs, 0)),
    "replace": lambda text, old, new, *_: _replaced(text, old, new),
}
"""The bounds of the methods of strings whose answer may be longer than what they are given."""


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text = str(text)
    _fits(len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))


def _several(value: Any, *arguments: Any, **named: Any) -> None:
    """Where the arguments are numbers of blanks or entries, or stand between all entries."""
    more = [*arguments, *named.values()]
    _fits(_weigh(value) * (1 + sum(max(part, 0) if isinstance(part, int) else _weigh(part) for part in more)))


def _numbers_only(value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):
        raise TemplateTooLarge("a template may sum numbers only")


_SHALLOW = frozenset(
    (
        *("length", "count", "first", "last", "default", "d", "list", "items", "reverse", "attr", "random", "safe", "string"),
        *("map", "select", "selectattr", "reject", "rejectattr", "int", "float", "abs", "round"),
    )
)
"""Filters that do not look into the entries of what they are given; `string` is bounded by what is written."""
_FILTER_SIZES: Mapping[str, Callable[..., object]] = {
    "center": lambda value, width=80, *_: _width(str(value), width),
    "indent": _indented,
    "replace": lambda text, old, new, *_: _replaced(str(text), str(old), str(new)),
    "format": lambda text, *arguments, **named: _formatted(str(text), (*arguments, *named.values())),
    **dict.fromkeys(("batch", "slice", "tojson", "urlize", "wordwrap", "xmlattr"), _several),
    "sum": _numbers_only,
    "string": _weigh,
}
_OF_CONTEXT = ("_loop_vars", "_block_vars")
"""What a compiled template hands to every call for functions that take its context."""
_PLAIN_TESTS = frozenset(
    (
        *("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false", "integer", "float"),
        *("callable", "odd", "even", "sameas"),
    )
)
"""Tests that do not look into what they are given."""


def _bounded(name: str, f: Callable[..., Any], *, test: bool = False) -> Callable[..., Any]:
    """A filter or a test that is charged, and whose answer is bounded."""
    skip = 1 if hasattr(f, "jinja_pass_arg") else 0

    @functools.wraps(f)
    def bounded(*arguments: Any, **named: Any) -> Any:
        own = arguments[skip:]
        if name == "join" and not test:
            value = list(own[0])
            between = own[1] if len(own) > 1 else named.get("d", "")
            _fits(_weigh(value) + len(value) * _weigh(between))
            return _made(f(*arguments[:skip], value, *own[1:], **named))
        _charge(1)
        if name not in (_PLAIN_TESTS if test else _SHALLOW):
            for part in (*own, *named.values()):
                _weigh(part)
        if not test and name in _FILTER_SIZES:
            _FILTER_SIZES[name](*own, **named)
        return _made(f(*arguments, **named))

    return bounded


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of transformers, with an account."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _instrument(tree, self)
        return tree

    def counted(self, iterable: Iterable[Any], cost: int = 1) -> Iterator[Any]:
        """The entries, each charged."""
        for entry in iterable:
            _charge(cost)
            yield entry

    def shown(self, value: Any) -> Any:
        """What is about to be written."""
        account = _account.get()
        account.written += _weigh(value)
        _fits(account.written)
        return value

    def joined(self, *values: Any) -> str:
        """What `~` makes."""
        _fits(sum(map(_weigh, values)))
        return "".join(map(str, values))

    def weighed(self, value: Any) -> Any:
        """A value that is about to be compared, or looked up."""
        _weigh(value)
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*`, `**` and `%`, where their answer is small enough."""
        _charge(1)
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "%" and isinstance(left, str):
            _formatted(left, right if isinstance(right, tuple) else (right,))
        elif numbers and operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > BITS:
                raise TemplateTooLarge(f"the template makes a number of more than {BITS} binary digits")
        elif operator == "*" and not numbers:
            value, times = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(times, int) and isinstance(value, Sized):
                _fits(len(value) * max(times, 0))
                _charge(0 if isinstance(value, (str, bytes)) else len(value) * max(times, 0))
        return _made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, which the sandbox has functions of its own for."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text, safely = value.__self__, wrapped

        def bounded(*arguments: Any, **named: Any) -> str:
            _formatted(text, (*arguments, *named.values()))
            return safely(*arguments, **named)

        return functools.update_wrapper(bounded, value)

    def call(self, context: Any, obj: Any, /, *arguments: Any, **named: Any) -> Any:
        """A call from a template: of its own bounds, of a macro, of a method."""
        owner, own = getattr(obj, "__self__", None), {name: value for name, value in named.items() if name not in _OF_CONTEXT}
        if owner is self:
            return obj(*arguments, **own)
        account = _account.get()
        _charge(account.call if isinstance(obj, (Macro, LoopContext)) else 1)
        if isinstance(obj, LoopContext):
            arguments = (self.counted(arguments[0], account.call), *arguments[1:]) if arguments else arguments
        name = getattr(obj, "__name__", "")
        if isinstance(owner, (str, bytes, int)):
            if name in _REFUSED:
                raise TemplateTooLarge(f"a template may not call {name}")
            for part in (owner, *arguments, *own.values()):
                _weigh(part)
            if name == "join" and arguments:
                entries = list(arguments[0])
                _fits(_weigh(entries) + len(entries) * len(owner))  # type: ignore[arg-type]  # numbers have no `join`
                arguments = (entries,)
            elif name in _SIZES:
                sized = (b"" if isinstance(owner, int) else owner, *arguments)
                _SIZES[name](*sized, **own)
        elif isinstance(owner, (list, tuple)) or (isinstance(owner, Mapping) and name in ("get", "fromkeys")):
            for part in (*(() if isinstance(owner, Mapping) else (owner,)), *arguments):
                _weigh(part)
        return _made(super().call(context, obj, *arguments, **named))


def _instrument(tree: nodes.Template, environment: Environment) -> None:
    """Write the calls that count into the parsed template."""

    def through(name: str, line: int, *arguments: nodes.Expr) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=line, environment=environment)
        return nodes.Call(function, list(arguments), [], None, None, lineno=line, environment=environment)

    for node in list(tree.find_all(nodes.Node)):
        if isinstance(node, nodes.For):
            cost = nodes.Const(1 + sum(1 for _ in node.find_all(nodes.Node)) // 16, lineno=node.lineno, environment=environment)
            node.iter = through("counted", node.lineno, cast("nodes.Expr", node.iter), cost)
        elif isinstance(node, nodes.Output):
            node.nodes = [through("shown", node.lineno, child) for child in node.nodes]
        elif isinstance(node, nodes.Concat):
            node.nodes = [through("joined", node.lineno, *node.nodes)]
        elif isinstance(node, nodes.Compare):
            node.expr = through("weighed", node.lineno, node.expr)
            for operand in node.ops:
                operand.expr = through("weighed", node.lineno, operand.expr)
        elif isinstance(node, nodes.Pair):
            node.key = through("weighed", node.lineno, node.key)
        elif isinstance(node, nodes.Getitem) and not isinstance(node.arg, (nodes.Const, nodes.Slice)):
            node.arg = through("weighed", node.lineno, node.arg)


@functools.lru_cache(maxsize=8)
def _environment(like: Environment) -> _BoundedEnvironment:
    """The bounded form of an environment: the same settings, extensions, filters and globals."""
    made = _BoundedEnvironment(
        trim_blocks=like.trim_blocks,
        lstrip_blocks=like.lstrip_blocks,
        keep_trailing_newline=like.keep_trailing_newline,
        extensions=[type(extension) for extension in like.extensions.values()],
    )
    made.filters = {name: _bounded(name, cast("Callable[..., Any]", f)) for name, f in like.filters.items()}
    made.tests = {name: _bounded(name, cast("Callable[..., Any]", f), test=True) for name, f in like.tests.items()}
    made.globals = {name: value for name, value in like.globals.items() if name != "lipsum"}
    return made


@functools.lru_cache(maxsize=32)
def _compiled(source: str, like: Environment) -> tuple[Template, int]:
    environment = _environment(like)
    size = sum(1 for _ in environment.parse(source).find_all(nodes.Node))
    return environment.from_string(source), 4 + size // 16


def render_bounded(source: str, like: Environment, variables: Mapping[str, Any]) -> str:
    """What the template writes, as an environment `like` that of transformers renders it.

    Raises `TemplateTooLarge` where it is not bounded by the module's numbers, and whatever Jinja and the template raise.

    >>> from jinja2.sandbox import ImmutableSandboxedEnvironment
    >>> render_bounded("{{ 'ab' * n }}", ImmutableSandboxedEnvironment(), {"n": 2})
    'abab'
    >>> render_bounded("{{ 'ab' * n }}", ImmutableSandboxedEnvironment(), {"n": 10**13})
    Traceback (most recent call last):
    ...
    pipegen.backends.checkpoint.bounded_template.TemplateTooLarge: the template makes a value of more than 8388608 characters
    """
    if len(source) > SOURCE:
        raise TemplateTooLarge(f"the template has {len(source)} characters; the limit is {SOURCE}")
    template, call = _compiled(source, like)
    token = _account.set(_Account(call=call))
    try:
        return template.render(**variables)
    finally:
        _account.reset(token)
