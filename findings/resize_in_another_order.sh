#!/usr/bin/env bash
# Image.resize gives other pixels on Pillow 13 for a tall image, or one that becomes wider and lower.
# A resize is two passes, and between them values are rounded to 8 bits and cut to 0 and 255. Up to
# 12 the horizontal pass is first. 13 chooses by the sizes. A thumbnail in proportion has the vertical
# pass first where the image is over about twice as high as wide: a photo, or a phone's screen of
# 1080 x 1920, is as before, and one of 1080 x 2400 is not. Lanczos and bicubic overshoot at edges,
# and which overshoot is cut depends on the order: pixels differ by up to 19 levels here.
# pillow 12.0.0 and 13.0.0. Checked 2026-11-30.
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


def difference(one: Image.Image, other: Image.Image) -> int:
    return max(high for _, high in ImageChops.difference(one, other).getextrema())


print(f"Pillow {PIL.__version__}: largest difference, in levels of 255, from each order of the passes")
orders = []
for name, kind in (("lanczos", Image.Resampling.LANCZOS), ("bicubic", Image.Resampling.BICUBIC)):
    for size, (width, height) in (
        ((64, 48), (90, 20)),
        ((64, 48), (20, 90)),
        ((1080, 1920), (270, 480)),
        ((1080, 2400), (270, 600)),
    ):
        image = Image.frombytes("RGB", size, random.randbytes(size[0] * size[1] * 3))
        made = image.resize((width, height), kind)
        horizontal = image.resize((width, size[1]), kind).resize((width, height), kind)
        vertical = image.resize((size[0], height), kind).resize((width, height), kind)
        gaps = difference(made, horizontal), difference(made, vertical)
        orders.append("horizontal" if gaps[0] == 0 else "vertical" if gaps[1] == 0 else "?")
        print(
            f"  {name}, {size[0]} x {size[1]} to {width} x {height}: {gaps[0]} from the horizontal"
            f" pass first, {gaps[1]} from the vertical one first"
        )
sys.exit(orders != [sys.argv[1], "horizontal", "horizontal", sys.argv[1]] * 2)
PYTHON

"$python" -m pip install --quiet pillow==12.0.0
"$python" "$folder/resize.py" horizontal
"$python" -m pip install --quiet pillow==13.0.0
"$python" "$folder/resize.py" vertical
echo "Pillow 13 takes the vertical pass first for some sizes, and 12.0.0 does not."
