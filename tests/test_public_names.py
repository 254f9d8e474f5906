"""The public names: explicit, sorted, importable, documented, and of pipegen's own modules."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import pickle
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pipegen
from pipegen.engines.settings import SETTINGS
from pipegen.records.engine_list import BACKENDS

REFERENCE = sorted((Path(__file__).parent.parent / "docs" / "reference").glob("*.md"))
NEEDS_TORCH = ("pipegen.backends.hf.", "pipegen.embedded.")


def light_modules() -> list[str]:
    names = [
        info.name
        for info in pkgutil.walk_packages(pipegen.__path__, "pipegen.", onerror=lambda name: None)
    ]
    return [name for name in names if not f"{name}.".startswith(NEEDS_TORCH)]


def test_the_public_names_are_sorted_and_distinct() -> None:
    assert list(pipegen.__all__) == sorted(set(pipegen.__all__))


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in pipegen.__all__ if getattr(pipegen, name, None) is None] == []


def test_what_looks_public_is_public() -> None:
    for name in pipegen.__all__:
        getattr(pipegen, name)
    visible = {
        name
        for name, value in vars(pipegen).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert visible - {"annotations"} <= set(pipegen.__all__)


def test_every_public_function_and_class_says_what_it_does() -> None:
    public = {name: getattr(pipegen, name) for name in pipegen.__all__}
    described = {
        name: value
        for name, value in public.items()
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    }
    assert len(described) > 60
    assert [name for name, value in described.items() if not inspect.getdoc(value)] == []


def test_every_name_that_a_module_exports_exists() -> None:
    modules: list[ModuleType] = []
    for name in light_modules():
        try:
            modules.append(importlib.import_module(name))
        except ModuleNotFoundError as missing:
            if missing.name not in (
                "jinja2",
                "aiohttp",
                "torch",
                "transformers",
                "PIL",
                "vllm",
                "lm_eval",
                "inspect_ai",
            ):
                raise
    assert len(modules) > 100
    assert [
        f"{module.__name__}.{name}"
        for module in modules
        for name in getattr(module, "__all__", ())
        if not hasattr(module, name)
    ] == []


def test_every_public_name_is_in_the_reference() -> None:
    shown = {path.rpartition(".")[2] for path in sections()}
    # aliases and modules have no section
    words = "".join(page.read_text(encoding="utf-8") for page in REFERENCE if page.stem != "index")
    assert [
        name for name in pipegen.__all__ if name not in shown and f"`pg.{name}" not in words
    ] == []


def fresh(code: str) -> object:
    """What a fresh interpreter prints, as JSON."""
    script = f"import json, sys\n{code}"
    return json.loads(
        subprocess.run(
            [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
        ).stdout
    )


def test_type_checkers_see_the_names_that_are_there() -> None:
    tree = ast.parse(inspect.getsource(pipegen))
    (seen,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"
    ]
    imports = {
        alias.name: node.module
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imports) == pipegen.__all__
    assert {
        name: module for name, module in imports.items() if name not in pipegen._MODULES
    } == pipegen._HOMES


def test_importing_the_package_imports_none_of_its_modules() -> None:
    assert (
        fresh(
            "import pipegen; print(json.dumps([name for name in sys.modules if"
            " name.startswith('pipegen.')]))"
        )
        == []
    )


def test_a_first_request_loads_the_records_alone() -> None:
    loaded = fresh(
        "import pipegen; pipegen.TextGenerationRequest(prompt='Hi'); print(json.dumps([name for"
        " name in sys.modules if name.startswith(('pipegen.', 'returns'))]))"
    )
    others = {name for name in loaded if not name.startswith("pipegen.records")}
    assert others == {"pipegen.core", "pipegen.core.functional", "pipegen.core.names"}


def test_no_public_function_has_the_name_of_a_room() -> None:
    rooms = {info.name for info in pkgutil.iter_modules(pipegen.__path__)}
    assert {
        name
        for name in rooms & set(pipegen.__all__)
        if not isinstance(getattr(pipegen, name), ModuleType)
    } == set()


def test_all_names_can_be_listed_and_imported_at_once() -> None:
    assert (
        fresh("import pipegen; print(json.dumps(sorted({*pipegen.__all__} - {*dir(pipegen)})))")
        == []
    )
    assert (
        fresh(
            "from pipegen import *; import pipegen; print(json.dumps(sorted({*pipegen.__all__} -"
            " {*globals()})))"
        )
        == []
    )


def test_a_name_that_is_not_there_is_reported_as_missing() -> None:
    with pytest.raises(AttributeError, match="module 'pipegen' has no attribute 'ruun'"):
        _ = pipegen.ruun  # type: ignore[attr-defined]  # type checkers say so too
    with pytest.raises(ImportError):
        exec("from pipegen import ruun")


def test_records_and_functions_can_be_pickled() -> None:
    for value in (
        pipegen.TextGenerationRequest(prompt="Hi"),
        pipegen.run,
        pipegen.route,
        pipegen.Timeout("slow"),
    ):
        assert pickle.loads(pickle.dumps(value)) == value


def sections() -> list[str]:
    return [
        path
        for page in REFERENCE
        for path in re.findall(
            r"^(?:::: |<!-- reference: )(\S+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]


def is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def shows_what_it_names(path: str) -> bool:
    shown = pydoc.locate(path)
    # an attribute of a function that has its module's name
    module = importlib.import_module(path.rpartition(".")[0]) if shown is None else None
    return (shown is not None or hasattr(module, path.rpartition(".")[2])) and is_module(
        path
    ) == inspect.ismodule(shown)


def test_a_section_of_the_reference_shows_what_it_names() -> None:
    """The page is made without importing, and takes a module where it finds one: so a function that
    hides a module is named by its own module.
    """
    assert len(sections()) > 50
    assert [path for path in sections() if not shows_what_it_names(path)] == []


@pytest.mark.parametrize("package", ["backends", "plugins"])
def test_every_function_of_a_package_is_in_the_reference(package: str) -> None:
    public = importlib.import_module(f"pipegen.{package}")
    shown = {
        path.rpartition(".")[2] for path in sections() if path.startswith(f"pipegen.{package}.")
    }
    words = "".join(page.read_text(encoding="utf-8") for page in REFERENCE)
    names = [
        name
        for name in public.__all__
        if callable(getattr(public, name)) and name not in {*shown, "Plugin", *BACKENDS}
    ]
    assert [name for name in names if f"`pg.{package}.{name}(" not in words] == []


def test_the_settings_of_every_engine_are_in_the_reference() -> None:
    assert {f"{kind.__module__}.{kind.__name__}" for kind in SETTINGS.values()} <= set(sections())


def test_the_index_of_the_reference_says_where_each_name_is() -> None:
    (index,) = [page.read_text(encoding="utf-8") for page in REFERENCE if page.stem == "index"]
    assert [
        name
        for name in pipegen.__all__
        if f"`{name}`" not in index and not is_error(getattr(pipegen, name))
    ] == []


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, pipegen.GenerationError)


def test_the_module_of_stages_lists_them_and_knows_a_near_miss() -> None:
    assert set(pipegen.stages.__all__) <= set(dir(pipegen.stages))
    with pytest.raises(AttributeError, match="has no attribute 'rendr'") as raised:
        _ = pipegen.stages.rendr  # type: ignore[attr-defined]  # that is the mistake
    assert raised.value.name == "rendr"
    assert raised.value.obj is pipegen.stages


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Slot", "The answer to one request"),
        ("Batch", "A tuple of slots"),
        ("ENGINES", "What each engine honours"),
    ],
)
def test_help_tells_what_a_name_is_that_is_no_function_and_no_class(name: str, words: str) -> None:
    value = getattr(pipegen, name)
    assert (inspect.getdoc(value) or "").startswith(words)
    assert words in pydoc.plain(pydoc.render_doc(value))[:500]
