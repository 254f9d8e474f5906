"""The states of the plugins that watch one row. An error of a plugin fails its own row, as a
`PluginFailed`.

>>> from pipegen.engines.plugin import Plugin
>>> brace = Plugin(
...     name="brace",
...     start=lambda: None,
...     feed=lambda state, text: (state, text.index("}") + 1 if "}" in text else None),
... )
>>> plugins = PluginStates((brace,))
>>> plugins.feed("{a")
>>> plugins.feed("b} c")
Halt(plugin='brace', kept=2)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.errors import GenerationError, PluginFailed
from pipegen.core.foreign_calls import guard_result
from pipegen.core.slots import is_ok
from pipegen.engines.plugin import Plugin
from pipegen.records.frozen import printed

T = TypeVar("T")
E = TypeVar("E", bound=GenerationError)


class Halt(NamedTuple):
    """The plugin of that name ends the row; `kept` characters of the last text belong to the
    answer.
    """

    plugin: str
    kept: int


def ask_plugin(plugin: Plugin, work: Callable[[], Result[T, E]]) -> Result[T, E | PluginFailed]:
    """The result of `work`, which calls the plugin and reads its answer; `PluginFailed` if either
    raises.

    >>> ask_plugin(Plugin(name="p"), lambda: Success(int("no"))).failure().message
    "plugin 'p' raised ValueError: invalid literal for int() with base 10: 'no'"
    """
    return guard_result(
        work,
        lambda raised: PluginFailed(
            f"plugin {plugin.name!r} raised {raised.words}",
            plugin=plugin.name,
            incident=raised.incident,
        ),
    )


def not_fed(answer: object) -> str:
    """The message for a wrong return value of `feed`.

    >>> not_fed(None)
    'feed gave None, not the next state and how many characters are kept'
    """
    return f"feed gave {printed(answer)}, not the next state and how many characters are kept"


class PluginStates:
    """Passes a row's new text to its plugins, and holds the state of each; false if none
    watches.
    """

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._plugins = tuple(plugin for plugin in plugins if plugin.feed is not None)
        self._states: list[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._plugins)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the plugins that watch."""
        return tuple(plugin.name for plugin in self._plugins)

    def feed(self, text: str) -> Halt | PluginFailed | None:
        """Pass new text to every plugin, unless it is empty. The first failure wins, then the first
        halt, in the plugins' order.
        """
        if not text or not self._plugins:
            return None
        halt: Halt | None = None
        states = self._states or [None] * len(self._plugins)
        for index, plugin in enumerate(self._plugins):
            fed = ask_plugin(
                plugin, partial(_fed, plugin, text, states[index], begins=self._states is None)
            )
            if not is_ok(fed):
                return fed.failure()
            states[index], length = fed.unwrap()
            if length is not None and halt is None:
                halt = Halt(plugin.name, length)
        self._states = states
        return halt


def _fed(
    plugin: Plugin, text: str, state: Any, *, begins: bool
) -> Result[tuple[Any, int | None], PluginFailed]:
    """Pass the text to one plugin, which starts first if the row begins."""
    if begins and plugin.start is not None:
        state = plugin.start()
    answer: Any = plugin.feed(state, text) if plugin.feed is not None else (None, None)
    if not isinstance(answer, tuple) or len(answer) != 2:
        return Failure(
            PluginFailed(f"plugin {plugin.name!r}: {not_fed(answer)}", plugin=plugin.name)
        )
    length = answer[1]
    if length is not None and (type(length) is not int or not 0 <= length <= len(text)):
        message = (
            f"plugin {plugin.name!r} kept {printed(length)}; feed takes None or 0 to {len(text)}"
            " characters of the new text"
        )
        return Failure(PluginFailed(message, plugin=plugin.name))
    return Success((answer[0], length))
