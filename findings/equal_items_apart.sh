#!/usr/bin/env bash
# jsonschema's uniqueItems misses two equal items where one between them is equal to Python alone.
# In Python `[1] == [True]`; in JSON they differ, and jsonschema knows it. To be fast it sorts the
# items and compares neighbours. The sort keeps `[1], [true], [1]` as it is, since they are equal
# to Python, and no neighbours are equal to JSON: the array passes. With the same three items in
# another order it fails. Numbers that stand alone are compared one by one, and are right.
# jsonschema 4.26.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet jsonschema==4.26.0
"$python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version

from jsonschema import Draft202012Validator

print(f"jsonschema {version('jsonschema')}, uniqueItems: true")
unique = Draft202012Validator({"uniqueItems": True})
texts = ("[[1], [true], [1]]", "[[1], [1], [true]]", "[1, true, 1]")
valid = [unique.is_valid(json.loads(text)) for text in texts]
for text, is_valid in zip(texts, valid, strict=True):
    print(f"  {text}: {'valid, though two items are equal' if is_valid else 'two are equal'}")
sys.exit(valid != [True, False, False])
PYTHON
echo "Of equal items with one like them between, jsonschema sees only those that are neighbours."
