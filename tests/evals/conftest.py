"""Local tasks of lm-eval (a generation, a multiple choice and a perplexity, on JSON files made
here), and inspect's provider on a fake engine.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import write_model

import pipegen as pg
from pipegen.testing.fake import FakeEngine

WORDS = (
    *("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "red", "birds", "fly", "over"),
    *("green", "hills", "while", "rain", "fell", "softly", "down"),
)


def _lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tasks `pg_gen`, `pg_stops`, `pg_mc` and `pg_ppl`."""
    root, draw = tmp_path_factory.mktemp("tasks"), random.Random(0)

    def words(low: int, high: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(low, high)))

    questions = [
        {
            "question": words(3, 30),
            "answer": words(1, 4),
            "choices": [words(1, 5) for _ in range(4)],
            "label": draw.randrange(4),
        }
        for _ in range(30)
    ]
    texts = [{"text": words(20, 700)} for _ in range(8)]
    data = {"dataset_path": "json", "test_split": "test", "fewshot_split": "test"}
    asked = {
        "dataset_kwargs": {"data_files": {"test": _lines(root / "questions.jsonl", questions)}}
    }
    read = {"dataset_kwargs": {"data_files": {"test": _lines(root / "texts.jsonl", texts)}}}
    text = {"doc_to_text": "Question: {{question}}\nAnswer:"}
    match = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    generated = {
        **data,
        **asked,
        **text,
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "metric_list": match,
    }
    choice = {
        **data,
        **asked,
        **text,
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
    }
    rolled = {
        **data,
        **read,
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
    }
    # No stop is a part of a special token's text: `hf` ends a whole batch there once every row had
    # one, and does not cut the text.
    written = {
        "pg_gen": {
            **generated,
            "generation_kwargs": {"until": ["\n", "w"], "max_gen_toks": 24, "do_sample": False},
        },
        "pg_stops": {
            **generated,
            "generation_kwargs": {
                "until": ["qbw", "bw", "w", "b"],
                "max_gen_toks": 24,
                "do_sample": False,
            },
        },
        "pg_mc": {
            **choice,
            "metric_list": [
                {"metric": name, "aggregation": "mean", "higher_is_better": True}
                for name in ("acc", "acc_norm")
            ],
        },
        "pg_ppl": {
            **rolled,
            "metric_list": [
                {"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")
            ],
        },
    }
    for name, task in written.items():
        (root / f"{name}.yaml").write_text(json.dumps({"task": name, **task}), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a family's model; that of the embedded model for `embedded`."""
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def made(family: str) -> str:
        if family == "embedded":
            from pipegen.embedded import path

            return str(path())
        return str(write_model(root / family, family))

    return made


@pytest.fixture
def api() -> Callable[..., Any]:
    """The provider on a fake engine that answers what it is told."""

    def made(script: Any, **more: Any) -> Any:
        from pipegen.evals.inspect_ai import PipegenAPI

        api = PipegenAPI("embedded")
        api.route = pg.route(FakeEngine(script, **more))
        api.engine = api.route.engine
        return api

    return made
