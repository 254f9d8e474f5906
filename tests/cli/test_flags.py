"""Flags from option records, and what the program as a whole does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from pipegen.cli import main
from pipegen.cli.flags import flag_of, options_of_flags, unescape
from pipegen.engines.settings import fields_of
from pipegen.records.engine_list import BACKENDS
from pipegen.records.options import (
    DEFAULTS,
    StopOptions,
    StructuredOptions,
    flat_values,
    option_names,
    options_from,
)


def test_help_names_every_flag_in_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as leaving:
        main(["generate", "--help"])
    shown = capsys.readouterr().out
    assert leaving.value.code == 0
    secret = {"api_key", "headers"}
    assert [name for name in option_names() if f"{flag_of(name)} " not in shown] == []
    assert [
        name
        for backend in BACKENDS
        for name in fields_of(backend)
        if (f"{flag_of(name)} " not in shown) is not (name in secret)
    ] == []
    assert "pipegen generate requests.jsonl -o results.jsonl --model embedded" in shown


def test_flags_say_what_the_records_hold() -> None:
    values = {
        name: value
        for name, value in flat_values(DEFAULTS).items()
        if value is not None and name != "template_kwargs"
    }
    assert flat_values(options_of_flags(values)) == {
        **flat_values(options_from(values)),
        "template_kwargs": None,
    }


def test_a_schema_is_given_as_json() -> None:
    assert options_of_flags({"json_schema": '{"type": "integer"}'}).structured == StructuredOptions(
        json_schema={"type": "integer"}
    )
    with pytest.raises(typer.BadParameter, match="takes a JSON Schema"):
        options_of_flags({"json_schema": "integer"})
    with pytest.raises(typer.BadParameter, match="one of json_schema, regex and choice"):
        options_of_flags({"regex": "a", "choice": ["b"]})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (r"\n\n", "\n\n"),
        (r"\\n", r"\n"),
        (r"\t|\r", "\t|\r"),
        (r"\u000a\u00e9", "\né"),
        (r"\boxed", r"\boxed"),
        ("\\", "\\"),
        (r"\u12", r"\u12"),
        ("a\nb", "a\nb"),
    ],
)
def test_escapes_in_a_stop_are_read_and_other_backslashes_kept(given: str, meant: str) -> None:
    assert unescape(given) == meant
    assert options_of_flags({"stop": [given]}).stop == StopOptions(stop=(meant,))


def test_help_loads_nothing_heavy() -> None:  # C6
    code = """
import sys
from pipegen.cli import main
for arguments in (["--help"], ["generate", "--help"], ["demo", "--help"], ["doctor", "--help"], ["--version"]):
    try:
        main(arguments)
    except SystemExit as leaving:
        assert leaving.code == 0, leaving.code
heavy = {"torch", "transformers", "vllm", "PIL", "numpy", "rich.console"} & set(sys.modules)
assert not heavy, heavy
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Usage: pipegen") == 4


def test_the_module_is_the_command_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pipegen", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("pipegen ")


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([])
    shown = "".join(capsys.readouterr())
    assert leaving.value.code == 2
    assert all(name in shown for name in ("generate", "demo", "doctor"))
