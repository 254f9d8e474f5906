"""TRL's `GRPOTrainer` on pipegen: a `rollout_func` whose ids are those that were sampled.

    def agent(route):
        return pg.turns(route, pg.tools([price, add]))

    def reward(results, **others):
        return [float("42" in result.text) for result in results]

    trainer = GRPOTrainer(model, reward, rollout_func=rollout_func(agent), ...)

Made for TRL 1.16 (the extra `trl`), which need not be installed to import this.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import pipegen as pg
from pipegen.contrib.sampled_logprobs import sampled_logprobs
from pipegen.core.functional import without_none
from pipegen.stages.gather_samples import derive_seed

__all__ = ["rollout_func"]

Conversation: TypeAlias = pg.Pipe[pg.GenerationRequest, pg.GenerationResult]
_FILTERS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Settings of the trainer that are options of that name, with what they are where they are None."""
_OF_CONFIG = {*_FILTERS, "temperature", "max_new_tokens", "seed", "samples"}


def rollout_func(
    pipe: Conversation | Callable[[pg.Route], Conversation] | None = None, **options: object
) -> Callable[[list[Any], Any], dict[str, Any]]:
    """The `rollout_func` of a `GRPOTrainer`: one conversation a prompt, on the model in training.

    pipe: what makes a conversation of the model's route, such as `lambda route: pg.turns(route,
        pg.tools([...]))`. Without it, each prompt gets one answer. A pipe itself is one of another
        engine, whose weights are the caller's to update.
    options: of the run, beside the trainer's own: the length of an answer, temperature, filters,
        penalty and variables of the template come from `GRPOConfig`.

    Reward functions get `results`, the `GenerationResult` of each conversation. What was not
    sampled is in no loss (`env_mask`). The log probabilities are of the distribution that was
    sampled from. A pipe of your own gives such with the option `logprobs="processed"`, else None.

    The function raises the `GenerationError` of a conversation that failed, `InvalidField` for one
    that is no single rollout, and `ValueError` for what TRL would train otherwise: options that
    `GRPOConfig` has, tools of the trainer, sharded weights, images of later turns.

    >>> rollout_func(temperature=0.5)
    Traceback (most recent call last):
    ...
    ValueError: rollout_func takes no 'temperature': set it in GRPOConfig, whose loss depends on it
    """
    for name in options:
        if name in _OF_CONFIG:
            raise ValueError(
                f"rollout_func takes no {name!r}: set it in GRPOConfig, whose loss depends on it"
            )
    calls = itertools.count()
    route_of = functools.lru_cache(1)(_route)  # of the model in training, for as long as it is one

    def rollouts(prompts: list[object], trainer: Any) -> dict[str, Any]:
        reported = True if isinstance(pipe, pg.Pipe) else "processed"
        settings = {"logprobs": reported, **_settings(trainer), **options}
        place = (trainer.state.global_step, trainer.accelerator.process_index, next(calls))
        seed = functools.reduce(derive_seed, [1 + number for number in place], trainer.args.seed)
        requests = [
            _request(prompt, derive_seed(seed, at), trainer) for at, prompt in enumerate(prompts)
        ]
        if isinstance(pipe, pg.Pipe):
            return _output(pg.run(pipe, requests, settings))
        in_training = trainer.model.training
        route = route_of(_whole_model(trainer), trainer.processing_class)
        try:
            return _output(pg.run(route if pipe is None else pipe(route), requests, settings))
        finally:
            trainer.model.train(in_training)  # which the loss depends on
            route.engine.close()  # its memory is the training's

    return rollouts


def _output(slots: Any) -> dict[str, object]:
    for at, slot in enumerate(slots):
        if not pg.is_ok(slot):
            slot.failure().add_note(f"in the conversation of prompt {at} of this process")
            raise slot.failure()
    results = [slot.unwrap() for slot in slots]
    parts = [result.rollout for result in results]
    for result, part in zip(results, parts, strict=True):
        if part.image_digests != (result.rounds or (result,))[0].image_digests:
            raise ValueError("TRL leaves out images of later turns: let tools give text instead")
    logprobs = [*map(sampled_logprobs, results, [part.logprobs for part in parts])]
    return {
        "prompt_ids": [list(part.prompt_token_ids) for part in parts],
        "completion_ids": [list(part.token_ids) for part in parts],
        "env_mask": [[int(sampled) for sampled in part.mask] for part in parts],
        "logprobs": None if None in logprobs else logprobs,
        "results": results,
    }


def _whole_model(trainer: Any) -> object:
    """The model in training, with an adapter of peft in place."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if trainer.is_fsdp_enabled or getattr(plugin, "zero_stage", 0) == 3:
        raise ValueError(
            "the weights are sharded (FSDP or ZeRO 3), and no process has them all: give"
            " rollout_func a pipe of an engine that gets them, such as a server"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ValueError("prompt learning of peft is no part of the model: train LoRA or all of it")
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _route(model: object, processing: object) -> pg.Route:
    """`processing` is a tokenizer, or a processor that has one."""
    tokenizer = getattr(processing, "tokenizer", None)
    if tokenizer is None:
        return pg.backends.hf(model, tokenizer=processing)
    return pg.backends.hf(model, tokenizer=tokenizer, processor=processing)


def _settings(trainer: Any) -> dict[str, object]:
    if trainer.tools:
        raise ValueError("the trainer has tools, which it would call again: give them to the pipe")
    if trainer.args.generation_kwargs:
        raise ValueError("GRPOConfig has generation_kwargs: give them as options of rollout_func")
    filters = {**_FILTERS, **without_none({name: getattr(trainer, name) for name in _FILTERS})}
    return {
        **filters,
        "max_new_tokens": trainer.max_completion_length,
        "temperature": trainer.temperature,
        "template_kwargs": trainer.chat_template_kwargs,
    }


def _request(prompt: Any, seed: int, trainer: Any) -> dict[str, object]:
    if isinstance(prompt, str):  # the ids are TRL's own
        ids = trainer.processing_class(text=prompt)["input_ids"]
        return {"prompt_token_ids": ids, "options": {"seed": seed}}
    return {"messages": prompt, "options": {"seed": seed}}
