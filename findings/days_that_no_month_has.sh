#!/usr/bin/env bash
# llguidance's `format: date` lets a model write 29 February in a year that has none.
# Grammars follow a format by its digits: a month of 29 days is always allowed, since a regular
# expression of all leap years is long. `time` takes a 60th second in any minute. So an answer that
# a grammar forced may still fail the same schema where a validator checks its formats.
# llguidance 1.9.1, jsonschema 4.26.0. Checked 2026-11-28.
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
cases = {("date", "2024-02-29"): [True, True], ("date", "2023-02-29"): [True, False]}
cases |= {("date", "2023-04-31"): [False, False]}
found = {}
for form, text in cases:
    schema = {"type": "string", "format": form}
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    ids = tokenizer.tokenize_str(json.dumps(text))
    forced = matcher.try_consume_tokens(ids) == len(ids)
    checker = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    found[form, text] = [forced, checker.is_valid(text)]
    print(f"  {form} {text}: the grammar {'takes' if forced else 'refuses'} it,"
          f" the validator {'too' if found[form, text][0] == found[form, text][1] else 'does not'}")
sys.exit(found != cases)
PYTHON
echo "A date that the grammar has forced is not always one of the calendar."
