#!/usr/bin/env bash
# pydantic keeps a bound on a union when it validates, and loses it in its JSON Schema.
# `int | float` with `ge=5` becomes {"anyOf": [...], "ge": 5}: JSON Schema's word is `minimum`, and
# a validator or a grammar skips words it does not know. Two kinds of list with `max_length=2` get
# `maxLength`, which bounds texts and not lists (that is `maxItems`). Of `int | None` the bound goes
# to the integer, under its right name, so small trials look right. A model that writes by the
# schema writes answers which the class then refuses; no warning is given.
# pydantic 2.14.4, jsonschema 4.26.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet pydantic==2.14.4 jsonschema==4.26.0
"$python" - <<'PYTHON'
import sys
from importlib.metadata import version
from typing import Annotated, Any

from jsonschema import Draft202012Validator
from pydantic import Field, TypeAdapter, ValidationError

print(*(f"{name} {version(name)}" for name in ("pydantic", "jsonschema")), sep=", ")


def validates(adapter: TypeAdapter[Any], value: object) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


found = []
for kind, value in (
    (Annotated[int | float, Field(ge=5)], 3),
    (Annotated[list[int] | list[str], Field(max_length=2)], [1, 2, 3]),
    (Annotated[int | None, Field(ge=5)], 3),
):
    adapter = TypeAdapter(kind)
    schema = adapter.json_schema()
    Draft202012Validator.check_schema(schema)
    taken = validates(adapter, value), Draft202012Validator(schema).is_valid(value)
    print(f"  {schema}: {value} is taken by the class: {taken[0]}, by its schema: {taken[1]}")
    beside = sorted(set(schema) - {"anyOf"})
    found.append((beside, *taken))
expected = [(["ge"], False, True), (["maxLength"], False, True), ([], False, False)]
sys.exit(found != expected)
PYTHON
echo "What the class refuses, its schema allows: the bound of a union is lost."
