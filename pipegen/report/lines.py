"""Reports for readers: plain data as lines, by a table of what is written where a value is there.

>>> rows = (("", "{name}: {count:,} rows"), ("failed", "{failed} failed"), ("all", "- {kind}"))
>>> list(lines_of({"name": "a", "count": 2000, "failed": 0, "all": [{"kind": "x"}]}, rows))
['a: 2,000 rows', '- x']
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Rows = Sequence[tuple[str, str]]
"""The name of a value, or none, and the words of its line."""


def lines_of(values: Mapping[str, object], rows: Rows) -> Iterator[str]:
    """The lines of the rows whose value is there: not None, not empty, and no count of 0. A list has
    a line for each of its entries, which are mappings.
    """
    for name, words in rows:
        value = values.get(name) if name else True
        if isinstance(value, list):
            yield from (words.format_map({**values, **entry}) for entry in value)
        elif value or type(value) is float:
            yield words.format_map(values)
