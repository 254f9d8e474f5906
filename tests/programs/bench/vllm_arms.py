"""vLLM worked in one way, in a process of its own, as `arms.py` does with transformers: `python
vllm_arms.py NAME WORK.json`. For the memory that each holds.

WORK.json is what `vllm_speed.py` made of its requests: the engine's arguments, the ids, the
messages, and how many tokens each makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BARE, IDS, CHATS = "LLM.generate", "token ids", "messages (template, tokenizer)"
SKEWED, SKEWED_BARE = "skewed lengths, through imap", "LLM.generate, skewed lengths"


def bare(llm: Any, ids: list[list[int]], tokens: int | list[int]) -> list[list[int]]:
    """The ids that `LLM.generate` makes; `tokens` for each row, or for all."""
    import vllm

    each = tokens if isinstance(tokens, list) else [tokens] * len(ids)
    params = [
        vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in each
    ]
    outputs = llm.generate(
        [vllm.TokensPrompt(prompt_token_ids=row) for row in ids], params, use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def generate(work: dict[str, Any]) -> tuple[Callable[[], list[Any]], Any]:
    import vllm
    from forced import Counts

    llm: Any = vllm.LLM(**work["arguments"])
    return lambda: bare(llm, work["ids"], work["tokens"]), Counts()


def pipegen(work: dict[str, Any], asked: str) -> tuple[Callable[[], list[Any]], Any]:
    from forced import Counts

    import pipegen as pg

    route = pg.backends.vllm(work["model"], **work["settings"])
    options = pg.GenerationOptions(
        max_new_tokens=work["tokens"], stop=pg.StopOptions(ignore_eos=True)
    )
    field = {IDS: "prompt_token_ids", CHATS: "messages"}[asked]

    def run() -> list[Any]:
        requests = [{field: given} for given in work["ids" if asked == IDS else "messages"]]
        return [list(slot.unwrap().token_ids) for slot in pg.run(route, requests, options)]

    return run, Counts()


ARMS = {
    BARE: generate,
    IDS: lambda work: pipegen(work, IDS),
    CHATS: lambda work: pipegen(work, CHATS),
}

if __name__ == "__main__":
    from arms import serve

    serve(ARMS)
