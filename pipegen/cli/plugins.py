"""Plugins by flag: `--plugin NAME` or `--plugin NAME:ARGUMENT=VALUE,...`, one of those in
`pipegen.plugins`.

>>> [plugin.name for plugin in plugins_of(["balanced_json:max_objects=2", "split_reasoning"])]
['balanced_json', 'split_reasoning']
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pipegen import plugins
from pipegen.cli.usage import refuse
from pipegen.core.errors import BackendFailed, UnsupportedPlugin
from pipegen.core.names import InvalidField, nearest
from pipegen.core.pipe import Pipe
from pipegen.drivers.route import attach
from pipegen.plugins import Plugin
from pipegen.records import strict_json

P = TypeVar("P", bound=Pipe[Any, Any])
FLAG = "--plugin"
_OBJECTS = ("hf_hooks",)
"""Those that take Python objects, which a flag cannot express."""


def makers() -> Mapping[str, Callable[..., Plugin]]:
    """The functions that make plugins, by name.

    >>> sorted(makers())
    ['balanced_json', 'forbid_repeated_objects', 'halt_on_repetition', 'split_reasoning', 'strip_prefix']
    """
    candidates = {name: getattr(plugins, name) for name in plugins.__all__ if name not in _OBJECTS}
    return {
        name: function
        for name, function in candidates.items()
        if inspect.isfunction(function)
        and inspect.signature(function).return_annotation == "Plugin"
    }


def plugins_of(flags: Sequence[str]) -> tuple[Plugin, ...]:
    """The plugins of the flags, in order. An unknown name or bad argument is bad usage."""
    return tuple(_plugin(flag) for flag in flags)


def attached(route: P, added: Sequence[Plugin]) -> P:
    """The route with the plugins attached, to each of its engines. One that does not support them
    is bad usage, found before anything is loaded.
    """
    try:
        return attach(route, *added) if added else route
    except (UnsupportedPlugin, BackendFailed) as error:
        refuse(f"{error.message}; {error.hint}", FLAG)


def _plugin(flag: str) -> Plugin:
    name, _, text = flag.partition(":")
    plugin_makers = makers()
    if name not in plugin_makers:
        refuse(
            f"takes one of {', '.join(plugin_makers)}, not {name!r}{nearest(name, plugin_makers)}",
            FLAG,
        )
    parameters = inspect.signature(plugin_makers[name]).parameters
    arguments: dict[str, object] = {}
    for argument, value in _arguments(text, name).items():
        if argument not in parameters:
            takes = f"takes {', '.join(parameters)}" if parameters else "takes no arguments"
            refuse(f"{name} {takes}, not {argument!r}{nearest(argument, parameters)}", FLAG)
        several = "Sequence" in str(parameters[argument].annotation) and isinstance(value, str)
        arguments[argument] = [value] if several else value
    try:
        return plugin_makers[name](**arguments)
    except (InvalidField, TypeError) as refusal:  # a bad value; a missing argument
        refuse(f"{name}: {refusal}", FLAG)


def _arguments(text: str, name: str) -> dict[str, object]:
    """`a=1,b=[2, 3],c=word` as a mapping: values are JSON if possible, else text up to the next
    comma.
    """
    arguments: dict[str, object] = {}
    while text:
        argument, equals, rest = text.partition("=")
        if not equals or not argument:
            refuse(f"{name}: arguments are written {name}:ARGUMENT=VALUE,..., not {text!r}", FLAG)
        if argument in arguments:
            refuse(f"{name}: {argument} is given twice", FLAG)
        arguments[argument], text = _value(rest)
    return arguments


def _value(rest: str) -> tuple[Any, str]:
    """The value at the start, and the rest after its comma."""
    if rest[:1] in ("[", "{", '"'):
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            pass
        else:
            if rest[end : end + 1] in ("", ","):
                return value, rest[end + 1 :]
    word, _, after = rest.partition(",")
    try:
        return strict_json.load(word), after
    except strict_json.NotStrict:
        return word, after
