#!/usr/bin/env bash
# Image.resize gives other pixels on Pillow 13 where an image becomes wider and lower.
# A resize is two passes, and between them values are rounded to 8 bits and cut to 0 and 255. Up to
# 12 the horizontal pass is first. 13 does the vertical one first where that is less work. Lanczos
# and bicubic overshoot at edges, and which overshoot is cut depends on the order: pixels differ by
# up to 19 levels here. Where the width shrinks nothing changes, so a test of thumbnails may pass.
# pillow 12.0.0 and 13.0.0. Checked 2026-11-28.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
cat >"$folder/resize.py" <<'PYTHON'
import random
import sys

import PIL
from PIL import Image, ImageChops

random.seed(0)
image = Image.frombytes("RGB", (64, 48), random.randbytes(64 * 48 * 3))


def difference(one: Image.Image, other: Image.Image) -> int:
    return max(high for _, high in ImageChops.difference(one, other).getextrema())


print(f"Pillow {PIL.__version__}: an image of 64 x 48; largest difference, in levels of 255")
orders = []
for name, kind in (
    ("lanczos", Image.Resampling.LANCZOS),
    ("bicubic", Image.Resampling.BICUBIC),
):
    for width, height in ((90, 20), (20, 90)):
        made = image.resize((width, height), kind)
        horizontal = image.resize((width, 48), kind).resize((width, height), kind)
        vertical = image.resize((64, height), kind).resize((width, height), kind)
        gaps = difference(made, horizontal), difference(made, vertical)
        orders.append("horizontal" if gaps[0] == 0 else "vertical" if gaps[1] == 0 else "?")
        print(
            f"  {name} to {width} x {height}: {gaps[0]} from the horizontal pass first,"
            f" {gaps[1]} from the vertical one first"
        )
sys.exit(orders != [sys.argv[1], "horizontal"] * 2)
PYTHON

"$python" -m pip install --quiet pillow==12.0.0
"$python" "$folder/resize.py" horizontal
"$python" -m pip install --quiet pillow==13.0.0
"$python" "$folder/resize.py" vertical
echo "Pillow 13 takes the vertical pass first where that is less work, and 12.0.0 does not."
