"""What is installed: under its own name, with its version, and by commands that install pipegen and
not another project of that name.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import pipegen as pg
from pipegen.core import distribution
from pipegen.core.distribution import DISTRIBUTION, install_command, install_hint

HERE = Path(__file__).parents[2]
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLACES = (
    Path(str(resources.files(pg))),
    HERE / "docs",
    HERE / "tests",
    HERE / "property_tests",
    HERE / ".ci",
)
ALONE = [
    HERE / name
    for name in ("README.md", "CONTRIBUTING.md", "noxfile.py", "pyproject.toml", ".mkdocs.yml")
]
KINDS = (".py", ".md", ".toml", ".yml", ".yaml", ".json", ".txt", ".html", "")
WRONG = re.compile(
    r"(?<![\w./-])pipegen\\*\[[a-z]+(,[a-z]+)*\\*\]|pip install (-\S+ )*[\"']?pipegen(?!-lm)\b"
)
"""`pipegen[...]` and `pip install pipegen`: the other project."""


def test_the_wrong_form_is_recognised() -> None:
    wrong = (
        "pip install pipegen",
        'pip install -U "pipegen[hf]"',
        "`pipegen[hf,online]`",
        r"pipegen\[hf]",
        "pip install 'pipegen>=1'",
    )
    right = (
        *("pip install pipegen-lm", 'pip install "pipegen-lm[hf]"', 'pip install ".[hf]"'),
        *("pipegen doctor", "import pipegen", "pipegen.backends[0]"),
    )
    assert [bool(WRONG.search(text)) for text in (*wrong, *right)] == [True] * len(wrong) + [
        False
    ] * len(right)


@pytest.mark.slow
def test_nothing_tells_people_to_install_the_other_project() -> None:
    paths = [
        *ALONE,
        *(
            path
            for place in PLACES
            for path in place.rglob("*")
            if path.is_file() and path.suffix in KINDS and "weights" not in path.parts
        ),
    ]
    own = Path(__file__).name
    texts = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for path in paths
        if path.name != own
    }
    assert [
        f"{path}: {found.group()}" for path, text in texts.items() for found in WRONG.finditer(text)
    ] == []


def test_the_project_has_the_name_of_the_code_and_extras_name_it() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    within = [
        one
        for extra in PROJECT["optional-dependencies"].values()
        for one in extra
        if one.startswith("pipegen")
    ]
    assert within
    assert all(one.startswith(f"{DISTRIBUTION}[") for one in within)


def test_every_extra_that_a_page_names_exists() -> None:
    for page in (HERE / "README.md", *(HERE / "docs").rglob("*.md")):
        for extras in re.findall(
            r'pip install "\S*\[([a-z,]+)\]"', page.read_text(encoding="utf-8")
        ):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), page


def test_a_release_changes_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (install_command("hf"), install_hint("hf")) == (
        'pip install ".[hf]"',
        'pip install ".[hf]" (in your clone of pipegen)',
    )
    monkeypatch.setattr(distribution, "SOURCE", DISTRIBUTION)
    assert install_command("hf") == install_hint("hf") == 'pip install "pipegen-lm[hf]"'


def test_the_version_is_that_of_the_installed_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {DISTRIBUTION: "9.8.7"}.__getitem__)
    assert distribution.version() == "9.8.7"


def test_a_source_tree_that_is_not_installed_has_the_version_of_its_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(
        distribution, "__file__", str(tmp_path / "pipegen" / "core" / "distribution.py")
    )
    project = tmp_path / "pyproject.toml"
    assert distribution.version() == "0+unknown"
    for text, wanted in (
        (f'[project]\nname = "{DISTRIBUTION}"\nversion = "1.2.3"\n', "1.2.3"),
        ('[project]\nname = "another"\nversion = "1.2.3"\n', "0+unknown"),
        ("[tool]\n", "0+unknown"),
        ("[", "0+unknown"),
    ):
        project.write_text(text)
        assert distribution.version() == wanted


def test_the_package_tells_its_version() -> None:
    assert pg.__version__ == PROJECT["version"]
