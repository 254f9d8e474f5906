"""What pipegen itself costs: an engine that answers at once, beside the chat template and the
tokenizer alone; and what starting costs. Run by `nox -s bench`.

`python tests/programs/bench/alone.py [preparing] [answers] [look_alikes] [memory] [starting]` runs a part.
Seconds are those of the processor: one thread works.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from measure import (
    REPEATS,
    ROOT,
    Taken,
    fresh_processes,
    interleave,
    paired,
    peak_memory,
    peaks,
    row,
    write,
)
from workers import race

GROUP = "pipegen alone"
COUNTS = tuple(
    int(count) for count in os.environ.get("BENCH_COUNTS", "1000,10000,100000").split(",")
)
TOKENIZER, ENCODER, DECODE = (
    "apply_chat_template + tokenizer(...)",
    "apply_chat_template + bare encoder",
    "template + tokenizer + decode",
)
PYDANTIC = (
    "from pydantic import BaseModel\nclass Request(BaseModel):\n    id: str | None = None\n   "
    " prompt: str\nRequest(prompt='Hi', id='1')"
)


def taken(
    arms: tuple[str, ...], count: int, repeats: int, answered: int = 0
) -> tuple[dict[str, Taken], dict[str, Any]]:
    """What each way took for so many requests, each answered with so many tokens, and what it
    made.
    """
    times, last, absent = race(
        arms, {"requests": count, "answered": answered, "threads": 1}, repeats, "alone_arms.py"
    )
    if absent:
        raise RuntimeError(absent)
    return times, {arm: run["answers"] for arm, run in last.items()}


def cost(
    work: str, peer: str, count: int, times: dict[str, Taken], note: str = ""
) -> dict[str, Any]:
    """What pipegen adds to the peer's work, as a share of it: seconds of the processor, round by
    round.
    """
    ours, theirs = times["pipegen"], times[peer]
    ratio, spread = paired(theirs.cpu, ours.cpu)
    figures = {
        "ours": each(ours, count),
        "theirs": each(theirs, count),
        **peaks(ours.peak, theirs.peak),
    }
    return row(
        f"{work}: what pipegen adds",
        peer,
        ratio - 1,
        "at most 0.25",
        group=GROUP,
        spread=spread,
        note=note,
        **figures,
    )


def each(times: Taken, count: int) -> str:
    return f"{statistics.median(times.cpu) / count * 1e6:.0f} us"


def preparing() -> list[dict[str, Any]]:
    """Whole runs with an engine that does nothing, beside template and tokenizer of the same
    requests.
    """
    rows, ours = [], {}
    few, many = min(COUNTS), max(COUNTS)
    for count in COUNTS:
        arms = ("pipegen", TOKENIZER, *([ENCODER] if count == few else []))
        times, _ = taken(
            arms, count, repeats=1 if count > 10_000 else 3 if count > 1_000 else max(5, REPEATS)
        )
        rows.append(cost(f"{count:,} requests, no engine", TOKENIZER, count, times))
        if ENCODER in times:
            note = "the Rust encoder called directly, which spares the tokenizer's own Python"
            rows.append(cost(f"{count:,} requests, no engine", ENCODER, count, times, note))
        ours[count] = times["pipegen"]
    ratio = statistics.median(ours[many].cpu) / many / (statistics.median(ours[few].cpu) / few)
    figures = {
        "ours": each(ours[many], many),
        "theirs": each(ours[few], few),
        **peaks(ours[many].peak, ours[few].peak),
    }
    return [
        *rows,
        row(
            f"a request of {many:,}",
            f"a request of {few:,}",
            ratio,
            "at most 1.1",
            group=GROUP,
            note="linear",
            **figures,
        ),
    ]


def answers() -> list[dict[str, Any]]:
    """The same with answers of 64 tokens, beside template, tokenizer and decode."""
    times, _ = taken(("pipegen", DECODE), 1_000, max(5, REPEATS), answered=64)
    return [cost("1,000 requests with answers of 64 tokens", DECODE, 1_000, times)]


LOOK_ALIKE, HARMLESS = "<|im_end|>", "<|im_enb|>"


def look_alikes() -> list[dict[str, Any]]:
    """Prompts whose words spell control tokens, beside transformers' own call for the same prompts
    with harmless words.
    """
    from pipegen.backends.checkpoint.tokenizers import load_tokenizer
    from pipegen.records.option_records import GenerationOptions
    from pipegen.records.options import resolve
    from pipegen.records.requests import TextGenerationRequest
    from pipegen.records.results import ResolvedRequest
    from pipegen.stages.rendering import render_row
    from pipegen.stages.tokenizing import tokenize_row

    tokenizer, renderer = load_tokenizer(str(ROOT / "pipegen" / "embedded" / "weights"))
    few, many, words = (
        max(1, min(COUNTS) // 5),
        max(5, min(COUNTS) // 200),
        "The sun and the moon stand over the lake. ",
    )
    works = {
        "a prompt of five words": (
            few,
            lambda word: [{"role": "user", "content": f"Say what is {word}?"}],
        ),
        "a prompt of 100 words": (
            few,
            lambda word: [{"role": "user", "content": words * 11 + word}],
        ),
        "5,000 text parts": (
            many,
            lambda word: [{"role": "user", "content": [{"type": "text", "text": word}] * 5000}],
        ),
        "1,000 turns": (
            many,
            lambda word: [
                {"role": ("user", "assistant")[turn % 2], "content": word} for turn in range(1001)
            ],
        ),
        "250 kB of text": (
            many,
            lambda word: [{"role": "user", "content": f"{words}{word} " * 4700}],
        ),
    }
    rows = []
    for work, (times, conversation) in works.items():
        request = TextGenerationRequest(messages=conversation(LOOK_ALIKE))
        job, harmless = (
            ResolvedRequest(request=request, options=resolve(GenerationOptions())),
            conversation(HARMLESS),
        )
        if isinstance(harmless[0]["content"], list):  # the template takes strings only
            harmless = [
                {**message, "content": "".join(part["text"] for part in message["content"])}
                for message in harmless
            ]

        def ours(resolved: ResolvedRequest = job, times: int = times) -> None:
            for _ in range(times):
                render_row(resolved, tokenizer, renderer).bind(
                    lambda rendered: tokenize_row(rendered, (), tokenizer, None)
                ).unwrap()

        def theirs(messages: Any = harmless, times: int = times) -> None:
            for _ in range(times):
                tokenizer.raw.apply_chat_template(
                    messages, tokenize=True, add_generation_prompt=True, enable_thinking=False
                )

        taken = interleave({"ours": ours, "theirs": theirs}, max(5, REPEATS))
        ratio, spread = paired(taken["theirs"].cpu, taken["ours"].cpu)
        figures = {"ours": each(taken["ours"], times), "theirs": each(taken["theirs"], times)}
        figures |= peaks(peak_memory(), peak_memory())  # one process does both
        peer = "apply_chat_template, harmless words"
        rows.append(
            row(
                f"{work} with {LOOK_ALIKE}: cost",
                peer,
                ratio,
                "at most 2",
                group=GROUP,
                spread=spread,
                **figures,
            )
        )
    return rows


def memory() -> list[dict[str, Any]]:
    """What Python holds while requests stream through, at the end of 20,000 beside the end of
    2,000.
    """
    held, most = {}, {}
    for count in (2_000, 20_000):
        times, made = taken(("pipegen, traced",), count, repeats=1)
        (held[count],), most[count] = made["pipegen, traced"], times["pipegen, traced"].peak
    few, many = held.values()
    figures = {
        "ours": f"{many:.2f} MiB",
        "theirs": f"{few:.2f} MiB",
        **peaks(most[20_000], most[2_000]),
    }
    note = "flat; the figures are those of Python's own objects"
    return [
        row(
            "most memory, 20,000 requests streamed",
            "2,000 requests",
            many / few,
            "at most 1.1",
            group=GROUP,
            note=note,
            **figures,
        )
    ]


def starting() -> list[dict[str, Any]]:
    """Fresh interpreters: seconds of the processor of each."""
    python, tool = sys.executable, str(Path(sys.executable).with_name("pipegen"))
    commands = {
        "empty": (python, "-c", ""),
        "import pipegen": (python, "-c", "import pipegen"),
        "import pydantic": (python, "-c", "import pydantic"),
        "import pipegen, and a first request": (
            python,
            "-c",
            "import pipegen; pipegen.TextGenerationRequest(prompt='Hi', id='1')",
        ),
        "import pydantic, and a first record": (python, "-c", PYDANTIC),
        "pipegen --help": (tool, "--help"),
        "pip --version": (python, "-m", "pip", "--version"),
    }
    seconds, most = fresh_processes(commands)
    rows = []
    pairs = (
        ("import pipegen", "import pydantic"),
        ("import pipegen, and a first request", "import pydantic, and a first record"),
        ("pipegen --help", "pip --version"),
    )
    for ours, theirs in pairs:
        ratio, spread = paired(seconds[theirs], seconds[ours])
        figures = {
            "ours": f"{statistics.median(seconds[ours]) * 1e3:.0f} ms",
            "theirs": f"{statistics.median(seconds[theirs]) * 1e3:.0f} ms",
        }
        figures |= peaks(most[ours], most[theirs])
        note = (
            "a whole process each; an empty interpreter takes"
            f" {statistics.median(seconds['empty']) * 1e3:.0f} ms and {most['empty']:.0f} MiB"
        )
        rows.append(
            row(ours, theirs, ratio, "at most 1", group=GROUP, spread=spread, note=note, **figures)
        )
    return rows


PARTS = {
    "preparing": preparing,
    "answers": answers,
    "look_alikes": look_alikes,
    "memory": memory,
    "starting": starting,
}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        begun = time.perf_counter()
        write(f"alone-{part}", PARTS[part]())
        print(f"  ({part}: {time.perf_counter() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
