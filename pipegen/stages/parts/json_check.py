"""Whether a value obeys a JSON Schema, as far as a small check can tell: what it does not know it
does not judge.

References beyond the schema itself, those of a schema in which another one has an `$id`,
`contentEncoding` and `unevaluated...` are not judged. Of formats, those of dates and times are.
Classes of characters in a `pattern` mean ASCII.

>>> schema = {
...     "type": "object",
...     "properties": {"age": {"type": "integer", "minimum": 0}},
...     "required": ["age"],
... }
>>> (
...     wrong_in_json({"age": "3"}, schema),
...     wrong_in_json({}, schema),
...     wrong_in_json({"age": 3}, schema),
... )
('at $.age: "3" is not of type integer', 'at $: there is no property "age"', '')
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.stages.parts.json_formats import is_of
from pipegen.stages.parts.regex_check import found_in

__all__ = ["schema_at", "wrong_in_json"]

_Inner = Callable[..., str]
_DEEPEST = 64
"""So many schemas within each other are judged: one may refer to itself."""


class _TooDeep(Exception):
    """Nothing is said of a value that is nested too deeply: what is not judged there might be what
    `not` forbids.
    """


def wrong_in_json(value: Any, schema: Any) -> str:
    """The first thing in a value that a schema does not allow, with its place; empty where there is
    none.
    """
    root = None if _moves_base(schema) else schema
    try:
        return _wrong(value, schema, "$", root, 0, {})
    except _TooDeep:
        return ""


def _wrong(
    value: Any,
    schema: Any,
    path: str,
    root: Any,
    depth: int,
    judged: dict[tuple[str, int, int], str],
) -> str:
    """What is wrong with a value; `judged` has what was found so far: alternatives that refer to
    each other would judge a part again and again.
    """
    if schema is False:
        return f"at {path}: no value is allowed there"
    if not isinstance(schema, dict):
        return ""
    if depth > _DEEPEST:
        raise _TooDeep
    key = (path, id(value), id(schema))  # a value and the name that it has are at one place
    if key not in judged:
        judged[key] = ""  # a schema that refers to itself for the same value says nothing
        judged[key] = _wrong_by_all(
            value,
            schema,
            path,
            root,
            lambda value, schema, more="": _wrong(
                value, schema, path + more, root, depth + 1, judged
            ),
        )
    return judged[key]


def _wrong_by_all(
    value: Any, schema: Mapping[str, Any], path: str, root: Any, inner: _Inner
) -> str:
    """What is wrong with a value by all keywords of a schema."""
    wrong = _wrong_alone(value, schema)
    if wrong:
        return f"at {path}: {wrong}"
    if isinstance(value, dict):
        wrong = _wrong_object(value, schema, inner)
    elif isinstance(value, list):
        wrong = _wrong_array(value, schema, root, inner)
    if wrong:
        return wrong if wrong.startswith("at ") else f"at {path}: {wrong}"
    return _wrong_joined(value, schema, path, root, inner)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: Mapping[
    str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool], str]
] = {
    "minimum": (
        (int, float),
        lambda value: value,
        lambda value, bound: value >= bound,
        "is less than",
    ),
    "maximum": (
        (int, float),
        lambda value: value,
        lambda value, bound: value <= bound,
        "is more than",
    ),
    "exclusiveMinimum": (
        (int, float),
        lambda value: value,
        lambda value, bound: value > bound,
        "is not more than",
    ),
    "exclusiveMaximum": (
        (int, float),
        lambda value: value,
        lambda value, bound: value < bound,
        "is not less than",
    ),
    "multipleOf": (
        (int, float),
        lambda value: value,
        lambda value, step: _divides(step, value),
        "is no multiple of",
    ),
    "minLength": (str, len, lambda count, bound: count >= bound, "is shorter than"),
    "maxLength": (str, len, lambda count, bound: count <= bound, "is longer than"),
    "minItems": (list, len, lambda count, bound: count >= bound, "has fewer items than"),
    "maxItems": (list, len, lambda count, bound: count <= bound, "has more items than"),
    "minProperties": (dict, len, lambda count, bound: count >= bound, "has fewer properties than"),
    "maxProperties": (dict, len, lambda count, bound: count <= bound, "has more properties than"),
}
"""Keywords with a number: what they are about, what of it they measure, when it is right, and what
is wrong otherwise.
"""


def _divides(step: Any, value: Any) -> bool:
    if not step or (isinstance(value, int) and isinstance(step, int)):
        return not step or value % step == 0
    share = value / step
    return not math.isfinite(share) or abs(share - round(share)) < 1e-9 * max(1.0, abs(share))


def _wrong_alone(value: Any, schema: Mapping[str, Any]) -> str:
    """What is wrong with a value by the keywords that hold no other schema."""
    kinds = schema.get("type")
    listed = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if listed and not any(
        _KINDS.get(kind, lambda value: True)(value) for kind in listed if isinstance(kind, str)
    ):
        return f"{_shown(value)} is not of type {' or '.join(map(str, listed))}"
    if isinstance(schema.get("enum"), list) and not any(
        _same(value, entry) for entry in schema["enum"]
    ):
        return f"{_shown(value)} is none of {_shown(schema['enum'])}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{_shown(value)} is not {_shown(schema['const'])}"
    for name, (of, measure, right, relation) in _BOUNDS.items():
        bound = schema.get(name)
        if (
            _is_number(bound)
            and isinstance(value, of)
            and not isinstance(value, bool)
            and not right(measure(value), bound)
        ):
            return f"{_shown(value)} {relation} {bound}"
    pattern = schema.get("pattern")
    if isinstance(value, str) and isinstance(pattern, str) and found_in(pattern, value) is False:
        return f"{_shown(value)} does not match the pattern {_shown(pattern)}"
    kind = schema.get("format")
    if isinstance(value, str) and isinstance(kind, str) and is_of(kind, value) is False:
        return f"{_shown(value)} is no {kind}"
    if (
        isinstance(value, list)
        and schema.get("uniqueItems") is True
        and len({_key(entry) for entry in value}) < len(value)
    ):
        return f"{_shown(value)} holds an item twice"
    return ""


def _wrong_object(value: Mapping[str, Any], schema: Mapping[str, Any], inner: _Inner) -> str:
    required, dependent = schema.get("required"), schema.get("dependentRequired")
    names = [*(required if isinstance(required, list) else ())]
    names += [
        name
        for key, more in _items(dependent)
        if key in value and isinstance(more, list)
        for name in more
    ]
    missing = next((name for name in names if isinstance(name, str) and name not in value), None)
    if missing is not None:
        return f"there is no property {_shown(missing)}"
    properties, patterns = (
        dict(_items(schema.get("properties"))),
        _items(schema.get("patternProperties")),
    )
    for name, entry in value.items():
        inside = f".{name}" if name.isidentifier() else f"[{_shown(name)}]"
        by_pattern = [(found_in(pattern, name), more) for pattern, more in patterns]
        schemas = [more for hit, more in by_pattern if hit]
        schemas += [properties[name]] if name in properties else []
        if (
            not schemas
            and all(hit is False for hit, _ in by_pattern)
            and "additionalProperties" in schema
        ):
            if schema["additionalProperties"] is False:
                return f"the property {_shown(name)} is not allowed"
            schemas.append(schema["additionalProperties"])
        wrong = next(filter(None, (inner(entry, more, inside) for more in schemas)), "") or inner(
            name, schema.get("propertyNames"), inside
        )
        if wrong:
            return wrong
    return next(
        filter(
            None,
            (
                inner(value, more)
                for key, more in _items(schema.get("dependentSchemas"))
                if key in value
            ),
        ),
        "",
    )


def _wrong_array(value: Sequence[Any], schema: Mapping[str, Any], root: Any, inner: _Inner) -> str:
    items = schema.get("items")
    first = (
        schema["prefixItems"]
        if isinstance(schema.get("prefixItems"), list)
        else items
        if isinstance(items, list)
        else []
    )
    rest = schema.get("additionalItems") if isinstance(items, list) else items
    for index, item in enumerate(value):
        wrong = inner(item, first[index] if index < len(first) else rest, f"[{index}]")
        if wrong:
            return wrong
    if "contains" in schema:
        count = sum(not inner(item, schema["contains"]) for item in value)
        least, most = (
            schema.get("minContains", 1),
            (
                math.inf
                if _unjudged(schema["contains"], root)
                else schema.get("maxContains", math.inf)
            ),
        )
        if (_is_number(least) and least > count) or (_is_number(most) and most < count):
            return f"{count} items are as `contains` says, which are too few or too many"
    return ""


def _wrong_joined(
    value: Any, schema: Mapping[str, Any], path: str, root: Any, inner: _Inner
) -> str:
    """What is wrong with a value by the schemas that this one is made of."""
    parts = [schema_at(schema["$ref"], root)] if "$ref" in schema else []
    parts += _listed(schema, "allOf")
    if "if" in schema and inner(value, schema["if"]):
        parts.append(schema.get("else"))
    elif "if" in schema and not _unjudged(schema["if"], root):
        parts.append(schema.get("then"))
    wrong = next(filter(None, (inner(value, part) for part in parts)), "")
    if wrong:
        return wrong
    for name in ("anyOf", "oneOf"):
        tries = [inner(value, part) for part in _listed(schema, name)]
        if tries and all(tries):
            return f"at {path}: {_shown(value)} is none of what {name} allows: {tries[0]}"
        if name == "oneOf" and tries.count("") > 1 and not _unjudged(schema, root):
            return f"at {path}: {_shown(value)} is more than one of what oneOf allows"
    if "not" in schema and not inner(value, schema["not"]) and not _unjudged(schema["not"], root):
        return f"at {path}: {_shown(value)} is what `not` forbids"
    return ""


_UNJUDGED = frozenset(
    {
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "format",
        "pattern",
        "patternProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


def _unjudged(schema: Any, root: Any) -> bool:
    """Whether a value may be called right that is not: then nothing follows from its being
    right.
    """
    level = [schema]
    while level:
        part = level.pop()
        if isinstance(part, dict):
            if _UNJUDGED & part.keys():
                return True
            level += part.values()
        elif isinstance(part, list):
            level += part
    return False


def _moves_base(schema: Any) -> bool:
    """Whether a schema within this one has an id of its own: references there begin elsewhere."""
    old = isinstance(schema, dict) and re.search(r"draft-0[34]", str(schema.get("$schema")))
    names = ("$id", "id") if old else ("$id",)
    level = list(schema.values()) if isinstance(schema, dict) else []
    while level:
        part = level.pop()
        if isinstance(part, dict):
            if any(isinstance(part.get(name), str) for name in names):
                return True
            level += part.values()
        elif isinstance(part, list):
            level += part
    return False


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    return schema[name] if isinstance(schema.get(name), list) else []


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def schema_at(reference: Any, root: Any) -> Any:
    """The schema at a place of the root schema; None where it lies elsewhere."""
    if not isinstance(reference, str) or not re.match(r"#(/|$)", reference):
        return None
    part = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list):
            part = dict(zip(map(str, range(len(part))), part, strict=True))
        part = part.get(key) if isinstance(part, dict) else None
    return part


def _same(one: Any, other: Any) -> bool:
    return bool(_key(one) == _key(other))


def _key(value: Any) -> Any:
    """What two equal values of JSON have in common: 1 is 1.0, and neither is true."""
    if isinstance(value, list):
        return (list, *map(_key, value))
    if isinstance(value, dict):
        return (dict, frozenset((name, _key(entry)) for name, entry in value.items()))
    return (bool, value) if isinstance(value, bool) else value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
