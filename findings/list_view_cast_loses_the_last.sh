#!/usr/bin/env bash
# pyarrow's cast from a list view to a list empties the last list, without an error.
# It holds for plain arrays in order, and for `list_` and `large_list`. An array of one list comes
# out empty, and of a slice its own last list is lost. Readers that give list views (of DuckDB, Velox
# or Polars) lead there, and with a million rows one is missed by no test of counts. `to_pylist`,
# and `pa.array(array.to_pylist(), kind)`, keep all values.
# pyarrow 26.0.1. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet pyarrow==26.0.1
"$python" - <<'PYTHON'
import sys

import pyarrow as pa

print(f"pyarrow {pa.__version__}")
wrong = False
for values in ([[1]], [[1], [2]], [[1, 2], [], [3]]):
    array = pa.array(values, pa.list_view(pa.int32()))
    array.validate(full=True)
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int32())):
        cast = array.cast(kind)
        print(f"  {values} is cast to {cast.to_pylist()} ({kind})")
        wrong = wrong or cast.to_pylist() != [*values[:-1], []]
sys.exit(wrong)
PYTHON
echo "The last list is lost, and the cast says nothing."
