#!/usr/bin/env bash
# mutmut says that no test fails for a broken function whose result is kept by functools.cache.
# It runs each mutant in a fork of a process that has run all tests on the code as it is. What that
# run has kept (functools.cache, readers built at import, compiled forms) is there in every fork, so
# the broken function is never called. A test in a fresh process would fail. Of a module of such
# functions most mutants "survive", and good tests look bad. An autouse fixture that clears the
# caches makes the same mutants die.
# mutmut 3.8.1, pytest 9.2.0. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet mutmut==3.8.1 pytest==9.2.0
mkdir -p "$folder/shop/shop" "$folder/shop/tests"
cd "$folder/shop"
cat > pyproject.toml <<'TOML'
[project]
name = "shop"
version = "1"
[tool.mutmut]
source_paths = ["shop"]
also_copy = ["tests"]
TOML
touch shop/__init__.py
cat > shop/plain.py <<'PYTHON'
def price(count):
    return count * 3
PYTHON
cat > shop/kept.py <<'PYTHON'
import functools


def compute(count):
    return count * 3


@functools.cache
def price(count):
    return compute(count)
PYTHON
cat > tests/test_shop.py <<'PYTHON'
from shop import kept, plain


def test_plain():
    assert plain.price(2) == 6


def test_kept():
    assert kept.price(2) == 6
PYTHON
"$folder/venv/bin/mutmut" run > /dev/null 2>&1
"$folder/venv/bin/mutmut" results --all true | tee "$folder/first"
cat > tests/conftest.py <<'PYTHON'
import pytest
from shop import kept


@pytest.fixture(autouse=True)
def fresh():
    kept.price.cache_clear()
PYTHON
rm -rf mutants
"$folder/venv/bin/mutmut" run > /dev/null 2>&1
echo "with the cache cleared before each test:"
"$folder/venv/bin/mutmut" results --all true | tee "$folder/second"
test "$(grep -c 'plain.*killed' "$folder/first")" = 2
test "$(grep -c 'kept.*survived' "$folder/first")" = 2
test "$(grep -c 'kept.*killed' "$folder/second")" = 2
echo "A mutant behind a cache survives, whatever the tests say."
