"""Attach logits processors and stopping criteria that were written for transformers.

>>> plugin = hf_hooks(stopping_criteria=lambda row: lambda input_ids, scores: input_ids.shape[1] - row.prompt_length >= 8)
>>> sorted(plugin.needs)
['stopping_criteria']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipegen.engines.plugin import Plugin, RowContext
from pipegen.records.fields import InvalidField

__all__ = ["hf_hooks"]

Hook = Callable[..., Any]


def hf_hooks(*, stopping_criteria: Hook | None = None, logits_processor: Hook | None = None, name: str = "hf_hooks") -> Plugin:
    """Hooks of your own for Hugging Face engines: a logits processor, stopping criteria, or both.

    Each is one of two things. An object of one of transformers' classes, or of a class derived from one (`LogitsProcessor`, `StoppingCriteria`, or a list
    of them), is called as it is for every row, so it must not keep anything from one call to the next. Anything else is called with the `RowContext`
    of each row, once, and makes the object for that row: a class or a function that takes the length of the prompt from it, or keeps a state.

    Either way it is called as transformers would call it, with `input_ids` (1, length) that begin with the row's prompt, without padding, and with
    `scores` (1, vocabulary), which are None for stopping criteria. Rows never share a call, whatever batch they ride in. A processor returns scores of the
    same shape, and criteria return a bool or a tensor of them.

    `name` is what results and errors call it. Raises `InvalidField` when neither hook is given, or one cannot be called.
    """
    hooks = {"stopping_criteria": stopping_criteria, "logits_processor": logits_processor}
    if not any(hook is not None for hook in hooks.values()):
        raise InvalidField("hf_hooks takes stopping_criteria, logits_processor, or both")
    for kind, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise InvalidField(f"hf_hooks takes an object of transformers, or a function of a RowContext that makes one, as {kind}, not {hook!r}")
    return Plugin(name=name, stopping_criteria=_maker(stopping_criteria), logits_processor=_maker(logits_processor))


def _maker(hook: Any) -> Callable[[RowContext], Any] | None:
    ready = any(kind.__module__.partition(".")[0] == "transformers" for kind in type(hook).__mro__)
    return (lambda context: partial(hook)) if ready else hook
