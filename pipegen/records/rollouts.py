"""A rollout: the ids of a conversation, which of them were sampled, and with which log probability.

It is what a trainer learns on: `result.rollout` after one turn or many. No id in it was encoded
again, so the places of what was sampled are exact, or there is no rollout.

>>> from pipegen.records.options import resolve
>>> from pipegen.records.results import Finish, GenerationResult
>>> GenerationResult(
...     text="Four.",
...     raw_text="Four.",
...     prompt_token_ids=(1, 2),
...     token_ids=(3,),
...     finish=Finish.EOS,
...     options=resolve(),
... ).rollout.mask
(True,)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from pipegen.records.fields import InvalidField, names_of, record, unchecked_replace
from pipegen.records.messages import ImageSource

if TYPE_CHECKING:
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult

__all__ = ["Answers", "Grid", "Rollout", "answers_before", "rollout_of"]

Grid = tuple[int, int, int]
"""Patches of one image: time, height, width."""


@record
class Rollout:
    """The ids of a conversation, from its first prompt to its last answer, and which of them were
    sampled. Rewards are the caller's.
    """

    _word = "rollout"  # in messages of the codec
    id: str | None = None
    """The `id` of the request."""
    prompt_token_ids: tuple[int, ...]
    """The first prompt, each image expanded to all of its tokens."""
    token_ids: tuple[int, ...]
    """All that follows: the answers, each with the id that ended it, and what came between them."""
    mask: tuple[bool, ...]
    """One for each of `token_ids`: whether it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """One for each of `token_ids`: the model's own log probability (natural) of what was sampled,
    and 0.0 elsewhere. None unless every turn had the option `logprobs`.
    """
    images: tuple[ImageSource, ...] | None = ()
    """The images and videos of all turns, in order, as the requests named them. None where the result was read
    from a file, which has none of its images.
    """
    image_digests: tuple[str, ...] = ()
    """For each image, the SHA-256 of its upright RGB pixels before it was resized."""
    image_grid_thw: tuple[Grid | None, ...] = ()
    """For each image, its patches in time, height and width; None for models that do not work on
    such a grid.
    """


class Answers(NamedTuple):
    """What was sampled in the turns so far."""

    places: tuple[tuple[int, int], ...] = ()
    """Where it is in the ids of the conversation: starts and ends. The first one starts where the
    first prompt ends.
    """
    logprobs: tuple[float, ...] | None = ()
    """Of all these ids; None where a turn has none."""

    def then(self, result: GenerationResult) -> Answers:
        """With the answer of the next turn, but for what was forced in it."""
        new_logprobs, forced = result.logprobs, {*result.forced}
        logprobs = None
        if self.logprobs is not None and new_logprobs is not None:
            sampled = [
                token.logprob for index, token in enumerate(new_logprobs) if index not in forced
            ]
            logprobs = (*self.logprobs, *sampled)
        return Answers((*self.places, *_sampled(result)), logprobs)


def _sampled(result: GenerationResult) -> Iterator[tuple[int, int]]:
    """The places of an answer that were sampled; the first begins where its prompt ends."""
    start, forced = len(result.prompt_token_ids), {*result.forced}
    if not result.token_ids or 0 in forced:
        yield start, start
    for is_forced, places in groupby(range(len(result.token_ids)), forced.__contains__):
        if not is_forced:
            run = [*places]
            yield start + run[0], start + run[-1] + 1


def answers_before(
    result: GenerationResult, request: GenerationRequest | None = None
) -> Answers | str:
    """What was sampled in the turns before a result's, or why that cannot be told. The last request
    tells it; where there is none, as in a file of results, the rounds do.
    """
    turns = result.rounds or (result,)
    last_request = result.turn.request if request is None and result.turn is not None else request
    for index in reversed(range(len(turns))):
        turn = turns[index]
        if turn.exact is None:
            answers = Answers()
            break
        if not turn.exact:
            return "a prompt of it does not begin with the ids of the turns before"
        continues = None if last_request is None else last_request.continues
        if continues is not None:
            if continues.sampled is None:
                return "a prompt of it does not begin with the ids of the turns before"
            answers = Answers(continues.sampled, continues.logprobs)
            break
        earlier = turns[index - 1].turn  # of the last turn where this is the first: no matter
        last_request = None if earlier is None else earlier.request
    else:
        return "it was read from a file, which does not hold the turns before it"
    for turn, after in pairwise(turns[index:]):
        before = turn.prompt_token_ids + turn.token_ids
        if after.prompt_token_ids[: len(before)] != before:
            return "its rounds are several conversations"
        answers = answers.then(turn)
    return answers


def rollout_of(result: GenerationResult) -> Rollout:
    """The rollout of a result; see `GenerationResult.rollout`."""
    before: Answers | str = (
        "a chat server rendered its prompt and told no ids"
        if not result.prompt_token_ids or (result.completion_tokens and not result.token_ids)
        else answers_before(result)
    )
    if isinstance(before, str):
        raise InvalidField(
            f"there is no exact rollout of this conversation: {before}; engines that take ids give"
            ' one, with history="kept" and rounds in the result; each answer alone is'
            " prompt_token_ids and token_ids of its own turn"
        )
    places, logprobs = before.then(result)
    start = places[0][0]
    mask = [False] * (len(result.prompt_token_ids) + len(result.token_ids) - start)
    values = [0.0] * len(mask)
    sampled = iter(logprobs or ())
    for first, end in places:
        for index in range(first - start, end - start):
            mask[index], values[index] = True, next(sampled, 0.0)
    ids = result.prompt_token_ids + result.token_ids
    return Rollout(
        id=result.id,
        prompt_token_ids=ids[:start],
        token_ids=ids[start:],
        mask=tuple(mask),
        logprobs=None if logprobs is None else tuple(values),
        images=_images(result),
        image_digests=result.image_digests,
        image_grid_thw=result.image_grid_thw,
    )


def _images(result: GenerationResult) -> tuple[ImageSource, ...] | None:
    if result.turn is None:
        return None if result.image_digests else ()
    sources = result.turn.request.sources
    return tuple(
        [source.origin or unchecked_replace(source, **_unbounded(source)) for source in sources]
    )


def _unbounded(source: ImageSource) -> dict[str, None]:
    """The bounds of a source that the run has set, which are not its own."""
    bounds = ("max_pixels", "max_seconds", "max_decoded_pixels")
    return {name: None for name in names_of(source) if name in bounds}
