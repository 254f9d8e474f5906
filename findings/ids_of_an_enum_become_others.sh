#!/usr/bin/env bash
# llguidance lets a model write 1234567890123456768 alone where an enum holds 1234567890123456789 alone.
# It reads the integers of `enum` and `const`, and bounds, as floats, so above 2**53 it forces a
# neighbour, without a warning: an id of 18 digits, as services with 64-bit ids have them, names
# another row. The answer is valid JSON and fails its own schema. An upper bound of 2**64 - 1 allows
# nothing above 2**63 - 1. The same ids as strings are kept.
# llguidance 1.9.1, jsonschema 4.26.0. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet llguidance==1.9.1 jsonschema==4.26.0
"$python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

print(f"llguidance {version('llguidance')}, jsonschema {version('jsonschema')}")
tokenizer = LLTokenizer("byte")
wanted, neighbour = 1234567890123456789, 1234567890123456768
natural = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
# schema, value: whether the grammar lets a model write it, and whether it is valid
cases = [
    ({"enum": [wanted]}, wanted, [False, True]),
    ({"enum": [wanted]}, neighbour, [True, False]),
    ({"const": wanted}, neighbour, [True, False]),
    ({"enum": [str(wanted)]}, str(wanted), [True, True]),
    ({"type": "integer", "minimum": 2**53 + 1}, 2**53, [True, False]),
    ({"type": "integer", "maximum": 2**53 + 1}, 2**53 + 1, [False, True]),
    (natural, 2**63 - 1, [True, True]),
    (natural, 2**63, [False, True]),
]
same = True
for of_id, value, expected in cases:
    schema = {"type": "object", "properties": {"id": of_id}, "required": ["id"], "additionalProperties": False}
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error()
    ids = tokenizer.tokenize_str(json.dumps({"id": value}))
    written = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    valid = Draft202012Validator(schema).is_valid({"id": value})
    print(f"  {json.dumps(of_id)}: {value!r} {'can' if written else 'cannot'} be written, {'valid' if valid else 'not valid'}")
    same &= [written, valid] == expected
sys.exit(not same)
PYTHON
echo "Long integers of a schema are rounded by the grammar: give ids as strings."
