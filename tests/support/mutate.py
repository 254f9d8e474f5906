"""Break rules of the core one by one, and list what no test noticed: `nox -s mutation`, which runs
`python -m support.mutate [FILE ...]`. It fails where a file has more survivors than
docs/contributing/mutants.md states, and after MINUTES.

mutmut forks a process for each mutant, after all tests have run once in it. What a function keeps
(`functools.cache`) is there in every fork: a mutant behind it would never be called, and would
survive whatever the tests say. mutmut also leaves functions with decorators alone. So the mutants
are made of a copy of the tree, in which each kept function stands without its decorator and is
kept by a line at the end of its file, and every test begins with nothing kept.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing" / "mutants.md"
MINUTES = 60
"""The most that a run takes, on two cores."""
COPIED = ("pipegen", "tests", "property_tests", "pyproject.toml")
KEPT = re.compile(
    r"^@(functools\.(?:cache|lru_cache\(\w+=[\w*]+\)))(?:  #.*)?\n(?=def (\w+))", re.MULTILINE
)
ROW = re.compile(r"^\| `(\w+/\w+)` \| (\d+) \| (\d+) \|", re.MULTILINE)
SURVIVED, UNTRIED = 0, (33, 34, None)
"""mutmut's codes: the tests passed; no test ran, the mutant was skipped, it was not reached."""


def kept_below(code: str) -> str:
    """Code whose functions are kept by lines at its end, in place of decorators.

    >>> print(kept_below("@functools.cache\\ndef one() -> int:\\n    return 1\\n"))
    def one() -> int:
        return 1
    <BLANKLINE>
    one = functools.cache(one)
    <BLANKLINE>
    """
    return KEPT.sub("", code) + "".join(
        f"\n{name} = {keep}({name})\n" for keep, name in KEPT.findall(code)
    )


def stated(page: str) -> dict[str, tuple[int, int]]:
    """The mutants of each file, and those of them that may survive: the table of the page."""
    return {name: (int(made), int(survive)) for name, made, survive in ROW.findall(page)}


def files() -> list[str]:
    """The files that are broken: those of pyproject.toml, as `core/slots`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names: list[str] = settings["tool"]["mutmut"]["only_mutate"]
    return [name.removeprefix("pipegen/").removesuffix(".py") for name in names]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test begins with nothing kept. Loaded by `-p support.mutate`."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("pipegen."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Laws come last: one test that fails is enough, and they take longer."""
    items.sort(key=lambda item: "property_tests" in item.path.parts)


def prepare(tree: Path) -> None:
    """A copy of the tree, of which mutants can be made."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tree / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, tree / name)
    for name in files():
        path = tree / "pipegen" / f"{name}.py"
        path.write_text(kept_below(path.read_text(encoding="utf-8")), encoding="utf-8")


def results(tree: Path, wanted: list[str]) -> Iterator[tuple[str, Counter[str], list[str]]]:
    """Each file, the number of its mutants by what became of them, and those that survived."""
    for name in files():
        codes = json.loads((tree / f"mutants/pipegen/{name}.py.meta").read_text())
        mutants = {
            mutant: "survived" if code == SURVIVED else "untried" if code in UNTRIED else "killed"
            for mutant, code in codes["exit_code_by_key"].items()
        }
        if name in wanted:
            survived = [mutant for mutant, became in mutants.items() if became != "killed"]
            yield name, Counter(mutants.values()), survived


def main(*names: str) -> int:
    tree = ROOT / ".nox" / "mutation" / "tree"
    prepare(tree)
    wanted = [*names] or files()
    patterns = [f"pipegen.{name.replace('/', '.')}.*" for name in wanted]
    subprocess.run(["mutmut", "run", *patterns], cwd=tree, check=True, timeout=MINUTES * 60)
    most = stated(PAGE.read_text(encoding="utf-8"))
    failed = False
    for name, became, survived in results(tree, wanted):
        _, may = most.get(name, (0, 0))
        print(f"{name}: {dict(became)}, and {may} may survive", *survived, sep="\n    ")
        failed |= len(survived) > may
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
