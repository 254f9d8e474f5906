"""Options files: what they take, and how a bad one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipegen.config import MAX_FILE_BYTES, read_options
from pipegen.core.names import InvalidField
from pipegen.records.fields import UnknownField
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions


def written(folder: Path, text: str | bytes, name: str = "options.yaml") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


BOTH = pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "options.yaml",
            'temperature: 0.2\nstop: ["\\n\\n", END]\ndecode:\n  strip_whitespace: true\n',
        ),
        ("options.YML", "{temperature: 0.2, stop: ['\n\n\n', END], strip_whitespace: true}"),
        (
            "options.json",
            '{"temperature": 0.2, "stop": ["\\n\\n", "END"], "strip_whitespace": true}',
        ),
    ],
)


@BOTH
def test_json_and_yaml_nested_and_flat_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    expected = GenerationOptions(
        temperature=0.2,
        stop=StopOptions(stop=("\n\n", "END")),
        decode=DecodeOptions(strip_whitespace=True),
    )
    assert read_options(written(tmp_path, text, name)) == expected


def test_an_empty_yaml_file_says_nothing(tmp_path: Path) -> None:
    assert read_options(written(tmp_path, "# nothing yet\n")) == GenerationOptions()


@pytest.mark.parametrize(
    ("name", "text"),
    [("o.yaml", "top_k: 3\ntemprature: 0.2\n"), ("o.json", '{"top_k": 3,\n"temprature": 0.2}')],
)
# C1
def test_an_unknown_name_is_refused_with_its_place_and_the_nearest_name(
    tmp_path: Path, name: str, text: str
) -> None:
    with pytest.raises(
        UnknownField,
        match=(
            r"o\.(yaml line 2|json): there is no option 'temprature'; did you mean 'temperature'\?"
        ),
    ):
        read_options(written(tmp_path, text, name))


@pytest.mark.parametrize("value", ["true", "12.9", "-1", "'7'", ".nan", "[1]", "2020-01-01"])
# C2
def test_a_value_that_the_option_does_not_take_is_refused_with_file_and_name(
    tmp_path: Path, value: str
) -> None:
    with pytest.raises(InvalidField, match=r"options\.yaml"):
        read_options(written(tmp_path, f"max_new_tokens: {value}\n"))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("o.json", '{"seed": 1, "seed": 2}', "'seed' occurs twice"),
        ("o.json", '{"temperature": NaN}', "NaN is not a number"),
        ("o.json", '{"temperature": 1', "not JSON"),
        ("o.json", "[1]", "a mapping of options, not list"),
        ("o.json", "", "not JSON"),
        ("o.json", "[" * 100_000, "nested"),
        ("o.yaml", "seed: 1\nseed: 2\n", "line 2: the key 'seed' occurs twice"),
        ("o.yaml", "template_kwargs: {a: 1, a: 2}\n", "line 1: the key 'a' occurs twice"),
        ("o.yaml", "template_kwargs: {a: .nan}\n", "nan is not a number"),
        ("o.yaml", "template_kwargs: &x\n  a: 1\nchat: {template_kwargs: *x}\n", "aliases"),
        ("o.yaml", "template_kwargs: &x\n  a: *x\n", "aliases"),
        ("o.yaml", "1: 2\n", "a key takes a string, not '1'"),
        ("o.yaml", "a: [1\n", "line 2: not YAML"),
        (
            "o.yaml",
            "seed: !!python/object/apply:os.getcwd []\n",
            r"line 1: seed: the tag 'tag:.*os\.getcwd' is not taken",
        ),
        ("o.yaml", "[" * 100_000, "nested|recursion"),
        ("o.yaml", "a: \x00", "not YAML"),
        ("o.yaml", "- seed\n", "a mapping of options, not list"),
        (
            "o.yaml",
            "template_kwargs: {a: 2020-13-45}\n",
            r"line 1: template_kwargs\.a: a date in YAML",
        ),
        (
            "o.yaml",
            "min_new_tokens: 9\nmax_new_tokens: 3\n",
            "min_new_tokens of at most max_new_tokens",
        ),
        ("o.yaml", b"seed: \xff", "not UTF-8: byte 0xff at position 6"),
        ("o.yaml", "#" * (MAX_FILE_BYTES + 1), "is longer than"),
        ("o.toml", "seed = 1", r"ends in \.json, \.yaml or \.yml"),
    ],
)
def test_a_bad_file_is_refused_and_named(
    tmp_path: Path, name: str, text: str | bytes, words: str
) -> None:
    with pytest.raises(InvalidField, match=words) as refusal:
        read_options(written(tmp_path, text, name))
    assert name in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match=r"nowhere\.yaml: cannot be read: No such file"):
        read_options(tmp_path / "nowhere.yaml")
