"""Packages that only some engines need, and what to say when one is missing."""

from __future__ import annotations

import importlib.util

from pipegen.core.distribution import install_hint


class MissingExtra(ImportError):
    """A package that this engine needs is not installed; the message says what to install."""


def need(package: str, extra: str, purpose: str) -> None:
    """Make sure that `package` can be imported. Raises `MissingExtra` with the command that
    installs it.

    >>> need("json", "hf", "loading a model")
    >>> need("no_such_package", "peft", "a LoRA adapter")
    Traceback (most recent call last):
    ...
    pipegen.engines.extras.MissingExtra: a LoRA adapter needs the package no_such_package: pip install ".[peft]" (in your clone of pipegen)
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(
            f"{purpose} needs the package {package}: {install_hint(extra)}", name=package
        )
