#!/usr/bin/env bash
# In Lance, `NOT (refused IS TRUE)` loses the rows without a value once the column has an index.
# `IS TRUE` is false for NULL, so its NOT is true, and a scan gives these rows. With a BTREE or BITMAP
# index Lance looks up `refused = true` for it, which is NULL for NULL, and so is its NOT. An index is
# made for speed, and one expects the same rows. `to_table`, `count_rows` and `delete` are all
# affected: delete leaves rows behind. `refused IS NOT TRUE` means the same and is right.
# pylance 14.0.2, pyarrow 26.0.1. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet pylance==14.0.2 pyarrow==26.0.1
"$python" - "$folder" <<'PYTHON'
import sys

import lance
import pyarrow as pa

print(f"pylance {lance.__version__}: rows 1 to 4, refused: true, false, NULL, NULL")
rows = pa.table({"id": [1, 2, 3, 4], "refused": [True, False, None, None]})
filters = ("NOT (refused IS TRUE)", "refused IS NOT TRUE")
found = {}
for index in ("none", "BTREE", "BITMAP"):
    dataset = lance.write_dataset(rows, f"{sys.argv[1]}/{index}")
    if index != "none":
        dataset.create_scalar_index("refused", index)
    for text in filters:
        ids = sorted(dataset.to_table(filter=text)["id"].to_pylist())
        found[index, text] = ids if dataset.count_rows(text) == len(ids) else None
        print(f"  index {index:6} {text:21} rows {ids}, counted {dataset.count_rows(text)}")
    dataset.delete(filters[0])
    found[index, "left"] = sorted(dataset.to_table()["id"].to_pylist())
    print(f"  index {index:6} left after delete     rows {found[index, 'left']}")
expected = {("none", filters[0]): [2, 3, 4], ("none", filters[1]): [2, 3, 4], ("none", "left"): [1]}
for index in ("BTREE", "BITMAP"):
    expected |= {(index, filters[0]): [2], (index, filters[1]): [2, 3, 4], (index, "left"): [1, 3, 4]}
sys.exit(found != expected)
PYTHON
echo "An index on the column takes the rows without a value from a filter, and nothing says so."
