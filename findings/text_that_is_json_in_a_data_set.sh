#!/usr/bin/env bash
# With one message whose content is a list, datasets reads the texts of all messages as JSON.
# A chat data set may hold texts, and lists of parts where there is an image. Such a field becomes a
# Json column: load_dataset does it by itself, from_list with `on_mixed_types="use_json"`. One expects
# the values as they were. But a text that is JSON is stored as what it says, not as a text: an answer
# '{"city": "Rome"}' comes back as a dict, "42" as a number, "007" as 7, and "null" as None. A chat
# template then writes other text, without the quotes or the zeros, or none. There is no error and no
# warning. Without the list all texts stay, so one row with an image changes the rows that have none.
# datasets 5.2.0. Checked 2026-11-29.
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
texts = ['{"city": "Rome"}', "42", "007", "null", "true", "Is it warm in Rome?"]
parts = [{"type": "text", "text": "42"}]


def rows(contents: list[object]) -> list[dict]:
    return [{"messages": [{"role": "assistant", "content": one}]} for one in contents]


def loaded(contents: list[object], name: str) -> Dataset:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(contents)))
    return load_dataset("json", data_files=str(path), split="train")


def from_list(contents: list[object], name: str) -> Dataset:
    return Dataset.from_list(rows(contents), on_mixed_types="use_json")


print(f"datasets {datasets.__version__}: the contents that come back for the texts {texts}")
as_expected = True
for make in (loaded, from_list):
    for name, contents in {"texts alone": texts, "and a list of parts": [*texts, parts]}.items():
        back = [row["messages"][0]["content"] for row in make(contents, name)]
        print(f"  {make.__name__}, {name:19} {back[: len(texts)]}")
        if contents is texts:
            as_expected &= back == texts
        else:
            as_expected &= back == [{"city": "Rome"}, 42, 7, None, True, texts[-1], parts]
sys.exit(not as_expected)
PYTHON
echo "One list among the contents makes the texts that are JSON into other values."
