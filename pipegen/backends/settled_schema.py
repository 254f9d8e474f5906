"""A JSON Schema as engines are sent it: with one meaning, and within what their libraries hold.

Patterns are those of ASCII. The bounds of integers are whole numbers of at most 18 digits: what is
larger allows every integer of 64 bits, and is left out, or is refused. Dates and times are
patterns. A format that grammars do not know is left out, as an annotation is.

>>> settled({"type": "integer", "exclusiveMinimum": 0.5, "maximum": 2**63 - 1})
{'type': 'integer', 'minimum': 1}
>>> wrong_in_schema({"items": {"type": "integer", "minimum": 2**63}})
'minimum: 9223372036854775808 is beyond the 18 digits of a bound that grammars hold'
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeGuard
from urllib.parse import unquote

from pipegen.answer.regex_check import ascii_regex, edge_in, found_in
from pipegen.answer.value_patterns import PATTERNS
from pipegen.core.foreign_calls import attempt

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
"""The formats that grammars know."""
NO_EDGES = (
    r"engines cannot match word boundaries while they generate: write the regular expression"
    r" without \b and \B"
)
_SCHEMAS = (
    "items",
    "prefixItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
)
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose value is no schema."""
_LOW = ("minimum", "exclusiveMinimum")
_HIGH = ("maximum", "exclusiveMaximum")
_MOST = ("maxLength", "maxItems", "maxProperties")
_LEAST = ("minLength", "minItems", "minProperties")
_MANY = 2**31 - 1
"""So many characters, items or properties no answer has: it is what languages write for no bound."""
_LARGEST = 10**18 - 1
"""The largest bound, by its size, that is sent: libraries count the digits of bounds in 64 bits."""


def settled(schema: object) -> Any:
    """The schema with the same meaning for every engine, in the same order.

    Bounds are left out where they allow every integer of 64 bits. Those that `wrong_in_schema`
    refuses stay.
    """
    if isinstance(schema, list):
        return [settled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, object] = {}
    for key, inner in _settled_bounds(schema).items():
        if key in _DATA:
            out[key] = inner
        elif key == "pattern" and isinstance(inner, str):
            out[key] = ascii_regex(inner)
        elif key == "patternProperties" and isinstance(inner, dict):
            out[key] = {ascii_regex(name): settled(part) for name, part in inner.items()}
        elif key in _MAPS and isinstance(inner, dict):
            out[key] = {name: settled(part) for name, part in inner.items()}
        else:  # a schema, or what a reference may lead to
            out[key] = settled(inner)
    return _with_format(out)


def _with_format(schema: dict[str, object]) -> dict[str, object]:
    """The schema with the pattern of its format, and without a format that no grammar knows."""
    name = schema.get("format")
    if not isinstance(name, str) or (name in FORMATS and name not in PATTERNS):
        return schema
    out = {key: inner for key, inner in schema.items() if key != "format"}
    if name not in PATTERNS:
        return out
    if "pattern" not in out:
        return {**out, "pattern": PATTERNS[name]}
    others = out.get("allOf")
    more = {"type": "string"} if "type" in out else {}
    more["pattern"] = PATTERNS[name]
    return {**out, "allOf": [*(others if isinstance(others, list) else ()), more]}


def _settled_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without the bounds that allow every integer of 64 bits, or every answer. Where it
    is one of integers, the others become whole numbers.
    """
    out = {
        key: inner
        for key, inner in schema.items()
        if not (key in _MOST and _number(inner) and inner >= _MANY)
    }
    for names, is_low in ((_LOW, True), (_HIGH, False)):
        for name in names:
            if _number(out.get(name)) and _allows_all(out[name], is_low=is_low):
                del out[name]
                if name == names[0] and isinstance(out.get(names[1]), bool):  # as draft 4 has it
                    del out[names[1]]
        if _only_integers(out):
            out = _whole(out, *names, step=1 if is_low else -1)
    return out


def _whole(schema: dict[str, Any], name: str, exclusive: str, *, step: int) -> dict[str, Any]:
    """The schema with one whole, inclusive bound on a side. Those that are refused stay."""
    bound, beside = schema.get(name), schema.get(exclusive)
    if any(_number(one) and not _is_small(one) for one in (bound, beside)):
        return schema
    inward: list[int] = []  # of both sides, the larger one counts
    if _number(bound):
        nearest = math.ceil(step * bound)
        inward.append(nearest + (beside is True and nearest == step * bound))
    if _number(beside):
        inward.append(math.floor(step * beside) + 1)
    if not inward:
        return schema
    out: dict[str, object] = {}
    for key, inner in schema.items():
        out |= {name: step * max(inward)} if key in (name, exclusive) else {key: inner}
    return out


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_small(bound: float) -> bool:
    return math.isfinite(bound) and abs(bound) <= _LARGEST


def _allows_all(bound: float, *, is_low: bool) -> bool:
    """Whether every integer of 64 bits is on the right side of the bound."""
    return bound <= -(2**63) if is_low else bound >= 2**63 - 1


def _only_integers(schema: Mapping[str, object]) -> bool:
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return "integer" in listed and "number" not in listed


def schema_parts(schema: object, *, in_data: bool = False) -> Iterator[dict[str, Any]]:
    """Every mapping that engines may read as a schema. `in_data` has those within constants too."""
    parts: list[object] = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            yield part
            for key, inner in part.items():
                if key in _MAPS and isinstance(inner, dict):
                    parts += inner.values()
                elif in_data or key not in _DATA:
                    parts.append(inner)


def _known_parts(schema: object) -> Iterator[dict[str, object]]:
    """The schemas that stand at known places of this one."""
    parts: list[object] = [schema]
    while parts:
        part = parts.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for key in _SCHEMAS:
            inner = part.get(key)
            parts += inner if isinstance(inner, list) else [inner]
        for key in _MAPS:
            inner = part.get(key)
            parts += inner.values() if isinstance(inner, dict) else ()


def wrong_in_schema(schema: object) -> str:
    """What is wrong with a schema whichever engine reads it: a type that JSON Schema does not have,
    the edge of a word, a number beyond 64 bits, a named property that a pattern meets. Empty where
    nothing is, or was found.
    """
    for part in _known_parts(schema):
        wrong = _wrong_type(part) or _wrong_pattern(part) or _met(part, schema)
        if wrong:
            return wrong
    for part in schema_parts(schema):
        wrong, reference = _wrong_number(part), part.get("$ref")
        if isinstance(reference, str):
            wrong = wrong or _into_data(reference, schema)
        if wrong:
            return wrong
    return ""


def _into_data(reference: str, schema: object) -> str:
    """What is wrong with numbers where a reference leads to a constant: it is a schema there."""
    steps = unquote(reference).partition("#")[2].split("/")
    if set(_DATA).isdisjoint(steps) or all(
        settled(part) == part and not _wrong_number(part) for part in _parts_of_data(schema)
    ):
        return ""
    return f"{reference} leads to a constant, whose numbers are no schema's: put it into $defs"


def _parts_of_data(schema: object) -> Iterator[dict[str, object]]:
    return schema_parts(
        [part[key] for part in schema_parts(schema) for key in _DATA if key in part], in_data=True
    )


def _wrong_type(schema: Mapping[str, object]) -> str:
    kinds = schema.get("type", ())
    for kind in kinds if isinstance(kinds, (list, tuple)) else (kinds,):
        if not isinstance(kind, str) or kind not in TYPES:
            return f"Invalid type: {kind if isinstance(kind, str) else json.dumps(kind)}"
    return ""


def _wrong_pattern(schema: Mapping[str, object]) -> str:
    patterns = schema.get("patternProperties")
    given = (schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ()))
    return NO_EDGES if any(isinstance(one, str) and edge_in(one) for one in given) else ""


def _wrong_number(schema: Mapping[str, object]) -> str:
    """The bound, the step or the constant that no 64 bits hold."""
    for name in (*_LOW, *_HIGH):
        bound = schema.get(name)
        if _number(bound) and not _is_small(bound) and not _allows_all(bound, is_low=name in _LOW):
            return f"{name}: {bound} is beyond the 18 digits of a bound that grammars hold"
    step = schema.get("multipleOf")
    if _number(step) and not _is_small(step):
        return f"multipleOf: {step} is beyond the 18 digits of a step that grammars hold"
    for name in _LEAST:
        least = schema.get(name)
        if _number(least) and least >= _MANY:
            return f"{name}: {least} is more than an answer can have"
    for value in _numbers([schema[key] for key in ("const", "enum") if key in schema]):
        if not math.isfinite(value) or not -(2**63) <= value < 2**63:
            return f"{value} in const or enum is beyond the integers of 64 bits"
    return ""


def _met(schema: Mapping[str, object], root: object) -> str:
    """Whether a pattern of names meets a name that stands beside it: libraries do not agree on
    which schema the property has.
    """
    names, patterns = _names(schema, root, 0)
    for pattern in patterns:
        for name in names:
            if found_in(pattern, name) is not False:
                return (
                    f"patternProperties {pattern!r} meets the property {name!r}: give it a pattern"
                    " that no named property matches"
                )
    return ""


def _names(schema: object, root: object, depth: int) -> tuple[list[str], list[str]]:
    """The names and the patterns of names of a schema, with those of all that it is made of."""
    if not isinstance(schema, dict) or depth > 16:
        return [], []
    named, patterned = schema.get("properties"), schema.get("patternProperties")
    names = list(named) if isinstance(named, dict) else []
    patterns = list(patterned) if isinstance(patterned, dict) else []
    parts = schema.get("allOf")
    inner = [*parts] if isinstance(parts, list) else []
    inner += [_at(schema["$ref"], root)] if "$ref" in schema else []
    for part in inner:
        more_names, more_patterns = _names(part, root, depth + 1)
        names += more_names
        patterns += more_patterns
    return names, patterns


def _at(reference: Any, root: object) -> object:
    """The schema at a place of the root schema; None where it lies elsewhere."""
    from referencing import Registry, Resource

    resolver = Registry().resolver_with_root(Resource.opaque(root))
    return attempt(lambda: resolver.lookup(reference).contents).value_or(None)


def rounded_in(schema: str) -> str:
    """The number of a schema's text that a grammar would round, in words; empty where there is
    none.

    >>> rounded_in('{"const": 9007199254740993}')
    'the number 9007199254740993 has more digits than a grammar keeps: 9007199254740992'
    >>> rounded_in('{"enum": [0.1, 1e22, 9007199254740992]}')
    ''
    """
    for part in schema_parts(json.loads(schema, parse_float=Decimal)):
        values = [*_numbers([part[key] for key in ("const", "enum") if key in part])]
        bounds = [part.get(name) for name in (*_LOW, *_HIGH)]
        values += [one for one in bounds if type(one) is int and _is_small(one)]
        for value in values:
            near = float(value)
            exact = Decimal(int(near) if isinstance(value, int) else repr(near))
            if exact != Decimal(value):
                kept = int(near) if isinstance(value, int) else near
                return f"the number {value} has more digits than a grammar keeps: {kept}"
    return ""


def _numbers(value: object) -> Iterator[Any]:
    """The numbers within a value of JSON."""
    for one in scalars(value):
        if isinstance(one, (int, float, Decimal)) and not isinstance(one, bool):
            yield one


def scalars(value: object) -> Iterator[object]:
    """What a value of JSON holds besides lists and objects, the names of entries among them."""
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, dict):
            values += [*one, *one.values()]
        elif isinstance(one, list):
            values += one
        else:
            yield one
