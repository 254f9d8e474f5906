"""Which versions of the engines' packages are taken, and up to which the tests were run."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pipegen.core.distribution import DISTRIBUTION
from pipegen.engines import versions
from pipegen.engines.versions import NOT_RUN, bounds, bounds_in, is_newer, minor, required_by

HERE = Path(__file__).parents[2]
ENGINE_PACKAGES = {
    *(
        "accelerate",
        "llguidance",
        "mcp",
        "peft",
        "renderers",
        "torch",
        "transformers",
        "trl",
        "vllm",
    ),
}


def declared() -> list[str]:
    """The extras of pyproject.toml, as metadata write them."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        f"{required}; extra == '{extra}'"
        for extra, packages in project["optional-dependencies"].items()
        for required in packages
    ]


def test_every_package_of_an_engine_is_bounded_by_a_minor_version() -> None:
    assert set(bounds_in(declared())) == ENGINE_PACKAGES


def test_a_package_has_the_same_bounds_in_every_extra() -> None:
    takes: dict[str, set[str]] = {}
    for required in declared():
        match = re.match(r"([\w-]+)([^;]*)", required)
        assert match is not None
        if match[1] != DISTRIBUTION:
            takes.setdefault(match[1], set()).add(match[2])
    assert {name: found for name, found in takes.items() if len(found) > 1} == {}


def test_the_bounds_of_the_installed_package_are_those_of_pyproject() -> None:
    if not required_by("hf"):
        pytest.skip("pipegen is not installed as a package")
    assert bounds() == bounds_in(declared())


def test_the_versions_that_the_tests_use_are_among_those_that_are_tested() -> None:
    constraints = HERE / ".ci" / "constraints.txt"
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)$", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    )
    newest = {name: known.tested for name, known in bounds_in(declared()).items() if name in pinned}
    assert set(newest) == ENGINE_PACKAGES - {"trl", "vllm"}
    assert {name for name, tested in newest.items() if minor(pinned[name]) > tested} == set()
    # these are also tested on newer versions than the pinned ones
    behind = {name for name, tested in newest.items() if minor(pinned[name]) < tested}
    assert behind <= {"torch", "transformers"}


def test_what_is_taken_and_was_not_run_is_the_newest_that_is_taken() -> None:
    known = bounds_in(declared())
    for name, version in NOT_RUN.items():
        assert version == (known[name].below[0], known[name].below[1] - 1)
        assert known[name].tested == (version[0], version[1] - 1)


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("5.16.0", False),
        ("5.24.9", False),
        ("5.25.0.dev0", True),
        ("5.25.0", True),
        ("6.0", True),
        ("4.57.1", False),
    ],
)
def test_a_version_is_newer_from_the_first_minor_one_that_is_not_taken(
    version: str, newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = ["transformers<5.25,>=5.16; extra == 'hf'", "rich>=13.9"]
    monkeypatch.setattr(versions, "requirements", lambda: tuple(required))
    assert is_newer("transformers", version) is newer
    assert not is_newer("rich", "99.0")


@pytest.mark.parametrize(
    "required",
    [
        'torch[opt]>=2.8,<2.15 ; extra == "hf"',
        "torch <2.15, >=2.8; python_version < '4' and extra == 'hf'",
    ],
)
def test_requirements_are_read_however_they_are_written(required: str) -> None:
    assert bounds_in([required]) == {"torch": (">=2.8,<2.15", (2, 15), (2, 14))}


def test_where_pipegen_is_not_installed_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        assert name == DISTRIBUTION
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert (required_by("hf"), bounds(), is_newer("torch", "99.0")) == ({}, {}, False)
