#!/usr/bin/env bash
# outlines_core lets a model write what is no JSON where a string has a pattern such as ^[^,]+$.
# The pattern is put between two quotes as it is, and speaks of the written text in place of the value.
# So [^,], \D and . match a bare quote or backslash, and some match a bare line break. Where the
# pattern has no room for an escape, right values cannot be written: with ^[^,]{3}$ the value a"b
# needs four characters. Values of an enum are escaped, and names of properties are not.
# outlines_core 0.2.14. Checked 2026-12-01.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet outlines_core==0.2.14
"$python" - <<'PYTHON'
import json
import re
import sys
from importlib.metadata import version

from outlines_core.json_schema import build_regex_from_schema

print(f"outlines_core {version('outlines_core')}")


def taken(schema, text):
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


free = {"type": "string"}
no_comma, three, no_digit = ({**free, "pattern": p} for p in (r"^[^,]+$", r"^[^,]{3}$", r"^\D{1,9}$"))
named = {"type": "object", "properties": {'5" nails': {"type": "integer"}}, "required": ['5" nails']}
# a schema, a text, whether it may be written, and whether it is JSON
expected = [
    (no_comma, '"bolt"', True, True),
    (no_comma, '"a"b"', True, False),
    (no_comma, '"a\nb"', True, False),
    (no_comma, '"bolt\\"', True, False),
    (no_digit, '"a"b"', True, False),
    (free, '"a"b"', False, False),
    (free, '"a\nb"', False, False),
    (three, '"a,b"', False, True),  # as it should be
    (three, json.dumps('a"b'), False, True),
    (no_comma, json.dumps('a"b'), True, True),
    ({"enum": ['5" nails']}, json.dumps('5" nails'), True, True),
    (named, json.dumps({'5" nails': 7}), False, True),
    (named, '{"5" nails": 7}', True, False),
]
seen = [(schema, text, taken(schema, text), is_json(text)) for schema, text, _, _ in expected]
for schema, text, may, right in seen:
    print(f"{json.dumps(schema)}: {text!r} may be written: {may}; is JSON: {right}")
print("as found" if seen == expected else "this has changed")
sys.exit(seen != expected)
PYTHON
