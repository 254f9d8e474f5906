#!/usr/bin/env bash
# xgrammar drops the bounds that stand beside `$ref` or `anyOf`, without a warning.
# Since draft 2019-09 of JSON Schema the words beside `$ref` count as well as those behind it, so
# {"$ref": "#/$defs/Count", "maximum": 9} is the way to narrow a named type. xgrammar writes what
# stands behind, so a model writes a number out of bounds in "valid" JSON. llguidance keeps the
# bound. One that stands within the branch is kept by both: repeat it in each.
# xgrammar 0.2.9, llguidance 1.9.1, jsonschema 4.26.0, torch 2.13.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 xgrammar==0.2.9 llguidance==1.9.1 jsonschema==4.26.0
"$python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version

import xgrammar
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

print(*(f"{name} {version(name)}" for name in ("xgrammar", "llguidance", "jsonschema")), sep=", ")
tokenizer = LLTokenizer("byte")
compiler = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([bytes([number]) for number in range(256)])
)


def by_xgrammar(schema: object, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(
        compiler.compile_json_schema(json.dumps(schema)), terminate_without_stop_token=True
    )
    return matcher.accept_string(text) and matcher.is_terminated()


def by_llguidance(schema: object, text: str) -> bool:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    ids = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


count, bound = {"type": "integer", "minimum": 0}, {"maximum": 9}
forms = {
    "beside $ref": {"$ref": "#/$defs/Count", **bound, "$defs": {"Count": count}},
    "beside anyOf": {"anyOf": [count, {"type": "null"}], **bound},
    "within anyOf": {"anyOf": [{**count, **bound}, {"type": "null"}]},
    "without either": {**count, **bound},
}
found = {}
for form, schema in forms.items():
    Draft202012Validator.check_schema(schema)
    ways = Draft202012Validator(schema).is_valid, by_xgrammar, by_llguidance
    inside, outside = ([ways[0](n), *(way(schema, str(n)) for way in ways[1:])] for n in (7, 12))
    assert all(inside)
    print(f"  a maximum of 9 {form}: jsonschema, xgrammar and llguidance take 12: {outside}")
    found[form] = outside
expected = {form: [False, form.startswith("beside"), False] for form in forms}
sys.exit(found != expected)
PYTHON
echo "xgrammar drops the bound that stands beside a reference or a choice."
