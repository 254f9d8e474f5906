#!/usr/bin/env bash
# toolz.dissoc returns keys in another order from process to process where many keys are left out.
# A dict keeps the order of its keys, and dissoc keeps it too where few keys are left out: it copies
# the dict and deletes them. Where at least six tenths are left out, it is faster to copy the others,
# and dissoc takes these from a set. The order is then that of the hashes of the keys, which differ
# in each process: lines of JSON, columns of a table and digests made of the result differ too.
# The results are equal as dicts, so a test that compares them sees nothing. keyfilter keeps the
# order.
# toolz 1.2.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet toolz==1.2.0
cat >"$folder/ask.py" <<'PYTHON'
import sys

from toolz import dissoc, keyfilter

row = dict.fromkeys(("id", "image", "question", "answer", "text", "finish", "usage", "model"))
out = ("text", "finish", "usage", "model", "error")
ways = {
    "few": dissoc(row, "text"),
    "many": dissoc(row, *out),
    "keyfilter": keyfilter(lambda key: key not in out, row),
}
print(*ways[sys.argv[1]])
PYTHON
"$python" - "$folder/ask.py" <<'PYTHON'
import os
import subprocess
import sys

orders = {}
for way in ("few", "many", "keyfilter"):
    for seed in range(8):
        done = subprocess.run(
            [sys.executable, sys.argv[1], way],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        orders.setdefault(way, set()).add(done.stdout.strip())
for way, found in orders.items():
    print(f"{way}: {len(found)} order{'s' if len(found) > 1 else ''} in 8 processes")
sys.exit([len(found) > 1 for found in orders.values()] != [False, True, False])
PYTHON
echo "What is left of a dict has the order of a set where dissoc leaves out most of its keys."
