"""`pipegen lm-eval`: lm-eval's own command, with pipegen as its model."""

# lm-eval need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipegen.cli.usage import refuse
from pipegen.core.distribution import MissingExtra, need


def arguments(flags: Sequence[str]) -> list[str]:
    """lm-eval's arguments: of a run, with `--model pipegen` and `--batch_size auto` where neither
    they nor a `--config` say another.

    >>> arguments(["--tasks", "gsm8k"])
    ['run', '--tasks', 'gsm8k', '--model', 'pipegen', '--batch_size', 'auto']
    >>> arguments(["ls", "tasks"])
    ['ls', 'tasks']
    """
    command = flags[0] if flags and not flags[0].startswith("-") else "run"
    if command != "run" or {"-h", "--help"} & {*flags}:
        return [*flags]
    command_line = [*flags] if flags and flags[0] == "run" else ["run", *flags]
    for names, value in ((("--model", "-M"), "pipegen"), (("--batch_size", "-b"), "auto")):
        if not any(argument in ("--config", "-C") for argument in command_line) and not any(
            argument in names or argument.partition("=")[0] in names for argument in command_line
        ):
            command_line += [names[0], value]
    return command_line


def run_lm_eval(flags: Sequence[str]) -> None:
    """Run it; it ends the program where lm-eval does. Where lm-eval is not installed, the message
    says how to install it.
    """
    try:
        need("lm_eval", "evals", "lm-eval")
    except MissingExtra as missing:
        refuse(str(missing))
    from lm_eval.__main__ import cli_evaluate

    import pipegen.evals.lm_eval  # noqa: F401 - it registers the model

    program_arguments, sys.argv = sys.argv, ["lm-eval", *arguments(flags)]
    try:
        cli_evaluate()
    finally:
        sys.argv = program_arguments
