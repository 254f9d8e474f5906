"""The tools of one conversation: what `pg.tools(make=f)` calls `f` for.

>>> class Account:
...     def __init__(self):
...         self.sum = 0
...
...     def add(self, amount: int) -> int:
...         "Add to the account."
...         self.sum += amount
...         return self.sum
...
...     def close(self): ...
>>> [method.__name__ for method in methods_of(Account())]
['add']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def methods_of(given: Any) -> list[Callable[..., Any]]:
    """The tools that an object of the user's is: itself, where it is a list; else its public methods
    but `close`, in the order of their definition, those of its base classes first.
    """
    if isinstance(given, (list, tuple)):
        return [*given]
    names = [
        name
        for kind in reversed(type(given).__mro__[:-1])  # without `object`
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and name != "close"
        and (inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod)))
    ]
    return [getattr(given, name) for name in dict.fromkeys(names)]


def says(function: Any, name: str, *, default: bool) -> bool:
    """What a tool says of itself, or the object whose method it is; else the default. A method of
    that name is a tool. Raises `TypeError` where that is neither True nor False.
    """
    owner = getattr(function, "__self__", None)
    value = getattr(function, name, getattr(owner, name, default))
    if inspect.isroutine(value):
        return default
    if type(value) is not bool:
        tool = getattr(function, "__name__", type(function).__name__)
        raise TypeError(f"{name} of {tool!r} takes True or False, not {value!r:.80}")
    return value
