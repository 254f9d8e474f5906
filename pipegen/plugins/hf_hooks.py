"""Attach logits processors and stopping criteria that were written for transformers.

>>> plugin = hf_hooks(
...     stopping_criteria=lambda row: (
...         lambda input_ids, scores: input_ids.shape[1] - row.prompt_length >= 8
...     )
... )
>>> sorted(plugin.needs)
['stopping_criteria']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipegen.core.names import InvalidField
from pipegen.engines.plugin import Plugin, RowContext, takes

Hook = Callable[..., Any]


def hf_hooks(
    *,
    stopping_criteria: Hook | None = None,
    logits_processor: Hook | None = None,
    name: str = "hf_hooks",
) -> Plugin:
    """Your own hooks for Hugging Face engines: a logits processor, stopping criteria, or both.

    An object of transformers' own classes or their subclasses (`LogitsProcessor`,
    `StoppingCriteria`, or a list of them) is called for every row, so it must not keep state
    between calls. So is any function of `input_ids` and `scores`. Anything else is called once for
    each row with its `RowContext`, and returns the hook of that row. `row.tokenizer` is
    transformers' own.

    A hook is called for one row at a time, with `input_ids` (1, length) that begin with the prompt,
    without padding, and `scores` (1, vocabulary), None for stopping criteria. A processor returns
    scores of the same shape, criteria a bool or a tensor of them.

    `name` is the plugin's name in results and errors. Raises `InvalidField` if neither hook is
    given, or one is not callable, and for a class or a function that takes no `RowContext`.
    """
    hooks = {"stopping_criteria": stopping_criteria, "logits_processor": logits_processor}
    if not any(hook is not None for hook in hooks.values()):
        raise InvalidField("hf_hooks takes stopping_criteria, logits_processor, or both")
    for kind, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise InvalidField(
                "hf_hooks takes an object of transformers, or a function of a RowContext that"
                f" makes one, as {kind}, not {hook!r}"
            )
    return Plugin(
        name=name,
        stopping_criteria=_maker(stopping_criteria),
        logits_processor=_maker(logits_processor),
    )


def _maker(hook: Any) -> Callable[[RowContext], Any] | None:
    ready = any(kind.__module__.partition(".")[0] == "transformers" for kind in type(hook).__mro__)
    if callable(hook) and not isinstance(hook, type):
        ready = ready or (takes(hook, 2) and not takes(hook, 1))
    return (lambda context: partial(hook)) if ready else hook
