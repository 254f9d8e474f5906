"""pipegen with an engine that answers at once, and what it stands beside, as `arms.py` does with
models: `python alone_arms.py NAME WORK.json`.

WORK.json names the number of requests and how many tokens each is answered with. Requests are made
as they are taken, so none of the ways holds them all.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

from arms import Run, Work, serve
from forced import Counts
from measure import ROOT

QUESTIONS = (
    "Count from 1 to 9.",
    "What is the capital of Peru?",
    "List the months of the year.",
    "Reverse: sun moon star lake",
)
WORDS = "The sun and the moon stand over the lake, and the birds are silent. " * 8
VARIABLES = {"add_generation_prompt": True, "enable_thinking": False}


def conversations(work: Work) -> Iterator[list[dict[str, str]]]:
    for number in range(work["requests"]):
        yield [
            {
                "role": "user",
                "content": f"{QUESTIONS[number % 4]} ({number}) " + "sun moon star lake " * 20,
            }
        ]


def pipegen(work: Work) -> tuple[Run, Counts]:
    """Whole runs with the Hugging Face engine without its model: it always answers with the same
    ids and the model's end token.
    """
    from returns.result import Success

    import pipegen as pg
    from pipegen.backends.hf.hf_engine import HFEngine
    from pipegen.engines.session import BatchSession
    from pipegen.records.results import Raw

    class NullEngine(HFEngine):
        in_flight = 64
        """As of any engine that only generates: a call of it waits for so many requests."""

        def generate(self, inputs: Sequence[Any]) -> Any:
            return [Success(Raw(encoded=encoded, token_ids=ids)) for encoded in inputs]

        def open(self, wake: Any, **how: Any) -> Any:
            return BatchSession(self, wake, **how)

    engine = NullEngine(pg.ModelLoadConfig(model="embedded"))
    ids = (*engine.tokenizer.encode(WORDS)[: work["answered"]], engine.eos_token_ids[0])
    route = pg.route(engine)

    def run() -> list[Any]:
        for slot in pg.imap(route, ({"messages": messages} for messages in conversations(work))):
            slot.unwrap()
        return []

    return run, Counts()


def traced(work: Work) -> tuple[Run, Counts]:
    """The same, and the most that Python's own objects took meanwhile, in MiB."""
    inner, counts = pipegen(work)

    def run() -> list[Any]:
        gc.collect()
        tracemalloc.start()
        inner()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return [held / 2**20]

    return run, counts


def transformers(work: Work, *, bare: bool = False) -> tuple[Run, Counts]:
    """Template and tokenizer as most people call them, or the Rust encoder called directly; then
    the answer's ids decoded.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT / "pipegen" / "embedded" / "weights")
    encoder, ids = (
        tokenizer.backend_tokenizer,
        tokenizer(WORDS, add_special_tokens=False).input_ids[: work["answered"]],
    )

    def run() -> list[Any]:
        for messages in conversations(work):
            text = tokenizer.apply_chat_template(messages, tokenize=False, **VARIABLES)
            (
                list(encoder.encode(text, add_special_tokens=False).ids)
                if bare
                else tokenizer(text, add_special_tokens=False)
            )
            if ids:
                tokenizer.decode(ids, skip_special_tokens=True)
        return []

    return run, Counts()


ARMS = {
    "pipegen": pipegen,
    "pipegen, traced": traced,
    "apply_chat_template + tokenizer(...)": transformers,
    "apply_chat_template + bare encoder": lambda work: transformers(work, bare=True),
    "template + tokenizer + decode": transformers,
}

if __name__ == "__main__":
    serve(ARMS)
