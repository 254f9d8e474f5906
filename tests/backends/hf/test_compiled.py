"""Steps by a compiled forward: the same answers as without, compiled once, and refused or failed
with words where that cannot be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from returns.result import Success
from support.models import encoded
from transformers import AutoModelForCausalLM

import pipegen as pg
from pipegen.backends.hf.compiled import Compiled
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import StopOptions, VlmPreprocessOptions
from pipegen.records.results import Encoded, Raw
from pipegen.testing.image_files import image_file

pytestmark = pytest.mark.slow

ON = StopOptions(ignore_eos=True)
EngineOf = Callable[..., HFEngine]


class Graphs:
    """A compiler that compiles nothing: it counts what it is given to compile, and how often that
    runs.
    """

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph.forward(*args)

        return run


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """torch traces the steps, guards them and finds their shapes as always; its code generator,
    which takes long, is left out.
    """
    counting = Graphs()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    return counting


@pytest.fixture
def engine_with(folder_of: Callable[[str], Any]) -> EngineOf:
    def made(family: str = "qwen3", **settings: Any) -> HFEngine:
        return HFEngine(
            ModelLoadConfig(
                **{"model": str(folder_of(family)), "dtype": "float32", "batch_size": 3, **settings}
            )
        )

    return made


def mixed() -> list[Encoded]:
    """Rows of many lengths with options of their own: some leave early, others take their places,
    one prompt comes twice.
    """
    own: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 7, "top_p": 0.9},
        {"repetition_penalty": 1.3, "logprobs": True, "top_logprobs": 2},
        {"no_repeat_ngram_size": 2},
    ]
    lengths = ((3, 2), (9, 40), (1, 7), (5, 70), (30, 3), (2, 12), (9, 40), (4, 1), (6, 25))
    return [
        encoded(range(60, 60 + prompt), max_new_tokens=count, stop=ON, **own[at % len(own)])
        for at, (prompt, count) in enumerate(lengths)
    ]


def ids(slots: Sequence[Slot[Raw]]) -> list[tuple[int, ...]]:
    return [slot.unwrap().token_ids for slot in slots]


def logprobs(slots: Sequence[Slot[Raw]]) -> list[float]:
    return [one.logprob for slot in slots for one in slot.unwrap().logprobs or ()]


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_vl"])
def test_answers_are_those_of_steps_that_are_not_compiled(
    engine_with: EngineOf, graphs: Graphs, family: str
) -> None:
    plain, compiled = engine_with(family), engine_with(family, compile=True)
    for rows in (mixed(), mixed()[::-1]):
        answers, expected = compiled.generate(rows), plain.generate(rows)
        assert ids(answers) == ids(expected)
        assert logprobs(answers) == pytest.approx(logprobs(expected), abs=1e-4)
    work = compiled.work
    assert graphs.ran == work.steps == plain.work.steps
    assert work.row_steps == work.needed_row_steps
    assert graphs.compiled == 2  # for several rows, and for one


def test_weights_of_another_dtype_and_plugins_go_with_it(
    engine_with: EngineOf, graphs: Graphs
) -> None:
    banning = pg.Plugin(
        name="no 61",
        logits_processor=lambda context: (
            lambda ids, scores: scores.index_fill(1, torch.tensor([61]), -torch.inf)
        ),
    )
    plain, compiled = (
        engine_with(dtype="bfloat16", compile=asked).with_plugin(banning) for asked in (False, True)
    )
    answers, expected = ids(compiled.generate(mixed())), ids(plain.generate(mixed()))
    assert [row[0] for row in answers] == [row[0] for row in expected]
    assert [len(row) for row in answers] == [len(row) for row in expected]
    assert graphs.ran == compiled.work.steps
    assert not any(61 in row for row in answers)


def test_an_adapter_goes_with_it(
    engine_with: EngineOf, folder_of: Callable[[str], Any], graphs: Graphs, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(folder_of("qwen3"))
    adapter: Any = peft.get_peft_model(
        base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    adapter.save_pretrained(tmp_path)
    plain, compiled = (engine_with(adapter=str(tmp_path), compile=asked) for asked in (False, True))
    answers = ids(compiled.generate(mixed()))
    assert answers == ids(plain.generate(mixed()))
    assert answers != ids(engine_with().generate(mixed()))
    assert graphs.ran == compiled.work.steps


def test_rows_with_images_take_compiled_steps_too(engine_with: EngineOf, graphs: Graphs) -> None:
    plain, compiled = engine_with("qwen3_vl"), engine_with("qwen3_vl", compile=True)
    source = ImageSource(data=image_file(width=64, height=40))

    def rows(engine: HFEngine) -> list[Encoded]:
        image = engine.prepare_image(source, VlmPreprocessOptions(), 0).unwrap()
        seen = [60, *[engine._checkpoint.image_token_id] * image.tokens, 70]
        return [
            encoded(seen, images=[image], max_new_tokens=5),
            encoded([80, 81], max_new_tokens=9, stop=ON),
            encoded([*seen, 71], images=[image]),
        ]

    assert ids(compiled.generate(rows(compiled))) == ids(plain.generate(rows(plain)))
    assert graphs.ran == compiled.work.steps > 0


def test_rows_go_on_where_the_memory_ran_out(
    engine_with: EngineOf, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plain, step = engine_with(compile=True), engine_with(), Compiled.step

    def full(self: Compiled, tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(tokens) > 2 and graphs.ran > 5:
            raise torch.OutOfMemoryError
        return step(self, tokens, *args, **kwargs)

    monkeypatch.setattr(Compiled, "step", full)
    assert ids(engine.generate(mixed())) == ids(plain.generate(mixed()))


def test_steps_are_really_compiled_and_give_the_same(folder_of: Callable[[str], Any]) -> None:
    """By torch's own compiler, which makes C++ of them."""
    plain, compiled = (
        pg.backends.hf(folder_of("qwen3"), dtype="float32", batch_size=2, compile=asked)
        for asked in (False, True)
    )
    requests = [
        {"prompt": text, "options": {"max_new_tokens": 6, "ignore_eos": True}}
        for text in ("a", "the sun and the moon", "one", "two")
    ]
    answers, expected = pg.run(compiled, requests), pg.run(plain, requests)
    assert [slot.unwrap().token_ids for slot in answers] == [
        slot.unwrap().token_ids for slot in expected
    ]


def test_models_compile_side_by_side(engine_with: EngineOf, graphs: Graphs) -> None:
    """How often torch compiles at most is counted for each model apart."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(3):
            assert all(
                isinstance(slot, Success) for slot in engine_with(compile=True).generate(mixed())
            )
    assert graphs.compiled == 6


def failed(engine: HFEngine) -> pg.BackendFailed:
    with pytest.raises(CallFailed) as failure:
        engine.generate(mixed())
    assert isinstance(failure.value.error, pg.BackendFailed)
    return failure.value.error


def test_compiling_again_and_again_fails_the_call(engine_with: EngineOf, graphs: Graphs) -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        error = failed(engine_with(compile=True))
    assert "recompile_limit" in error.message
    assert "leave compile out" in error.hint


def test_without_a_compiler_the_call_fails_and_says_what_to_install(engine_with: EngineOf) -> None:
    with torch._inductor.config.patch(
        {"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}
    ):
        error = failed(engine_with(compile=True))
    assert "C++ compiler" in error.hint


@pytest.mark.parametrize("family", ["gemma3", "lfm2", "qwen3_next", "falcon_h1"])
def test_other_layers_than_full_attention_are_refused(engine_with: EngineOf, family: str) -> None:
    with pytest.raises(
        pg.CallFailed,
        match=r"ModelLoadConfig\.compile is for models whose layers all have full attention",
    ):
        engine_with(family, compile=True).generate(mixed())
