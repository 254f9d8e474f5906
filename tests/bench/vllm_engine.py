"""vLLM in this process: 256 prompts through pipegen, beside the bare `LLM.generate` with the same ids, on one engine. Run by `nox -s bench`.

Where vLLM is not installed, the rows say so.
"""

from __future__ import annotations

from measure import REPEATS, interleave, row, speed, write
from vllm_speed import CHATS, IDS, PROMPTS, TOKENS, sides

GROUP = "vLLM, in process"


def main() -> None:
    works = {kind: f"{PROMPTS} prompts of {TOKENS} tokens, embedded model: {kind}" for kind in (IDS, CHATS)}
    try:
        made, close = sides("embedded")
    except ImportError as refusal:
        write("vllm", [row(work, "LLM.generate", None, "at least 0.97", group=GROUP, note=f"not measured: {refusal}") for work in works.values()])
        return
    taken = interleave(made, REPEATS)
    close()
    notes = {IDS: "", CHATS: "beside bare ids: the templates and the tokenizer are pipegen's to pay"}
    write("vllm", [speed(work, "LLM.generate", taken[kind], taken["bare"], 0.97, group=GROUP, note=notes[kind]) for kind, work in works.items()])


if __name__ == "__main__":
    main()
