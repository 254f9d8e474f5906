"""Whether a user's own code is that of the kept rows: stages, loops, tools and plugins.

A digest has a function's bytecode, constants and defaults. What it closes over counts by value,
where that is plain. Plain globals that it reads count too. So do functions of its module. File
names, lines, comments and docstrings do not. A row's key has no code. A change is reported. `version`
settles it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

from pipegen.core.pipe import Pipe
from pipegen.core.steps import Branch, Call, Stage, Step
from pipegen.drivers.tools import Tools

_OWN = "pipegen."
_MOST = 10_000
"""Entries of a collection that is compared by value."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
_HOOKS = ("start", "feed", "trim", "logits_processor", "stopping_criteria", "refuses")


def codes_of(route: Pipe[Any, Any], engines: Iterable[object]) -> dict[str, str]:
    """The digest of each function of a user's own in a pipe, by where it is. `python` tells for
    which Python they are. Others make other bytecode.

    >>> from pipegen.core.pipe import pure
    >>> texts = ("lambda n: 2 * n", "lambda n: 2 * n", "lambda n: 3 * n")
    >>> functions = [eval(text, {"__name__": "mine"}) for text in texts]
    >>> codes = [codes_of(pure("twice", function), ()) for function in functions]
    >>> codes[0] == codes[1], codes[0] == codes[2], [*codes[0]]
    (True, False, ["stage 'twice'", 'python'])
    """
    codes: dict[str, str] = {}
    for name, functions in [*_of_pipe(route), *_of_plugins(engines)]:
        parts = [part for function in functions for part in _parts(function, set())]
        if parts:
            codes[name] = _digest([codes.get(name, ""), *parts])
    return codes and {**codes, "python": sys.implementation.cache_tag or ""}


def changed_code(before: object, now: Mapping[str, str]) -> list[str]:
    """Where the code is another than it was; nowhere where it cannot be compared."""
    if not isinstance(before, Mapping) or before.get("python") != now.get("python"):
        return []
    return [name for name in now if before.get(name, now[name]) != now[name]]


def _of_pipe(route: Pipe[Any, Any]) -> Iterator[tuple[str, list[object]]]:
    """The functions of each step, and of the pipes within it."""
    for step in route.steps:
        functions, tools = _functions(step), _tools(step)
        yield f"stage {step.name!r}", [] if tools is not None else functions
        if tools is not None:
            for name, function in tools.codes.items():
                yield f"tool {name!r}", [function]
        if isinstance(step, Branch):
            for way in {id(way): way for way in step.ways}.values():
                yield from _of_pipe(way)


def _functions(step: Step) -> list[object]:
    if isinstance(step, Stage):
        return [] if step.internal else [step.row, step.prepare]
    return [getattr(step, name) for name in ("ask", "leave") if hasattr(step, name)]


def _tools(step: Step) -> Tools | None:
    return step.backend if isinstance(step, Call) and isinstance(step.backend, Tools) else None


def _of_plugins(engines: Iterable[object]) -> Iterator[tuple[str, list[object]]]:
    for engine in engines:
        for plugin in getattr(engine, "plugins", ()):
            yield f"plugin {plugin.name!r}", [getattr(plugin, hook, None) for hook in _HOOKS]


def _digest(parts: Sequence[str]) -> str:
    from hashlib import blake2b

    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _parts(value: object, visited: set[int]) -> Iterator[str]:
    """What is compared of a function, and of what it closes over. Pipegen's own code is left out."""
    if id(value) in visited:
        return
    if isinstance(value, functools.partial):
        inside = (*value.args, *value.keywords.values())
        if _is_own(value.func):
            inside = tuple(inner for inner in inside if _may_be_theirs(inner))
        for inner in (value.func, *inside, *([] if _is_own(value.func) else value.keywords)):
            yield from _parts(inner, visited)
    elif isinstance(value, MethodType):
        yield from _parts(value.__func__, visited)
        yield from _of_object(value.__self__, visited)
    elif isinstance(value, FunctionType):
        visited.add(id(value))
        yield from _of_function(value, visited)
    elif isinstance(value, (*_PLAIN, list, tuple, dict, set, frozenset)):
        yield from _plain(value, visited)
    elif isinstance(value, type):
        if value.__module__.partition(".")[0] not in ("builtins", "pipegen", "returns"):
            yield value.__qualname__
    elif callable(value) and not _is_own(type(value)) and not isinstance(value, Pipe):
        visited.add(id(value))
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            yield from _parts(wrapped, visited)
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, FunctionType):
            yield from _parts(call, visited)
            yield from _attributes(value)


def _is_own(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith(_OWN)


def _of_object(value: object, visited: set[int]) -> Iterator[str]:
    """The plain attributes of an object whose method is a stage, and its other methods."""
    if _is_own(type(value)) or isinstance(value, type):
        return
    visited.add(id(value))
    yield from _attributes(value)
    for name, inner in sorted(vars(type(value)).items()):
        if isinstance(inner, FunctionType):
            yield name
            yield from _parts(inner, visited)


def _attributes(value: object) -> Iterator[str]:
    for name, inner in sorted(getattr(value, "__dict__", {}).items()):
        if isinstance(inner, _PLAIN):
            yield f"{name}={inner!r}"


def _of_function(function: FunctionType, visited: set[int]) -> Iterator[str]:
    cells = [_content(cell) for cell in function.__closure__ or ()]
    if _is_own(function):
        # of what pipegen wraps, only functions are the user's
        for inner in filter(_may_be_theirs, cells):
            yield from _parts(inner, visited)
        return
    yield from _of_code(function.__code__, function.__doc__)
    for inner in (*cells, *(function.__defaults__ or ())):
        yield from _parts(inner, visited)
    for name, inner in sorted((function.__kwdefaults__ or {}).items()):
        yield name
        yield from _parts(inner, visited)
    for name in _names(function.__code__):
        inner = function.__globals__.get(name)
        is_near = isinstance(inner, FunctionType) and inner.__module__ == function.__module__
        if is_near or (name in function.__globals__ and isinstance(inner, (*_PLAIN, tuple))):
            yield name
            yield from _parts(inner, visited)


def _may_be_theirs(value: object) -> bool:
    """Whether what pipegen holds may be a function of the user's."""
    return callable(value) and not isinstance(value, type)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty still
        return None


def _of_code(code: CodeType, words: str | None) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, None)
        elif constant is not None and constant is not words and constant != words:
            yield from _plain(constant, set())


def _names(code: CodeType) -> list[str]:
    """The names that a function reads, and those within it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return sorted({*code.co_names, *(name for one in inner for name in _names(one))})


def _plain(value: object, visited: set[int]) -> Iterator[str]:
    """A plain value or a collection. Functions in it count by their code."""
    if isinstance(value, (set, frozenset, list, tuple, dict)):
        yield f"{type(value).__name__} {len(value)}"
        if len(value) > _MOST or id(value) in visited:
            return
        visited.add(id(value))
        if isinstance(value, (set, frozenset)):
            yield from sorted(repr(inner) for inner in value if isinstance(inner, _PLAIN))
            return
        for inner in (
            (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        ):
            yield from _parts(inner, visited)
    elif isinstance(value, _PLAIN):
        yield repr(value)
