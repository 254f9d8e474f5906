"""lm-eval's own numbers: each task through pipegen and through lm-eval's `hf` model, on the same
weights. `nox -s evals` runs this with the real lm-eval.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import pipegen as pg
from pipegen.evals.lm_eval import PipegenLM, _seed
from pipegen.testing.fake import FakeEngine

pytestmark = pytest.mark.filterwarnings("default")  # lm-eval's own
FAMILIES = ("qwen3", "llama", "embedded")
LIMIT = 256
"""Tokens that the models take: less than two of the texts have, and more than the longest question
with its examples.
"""


def as_hf(folder: str, **settings: Any) -> Any:
    """lm-eval's `hf`; a model that takes images too is handed over loaded, since it loads only
    those that do not.
    """
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

    loaded: Any = folder
    auto: Any = AutoModelForImageTextToText
    if AutoConfig.from_pretrained(folder).model_type == "qwen3_vl":
        loaded = auto.from_pretrained(folder, dtype="float32").eval()
        settings = {
            "tokenizer": AutoTokenizer.from_pretrained(folder),
            "backend": "causal",
            **settings,
        }
    return HFLM(pretrained=loaded, device="cpu", dtype="float32", **settings)


def instance(*arguments: Any) -> Any:
    """A request of lm-eval's, as far as a model looks at it."""
    return SimpleNamespace(args=arguments)


@pytest.fixture(scope="module")
def evaluated(tasks: Path, model_of: Callable[[str], str]) -> Callable[..., dict[str, Any]]:
    """The results and samples of tasks, by pipegen or by lm-eval's `hf`."""
    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def run(
        family: str,
        name: str,
        *,
        hf: bool = False,
        batch_size: int = 8,
        settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        if hf:
            model: Any = as_hf(
                model_of(family), batch_size=batch_size, max_length=LIMIT, **(settings or {})
            )
        else:
            model = PipegenLM(
                model_of(family),
                dtype="float32",
                max_length=LIMIT,
                batch_size=batch_size,
                **(settings or {}),
            )
        made: dict[str, Any] = simple_evaluate(
            model, tasks=[name], task_manager=manager, bootstrap_iters=0, log_samples=True, **more
        )
        return made

    return run


def numbers(made: dict[str, Any], name: str) -> dict[str, float]:
    return {
        metric: float(value)
        for metric, value in made["results"][name].items()
        if isinstance(value, float) and "stderr" not in metric
    }


def answers(made: dict[str, Any], name: str) -> list[Any]:
    return [sample["resps"] for sample in made["samples"][name]]


@pytest.mark.parametrize("shots", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_generated_texts_are_those_of_hf(
    family: str, shots: int, evaluated: Callable[..., dict[str, Any]]
) -> None:
    own, other = (evaluated(family, "pg_gen", hf=hf, num_fewshot=shots) for hf in (False, True))
    assert answers(own, "pg_gen") == answers(other, "pg_gen")
    assert numbers(own, "pg_gen") == numbers(other, "pg_gen")


@pytest.mark.parametrize("shots", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_choices_are_those_of_hf(
    family: str, shots: int, evaluated: Callable[..., dict[str, Any]]
) -> None:
    own, other = (evaluated(family, "pg_mc", hf=hf, num_fewshot=shots) for hf in (False, True))
    assert numbers(own, "pg_mc") == numbers(other, "pg_mc")
    assert set(numbers(own, "pg_mc")) == {"acc,none", "acc_norm,none"}
    for mine, theirs in zip(answers(own, "pg_mc"), answers(other, "pg_mc"), strict=True):
        assert [float(pair[0][0]) for pair in mine] == pytest.approx(
            [float(pair[0][0]) for pair in theirs], rel=1e-5
        )
        assert [str(pair[0][1]) for pair in mine] == [str(pair[0][1]) for pair in theirs]


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexities_are_those_of_hf(
    family: str, evaluated: Callable[..., dict[str, Any]]
) -> None:
    own, other = (evaluated(family, "pg_ppl", hf=hf) for hf in (False, True))
    assert numbers(own, "pg_ppl") == pytest.approx(numbers(other, "pg_ppl"), rel=1e-6)
    assert len(numbers(own, "pg_ppl")) == 3


@pytest.mark.parametrize("multiturn", [False, True])
@pytest.mark.parametrize("name", ["pg_gen", "pg_mc"])
def test_chat_templates_and_few_shot_turns_are_those_of_hf(
    name: str, multiturn: bool, evaluated: Callable[..., dict[str, Any]]
) -> None:
    more = {
        "apply_chat_template": True,
        "fewshot_as_multiturn": multiturn,
        "num_fewshot": 2,
        "system_instruction": "Be brief.",
    }
    own, other = (
        evaluated("qwen3", name, hf=hf, settings={"enable_thinking": False}, **more)
        for hf in (False, True)
    )
    assert (
        answers(own, name) == answers(other, name)
        if name == "pg_gen"
        else numbers(own, name) == numbers(other, name)
    )
    assert own["samples"][name][0]["arguments"] == other["samples"][name][0]["arguments"]


def test_a_template_that_takes_no_system_turn_is_rendered_without(
    evaluated: Callable[..., dict[str, Any]], model_of: Callable[[str], str]
) -> None:
    """As lm-eval's `hf` does."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    strict = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{"
        " messages[0].content }}"
    )
    own, other = PipegenLM(model_of("qwen3")), as_hf(model_of("qwen3"))
    own.tokenizer.chat_template = other.tokenizer.chat_template = strict
    assert own.apply_chat_template(turns) == other.apply_chat_template(turns) == "Hi"


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_overlapping_stops_cut_as_hf_cuts_a_row_alone(
    family: str, evaluated: Callable[..., dict[str, Any]]
) -> None:
    """In a batch, `hf` generates on until every row has met a stop, and then cuts by the first in
    the list: its texts depend on the batch.
    """
    own, other = evaluated(family, "pg_stops"), evaluated(family, "pg_stops", hf=True, batch_size=1)
    assert answers(own, "pg_stops") == answers(other, "pg_stops")


def test_answers_are_found_in_the_cache_under_lm_evals_own_keys(
    evaluated: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """What a run that was killed has answered is not asked again: the class hands each answer over
    as it comes.
    """
    for name in ("pg_gen", "pg_mc", "pg_ppl"):
        first = evaluated("qwen3", name, use_cache=str(tmp_path / name), limit=6)
        again = evaluated("qwen3", name, hf=True, use_cache=str(tmp_path / name), limit=6)
        assert answers(first, name) == answers(again, name)
        (held,) = tmp_path.glob(f"{name}*.db")
        with sqlite3.connect(held) as cache:
            (count,) = cache.execute("select count(*) from unnamed").fetchone()
        assert count == {"pg_gen": 6, "pg_mc": 24, "pg_ppl": 6}[name]


def test_what_is_handed_over_as_it_comes_has_the_arguments_as_its_key(
    model_of: Callable[[str], str],
) -> None:
    model = PipegenLM(model_of("qwen3"), max_length=LIMIT)
    kept: list[Any] = []
    model.cache_hook = SimpleNamespace(
        add_partial=lambda kind, arguments, answer: kept.append((kind, arguments))
    )
    made = [
        type("Instance", (), {"args": arguments})()
        for arguments in (
            ("a b", {"until": ["."], "max_gen_toks": 3}),
            ("c", {"until": [], "max_gen_toks": 2}),
        )
    ]
    model.generate_until(made)
    model.loglikelihood([instance("a", " b")])
    model.loglikelihood_rolling([instance("a b c")])
    assert [kind for kind, _ in kept] == [
        "generate_until",
        "generate_until",
        "loglikelihood",
        "loglikelihood_rolling",
    ]
    assert kept[0][1] == ("a b", {"until": ["."], "max_gen_toks": 3})


def test_an_empty_context_comes_after_the_prefix_token(model_of: Callable[[str], str]) -> None:
    given = [instance("", "a b"), instance(" ", "a"), instance("a ", "b")]
    for family in FAMILIES:
        own, other = PipegenLM(model_of(family), dtype="float32"), as_hf(model_of(family))
        # without a BOS, white space alone has no token left
        for one in given if family == "llama" else (given[0], given[2]):
            (mine,), (theirs,) = own.loglikelihood([one]), other.loglikelihood([one])
            assert mine[0] == pytest.approx(theirs[0], rel=1e-5)
            assert mine[1] == theirs[1]


def test_a_request_that_fails_ends_the_evaluation_and_is_named(
    model_of: Callable[[str], str],
) -> None:
    short = pg.backends.hf(model_of("qwen3"), dtype="float32").with_options(
        {"max_prompt_tokens": 1}
    )
    model = PipegenLM(short, max_length=LIMIT)
    for ask in (
        lambda: model.generate_until([instance("a b c", {"max_gen_toks": 2})]),
        lambda: model.loglikelihood([instance("a b c", " d")]),
    ):
        with pytest.raises(pg.PromptTooLong) as failed:
            ask()
        assert "request 0: " in failed.value.__notes__[0]
        assert "a b c" in failed.value.__notes__[0]


def test_an_engine_without_a_tokenizer_of_transformers_is_refused() -> None:
    with pytest.raises(TypeError, match="no tokenizer of transformers"):
        PipegenLM(pg.route(FakeEngine("")))


def test_a_route_is_taken_as_it_is(model_of: Callable[[str], str]) -> None:
    own = pg.backends.hf(model_of("qwen3"), dtype="float32")
    assert PipegenLM(own).route is own
    with pytest.raises(TypeError, match="settings already"):
        PipegenLM(own, batch_size=3)
    with pytest.raises(ValueError, match="take token ids"):
        PipegenLM("model", backend="openai_server")


def test_generation_arguments_that_have_no_meaning_are_refused(
    model_of: Callable[[str], str],
) -> None:
    model = PipegenLM(model_of("qwen3"), max_length=LIMIT)
    for gen_kwargs, words in (
        ({"num_beams": 4}, "num_beams"),
        ({"max_gen_toks": 256}, "256 tokens in all"),
        ({"do_sample": True, "temperature": 0.5}, ""),
    ):
        one = instance("a", {"max_gen_toks": 2, **gen_kwargs})
        if words:
            with pytest.raises(ValueError, match=words):
                model.generate_until([one])
        else:
            assert len(model.generate_until([one])) == 1


def sampled(seed: int | None, **more: Any) -> dict[str, Any]:
    return {
        "until": ["\n"],
        "max_gen_toks": 6,
        "do_sample": True,
        "temperature": 1.0,
        **({} if seed is None else {"seed": seed}),
        **more,
    }


def test_what_is_sampled_repeats_after_the_same_seed(
    tasks: Path, model_of: Callable[[str], str]
) -> None:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def drawn(seed: int) -> list[Any]:
        seeds = dict.fromkeys(
            ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), seed
        )
        model = PipegenLM(model_of("qwen3"), dtype="float32", max_length=LIMIT, batch_size=4)
        how: dict[str, Any] = {
            "gen_kwargs": {"do_sample": True, "temperature": 1.0},
            "limit": 6,
            "bootstrap_iters": 0,
            "log_samples": True,
            **seeds,
        }
        return answers(
            simple_evaluate(model, tasks=["pg_gen"], task_manager=manager, **how), "pg_gen"
        )

    first = drawn(1)
    assert drawn(1) == first
    assert drawn(2) != first


def test_equal_requests_are_sampled_apart_and_greedy_ones_have_no_seed(
    model_of: Callable[[str], str],
) -> None:
    import torch

    model = PipegenLM(model_of("qwen3"), dtype="float32", max_length=LIMIT)
    for seed in (None, 7):
        torch.manual_seed(3)
        asked = [instance("a cat", sampled(seed))] * 8
        texts = model.generate_until(asked)
        assert len(set(texts)) > 1
        assert model.generate_until(asked) == texts
    torch.manual_seed(4)
    assert model.generate_until([instance("a cat", sampled(None))] * 8) != model.generate_until(
        [instance("a cat", sampled(7))] * 8
    )
    greedy = [instance("a cat", {"until": ["\n"], "max_gen_toks": 6})] * 3
    assert len(set(model.generate_until(greedy))) == 1


def test_without_torch_the_seed_is_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    random.seed(1)
    first = _seed()
    assert _seed() == first
    random.seed(2)
    assert _seed() != first


def test_min_new_tokens_is_honoured(model_of: Callable[[str], str]) -> None:
    own, seen = pg.backends.hf(model_of("qwen3"), dtype="float32"), list[Any]()
    route = own.insert(pg.pure("look", lambda result: seen.append(result) or result), after="trim")
    PipegenLM(route, max_length=LIMIT).generate_until(
        [instance("a", {"until": [], "max_gen_toks": 8, "min_new_tokens": 5})]
    )
    assert (seen[0].options.min_new_tokens, seen[0].completion_tokens >= 5) == (5, True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("min_tokens", "did you mean 'min_new_tokens'"),
        ("temprature", "did you mean 'temperature'"),
        ("num_beams", "known are"),
    ],
)
def test_another_name_of_a_generation_argument_is_told(
    name: str, words: str, model_of: Callable[[str], str]
) -> None:
    with pytest.raises(ValueError, match=words):
        PipegenLM(model_of("qwen3"), max_length=LIMIT).generate_until(
            [instance("a", {"max_gen_toks": 2, name: 1})]
        )


def test_the_arguments_of_lm_evals_other_models_are_told_their_names_here(
    model_of: Callable[[str], str],
) -> None:
    import inspect

    from lm_eval.models.huggingface import HFLM

    from pipegen.engines.settings import fields_of

    of_vllm = {
        *("tokenizer_mode", "tokenizer_revision", "quantization", "seed", "data_parallel_size"),
        *("lora_local_path", "max_lora_rank", "truncation_side"),
    }
    of_servers = {
        "model",
        "num_concurrent",
        "max_retries",
        "tokenizer_backend",
        "tokenized_requests",
    }
    own = {
        *inspect.signature(PipegenLM.__init__).parameters,
        *fields_of("hf"),
        *fields_of("vllm"),
        *fields_of("vllm_server"),
    }
    names = (
        {*inspect.signature(HFLM.__init__).parameters} - {"self", "kwargs"} | of_vllm | of_servers
    )
    for name in sorted(names - own):
        with pytest.raises(
            pg.UnknownField,
            match=rf"{name} of lm-eval's other models has another name here, or none: \w+",
        ):
            PipegenLM(model_of("qwen3"), **{name: "x"})
    with pytest.raises(pg.UnknownField, match="it is called adapter"):
        PipegenLM(model_of("qwen3"), peft="folder")
    with pytest.raises(pg.UnknownField, match="did you mean 'dtype'"):
        PipegenLM(model_of("qwen3"), dtpe="float32")
    with pytest.raises(ValueError, match="not 'causal'"):
        PipegenLM(model_of("qwen3"), backend="causal")


def test_a_continuation_that_is_too_long_is_refused(model_of: Callable[[str], str]) -> None:
    model = PipegenLM(model_of("qwen3"), max_length=8)
    with pytest.raises(ValueError, match="cannot be scored"):
        model.loglikelihood([instance("a", " b" * 30)])


def test_the_command_takes_lm_evals_own_arguments(
    tasks: Path, model_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.cli import main

    given = [
        "--model_args",
        f"pretrained={model_of('qwen3')},max_length={LIMIT}",
        *("--tasks", "pg_mc", "--include_path", str(tasks), "--limit", "3"),
    ]
    monkeypatch.setattr(sys, "argv", ["pipegen", "lm-eval", *given, "--output_path", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert [*tmp_path.rglob("results_*.json")]


@pytest.mark.parametrize("name", ["pg_gen", "pg_mc", "pg_ppl"])
def test_an_evaluation_with_a_job_goes_on_where_it_stopped(
    name: str, tmp_path: Path, evaluated: Callable[..., dict[str, Any]]
) -> None:
    whole = evaluated("qwen3", name)
    first = evaluated("qwen3", name, settings={"job": str(tmp_path / "kept")})
    # scores of other batches differ in their last digits
    assert numbers(first, name) == pytest.approx(numbers(whole, name), rel=1e-6)
    (file,) = (tmp_path / "kept").glob("*/results-0001.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:50])  # as a kill leaves it
    again = evaluated("qwen3", name, settings={"job": str(tmp_path / "kept")})
    assert numbers(again, name) == pytest.approx(numbers(whole, name), rel=1e-6)
    assert name != "pg_gen" or answers(again, name) == answers(whole, name)
    # nothing was asked twice
    assert sorted(file.read_bytes().splitlines(keepends=True)[: len(lines) // 2]) == sorted(
        lines[: len(lines) // 2]
    )
    assert sorted(line[:40] for line in file.read_bytes().splitlines()) == sorted(
        line[:40] for line in lines
    )
    assert (
        evaluated("qwen3", name, settings={"job": str(tmp_path / "kept")})["results"]
        == again["results"]
    )
    assert len(file.read_bytes().splitlines()) == len(lines)
