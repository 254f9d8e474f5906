"""Which versions of the engines' packages pipegen takes, and up to which its tests were run.

`pyproject.toml` bounds each of them below the first minor version that the tests were not run on.
It is read here from pipegen's own metadata.

>>> bounds_in(["torch<2.15,>=2.8; extra == 'hf'", "rich>=13.9", "pyarrow>=18; extra == 'data'"])
{'torch': Bounds(takes='>=2.8,<2.15', below=(2, 15), tested=(2, 14))}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import NamedTuple

from pipegen.core.distribution import DISTRIBUTION

NOT_RUN: Mapping[str, tuple[int, int]] = {"vllm": (0, 33)}
"""Minor versions that are taken, and that the tests were not run on. vLLM 0.33 was read: it has no
wheel for CPUs. On torch 2.14, which has none for Linux on PyPI either, the tests of `nox -s newest`
passed on a CPU with the build for CUDA.
"""
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<takes>[^;]*?)\s*;.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)"
)


class Bounds(NamedTuple):
    """Which versions of a package pipegen takes."""

    takes: str
    """As pip writes it, the lowest first."""
    below: tuple[int, int]
    """The first minor version that is not taken."""
    tested: tuple[int, int]
    """The newest minor version that the tests were run on."""


def requirements() -> tuple[str, ...]:
    """What pipegen and its extras require, by its own metadata; nothing where it is not installed
    as a package.
    """
    try:
        return tuple(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:
        return ()


def required_by(extra: str) -> dict[str, str]:
    """The packages that an extra requires, each with the versions that it takes."""
    found = (_REQUIREMENT.match(requirement) for requirement in requirements())
    return {
        match["name"]: match["takes"]
        for match in found
        if match is not None and match["extra"] == extra
    }


def bounds() -> dict[str, Bounds]:
    """The engines' packages, by their names."""
    return bounds_in(requirements())


def bounds_in(required: Iterable[str]) -> dict[str, Bounds]:
    """The packages of extras that are bounded by a minor version."""
    found: dict[str, Bounds] = {}
    for match in map(_REQUIREMENT.match, required):
        below = match and re.search(r"<\s*(\d+)\.(\d+)", match["takes"])
        if match and below:
            first = (int(below[1]), int(below[2]))
            newest = (first[0], first[1] - 1)
            untested = NOT_RUN.get(match["name"]) == newest
            found[match["name"]] = Bounds(
                takes=",".join(sorted(match["takes"].replace(" ", "").split(","), reverse=True)),
                below=first,
                tested=(newest[0], newest[1] - 1) if untested else newest,
            )
    return found


def minor(version: str) -> tuple[int, int]:
    """The two numbers that a version begins with.

    >>> minor("5.24.0.dev0"), minor("3")
    ((5, 24), (3, 0))
    """
    numbers = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2] or 0))


def is_newer(package: str, version: str) -> bool:
    """Whether a version of an engine's package is newer than all that pipegen takes."""
    known = bounds().get(package)
    return known is not None and minor(version) >= known.below
