"""Evaluations side by side: pipegen against lm-eval's own `hf` model and inspect's, on random
models of given shapes, each arm in a process of its own.

    BENCH_QUESTIONS=200 python tests/programs/bench/evals.py            # in the environment of `nox -s evals`; rows by name may follow

The arms of a row take turns, `BENCH_REPEATS` times each (once, if nothing is set), with the model
loaded before the clock starts; of lm-eval only its calls of the model are timed. Seconds are the
processor's, which a busy machine changes less; on one thread they are those of the wall. A row
shows the ratio of the medians, the memory that each arm needed beyond the loaded model, and whether
the results are equal. `smollm2` is a random model of the shape of SmolLM2-135M; `wide` has a
vocabulary of 151,936.
"""

from __future__ import annotations

import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import peak_memory

QUESTIONS, REPEATS = (
    int(os.environ.get("BENCH_QUESTIONS", "200")),
    int(os.environ.get("BENCH_REPEATS", "1")),
)
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SHAPES: dict[str, tuple[int, ...]] = {
    "smollm2": (49152, 576, 1536, 30, 9, 3),
    "wide": (151936, 256, 512, 4, 4, 2),
    "small": (4096, 256, 1024, 6, 8, 4),
}
ROWS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "choices": ("smollm2", "pg_mc", 1, {"num_fewshot": 5}),
    "wide_choices": ("wide", "pg_mc", 1, {"num_fewshot": 5}),
    "same_shots": ("smollm2", "pg_same", 1, {"num_fewshot": 5}),
    "generate": ("small", "pg_gen", 2, {"num_fewshot": 8}),
    "same_generate": ("small", "pg_same_gen", 2, {"num_fewshot": 8}),
    "rolling": ("small", "pg_ppl", 1, {}),
}
"""Of each row the model, the task, by what the questions are divided, and arguments of
`simple_evaluate`.
"""
WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "two",
    "red",
    "birds",
    "fly",
    "over",
    "green",
    "hills",
    "while",
    "rain",
    "fell",
    "softly",
    "down",
)


def write_model(folder: Path, shape: str) -> None:
    """A random Llama of that shape, with the small ChatML tokenizer of the tests."""
    import torch
    from support.small_tokenizers import chatml_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = chatml_tokenizer()
    more: dict[str, Any] = dict(zip(_SIZES, SHAPES[shape], strict=True)) | {
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,
        "eos_token_id": tokenizer.eos_token_id,
    }
    LlamaForCausalLM(
        LlamaConfig(
            **more,
            bos_token_id=None,
            pad_token_id=None,
        )
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_tasks(folder: Path) -> None:
    """Questions of about 20 words (with five examples, a context of about 600 tokens), four choices
    each, and 200 kB of text.
    """
    draw = random.Random(0)

    def words(low: int, high: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(low, high)))

    def question() -> dict[str, Any]:
        return {
            "question": words(14, 26),
            "choices": [words(3, 8) for _ in range(4)],
            "label": draw.randrange(4),
            "answer": words(1, 3),
        }

    made, shots = [question() for _ in range(QUESTIONS)], [question() for _ in range(64)]
    texts = [{"text": words(900, 1000)} for _ in range(max(1, 40 * QUESTIONS // 200))]
    for name, rows in (("questions", made), ("shots", shots), ("texts", texts)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    data = {"dataset_path": "json", "test_split": "test"}
    files = {"test": str(folder / "questions.jsonl"), "train": str(folder / "shots.jsonl")}
    asked = {
        **data,
        "dataset_kwargs": {"data_files": files},
        "fewshot_split": "train",
        "doc_to_text": "Question: {{question}}\nAnswer:",
    }
    read = {
        **data,
        "dataset_kwargs": {"data_files": {"test": str(folder / "texts.jsonl")}},
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
    }
    accuracy = [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("acc", "acc_norm")
    ]
    choice = {
        **asked,
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": accuracy,
    }
    match = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    until = {"until": ["\n", "w"], "max_gen_toks": 48, "do_sample": False}
    written = {
        **asked,
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": until,
        "metric_list": match,
    }
    tasks = {
        "pg_mc": choice,
        "pg_same": {**choice, "fewshot_config": {"sampler": "first_n"}},
        "pg_gen": written,
        "pg_same_gen": {**written, "fewshot_config": {"sampler": "first_n"}},
        "pg_ppl": {
            **read,
            "output_type": "loglikelihood_rolling",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    }
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **task}), encoding="utf-8")


SPENT: list[float] = []
"""Seconds of the processor in each call of a model: what a harness does besides is the same for
both arms.
"""


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        begun = time.process_time()
        try:
            return method(*arguments, **more)
        finally:
            SPENT.append(time.process_time() - begun)

    return call


def lm_eval_arm(
    own: bool, model: str, tasks: str, name: str, limit: int, more: dict[str, Any]
) -> Callable[[], Any]:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from pipegen.evals.lm_eval import PipegenLM

    manager = TaskManager(include_path=tasks, include_defaults=False)
    lm: Any = (
        PipegenLM(model, dtype="float32")
        if own
        else HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=8)
    )
    if own:
        lm.engine.computing.loaded()
    for method in ("generate_until", "loglikelihood", "loglikelihood_rolling"):
        setattr(lm, method, timed(getattr(lm, method)))

    def work() -> Any:
        made = simple_evaluate(
            lm, tasks=[name], task_manager=manager, bootstrap_iters=0, limit=limit, **more
        )
        numbers = {
            metric: round(float(value), 6)
            for metric, value in made["results"][name].items()
            if isinstance(value, float) and "stderr" not in metric
        }
        return [
            numbers,
            (
                [sample["resps"] for sample in made["samples"][name]]
                if name in ("pg_gen", "pg_same_gen")
                else None
            ),
        ]

    return work


def inspect_arm(own: bool, model: str, folder: str) -> Callable[[], Any]:
    from inspect_ai import Task, eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    import pipegen.evals.inspect_ai  # noqa: F401 - it registers the provider

    samples = [
        Sample(input=f"What is {number} + 1?", target=str(number + 1))
        for number in range(QUESTIONS)
    ]
    given: dict[str, Any] = (
        {"dtype": "float32", "enable_thinking": True}
        if own
        else {"model_path": model, "do_sample": False, "device": "cpu"}
    )
    # so that answers have different lengths
    config = GenerateConfig(
        max_tokens=64, stop_seqs=["s", "l"], max_connections=32 if not own else 128
    )
    loaded = get_model(
        f"pipegen/{model}" if own else "hf/local", config=config, memoize=False, **given
    )

    def work(asked: list[Sample]) -> Any:
        task = Task(dataset=MemoryDataset(asked), solver=generate(), scorer=includes())
        (log,) = evaluate(task, model=loaded, display="none", log_realtime=False, log_dir=folder)
        return [sample.output.completion for sample in log.samples or ()]

    work(samples[:2])  # what inspect loads at its first evaluation
    return functools.partial(work, samples)


def arm(row: str, own: bool, model: str, folder: str) -> None:
    """Run one arm, and print its seconds, its memory and its results."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if row == "inspect":
        work = inspect_arm(own, model, folder)
    else:
        _, name, part, more = ROWS[row]
        work = lm_eval_arm(own, model, folder, name, max(1, QUESTIONS // part), more)
    before, begun = peak_memory(), time.process_time()
    made = work()
    print(
        "ARM "
        + json.dumps(
            {
                "seconds": sum(SPENT) or time.process_time() - begun,
                "memory": peak_memory() - before,
                "made": made,
            }
        )
    )


def main(names: Sequence[str]) -> None:
    print(
        "| work | model | theirs, s | pipegen, s | ratio | theirs, MiB | pipegen, MiB | results"
        " |\n| --- | --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as root:
        tasks = Path(root) / "tasks"
        tasks.mkdir()
        write_tasks(tasks)
        for row in names:
            shape = "small" if row == "inspect" else ROWS[row][0]
            model = Path(root) / shape
            if not model.exists():
                write_model(model, shape)
            made: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
            for turn in range(2 * REPEATS):
                own = bool(turn % 2)
                asked = [
                    sys.executable,
                    __file__,
                    "arm",
                    row,
                    str(int(own)),
                    str(model),
                    str(tasks),
                ]
                done = subprocess.run(asked, capture_output=True, text=True, check=False)
                lines = [line for line in done.stdout.splitlines() if line.startswith("ARM ")]
                if not lines:
                    sys.exit(f"{row}: {done.stderr[-3000:]}")
                made[own].append(json.loads(lines[-1][4:]))
            seconds, memory = (
                {own: statistics.median(one[what] for one in arms) for own, arms in made.items()}
                for what in ("seconds", "memory")
            )
            equal = (
                "equal"
                if made[True][0]["made"] == made[False][0]["made"]
                else differing(made[False][0]["made"], made[True][0]["made"])
            )
            columns = [
                seconds[False],
                seconds[True],
                seconds[False] / seconds[True],
                memory[False],
                memory[True],
            ]
            print(
                f"| {row} | {shape} | {' | '.join(f'{value:.1f}' for value in columns)} |"
                f" {equal} |",
                flush=True,
            )


def differing(theirs: Any, own: Any) -> str:
    """How far the results part."""
    if isinstance(theirs[0], str):
        return (
            f"{sum(one == two for one, two in zip(theirs, own, strict=True))} of {len(own)} texts"
            " equal"
        )
    return f"{theirs[0]} and {own[0]}" if theirs[1] == own[1] else "texts differ"


if __name__ == "__main__":
    if sys.argv[1:2] == ["arm"]:
        arm(sys.argv[2], sys.argv[3] == "1", *sys.argv[4:6])
    else:
        main(sys.argv[1:] or [*ROWS, "inspect"])
