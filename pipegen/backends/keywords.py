"""Settings of the functions that make routes: one that a function does not have is refused with the nearest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pipegen.records.fields import UnknownField, nearest

__all__ = ["named_settings"]

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE = {"torch_dtype": "dtype", "load_in_8bit": "engine_kwargs", "load_in_4bit": "engine_kwargs", "quantization_config": "engine_kwargs"}
"""Names that other libraries have for a setting."""


def named_settings(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which raises `UnknownField` (a `TypeError`, too) for a keyword that it does not have.

    >>> @named_settings
    ... def open_model(model: str, *, dtype: str = "auto") -> str:
    ...     return dtype
    >>> open_model("m", torch_dtype="float32")
    Traceback (most recent call last):
    ...
    pipegen.records.fields.UnknownField: open_model has no setting 'torch_dtype'; did you mean 'dtype'?
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = f"; did you mean {_ELSEWHERE[name]!r}?" if _ELSEWHERE.get(name) in known else nearest(name, known)
                also = "" if near or "engine_kwargs" not in known else "; arguments of the engine itself go to engine_kwargs"
                raise UnknownField(f"{function.__name__} has no setting {name!r}{near}{also}")
        return function(*args, **kwargs)

    return called
