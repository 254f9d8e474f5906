#!/usr/bin/env bash
# With `maxLength` in a JSON Schema, xgrammar lets a model write no quote, newline, tab or backslash.
# In JSON these characters are escapes, such as \n, and a length counts characters, so one expects
# that a bound on the length changes the length alone. xgrammar follows `minLength` (of 1 or more)
# and `maxLength` by a rule that has no escapes. So a field `code: str` with `max_length=2000` forces
# code on one line, without quotes. All that is written is valid, and there is no error and no
# warning. `pattern` does the same. llguidance counts an escape as one character.
# xgrammar 0.2.8, llguidance 1.9.1, jsonschema 4.26.0, torch 2.13.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 xgrammar==0.2.8 llguidance==1.9.1 jsonschema==4.26.0
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


texts = ["plain", "two\nlines", 'a "quote"', "C:\\folder", "a\ttab"]
found = {}
for name, bound in {"no bound": {}, "maxLength": {"maxLength": 100}, "minLength": {"minLength": 1}}.items():
    schema = {"type": "string", **bound}
    assert all(map(Draft202012Validator(schema).is_valid, texts))
    for engine in (by_xgrammar, by_llguidance):
        allowed = [text for text in texts if engine(schema, json.dumps(text))]
        found[name, engine.__name__] = len(allowed)
        print(f"  {name}, {engine.__name__}: {allowed}")
everything, few = len(texts), 1
expected = {(name, "by_llguidance"): everything for name in ("no bound", "maxLength", "minLength")}
expected |= {("no bound", "by_xgrammar"): everything}
expected |= {("maxLength", "by_xgrammar"): few, ("minLength", "by_xgrammar"): few}
sys.exit(found != expected)
PYTHON
echo "A bound on the length takes quotes, newlines and backslashes away."
