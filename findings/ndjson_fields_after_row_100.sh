#!/usr/bin/env bash
# polars' read_ndjson drops tool calls that come after the first 100 lines, without an error.
# It takes fields and types from the first 100 lines. A later text where these have numbers is refused,
# so one expects that a later field is refused too, or read. But it is left out, also deep inside: of a
# file of conversations whose tool calls begin at line 101 all messages come back, and none has calls.
# scan_ndjson, and pl.DataFrame of a list of dicts, do the same. A Parquet file that is written of it
# looks whole. With `infer_schema_length=None` all fields are read.
# polars 2.1.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet polars==2.1.0
"$python" - "$folder/talks.jsonl" <<'PYTHON'
import json
import sys
import warnings

import polars as pl

warnings.simplefilter("error")
print(f"polars {pl.__version__}")
path = sys.argv[1]
call = [{"name": "get_weather", "arguments": {"city": "Tokyo"}}]
rows = [
    {
        "messages": [
            {"role": "user", "content": "Is it warm?"},
            {"role": "assistant", "content": "", **({"tool_calls": call} if row >= 100 else {})},
        ],
        **({"label": "tools"} if row >= 100 else {}),
    }
    for row in range(200)
]
with open(path, "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

readers = {
    "read_ndjson": lambda: pl.read_ndjson(path),
    "scan_ndjson": lambda: pl.scan_ndjson(path).collect(),
    "DataFrame": lambda: pl.DataFrame(rows),
    "read_ndjson, infer_schema_length=None": lambda: pl.read_ndjson(
        path, infer_schema_length=None
    ),
}
lost = {}
for name, read in readers.items():
    last = read().to_dicts()[-1]
    lost[name] = last.get("label") is None and "tool_calls" not in last["messages"][1]
    print(f"  {name}: the last row has {sorted(last)}, its answer {sorted(last['messages'][1])}")
numbers = "".join(json.dumps({"score": 1 if row < 100 else "high"}) + "\n" for row in range(200))
try:
    refused = not pl.read_ndjson(numbers.encode()).height
except pl.exceptions.ComputeError as error:
    refused = True
    print(f"  a text after 100 numbers: {error}")
sys.exit(not refused or lost != dict(zip(readers, (True, True, True, False), strict=True)))
PYTHON
echo "Fields that begin after row 100 are gone, and nothing says so."
