"""verl's agent loops on pipegen: a conversation as an `AgentLoopOutput`.

    from pipegen.contrib.verl import agent_loop_output

    class Agent(AgentLoopBase):
        async def run(self, sampling_params, **fields):
            request = {"messages": list(fields["raw_prompt"])}
            (slot,) = await pg.arun(pipe, [request], {"logprobs": True, ...})
            return agent_loop_output(slot.unwrap(), response_length=2048)

Made for verl 0.9.1, which is imported when the first output is made.
"""

# verl need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pipegen as pg
from pipegen.contrib.sampled_logprobs import sampled_logprobs
from pipegen.core.slots import all_of
from pipegen.media.image import open_image
from pipegen.media.source import load_sources

__all__ = ["agent_loop_output", "agent_loop_outputs"]


def agent_loop_output(result: pg.GenerationResult, **settings: Any) -> Any:
    """The `AgentLoopOutput` of a conversation that is one rollout; the settings are those of
    `agent_loop_outputs`. Raises `InvalidField` where it has several.
    """
    _ = result.rollout
    (output,) = agent_loop_outputs(result, **settings)
    return output


def agent_loop_outputs(
    result: pg.GenerationResult,
    *,
    reward: float | None = None,
    response_length: int | None = None,
    metrics: Mapping[str, object] | None = None,
    image_policy: pg.ImagePolicy | None = None,
) -> list[Any]:
    """An `AgentLoopOutput` for each rollout of a conversation. verl's `AgentLoopWorkerTQ` takes such
    a list, and other workers take one output.

    reward: the `reward_score` of each.
    response_length: what is behind so many ids of the response is cut off, as in verl's own loops.
    metrics: the fields of `AgentLoopMetrics` that you measured; the others have its defaults.
    image_policy: under which the images are read again.

    The log probabilities are None where they are not of the distribution that was sampled from.
    Images are PIL images, upright and in RGB, before any resizing. verl's processor resizes them
    anew, so it is to have the pixel budget of the requests.

    Raises `InvalidField` where there is no exact rollout, `GenerationError` for an image that can
    no longer be read, and `ValueError` for videos, for images that were not kept, and for a cut
    with images of later turns.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    turns = result.rounds or (result,)
    extra: dict[str, object] = {"turn_scores": [], "tool_rewards": []}
    if reward is not None:
        extra["reward_extra_info"] = {}  # read by workers of several outputs
    outputs = []
    for rollout in result.rollouts:
        response_ids = list(rollout.token_ids[:response_length])
        is_cut = len(response_ids) < len(rollout.token_ids)
        if is_cut and rollout.image_digests != turns[0].image_digests:
            raise ValueError(
                f"the response has {len(rollout.token_ids)} ids and images of later turns: a cut"
                f" at response_length={response_length} could divide one"
            )
        logprobs = sampled_logprobs(result, rollout.logprobs)
        images = _images(rollout, image_policy or pg.ImagePolicy())
        outputs.append(
            AgentLoopOutput(
                prompt_ids=list(rollout.prompt_token_ids),
                response_ids=response_ids,
                response_mask=[int(sampled) for sampled in rollout.mask[:response_length]],
                response_logprobs=logprobs and logprobs[:response_length],
                multi_modal_data={"images": images} if images else {},
                reward_score=reward,
                num_turns=2 * len(turns),
                metrics=AgentLoopMetrics(**(metrics or {})),
                extra_fields={**extra},
            )
        )
    return outputs


def _images(rollout: pg.Rollout, policy: pg.ImagePolicy) -> list[Any]:
    """As PIL images, read again from where the requests named them."""
    if rollout.images is None:
        raise ValueError("the result was read from a file, which does not hold its images")
    sources = [source for source in rollout.images if isinstance(source, pg.ImageSource)]
    if len(sources) < len(rollout.images):
        raise ValueError("the conversation has videos, which are no images of verl")
    if not sources:
        return []
    images = load_sources(pg.VlmGenerationRequest(prompt="", images=sources), policy).bind(
        lambda loaded: all_of(
            open_image(source.data or b"", policy, index)
            for index, source in enumerate(loaded.sources)
        )
    )
    if not pg.is_ok(images):
        raise images.failure()
    return [*images.unwrap()]
