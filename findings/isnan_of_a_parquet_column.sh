#!/usr/bin/env bash
# DuckDB 2.0 says that no loss in a Parquet file of pyarrow is NaN, also where some are.
# The format's statistics leave NaN out: a column of 0.9 and NaN has the largest value 0.9. DuckDB 1.5
# took every column of floats for one that may hold NaN. 2.0 takes the statistics for all values, by
# default. Then `isnan(loss)` is false, and no value is looked at: the count of bad rows is 0, and
# `CASE WHEN isnan(loss) THEN 0 ...` leaves NaN as it was. The same query of a table, of a file without
# statistics, or of one that DuckDB wrote is right, so that a test with data of its own passes.
# `read_parquet(..., can_have_nan=true)` is right too.
# duckdb 1.5.6 and 2.0.1, pyarrow 26.0.1. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/count.py" <<'PYTHON'
import math
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

folder, expected = sys.argv[1:]
rows = pa.table({"loss": [0.9, math.nan, 0.7, math.nan]})
pq.write_table(rows, f"{folder}/arrow.parquet")
pq.write_table(rows, f"{folder}/bare.parquet", write_statistics=False)
database = duckdb.connect()
database.register("rows", rows)
database.execute(f"COPY (SELECT * FROM rows) TO '{folder}/duckdb.parquet'")


def seen(source: str) -> list[object]:
    """How many losses are NaN, counted in two ways, and the sum of the others."""
    return list(
        database.execute(
            f"""
            SELECT (SELECT count(*) FROM {source} WHERE isnan(loss)),
                   sum(isnan(loss)::INT),
                   sum(CASE WHEN isnan(loss) THEN 0 ELSE loss END)
            FROM {source}
            """
        ).fetchall()[0]
    )


sources = {
    "the table": "rows",
    "file of DuckDB": f"'{folder}/duckdb.parquet'",
    "file without statistics": f"'{folder}/bare.parquet'",
    "file of pyarrow": f"'{folder}/arrow.parquet'",
}
if expected == "wrong":
    sources["the same, can_have_nan"] = (
        f"read_parquet('{folder}/arrow.parquet', can_have_nan=true)"
    )
print(f"duckdb {duckdb.__version__}, pyarrow {pa.__version__}: two losses of four are NaN")
wrong = []
for name, source in sources.items():
    filtered, counted, total = seen(source)
    print(f"  {name:23} WHERE: {filtered}, sum: {counted}, the others: {total}")
    if [filtered, counted] != [2, 2] or math.isnan(total):
        wrong.append((name, filtered, counted, math.isnan(total)))
(is_there,) = database.execute(f"SELECT list(loss) FROM {sources['file of pyarrow']}").fetchall()[0]
print(f"  file of pyarrow, its values: {is_there}")
as_expected = [("file of pyarrow", 0, 0, True)] if expected == "wrong" else []
sys.exit(wrong != as_expected or sum(map(math.isnan, is_there)) != 2)
PYTHON

"$python" -m pip install --quiet pyarrow==26.0.1 duckdb==1.5.6
"$python" "$folder/count.py" "$folder" right
"$python" -m pip install --quiet duckdb==2.0.1
"$python" "$folder/count.py" "$folder" wrong
echo "DuckDB 2.0.1 counts no NaN in a Parquet file that holds two, and 1.5.6 counts both."
