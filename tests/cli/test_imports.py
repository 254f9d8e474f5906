"""What each command imports: one that asks no engine starts neither torch nor transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HEAVY = {
    *("torch", "transformers", "tokenizers", "numpy", "PIL", "jinja2", "huggingface_hub"),
    *("safetensors", "asyncio", "aiohttp", "vllm", "pyarrow", "jsonschema", "mcp", "peft"),
}
SCRIPT = """
import contextlib, json, sys
import pipegen.cli
sys.argv = ["pipegen", *sys.argv[1:]]
with contextlib.suppress(SystemExit):
    pipegen.cli.main()
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def imported_by(folder: Path, *arguments: str) -> set[str]:
    """The heavy packages that a command has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that is finished."""
    made = tmp_path_factory.mktemp("finished")
    (made / "in.jsonl").write_text('{"id": "a", "prompt": "What is the capital of Japan?"}\n')
    assert "torch" in imported_by(made, *GENERATE)
    return made


GENERATE = ("generate", "in.jsonl", "-o", "out.jsonl", "--model", "embedded")


@pytest.mark.parametrize(
    "arguments",
    [
        GENERATE,
        ("export", "out.jsonl.job", "-o", "exported.jsonl"),
        ("diff", "out.jsonl", "out.jsonl"),
        ("view", "out.jsonl", "-o", "page.html"),
        ("generate", "--help"),
        ("schema",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_that_asks_no_engine_imports_nothing_heavy(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    assert imported_by(folder, *arguments) == set()


ASKS = """
import json, sys
import pipegen as pg
server, address, model = sys.argv[1:]
made = getattr(pg.backends, server)
with made(model, base_url=address) as route:
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


@pytest.mark.parametrize("server", REPLIES)
def test_a_first_answer_of_a_token_server_imports_neither_torch_nor_transformers(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the checkpoint's files have been read by transformers."""
    pytest.importorskip("aiohttp")
    from support.canned_server import Canned, CannedServer

    from pipegen import embedded

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with CannedServer(Canned(REPLIES[server])) as running:
        first, second = (
            subprocess.run(
                [sys.executable, "-P", "-c", ASKS, server, running.url, embedded.path()],
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(2)
        )
    assert "transformers" in json.loads(first.stdout)
    assert HEAVY & set(json.loads(second.stdout)) == NEEDED


def test_an_estimate_of_texts_imports_what_renders_them_alone(folder: Path) -> None:
    command = ("estimate", "in.jsonl", "--model", "embedded")
    imported_by(folder, *command)
    assert imported_by(folder, *command) <= {"tokenizers", "jinja2"}


TEXT = """
import json, sys
import pipegen as pg
with pg.backends.hf("embedded") as route:
    (slot,) = pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 1})
assert pg.is_ok(slot), slot
print(json.dumps(sorted(name for name in sys.modules if name.startswith("pipegen."))))
"""
NOT_FOR_TEXT = {
    *("answer.answer_check", "answer.json_formats", "answer.number_regex", "answer.regex_check"),
    *("answer.tagged_calls", "answer.tool_calls", "stages.multi_call", "template.call_signs"),
    *("backends.forced_text", "backends.grammar", "backends.settled_schema"),
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
