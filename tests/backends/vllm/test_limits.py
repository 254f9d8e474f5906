"""How long a row may be on vLLM, which of LongRoPE's factors it gets, and in what type the model
computes: stated before vLLM starts, and true after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import encoded, write_model

import pipegen as pg
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.vllm.vllm_engine import VLLMEngine


@pytest.fixture
def of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> Callable[..., VLLMEngine]:
    """An engine on a new model of that family, of which vLLM says that it takes so many tokens."""
    import vllm  # the stand-in

    def made(family: str, limit: int, **settings: Any) -> VLLMEngine:
        config = SimpleNamespace(max_model_len=limit, is_multimodal_model=False)
        monkeypatch.setattr(vllm.EngineArgs, "create_model_config", lambda self: config)
        plain = vllm.LLMEngine.from_engine_args

        def start(arguments: Any, **how: Any) -> Any:
            standin = plain(arguments, **how)
            standin.vllm_config.model_config = config
            return standin

        monkeypatch.setattr(vllm.LLMEngine, "from_engine_args", start)
        return VLLMEngine(
            pg.ModelLoadConfig(
                model=str(write_model(tmp_path / "model", family)), backend="vllm", **settings
            )
        )

    return made


def test_the_limit_is_vllms_own_before_it_starts_and_after(of: Callable[..., VLLMEngine]) -> None:
    engine = of("llama_linear", 500)
    assert (engine.capabilities.context_length, engine.loaded) == (500, False)
    assert pg.is_ok(engine.generate([encoded([10] * 300, max_new_tokens=2)])[0])
    assert (engine.capabilities.context_length, engine.loaded) == (500, True)


def test_where_vllm_does_not_take_the_model_its_start_says_why(
    of: Callable[..., VLLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm

    def refuses(self: Any) -> None:
        raise ValueError("no such architecture")

    engine = of("qwen3", 64)
    monkeypatch.setattr(vllm.EngineArgs, "create_model_config", refuses)
    assert engine.capabilities.context_length == 512


@pytest.mark.parametrize("value", [-1, 0, True, "auto", "16k", 2.5])
def test_a_limit_that_is_known_only_after_the_start_is_refused(
    value: Any, started: list[Any]
) -> None:
    with pytest.raises(pg.InvalidField, match="max_model_len is a number of tokens above 0"):
        VLLMEngine(
            pg.ModelLoadConfig(
                model="embedded", backend="vllm", engine_kwargs={"max_model_len": value}
            )
        )


def test_positions_beyond_those_of_dynamic_scaling_are_too_long(
    of: Callable[..., VLLMEngine],
) -> None:
    engine = of("llama_dynamic", 512)
    assert engine.capabilities.context_length == 128
    assert isinstance(
        engine.generate([encoded([10] * 127, max_new_tokens=2)])[0].failure(), pg.PromptTooLong
    )


def test_short_prompts_are_refused_where_vllm_takes_the_long_factors_for_all(
    of: Callable[..., VLLMEngine],
) -> None:
    engine = of("phi3_longrope", 256)
    short, long = engine.generate(
        [encoded([10] * 64, max_new_tokens=2), encoded([10] * 70, max_new_tokens=2)]
    )
    error = short.failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, pg.is_ok(long)) == ("max_model_len", True)
    assert (
        "vllm with a limit of 256 tokens uses the long factors of LongRoPE, and this prompt of 64"
        " tokens is for the short ones" in error.message
    )


def test_with_the_short_limit_all_rows_have_the_short_factors(
    of: Callable[..., VLLMEngine],
) -> None:
    engine = of("phi3_longrope", 64)
    short, long = engine.generate(
        [encoded([10] * 5, max_new_tokens=2), encoded([10] * 63, max_new_tokens=2)]
    )
    assert pg.is_ok(short)
    assert isinstance(long.failure(), pg.PromptTooLong)


@pytest.mark.parametrize(("asked", "got"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_both_engines_compute_in_the_same_type_and_tell_it(
    asked: str, got: str, of: Callable[..., VLLMEngine], started: list[Any], tmp_path: Path
) -> None:
    engine = of("qwen3", 64, dtype=asked)
    other = HFEngine(dataclasses.replace(engine._checkpoint.load, backend="hf"))
    engine.generate([encoded([10], max_new_tokens=1)])
    assert started[0].arguments.dtype == got
    assert str(other.computing.loaded().dtype) == f"torch.{got}"
    assert engine.dtype == other.dtype == got
    assert repr(engine) == f"VLLMEngine({str(tmp_path / 'model')!r}, dtype={got!r})"


def test_an_engine_whose_checkpoint_cannot_be_read_can_be_shown(
    tmp_path: Path, started: list[Any]
) -> None:
    assert (
        repr(VLLMEngine(pg.ModelLoadConfig(model=str(tmp_path), backend="vllm")))
        == f"VLLMEngine({str(tmp_path)!r}, dtype='auto')"
    )
