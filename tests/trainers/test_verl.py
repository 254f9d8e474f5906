"""verl's own types, and its own processing of outputs, on conversations of pipegen."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

import torch
from PIL import Image
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
)

import pipegen as pg
from pipegen import embedded
from pipegen.contrib.verl import agent_loop_output, agent_loop_outputs
from pipegen.testing.fake import FakeEngine
from pipegen.testing.image_files import image_file

pytestmark = pytest.mark.filterwarnings("default")  # verl's own

COST: Any = {"messages": [{"role": "user", "content": "What do the lamp and the chair cost?"}]}
LOOK: Any = {"role": "user", "content": [{"type": "image", "image": image_file()}]}


def price(item: str) -> int:
    """What an item costs."""
    return {"lamp": 12, "chair": 30}[item]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@pytest.fixture(scope="module")
def talk() -> Any:
    """A conversation with tools, sampled from the model's own distribution."""
    with pg.backends.hf("embedded") as route:
        agent = pg.turns(route, pg.tools([price, add]))
        options = {"logprobs": True, "temperature": 1.0, "seed": 1}
        return pg.run(agent, [COST], options)[0].unwrap()


def worker(tokenizer: Any, processor: Any = None, **lengths: int) -> Any:
    """A worker of verl without servers and rewards of its own."""
    made = object.__new__(AgentLoopWorker)
    made.tokenizer, made.processor, made.mm_processor_kwargs = tokenizer, processor, {}
    made.rollout_config = SimpleNamespace(
        **{"prompt_length": 512, "response_length": 256, **lengths}
    )
    made.reward_loop_worker_handles = None
    made.distillation_enabled = False
    return made


def processed(made: Any, output: Any) -> Any:
    return asyncio.run(made._agent_loop_postprocess(output, False, raw_prompt=[]))


def test_verl_trains_on_the_ids_that_were_sampled(talk: Any) -> None:
    output = agent_loop_output(talk, reward=1.0)
    assert type(output) is AgentLoopOutput
    rollout = talk.rollout
    assert len(talk.rounds) == 3
    made = processed(worker(AutoTokenizer.from_pretrained(embedded.path())), output)
    ids = made.input_ids[0][made.attention_mask[0].bool()].tolist()
    assert tuple(ids) == rollout.ids
    in_loss = made.response_mask[0].bool()
    sampled = tuple(one for one, own in zip(rollout.token_ids, rollout.mask, strict=True) if own)
    assert tuple(made.response_ids[0][in_loss].tolist()) == sampled
    own = [value for value, one in zip(rollout.logprobs, rollout.mask, strict=True) if one]
    assert made.response_logprobs[0][in_loss].tolist() == pytest.approx(own)
    assert made.reward_score == 1.0
    assert made.num_turns == 6  # a question, three answers, two turns of tools
    assert made.metrics == AgentLoopMetrics()


def test_what_verl_puts_into_its_batch_is_whole(talk: Any) -> None:
    values = agent_loop_output(talk, reward=0.5, metrics={"tool_calls": 2.0}).as_dict()
    assert values["rm_scores"][-1] == 0.5
    assert values["metrics"]["tool_calls"] == 2.0
    assert values["rollout_log_probs"].shape == values["responses"].shape
    assert values["extra_fields"]["reward_extra_info"] == {}


def test_batches_of_worker_are_made_of_several_outputs(talk: Any) -> None:
    made = worker(AutoTokenizer.from_pretrained(embedded.path()))
    outputs = [processed(made, agent_loop_output(talk, reward=value)) for value in (0.0, 1.0)]
    batch = made._postprocess(outputs)
    assert batch.batch["responses"].shape == (2, 256)
    assert batch.batch["rm_scores"].sum(-1).tolist() == [0.0, 1.0]


def test_a_response_is_cut_where_verl_cuts_it(talk: Any) -> None:
    output = agent_loop_output(talk, response_length=8)
    made = worker(AutoTokenizer.from_pretrained(embedded.path()), response_length=8)
    assert tuple(processed(made, output).response_ids[0].tolist()) == talk.rollout.token_ids[:8]
    assert len(output.response_mask) == len(output.response_logprobs) == 8


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"temperature": 1.0, "top_k": 3}])
def test_log_probabilities_of_another_distribution_are_left_out(options: Any) -> None:
    with pg.backends.hf("embedded") as route:
        (slot,) = pg.run(route, [COST], {**options, "logprobs": True, "max_new_tokens": 4})
    assert slot.unwrap().rollout.logprobs is not None
    assert agent_loop_output(slot.unwrap()).response_logprobs is None


def test_images_are_those_that_the_model_saw(llava: Any) -> None:
    folder, processor = llava
    image = Image.open(io.BytesIO(image_file())).convert("RGB")
    asked = {"messages": [{"role": "user", "content": "Look."}, LOOK], "images": []}
    with pg.backends.hf(str(folder)) as route:
        (slot,) = pg.run(
            pg.turns(route, lambda result: [LOOK], limit=2), [asked], {"max_new_tokens": 2}
        )
    output = agent_loop_output(slot.unwrap())
    assert [image.tobytes() for image in output.multi_modal_data["images"]] == [image.tobytes()] * 2
    made = processed(worker(processor.tokenizer, processor), output)
    expected = processor.image_processor(images=[image, image], return_tensors="pt")
    torch.testing.assert_close(made.multi_modal_inputs["pixel_values"], expected["pixel_values"])


def test_a_conversation_of_several_rollouts_has_as_many_outputs() -> None:
    route = pg.route(FakeEngine("Four.<|im_end|>"))  # its template drops thoughts
    first = pg.run(route, [COST])[0].unwrap()
    last = pg.run(route, [first.then("Sure?", history="template")])[0].unwrap()
    outputs = agent_loop_outputs(last, reward=1.0)
    assert [sum(output.response_mask) for output in outputs] == [6, 6]
    with pytest.raises(pg.InvalidField, match="take them all"):
        agent_loop_output(last)


def test_a_cut_with_images_of_later_turns_is_refused() -> None:
    route = pg.route(FakeEngine("Four.<|im_end|>"))
    (slot,) = pg.run(pg.turns(route, lambda result: [LOOK], limit=2), [COST])
    assert len(agent_loop_output(slot.unwrap()).multi_modal_data["images"]) == 1
    with pytest.raises(ValueError, match="could divide one"):
        agent_loop_output(slot.unwrap(), response_length=8)


def test_an_image_that_is_no_longer_there_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(image_file())
    asked: Any = {"prompt": "Look.", "images": [str(path)]}
    (slot,) = pg.run(pg.route(FakeEngine("Four.<|im_end|>")), [asked])
    assert len(agent_loop_output(slot.unwrap()).multi_modal_data["images"]) == 1
    path.unlink()
    with pytest.raises(pg.BadImage):
        agent_loop_output(slot.unwrap())
