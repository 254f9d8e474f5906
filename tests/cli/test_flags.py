"""Flags from option records, and what the program as a whole does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

from pipegen.cli import main
from pipegen.cli.flags import flag_of, options_of_flags, unescape
from pipegen.engines.settings import fields_of
from pipegen.records.engine_list import BACKENDS
from pipegen.records.option_groups import StopOptions, StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import DEFAULTS
from pipegen.records.options import flat_values, option_names, options_from

TWENTY = [
    *("--model", "--config", "--backend", "--map", "--out", "--overwrite", "--brief"),
    *("--prompt", "--image", "--system", "--replicas", "--max-new-tokens", "--temperature"),
    *("--top-p", "--seed", "--samples", "--stop", "--enable-thinking", "--json-schema"),
    "--base-url",
]


@pytest.fixture
def help_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What a command prints and exits with 0 on a terminal of that width."""

    def shown(*arguments: str, width: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 0
        return capsys.readouterr().out

    return shown


def flags_in(shown: str) -> list[str]:
    """The long flags that a help text lists, without those that ask for help."""
    rows = (line.split("  ") for line in shown.splitlines() if line.startswith("  -"))
    found = [re.findall(r"--[\w-]+", row[1])[0] for row in rows]
    return [flag for flag in found if not flag.startswith("--help")]


def test_help_shows_the_flags_that_people_use(help_of: Callable[..., str]) -> None:
    shown = help_of("generate", "--help")
    assert sorted(flags_in(shown)) == sorted(TWENTY)
    assert len(TWENTY) == 20
    assert "--help-all  Show every flag." in shown
    assert "custom_id" not in shown
    assert len(shown.splitlines()) <= 100


def test_help_of_estimate_shows_its_own_flags(help_of: Callable[..., str]) -> None:
    assert flags_in(help_of("estimate", "--help")) == ["--model", "--price", "--speed", "--json"]
    every = flags_in(help_of("estimate", "--help-all"))
    assert {"--price", "--map", "--top-k", "--base-url"} <= {*every}
    assert "--out" not in every


def test_all_the_help_names_every_flag_in_whole(help_of: Callable[..., str]) -> None:
    shown = help_of("generate", "--help-all")
    assert "custom_id" in shown
    secret = {"api_key", "headers"}
    assert [name for name in option_names() if f"{flag_of(name)} " not in shown] == []
    assert [
        name
        for backend in BACKENDS
        for name in fields_of(backend)
        if (f"{flag_of(name)} " not in shown) is not (name in secret)
    ] == []
    assert "pipegen generate in.jsonl -o out.jsonl --model embedded" in shown


@pytest.mark.parametrize(("width", "longest"), [(70, 70), (100, 100), (500, 120)])
def test_help_is_as_wide_as_the_terminal(
    help_of: Callable[..., str], width: int, longest: int
) -> None:
    for arguments in (["generate", "--help-all"], ["verify", "--help"]):
        lines = help_of(*arguments, width=width).partition("Examples:")[0].splitlines()
        wrapped = [len(line) for line in lines if '{"id"' not in line and "     " not in line[:9]]
        assert longest - 12 < max(wrapped) <= longest


@pytest.mark.parametrize("command", ["generate", "estimate", "view", "diff", "export", "verify"])
def test_examples_fit_a_terminal_of_80_columns(help_of: Callable[..., str], command: str) -> None:
    assert max(map(len, help_of(command, "--help").splitlines())) <= 80


def test_commands_are_listed_in_the_order_of_work(help_of: Callable[..., str]) -> None:
    listed = help_of("--help").partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == [
        *("demo", "doctor", "estimate", "generate", "view", "diff"),
        *("export", "chat", "verify", "lm-eval", "schema"),
    ]


def test_flags_say_what_the_records_hold() -> None:
    values = {name: value for name, value in flat_values(DEFAULTS).items() if value is not None}
    assert flat_values(options_of_flags(values)) == flat_values(options_from(values))


def test_biases_are_given_as_json_and_words_one_by_one() -> None:
    given = options_of_flags({"logit_bias": '{"7": -100}', "bad_words": ["no", "a b"]})
    assert given == GenerationOptions(logit_bias={7: -100}, bad_words=("no", "a b"))
    with pytest.raises(typer.BadParameter, match="token ids to numbers from -100 to 100"):
        options_of_flags({"logit_bias": '{"7": 101}'})


def test_a_schema_is_given_as_json() -> None:
    assert options_of_flags({"json_schema": '{"type": "integer"}'}).structured == StructuredOptions(
        json_schema={"type": "integer"}
    )
    with pytest.raises(typer.BadParameter, match="takes a JSON Schema"):
        options_of_flags({"json_schema": "integer"})
    with pytest.raises(
        typer.BadParameter, match="one of json_schema, regex, choice and tool_choice"
    ):
        options_of_flags({"regex": "a", "choice": ["b"]})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((r"\n\n", "\n\n"), (r"\\n", r"\n"), (r"\t|\r", "\t|\r"), (r"\u000a\u00e9", "\né")),
        *((r"\boxed", r"\boxed"), ("\\", "\\"), (r"\u12", r"\u12"), ("a\nb", "a\nb")),
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
heavy = {"torch", "transformers", "vllm", "PIL", "numpy", "rich.console", "pipegen.config"} & set(sys.modules)
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
