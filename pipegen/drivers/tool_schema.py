"""The JSON Schema of a function's arguments, and the arguments of a call as the function takes them.

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

_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_LISTS = (list, tuple, set)


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments, from its signature and type hints.

    `Annotated[str, "what it is"]` describes an argument. An Enum is one of its values; a dataclass
    and a TypedDict are objects. A type that JSON does not have takes any value. Raises `TypeError`
    for arguments that have no name in a call, and for a signature that cannot be read.
    """
    hints = _hints_of(function)
    name = getattr(function, "__name__", repr(function))
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, parameter in _signature_of(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"a tool takes named arguments, and {name} has {parameter}: wrap it in a function"
                " whose arguments are named"
            )
        properties[key] = _of_type(hints.get(key, Any))
        if parameter.default is parameter.empty:
            required.append(key)
    return _object(properties, required)


def arguments_of(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, which are JSON of the function's schema, as its type hints say:
    tuples and sets, members of an Enum, instances of a dataclass.

    >>> class Unit(enum.Enum):
    ...     CELSIUS = "C"
    >>> def look(place: tuple[int, int], unit: Unit = Unit.CELSIUS) -> None: ...
    >>> look.__annotations__.update(place=tuple[int, int], unit=Unit)
    >>> arguments_of(look, {"place": [1, 2], "unit": "C"})
    {'place': (1, 2), 'unit': <Unit.CELSIUS: 'C'>}
    """
    hints = _hints_of(function)
    return {key: _value(hints.get(key, Any), value) for key, value in values.items()}


def with_whole_numbers(value: Any, schema: Any) -> Any:
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


def _kinds_of(schema: Any) -> set[Any]:
    """The types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    kinds = set(kind) if isinstance(kind, (list, tuple)) else {kind}
    inner = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return kinds.union(*map(_kinds_of, inner))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_same(allowed: Any, value: Any) -> bool:
    allowed = _bare_value(allowed)
    is_bool = isinstance(allowed, bool) or isinstance(value, bool)
    return bool(allowed == value) and (not is_bool or type(allowed) is type(value))


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # of some that are written in C
        raise _unread(function, "it has none that Python can see") from None


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _unread(function, f"a type hint is not known there, {error}") from error


def _unread(function: Callable[..., Any], why: str) -> TypeError:
    return TypeError(
        f"the signature of {function!r:.80} cannot be read: {why}: wrap it in a function whose"
        " arguments have names and types"
    )


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _bare(hint: Any) -> Any:
    """The type without what is said about it."""
    while typing.get_origin(hint) in (Annotated, Required, NotRequired):
        hint = typing.get_args(hint)[0]
    return hint


def _fields_of(hint: Any) -> tuple[dict[str, Any], list[str]] | None:
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
    if typing.is_typeddict(hint):
        hints, required = _hints_of(hint), typing.cast(Any, hint).__required_keys__
        # where hints are text, the class does not know those that need not be there
        optional = {
            name
            for name, field_type in hints.items()
            if typing.get_origin(field_type) is NotRequired
        }
        return hints, [name for name in hints if name in required - optional]
    return None


def _of_type(hint: Any, within: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The schema of a type; `within` are the objects that it is a part of."""
    origin, type_args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        words = next((argument for argument in type_args[1:] if isinstance(argument, str)), None)
        return {
            **_of_type(type_args[0], within),
            **({} if words is None else {"description": words}),
        }
    if origin in (Required, NotRequired):
        return _of_type(type_args[0], within)
    if origin is Literal:
        return {"enum": _values_of(hint, type_args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(argument, within) for argument in type_args]}
    if origin is tuple and type_args and type_args[-1] is not ...:
        each = [_of_type(argument, within) for argument in type_args]
        return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
    if hint in _LISTS or origin in _LISTS:
        return {"type": "array", **({"items": _of_type(type_args[0], within)} if type_args else {})}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": _values_of(hint.__name__, hint)}
    fields = None if hint in within else _fields_of(hint)
    if fields is not None:
        properties = {
            name: _of_type(field_type, (*within, hint)) for name, field_type in fields[0].items()
        }
        return _object(properties, fields[1])
    if hint in (dict, Mapping) or origin in (dict, Mapping) or hint in within:
        return {"type": "object"}
    return {"type": _NAMES[hint]} if hint in _NAMES else {}


def _values_of(name: Any, members: Iterable[Any]) -> list[Any]:
    values = [_bare_value(member) for member in members]
    if not all(value is None or isinstance(value, (str, int, float)) for value in values):
        raise TypeError(f"{name} has members whose values JSON does not have: {values!r:.80}")
    return values


def _bare_value(member: Any) -> Any:
    return member.value if isinstance(member, enum.Enum) else member


def _value(hint: Any, value: Any) -> Any:
    """A value of the type's schema as the type."""
    from pipegen.answer.json_check import wrong_in_json

    hint = _bare(hint)
    origin, type_args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        fitting_type = next(
            (argument for argument in type_args if not wrong_in_json(value, _of_type(argument))),
            Any,
        )
        return _value(fitting_type, value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if hint is int:
        return _whole(value)
    if origin is Literal:
        return next((allowed for allowed in type_args if _is_same(allowed, value)), value)
    if isinstance(value, list) and (hint in _LISTS or origin in _LISTS):
        fixed = origin is tuple and type_args[-1:] not in ((), (...,))
        each = type_args if fixed else (type_args[0] if type_args else Any,) * len(value)
        items = [_value(item_type, item) for item_type, item in zip(each, value, strict=True)]
        return (origin or hint)(items)
    if not isinstance(value, dict):
        return value
    fields = _fields_of(hint)
    if fields is not None:
        arguments = {
            name: _value(fields[0].get(name, Any), field_value)
            for name, field_value in value.items()
        }
        return hint(**arguments)
    if origin in (dict, Mapping) and len(type_args) == 2:
        return {name: _value(type_args[1], item) for name, item in value.items()}
    return value
