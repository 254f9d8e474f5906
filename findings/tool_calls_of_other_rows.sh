#!/usr/bin/env bash
# Dataset.from_list and load_dataset("json") give the same tool calls with other arguments.
# load_dataset finds that the calls of two rows have different arguments, and keeps each message as
# Json: the values come back as they were. from_list merges them into one struct type, so each call
# has the arguments of all calls of the data set, null where they are another row's. A chat template
# writes them into the prompt, as arguments that the model is trained to give. A Parquet file of such
# a data set keeps them. `on_mixed_types="use_json"` makes from_list do as load_dataset does.
# datasets 5.2.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet datasets==5.2.0
HF_DATASETS_CACHE="$folder/cache" "$python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import datasets
from datasets import Dataset, load_dataset

datasets.disable_progress_bars()
folder = Path(sys.argv[1])


def row(question: str, name: str, **arguments: str) -> dict:
    call = {"function": {"name": name, "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
    }


def arguments(dataset: Dataset) -> list[dict]:
    calls = [row["messages"][1]["tool_calls"][0] for row in dataset]
    return [call["function"]["arguments"] for call in calls]


rows = [row("Is it warm in Rome?", "weather", city="Rome"), row("Late?", "time", zone="CET")]
lines = folder / "rows.jsonl"
lines.write_text("".join(json.dumps(one) + "\n" for one in rows))
made = Dataset.from_list(rows)
made.to_parquet(folder / "rows.parquet")
seen = {
    "the rows": [{"city": "Rome"}, {"zone": "CET"}],
    "load_dataset": arguments(load_dataset("json", data_files=str(lines), split="train")),
    "from_list": arguments(made),
    "its Parquet": arguments(
        load_dataset("parquet", data_files=str(folder / "rows.parquet"), split="train")
    ),
    "use_json": arguments(Dataset.from_list(rows, on_mixed_types="use_json")),
}
print(f"datasets {datasets.__version__}: the arguments of the calls of two rows")
for name, values in seen.items():
    print(f"  {name:12} {values}")
right = [name for name, values in seen.items() if values == seen["the rows"]]
filled = [{"city": "Rome", "zone": None}, {"city": None, "zone": "CET"}]
wrong = [name for name, values in seen.items() if values == filled]
sys.exit((right, wrong) != (["the rows", "load_dataset", "use_json"], ["from_list", "its Parquet"]))
PYTHON
echo "from_list gives each call the arguments of the other rows, and load_dataset does not."
