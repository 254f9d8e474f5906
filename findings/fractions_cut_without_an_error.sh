#!/usr/bin/env bash
# pyarrow cuts the fraction off a Python float that is to be an integer, without an error.
# `.cast`, a numpy array, NaN and True are all refused for int64, so one expects that 1.5 is refused
# too. But pa.array([1.5], pa.int64()) is 1: also in lists and structs, for Decimal, and as a
# timestamp. So does Table.from_pylist(rows, schema=...). A schema of first rows whose rewards are 0
# and 1 makes later rewards of 0.5 zeros. pa.array(values).cast(kind) refuses them.
# pyarrow 26.0.1, numpy 2.4.6. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet pyarrow==26.0.1 numpy==2.4.6
"$python" - <<'PYTHON'
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa

print(f"pyarrow {pa.__version__}")
first, later = [{"reward": 0}, {"reward": 1}], [{"reward": 0.5}, {"reward": 0.99}]
kind = pa.int64()
cut = {
    "array": pa.array([0.5, -1.5], kind).to_pylist() == [0, -1],
    "Decimal": pa.array([Decimal("1.5")], kind).to_pylist() == [1],
    "list": pa.array([[1.5]], pa.list_(kind)).to_pylist() == [[1]],
    "struct": pa.array([{"a": 1.5}], pa.struct([("a", kind)])).to_pylist() == [{"a": 1}],
    "timestamp": pa.array([1.5], pa.timestamp("s")).cast(kind).to_pylist() == [1],
    "from_pylist": pa.Table.from_pylist(later, schema=pa.Table.from_pylist(first).schema).to_pylist()
    == [{"reward": 0}, {"reward": 0}],
}
for name, is_cut in cut.items():
    print(f"  {name}: {'cut' if is_cut else 'kept'}")
refused = {
    "cast": lambda: pa.array([1.5]).cast(kind),
    "numpy": lambda: pa.array(np.array([1.5]), kind),
    "True": lambda: pa.array([True], kind),
    "NaN": lambda: pa.array([float("nan")], kind),
}
wrong = not all(cut.values())
for name, make in refused.items():
    try:
        make()
        wrong = True
        print(f"  {name}: taken")
    except pa.ArrowException as error:
        print(f"  {name}: {error!s:.70}")
sys.exit(wrong)
PYTHON
echo "Fractions are gone, and nothing says so."
