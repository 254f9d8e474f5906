"""The tables of the documentation that are made of the code, and how pipegen is installed:
`python docs/tables.py` writes both into the pages.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pipegen
from pipegen.config.keys import KEYS
from pipegen.core.distribution import DISTRIBUTION, install_command
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.engines.settings import FallbackSettings
from pipegen.engines.versions import bounds_in
from pipegen.records.engine_list import TYPES
from pipegen.records.fields import help_of
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, SERVER_NAMES
from pipegen.records.request_forms import FORMS
from pipegen.stages import decode, fit, render, resolve, stop, tokenize, trim

PAGES = Path(__file__).parent
sys.path.insert(0, str(PAGES))  # `entries` lies beside this file
import entries  # noqa: E402

SHOWN = re.compile(
    r"^(?:<!-- reference: (pipegen\S+?)(?: as (\S+))? -->$|"
    r"::: (pipegen\S+)(?:\n +options:(?:\n +(?:heading: (\S+)|\w.*))+)?)",
    re.MULTILINE,
)
"""Names that a page writes out, and those that the site alone shows."""
STAGES = (resolve, render, tokenize, fit, decode, stop, trim)
ERROR_ROW = re.compile(r"^\| (?:<a id=\"\w+\"></a>)?`(\w+)`", re.MULTILINE)
INSTALLS = re.compile(rf'pip install "(?:\.|{DISTRIBUTION})\[([a-z,]+)\]"')


def shown_type(hint: Any) -> str:
    """What a field takes, in words for a reader, without `None`."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(
            shown_type(one) for one in get_args(hint) if one is not NoneType
        )
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return (
        "mapping"
        if get_origin(hint) is Mapping
        else str(hint)
        if get_args(hint)
        else str(hint.__name__)
    )


def engines_in_words(names: Sequence[str]) -> str:
    """Engines by their names, those of a whole kind by the name of the kind."""
    left, words = list(names), []
    for kind, ending in (("servers", ("_server", "_chat")), ("chat", "_chat")):
        members = [name for name in ENGINES if name.endswith(ending)]
        if set(members) <= set(left):
            left = [name for name in left if name not in members]
            words.append(kind)
    return ", ".join([*(f"`{name}`" for name in left), *words])


def options_table() -> str:
    """One row for each option."""
    rows = [
        "| option, its type and default | | not on |",
        "| --- | --- | --- |",
    ]
    for name, entry in OPTIONS.items():
        kind, default = (
            GROUPS.get(entry.group, GenerationOptions),
            entry.row.default,
        )
        shown = (
            ""
            if default is None
            else f", `{dict(default) if isinstance(default, Mapping) else default!r}`"
        )
        full = f"{entry.group}.{name}" if entry.group else name
        lacking = [
            engine for engine, honours in ENGINES.items() if name not in honours
        ]
        rows.append(
            f"| `{full}`<br>{shown_type(get_type_hints(kind)[name])}{shown} | {entry.help} |"
            f" {engines_in_words(lacking)} |"
        )
    return "\n".join(rows)


def engines_tables() -> str:
    """What the engines can do, and their settings."""
    rows = ["| feature | not on |", "| --- | --- |"]
    for name, words in FEATURES.items():
        lacking = [engine for engine, one in ENGINES.items() if name not in one]
        rows.append(f"| `{name}`: {words} | {engines_in_words(lacking)} |")
    rows += ["", "| setting | of | meaning |", "| --- | --- | --- |"]
    groups: dict[frozenset[str], str] = {}
    for takers, short in (
        (("hf", "vllm"), "hf, vllm"),
        (("vllm_server", "sglang_server", "openai_server"), "servers"),
        (("hf", "vllm", "vllm_server", "sglang_server"), "all but openai"),
    ):
        groups[frozenset(takers)] = short
    rows += [
        f"| `{name}` | {groups.get(frozenset(key.takers), ', '.join(key.takers))} | {key.words} |"
        for name, key in KEYS.items()
    ]
    rows += [
        f"| `{name}` | all | {words} |"
        for name, words in help_of(FallbackSettings).items()
    ]
    return "\n".join(rows)


def keys_table() -> str:
    """The types of a backend in a file, and other names of options."""
    return "\n".join(
        [
            "| type | meaning |",
            "| --- | --- |",
            *(f"| `type: {kind}` | {words} |" for kind, words in TYPES.items()),
            "",
            "| name | option |",
            "| --- | --- |",
            *(
                f"| `{alias}` | `{name}` |"
                for alias, name in SERVER_NAMES.items()
            ),
        ]
    )


def versions_table() -> str:
    """Which versions of the engines' packages pipegen takes."""
    project = tomllib.loads(
        (PAGES.parent / "pyproject.toml").read_text(encoding="utf-8")
    )
    known = bounds_in(
        f"{required}; extra == '{extra}'"
        for extra, requirements in project["project"][
            "optional-dependencies"
        ].items()
        for required in requirements
    )
    rows = ["| package | taken | tested up to |", "| --- | --- | --- |"]
    for name, bounds in sorted(known.items()):
        tested = ".".join(map(str, bounds.tested))
        rows.append(f"| {name} | `{bounds.takes}` | {tested} |")
    return "\n".join(rows)


def forms_table() -> str:
    """One row for each form of other programs."""
    rows = [
        "| form | holds the words | read beside them | reference answers, carried along |",
        "| --- | --- | --- | --- |",
    ]
    for form in FORMS:
        cells = (
            ", ".join(f"`{key}`" for key in keys)
            for keys in (form.words, form.beside, form.answers)
        )
        rows.append(f"| {form.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def laws_table() -> str:
    """One row for each file of laws: the first of them, of its docstring."""
    rows = ["| file | what holds for every input |", "| --- | --- |"]
    for path in sorted((PAGES.parent / "property_tests").glob("test_*.py")):
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        law = re.split(r";\s|\.(?:\s|$)", words or "", maxsplit=1)[0]
        rows.append(f"| `{path.name}` | {' '.join(law.split())} |")
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "start.md": versions_table,
    "options.md": options_table,
    "engines.md": engines_tables,
    "config.md": keys_table,
    "data.md": forms_table,
    "contributing/laws.md": laws_table,
}


def with_table(name: str, page: str) -> str:
    """The page with its table and its entries as they are now, each between its two markers."""
    page = entries.ENTRY.sub(lambda named: with_entry(*named.groups()), page)
    if "<!-- table -->\n" not in page:
        return page
    table = TABLES[name]() if name in TABLES else names_table(page)
    before, rest = page.split("<!-- table -->\n", 1)
    after = rest.split("<!-- end of table -->", 1)[1]
    return f"{before}<!-- table -->\n\n{table}\n\n<!-- end of table -->{after}"


def with_entry(path: str, name: str | None) -> str:
    """An entry of the reference between its markers."""
    shown = name or path.removeprefix("pipegen.")
    named = f" as {name}" if name else ""
    return (
        f"<!-- reference: {path}{named} -->\n\n{entries.entry(shown, found(path))}\n\n"
        "<!-- end of reference -->"
    )


def shown_name(path: str) -> str:
    """A name as users write it: `pg.run`, or with its module where `pg` does not have it."""
    own = path.removeprefix("pipegen.")
    return f"pg.{own}" if own.split(".")[0] in pipegen.__all__ else path


def found(path: str) -> Any:
    """What has this name, below the last module in it. (A package may hold a function and a module
    of one name: the module is in the way that the path goes.)
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[length:], value)
    raise LookupError(f"nothing is called {path}")


def names_table(page: str) -> str:
    """One row for each public name that the site alone shows in full: the first sentence of its
    docstring. Other pages have tables of the errors and of the stages.
    """
    errors = (PAGES / "errors.md").read_text(encoding="utf-8")
    explained = ERROR_ROW.findall(errors)
    rows = ["| more names | |", "| --- | --- |"]
    for written, _, path, heading in SHOWN.findall(page):
        name = shown_name(heading or path)
        if written or not name.startswith("pg.") or name.count(".") > 2:
            continue
        value = found(path)
        is_stage = name.startswith("pg.stages.") and value in STAGES
        if is_stage or name.removeprefix("pg.") in explained:
            continue
        words = entries.in_short(inspect.getdoc(value) or "")
        rows.append(f"| `{name}` | {entries.cell(words)} |")
    return "\n".join(rows)


def with_commands(page: str) -> str:
    """The page with every command that installs pipegen as it is now: from a clone, or from the
    Python package index.
    """
    return INSTALLS.sub(lambda found: install_command(found[1]), page)


if __name__ == "__main__":
    for path in (
        PAGES.parent / "README.md",
        PAGES.parent / "CONTRIBUTING.md",
        *PAGES.rglob("*.md"),
    ):
        page = with_commands(path.read_text(encoding="utf-8"))
        if path.is_relative_to(PAGES):
            page = with_table(path.relative_to(PAGES).as_posix(), page)
        path.write_text(page, encoding="utf-8")
