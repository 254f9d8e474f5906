"""Let the plugins of one row watch its text as it comes.

The one rule: what a plugin does wrong fails its own row, as a `PluginFailed`, and nothing else.

>>> from pipegen.plugins.plugin import Plugin
>>> brace = Plugin(name="brace", start=lambda: None, feed=lambda state, text: (state, text.index("}") + 1 if "}" in text else None))
>>> watch = Watch((brace,))
>>> watch.feed("{a")
>>> watch.feed("b} c")
Halt(plugin='brace', kept=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipegen.errors import PluginFailed
from pipegen.plugins.plugin import Plugin

__all__ = ["PLUGIN_ERRORS", "Halt", "Watch", "not_fed", "plugin_failed"]

PLUGIN_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, OSError, RuntimeError, TypeError, ValueError)
"""What a plugin may raise to fail its own row; a plugin is the caller's code, and its bugs are data here. Anything else comes through."""


class Halt(NamedTuple):
    """The plugin of that name ends the row; `kept` characters of the text just fed still belong to the answer."""

    plugin: str
    kept: int


def plugin_failed(plugin: Plugin, raised: BaseException) -> PluginFailed:
    """The error for a plugin that raised.

    >>> plugin_failed(Plugin(name="p"), ValueError("no")).message
    "plugin 'p' raised ValueError: no"
    """
    return PluginFailed(f"plugin {plugin.name!r} raised {type(raised).__name__}: {raised}", plugin=plugin.name)


def not_fed(answer: object) -> str:
    """What to say of something that `feed` may not give.

    >>> not_fed(None)
    'feed gave None, not the next state and how many characters are kept'
    """
    return f"feed gave {answer!r:.200}, not the next state and how many characters are kept"


class Watch:
    """The states of the plugins that watch one row. It is false where no plugin watches."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._plugins = tuple(plugin for plugin in plugins if plugin.feed is not None)
        self._states: list[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._plugins)

    def feed(self, text: str) -> Halt | PluginFailed | None:
        """Show new text to every plugin. The first failure wins, then the first halt, in the plugins' order; empty text is not shown."""
        if not text or not self._plugins:
            return None
        halt: Halt | None = None
        states = self._states or [None] * len(self._plugins)
        for place, plugin in enumerate(self._plugins):
            try:
                if self._states is None and plugin.start is not None:
                    states[place] = plugin.start()
                answer: Any = plugin.feed(states[place], text) if plugin.feed is not None else (None, None)
            except PLUGIN_ERRORS as raised:
                return plugin_failed(plugin, raised)
            if not isinstance(answer, tuple) or len(answer) != 2:
                return PluginFailed(f"plugin {plugin.name!r}: {not_fed(answer)}", plugin=plugin.name)
            states[place], kept = answer
            if kept is not None and (type(kept) is not int or not 0 <= kept <= len(text)):
                return PluginFailed(f"plugin {plugin.name!r} kept {kept!r}; feed takes None or 0 to {len(text)} characters of the new text", plugin=plugin.name)
            if kept is not None and halt is None:
                halt = Halt(plugin.name, kept)
        self._states = states
        return halt
