"""vLLM in this process: 256 prompts, and 1,000 skewed rows, through pipegen beside the bare
`LLM.generate` with the same ids, on one engine.

Run by `nox -s bench`.

`python tests/programs/bench/vllm_engine.py`, by an interpreter that has vLLM. What each way holds is
measured afterwards, in processes of their own with an engine each. Where vLLM is not installed, the
rows say so.
"""

from __future__ import annotations

import dataclasses

from measure import REPEATS, interleave, row, speed, write
from vllm_arms import BARE, CHATS, IDS, SKEWED, SKEWED_BARE
from vllm_speed import PROMPTS, ROWS, TOKENS, sides
from workers import race

GROUP = "vLLM, in process"


def main() -> None:
    skewed = f"{ROWS:,} rows of 12 to 140 tokens, embedded model: {SKEWED}"
    works = {
        kind: f"{PROMPTS} prompts of {TOKENS} tokens, embedded model: {kind}"
        for kind in (IDS, CHATS)
    }
    try:
        made, close, work = sides("embedded")
    except ImportError as refusal:
        wanted = [
            *((asked, "at least 0.97") for asked in works.values()),
            (skewed, "at least 0.95"),
        ]
        write(
            "vllm",
            [
                row(asked, BARE, None, target, group=GROUP, note=f"not measured: {refusal}")
                for asked, target in wanted
            ],
        )
        return
    taken = interleave(made, REPEATS)
    close()
    alone, last, absent = race([BARE, IDS, CHATS], work, 1, "vllm_arms.py")
    if absent:
        raise RuntimeError(absent)
    if (
        last[IDS]["answers"] != last[BARE]["answers"]
        or last[CHATS]["answers"] != last[BARE]["answers"]
    ):
        raise AssertionError("alone, the ways did not make the same ids")
    taken = {
        kind: dataclasses.replace(times, peak=alone[kind].peak) if kind in alone else times
        for kind, times in taken.items()
    }
    notes = {
        IDS: "",
        CHATS: "beside bare ids: the templates and the tokenizer are pipegen's to pay",
    }
    rows = [
        speed(asked, BARE, taken[kind], taken[BARE], 0.97, group=GROUP, note=notes[kind])
        for kind, asked in works.items()
    ]
    write(
        "vllm", [*rows, speed(skewed, BARE, taken[SKEWED], taken[SKEWED_BARE], 0.95, group=GROUP)]
    )


if __name__ == "__main__":
    main()
