"""The name under which pipegen is installed, its version, and how to install what an engine needs.

On the Python package index the name `pipegen` is another project's. This distribution is
`pipegen-lm`; what is imported is `pipegen`.

>>> install_command("hf")
'pip install ".[hf]"'
"""

from __future__ import annotations

import importlib.util

DISTRIBUTION = "pipegen-lm"
SOURCE = "."
"""What pip installs from: a clone, until pipegen-lm is released. A release puts DISTRIBUTION here
and runs `python docs/tables.py`.
"""


def install_command(extra: str) -> str:
    """The command that installs pipegen with an extra; from a clone, it is run there."""
    return f'pip install "{SOURCE}[{extra}]"'


def install_hint(extra: str) -> str:
    """The command with the place to run it, for messages.

    >>> install_hint("peft")
    'pip install ".[peft]" (in your clone of pipegen)'
    """
    return install_command(extra) + (" (in your clone of pipegen)" if SOURCE == "." else "")


def version() -> str:
    """The version of the installed distribution; in a source tree that is not installed, that of
    its pyproject.toml; else `0+unknown`.
    """
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _source_version() or "0+unknown"


def _source_version() -> str | None:
    import tomllib
    from pathlib import Path

    try:
        project = tomllib.loads(
            (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        )["project"]
    except (OSError, ValueError, KeyError):
        return None
    return str(project.get("version")) if project.get("name") == DISTRIBUTION else None


class MissingExtra(ImportError):
    """A package that this engine needs is not installed; the message says what to install."""


def need(package: str, extra: str, purpose: str) -> None:
    """Make sure that `package` can be imported. Raises `MissingExtra` with the command that
    installs it.

    >>> need("json", "hf", "loading a model")
    >>> need("no_such_package", "peft", "a LoRA adapter")
    Traceback (most recent call last):
    ...
    pipegen.core.distribution.MissingExtra: a LoRA adapter needs the package no_such_package: pip install ".[peft]" (in your clone of pipegen)
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"{purpose} needs the package {package}: {install_hint(extra)}", name=package
        )
