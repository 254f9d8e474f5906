"""Traps of YAML: what two readers would understand differently is refused, with its place and
without its value.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipegen.config.config_files import read_plain
from pipegen.core.names import InvalidField


def read(folder: Path, text: str) -> object:
    file = folder / "c.yaml"
    file.write_text(text)
    return read_plain(file, "a chat file")[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0100", "leading zero or a colon"),  # 64 to YAML 1.1, 100 to YAML 1.2
        ("-0_7", "leading zero or a colon"),
        ("1:30", "leading zero or a colon"),  # 90 to YAML 1.1
        ("1:30.5", "leading zero or a colon"),
        ("1e-3", "takes this number for text"),  # a number to YAML 1.2
        ("1.5e3", "takes this number for text"),
        ("0o17", "takes this number for text"),
        ("2024-01-01", "a date in YAML"),
        ("2024-01-01 10:00:00", "a date in YAML"),
        ("!!binary aGk=", "the tag"),
        ("!!set {x}", "the tag"),
        ("!!omap [a: 1]", "the tag"),
        ("!mine x", "the tag '!mine'"),
        ("!!python/name:os.system x", "the tag"),
    ],
)
def test_what_readers_take_differently_is_refused_where_it_stands(
    tmp_path: Path, value: str, words: str
) -> None:
    with pytest.raises(InvalidField, match=rf"c\.yaml line 3: a\.b\[1\]: .*{words}") as refusal:
        read(tmp_path, f"a:\n  b: [1,\n    {value}]\n")
    assert value not in str(refusal.value) or value.startswith("!")


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        *(("0", 0), ("-0", 0), ("0.5", 0.5), (".5", 0.5), ("1.0e-3", 0.001), ("1_000", 1000)),
        *(("0x10", 16), ('"0100"', "0100"), ("'1e-3'", "1e-3"), ('"2024-01-01"', "2024-01-01")),
        *(("1e-3 of it", "1e-3 of it"), ("yes", True), ("off", False), ("!!str 0100", "0100")),
    ],
)
def test_what_is_plain_is_taken(tmp_path: Path, value: str, taken: object) -> None:
    assert read(tmp_path, f"a: {value}\n") == {"a": taken}
