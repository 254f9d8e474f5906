#!/usr/bin/env bash
# sqlglot's optimize() gives rows without a match in a LEFT JOIN the value that a row with a match has.
#
# optimize() puts a query into a standard form, for instance to compare a model's SQL with the right
# one, and one expects the same rows of it. A CTE or subquery that marks its rows (`1 AS graded`,
# `COALESCE(score, 0)`) is joined by LEFT JOIN, and the mark is NULL where there is no match. The rule
# merge_subqueries writes the mark's expression in its place, also on the side of an outer join. There
# it is not NULL: `graded IS NULL` becomes FALSE and finds no row, and `COUNT(graded)` counts all rows.
# There is no error and no warning. Two queries of different rows get one form, so a wrong query passes
# for the right one. A mark that is a plain column stays right, and so do all where the rule is left out.
# sqlglot 30.30.0. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet sqlglot==30.30.0
"$python" - <<'PYTHON'
import sqlite3
import sys
from importlib.metadata import version

from sqlglot import parse_one
from sqlglot.optimizer import RULES, optimize
from sqlglot.optimizer.merge_subqueries import merge_subqueries

print(f"sqlglot {version('sqlglot')}")
base = sqlite3.connect(":memory:")
base.executescript(
    "CREATE TABLE questions (id INT); CREATE TABLE grades (id INT, score INT);"
    "INSERT INTO questions VALUES (1), (2), (3); INSERT INTO grades VALUES (1, 7), (2, NULL);"
)
schema = {"questions": {"id": "int"}, "grades": {"id": "int", "score": "int"}}
others = [rule for rule in RULES if rule is not merge_subqueries]


def rows(query):
    return sorted(base.execute(query).fetchall())


def form(query, rules=RULES):
    return optimize(parse_one(query, read="sqlite"), schema=schema, dialect="sqlite", rules=rules).sql("sqlite")


join = "FROM questions AS q LEFT JOIN g ON g.id = q.id"
marked = f"WITH g AS (SELECT id, 1 AS graded FROM grades) SELECT {{}} {join}"
queries = {
    "not graded": marked.format("q.id") + " WHERE g.graded IS NULL",
    "number of grades": marked.format("COUNT(g.graded) AS n"),
    "mark": marked.format("q.id, g.graded"),
    "score, or 0": f"WITH g AS (SELECT id, COALESCE(score, 0) AS score FROM grades) SELECT q.id, g.score {join}",
    "plain column": f"WITH g AS (SELECT id, score FROM grades) SELECT q.id, g.score {join}",
}
found = {}
for name, query in queries.items():
    right, optimized, without = rows(query), rows(form(query)), rows(form(query, others))
    print(f"  {name:16} as written {right}, optimized {optimized}, without the rule {without}")
    found[name] = [optimized == right, without == right]
print("  not graded, optimized:", form(queries["not graded"]))
wrong = "SELECT q.id, 1 AS graded FROM questions AS q LEFT JOIN grades AS grades ON grades.id = q.id"
same = form(wrong) == form(queries["mark"])
print(f"  a query that marks all rows: {rows(wrong)}, its optimized form is that of the right one: {same}")
expected = dict.fromkeys(queries, [False, True]) | {"plain column": [True, True]}
sys.exit(found != expected or not same or rows(wrong) == rows(queries["mark"]))
PYTHON
echo "The optimized query takes a row without a match for one with a match."
