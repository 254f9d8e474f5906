#!/usr/bin/env bash
# Math-Verify reads a product of whole numbers in brackets as a sum: `4(6)` is 10, and not 24.
#
# An answer may stand as a product: `4(6)`, `\frac{2(3)}{4}` or `12\left(\frac{3}{4}\right)`. One expects
# that verify() takes it for its value, as it does for `4\cdot(6)`, `4(-6)`, `4(x)` and `4(6)^2`. But the
# parser adds a whole number and a positive rational number that follow one another, so that
# `2\frac{1}{2}` is two and a half, and it does not see the brackets. So a right answer gets no reward,
# and a wrong one (10 for `4(6)`) is right. There is no error and no warning. The parser's own setting
# for this, `interpret_as_mixed_fractions=False`, changes nothing, also for `2\frac{1}{2}`.
# math-verify 0.9.0, latex2sympy2_extended 1.11.0, sympy 1.14.0. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
"$python" - <<'PYTHON'
import sys
from importlib.metadata import version

from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import parse, verify
from sympy import Rational

names = ("math-verify", "latex2sympy2_extended", "sympy")
print(", ".join(f"{name} {version(name)}" for name in names))
# An answer, its value, and the value of the sum.
read_as_sums = [
    (r"4(6)", "24", "10"),
    (r"(4)(6)", "24", "10"),
    (r"4\left(6\right)", "24", "10"),
    (r"1+4(6)", "25", "11"),
    (r"\frac{2(3)}{4}", "1.5", "1.25"),
    (r"\sqrt{4(9)}", "6", r"\sqrt{13}"),
    (r"12\left(\frac{3}{4}\right)", "9", "12.75"),
]
read_as_products = [
    (r"4\cdot(6)", "24", "10"),
    (r"4(-6)", "-24", "-2"),
    (r"4(6)^2", "144", "40"),
    (r"4(2+4)", "24", "10"),
    (r"4(6.0)", "24", "10"),
    (r"4(x)", "4x", "4+x"),
    (r"\frac{3}{4}(12)", "9", "12.75"),
]
found = []
for answer, product, sum_ in read_as_sums + read_as_products:
    reply = parse(f"The answer is ${answer}$.")
    right, wrong = (verify(parse(f"${gold}$"), reply) for gold in (product, sum_))
    print(f"  {answer:28} is {product}: {right!s:6} is {sum_}: {wrong}")
    found.append((right, wrong))
setting = ConversionConfig(interpret_as_mixed_fractions=False)
kept = {text: latex2sympy(text, conversion_config=setting) for text in (r"4(6)", r"2\frac{1}{2}")}
print("  with interpret_as_mixed_fractions=False:", kept)
expected = [(False, True)] * len(read_as_sums) + [(True, False)] * len(read_as_products)
sys.exit(found != expected or list(kept.values()) != [10, Rational(5, 2)])
PYTHON
echo "A whole number before a positive number in brackets is added to it, and not multiplied."
