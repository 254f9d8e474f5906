#!/usr/bin/env bash
# lm-format-enforcer makes `5` of the enum's value `5" nail`: it writes no escapes in an enum.
# The values of an enum or a const are compared with the text as they are, not as JSON writes them. A
# quote within a value ends the string there, so that the only text a model may write is a value that
# the enum does not have. The escaped form is not allowed. A line break is written as it is, and the
# answer is no JSON. A free string is right: it may hold escaped quotes.
# lm-format-enforcer 0.11.3, pydantic 2.14.4. Checked 2026-12-01.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet lm-format-enforcer==0.11.3 pydantic==2.14.4
"$python" - <<'PYTHON'
import json
import logging
import sys
from importlib.metadata import version

logging.disable()  # it asks for numpy, which is for models
from lmformatenforcer import JsonSchemaParser

print(f"lm-format-enforcer {version('lm-format-enforcer')}, pydantic {version('pydantic')}")


def texts(schema):
    """All texts that the schema lets a model write, without space around values."""
    found, begun = [], [("", JsonSchemaParser(schema))]
    while begun:
        text, parser = begun.pop()
        if text and parser.can_end():
            found.append(text)
            continue
        for character in set(parser.get_allowed_characters()):
            if text or not character.isspace():
                begun.append((text + character, parser.add_character(character)))
    return sorted(found)


def taken(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def read(text):
    try:
        return json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"


seen = []
for values in (["5 mm screw", "other"], ['5" nail', "other"], ["first\nsecond", "other"]):
    for text in texts({"enum": values}):
        seen.append((values[0], text, read(text)))
        print(f"{values!r}: {text!r} is read as {read(text)!r}")
    escaped = json.dumps(values[0])
    seen.append((escaped, taken({"enum": values}, escaped), taken({"type": "string"}, escaped)))
    print(f"  the text {escaped} is taken: {seen[-1][1]}, and as any string: {seen[-1][2]}")
expected = [
    ("5 mm screw", '"5 mm screw"', "5 mm screw"),
    ("5 mm screw", '"other"', "other"),
    ('"5 mm screw"', True, True),
    ('5" nail', '"5"', "5"),
    ('5" nail', '"other"', "other"),
    ('"5\\" nail"', False, True),
    ("first\nsecond", '"first\nsecond"', "no JSON: Invalid control character at: line 1 column 7 (char 6)"),
    ("first\nsecond", '"other"', "other"),
    ('"first\\nsecond"', False, True),
]
print("as found" if seen == expected else "this has changed")
sys.exit(seen != expected)
PYTHON
