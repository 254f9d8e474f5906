"""What each command imports: one that asks no engine starts neither torch nor transformers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipegen.cli import main
from pipegen.cli.usage import import_while_waiting
from pipegen.testing.fake import FakeEngine

pytest.importorskip("torch")

HEAVY = {
    *("torch", "transformers", "tokenizers", "numpy", "PIL", "jinja2", "huggingface_hub"),
    *("safetensors", "asyncio", "aiohttp", "vllm", "pyarrow", "jsonschema", "mcp", "peft"),
}
SCRIPT = """
import contextlib, json, sys
import pipegen.cli
seen = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["pipegen", *command]
    with contextlib.suppress(SystemExit):
        pipegen.cli.main()
    seen.append(sorted({name.split(".")[0] for name in sys.modules}))
print(json.dumps(seen))
"""


def imported_by(folder: Path, *commands: Sequence[str]) -> list[set[str]]:
    """The heavy packages that a process has imported after each of these commands."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return [HEAVY & {*names} for names in json.loads(done.stdout.splitlines()[-1])]


def run_here(*command: str) -> None:
    """Run a command in this process, which has torch, and what its first run keeps for the next."""
    with pytest.raises(SystemExit) as left:
        main([*command])
    assert not left.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that is finished."""
    made = tmp_path_factory.mktemp("finished")
    (made / "in.jsonl").write_text('{"id": "a", "prompt": "What is the capital of Japan?"}\n')
    with contextlib.chdir(made):
        run_here(*GENERATE)
        run_here(*VERIFY)
    return made


GENERATE = ("generate", "in.jsonl", "-o", "out.jsonl", "--model", "embedded")
VERIFY = ("verify", "out.jsonl", "--model", "embedded")
ESTIMATE = ("estimate", "in.jsonl", "--model", "embedded")
COMMANDS = (
    GENERATE,
    ("export", "out.jsonl.job", "-o", "exported.jsonl"),
    ("diff", "out.jsonl", "out.jsonl"),
    ("view", "out.jsonl", "-o", "page.html"),
    VERIFY,
    ("generate", "--help"),
    ("schema",),
)


def test_a_command_that_asks_no_engine_imports_nothing_heavy(folder: Path) -> None:
    imported = imported_by(folder, *COMMANDS)
    assert dict(zip(COMMANDS, imported, strict=True)) == {command: set() for command in COMMANDS}


WAITS = """
import json, os, sys
import pipegen.cli, pipegen.cli.sources as sources
lines_of = sources.lines_of
def seen(stream):
    print("pipegen.backends.hf.computing" in sys.modules, file=sys.stderr)
    os.write(write, b'{"prompt": "Hi"}')
    os.close(write)
    return (yield from lines_of(stream))
sources.lines_of = seen
read, write = os.pipe()
if sys.argv[1]:
    os.write(write, b'{"prompt": "Hi"}' + os.linesep.encode())
sys.stdin = open(read, encoding="utf-8")
sys.argv = ["pipegen", "generate", "-", "--model", "embedded", "--max-new-tokens", "1", "--quiet"]
pipegen.cli.main()
"""


@pytest.mark.parametrize("written", ["", "1"])
def test_an_engine_is_imported_while_stdin_has_nothing_to_read(written: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WAITS, written], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[0] == str(not written)
    assert len(done.stdout.splitlines()) == 1 + bool(written)


READS = """
import sys
import pipegen.cli, pipegen.cli.sources as sources
records_of, count = sources.records_of, 0
def counted(path, stream):
    global count
    for record in records_of(path, stream):
        count += 1
        yield record
class Engine:
    def find_spec(self, name, *others):
        if name == "pipegen.backends.hf.computing":
            print(count, file=sys.stderr)
sources.records_of = counted
sources._records = lambda path: None  # what counts the lines for the progress line
sys.meta_path.insert(0, Engine())
sys.argv = ["pipegen", *sys.argv[1:]]
pipegen.cli.main()
"""


@pytest.mark.parametrize("out", [(), ("-o", "out.jsonl")])
def test_an_engine_is_imported_when_the_first_lines_of_a_file_are_read(
    out: tuple[str, ...], tmp_path: Path
) -> None:
    lines = (json.dumps({"id": n, "prompt": "Hi"}) for n in range(200))
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = ("generate", "in.jsonl", "--model", "embedded", "--max-new-tokens", "1", "--quiet")
    done = subprocess.run(
        [sys.executable, "-P", "-c", READS, *command, *out],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert 1 <= int(done.stderr.splitlines()[0]) <= 32


def test_what_a_fallback_runs_on_is_not_imported_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = list[str]()

    class Named(FakeEngine):
        def import_packages(self) -> None:
            imported.append(self.name)

    read, write = os.pipe()
    with open(read, encoding="utf-8") as empty, open(write, "w", encoding="utf-8"):
        monkeypatch.setattr(sys, "stdin", empty)
        import_while_waiting(SimpleNamespace(owns=(Named("a", name="main"), Named("b"))))
    assert imported == ["main"]


ASKS = """
import json, sys
import pipegen as pg
for server, address in json.loads(sys.argv[1]):
    with getattr(pg.backends, server)(sys.argv[2], base_url=address) as route:
        (slot,) = pg.run(route, [{"messages": [{"role": "user", "content": "Hi"}]}])
    assert pg.is_ok(slot), slot
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""
REPLIES = {
    "vllm_server": {
        "request_id": "1",
        "choices": [{"index": 0, "token_ids": [931, 1126], "finish_reason": "stop"}],
    },
    "sglang_server": {
        "text": "",
        "output_ids": [931, 1126],
        "meta_info": {
            "id": "1",
            "finish_reason": {"type": "stop", "matched": 1126},
            "prompt_tokens": 16,
            "completion_tokens": 2,
        },
    },
}
NEEDED = {"tokenizers", "jinja2", "asyncio", "aiohttp"}
"""What an answer of a token server takes."""


def test_a_first_answer_of_a_token_server_imports_neither_torch_nor_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    from support.canned_server import Canned, CannedServer

    from pipegen import embedded

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with contextlib.ExitStack() as stack:
        servers = [
            (server, stack.enter_context(CannedServer(Canned(reply))).url)
            for server, reply in REPLIES.items()
        ]
        command = [sys.executable, "-P", "-c", ASKS, json.dumps(servers), str(embedded.path())]
        starts = [
            subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)
        ]
    assert [HEAVY & {*json.loads(start.stdout)} for start in starts] == [NEEDED, NEEDED]


def test_an_estimate_of_texts_imports_what_renders_them_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    run_here(*ESTIMATE)
    (imported,) = imported_by(folder, ESTIMATE)
    assert imported <= {"tokenizers", "jinja2"}


TEXT = """
import json, sys
import pipegen as pg
with pg.backends.hf("embedded") as route:
    (slot,) = pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 1})
assert pg.is_ok(slot), slot
print(json.dumps(sorted(name for name in sys.modules if name.startswith("pipegen."))))
"""
NOT_FOR_TEXT = {
    *("answer.answer_check", "answer.regex_check", "answer.value_patterns"),
    *("answer.tagged_calls", "answer.tool_calls", "stages.multi_call", "template.call_signs"),
    *("backends.grammar", "backends.settled_schema"),
    *("backends.hf.hf_scoring", "backends.hf.scored_rows", "backends.checkpoint.video_processors"),
    *("media.frames", "media.video", "backends.servers", "io", "jobs", "config", "cli", "plugins"),
}
"""What forms, tool calls, scores, videos, servers and files take."""


def test_a_text_answer_imports_only_what_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TEXT], capture_output=True, text=True, check=True
    )
    imported = {name.removeprefix("pipegen.") for name in json.loads(done.stdout)}
    assert "backends.hf.computing" in imported
    assert imported & NOT_FOR_TEXT == set()
