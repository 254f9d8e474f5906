"""What `nox -s mutation` breaks: its files and tests are there, and nothing that a function keeps
hides a mutant.
"""

from __future__ import annotations

import tomllib

from support import mutate

from pipegen.records.codec import declared
from pipegen.records.scores import Scored

SETTINGS = tomllib.loads((mutate.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]


def test_every_file_and_every_test_that_is_named_is_there() -> None:
    names = SETTINGS["mutmut"]["only_mutate"]
    tests = SETTINGS["mutmut"]["pytest_add_cli_args_test_selection"]
    assert [name for name in (*names, *tests) if not (mutate.ROOT / name).is_file()] == []


def test_the_page_states_what_may_survive_in_each_file() -> None:
    page = mutate.PAGE.read_text(encoding="utf-8")
    assert list(mutate.stated(page)) == mutate.files()


def test_no_function_that_is_broken_keeps_its_decorator() -> None:
    for name in mutate.files():
        code = (mutate.ROOT / "pipegen" / f"{name}.py").read_text(encoding="utf-8")
        kept = mutate.kept_below(code)
        assert "\n@functools." not in kept
        assert kept.count("functools.") == code.count("functools.")


def test_a_test_begins_with_nothing_kept() -> None:
    declared(Scored)
    assert declared.cache_info().currsize
    mutate.pytest_runtest_setup()
    assert not declared.cache_info().currsize
