"""Functions as tools: the JSON Schema of their arguments, the arguments of a call as they take them,
and the tools of one conversation, for which `pg.tools(make=f)` calls `f`.

>>> def add(first: int, second: int = 0) -> int:
...     "Add two numbers."
...     return first + second
>>> schema_of(add)["properties"], schema_of(add)["required"]
({'first': {'type': 'integer'}, 'second': {'type': 'integer'}}, ['first'])
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required, Union

from typing_extensions import is_typeddict

_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_LISTS = (list, tuple, set)
_SAYING = (Annotated, Required, NotRequired)
"""What says more about the type in it."""


def schema_of(function: Callable[..., Any]) -> dict[str, object]:
    """The schema of a function's arguments, from its signature and type hints.

    `Annotated[str, "what it is"]` describes an argument. An Enum is one of its values; a dataclass
    and a TypedDict are objects. A type that JSON does not have takes any value. Raises `TypeError`
    for arguments that have no name in a call, and for a signature that cannot be read.
    """
    hints, parameters = _hints_of(function), _signature_of(function).parameters
    name = getattr(function, "__name__", repr(function))
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"a tool takes named arguments, and {name} has {parameter}: wrap it in a function"
                " whose arguments are named"
            )
    return _object(
        {key: hints.get(key, Any) for key in parameters},
        [key for key, parameter in parameters.items() if parameter.default is parameter.empty],
    )


def arguments_of(function: Callable[..., Any], values: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of a call, which are JSON of the function's schema, as its type hints say:
    tuples and sets, members of an Enum, instances of a dataclass.

    >>> class Unit(enum.Enum):
    ...     CELSIUS = "C"
    >>> def look(place: tuple[int, int], unit: Unit = Unit.CELSIUS) -> None: ...
    >>> look.__annotations__.update(place=tuple[int, int], unit=Unit)
    >>> arguments_of(look, {"place": [1, 2], "unit": "C"})
    {'place': (1, 2), 'unit': <Unit.CELSIUS: 'C'>}
    """
    return _values(_hints_of(function), values)


def _values(hints: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(hints.get(name, Any), value) for name, value in values.items()}


def with_whole_numbers(value: object, schema: object) -> Any:
    """The value with whole numbers where its schema takes integers, and no other numbers.

    >>> with_whole_numbers({"n": 1.0}, {"properties": {"n": {"type": "integer"}}})
    {'n': 1}
    """
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, float):
        kinds = _kinds_of(schema)
        return _whole(value) if "integer" in kinds and "number" not in kinds else value
    if isinstance(value, dict):
        entries = schema.get("properties")
        entries = entries if isinstance(entries, Mapping) else {}
        others = schema.get("additionalProperties")
        return {
            key: with_whole_numbers(item, entries.get(key, others)) for key, item in value.items()
        }
    if isinstance(value, list):
        return [with_whole_numbers(item, schema.get("items")) for item in value]
    return value


def _kinds_of(schema: object) -> set[object]:
    """The types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    kinds = set(kind) if isinstance(kind, (list, tuple)) else {kind}
    inner = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return kinds.union(*map(_kinds_of, inner))


def _whole(value: object) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # of some that are written in C
        raise _unread(function, "it has none that Python can see") from None


def _hints_of(function: Callable[..., Any]) -> dict[str, object]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _unread(function, f"a type hint is not known there, {error}") from error


def _unread(function: Callable[..., Any], why: str) -> TypeError:
    return TypeError(
        f"the signature of {function!r:.80} cannot be read: {why}: wrap it in a function whose"
        " arguments have names and types"
    )


def _object(
    hints: Mapping[str, object], required: list[str], within: tuple[object, ...] = ()
) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {name: _of_type(hint, within) for name, hint in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _bare(hint: object) -> object:
    """The type without what is said about it."""
    while typing.get_origin(hint) in _SAYING:
        hint = typing.get_args(hint)[0]
    return hint


def _fields_of(hint: object) -> tuple[dict[str, object], list[str]] | None:
    """The types of the fields of a dataclass or a TypedDict, and which must be there."""
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint):
        hints, fields = _hints_of(hint), [field for field in dataclasses.fields(hint) if field.init]
        missing = dataclasses.MISSING
        required = [
            field.name for field in fields if field.default is field.default_factory is missing
        ]
        return {field.name: hints[field.name] for field in fields}, required
    if is_typeddict(hint):
        hints, required = _hints_of(hint), typing.cast(Any, hint).__required_keys__
        # where hints are text, the class does not know those that need not be there
        return hints, [
            name
            for name in hints
            if name in required and typing.get_origin(hints[name]) is not NotRequired
        ]
    return None


def _of_type(hint: object, within: tuple[object, ...] = ()) -> dict[str, object]:
    """The schema of a type; `within` are the objects that it is a part of."""
    origin, type_args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _SAYING:
        words = [argument for argument in type_args[1:] if isinstance(argument, str)]
        schema = _of_type(type_args[0], within)
        return {**schema, "description": words[0]} if words else schema
    if origin is Literal:
        return {"enum": _values_of(hint, type_args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(argument, within) for argument in type_args]}
    if origin is tuple and type_args and type_args[-1] is not ...:
        each = [_of_type(argument, within) for argument in type_args]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
    if origin in _LISTS:
        return {"type": "array", **({"items": _of_type(type_args[0], within)} if type_args else {})}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": _values_of(hint.__name__, hint)}
    fields = None if hint in within else _fields_of(hint)
    if fields is not None:
        return _object(*fields, (*within, hint))
    if origin in (dict, Mapping) or hint in within:
        return {"type": "object"}
    return {"type": _NAMES[hint]} if hint in _NAMES else {}


def _values_of(name: object, members: Iterable[object]) -> list[object]:
    values = [member.value if isinstance(member, enum.Enum) else member for member in members]
    if not all(value is None or isinstance(value, (str, int, float)) for value in values):
        raise TypeError(f"{name} has members whose values JSON does not have: {values!r:.80}")
    return values


def _fits(value: object, hint: object) -> bool:
    from pipegen.answer.json_check import wrong_in_json

    return not wrong_in_json(value, _of_type(hint))


def _value(hint: Any, value: Any) -> Any:
    """A value of the type's schema as the type."""
    hint = _bare(hint)
    origin, type_args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next((part for part in type_args if _fits(value, part)), Any), value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if hint is int:
        return _whole(value)
    if origin is Literal:
        return next((part for part in type_args if _fits(value, Literal[part])), value)
    if isinstance(value, list) and origin in _LISTS:
        fixed = origin is tuple and type_args[-1:] not in ((), (...,))
        each = type_args if fixed else (type_args[0] if type_args else Any,) * len(value)
        items = [_value(item_type, item) for item_type, item in zip(each, value, strict=True)]
        return origin(items)
    if not isinstance(value, dict):
        return value
    fields = _fields_of(hint)
    if fields is not None:
        return hint(**_values(fields[0], value))
    if origin in (dict, Mapping) and type_args:
        return {name: _value(type_args[1], item) for name, item in value.items()}
    return value


def methods_of(given: object) -> list[Callable[..., Any]]:
    """The tools that an object of the user's is: itself, where it is a list, else its public methods
    but `close`. They come in the order of their definition, those of its base classes first.

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


def says(function: object, name: str, *, default: bool) -> bool:
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
