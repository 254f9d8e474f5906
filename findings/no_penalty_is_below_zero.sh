#!/usr/bin/env bash
# Polars, DuckDB and pyarrow find that a reward of -0.0 is below 0 when they filter a Vortex file.
#
# `reward = -penalty` is -0.0 where there is no penalty. Each of the three takes -0.0 and 0.0 as equal,
# in its own tables and in Parquet files. A Vortex file can be read as a Polars LazyFrame or a pyarrow
# Dataset, so one expects the same rows. But these hand the filter to Vortex, which compares by
# IEEE 754's total order: -0.0 is below 0.0, and not equal to it. So `reward == 0` finds no row, and
# `reward < 0` all rows. In DuckDB a row may be in `reward < 0` and in `reward >= 0` too, as it does
# the second comparison itself. The same filter after `collect()` is right. The zeros come back as
# they were, so a comparison of the tables shows nothing.
# vortex-data 0.93.0, polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet vortex-data==0.93.0 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
"$python" - "$folder" <<'PYTHON'
import sys
from importlib.metadata import version

import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset
import vortex

names = ("vortex-data", "polars", "duckdb", "pyarrow")
print(", ".join(f"{name} {version(name)}" for name in names))
frame = pl.DataFrame({"id": [1, 2, 3, 4], "penalty": [0.0, 0.5, 0.0, 1.0]})
frame = frame.with_columns(reward=-pl.col("penalty"))
print("id and reward:", frame.select("id", "reward").rows())
folder = sys.argv[1]
frame.write_parquet(f"{folder}/rows.parquet")
vortex.io.write(frame.to_arrow(), f"{folder}/rows.vortex")
file = vortex.open(f"{folder}/rows.vortex")
frames = {"Parquet": pl.scan_parquet(f"{folder}/rows.parquet"), "Vortex": file.to_polars()}
sets = {"Parquet": pyarrow.dataset.dataset(f"{folder}/rows.parquet"), "Vortex": file.to_dataset()}
found = {}
for kind in ("Parquet", "Vortex"):
    lazy, rows = frames[kind], sets[kind]
    for text, reward in (("= 0", "__eq__"), ("< 0", "__lt__"), (">= 0", "__ge__")):
        column, field = getattr(pl.col("reward"), reward)(0), getattr(pc.field("reward"), reward)(0)
        ids = {
            "Polars": lazy.filter(column).collect()["id"].to_list(),
            "collected first": lazy.collect().filter(column)["id"].to_list(),
            "DuckDB": [row[0] for row in duckdb.sql(f"SELECT id FROM rows WHERE reward {text}").fetchall()],
            "pyarrow": rows.to_table(filter=field)["id"].to_pylist(),
        }
        found[kind, text] = [sorted(value) for value in ids.values()]
        print(f"  {kind:7} reward {text:4}", ", ".join(f"{name} {ids[name]}" for name in ids))
all_, none, zero, below = [1, 2, 3, 4], [], [1, 3], [2, 4]
expected = {("Parquet", "= 0"): [zero] * 4, ("Parquet", "< 0"): [below] * 4, ("Parquet", ">= 0"): [zero] * 4}
expected |= {("Vortex", "= 0"): [none, zero, none, none], ("Vortex", "< 0"): [all_, below, all_, all_]}
sys.exit(found != expected | {("Vortex", ">= 0"): [none, zero, zero, none]})
PYTHON
echo "The same filter finds other rows in a Vortex file, since Vortex compares the zeros by their sign."
