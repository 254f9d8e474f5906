"""Start a real vLLM or SGLang server on the CPU, on a free loopback port, wait until it is ready,
and end it by its process id.

Each runs in an environment of its own, whose python an environment variable names:
PIPEGEN_VLLM_PYTHON, PIPEGEN_SGLANG_PYTHON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ENGINES = ("vllm", "sglang")
PYTHONS = {engine: f"PIPEGEN_{engine.upper()}_PYTHON" for engine in ENGINES}
READY_WITHIN = 400.0
"""Seconds. Most of the start is importing; on a busy machine it takes minutes."""
ENDS_WITHIN = 20.0
TOKENS = 8192
"""Room for keys and values, in tokens: enough for every test, and little memory."""

ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_COMPILE_DISABLE": "1",  # else the first logprobs wait for a C++ compiler
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less: it starts in half the time
    "SGLANG_USE_CPU_ENGINE": "1",
}
BY_IDS = ("--enable-scale-out",)
"""What switches on vLLM's /inference/v1/generate. Without it, there is /v1/completions, for
text.
"""
# PYTHONPATH, so that the processes which SGLang starts find the stand-in too.
PATHS: Mapping[str, str] = {"vllm": "", "sglang": str(HERE / "sglang_cpu")}
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Answer(NamedTuple):
    """What a server answered: status, content type, and the body as it came."""

    status: int
    kind: str
    text: str


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(url: str, body: Any = None, *, key: str = "EMPTY", timeout: float = 120.0) -> Answer:
    """Send JSON (or GET, without a body) and read the whole answer, whatever its status."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url,
        data=data,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    try:
        with _direct.open(request, timeout=timeout) as answer:
            return Answer(answer.status, answer.headers.get_content_type(), answer.read().decode())
    except urllib.error.HTTPError as refusal:
        return Answer(refusal.code, refusal.headers.get_content_type(), refusal.read().decode())


def command(
    engine: str, python: str, model: str, name: str, port: int, more: Sequence[str] = ()
) -> list[str]:
    """The command line that serves `model` in float32 under `name`."""
    if engine == "vllm":
        said = [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", model),
            *("--enforce-eager", "--max-num-seqs", "16"),
        ]
        said += ["--kv-cache-memory-bytes", str(64 << 20), "--trust-request-mm-kwargs"]
        said += [
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "hermes",
            "--reasoning-parser",
            "qwen3",
        ]
    else:
        said = [
            *("-m", "sglang.launch_server", "--model-path", model, "--device", "cpu"),
            *("--attention-backend", "torch_native"),
        ]
        said += [
            "--disable-cuda-graph",
            "--disable-overlap-schedule",
            "--sleep-on-idle",  # else it looks for requests all the time, and takes a core
            "--skip-server-warmup",
            "--random-seed",
            "0",
        ]
        # The share is of the whole machine's free memory, which other processes change while it
        # starts; the count of tokens is what limits it.
        said += ["--mem-fraction-static", "0.6", "--max-total-tokens", str(TOKENS)]
        said += ["--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3"]
    return [
        python,
        *said,
        *("--served-model-name", name, "--dtype", "float32", "--host", "127.0.0.1"),
        *("--port", str(port)),
        *more,
    ]


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    limit = time.monotonic() + READY_WITHIN
    while time.monotonic() < limit:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=0.5)
            raise RuntimeError(
                f"the server left with {code}:\n{log.read_text(errors='replace')[-4000:]}"
            )
        with contextlib.suppress(OSError):
            if ask(url + "/health", timeout=30.0).status == 200:
                return
    raise TimeoutError(
        f"the server was not ready within {READY_WITHIN:.0f}"
        f" s:\n{log.read_text(errors='replace')[-4000:]}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started: they share a process group of their own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=ENDS_WITHIN)


@contextlib.contextmanager
def server(engine: str, model: str, name: str, *more: str) -> Iterator[str]:
    """The base URL of a server that answers, as long as the block runs. Raises `RuntimeError` or
    `TimeoutError`, with its last words, if it does not.
    """
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": PATHS[engine]}
    with tempfile.TemporaryDirectory(prefix="pipegen-server-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            line = command(engine, os.environ[PYTHONS[engine]], model, name, port, more)
            output: Any = {
                "stdin": subprocess.DEVNULL,
                "stdout": out,
                "stderr": subprocess.STDOUT,
                "cwd": folder,
                "env": environment,
            }
            process = subprocess.Popen(line, **output, start_new_session=True)
        try:
            _wait(process, url, log)
            yield url
        finally:
            _end(process)
