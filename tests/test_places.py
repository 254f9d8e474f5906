"""How many files a change takes: the table in CONTRIBUTING.md names them, and three of its changes
are made here for real, in a copy of the package.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import pipegen
from pipegen.backends.checkpoint.families import FAMILIES
from pipegen.io.forms import WRITTEN, form_of
from pipegen.records.engine_list import BACKENDS, DIALECTS, ENGINE_LIST, Dialect
from pipegen.records.results import GenerationResult

HERE = Path(__file__).parent.parent
PACKAGE = Path(str(resources.files(pipegen)))
TABLE = (
    (HERE / "CONTRIBUTING.md")
    .read_text(encoding="utf-8")
    .partition("\n## Where a change is made\n")[2]
    .partition("\n| change |")[2]
    .partition("\n\n")[0]
)
TAKES = {
    change: re.findall(r"`([a-z_/]+\.py)`", files)
    for change, files in re.findall(r"^\| ([^|]*?) \| ([^|]*) \|", TABLE, re.MULTILINE)[1:]
}
"""The files that each change takes always, as the table names them."""


ENGINES = {*ENGINE_LIST, *DIALECTS, *BACKENDS}
VLLM_TYPE = "the type `vllm` of files is a server or an engine, by `base_url`"
CHAT_SERVER = "only a chat server has fields beside its keys"
HF_CHECK = "the check of first steps, and its reference, are the HF engine's"
COMPARED = {
    "backends/__init__.py": ("each engine is imported where it is made", "hf vllm"),
    "backends/servers/extra_body.py": ("a field of SGLang alone", "sglang"),
    "backends/vllm/start.py": ("the package", "vllm"),
    "cli/doctor.py": (HF_CHECK, "hf hf hf hf"),
    "cli/usage.py": (VLLM_TYPE, "vllm"),
    "config/engine_choice.py": (
        f"{VLLM_TYPE}; {CHAT_SERVER}",
        "openai_server openai_server vllm vllm",
    ),
    "config/keys.py": ("fields of vLLM alone", "vllm"),
    "config/schema.py": (f"{VLLM_TYPE}; {CHAT_SERVER}", "openai_server openai_server vllm"),
    "report/audit_row.py": ("the ids that end a row of vLLM's chat server", "vllm_chat"),
    "report/retests.py": ("only vLLM promises one answer for one seed", "vllm"),
    "report/together.py": (
        "only the HF engine draws a row again by its seed; SGLang filters in another order",
        "hf sglang",
    ),
    "report/verify.py": (
        f"{HF_CHECK}; fields of SGLang's answers; tools are asked of vLLM alone",
        "hf sglang vllm",
    ),
    "stages/resolving.py": ("what vLLM's chat server makes of a field", "vllm_chat vllm_server"),
}
"""Where code compares with the name of an engine, a dialect or a function that makes routes: why, and
with which. Elsewhere, ask its row in `ENGINE_LIST`, or its wire.
"""
CHECKPOINT = "files of a checkpoint"
SUFFIXES = {
    "backends/checkpoint/file_digests.py": (CHECKPOINT, ".json .txt"),
    "backends/checkpoint/load_errors.py": (CHECKPOINT, ".json .json .json"),
    "cli/sidecars.py": ("an answer beside its image is text, or a line", ".txt"),
    "config/config_files.py": ("chat files are JSON or YAML", ".json"),
    "io/arrow_roundtrip.py": ("what each form of table can hold", ".arrow .parquet .parquet"),
    "io/table_out.py": ("the writer of each form of table", ".parquet"),
}
"""Where the suffix of a file of rows is compared or listed: why, and which. Elsewhere, ask
`io/forms.py`.
"""

SOME_FIELDS = {
    "cli/view.py": ("facts that are shown beside an answer", "margin route stop"),
    "drivers/repeat.py": ("what a loop sets", "id rounds rounds_end"),
    "io/answer_columns.py": (
        "the columns that a table has of each sample",
        "completion_tokens finish text",
    ),
    "io/jsonl.py": (
        "whose form in a line is narrower than JSON",
        "completion_tokens finish margin options prompt_tokens thinking_unfinished",
    ),
    "io/results_in.py": (
        "what other forms and tables have under other names, or not at all",
        (
            "completion_tokens completion_tokens failed_samples finish finish finish options"
            " options options options prompt_tokens raw_text raw_text raw_text rounds samples text"
            " text text"
        ),
    ),
    "records/answer_parts.py": (
        "keys of a server's content, not fields",
        "reasoning text thinking",
    ),
    "report/audit_file.py": (
        "what a result has of its first sample and of its last round",
        "finish raw_text reasoning rounds stop text token_ids tool_calls",
    ),
    "testing/ask.py": (
        "what two engines give alike",
        "finish image_grid_thw prompt_token_ids raw_text stop text token_ids",
    ),
}
"""Where some fields of a result stand together: why, and which. All of them, or those that a file
form has, are asked of `records/results.py`.
"""
RESULT = frozenset(field.name for field in dataclasses.fields(GenerationResult))


class Edit(NamedTuple):
    """Lines that are written before a line of a file."""

    file: str
    before: str
    lines: str


class Change(NamedTuple):
    """A change as a maintainer makes it, and a program that shows that it works."""

    row: str
    """What the table calls it."""
    aim: int
    """The most files that it may take."""
    edits: tuple[Edit, ...]
    shows: str
    """Prints JSON."""
    result: object
    """What it prints."""


OPTION = Change(
    "sampling option",
    2,
    (
        Edit(
            "records/option_records.py",
            "    allowed_token_ids: Annotated[\n",
            """\
    epsilon_cutoff: Annotated[
        float | None,
        number(0, 1),
        "Sample from tokens of at least this probability only; 0 means all.",
        OptionRow(
            None,
            frozenset({"hf", "vllm_chat"}),
            wires="epsilon_cutoff",
            trial=1.0,
            role="filter",
            neutral=0.0,
            later=True,
        ),
    ] = None
""",
        ),
        Edit(
            "records/option_records.py",
            "            allowed_token_ids: Sequence[int] | None = None,\n",
            "            epsilon_cutoff: float | None = None,\n",
        ),
        Edit(
            "backends/hf/hf_sampling.py",
            "    limits = [min(option.top_k or 0, scores.shape[-1]) for option in options]\n",
            """\
    if any(option.epsilon_cutoff for option in options):
        least = _constants([option.epsilon_cutoff or 0.0 for option in options], scores)
        unlikely = (scores.softmax(-1) < least) & (scores < scores.amax(-1, keepdim=True))
        scores = scores.masked_fill(unlikely, -torch.inf)
""",
        ),
    ),
    """\
import contextlib, io, json
import torch
from hypothesis import Phase, find, settings
import pipegen as pg
from pipegen.backends.hf.hf_sampling import narrow
from pipegen.backends.servers.dry import wire_requests
from pipegen.cli import main
from pipegen.config.schema import schema
from pipegen.records.options import resolve
from pipegen.report.drawn import unknown_options
from pipegen.testing.strategies import generation_options

name, server = "epsilon_cutoff", {"base_url": "http://localhost:1"}
unshrunken = settings(phases=[Phase.generate], database=None)
options = {"temperature": 1.0, name: 0.3}
request = {"messages": [{"role": "user", "content": "Hi"}], "options": options}
full = resolve(pg.GenerationOptions(**options))
result = pg.GenerationResult(
    text="a", raw_text="a", finish=pg.Finish.EOS, route="hf", options=full
)
vllm = pg.backends.openai_server("m", dialect="vllm", **server)
refused = wire_requests(pg.backends.openai_server("m", **server), [request])[0].failure()
text = io.StringIO()
with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
    main(["generate", "--help-all"])
print(json.dumps([
    [round(chance, 3) for chance in narrow(torch.tensor([[2.0, 2.0, 0.0]]), [full])[0].softmax(-1).tolist()],
    sorted(engine for engine, honours in pg.ENGINES.items() if name in honours),
    wire_requests(vllm, [request])[0].unwrap().body[name],
    refused.option,
    "--epsilon-cutoff" in text.getvalue(),
    pg.to_plain(pg.Success(result))["options"][name],
    pg.from_plain(pg.to_plain(pg.Success(result))).unwrap().options == full,
    pg.request_from(request).unwrap().options.epsilon_cutoff,
    find(
        generation_options(), lambda one: (one.epsilon_cutoff or 0) > 0.5, settings=unshrunken
    ).epsilon_cutoff > 0.5,
    f'"{name}"' in json.dumps(schema()),
    unknown_options(full),
]))
""",
    [
        [0.5, 0.5, 0.0],
        ["hf", "vllm_chat"],
        0.3,
        "epsilon_cutoff",
        True,
        0.3,
        True,
        0.3,
        True,
        True,
        ["epsilon_cutoff"],
    ],
)
DIALECT = Change(
    "server dialect",
    3,
    (
        Edit("records/engine_list.py", '"plain"]\n', '"llamacpp", '),
        Edit(
            "records/engine_list.py",
            '    "openai_chat": EngineRow(',
            '    "llamacpp_chat": EngineRow(\n        "llama.cpp", "openai_server",'
            ' "online", "llamacpp", known=False\n    ),\n',
        ),
        Edit(
            "records/engine_list.py",
            '    "openai": "the chat route of any server',
            '    "llamacpp": "the chat route of a llama.cpp server",\n',
        ),
        Edit("records/option_records.py", ', wires="min_p", trial=1.0', ' | {"llamacpp_chat"}'),
        Edit(
            "backends/servers/openai.py",
            '    "plain": _wire(',
            """\
    "llamacpp": _wire(
        "llamacpp", "http://localhost:8080", "LLAMA_API_KEY", _plain_fields, _unsupported
    ),
""",
        ),
    ),
    """\
import json
import pipegen as pg
from pipegen.backends.servers.dialects import dialect_of
from pipegen.backends.servers.dry import wire_requests
from pipegen.config.engine_choice import backend_from
from pipegen.config.config_files import Place
from pipegen.config.schema import schema
from pipegen.records.option_table import OPTIONS

def asked(**options):
    request = {"messages": [{"role": "user", "content": "Hi"}], "options": options}
    return wire_requests(route, [request])[0]

backend = backend_from({"type": "llamacpp", "model": "m", "base_url": None}, Place("chat"))
route = pg.backends.openai_server("m", dialect="llamacpp", served_model_name="m")
UNTAKEN = {
    name: entry.row.trial for name, entry in OPTIONS.items()
    if name not in pg.ENGINES["llamacpp_chat"] and entry.row.trial is not None
}
print(json.dumps([
    backend.settings.dialect,
    dialect_of({"data": [{"owned_by": "llamacpp"}]}),
    asked(min_p=0.1).unwrap().body["min_p"],
    asked(repetition_penalty=2.0).failure().message,
    [name for name, value in UNTAKEN.items() if pg.is_ok(asked(**{name: value}))],
    len(UNTAKEN) > 15,
    asked(frequency_penalty=2.0).unwrap().body["frequency_penalty"],
    "min_p" in pg.ENGINES["llamacpp_chat"],
    json.dumps(schema()).count('"llamacpp"') > 2,
]))
""",
    [
        "llamacpp",
        "llamacpp",
        0.1,
        "llama.cpp does not honour repetition_penalty=2.0",
        [],
        True,
        2.0,
        True,
        True,
    ],
)
QUIRK = Change(
    "quirk of a family of models",
    1,
    (
        Edit(
            "backends/checkpoint/families.py",
            '    "cohere2": ',
            '    "qwen3_5": Family("Qwen3VLVideoProcessor", longer_in_vllm=True),\n',
        ),
    ),
    """\
import json
from types import SimpleNamespace
from pipegen.backends.checkpoint.videos import Videos
from pipegen.backends.vllm.corrections import corrections

config = SimpleNamespace(model_type="qwen3_5", video_token_id=5, sliding_window=8)
checkpoint = SimpleNamespace(
    described=config, model_type="qwen3_5", images_unsupported_reason="", takes_images=True,
    fact=lambda name, find: find(),
)
other = SimpleNamespace(
    model_type="llava", images_unsupported_reason="", takes_images=True
)
print(json.dumps([
    Videos(checkpoint).unsupported_reason,
    "qwen3_5" in Videos(other).unsupported_reason,
    corrections(config, (0, 32)),
]))
""",
    ["", True, {"sliding_window": 7}],
)


def edited(change: Change, folder: Path) -> list[str]:
    """The files of a copy of the package that differ from it, after the change."""
    copy = folder / "pipegen"
    shutil.copytree(PACKAGE, copy)
    for file, before, lines in change.edits:
        text = (copy / file).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{file} has this line {text.count(before)} times: {before}"
        (copy / file).write_text(text.replace(before, lines + before), encoding="utf-8")
    return [
        name
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in (path.relative_to(PACKAGE).as_posix(),)
        if (copy / name).read_bytes() != path.read_bytes()
    ]


@pytest.mark.parametrize("change", [OPTION, DIALECT, QUIRK], ids=lambda change: change.row)
def test_a_change_works_where_the_files_of_the_table_alone_are_edited(
    change: Change, tmp_path: Path
) -> None:
    if change is OPTION:
        pytest.importorskip("torch")
    pytest.importorskip("aiohttp")
    files = edited(change, tmp_path)
    assert files == sorted(TAKES[change.row]) and len(files) <= change.aim
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}
    ran = subprocess.run(
        [sys.executable, "-c", change.shows],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == change.result


def test_every_file_of_the_table_is_there() -> None:
    assert len(TAKES) >= 12
    named = set(re.findall(r"`([a-z_/]+\.py)`", TABLE))
    assert not {file for file in named if not (PACKAGE / file).is_file()}


def test_a_family_and_the_dialects_are_named_in_one_file() -> None:
    assert get_args(Dialect) == tuple(DIALECTS)
    names = {*FAMILIES, get_args(Dialect)}
    named: dict[Any, set[str]] = {name: set() for name in names}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value: Any = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Tuple):
                value = tuple(getattr(part, "value", None) for part in node.elts)
            if isinstance(value, (str, tuple)) and value in names:
                named[value].add(path.relative_to(PACKAGE).as_posix())
    families = {name: {"backends/checkpoint/families.py"} for name in FAMILIES}
    assert named == {**families, get_args(Dialect): {"records/engine_list.py"}}


def constants(node: ast.AST) -> Iterator[str]:
    """The texts that an expression is, or that stand in it as a tuple, list, set or keys."""
    parts = getattr(node, "elts", None) or getattr(node, "keys", None) or [node]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def compared(tree: ast.AST) -> Iterator[str]:
    """The texts that something is compared with, by an operator, a pattern or the beginning of a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from constants(side)
        elif isinstance(node, ast.MatchValue):
            yield from constants(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "startswith",
            "endswith",
        ):
            for argument in node.args:
                yield from constants(argument)


def listed(tree: ast.AST) -> Iterator[str]:
    """The texts that stand in tuples, lists, sets and as keys."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            yield from constants(node)


def found(texts: Callable[[ast.AST], Iterable[str]], names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are among these texts of each file, as often as they stand there."""
    wanted, places = frozenset(names), dict[str, str]()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if words := sorted(text for text in texts(tree) if text in wanted):
            places[path.relative_to(PACKAGE).as_posix()] = " ".join(words)
    return places


def pinned(exceptions: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    return {file: names for file, (_, names) in exceptions.items()}


def test_what_an_engine_is_like_is_asked_of_its_row_and_not_of_its_name() -> None:
    """So that a new one is forgotten nowhere."""
    assert found(compared, ENGINES) == pinned(COMPARED)


def test_the_suffixes_of_files_of_rows_stand_in_one_file() -> None:
    suffixes = {*WRITTEN, ".json", ".txt", ".gz", ".bz2", ".xz", ".zst"} - {""}
    assert all(form_of(f"rows{suffix}").kind for suffix in suffixes)
    places = found(lambda tree: [*listed(tree), *compared(tree)], suffixes)
    assert places.pop("io/forms.py")
    assert places == pinned(SUFFIXES)


def fields_together(tree: ast.AST) -> Iterator[str]:
    """The fields of a result that stand together, three of them or more, in a tuple, a list, a set
    or as keys, and are most of it.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            fields = [text for text in constants(node) if text in RESULT]
            entries = node.keys if isinstance(node, ast.Dict) else node.elts
            if len(fields) > 2 and len(fields) > len(entries) / 2:
                yield from fields


def test_the_fields_of_a_result_are_listed_where_it_is_declared() -> None:
    """So that no list lacks a new one: a list of some has its reason here."""
    assert found(fields_together, RESULT) == pinned(SOME_FIELDS)
