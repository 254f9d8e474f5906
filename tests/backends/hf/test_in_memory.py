"""A model that is in memory already is a route as a checkpoint is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

import pipegen as pg
from pipegen import embedded
from pipegen.testing.image_files import image_file

REQUESTS: Any = [
    {"messages": [{"role": "user", "content": "What is 7 + 8?"}]},
    {"prompt": "Describe the image.", "images": [image_file()]},
    {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "options": {"temperature": 1.0, "seed": 3, "stop": ["the"]},
    },
]


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any, Any]:
    processors: Any = AutoImageProcessor
    folder = embedded.path()
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return (
        model,
        AutoTokenizer.from_pretrained(folder),
        processors.from_pretrained(folder, backend="pil"),
    )


def test_it_answers_as_its_checkpoint_does(parts: tuple[Any, Any, Any]) -> None:
    model, tokenizer, processor = parts
    model.train()
    route = pg.backends.hf(model=model, tokenizer=tokenizer, processor=processor, batch_size=4)
    ours, theirs = (
        pg.run(one, REQUESTS, {"max_new_tokens": 24}) for one in (route, pg.backends.hf("embedded"))
    )
    assert [slot.unwrap().token_ids for slot in ours] == [
        slot.unwrap().token_ids for slot in theirs
    ]
    assert [slot.unwrap().finish for slot in ours] == [slot.unwrap().finish for slot in theirs]
    assert [slot.unwrap().image_digests for slot in ours] == [
        slot.unwrap().image_digests for slot in theirs
    ]
    assert not model.training
    route.engine.close()
    assert pg.is_ok(pg.run(route, REQUESTS[:1])[0])


def test_without_a_processor_images_are_refused_and_text_goes_on(
    parts: tuple[Any, Any, Any],
) -> None:
    slots = pg.run(
        pg.backends.hf(parts[0], tokenizer=parts[1]), REQUESTS[:2], {"max_new_tokens": 4}
    )
    assert pg.is_ok(slots[0])
    assert isinstance(slots[1].failure(), pg.UnsupportedMultimodal)
    assert "no processor was given" in slots[1].failure().message


def test_trained_weights_are_another_model(parts: tuple[Any, Any, Any]) -> None:
    engine = pg.backends.hf(parts[0], tokenizer=parts[1]).engine
    before, weight = engine.identity, parts[0].get_input_embeddings().weight
    assert engine.identity == before
    with torch.no_grad():
        weight.add_(0.5)
        after = engine.identity
        weight.sub_(0.5)
    assert before != after


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"model": "embedded", "tokenizer": object()},
            "a model of transformers that is in memory, not with 'embedded'",
        ),
        ({}, "takes the tokenizer of a model that is in memory"),
        ({"processor": object()}, "takes the tokenizer"),
        (
            {"tokenizer": "embedded"},
            "takes a tokenizer of transformers with a model that is in memory, not 'embedded'",
        ),
        (
            {"tokenizer": None, "processor": "embedded"},
            "takes a processor of transformers with a model that is in memory, not 'embedded'",
        ),
        ({"tokenizer": None, "dtype": "float16"}, "takes no 'dtype'"),
        ({"tokenizer": None, "batchsize": 2}, "did you mean 'batch_size'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: dict[str, Any], words: str, parts: tuple[Any, Any, Any]
) -> None:
    right = {
        name: parts[1] for name, value in arguments.items() if name == "tokenizer" and value is None
    }
    with pytest.raises(pg.InvalidField, match=words):
        pg.backends.hf(**{"model": parts[0], **arguments, **right})


STORY = "Tell me a long story about a cat and a dog. " * 6
STORIES: Any = [{"messages": [{"role": "user", "content": STORY}]}] * 2


def by_an_optimizer(weights: list[torch.nn.Parameter]) -> None:
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    torch.optim.SGD(weights, lr=1e-3).step()


def past_the_count_of_torch(weights: list[torch.nn.Parameter]) -> None:
    for weight in weights:
        weight.data.mul_(1.01)


def by_other_tensors(weights: list[torch.nn.Parameter]) -> None:
    for weight in weights:
        weight.data = weight.data * 1.01


@pytest.mark.parametrize("change", [by_an_optimizer, past_the_count_of_torch, by_other_tensors])
def test_a_call_reads_its_prompts_with_the_weights_as_they_are_then(change: Any) -> None:
    """What was read of the same prompts before the change is not taken."""
    folder = embedded.path()
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    route = pg.backends.hf(model, tokenizer=tokenizer)
    pg.run(route, STORIES, {"max_new_tokens": 2})
    change([*model.train().parameters()])
    options = {"max_new_tokens": 8, "logprobs": True}
    ours = [slot.unwrap().logprobs for slot in pg.run(route, STORIES, options)]
    assert not model.training
    anew = pg.run(pg.backends.hf(model, tokenizer=tokenizer), STORIES, options)
    assert ours == [slot.unwrap().logprobs for slot in anew]


@pytest.mark.parametrize("inference", [False, True])
def test_a_call_takes_what_was_read_with_the_same_weights(inference: bool) -> None:
    with torch.inference_mode(inference):
        model = AutoModelForImageTextToText.from_pretrained(embedded.path(), dtype=torch.float32)
    route = pg.backends.hf(model, tokenizer=AutoTokenizer.from_pretrained(embedded.path()))
    engine: Any = route.engine
    pg.run(route, STORIES, {"max_new_tokens": 2})
    before = engine.work.shared_tokens
    pg.run(route, STORIES[:1], {"max_new_tokens": 2})
    assert engine.work.shared_tokens > before


def test_it_can_be_deterministic(parts: tuple[Any, Any, Any]) -> None:
    model, tokenizer, _ = parts
    with pg.backends.hf(model, tokenizer=tokenizer, deterministic=True) as route:
        requests: Any = [{"prompt": text} for text in ("a", "a", "b")]
        slots = pg.run(route, requests, {"max_new_tokens": 4})
        assert all(map(pg.is_ok, slots))
        work: Any = route.engine.work  # type: ignore[attr-defined]
        assert (work.passes, work.row_steps) == (3, work.steps)
