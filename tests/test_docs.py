"""The documentation is true: its code runs, its tables are those of the code, and every error has
its section.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import inspect
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import readme

import pipegen
from pipegen.cli import main
from pipegen.core.errors import GenerationError
from pipegen.core.names import InvalidField
from pipegen.drivers.drive_parts import ReadInput, WholeBatch
from pipegen.engines.settings import ChatServerSettings, FallbackSettings, fields_of
from pipegen.records import results, scores
from pipegen.records.engine_list import BACKENDS
from pipegen.records.fields import help_of
from pipegen.records.option_table import SERVER_NAMES
from pipegen.records.options import option_names

HERE = Path(__file__).parent.parent
DOCS = HERE / "docs"
PAGES = [HERE / "README.md", HERE / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PRINTED = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def page_id(page: Path) -> str:
    return page.relative_to(HERE).as_posix()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Path]:
    """Where a reader tries the examples: a folder that holds docs/examples."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


# the others: test_coming_from.py
RUN_HERE = [
    page
    for page in PAGES
    if "\n## Before\n" not in page.read_text(encoding="utf-8")
    # examples of docstrings are run where they stand
    and page.parent.name != "reference"
]


@pytest.mark.parametrize("page", RUN_HERE, ids=page_id)
def test_the_python_blocks_of_a_page_run_and_print_what_it_shows(
    page: Path,
    reader: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a page's code prints stands in its text blocks."""
    pytest.importorskip("torch")
    sybil = pytest.importorskip("sybil")
    from sybil.parsers.markdown import PythonCodeBlockParser

    needs = {
        "import FastAPI": "fastapi",
        "from mcp import": "mcp",
        "import GRPOConfig": "trl",
        "contrib.verl import": "verl",
    }
    for words, package in needs.items():
        if words in page.read_text(encoding="utf-8"):
            pytest.importorskip(package)
    if "import TracerProvider" in page.read_text(encoding="utf-8"):
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import trace
        from opentelemetry.util._once import Once

        # a provider is set once in a process: that of the page is for the page
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    parser = PythonCodeBlockParser(doctest_optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in sybil.Sybil(parsers=[parser]).parse(page).examples():
        example.evaluate()
    printed = capsys.readouterr().out
    for block in PRINTED.findall(page.read_text(encoding="utf-8")):
        assert block in printed


def commands_of(page: Path) -> list[str]:
    blocks = CONSOLE.findall(page.read_text(encoding="utf-8"))
    return [
        line.removeprefix("$ ")
        for block in blocks
        for line in re.sub(r" *\\\n *", " ", block).splitlines()
        if line.startswith("$ ")
    ]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(line.startswith("pipegen ") for line in commands_of(page))],
    ids=page_id,
)
def test_the_pipegen_commands_of_a_page_work(
    page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `$ pipegen ...` in a console block, run in the order of the page, in this process, which
    has loaded torch already; 1 says that some requests failed, as some of the examples should.
    """
    pytest.importorskip("torch")
    for command in commands_of(page):
        fed, _, piped = command.partition(" | ")
        if command.startswith("cat "):
            shown = (reader / fed.removeprefix("cat ")).read_bytes()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(shown)))
        if command.startswith("pipegen ") or piped.startswith("pipegen "):
            with pytest.raises(SystemExit) as left:
                main(shlex.split(piped or command)[1:])
            assert left.value.code in (0, 1), f"$ {command}"


README_COMMAND = re.compile(r"^    (pipegen .*)$", re.MULTILINE)


def test_the_shell_commands_of_the_readme_run_as_pasted_into_a_clone(reader: Path) -> None:
    """1: two requests of the file are wrong on purpose. What is left behind, git ignores."""
    pytest.importorskip("torch")
    before = sorted((reader / "docs").rglob("*"))
    codes = []
    for command in README_COMMAND.findall((HERE / "README.md").read_text(encoding="utf-8")):
        with pytest.raises(SystemExit) as left:
            main(shlex.split(command, comments=True)[1:])
        codes.append((command.split()[1], left.value.code))
    assert codes == [("generate", 1), ("generate", 1), ("generate", 0), ("chat", 0)]
    made = {"results.jsonl", "results.jsonl.job"}
    assert {path.name for path in reader.iterdir()} == {"docs", *made}
    assert sorted((reader / "docs").rglob("*")) == before
    ignored = (HERE / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert made <= {line.strip("/") for line in ignored}


def test_the_example_of_the_readme_is_run_and_any_difference_is_shown() -> None:
    page = "Words.\n\n```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n{}\n```\n"
    assert readme.example(page.format(2)) == ("print(1)\nprint(2)\n", "1\n2\n")
    assert readme.difference(page.format(2)) == ""
    assert readme.difference(page.format("2\n3")).endswith(" 2\n-3")
    assert readme.difference(page.format("")).endswith("-\n+2")


NAMED = [getattr(pipegen, name) for name in pipegen.__all__]
ERRORS = [
    value
    for value in NAMED
    if isinstance(value, type)
    and issubclass(value, GenerationError)
    and value is not GenerationError
]


ERROR_ROW = re.compile(
    r'^\| <a id="(\w+)"></a>`(\w+)` \| (.+) \| (.+) \| (.+) \| (\d+) \|$', re.MULTILINE
)


def test_every_error_has_its_row_with_what_to_do() -> None:
    rows = ERROR_ROW.findall((DOCS / "errors.md").read_text(encoding="utf-8"))
    retried = {name: again.startswith("yes") for _, name, _, _, again, _ in rows}
    assert [row[:2] for row in rows] == [(name.lower(), name) for name in retried]
    assert retried == {
        kind.__name__: kind.retryable is True or kind is pipegen.BackendFailed for kind in ERRORS
    }


@pytest.mark.parametrize(
    "kind",
    [pipegen.CallFailed, pipegen.ContractError, InvalidField, pipegen.UnknownField],
    ids=lambda kind: kind.__name__,
)
def test_every_exception_is_explained(kind: type[Exception]) -> None:
    assert f"`{kind.__name__}`" in (DOCS / "errors.md").read_text(encoding="utf-8")


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    ["options.md", "engines.md", "config.md"]
    + [f"reference/{page.name}" for page in sorted((DOCS / "reference").glob("*.md"))],
)
def test_a_page_has_the_table_of_the_code(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == tables().with_table(name, page), "out of date: python docs/tables.py"


ROW = re.compile(r"^\| \[?`(\S+)`(?:\]\(#\S+\))? \| (.*) \|$", re.MULTILINE)


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=page_id)
def test_the_reference_says_of_every_name_what_it_is(page: Path) -> None:
    """In a sentence of its own, and not in that of its type."""
    rows = ROW.findall(page.read_text(encoding="utf-8"))
    assert rows or page.name in ("engines.md", "index.md", "more.md")
    assert [
        (name, words)
        for name, words in rows
        if not re.search(r"\w.*[.:]$", words)
        or words.startswith("See ")
        or any(words.startswith((kind.__doc__ or "")[:20]) for kind in (dict, tuple, str, int))
    ] == []


def test_the_reference_has_every_public_name() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    shown = {name for page in pages for name, _ in ROW.findall(page)}
    shown |= {
        f"pg.{name.rpartition('.')[2]}"
        for page in pages
        for name in re.findall(r"^### (\S+)$", page, re.MULTILINE)
    }
    errors = (DOCS / "errors.md").read_text(encoding="utf-8")
    shown |= {f"pg.{name}" for name in tables().ERROR_ROW.findall(errors)}
    # of the package returns; modules have their parts in the tables
    apart = {"Success", "Failure", "backends", "plugins", "ray", "stages"}
    assert [
        name for name in pipegen.__all__ if name not in apart and f"pg.{name}" not in shown
    ] == []


def test_the_tables_have_every_option_setting_and_alias() -> None:
    made: Any = tables()
    options, engines, config = (
        made.TABLES[name]() for name in ("options.md", "engines.md", "config.md")
    )
    assert [
        name
        for backend in BACKENDS
        for name in (*fields_of(backend), *help_of(FallbackSettings))
        if f"| `{name}` |" not in engines
    ] == []
    assert [name for name in option_names() if f"{name}`" not in options] == []
    assert [name for name in SERVER_NAMES if f"| `{name}` |" not in config] == []


def test_the_defaults_that_pages_state_are_those_of_the_code() -> None:
    """Of settings of servers, of limits, jobs and plugins, and of how many requests stages take."""

    def on(page: str, pattern: str) -> list[Any]:
        return re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)

    stated = on("servers.md", r"^\| `(\w+)` \| (none|[\d.]+)(?: s)? \|")
    settings = inspect.signature(ChatServerSettings).parameters
    assert len(stated) == 5
    assert stated == [
        (name, "none" if default is None else f"{default:g}")
        for name, _ in stated
        for default in [settings[name].default]
    ]
    limits = on("errors.md", r"\| ([\d,]+)( MiB)? \| `(max_\w+)` \|$")
    policy = pipegen.RequestPolicy()
    assert {
        name: int(shown.replace(",", "")) * (2**20 if mega else 1) for shown, mega, name in limits
    } == {name: getattr(policy, name) for name in dataclasses.asdict(policy)}
    ((_, grace),) = on("jobs.md", r"`(grace)` seconds \((\d+)")
    assert float(grace) == inspect.signature(pipegen.job).parameters["grace"].default
    together = on("pipelines.md", r"up to (\d+) in `run`, (\d+) in `imap`")
    assert together == [(str(WholeBatch.together), str(ReadInput.together))]
    plugins = on("plugins.md", r"^\| `(\w+)\((.*)\)` \|")
    assert len(plugins) == 6
    for name, shown in plugins:
        arguments = inspect.signature(getattr(pipegen.plugins, name)).parameters
        written = dict(re.findall(r"(\w+)=(\w+)", shown))
        assert {key: str(arguments[key].default) for key in written} == written, name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_that_install_pipegen_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == tables().with_commands(text), "the page is out of date: python docs/tables.py"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """What links to a page may name, by GitHub's rule for headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r'<a id="([\w-]+)"', text)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_to_a_part_of_a_page_name_one_that_is_there(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert [
        f"{path}#{anchor}"
        for path, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text)
        if anchor not in anchors_of(page.parent / path if path else page)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_of_code_says_what_it_is(page: Path) -> None:
    """Only `python` is run: `pycon` is for examples of docstrings, which are run where they stand."""
    text = page.read_text(encoding="utf-8")
    kinds = {"python", "text", "console", "json", "sh", ""}
    if page.parent.name == "reference":
        kinds |= {"pycon"}
    assert set(re.findall(r"^ *```(\w*)$", text, re.MULTILINE)) <= kinds


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_row_of_a_table_is_below_its_head(page: Path) -> None:
    """A blank line ends a table, and what follows is shown as text."""
    lines = re.sub(
        r"^( *)```.*?^\1```$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    ).splitlines()
    assert [
        line
        for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False)
        if line.startswith("|")
        and not before.startswith("|")
        and not re.match(r"\|[ :|-]+$", after)
    ] == []


def test_the_files_that_pages_name_are_there() -> None:
    # which names a file of that package
    own = [page for page in PAGES if page.name != "renderers.md"]
    named = {
        path
        for page in own
        for path in re.findall(
            r"\b(?:pipegen|tests|property_tests)/[\w/]+\.py\b", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 20
    assert sorted(path for path in named if "NAME" not in path and not (HERE / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_names_of_pipegen_on_a_page_exist(page: Path) -> None:
    pytest.importorskip("torch")

    def exists(name: str) -> bool:
        value: Any = pipegen
        for part in name.split("."):
            value = getattr(value, part, None)
        return value is not None

    assert [
        name
        for name in re.findall(r"\bpg\.(\w+(?:\.\w+)*)", page.read_text(encoding="utf-8"))
        if not exists(name)
    ] == []


def test_a_web_handler_has_a_status_for_every_error() -> None:
    page = (DOCS / "apps.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^    pg\.(\w+): (\d{3}),$", page, re.MULTILINE))
    rows = ERROR_ROW.findall((DOCS / "errors.md").read_text(encoding="utf-8"))
    assert named == {name: status for _, name, *_, status in rows}


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [
        *DOCS.glob("*.md"),
        *(DOCS / "migrate").glob("*.md"),
        *(DOCS / "contributing").glob("*.md"),
    ]
    assert [
        page.name
        for page in pages
        if page.name != "index.md" and f"]({page.relative_to(DOCS).as_posix()})" not in index
    ] == []


def test_the_navigation_holds_every_page() -> None:
    navigation = (HERE / ".mkdocs.yml").read_text(encoding="utf-8")
    assert [
        page.name
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).as_posix() not in navigation
    ] == []


SHOWN_FIELDS = [
    *(results.GenerationResult, results.TokenLogprob, results.ResolvedRequest, results.Prompt),
    *(results.PreparedImage, results.Encoded, results.Raw, results.ChatOutput, results.Decoded),
    *(scores.ScoreInput, scores.TokenScores, scores.Scored),
]


@pytest.mark.parametrize("kind", SHOWN_FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_result_and_of_the_engine_contract_has_its_sentence(
    kind: type[Any],
) -> None:
    (body,) = [
        node.body
        for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        if isinstance(node, ast.ClassDef)
    ]
    said = {
        ast.unparse(field.target): (
            isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        )
        for field, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
    }
    assert said
    assert [name for name, has_words in said.items() if not has_words] == []


def test_every_entry_of_the_reference_has_a_word() -> None:
    """Of a section with chosen members, these have one."""
    import griffe

    extensions = griffe.load_extensions(str(DOCS / "doctests.py"))
    package = griffe.load("pipegen", search_paths=[str(HERE)], extensions=extensions)
    bare: list[str] = []

    def look(path: str, shown: Any, members: list[str] | None) -> None:
        if shown.docstring is None or not shown.docstring.value.strip():
            bare.append(path)
        for name, member in shown.members.items() if shown.is_class or shown.is_module else ():
            if members is None and re.match(r"_|(check_all|default_hint|unchanging|T)$", name):
                continue
            if not member.is_alias and (members is None or name in members):
                look(f"{path}.{name}", member, None)

    for page in sorted((DOCS / "reference").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for path, options in re.findall(
            r"^(?:::: |<!-- reference: )pipegen\.(\S+).*\n((?: .*\n)*)", text, re.MULTILINE
        ):
            chosen = re.search(r"members: \[(.*)\]", options)
            found = package[path]
            look(
                path,
                found.final_target if found.is_alias else found,
                chosen[1].split(", ") if chosen else None,
            )
    assert bare == []


def docstrings() -> Iterator[tuple[Path, str]]:
    for path in sorted((HERE / "pipegen").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, ast.get_docstring(node) or ""


def test_no_docstring_names_an_internal_code() -> None:
    assert [
        (path.name, text)
        for path, text in docstrings()
        if re.match(r"(?:[A-Z]\d{1,2}[,:. ]*)+", text)
    ] == []


def test_images_of_the_documentation_are_of_moderate_size() -> None:
    assert {
        path.name: path.stat().st_size
        for path in (DOCS / "images").iterdir()
        if path.stat().st_size > 150_000
    } == {}
