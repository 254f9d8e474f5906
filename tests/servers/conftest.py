"""For tests on real servers: the models, one server at a time, and the same models on the Hugging
Face engine, which they must agree with.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pipegen as pg
from pipegen import embedded

# The tests of this folder are no package: what they share is loaded from where it lies.
_spec = importlib.util.spec_from_file_location("launch", Path(__file__).with_name("launch.py"))
assert _spec is not None
assert _spec.loader is not None
launch: ModuleType = importlib.util.module_from_spec(_spec)
sys.modules["launch"] = launch
_spec.loader.exec_module(launch)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One server after the other, each started once: the tests are put in the order of what they
    ask for. Those of SGLang may run beside the others (`--dist loadgroup`).
    """
    asked = {item: getattr(item, "callspec", None) for item in items}
    items.sort(key=lambda item: str((spec := asked[item]) and spec.params.get("served", "")))
    for item in items:
        engine = "sglang" if "sglang" in str(getattr(asked[item], "id", "")) else "vllm"
        item.add_marker(pytest.mark.xdist_group(engine))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tables, whose lines tests give as properties: what runs tests beside others prints
    nothing.
    """
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for _, line in report.user_properties:
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a model: `embedded`, which takes images, or `text`, its language half."""
    from training.model import export_text_only

    root: Path = tmp_path_factory.mktemp("models")
    return functools.cache(
        lambda name: str(
            embedded.path()
            if name == embedded.NAME
            else export_text_only(embedded.path(), root / name)
        )
    )


KEY = "the-key-of-these-tests"
"""What the servers want to be shown."""
PROCESSED = "processed"
"""The embedded model on a vLLM that tells processed log probabilities, and that it does."""
# With the text model, vLLM is as it comes: its endpoint for ids is switched off, and pipegen takes
# the other one.
MORE = {
    f"vllm-{embedded.NAME}": launch.BY_IDS,
    f"vllm-{PROCESSED}": (
        *launch.BY_IDS,
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "64"),
    ),
}
"""What switches more on in a server."""


class HttpEngine:
    """A running server: which engine and model, where it is, and where the model lies."""

    def __init__(self, engine: str, model: str, url: str, folder: str) -> None:
        self.engine, self.model, self.url, self.folder, self.key = engine, model, url, folder, KEY

    def opened(self, **settings: Any) -> pg.Route:
        """A route to it by token ids."""
        make: Any = pg.backends.vllm_server if self.engine == "vllm" else pg.backends.sglang_server
        return make(self.folder, **{"base_url": self.url, "api_key": KEY, **settings})

    def chat(self, **settings: Any) -> pg.Route:
        """A route to its chat completions."""
        make: Any = pg.backends.openai_server
        return make(
            self.folder,
            **{"base_url": self.url, "dialect": self.engine, "api_key": KEY, **settings},
        )

    def running(self) -> int:
        """How many requests it works at, those that wait among them."""
        if self.engine == "vllm":
            text = launch.ask(self.url + "/metrics", key=KEY).text
            return int(
                sum(
                    float(count)
                    for count in re.findall(
                        r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE
                    )
                )
            )
        loads = json.loads(launch.ask(self.url + "/v1/loads", key=KEY).text)["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    def wait_until(self, busy: bool, seconds: float = 60.0) -> None:
        """Wait until it works at something, or at nothing; `TimeoutError` if that does not come."""
        limit = time.monotonic() + seconds
        while (self.running() > 0) != busy:
            if time.monotonic() > limit:
                raise TimeoutError(
                    f"{self.engine} works at {self.running()} requests after {seconds:.0f} s"
                )


@pytest.fixture(scope="session")
def serving(folder_of: Callable[[str], str]) -> Iterator[Callable[[str], HttpEngine]]:
    """Start the server `engine-model`, and stop the one before it."""
    with ExitStack() as stack:
        last: dict[str, HttpEngine] = {}

        def started(name: str) -> HttpEngine:
            if name not in last:
                last.clear()
                stack.close()
                engine, _, model = name.partition("-")
                if launch.PYTHONS[engine] not in os.environ:
                    pytest.fail(
                        f"{launch.PYTHONS[engine]} does not name the python of an environment with"
                        f" {engine}: run `nox -s servers`"
                    )
                more = ("--api-key", KEY, *MORE.get(name, ()))
                with pytest.MonkeyPatch.context() as patch:
                    if model == PROCESSED:
                        model = embedded.NAME
                        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
                    url = stack.enter_context(launch.server(engine, folder_of(model), model, *more))
                last[name] = HttpEngine(engine, model, url, folder_of(model))
            return last[name]

        yield started


@pytest.fixture
def served(request: pytest.FixtureRequest, serving: Callable[[str], HttpEngine]) -> HttpEngine:
    """The server that the test's parameter names."""
    return serving(request.param)


@pytest.fixture(scope="session")
def hf_of(folder_of: Callable[[str], str]) -> Iterator[Callable[[str], pg.Route]]:
    """A route through the Hugging Face engine on that model, in float32; loaded once."""
    with ExitStack() as stack:
        yield functools.cache(
            lambda model: stack.enter_context(pg.backends.hf(folder_of(model), dtype="float32"))
        )
