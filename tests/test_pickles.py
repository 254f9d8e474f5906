"""Every error and exception of pipegen goes through pickle unchanged: work in other processes gives back what it saw."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import typing
from typing import Any

import pytest

import pipegen
from pipegen.backends.servers.wire import WireReply
from pipegen.core.errors import BadImage, CallFailed, GenerationError, InvalidRequest

MADE: dict[Any, Any] = {
    str: "words",
    str | None: "words",
    int: 3,
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
            if inspect.isclass(kind) and kind.__module__ == info.name and issubclass(kind, (BaseException, GenerationError)):
                found[f"{info.name}.{name}"] = kind
    return found


CLASSES = every_class()


def made(kind: Any) -> Any:
    """An instance with a value for every parameter."""
    hints = typing.get_type_hints(kind.__init__)
    if issubclass(kind, GenerationError):
        return kind("words", hint="do", earlier=(InvalidRequest("x"),)) if kind not in _NUMBERED else kind(*_NUMBERED[kind], hint="do")
    if kind.__init__ in (Exception.__init__, ValueError.__init__, ImportError.__init__) or not hints:
        return kind("words")
    parameters = [one for one in inspect.signature(kind).parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    values = {one.name: MADE[hints[one.name]] for one in parameters}
    return kind(
        *(values[one.name] for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD),
        **{one.name: values[one.name] for one in parameters if one.kind is one.KEYWORD_ONLY},
    )


_NUMBERED: dict[Any, tuple[int, ...]] = {BadImage: (3,), pipegen.PromptTooLong: (9, 4)}


def test_the_classes_are_found() -> None:
    names = {name.rpartition(".")[2] for name in CLASSES}
    assert {"CallFailed", "ContractError", "InvalidField", "UnknownField", "MissingExtra", "BackendFailed", "PromptTooLong", "NoSuchModel"} <= names


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_it_comes_back_from_a_pickle_as_it_was(name: str) -> None:
    original = made(CLASSES[name])
    for again in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert type(again) is type(original)
        assert (str(again), repr(again)) == (str(original), repr(original))
        assert getattr(again, "__dict__", None) == getattr(original, "__dict__", None)
        if isinstance(original, GenerationError):
            assert again == original


def test_a_call_that_failed_says_what_its_error_says() -> None:
    failure = CallFailed(pipegen.BackendFailed("gone", backend="x"))
    assert str(pickle.loads(pickle.dumps(failure))) == "gone"
    assert pickle.loads(pickle.dumps(failure)).error == failure.error
