"""Conversations of 10 turns with text, tools and images: the ids of every turn begin with those of
the turns before, and are the same on every engine, byte for byte.

    python tests/programs/bench/same_turns.py hold hf|vllm|vllm_server|sglang_server [MODEL ...]
    python tests/programs/bench/same_turns.py compare

`hold` has 1,000 seeded conversations with each model, in float32, and writes a file of all ids for
it: .cache/same_turns/MODEL.ENGINE.jsonl, a line for each turn. `--count` says otherwise how many.
`compare` compares these files with those of the Hugging Face engine, byte for byte, and prints the
first turn of each conversation that differs. With `--calls`, the form of some answers is that of a
tool call. Servers have grammars of their own, which allow other splits of the same text into
tokens: so only HF and vLLM in this process agree then.

MODEL is `qwen3` (text and tools), `qwen3_vl` (images too), both small and random, or `embedded`.
Servers are started as tests/servers starts them; the environment names their pythons.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "servers")]

from launch import BY_IDS, server  # type: ignore[attr-defined]  # noqa: E402
from support.models import write_model  # noqa: E402
from support.talks import Talk, broken_prefixes, greedy, held  # noqa: E402

import pipegen as pg  # noqa: E402
from pipegen.records.frozen import thaw  # noqa: E402

FOLDER = HERE.parents[2] / ".cache" / "same_turns"
ENGINES = ("hf", "vllm", "vllm_server", "sglang_server")
MODELS = ("qwen3", "qwen3_vl", "embedded")
TOGETHER = 100
"""Conversations that are held at a time."""
ROOM = 4096
"""Tokens that a conversation may have."""


def model_of(name: str) -> str:
    """The folder of a model, made once for all engines."""
    if name == "embedded":
        from pipegen import embedded

        return str(embedded.path())
    folder = FOLDER / "models" / name
    if not (folder / "done").exists():
        write_model(folder, name, head_dim=32, whole_text=True)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config.get("text_config", config)["max_position_embeddings"] = ROOM
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "done").touch()
    return str(folder)


@contextmanager
def opened(engine: str, model: str) -> Iterator[pg.Route]:
    """A route to that engine in float32."""
    folder = model_of(model)
    with ExitStack() as stack:
        if engine == "hf":
            route = pg.backends.hf(folder, dtype="float32")
        elif engine == "vllm":
            os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
            small: Any = {"kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16}
            route = pg.backends.vllm(folder, dtype="float32", enforce_eager=True, **small)
        elif engine == "vllm_server":
            url = stack.enter_context(server("vllm", folder, model, *BY_IDS))
            route = pg.backends.vllm_server(folder, base_url=url)
        else:
            url = stack.enter_context(server("sglang", folder, model))
            route = pg.backends.sglang_server(folder, base_url=url)
        yield stack.enter_context(route)


def file_of(model: str, engine: str) -> Path:
    return FOLDER / f"{model}.{engine}.jsonl"


def lines(talk: Talk) -> Iterator[str]:
    """What is compared of each turn."""
    for number, result in enumerate(talk.results):
        yield json.dumps(
            {
                "id": f"{talk.name} turn {number}",
                "prompt_token_ids": result.prompt_token_ids,
                "token_ids": result.token_ids,
                "text": result.text,
                "finish": result.finish.value,
                "images": result.image_digests,
                "tool_calls": thaw(result.tool_calls),
            },
            sort_keys=True,
        )
    if talk.failure is not None:
        failed = f"{talk.name} turn {len(talk.results)}"
        yield json.dumps({"id": failed, "error": type(talk.failure).__name__})


def hold(engine: str, model: str, count: int, calls: bool) -> None:
    """Hold the conversations, and write their file."""
    done: Counter[str] = Counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    unfinished = file_of(model, engine).with_suffix(".part")
    with opened(engine, model) as route, unfinished.open("w", encoding="utf-8") as out:
        for first in range(0, count, TOGETHER):
            talks = held(
                route,
                f"{model} {first // TOGETHER}-",
                min(TOGETHER, count - first),
                greedy,
                images=model != "qwen3",
                calls=calls,
            )
            for talk in talks:
                out.writelines(f"{line}\n" for line in lines(talk))
                done["conversations"] += 1
                done["turns"] += len(talk.results)
                done["of ten turns"] += len(talk.results) == 10
                done["with images"] += any(result.image_digests for result in talk.results)
                done["with tools"] += any(
                    result.turn is not None and result.turn.request.tools
                    for result in talk.results[:1]
                )
                done["tokens sampled"] += sum(len(result.token_ids) for result in talk.results)
            done["turns that do not begin with those before"] += len(broken_prefixes(talks))
    unfinished.rename(file_of(model, engine))
    print(f"{model} on {engine}: {', '.join(f'{n:,} {what}' for what, n in done.items())}")
    if done["turns that do not begin with those before"]:
        raise SystemExit("ids of earlier turns were changed")


def compare() -> None:
    """Compare the files of all engines with those of the Hugging Face engine."""
    differ = 0
    for model in MODELS:
        if not (wanted := file_of(model, "hf")).exists():
            continue
        for engine in ENGINES[1:]:
            if (other := file_of(model, engine)).exists():
                differ += compared(model, engine, wanted.read_bytes(), other.read_bytes())
    if differ:
        raise SystemExit(f"{differ} conversations differ")


def compared(model: str, engine: str, wanted: bytes, found: bytes) -> int:
    """How many conversations differ, of which each is told with the first of its turns that does."""
    digest = hashlib.sha256(wanted).hexdigest()[:12]
    if wanted == found:
        turns = wanted.count(b"\n")
        print(f"{model}: HF = {engine}, {turns:,} turns, {len(wanted):,} bytes, {digest}")
        return 0
    ours, theirs = (
        {one["id"]: one for one in map(json.loads, file.splitlines())} for file in (wanted, found)
    )
    parted: dict[str, str] = {}
    for name, one in ours.items():
        talk = name.partition(" turn ")[0]
        other = theirs.get(name, {})
        if one != other and talk not in parted:
            parted[talk] = name
            first = next((key for key in ("error", *one) if one.get(key) != other.get(key)), "")
            print(f"{name}: {first}: HF {one.get(first)}, {engine} {other.get(first)}")
    talks = len({name.partition(" turn ")[0] for name in ours})
    print(f"{model}: HF and {engine} differ in {len(parted)} of {talks:,} conversations")
    return len(parted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=("hold", "compare"))
    parser.add_argument("engine", nargs="?", choices=ENGINES)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--calls", action="store_true")
    given = parser.parse_args()
    if given.what == "compare":
        compare()
        return
    for model in given.models:
        hold(given.engine, model, given.count, given.calls)


if __name__ == "__main__":
    main()
