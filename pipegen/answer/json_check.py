"""Whether a value obeys a JSON Schema, by the package jsonschema: what is not known is not judged.

Patterns mean what grammar engines mean by them. Of formats, those of dates and times are judged.
References beyond the schema itself, which nothing fetches, `contentEncoding` and `unevaluated...`
are not. Import this where a check is made: it imports jsonschema.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft201909Validator, Draft202012Validator, ValidationError
from jsonschema.validators import create
from referencing import Registry

from pipegen.answer.regex_check import found_in
from pipegen.answer.value_patterns import PATTERNS, is_of
from pipegen.core.foreign_calls import attempt

_WORDS = {
    None: "no value is allowed there",
    "type": "{value} is not of type {kinds}",
    "enum": "{value} is none of {bound}",
    "const": "{value} is not {bound}",
    "minimum": "{value} is less than {bound}",
    "maximum": "{value} is more than {bound}",
    "exclusiveMinimum": "{value} is not more than {bound}",
    "exclusiveMaximum": "{value} is not less than {bound}",
    "multipleOf": "{value} is no multiple of {bound}",
    "minLength": "{value} is shorter than {bound}",
    "maxLength": "{value} is longer than {bound}",
    "minItems": "{value} has fewer items than {bound}",
    "maxItems": "{value} has more items than {bound}",
    "minProperties": "{value} has fewer properties than {bound}",
    "maxProperties": "{value} has more properties than {bound}",
    "pattern": "{value} does not match the pattern {bound}",
    "format": "{value} is no {kinds}",
    "uniqueItems": "{value} holds an item twice",
    "anyOf": "{value} is none of what anyOf allows: {inner}",
    "oneOf": "{value} is none of what oneOf allows: {inner}",
    "not": "{value} is what `not` forbids",
}
_DEEPEST = 64
"""So many references within each other are judged: a schema may refer to itself."""
_NEW: Any = Draft202012Validator.VALIDATORS
_UNJUDGED = re.compile(
    r'"(\$ref|\$dynamicRef|\$recursiveRef|format|pattern|patternProperties|unevaluated\w+)":'
)
"""Keywords in JSON that may call a value right that is not."""
_OLD_DRAFT = re.compile(r'"\$schema": "[^"]*draft-0[34]')
_TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}
_INSTEAD: Mapping[str, Any] = {
    "not": lambda schema: ("allOf", []),
    "if": lambda schema: ("anyOf", [schema["if"], schema.get("else", True)]),
    "contains": lambda schema: ("minItems", schema.get("minContains", 1)),
}
"""What follows all the same where their schema may call a value right that is not."""


def wrong_in_json(value: object, schema: object) -> str:
    """The first thing in a value that a schema does not allow, with its place; empty where there is
    none, and where jsonschema cannot read the schema.
    """
    error = attempt(lambda: next(_check_of(schema).iter_errors(value), None)).value_or(None)
    return "" if error is None else _said(error, ())


def limits_of(schema: Mapping[str, object]) -> set[str]:
    """The keywords of a schema that may leave values out.

    >>> sorted(limits_of({"type": "string", "format": "uri", "title": "Page", "minLength": 1}))
    ['minLength', 'type']
    """
    judged = {*schema} & {*_KEYWORDS}
    return judged if schema.get("format") in PATTERNS else judged - {"format"}


def wrong_in_schema(schema: Any) -> str:
    """The first thing in a schema that JSON Schema does not allow; empty where there is none.

    >>> wrong_in_schema({"type": "string"}), wrong_in_schema({"enum": 5})
    ('', 'at $.enum: 5 is not of type array')
    """
    error = next(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema), None)
    return "" if error is None else _said(error, ())


def _said(error: Any, above: Sequence[str | int]) -> str:
    """An error of jsonschema in words, with its place within that of the one above it."""
    places = [*above, *error.relative_path]
    path = "".join(
        f".{place}" if str(place).isidentifier() else f"[{_shown(place)}]" for place in places
    )
    bound = error.validator_value
    words = _WORDS.get(error.validator, "{message:.200}").format(
        value=_shown(error.instance),
        bound=_shown(bound),
        kinds=" or ".join(map(str, bound)) if isinstance(bound, list) else bound,
        inner=next((_said(inner, places) for inner in error.context), "two are right"),
        message=error.message,
    )
    return f"at ${path}: {words}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _reference(validator: Any, reference: object, value: Any, schema: Any) -> Iterator[object]:
    known, key = validator.format_checker, (id(value), id(schema))
    if key not in known and known["left"]:
        known[key] = None  # a schema that refers to itself for the same value says nothing
        known["left"] -= 1
        errors = _NEW["$ref"](validator, reference, value, schema)
        known[key] = attempt(lambda: next(errors, None)).value_or(None)
        known["left"] += 1
    error = known.get(key)
    if error is not None:
        yield ValidationError.create_from(error)


def _alternatives(validator: Any, parts: Any, value: Any, schema: Any) -> Iterator[object]:
    # jsonschema would keep all that is wrong by all alternatives, as in each item of a long list
    only_one, errors = parts is schema.get("oneOf") and _is_judged(schema), []
    for part in parts:
        errors.append(next(validator.descend(value, part), None))
        if errors[-1] is None and not only_one:
            return
    right = errors.count(None)
    if right != 1:
        yield ValidationError("", context=() if right else errors)


def _pattern_properties(
    validator: Any, patterns: Any, value: object, schema: object
) -> Iterator[object]:
    for name, entry in value.items() if isinstance(value, dict) else ():
        for pattern, more in patterns.items():
            if found_in(pattern, name):
                yield from validator.descend(entry, more, path=name)


def _additional(validator: Any, rest: Any, value: object, schema: Any) -> Iterator[object]:
    named, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
    for name, entry in value.items() if isinstance(value, dict) else ():
        if name in named or any(found_in(pattern, name) is not False for pattern in patterns):
            continue
        if rest is False:
            yield ValidationError(f"the property {_shown(name)} is not allowed")
        yield from validator.descend(entry, rest, path=name)


def _required(validator: object, names: object, value: Any, schema: object) -> Iterator[object]:
    for name in names if isinstance(value, dict) and isinstance(names, list) else ():
        if isinstance(name, str) and name not in value:
            yield ValidationError(f"there is no property {_shown(name)}")


def _divides(step: Any, value: Any) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    return bool(abs(math.remainder(value, step)) < 1e-9 * max(abs(step), abs(value)))


def _key(value: object) -> Any:
    """What two equal values of JSON have in common: 1 is 1.0, and neither is true."""
    if isinstance(value, list):
        return (list, *map(_key, value))
    if isinstance(value, dict):
        return (dict, frozenset((name, _key(entry)) for name, entry in value.items()))
    return (bool, value) if isinstance(value, bool) else value


def _keyword(kind: str, right: Callable[..., bool | None]) -> object:
    """A keyword about values of a type, each right or not by what the schema says."""
    return lambda validator, bound, value, _: (
        [ValidationError("")]
        if validator.is_type(value, kind) and right(bound, value) is False
        else ()
    )


def _is_judged(schema: object) -> bool:
    return _UNJUDGED.search(json.dumps(schema)) is None


def _is_misread(name: str, bound: object) -> bool:
    """Whether jsonschema would call values wrong by what is no schema, or one of an old draft."""
    if name == "type":
        return bound == [] or not _TYPES.issuperset(bound if isinstance(bound, list) else [bound])
    if name == "enum":
        return not isinstance(bound, list)
    is_flag = isinstance(bound, bool) and name.startswith(("min", "max", "multiple", "exclusive"))
    return is_flag or (bound == [] and name in ("anyOf", "oneOf"))


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """The keywords of a schema and what they say, as far as something is known of them."""
    for name, bound in schema.items() if isinstance(schema, dict) else ():
        if name in _INSTEAD and not _is_judged(bound):
            yield _INSTEAD[name](schema)
        elif name == "items" and isinstance(bound, list):
            yield "prefixItems", schema.get("prefixItems", bound)
        elif not _is_misread(name, bound):
            yield name, bound


_KEYWORDS: Any = {
    **_NEW,
    **dict.fromkeys(("$dynamicRef", "unevaluatedItems", "unevaluatedProperties"), lambda *_: ()),
    "$ref": _reference,
    "additionalItems": Draft201909Validator.VALIDATORS["additionalItems"],
    "additionalProperties": _additional,
    "anyOf": _alternatives,
    "format": _keyword("string", is_of),
    "multipleOf": _keyword("number", _divides),
    "oneOf": _alternatives,
    "pattern": _keyword("string", found_in),
    "patternProperties": _pattern_properties,
    "required": _required,
    "uniqueItems": _keyword(
        "array",
        lambda unique, items: unique is not True or len(set(map(_key, items))) == len(items),
    ),
}
_Validator: Any = create(
    Draft202012Validator.META_SCHEMA, _KEYWORDS, applicable_validators=_keywords
)
# where a schema names a `$schema`, jsonschema would go on with its own class for that
_Validator.evolve = lambda validator, **changes: _Validator(
    **{"format_checker": validator.format_checker, "_resolver": validator._resolver, **changes}
)


def _check_of(schema: object) -> Any:
    """A check of one value by a schema.

    As its `format_checker`, all its parts have in common what is known of the values that
    references led to: alternatives that refer to each other would judge them again and again. In
    old drafts another keyword says where a reference begins, so none is followed.
    """
    known = {"left": 0 if _OLD_DRAFT.search(json.dumps(schema)) else _DEEPEST}
    return _Validator(schema, format_checker=known, registry=Registry())
