"""A plugin is a value: what it needs of an engine, and what it does.

`feed` watches the text of one row as it comes and may halt it; it is engine-neutral, incremental
and pure: state in, state out. `trim` is a pure function on the finished text. `logits_processor`
and `stopping_criteria` are for Hugging Face engines only.

>>> shout = Plugin(name="shout", trim=str.upper)
>>> shout.trim("abc")
'ABC'
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Annotated, Any, Self

from pipegen.core.names import InvalidField
from pipegen.engines.capabilities import Capability
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import non_empty_string, record
from pipegen.records.requests import GenerationRequest


@record
class RowContext:
    """What an engine tells a hook about the one answer that it is made for."""

    prompt_length: int
    """Tokens of the prompt, with which the ids of the hook begin."""
    tokenizer: Any
    """The checkpoint's own. A Hugging Face engine gives transformers' tokenizer itself, with all of
    its methods.
    """
    exact_tokenizer: Tokenizer | None = None
    """The tokenizer as pipegen's stages use it. It adds nothing."""


def takes(function: Any, count: int) -> bool:
    """Whether a function takes so many arguments by position.

    >>> takes(lambda row: row, 1), takes(lambda input_ids, scores: scores, 1)
    (True, False)
    """
    import inspect  # a first request needs none

    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some functions written in C say nothing
        return True
    return True


def _check_takes_row(where: str, make: object) -> None:
    """Raise `InvalidField` for what cannot be called with a row, with the way out."""
    if make is None or takes(make, 1):
        return
    name = getattr(make, "__qualname__", type(make).__name__)
    if isinstance(make, type):
        advice = (
            f"the class {name} takes no row: hf_hooks takes an object of it ({name}(...)), which"
            f" serves all rows, or lambda row: {name}(...), which makes one for each"
        )
    else:
        advice = (
            f"{name} takes no row: lambda row: {name} gives it to each, and hf_hooks takes a"
            " function of input_ids and scores as it is"
        )
    raise InvalidField(f"{where} takes a function of a row that makes its hook; {advice}")


def _capabilities(value: object) -> object:
    if (
        isinstance(value, str)
        or not isinstance(value, Collection)
        or not all(isinstance(name, str) for name in value)
    ):
        raise ValueError("capabilities, such as {'watch'}")
    return frozenset(value)


@record
class Plugin:
    """What an engine does to each answer besides generating. A plugin watches the text and may end
    the answer, trims the finished text, or steers the choice of tokens. A plugin does nothing until it is
    attached to a route.
    """

    name: Annotated[str, non_empty_string]
    """The plugin's name, which results and errors show."""
    requires: Annotated[frozenset[Capability], _capabilities] = frozenset()
    """Further capabilities that the engine must have."""
    start: Callable[[], Any] | None = None
    """Make the state for a new answer."""
    feed: Callable[[Any, str], tuple[Any, int | None]] | None = None
    """`feed(state, new_text)` returns the next state, and None, or the number of characters of
    `new_text` before the end of the answer.
    """
    trim: Callable[[str], str] | None = None
    """A function on the finished text, after the cut."""
    logits_processor: Callable[[RowContext], Any] | None = None
    """Makes a `LogitsProcessor` for one answer. It sees that answer alone, without padding."""
    stopping_criteria: Callable[[RowContext], Any] | None = None
    """Makes a `StoppingCriteria` for one answer. It sees that answer alone, without padding."""

    version: str = ""
    """What the plugin does: in a job, another version sends all requests again. Those that ship say
    their arguments.
    """
    refuses: Callable[[GenerationRequest], str | None] | None = None
    """Returns why the plugin does not fit one request, or None. Such a request alone fails."""

    def check_all(self) -> None:
        for name in ("start", "feed", "trim", "logits_processor", "stopping_criteria", "refuses"):
            f = getattr(self, name)
            if f is not None and not callable(f):
                raise InvalidField(f"Plugin.{name} takes a function, not {f!r:.200}")
            if name in ("logits_processor", "stopping_criteria"):
                _check_takes_row(f"Plugin.{name}", f)
        if (self.start is None) != (self.feed is None):
            raise InvalidField(f"plugin {self.name!r} takes start and feed together, or neither")

    @property
    def needs(self) -> frozenset[Capability]:
        """Everything the plugin requires of an engine."""
        hooks = {
            "watch": self.feed,
            "logits_processor": self.logits_processor,
            "stopping_criteria": self.stopping_criteria,
        }
        return self.requires | {
            capability for capability, hook in hooks.items() if hook is not None
        }


class Pluggable:
    """An engine to which plugins are attached."""

    plugins: tuple[Plugin, ...] = ()

    def with_plugin(self, plugin: Plugin) -> Self:
        """A copy with a plugin attached; it shares all that the engine holds."""
        other = copy.copy(self)
        other.plugins = (*self.plugins, plugin)
        return other
