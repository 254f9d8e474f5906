#!/usr/bin/env bash
# Daft's read_json reads a message's list of parts as null where another message's content is a text.
# Chat data may hold a text, or a list of parts where there is an image. read_json takes one type for
# both, a string; a number then becomes its text, so one expects JSON text for a list, or an error.
# It becomes null, in either order, as does a list of texts beside a text, or a date beside timestamps,
# and the fraction of a second where the first timestamp has none is cut. Nothing is raised or logged.
# With a schema of one's own it is the same. pyarrow refuses such a file.
# daft 0.7.26, pyarrow 25.0.1. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet daft==0.7.26 pyarrow==25.0.1
cd "$folder"
DAFT_PROGRESS_BAR=0 "$python" - <<'PYTHON'
import json
import sys
from datetime import datetime
from pathlib import Path

import daft
import pyarrow as pa
import pyarrow.json

print(f"daft {daft.__version__}")


def read(name: str, values: list, **settings: object) -> list:
    """What read_json gives for one field of several lines."""
    path = Path("rows.jsonl")
    path.write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
    got = daft.read_json(str(path), **settings).to_pydict()["value"]
    print(f"  {name}:", *(f"\n    {json.dumps(value)} -> {found!r}" for value, found in zip(values, got)))
    return got


parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
messages = [
    [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}],
    [{"role": "user", "content": "Are you sure?"}],
]
stops = ["END", ["STOP", "END"]]
times = ["2026-11-30", "2026-11-30T12:00:00"]
fractions = ["2026-11-30T12:00:00", "2026-11-30T12:00:00.75"]
noon = datetime(2026, 11, 30, 12)
own = {"value": daft.DataType.list(daft.DataType.struct({"role": daft.DataType.string(), "content": daft.DataType.string()}))}
found = [
    read("messages", messages),
    read("messages, the other order", messages[::-1])[::-1],
    read("messages, schema= says that content is a string", messages, infer_schema=False, schema=own),
    read("a text or a list of texts", stops),
    read("a number or a text", [7, "seven"]),
    read("a date or a timestamp", times),
    read("a fraction of a second", fractions),
]
try:
    read("messages again", messages)
    pyarrow.json.read_json("rows.jsonl")
    refused = False
except pa.ArrowInvalid as error:
    refused = True
    print("  pyarrow:", error)
nulled = [
    [{"role": "user", "content": None}, {"role": "assistant", "content": "A cat."}],
    [{"role": "user", "content": "Are you sure?"}],
]
expected = [nulled, nulled, nulled, [stops[0], None], ["7", "seven"], [None, noon], [noon, noon]]
sys.exit(found != expected or not refused)
PYTHON
echo "Parts of a message are read as null."
