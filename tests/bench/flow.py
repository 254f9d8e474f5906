"""What continuous feeding and shared prefixes gain: passes, tokens and times of two ways of the same work, side by side in one run.

    python tests/bench/flow.py [skewed] [file] [awaited] [server] [prefix] [tree] [guess] [memory]

Counts of passes and tokens are exact; times are those of this machine at this minute, so both ways take turns, and the median of the ratios counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import io
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

import pipegen as pg

ON = {"ignore_eos": True}
WORDS = ("the", "a", "red", "blue", "cat", "dog", "runs", "eats", "house", "tree", "water", "stone", "sky", "bird", "small", "big", "old", "new")


def skewed_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Nine rows in ten of 12 to 20 tokens, one of 110 to 140."""
    chance = random.Random(seed)
    lengths = [chance.randint(110, 140) if chance.random() < 0.1 else chance.randint(12, 20) for _ in range(count)]
    return [{"prompt": f"Write {number}", "options": {"stop": ON, "max_new_tokens": length}} for number, length in enumerate(lengths)]


def passes(engine: Any) -> int:
    return int(engine.work.passes + engine.work.steps)


def spent(engine: Any, work: Callable[[], Any]) -> tuple[Any, int, float]:
    """What the work gives, the model's passes for it, and its seconds."""
    before, began = passes(engine), time.perf_counter()
    made = work()
    return made, passes(engine) - before, time.perf_counter() - began


def opened(**more: Any) -> Any:
    route = pg.backends.hf("embedded", variant="text", dtype="float32", **more)
    pg.run(route, [{"prompt": "Hi", "options": {"max_new_tokens": 2}}])
    return route


def skewed() -> None:
    requests = skewed_rows(2000)
    with opened() as route:
        whole, at_once, seconds = spent(route.engine, lambda: list(pg.run(route, requests)))
        slots, fed, fed_seconds = spent(route.engine, lambda: list(pg.imap(route, requests)))
    show("2,000 skewed rows: imap / one run, passes", fed, at_once, "at most 1.05", same=slots == whole)
    show("the same, seconds", fed_seconds, seconds)


def file() -> None:
    from pipegen.cli import main

    requests = skewed_rows(2000)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        for turn in range(2):
            began = time.perf_counter()
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                main(
                    ["generate", str(source), "-o", str(Path(folder) / f"{turn}.jsonl"), "--model", "embedded", "--variant", "text", "--dtype", "float32", "-q"]
                )
            wrote = time.perf_counter() - began
            began = time.perf_counter()
            with pg.backends.hf("embedded", variant="text", dtype="float32") as route:
                pg.run(route, requests)
            ratios.append((time.perf_counter() - began) / wrote)
    print(f"2,000 skewed rows: `pipegen generate` from a file, speed / run on a list: {max(ratios):.3f} (at least 0.95), {ratios}")


def awaited() -> None:
    requests = skewed_rows(64)

    async def together(route: Any) -> list[Any]:
        return [batch[0] for batch in await asyncio.gather(*(pg.arun(route, [request]) for request in requests))]

    with opened() as route:
        whole, at_once, _ = spent(route.engine, lambda: list(pg.run(route, requests)))
        slots, shared, _ = spent(route.engine, lambda: asyncio.run(together(route)))
    show("64 concurrent arun / one run, passes", shared, at_once, "at most 1.3", same=slots == whole)


SECONDS = 0.2


def server() -> None:
    """3,000 requests, 5% of them twenty times slower, 128 in flight; the ideal is 128 clients that take the requests in order and lose no time."""
    from stub_server import READY

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(size)
                path = head.split(" ")[1].encode()
                if path == b"/inference/v1/generate":
                    await asyncio.sleep(SECONDS * (20 if json.loads(body)["token_ids"][0] % 20 == 0 else 1))
                writer.write(READY.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
                await writer.drain()

    import threading

    loop, started, listening = asyncio.new_event_loop(), list[Any](), threading.Event()

    def run_loop() -> None:
        asyncio.set_event_loop(loop)
        started.append(loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0)))
        listening.set()
        loop.run_forever()

    threading.Thread(target=run_loop, daemon=True).start()
    listening.wait()
    port = started[0].sockets[0].getsockname()[1]
    requests = [{"prompt_token_ids": [20 + number % 20, 21, 22], "options": {"max_new_tokens": 32}} for number in range(3000)]
    free = [0.0] * 128
    for request in requests:
        heapq.heapreplace(free, free[0] + SECONDS * (20 if request["prompt_token_ids"][0] % 20 == 0 else 1))
    ideal = max(free)
    with pg.backends.vllm_server("embedded", base_url=f"http://127.0.0.1:{port}", max_in_flight=128) as route:
        pg.run(route, requests[:2])
        began = time.perf_counter()
        slots = list(pg.imap(route, requests))
        seconds = time.perf_counter() - began
    show("3,000 requests to a server, 128 in flight: ideal / imap, seconds", ideal, seconds, "at least 0.85", same=all(map(pg.is_ok, slots)))
    loop.call_soon_threadsafe(loop.stop)


def prefix_rows(count: int) -> list[dict[str, Any]]:
    chance = random.Random(2)
    head = " ".join(chance.choice(WORDS) for _ in range(330))
    own = [" ".join(chance.choice(WORDS) for _ in range(chance.randint(5, 32))) for _ in range(count)]
    return [{"prompt": f"{head} {text}", "options": {"max_new_tokens": 16, "stop": ON}} for text in own]


def prefix() -> None:
    requests, ratios, counts = prefix_rows(64), list[float](), list[Any]()
    for _ in range(3):
        seconds = []
        for memory in (None, 0):
            with opened(prefix_memory_bytes=memory) as route:
                slots, _, took = spent(route.engine, lambda route=route: [slot.unwrap() for slot in pg.run(route, requests)])
                seconds.append(took)
                counts.append((route.engine.work.prompt_tokens, [slot.token_ids for slot in slots]))
        ratios.append(seconds[1] / seconds[0])
    lengths = sorted(len(slot.prompt_token_ids) for slot in slots)
    print(
        f"64 prompts of {lengths[0]} to {lengths[-1]} tokens with a shared head, 16 new: whole / shared, seconds: {statistics.median(ratios):.2f} (at least 4)"
    )
    print(f"  tokens read: {counts[0][0]} and {counts[1][0]}; ids equal: {counts[0][1] == counts[1][1]}")


def guess() -> None:
    """One row that copies from its prompt, and one that does not; PIPEGEN_BENCH_MODEL names another model than the embedded one."""
    from pipegen.backends.hf.lookup import Lookup

    people = (("Anna Berg", "Oslo", 31), ("Carl Lind", "Bergen", 45), ("Eva Dahl", "Tromso", 28), ("Nils Holm", "Stavanger", 52))
    text = " ".join(f"{name} lives in {city} and is {age} years old." for name, city, age in people)
    begun = json.dumps([{"name": name, "city": city, "age": age} for name, city, age in people[:2]])[:-1]
    prompts = {"JSON from a text": f"{text}\nJSON:\n{begun}, ", "a story": "Write a short story about a small dog in a red house by the sea.\n"}
    model = os.environ.get("PIPEGEN_BENCH_MODEL")
    guessed = Lookup.guess
    with pg.backends.hf(model, dtype="float32") if model else opened() as route:
        for name, prompt in prompts.items():
            asked = {"prompt": prompt, "options": {"max_new_tokens": 96, "stop": ON}}
            ids, passed, ratios = list[Any](), list[int](), list[float]()
            for _ in range(3):
                seconds = []
                for how in (guessed, lambda self, ids, most: ()):
                    Lookup.guess = how  # type: ignore[method-assign,assignment]
                    began = time.process_time()
                    slots, count, _ = spent(route.engine, lambda asked=asked: pg.run(route, [asked]))
                    seconds.append(time.process_time() - began)
                    ids.append(slots[0].unwrap().token_ids)
                    passed.append(count)
                ratios.append(seconds[1] / seconds[0])
            print(f"one row, {name}: without guesses / with, processor seconds: {statistics.median(ratios):.2f}; passes {passed[1]} and {passed[0]}", end="")
            print(f"; ids equal: {len(set(ids)) == 1}")
    Lookup.guess = guessed  # type: ignore[method-assign]


def tree() -> None:
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
    requests = [{"prompt_token_ids": list(prompt), "options": {"max_new_tokens": 8, "stop": ON}} for prompt in prompts]
    with opened() as route:
        before = route.engine.work.prompt_tokens
        list(pg.imap(route, requests))
        read = route.engine.work.prompt_tokens - before
    show(f"a tree of {len(prompts)} prompts ({sum(map(len, prompts)):,} tokens): tokens read / needed", read, needed, "at most 1.02")


def memory() -> None:
    def most(count: int) -> int:
        return int(subprocess.run([sys.executable, __file__, f"rss={count}"], capture_output=True, text=True, check=True).stdout)

    show("20,000 requests through imap / 2,000, most memory in KiB", most(20_000), most(2_000), "at most 1.1")


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


def show(what: str, one: float, other: float, target: str = "", *, same: bool | None = None) -> None:
    words = f" ({target})" if target else ""
    print(f"{what}: {one:,.6g} / {other:,.6g} = {one / other:.3f}{words}" + ("" if same is None else f"; as it should be: {same}"), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:] and sys.argv[1].startswith("rss="):
        rss(int(sys.argv[1][4:]))
    else:
        for name in sys.argv[1:] or ("skewed", "file", "awaited", "server", "prefix", "tree", "guess", "memory"):
            {"skewed": skewed, "file": file, "awaited": awaited, "server": server, "prefix": prefix, "tree": tree, "guess": guess, "memory": memory}[name]()
