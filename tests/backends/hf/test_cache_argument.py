"""Under which name a model takes its cache is read from the model, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache

import pipegen as pg
from pipegen.backends.hf import cache_argument as arguments
from pipegen.backends.hf.cache_argument import (
    UnknownCache,
    cache_argument,
    cache_of,
    without_cache,
)

CACHE: Any = DynamicCache()
CACHE.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), 0)


def model(**names: Any) -> Any:
    """A model whose forward takes these arguments."""
    scope: dict[str, Any] = {}
    exec(f"def forward(self, input_ids, {', '.join(f'{name}=None' for name in names)}): ...", scope)
    return type("OddModel", (), {"forward": scope["forward"]})()


@pytest.mark.parametrize("name", ["cache", "past_key_values", "cache_params"])
def test_the_name_is_the_one_that_the_forward_takes(name: str) -> None:
    one = model(**{name: 1})
    assert cache_argument(type(one)) == name
    assert cache_of(one, {name: CACHE, "logits": torch.zeros(1)}, {name: CACHE}) == name


def test_the_installed_transformers_names_it_as_its_models_do() -> None:
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    expected = "cache" if version >= (5, 24) else "past_key_values"
    assert cache_argument(transformers.LlamaForCausalLM) == expected
    assert cache_argument(transformers.OpenAIGPTLMHeadModel) is None


def test_a_model_that_keeps_nothing_has_no_name() -> None:
    assert cache_of(model(), {"logits": torch.zeros(1)}, {"use_cache": True}) is None
    for nothing in ({}, DynamicCache()):  # `generate` prepares a cache for every model
        assert cache_of(model(cache=1), {"logits": torch.zeros(1)}, {"cache": nothing}) is None


@pytest.mark.parametrize("taken", [None, "cache"])
def test_a_cache_that_comes_back_under_another_name_is_refused(taken: str | None) -> None:
    one = model(**({} if taken is None else {taken: 1}))
    takes = "takes none" if taken is None else "takes it as 'cache'"
    with pytest.raises(UnknownCache, match=f"back as 'past_key_values', and its forward {takes}"):
        cache_of(one, {"past_key_values": CACHE}, {})
    with pytest.raises(UnknownCache, match=transformers.__version__):
        cache_of(one, {}, {"past_key_values": CACHE})


def test_what_reads_whole_rows_is_given_nothing_that_a_model_keeps() -> None:
    state = dict.fromkeys(arguments.KEPT, CACHE)
    assert without_cache({**state, "attention_mask": 1, "use_cache": True}) == {
        "attention_mask": 1,
        "use_cache": False,
    }


def test_a_model_that_keeps_nothing_reads_whole_rows(tmp_path: Any) -> None:
    config = transformers.OpenAIGPTConfig(
        vocab_size=256, n_positions=64, n_embd=16, n_layer=2, n_head=2
    )
    torch.manual_seed(0)
    plain = transformers.OpenAIGPTLMHeadModel(config).eval()
    plain.config.pad_token_id = 0
    ids = [3, 5, 7, 9]
    with pg.backends.hf(plain, tokenizer=_tokenizer()) as route:
        options = {"max_new_tokens": 4, "stop": {"ignore_eos": True}}
        answer = pg.run(route, [{"prompt_token_ids": ids, "options": options}])[0].unwrap()
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
    assert answer.token_ids == tuple(ids[4:])


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    words = {f"t{index}": index for index in range(256)}
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")),
        unk_token="t0",
        eos_token="t2",
    )
