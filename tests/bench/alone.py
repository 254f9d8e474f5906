"""What pipegen itself costs: an engine that answers at once, beside the chat template and the tokenizer alone; and what starting costs. Run by `nox -s bench`.

`python tests/bench/alone.py [preparing] [answers] [memory] [starting]` runs a part. Seconds are those of the processor: one thread works.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import REPEATS, Taken, interleave, paired, row, write
from returns.result import Success

import pipegen as pg
from pipegen.backends.hf.engine import HFEngine
from pipegen.records import Raw

GROUP = "pipegen alone"
COUNTS = tuple(int(count) for count in os.environ.get("BENCH_COUNTS", "1000,10000,100000").split(","))
QUESTIONS = ("Count from 1 to 9.", "What is the capital of Peru?", "List the months of the year.", "Reverse: sun moon star lake")
PYDANTIC = "from pydantic import BaseModel\nclass Request(BaseModel):\n    id: str | None = None\n    prompt: str\nRequest(prompt='Hi', id='1')"
VARIABLES = {"add_generation_prompt": True, "enable_thinking": False}


class NullEngine(HFEngine):
    """The Hugging Face engine with everything but the model: it always answers with the same ids and the model's end token."""

    answer: tuple[int, ...] = ()

    def generate(self, inputs: Sequence[Any]) -> Any:
        ids = (*self.answer, self.eos_token_ids[0])
        return [Success(Raw(encoded=encoded, token_ids=ids)) for encoded in inputs]


def null_route(answer: tuple[int, ...] = ()) -> pg.Route:
    engine = NullEngine(pg.ModelLoadConfig(model="embedded"))
    engine.answer = answer
    return pg.route(engine)


def conversation(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{QUESTIONS[number % 4]} ({number}) " + "sun moon star lake " * 20}]


def added(ours: Taken, bare: Taken) -> tuple[float, float]:
    """What pipegen adds to the bare work, as a share of it: seconds of the processor, round by round."""
    ratio, spread = paired(bare.cpu, ours.cpu)
    return ratio - 1, spread


def cost(work: str, peer: str, count: int, ours: Taken, bare: Taken, note: str = "") -> dict[str, Any]:
    ratio, spread = added(ours, bare)
    figures = {"ours": f"{statistics.median(ours.cpu) / count * 1e6:.0f} us", "theirs": f"{statistics.median(bare.cpu) / count * 1e6:.0f} us"}
    return row(work, peer, ratio, "at most 0.25", group=GROUP, spread=spread, note=note, **figures)


def preparing() -> list[dict[str, Any]]:
    """Whole runs with an engine that does nothing, beside template and tokenizer of the same requests."""
    route = null_route()
    raw: Any = route.engine.tokenizer.raw  # type: ignore[attr-defined]  # an HFTokenizer
    encoder, rows, each = raw.backend_tokenizer, [], {}
    for count in COUNTS:
        messages = [conversation(number) for number in range(count)]
        options = pg.GenerationOptions(max_new_tokens=16)

        def ours(messages: list[Any] = messages, options: pg.GenerationOptions = options) -> None:
            for slot in pg.imap(route, ({"messages": one} for one in messages), options):
                slot.unwrap()

        def bare(messages: list[Any] = messages) -> None:
            for one in messages:
                raw(raw.apply_chat_template(one, tokenize=False, **VARIABLES), add_special_tokens=False)

        def barest(messages: list[Any] = messages) -> None:
            for one in messages:
                list(encoder.encode(raw.apply_chat_template(one, tokenize=False, **VARIABLES), add_special_tokens=False).ids)

        works: dict[str, Callable[[], Any]] = {"ours": ours, "bare": bare} | ({"barest": barest} if count == COUNTS[0] else {})
        taken = interleave(works, repeats=1 if count > 10_000 else 3 if count > 1_000 else max(5, REPEATS), warm=0 if count > 1_000 else 1)
        each[count] = statistics.median(taken["ours"].cpu) / count
        rows.append(cost(f"{count:,} requests, no engine: what pipegen adds", "apply_chat_template + tokenizer(...)", count, taken["ours"], taken["bare"]))
        if "barest" in taken:
            note = "the Rust encoder called directly, which spares the tokenizer's own Python"
            rows.append(
                cost(f"{count:,} requests, no engine: what pipegen adds", "apply_chat_template + bare encoder", count, taken["ours"], taken["barest"], note)
            )
    few, many = min(COUNTS), max(COUNTS)
    figures = {"ours": f"{each[many] * 1e6:.0f} us", "theirs": f"{each[few] * 1e6:.0f} us"}
    return [*rows, row(f"a request of {many:,}", f"a request of {few:,}", each[many] / each[few], "at most 1.1", group=GROUP, note="linear", **figures)]


def answers() -> list[dict[str, Any]]:
    """The same with answers of 64 tokens, beside template, tokenizer and decode."""
    plain = null_route().engine.tokenizer
    route = null_route(plain.encode("The sun and the moon stand over the lake, and the birds are silent. " * 8)[:64])
    raw: Any = plain.raw  # type: ignore[attr-defined]
    messages, made = [conversation(number) for number in range(1_000)], list(route.engine.answer)  # type: ignore[attr-defined]

    def ours() -> None:
        for slot in pg.imap(route, ({"messages": one} for one in messages)):
            slot.unwrap()

    def bare() -> None:
        for one in messages:
            raw(raw.apply_chat_template(one, tokenize=False, **VARIABLES), add_special_tokens=False)
            raw.decode(made, skip_special_tokens=True)

    taken = interleave({"ours": ours, "bare": bare}, repeats=max(5, REPEATS))
    return [cost("1,000 requests with answers of 64 tokens: what pipegen adds", "template + tokenizer + decode", 1_000, taken["ours"], taken["bare"])]


def memory() -> list[dict[str, Any]]:
    """What Python holds while requests stream through, at the end of 20,000 beside the end of 2,000."""
    route = null_route()

    def requests(count: int) -> Iterator[dict[str, Any]]:
        return ({"messages": conversation(number)} for number in range(count))

    def peak(count: int) -> float:
        gc.collect()
        tracemalloc.start()
        for slot in pg.imap(route, requests(count)):
            slot.unwrap()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held / 2**20

    peak(200)
    few, many = peak(2_000), peak(20_000)
    figures = {"ours": f"{many:.2f} MiB", "theirs": f"{few:.2f} MiB"}
    return [row("most memory, 20,000 requests streamed", "2,000 requests", many / few, "at most 1.1", group=GROUP, note="flat", **figures)]


def starting() -> list[dict[str, Any]]:
    """Fresh interpreters: seconds of the processor of each, less those of an empty one for the imports."""
    python, tool = sys.executable, str(Path(sys.executable).with_name("pipegen"))

    # The first rounds leave compiled modules behind, as an installation does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def start(*command: str) -> Callable[[], float]:
        def once() -> float:
            before = _children()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            return _children() - before

        return once

    works = {
        "empty": start(python, "-c", ""),
        "import pipegen": start(python, "-c", "import pipegen"),
        "import pydantic": start(python, "-c", "import pydantic"),
        "import pipegen, and a first request": start(python, "-c", "import pipegen; pipegen.TextGenerationRequest(prompt='Hi', id='1')"),
        "import pydantic, and a first record": start(python, "-c", PYDANTIC),
        "pipegen --help": start(tool, "--help"),
        "pip --version": start(python, "-m", "pip", "--version"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(12):
        for name in works if repeat % 2 else reversed(works):
            taken = works[name]()
            if repeat > 1:
                seconds[name].append(taken)
    rows = []
    pairs = (
        ("import pipegen", "import pydantic"),
        ("import pipegen, and a first request", "import pydantic, and a first record"),
        ("pipegen --help", "pip --version"),
    )
    for ours, theirs in pairs:
        ratio, spread = paired(seconds[theirs], seconds[ours])
        figures = {"ours": f"{statistics.median(seconds[ours]) * 1e3:.0f} ms", "theirs": f"{statistics.median(seconds[theirs]) * 1e3:.0f} ms"}
        note = f"a whole process each; an empty interpreter takes {statistics.median(seconds['empty']) * 1e3:.0f} ms"
        rows.append(row(ours, theirs, ratio, "at most 1", group=GROUP, spread=spread, note=note, **figures))
    return rows


def _children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


PARTS = {"preparing": preparing, "answers": answers, "memory": memory, "starting": starting}


def main() -> None:
    torch.set_num_threads(1)
    for part in sys.argv[1:] or PARTS:
        begun = time.perf_counter()
        write(f"alone-{part}", PARTS[part]())
        print(f"  ({part}: {time.perf_counter() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
