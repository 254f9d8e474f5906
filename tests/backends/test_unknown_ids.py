"""Ids that a tokenizer has and its model has not: the row fails, typed and before the call, its
neighbours go on, and padding never uses one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models import encoded, write_model

import pipegen as pg

pytest.importorskip("torch")

FOUR = pg.GenerationOptions(max_new_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer got a `<pad>` and a `<turn>`, for which its embedding has no row."""
    from transformers import AutoTokenizer

    folder = write_model(tmp_path_factory.mktemp("models") / "model", "llama")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<turn>"]})
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def route(folder: Path) -> pg.Route:
    return pg.backends.hf(folder, dtype="float32")


def size_of(route: pg.Route) -> int:
    size = route.engine.capabilities.vocab_size
    assert size is not None
    return size


def test_the_model_has_fewer_ids_than_its_tokenizer(route: pg.Route) -> None:
    assert route.engine.tokenizer.vocab_size == size_of(route) + 2


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": "a <turn> b", "options": {"control_tokens": "allow"}},
        {"prompt_token_ids": "the first"},
        {"prompt": "Hi", "options": {"stop_token_ids": "the first"}},
        {"prompt": "Hi", "options": {"stop_token_ids": "the first", "min_new_tokens": 2}},
        {"prompt": "Hi", "options": {"stop_token_ids": [10**6], "min_new_tokens": 2}},
    ],
    ids=str,
)
def test_a_row_with_such_an_id_fails_alone(bad: dict[str, Any], route: pg.Route) -> None:
    first = [size_of(route)]
    request = {name: first if value == "the first" else value for name, value in bad.items()}
    if "options" in bad:
        request["options"] = {
            name: first if value == "the first" else value for name, value in bad["options"].items()
        }
    alone = pg.run(route, [{"prompt": "Hi"}, {"prompt": "Hello there"}], FOUR)
    before, failed, after = pg.run(
        route, [{"prompt": "Hi"}, request, {"prompt": "Hello there"}], FOUR
    )
    assert (before, after) == alone
    error = failed.failure()
    assert isinstance(error, pg.InvalidRequest)
    assert f"the model has ids from 0 to {size_of(route) - 1}" in error.message


def test_the_engine_itself_refuses_too(route: pg.Route) -> None:
    good, bad = route.engine.generate(
        [encoded([5, 6], max_new_tokens=1), encoded([5, size_of(route)], max_new_tokens=1)]
    )
    assert pg.is_ok(good)
    assert isinstance(bad.failure(), pg.InvalidRequest)


def test_rows_of_unequal_length_are_padded_with_an_id_that_the_model_has(route: pg.Route) -> None:
    engine: Any = route.engine
    assert engine._checkpoint.tokenizer.raw.pad_token_id == size_of(route)
    assert engine._checkpoint.pad_token_id < size_of(route)
    prompts = [{"prompt": "Hi"}, {"prompt": "A much longer prompt than that"}]
    together = pg.run(route, prompts, FOUR)
    assert together == tuple(pg.run(route, [prompt], FOUR)[0] for prompt in prompts)


@pytest.mark.parametrize("stop", ["<turn>", "<pad>"])
def test_a_stop_that_the_model_cannot_write_ends_nothing_and_breaks_nothing(
    stop: str, route: pg.Route
) -> None:
    options = pg.GenerationOptions(max_new_tokens=4, min_new_tokens=3, stop=(stop,))
    free = pg.run(
        route, [{"prompt": "Hi"}], pg.GenerationOptions(max_new_tokens=4, min_new_tokens=3)
    )
    assert (
        pg.run(route, [{"prompt": "Hi"}], options)[0].unwrap().token_ids
        == free[0].unwrap().token_ids
    )


def test_an_end_token_of_the_checkpoint_that_the_model_cannot_write_breaks_nothing(
    tmp_path: Path,
) -> None:
    folder = write_model(tmp_path / "model", "qwen3", eos_token_id=[1, 10**6])
    with pg.backends.hf(folder, dtype="float32") as other:
        options = pg.GenerationOptions(max_new_tokens=4, min_new_tokens=3)
        assert pg.run(other, [{"prompt": "Hi"}], options)[0].unwrap().completion_tokens >= 3


def test_a_token_server_is_never_sent_one(folder: Path) -> None:
    pytest.importorskip("aiohttp")
    from pipegen.testing.faulty import FaultyServer

    for constructor in (pg.backends.vllm_server, pg.backends.sglang_server):
        with (
            FaultyServer() as server,
            constructor(str(folder), base_url=server.url, served_model_name="toy") as route,
        ):
            server.keeps_bodies = True
            size = size_of(route)
            requests: list[Any] = [
                {"prompt_token_ids": [5, size]},
                {"prompt": "Hi", "options": {"stop_token_ids": [size]}},
            ]
            assert [type(slot.failure()) for slot in pg.run(route, requests, FOUR)] == [
                pg.InvalidRequest
            ] * 2
            assert server.bodies == []
            engine: Any = route.engine
            sent = (
                engine.prepare(encoded([5, 6], stop=("<turn>",), min_new_tokens=1))
                .unwrap()
                .body["sampling_params"]
            )
            assert size not in (sent["stop_token_ids"] or ()) and size + 1 not in (
                sent["stop_token_ids"] or ()
            )


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "mamba", "vocab_size": 7}, 7),
        ({"model_type": "gemma3", "text_config": {"vocab_size": 11}, "image_token_index": 5}, 11),
        ({"model_type": "gemma3", "text_config": {"vocab_size": 11}, "image_token_index": 11}, 12),
    ],
)
def test_the_size_is_the_embeddings_and_an_image_token_beyond_it_counts(
    config: dict[str, Any], size: int, tmp_path: Path
) -> None:
    import json

    from pipegen.backends.checkpoint.checkpoint import Checkpoint

    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Checkpoint(pg.ModelLoadConfig(model=str(tmp_path))).vocab_size == size
