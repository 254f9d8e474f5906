"""The shape of the code: who may import whom, what importing costs, and how long a file may be."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pipegen
from pipegen.core.steps import Step

HERE = Path(__file__).parent.parent
PACKAGE = Path(str(resources.files(pipegen)))
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = (
    *("core", "records", "media", "embedded", "engines", "ending", "template", "answer"),
    *(
        "stages",
        "plugins",
        "drivers",
        "backends",
        "io",
        "jobs",
        "evals",
        "report",
        "config",
        "cli",
        "testing",
        "contrib",
    ),
)
"""Each imports only itself and those before it."""
BUDGETS = {
    "backends": 134_100,
    "cli": 43_067,
    "records": 39_902,
    "report": 33_177,
    "drivers": 32_019,
    "jobs": 32_408,
    "testing": 25_024,
    "stages": 24_508,
    "io": 22_048,
    "template": 16_226,
    "answer": 14_032,
    "core": 13_576,
    "media": 13_062,
    "contrib": 9_270,
    "config": 8_373,
    "engines": 7_683,
    "ending": 7_554,
    "plugins": 5_364,
    "evals": 5_114,
    "embedded": 40,
}
"""How many nodes of the syntax tree each room may have."""
ANY, ANY_IN_CORE = 1_378, 29
"""How often `Any` may stand in the package, and in its core."""
OPENED = {"records": 4, "stages": 23}
"""How often these rooms may call `is_ok` or `unwrap`, where a Result is not chained."""
STEP_FIELDS = 10
"""How many fields a step of a pipe may have."""
WITHOUT_A_LAW = {
    *("backends.sglang_server", "backends.vllm", "backends.vllm_server", "plugins.hf_hooks"),
}
"""Public functions below the border that no law calls: they need a real engine."""
PUBLIC_MODULES = ("backends", "plugins", "stages", "jobs.ray")
ABOVE_THE_BORDER = ("io", "jobs", "evals", "report", "config", "cli", "testing", "contrib")
INNER_NAMES = {
    "core": "errors",
    "core.distribution": "DISTRIBUTION MissingExtra install_command install_hint need",
    "core.foreign_calls": "Raised attempt guard guard_result report",
    "core.functional": "parallel partition_all without_none",
    "core.interpreter": "Row advance",
    "core.names": "CLOSE nearest",
    "core.pipe": "identity row_stage",
    "core.slots": "all_of live",
    "core.steps": "Branch Call EngineMap EngineRequest Stage Step",
    "records": "strict_json",
    "records.answer_parts": "common_prefix texts_of whole_number",
    "records.codec": (
        "Declared declared decode encode error_from image_to_plain is_plain item_of "
        "options_to_plain without_null word_of"
    ),
    "records.engine_list": (
        "BACKENDS DIALECTS Dialect ENGINE_LIST IN_PROCESS TOKEN_ENGINES TYPES UNKNOWN_SERVERS shown"
    ),
    "records.fields": (
        "Check JsonSchema UNWRITTEN boolean checks_of help_of non_empty_string one_of record "
        "schema_of taken_instead unchecked_replace"
    ),
    "records.finish_words": "Meaning meaning_of word_of",
    "records.frozen": "freeze plain_id plain_number thaw",
    "records.messages": "message_from plain_messages shown",
    "records.next_turn": "as_given",
    "records.option_groups": "GROUPS",
    "records.option_table": "OPTIONS OTHER_NAMES SERVER_NAMES names_in server_fields wire_names",
    "records.options": (
        "flat_values in_effect in_our_words merge option_names options_from resolve"
    ),
    "records.parse_request": "Request carried has_media unreadable",
    "records.request_forms": "KEYS meant refused without_final_answer",
    "records.requests": "FIELDS holds_options misplaced unread_media",
    "records.results": (
        "ChatOutput Decoded Encoded Ending PreparedImage Raw ResolvedRequest ToolReplies Turn"
    ),
    "records.scores": "ScoreInput TokenScores",
    "records.secret": "Secret masked",
    "media.folder": "SUFFIXES",
    "media.frames": "choose_frames",
    "media.image": "open_image",
    "media.png": "png_of png_with",
    "media.source": "load_sources sample_of",
    "media.video": "frames_of",
    "engines.capabilities": "Capability FEATURES",
    "engines.model": "reader_of",
    "engines.plugin": "Pluggable RowContext",
    "engines.protocol": (
        "RowDone TokenEngine TokensMade answers_depend_on require_token_engine rewrites_of "
        "takes_tokens"
    ),
    "engines.settings": "BESIDE FallbackSettings SETTINGS config_of fields_of nearest_setting",
    "engines.tokenizer": "Tokenizer",
    "engines.versions": "bounds is_newer minor required_by",
    "ending.detokenize": "spell",
    "ending.plugin_state": "not_fed",
    "ending.stop_scan": "cut",
    "ending.stop_state": "TokenFold plan_of",
    "template.template": "call_template",
    "template.untrusted": "Conversation",
    "answer": "answer_check",
    "answer.answer_check": "CUT_PROMPT Finding FindingKind HINTS UntrimmedAnswer WORDS check_answer",
    "answer.barred": "barred_after barred_in spellings",
    "stages.ending": "decode",
    "stages.gather_samples": "derive_seed expand",
    "stages.rendering": "Rendered render",
    "stages.resolving": "resolve",
    "stages.tokenizing": "tokenize",
    "drivers.arguments": (
        "Admission Options check_run check_settings pair pairs record_of "
        "require_iterable with_option_words"
    ),
    "drivers.drive": "Drive",
    "drivers.drive_parts": "IN_FLIGHT NoRequest",
    "drivers.mapping": "flow_of",
    "drivers.route": "with_options",
    "drivers.scoring": "continued_by",
    "drivers.tools": "Tools",
    "drivers.turns": "next_request",
    "backends": "route_with with_fallback",
    "backends.checkpoint.positions": "Boundary boundaries",
    "backends.checkpoint.checkpoint": "Checkpoint",
    "backends.checkpoint.engine_parity": "compared in_words",
    "backends.checkpoint.locate": "NoSuchModel",
    "backends.checkpoint.tokenizer_file": "READERS",
    "backends.checkpoint.verdicts": "CannotCheck keep kept",
    "backends.hf.first_steps": "WAYS",
    "backends.hf.hf_engine": "HFEngine",
    "backends.http.access": "addresses_of",
    "backends.http.transport": "AttemptFailed HttpStatusError",
    "backends.servers.dialects": "find_dialect",
    "backends.servers.dry": "wire_requests",
    "backends.servers.extra_body": "OWN REMOVED",
    "backends.servers.facts": "models_of",
    "backends.servers.openai": "too_long",
    "backends.servers.reading": "error_message ids_of json_of usage_of",
    "backends.servers.sglang_dialect": "SGLANG abort too_long",
    "backends.servers.vllm_dialect": "VLLM too_long",
    "backends.servers.wire": "Facts ServerRequest Wire WireRequest",
    "backends.vllm.self_check": "check_lengths",
}
"""What the rooms above the border import from those below it, beside the public names: by module."""
HEAVY = (
    *("torch", "transformers", "vllm", "PIL", "numpy", "peft", "accelerate", "aiohttp", "orjson"),
    *("pyarrow", "jsonschema", "opentelemetry"),
)


class File(NamedTuple):
    """What the tests ask of a file, which is read once."""

    imports: list[str]
    """Inside functions too."""
    for_types: list[str]
    """The same, with what only type checkers see."""
    nodes: int
    any: int
    """How often `Any` stands in it."""
    opened: int
    """How often it calls `is_ok` or `unwrap`."""
    silent: list[int]
    """Lines that catch every exception, and do not raise again."""
    says_what_it_is_for: bool


def imported_by(name: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(node: ast.AST) -> str:
    """The name that a name or an attribute is."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


@functools.cache
def file(name: str) -> File:
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    guarded = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    broad = [
        node
        for node in nodes
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    return File(
        [*imported_by(name, (node for node in nodes if id(node) not in guarded))],
        [*imported_by(name, nodes)],
        len(nodes),
        sum(_name(node) == "Any" for node in nodes),
        sum(
            isinstance(node, ast.Call) and _name(node.func) in ("is_ok", "unwrap") for node in nodes
        ),
        [
            node.lineno
            for node in broad
            if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        ],
        bool(ast.get_docstring(tree)) or not tree.body,
    )


def test_every_file_lies_in_a_room() -> None:
    assert {name.split("/")[0] for name in FILES} - {"__init__.py", "__main__.py"} == set(ROOMS)


def test_the_page_that_lists_the_rooms_does_so_in_their_order() -> None:
    page = (HERE / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)) == ROOMS


def test_a_room_imports_only_itself_and_the_rooms_before_it() -> None:
    upwards = [
        f"{name} imports {module}"
        for name in FILES
        if "/" in name
        for module in file(name).for_types
        if module.startswith("pipegen.")
        and module.split(".")[1] in ROOMS[ROOMS.index(name.split("/")[0]) + 1 :]
    ]
    assert upwards == []


def test_the_rooms_above_the_border_import_public_names_and_those_of_a_list() -> None:
    """The list only shrinks. Who needs another name imports a public one, or moves the code below
    the border.
    """
    public = {"pipegen.__version__", *file("__init__.py").for_types}
    for module in PUBLIC_MODULES:
        names = importlib.import_module(f"pipegen.{module}").__all__
        public |= {f"pipegen.{module}.{name}" for name in names}
    imported = {
        name.removeprefix("pipegen.")
        for path in FILES
        if path.startswith(tuple(f"{room}/" for room in ABOVE_THE_BORDER))
        for name in {*file(path).for_types} - public
        if name.startswith("pipegen.") and name.split(".")[1] in ROOMS[: ROOMS.index("io")]
    }
    listed = {f"{module}.{name}" for module, names in INNER_NAMES.items() for name in names.split()}
    assert (imported - listed, listed - imported) == (set(), set()), (
        "not listed, no longer imported"
    )


def test_each_public_function_below_the_border_has_a_law() -> None:
    """A new capability comes above the border first; below it only with a law."""
    laws = Path(__file__).parents[1] / "property_tests"
    texts = [path.read_text(encoding="utf-8") for path in laws.glob("test_*.py")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    called |= {node.id for node in nodes if isinstance(node, ast.Name)}
    without = set[str]()
    for module in ("", *PUBLIC_MODULES[:3]):
        public = importlib.import_module(f"pipegen.{module}".rstrip("."))
        for name in {*public.__all__} - called:
            value = getattr(public, name)
            room, _, _ = getattr(value, "__module__", "").removeprefix("pipegen.").partition(".")
            if inspect.isfunction(value) and room in ROOMS[: ROOMS.index("io")]:
                without.add(f"{module}.{name}".lstrip("."))
    assert without == WITHOUT_A_LAW


# The doctor asks torch for a GPU.
ENGINE_IMPORTERS = ("backends/", "cli/doctor.py")


def test_only_backends_import_an_engine() -> None:
    names = [name for name in FILES if not name.startswith(ENGINE_IMPORTERS)]
    assert [
        name
        for name in names
        if {module.split(".")[0] for module in file(name).imports}
        & (set(HEAVY) - {"PIL", "pyarrow", "jsonschema"})
    ] == []


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `code`."""
    script = (
        f"import sys\n{code}\nimport json; print(json.dumps(sorted({{name.split('.')[0] for name in"
        " sys.modules})))"
    )
    # -P: the package that is installed, not a folder that happens to lie here.
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


# C6
@pytest.mark.parametrize(
    "code",
    [
        "import pipegen",
        "import pipegen as pg; [getattr(pg, name) for name in pg.__all__]",
        (
            "import pipegen as pg; pg.GenerationOptions(temperature=0.5, stop=('END',));"
            " pg.VlmGenerationRequest(prompt='Hi', images=['a.png'])"
        ),
        "import pipegen as pg; pg.ModelLoadConfig(model='embedded', dtype='bf16')",
        "import pipegen.cli",
        (
            "import contextlib, pipegen.cli\nwith contextlib.suppress(SystemExit): sys.argv ="
            " ['pipegen', '--help']; pipegen.cli.main()"
        ),
    ],
)
def test_importing_and_building_records_loads_nothing_heavy(code: str) -> None:
    loaded = loaded_by(code)
    assert "pipegen" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_importing_loads_no_event_loop() -> None:
    """It would double what the import costs, and code without `await` needs none."""
    assert loaded_by("from pipegen import *").isdisjoint({"asyncio", "ssl", "hashlib", "difflib"})


def test_naming_an_engine_loads_no_weights() -> None:
    pytest.importorskip("torch")
    engine: Any = pipegen.backends.hf("embedded").engine
    assert engine.tokenizer.vocab_size > 0
    assert not engine.loaded


def test_a_file_is_as_long_as_its_idea_and_those_over_600_lines_are_named() -> None:
    assert {
        name
        for name, path in FILES.items()
        if len(path.read_text(encoding="utf-8").splitlines()) > 600
    } == {
        "engines/settings.py",  # a record for each engine
        "records/messages.py",  # every part of a message
    }


def test_no_room_has_more_code_than_its_budget() -> None:
    """A budget only falls. Who needs more takes it from another room, and says so in the commit."""
    nodes = dict.fromkeys(BUDGETS, 0)
    for name in FILES:
        room, _, rest = name.partition("/")
        if rest:
            nodes[room] += file(name).nodes
    assert {
        room: f"{count} nodes, and {BUDGETS[room]} are allowed"
        for room, count in nodes.items()
        if count > BUDGETS[room]
    } == {}


def test_any_stands_no_more_often_than_it_did() -> None:
    """The bounds only fall."""
    in_core = sum(file(name).any for name in FILES if name.startswith("core/"))
    assert in_core <= ANY_IN_CORE
    assert sum(file(name).any for name in FILES) <= ANY


def test_where_a_result_is_chained_it_is_opened_no_more_often_than_it_was() -> None:
    """The bounds only fall."""
    opened = {
        room: sum(file(name).opened for name in FILES if name.startswith(f"{room}/"))
        for room in OPENED
    }
    assert {room: count for room, count in opened.items() if count > OPENED[room]} == {}


def test_toolz_is_reached_through_one_file() -> None:
    """Which gives its functions their types."""
    imports = {name for name in FILES for module in file(name).for_types if "toolz" in module}
    assert imports == {"core/functional.py"}


def test_a_step_has_no_more_fields_than_it_had() -> None:
    """The bound only falls: what a later stage asks of an earlier one, a record's field can say, and
    what one kind of step alone has is a field of that kind.
    """
    assert len(dataclasses.fields(Step)) <= STEP_FIELDS


def test_each_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_nothing_catches_every_exception() -> None:
    """But where it raises again, and at the border with foreign code and data, which is one
    file.
    """
    assert {name: file(name).silent for name in FILES if file(name).silent}.keys() <= {
        "core/foreign_calls.py"
    }


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name in FILES if not file(name).says_what_it_is_for] == []


def test_what_is_not_code_is_shipped_too() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert {path.name for path in (PACKAGE / "embedded" / "weights").iterdir()} >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "SHA256SUMS",
    }


def test_the_version_of_the_package_is_the_newest_of_the_changelog() -> None:
    newest = re.search(
        r"^## \[?(\d+\.\d+\.\d+)", (HERE / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert newest is not None
    assert newest.group(1) == pipegen.__version__


@pytest.mark.skipif(importlib.util.find_spec("nox") is None, reason="nox is not installed here")
def test_the_commands_of_the_readme_are_sessions_of_the_noxfile() -> None:
    sessions = set(
        re.findall(
            r"^def (\w+)\(session", (HERE / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    asked = set(
        re.findall(r"nox (?:-s|--session) (\w+)", (HERE / "README.md").read_text(encoding="utf-8"))
    )
    assert asked <= sessions
