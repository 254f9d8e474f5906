"""The check of first steps: it finds what is wrong before any answer, takes a slower way where one is
right, and costs nothing the next time.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.models import FAMILIES, HYBRIDS, VARIANTS, encoded, write_model

import pipegen as pg
from pipegen.backends.checkpoint import verdicts
from pipegen.backends.hf import cache_argument, first_steps, running_batch
from pipegen.backends.hf.first_steps import WAYS, check_first_steps, first_way
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.option_groups import StopOptions

LEFT = StopOptions(ignore_eos=True)
INPUTS = [encoded(range(60, 60 + length), max_new_tokens=4, stop=LEFT) for length in (7, 4, 9)]


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


def new_engine(folder: Path, **settings: Any) -> HFEngine:
    return HFEngine(ModelLoadConfig(model=str(folder), dtype="float32", **settings))


def way(engine: HFEngine) -> first_steps.Way:
    with torch.no_grad():
        return check_first_steps(
            engine.computing.weights.model(), engine._checkpoint, engine.computing.pixels
        )


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of models that are checked."""
    seen: list[str] = []

    def check(model: Any, *rest: Any) -> first_steps.Way:
        seen.append(type(model).__name__)
        return check_first_steps(model, *rest)

    monkeypatch.setattr(first_steps, "check_first_steps", check)
    return seen


@pytest.mark.parametrize("family", [*FAMILIES, *HYBRIDS, *VARIANTS])
def test_families_that_are_right_are_read_together(
    family: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(family)
    expected = WAYS[0]
    assert way(new_engine(folder)) == expected
    assert way(HFEngine(ModelLoadConfig(model=str(folder), dtype="bfloat16"))) == expected


def test_a_cache_under_an_unknown_name_is_reported_before_any_answer(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cache_argument.cache_argument(transformers.Qwen3ForCausalLM)
    others = tuple(other for other in cache_argument._CACHES if other != name)
    monkeypatch.setattr(cache_argument, "_CACHES", others)
    error = failure(new_engine(folder_of("qwen3")))
    assert f"Qwen3ForCausalLM gives its cache back as {name!r}, and its forward takes" in error[0]
    assert "`pipegen doctor`" in error[1]


def test_a_cache_that_is_handed_over_wrongly_is_reported_before_any_answer(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loop does that finds no cache: each step reads the whole row behind a full one."""
    step = running_batch.StaticBatch.step

    def whole(self: Any, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        self._cache_name = None
        return step(self, model, tokens)

    monkeypatch.setattr(running_batch, "can_drop_rows", lambda *_: False)
    monkeypatch.setattr(running_batch, "without_cache", lambda state: state)
    monkeypatch.setattr(running_batch.StaticBatch, "step", whole)
    message, hint = failure(new_engine(folder_of("qwen3")))
    assert "even of a row that is read alone: the cache differs, and the logits by" in message
    assert f"transformers {transformers.__version__}, torch {torch.__version__}" in message
    assert "self_check=False" in hint


def test_steps_that_cannot_be_run_are_reported(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("of the family's own code")

    monkeypatch.setattr(running_batch, "_last", broken)
    message, _ = failure(new_engine(folder_of("qwen3")))
    assert "they cannot be run: ZeroDivisionError: of the family's own code" in message


def test_a_model_whose_forward_is_wrong_from_its_first_token_on_is_reported(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = running_batch._last
    monkeypatch.setattr(running_batch, "_last", lambda outputs, like: last(outputs, like).flip(-1))
    message, _ = failure(new_engine(folder_of("qwen3")))
    assert "attention or positions differ" in message


def failure(engine: HFEngine) -> tuple[str, str]:
    """What a call gives where the model is refused: its message and its hint."""
    with pytest.raises(pg.CallFailed) as raised:
        engine.generate(INPUTS)
    error = raised.value.error
    assert isinstance(error, pg.BackendFailed)
    return error.message, error.hint


def test_a_model_that_sees_later_tokens_is_refused(folder_of: Callable[[str], Path]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of("qwen3"))
    tokenizer.pad_token = tokenizer.eos_token
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = transformers.BertLMHeadModel(config)
    with pg.backends.hf(model, tokenizer=tokenizer) as route:
        slot = pg.run(route, [{"prompt_token_ids": [5, 6, 7], "options": {"max_new_tokens": 2}}])[0]
    assert "BertLMHeadModel is no causal model" in slot.failure().message


def test_a_masked_model_is_refused_before_its_weights_are_read(
    tmp_path: Path, folder_of: Callable[[str], Path]
) -> None:
    config = transformers.BertConfig(vocab_size=256, architectures=["BertForMaskedLM"])
    transformers.AutoTokenizer.from_pretrained(folder_of("qwen3")).save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    message, _ = failure(new_engine(tmp_path, self_check=False))
    assert "(bert) fills masks in a text" in message


def test_rows_that_are_wrong_with_padding_are_read_with_those_of_their_length(
    folder_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = new_engine(folder_of("llama"), self_check=False).generate(INPUTS)
    inputs = running_batch.batch_inputs

    def unmasked(*given: Any) -> Any:
        made = inputs(*given)
        return {**made, "attention_mask": torch.ones_like(made["attention_mask"])}

    monkeypatch.setattr(running_batch, "batch_inputs", unmasked)
    engine = new_engine(folder_of("llama"), prefix_memory_bytes=0)
    assert engine.generate(INPUTS) == right
    assert engine.computing.traits.even
    assert not engine.computing.traits.alone
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (
        "rows of one length are read together, by transformers' own attention and cache, which"
        in (record.getMessage())
    )
    assert "the logits of padded rows differ" in record.getMessage()
    engine.generate(INPUTS)
    assert len(caplog.records) == 1  # reported once


@pytest.fixture
def mixed() -> Iterator[pytest.MonkeyPatch]:
    """Rows of a pass have a part of each other's logits; undone with what the fixture gives."""
    last = running_batch._last

    def some(outputs: Any, like: torch.Tensor) -> torch.Tensor:
        logits = last(outputs, like)
        return logits + 0.1 * (logits.mean(0) - logits)

    patch = pytest.MonkeyPatch()
    patch.setattr(running_batch, "_last", some)
    yield patch
    patch.undo()


def test_rows_that_depend_on_others_are_read_one_by_one(
    folder_of: Callable[[str], Path],
    mixed: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = new_engine(folder_of("llama"))
    answers = engine.generate(INPUTS)
    assert engine.computing.traits.alone
    assert "rows are read one by one" in caplog.records[0].getMessage()
    assert "of a row that others are read with differ" in caplog.records[0].getMessage()
    assert engine.work.steps == engine.work.row_steps
    mixed.undo()
    assert new_engine(folder_of("llama")).generate(INPUTS) == answers


def test_where_grouped_heads_are_wrong_transformers_own_attention_computes(
    folder_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = new_engine(folder_of("llama"), self_check=False).generate(INPUTS)

    def wrong(module: Any, query: torch.Tensor, *rest: Any, **more: Any) -> Any:
        out, weights = plain(module, query, *rest, **more)
        return (out.flip(-1) if query.shape[2] == 1 else out), weights

    plain = transformers.AttentionInterface()[first_steps.attention.NAME]
    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping, first_steps.attention.NAME, wrong
    )
    engine = new_engine(folder_of("llama"))
    assert engine.generate(INPUTS) == right
    assert engine.computing.loaded().config._attn_implementation == "sdpa"
    assert "all rows are read together, by transformers' own attention" in caplog.text
    assert "where query heads are grouped differ" in caplog.text


def test_a_verdict_is_kept_for_the_model_and_the_versions(
    folder_of: Callable[[str], Path],
    checks: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = folder_of("qwen3")
    new_engine(folder).generate(INPUTS)
    files = {file.name: file.stat().st_ino for file in verdicts.checks().iterdir()}
    new_engine(folder).generate(INPUTS)
    assert checks == ["Qwen3ForCausalLM"]
    # it was read, and not written again
    assert {file.name: file.stat().st_ino for file in verdicts.checks().iterdir()} == files
    HFEngine(ModelLoadConfig(model=str(folder), dtype="bfloat16")).generate(INPUTS)
    assert len(checks) == 2  # of another type it is another model
    other = write_model(tmp_path / "other", "qwen3", seed=1)
    new_engine(other).generate(INPUTS)
    assert len(checks) == 3
    monkeypatch.setattr(verdicts, "installed", lambda package: "newer")
    new_engine(folder).generate(INPUTS)
    assert len(checks) == 4


def test_a_failure_is_not_kept(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = running_batch._last
    with monkeypatch.context() as patched:
        patched.setattr(running_batch, "_last", lambda *given: last(*given).flip(-1))
        failure(new_engine(folder_of("qwen3")))
    assert all(pg.is_ok(slot) for slot in new_engine(folder_of("qwen3")).generate(INPUTS))


def test_a_slower_way_is_kept_and_reported_at_each_load(
    folder_of: Callable[[str], Path],
    checks: list[str],
    mixed: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = new_engine(folder_of("qwen3"))
    first.generate(INPUTS)
    mixed.undo()
    second = new_engine(folder_of("qwen3"))
    second.generate(INPUTS)
    assert len(checks) == 1
    assert [engine.computing.traits.alone for engine in (first, second)] == [True, True]
    assert caplog.text.count("rows are read one by one") == 2


def test_it_is_made_once_for_an_engine_and_its_plugins(
    folder_of: Callable[[str], Path], checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_steps, "kept", lambda *_, **__: None)
    engine = new_engine(folder_of("qwen3"))
    for each in (engine, engine.with_plugin(pg.Plugin(name="nothing")), engine):
        each.generate(INPUTS)
        engine.close()
    assert len(checks) == 1


def test_a_setting_leaves_it_out(folder_of: Callable[[str], Path], checks: list[str]) -> None:
    engine = new_engine(folder_of("qwen3"), self_check=False)
    assert all(pg.is_ok(slot) for slot in engine.generate(INPUTS))
    assert checks == []


def test_the_weights_of_a_model_in_memory_may_change_and_nothing_is_kept_of_them(
    folder_of: Callable[[str], Path], checks: list[str], tmp_path: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder_of("qwen3"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of("qwen3"))
    for check in (True, True, False):
        with pg.backends.hf(model, tokenizer=tokenizer, self_check=check) as route:
            assert pg.is_ok(pg.run(route, [{"prompt": "a", "options": {"max_new_tokens": 2}}])[0])
    assert checks == ["Qwen3ForCausalLM"] * 2
    assert not verdicts.checks().exists()


def test_rows_that_a_model_does_not_take_are_not_checked_and_that_is_logged(
    tmp_path: Path, folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path / "short", "llama")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 6}), encoding="utf-8"
    )
    caplog.set_level(logging.INFO)
    short = encoded([60, 61], max_new_tokens=2, stop=LEFT)
    assert pg.is_ok(new_engine(folder).generate([short])[0])
    assert "are not checked: it takes rows of 6 tokens at most" in caplog.text


def test_what_a_short_row_cannot_show_is_decided_by_the_configuration() -> None:
    assert first_way(transformers.Qwen3Config()) == WAYS[0]
    assert first_way(transformers.MistralConfig(sliding_window=8)) == WAYS[0]
    assert first_way(transformers.Llama4TextConfig()).rows == "of one length"
    assert first_way(transformers.DeepseekV32Config()).rows == "of one length"


def test_models_that_ask_for_the_name_of_their_attention_keep_it() -> None:
    asks = first_steps.attention.asks_for_sdpa
    assert asks(transformers.DeepseekV32ForCausalLM)
    assert asks(transformers.GlmMoeDsaForCausalLM)
    assert asks(transformers.FalconForCausalLM)
    assert not asks(transformers.Qwen3ForCausalLM)
    assert not asks(transformers.GPT2LMHeadModel)  # it asks for `eager`
    assert not asks(transformers.Qwen3VLForConditionalGeneration)


def test_a_file_of_verdicts_that_is_broken_is_as_if_it_were_not_there(
    folder_of: Callable[[str], Path], checks: list[str]
) -> None:
    for text in ("", "[1]", '{"rows": "sideways"}', "x" * 9999):
        for file in verdicts.checks().glob("*.json"):
            file.write_text(text, encoding="utf-8")
        new_engine(folder_of("qwen3")).generate(INPUTS)
    assert len(checks) == 4


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    verdicts.keep("a", {"b": 1}, model="m", packages=())
    assert verdicts.kept("a", model="m", packages=()) is None


def test_rows_whose_positions_are_columns_do_not_join_others(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that drops the positions that it is given, or takes none."""
    prepare = transformers.LlamaForCausalLM.prepare_inputs_for_generation

    @functools.wraps(prepare)
    def dropped(self: Any, *given: Any, **more: Any) -> Any:
        return {**prepare(self, *given, **more), "position_ids": None}

    right = new_engine(folder_of("llama"), self_check=False).generate(INPUTS)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "prepare_inputs_for_generation", dropped)
    for dtype in ("float32", "bfloat16"):
        engine = HFEngine(ModelLoadConfig(model=str(folder_of("llama")), dtype=dtype))
        assert way(engine).rows == "of one length"
    assert new_engine(folder_of("llama")).generate(INPUTS) == right


def test_rows_that_take_no_positions_do_not_join_others(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = transformers.LlamaForCausalLM.prepare_inputs_for_generation

    @functools.wraps(prepare)
    def without(self: Any, *given: Any, **more: Any) -> Any:
        inputs = prepare(self, *given, **more)
        return {name: value for name, value in inputs.items() if name != "position_ids"}

    monkeypatch.setattr(transformers.LlamaForCausalLM, "prepare_inputs_for_generation", without)
    init = running_batch.RunningBatch.__init__

    def positionless(self: Any, ids: Any, lengths: Any, name: str, state: Any) -> None:
        init(self, ids, lengths, name, {**state, "position_ids": None})

    monkeypatch.setattr(running_batch.RunningBatch, "__init__", positionless)
    assert way(new_engine(folder_of("llama"))).rows == "of one length"


def test_a_model_that_is_not_checked_keeps_its_attention(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None:
        raise verdicts.CannotCheck("it takes no text alone")

    monkeypatch.setattr(first_steps, "_plain", nothing)
    engine = new_engine(folder_of("qwen3"))
    assert engine.computing.loaded().config._attn_implementation == first_steps.attention.NAME
