"""Every error and exception of pipegen goes through pickle unchanged: work in other processes gives
back what it saw.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import typing
from typing import Any

import pipegen
from pipegen.backends.http.rates import Wait
from pipegen.backends.servers.wire import WireReply
from pipegen.core.errors import BadImage, CallFailed, GenerationError, InvalidRequest

VALUES: dict[Any, Any] = {
    str: "words",
    str | None: "words",
    int: 3,
    Wait: Wait(1.5, "words"),
    bool: True,
    float: 1.5,
    GenerationError: InvalidRequest("earlier"),
    WireReply: WireReply(status=500),
}


def every_class() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in pkgutil.walk_packages(pipegen.__path__, "pipegen."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError as missing:
            if (missing.name or "").startswith("pipegen"):
                raise
            continue  # it needs a package of an extra
        for name, kind in vars(module).items():
            if (
                inspect.isclass(kind)
                and kind.__module__ == info.name
                and issubclass(kind, (BaseException, GenerationError))
            ):
                found[f"{info.name}.{name}"] = kind
    return found


CLASSES = every_class()


def example(kind: Any) -> Any:
    """An instance with a value for every parameter."""
    hints = typing.get_type_hints(kind.__init__)
    if issubclass(kind, GenerationError):
        return (
            kind("words", hint="do", earlier=(InvalidRequest("x"),))
            if kind not in _NUMBERED
            else kind(*_NUMBERED[kind], hint="do")
        )
    if (
        kind.__init__ in (Exception.__init__, ValueError.__init__, ImportError.__init__)
        or not hints
    ):
        return kind("words")
    parameters = [
        one
        for one in inspect.signature(kind).parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    values = {one.name: VALUES[hints[one.name]] for one in parameters}
    return kind(
        *(values[one.name] for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD),
        **{one.name: values[one.name] for one in parameters if one.kind is one.KEYWORD_ONLY},
    )


_NUMBERED: dict[Any, tuple[int, ...]] = {BadImage: (3,), pipegen.PromptTooLong: (9, 4)}


def test_the_classes_are_found() -> None:
    names = {name.rpartition(".")[2] for name in CLASSES}
    assert {
        "CallFailed",
        "ContractError",
        "InvalidField",
        "UnknownField",
        "MissingExtra",
        "BackendFailed",
        "PromptTooLong",
        "NoSuchModel",
    } <= names


def is_same(again: Any, original: Any) -> bool:
    kept = (type(again), str(again), repr(again), getattr(again, "__dict__", None))
    same = kept == (
        type(original),
        str(original),
        repr(original),
        getattr(original, "__dict__", None),
    )
    return same and (again == original or not isinstance(original, GenerationError))


def test_each_comes_back_from_a_pickle_and_a_copy_as_it_was() -> None:
    originals = {name: example(kind) for name, kind in CLASSES.items()}
    changed = [
        name
        for name, one in originals.items()
        if not is_same(pickle.loads(pickle.dumps(one)), one) or not is_same(copy.deepcopy(one), one)
    ]
    assert changed == []


def test_a_call_that_failed_says_what_its_error_says() -> None:
    failure = CallFailed(pipegen.BackendFailed("gone", backend="x"))
    assert str(pickle.loads(pickle.dumps(failure))) == "gone"
    assert pickle.loads(pickle.dumps(failure)).error == failure.error
