"""One way of generating, in a process of its own: `python arms.py NAME WORK.json`, then a line on
stdin for each run, answered by a line of JSON.

So each peer may live in an environment of its own, holds its own memory, and the runs of all can be
interleaved. WORK.json names the model's folder, the prompts (texts and their ids), the ends that
`forced.py` takes, and the sizes. An answer holds the seconds, the counts, the peak memory and what
was made.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import limits
import torch
from forced import Counts, force, up_to
from measure import peak_memory

Work = dict[str, Any]
Run = Callable[[], list[Any]]
"""Makes the ids of each row without its end token, or its text where the peer gives no ids."""


def forced(model: Any, work: Work) -> Counts:
    return force(model, work["eos"], work["banned"], counted_down=work["counted_down"])


def loaded(work: Work) -> tuple[Any, Any, Counts]:
    """The bare model and tokenizer, with lengths forced."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work["model"], padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token_id = work["eos"][0]
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32).eval()
    return model, tokenizer, forced(model, work)


def in_batches(
    work: Work, order: list[int], generate: Callable[[list[int]], list[Any]]
) -> list[Any]:
    """Fixed batches in that order, and the answers in the order of the prompts."""
    made: dict[int, Any] = {}
    for start in range(0, len(order), work["batch"]):
        rows = order[start : start + work["batch"]]
        made |= dict(zip(rows, generate(rows), strict=True))
    return [made[row] for row in range(len(order))]


def static(work: Work, *, longest_first: bool = False) -> tuple[Run, Counts]:
    """Tokenizer, `model.generate` in fixed batches, decode."""
    model, tokenizer, counts = loaded(work)
    prompts, eos = work["prompts"], set(work["eos"])
    order = (
        sorted(range(len(prompts)), key=lambda row: -len(work["ids"][row]))
        if longest_first
        else list(range(len(prompts)))
    )

    def generate(rows: list[int]) -> list[Any]:
        inputs = tokenizer(
            [prompts[row] for row in rows],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        settings = {
            "max_new_tokens": work["max_new_tokens"],
            "do_sample": False,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": work["eos"],
        }
        with torch.no_grad():
            out = model.generate(
                input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **settings
            )
        answers = [up_to(ids, eos) for ids in out[:, inputs.input_ids.shape[1] :].tolist()]
        tokenizer.batch_decode(answers)
        return answers

    return lambda: in_batches(work, order, generate), counts


def pipegen(work: Work, *, told: bool = False) -> tuple[Run, Counts]:
    """`told`: each row's `max_new_tokens` is its own length, not the longest of all."""
    import pipegen as pg

    route = pg.backends.hf(work["model"], batch_size=work["batch"], dtype="fp32")
    engine: Any = route.engine
    counts = forced(engine.computing.loaded(), work)
    options = pg.GenerationOptions(max_new_tokens=work["max_new_tokens"])
    eos = set(work["eos"])
    own = [{"options": {"max_new_tokens": length}} if told else {} for length in work["lengths"]]

    def run() -> list[Any]:
        engine.computing.prefixes.clear()  # what the last run has read would spare this one its prompts
        slots = pg.run(
            route,
            [{"prompt": prompt, **said} for prompt, said in zip(work["prompts"], own, strict=True)],
            options,
        )
        return [up_to(list(slot.unwrap().token_ids), eos) for slot in slots]

    return run, counts


def text_pipeline(work: Work) -> tuple[Run, Counts]:
    from transformers import pipeline

    model, tokenizer, counts = loaded(work)
    generator: Any = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    settings = {
        "max_new_tokens": work["max_new_tokens"],
        "do_sample": False,
        "eos_token_id": work["eos"],
        "pad_token_id": tokenizer.pad_token_id,
    }

    def run() -> list[Any]:
        answers = generator(
            work["prompts"],
            batch_size=work["batch"],
            return_full_text=False,
            add_special_tokens=False,
            **settings,
        )
        return [answer[0]["generated_text"] for answer in answers]

    return run, counts


def generate_batch(work: Work) -> tuple[Run, Counts]:
    """transformers' own continuous batching, with a cache as large as the work needs and no
    larger.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, tokenizer, counts = loaded(work)
    config: Any = GenerationConfig
    settings = config(
        max_new_tokens=work["max_new_tokens"],
        do_sample=False,
        eos_token_id=work["eos"],
        pad_token_id=tokenizer.pad_token_id,
    )
    bounded = ContinuousBatchingConfig(
        num_blocks=work["blocks"],
        page_size=32,
        max_batch_tokens=512,
        max_requests_per_batch=work["batch"],
    )
    eos = set(work["eos"])

    def run() -> list[Any]:
        ids = [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in work["prompts"]]
        made = model.generate_batch(
            ids, generation_config=settings, continuous_batching_config=bounded
        )
        answers = [up_to(list(answer.generated_tokens), eos) for answer in made.values()]
        tokenizer.batch_decode(answers)
        return answers

    return run, counts


def outlines(work: Work) -> tuple[Run, Counts]:
    import outlines as package

    model, tokenizer, counts = loaded(work)
    tokenizer.chat_template = None  # it would put plain prompts into a chat
    wrapped: Any = package.from_transformers(model, tokenizer)
    settings = {
        "max_new_tokens": work["max_new_tokens"],
        "do_sample": False,
        "eos_token_id": work["eos"],
        "pad_token_id": tokenizer.pad_token_id,
    }

    def generate(rows: list[int]) -> list[Any]:
        return list(wrapped.batch([work["prompts"][row] for row in rows], **settings))

    return lambda: in_batches(work, list(range(len(work["prompts"]))), generate), counts


def lm_eval(work: Work) -> tuple[Run, Counts]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer, counts = loaded(work)
    wrapped: Any = HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=work["batch"],
        backend="causal",
        device="cpu",
    )
    settings = {"until": [], "max_gen_toks": work["max_new_tokens"], "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, settings), row)
        for row, prompt in enumerate(work["prompts"])
    ]
    return lambda: list(wrapped.generate_until(requests, disable_tqdm=True)), counts


def ms_swift(work: Work) -> tuple[Run, Counts]:
    from swift.infer_engine import InferRequest, RequestConfig, TransformersEngine

    engine: Any = TransformersEngine(
        work["model"],
        torch_dtype=torch.float32,
        max_batch_size=work["batch"],
        model_type="qwen3",
        template_type="dummy",
    )
    engine.template.use_chat_template = False  # plain prompts, as everywhere here
    counts = forced(engine.model, work)
    settings = RequestConfig(max_tokens=work["max_new_tokens"], temperature=0)

    def run() -> list[Any]:
        requests = [
            InferRequest(messages=[{"role": "user", "content": prompt}])
            for prompt in work["prompts"]
        ]
        return [
            answer.choices[0].message.content
            for answer in engine.infer(requests, settings, use_tqdm=False)
        ]

    return run, counts


def limit(work: Work, passes: Callable[[Any, Work], Run]) -> tuple[Run, Counts]:
    model, _, counts = loaded(work)
    return passes(model, work), counts


ARMS: dict[str, Callable[[Work], tuple[Run, Counts]]] = {
    "pipegen": pipegen,
    "pipegen, lengths told": lambda work: pipegen(work, told=True),
    "static, arrival order": static,
    "static, sorted by length": lambda work: static(work, longest_first=True),
    "transformers pipeline": text_pipeline,
    "transformers generate_batch": generate_batch,
    "outlines": outlines,
    "lm-eval HFLM": lm_eval,
    "ms-swift TransformersEngine": ms_swift,
    "the limit, transformers' own passes": lambda work: limit(work, limits.transformers_passes),
    "the limit, pipegen's best passes": lambda work: limit(work, limits.best_passes),
}


def serve(arms: Mapping[str, Callable[[Work], tuple[Run, Counts]]]) -> None:
    """Make the arm that the command line names, and run it for each line on stdin."""
    name, path = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")  # peers print; the answers have a channel of their own
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    with open(path, encoding="utf-8") as file:
        work = json.load(file)
    torch.set_num_threads(work["threads"])
    run, counts = arms[name](work)
    print(json.dumps({"ready": name}), file=out, flush=True)
    for _ in sys.stdin:
        counts.clear()
        begun = time.perf_counter(), time.process_time()
        answers = run()
        wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        said = {
            "wall": wall,
            "cpu": cpu,
            "row_steps": counts.row_steps,
            "tokens": counts.tokens,
            "calls": counts.calls,
            "peak": peak_memory(),
        }
        print(json.dumps({**said, "answers": answers}), file=out, flush=True)


if __name__ == "__main__":
    serve(ARMS)
