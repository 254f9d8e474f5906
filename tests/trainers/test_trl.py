"""TRL's `GRPOTrainer` on pipegen: what it trains on is what was sampled, and its loss is the one
that follows from it by hand.
"""

from __future__ import annotations

import copy
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import pipegen as pg
from pipegen import embedded
from pipegen.contrib.trl import rollout_func
from pipegen.testing.fake import FakeEngine
from pipegen.testing.image_files import image_file

pytestmark = pytest.mark.filterwarnings("default")  # TRL's own

STORY = [{"role": "user", "content": "Tell me a story."}]
COIN = [{"role": "user", "content": "Flip a coin."}]
COST = [{"role": "user", "content": "What do the lamp and the chair cost?"}]


CISPO = {"loss_type": "cispo", "epsilon_high": 5.0}
"""A loss that the log probabilities are in."""


def price(item: str) -> int:
    """What an item costs."""
    return {"lamp": 12, "chair": 30}[item]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def agent(route: Any) -> Any:
    return pg.turns(route, pg.tools([price, add]))


def coins(route: Any) -> Any:
    return pg.turns(route, lambda result: "Flip a coin.", limit=3)


def reward(results: Any, **others: Any) -> list[float]:
    """Another one for each, as what a model this sure of itself says is the same."""
    return [result.options.seed % 7 + len(result.rounds) for result in results]


class Recorded(GRPOTrainer):  # type: ignore[misc]
    """Keeps the weights before each generation, what was rolled out then, and each loss."""

    def __init__(self, made: Any, folder: Path, prompts: list[Any], **settings: Any) -> None:
        self.weights: list[Any] = []
        self.rolled: list[Any] = []
        self.losses: list[float] = []
        self.modes: list[bool] = []
        peft_config, model = settings.pop("peft_config", None), settings.pop("model", None)
        processing = settings.pop("processor", None)
        columns = {"images": settings.pop("images")} if "images" in settings else {}
        config = {
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_generations": 8,
            "max_steps": 3,
            "max_completion_length": 96,
            "learning_rate": 1e-3,
            "bf16": False,
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            **settings,
        }

        def rollouts(prompts: list[Any], trainer: Any) -> Any:
            self.weights.append(copy.deepcopy(trainer.model.state_dict()))
            self.rolled.append(made(prompts, trainer))
            return self.rolled[-1]

        super().__init__(
            model or whole(),
            reward,
            args=GRPOConfig(**config),
            train_dataset=Dataset.from_list([{"prompt": prompt, **columns} for prompt in prompts]),
            processing_class=processing or AutoTokenizer.from_pretrained(embedded.path()),
            rollout_func=rollouts,
            peft_config=peft_config,
        )

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        self.modes.append(model.training)
        loss = super().compute_loss(model, inputs, *args, **more)
        self.losses.append(loss.item())
        return loss


def whole(weights: Any = None) -> Any:
    """A model by itself, with these weights."""
    model = AutoModelForImageTextToText.from_pretrained(embedded.path(), dtype=torch.float32)
    if weights is not None:
        model.load_state_dict(weights)
    return model.eval()


def teacher_forced(model: Any, rolled: Any, temperature: float = 1.0) -> list[torch.Tensor]:
    """The log probabilities of each completion, each alone and without padding."""
    found = []
    for prompt, completion in zip(rolled["prompt_ids"], rolled["completion_ids"], strict=True):
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1] / temperature
        found.append(logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0])
    return found


def by_hand(logprobs: list[torch.Tensor], rolled: Any, loss_type: str) -> float:
    """The loss of the first step, where the ratio to the old policy is 1, over all sampled tokens
    of its batch.
    """
    rewards = torch.tensor(reward(rolled["results"]), dtype=torch.float32)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    total, count = 0.0, 0
    for advantage, mask, values in zip(advantages, rolled["env_mask"], logprobs, strict=True):
        for sampled, value in zip(mask, values, strict=True):
            weight = value.item() if loss_type == "cispo" else 1.0
            total, count = total - sampled * advantage.item() * weight, count + sampled
    return total / count


@pytest.mark.parametrize(
    ("prompt", "pipe", "settings"),
    [
        (STORY, None, {"loss_type": "dapo", "temperature": 2.0}),
        (COIN, None, {}),
        (COIN, None, {"temperature": 0.7, "top_k": 20, "gradient_checkpointing": False}),
        (COIN, coins, {}),
        (COST, agent, {"temperature": 1.5, "min_p": 0.01}),
    ],
)
def test_three_steps_are_of_what_was_sampled_and_the_first_loss_is_the_one_by_hand(
    prompt: Any, pipe: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = {**CISPO, **settings}
    trainer = Recorded(rollout_func(pipe), tmp_path, [prompt] * 4, **settings)
    trainer.train()
    temperature = settings.get("temperature", 1.0)
    filtered = {"top_k", "min_p"} & settings.keys()
    hand = by_hand(
        teacher_forced(whole(), trainer.rolled[0], temperature),
        trainer.rolled[0],
        settings["loss_type"],
    )
    assert abs(hand) > 1e-3
    assert trainer.losses[0] == pytest.approx(hand, abs=1e-4)
    assert trainer.modes == [True] * 3
    assert len({each["lm_head.weight"].sum().item() for each in trainer.weights}) == 3
    for weights, rolled in zip(trainer.weights, trainer.rolled, strict=True):
        for now, kept, mask in zip(
            teacher_forced(whole(weights), rolled, temperature),
            rolled["logprobs"],
            rolled["env_mask"],
            strict=True,
        ):
            gained = torch.tensor(kept) - now * torch.tensor(mask)  # by what a filter left out
            assert gained.min() > -1e-4
            assert filtered or gained.max() < 1e-4


def test_what_tools_gave_is_in_no_loss_and_rewards_see_the_conversation(tmp_path: Path) -> None:
    trainer = Recorded(rollout_func(agent), tmp_path, [COST] * 4, max_steps=1, top_k=1)
    trainer.train()
    (rolled,) = trainer.rolled
    ids, mask = rolled["completion_ids"][0], rolled["env_mask"][0]
    own = [one for one, sampled in zip(ids, mask, strict=True) if sampled]
    others = [one for one, sampled in zip(ids, mask, strict=True) if not sampled]
    decode = trainer.processing_class.decode
    assert "The lamp and the chair cost" in decode(own)
    assert "12" in decode(others)
    assert len(rolled["results"][0].rounds) == 3


def test_the_seed_of_the_trainer_decides_what_is_sampled(tmp_path: Path) -> None:
    ids = []
    for seed in (1, 1, 2):
        settings = {"max_steps": 2, "seed": seed, "temperature": 3.0, "max_completion_length": 8}
        trainer = Recorded(rollout_func(), tmp_path, [STORY] * 4, **settings)
        trainer.train()
        ids.append([rolled["completion_ids"] for rolled in trainer.rolled])
    assert ids[0] == ids[1] != ids[2]
    assert len({str(one) for one in ids[0][0]}) > 4


def test_steps_are_divided_as_the_trainer_divides_them(tmp_path: Path) -> None:
    """The loss is divided by the accumulated batches in training alone, so the model has to be in
    training after the rollouts.
    """
    trainer = Recorded(
        rollout_func(),
        tmp_path,
        [COIN] * 8,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        max_steps=1,
        **CISPO,
    )
    trainer.train()
    (rolled,) = trainer.rolled
    hand = by_hand(teacher_forced(whole(), rolled), rolled, "cispo")
    assert sum(trainer.losses) == pytest.approx(hand, abs=1e-4)
    assert trainer.modes == [True] * 2


def test_an_adapter_in_training_is_what_is_sampled_from(tmp_path: Path) -> None:
    trainer = Recorded(
        rollout_func(coins),
        tmp_path,
        [COIN] * 4,
        learning_rate=0.1,
        max_steps=2,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
    model = trainer.model.eval()
    before, after = (
        teacher_forced(model, trainer.rolled[1])
        for weights in trainer.weights
        if model.load_state_dict(weights)
    )
    (ours,) = {tuple(one) for one in trainer.rolled[1]["logprobs"][:1]}
    mask = torch.tensor(trainer.rolled[1]["env_mask"][0])
    torch.testing.assert_close(after[0] * mask, torch.tensor(ours), atol=1e-4, rtol=0)
    assert (before[0] * mask - torch.tensor(ours)).abs().max() > 1e-2


def test_the_ids_of_a_prompt_that_is_text_are_those_of_trl(tmp_path: Path) -> None:
    text = "The capital of Japan is<|im_end|>"
    trainer = Recorded(rollout_func(), tmp_path, [text] * 4, max_steps=1)
    trainer.train()
    expected, _, _ = trainer._tokenize_prompts([text])
    assert trainer.rolled[0]["prompt_ids"] == expected * 8


def accelerator(**state: Any) -> Any:
    return SimpleNamespace(
        state=SimpleNamespace(**state), process_index=0, unwrap_model=lambda model: model
    )


def learned_prompt() -> Any:
    return get_peft_model(whole(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def fake_trainer(**settings: Any) -> Any:
    """What a function reads of a trainer."""
    return SimpleNamespace(
        **{
            "tools": [],
            "args": SimpleNamespace(generation_kwargs=None, seed=1),
            "state": SimpleNamespace(global_step=0),
            "model": torch.nn.Identity(),
            "max_completion_length": 8,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": None,
            "repetition_penalty": 1.0,
            "chat_template_kwargs": {},
            "is_fsdp_enabled": False,
            "accelerator": accelerator(),
            **settings,
        }
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tools": [price]}, "the trainer has tools"),
        (
            {"args": SimpleNamespace(generation_kwargs={"top_h": 1}, seed=1)},
            "as options of rollout_func",
        ),
        ({"is_fsdp_enabled": True}, "the weights are sharded"),
        (
            {"accelerator": accelerator(deepspeed_plugin=SimpleNamespace(zero_stage=3))},
            "the weights are sharded",
        ),
        ({"accelerator": accelerator(), "model": learned_prompt()}, "prompt learning of peft"),
    ],
)
def test_what_would_be_trained_otherwise_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rollout_func()([STORY], fake_trainer(**settings))


def test_a_conversation_that_failed_ends_the_step_with_its_error() -> None:
    route = pg.route(FakeEngine("Four.<|im_end|>"))
    with pytest.raises(pg.InvalidRequest) as raised:
        rollout_func(route)([STORY, [{"role": "user", "content": 4}]], fake_trainer())
    assert raised.value.__notes__ == ["in the conversation of prompt 1 of this process"]


def test_images_of_later_turns_are_refused() -> None:
    route = pg.route(FakeEngine("Four.<|im_end|>"))
    look = {"role": "user", "content": [{"type": "image", "image": image_file()}]}
    pipe = pg.turns(route, lambda result: [look], limit=2)
    with pytest.raises(ValueError, match="leaves out images of later turns"):
        rollout_func(pipe)([STORY], fake_trainer())


def test_images_of_the_prompt_are_those_that_trl_trains_on(llava: Any, tmp_path: Path) -> None:
    """The log probabilities of the rollouts, which saw the images here, give TRL's loss, whose
    pixels are those of TRL's own processor.
    """
    folder, processor = llava
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    trainer = Recorded(
        rollout_func(),
        tmp_path,
        [[{"role": "user", "content": "Describe the image."}]] * 8,
        model=model,
        processor=processor,
        images=[Image.open(io.BytesIO(image_file())).convert("RGB")],
        max_completion_length=16,
        max_steps=1,
        **CISPO,
    )
    trainer.train()
    (rolled,) = trainer.rolled
    assert all(len(result.image_digests) == 1 for result in rolled["results"])
    kept = [torch.tensor(values) for values in rolled["logprobs"]]
    assert trainer.losses == [pytest.approx(by_hand(kept, rolled, "cispo"), abs=1e-4)]
