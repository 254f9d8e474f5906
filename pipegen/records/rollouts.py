"""Rollouts: the ids of a conversation, which of them were sampled, and with which log probability.

They are what a trainer learns on: `result.rollouts` after one turn or many. No id in them was
encoded again, so the places of what was sampled are exact, or there is none. A conversation is one
rollout for as long as each prompt begins with the ids of the turns before it. Where one does not,
as with a template that drops earlier thoughts, the next rollout begins.

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

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pipegen.core.names import InvalidField
from pipegen.records.fields import names_of, one_of, record, unchecked_replace
from pipegen.records.frozen import printed
from pipegen.records.messages import ImageSource
from pipegen.records.option_row import LogprobsOf

if TYPE_CHECKING:
    from pipegen.records.requests import GenerationRequest
    from pipegen.records.results import GenerationResult


Grid = tuple[int, int, int]
"""Patches of one image: time, height, width."""


@record
class Rollout:
    """The ids of a conversation, from its first prompt to its last answer, and which of them were
    sampled. Rewards are the caller's.

    A conversation has several where a prompt does not begin with the ids of the turns before. Each
    sampled token is in the mask of exactly one of them.
    """

    _word = "rollout"  # in messages of the codec
    id: str | None = None
    """The `id` of the request."""
    prompt_token_ids: tuple[int, ...]
    """The first prompt, each image expanded to all of its tokens."""
    token_ids: tuple[int, ...]
    """All that follows: the answers, with the ids that ended them, and what came between."""
    mask: tuple[bool, ...]
    """One for each of `token_ids`: whether it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """One for each of `token_ids`: the log probability (natural) of what was sampled, and 0.0
    elsewhere. None unless every turn had the option `logprobs`, with the same value.
    """
    logprobs_of: Annotated[LogprobsOf, one_of("raw", "processed")] = "raw"
    """Which distribution `logprobs` are of: the model's own, or that which was sampled from."""
    shared_prefix: int = 0
    """How many of the first `prompt_token_ids` an earlier rollout of the conversation has too. What was sampled of them is in the mask of the earlier one.
    """
    images: tuple[ImageSource, ...] | None = ()
    """The images and videos of all turns, in order. None where the result was read from a file."""
    image_digests: tuple[str, ...] = ()
    """For each image, the SHA-256 of its pixels before it was resized."""
    image_grid_thw: tuple[Grid | None, ...] = ()
    """For each image, its patches in time, height and width; None for models that do not work on
    such a grid.
    """

    def check_all(self) -> None:
        """Raise `InvalidField` where a list is not one of a value for each of `token_ids`."""
        each = f"for each of the {len(self.token_ids)} token_ids, not"
        if len(self.mask) != len(self.token_ids) or not {*map(type, self.mask)} <= {bool}:
            raise InvalidField(f"Rollout.mask takes True or False {each} {printed([*self.mask])}")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise InvalidField(
                f"Rollout.logprobs takes a number {each} {printed([*self.logprobs])}"
            )

    @property
    def ids(self) -> tuple[int, ...]:
        """All of its ids."""
        return self.prompt_token_ids + self.token_ids


class TurnRun(NamedTuple):
    """Turns whose prompts each begin with the ids of the turns before."""

    ids: tuple[int, ...] = ()
    """The last prompt and answer."""
    places: tuple[tuple[int, int], ...] = ()
    """Where in them is what was sampled: starts and ends. The first one starts where the first
    prompt ends.
    """
    logprobs: tuple[float, ...] | None = ()
    """Of all these ids; None where a turn has none, or those of another distribution."""
    logprobs_of: LogprobsOf = "raw"
    images: tuple[ImageSource, ...] | None = ()
    digests: tuple[str, ...] = ()
    grids: tuple[Grid | None, ...] = ()

    def goes_on(self, result: GenerationResult) -> bool:
        """Whether the prompt of a result begins with these turns."""
        return (
            result.prompt_token_ids[: len(self.ids)] == self.ids
            and result.image_digests[: len(self.digests)] == self.digests
        )

    def then(self, result: GenerationResult) -> TurnRun:
        """With the answer of the next turn, but for what was forced in it."""
        new_logprobs, forced = result.logprobs, {*result.forced}
        logprobs = None
        kind: LogprobsOf = "processed" if result.options.logprobs == "processed" else "raw"
        same = not self.ids or kind == self.logprobs_of
        if self.logprobs is not None and new_logprobs is not None and same:
            sampled = [
                token.logprob for index, token in enumerate(new_logprobs) if index not in forced
            ]
            logprobs = (*self.logprobs, *sampled)
        return TurnRun(
            result.prompt_token_ids + result.token_ids,
            (*self.places, *_sampled(result)),
            logprobs,
            kind,
            _images(result),
            result.image_digests,
            result.image_grid_thw,
        )

    def rollout(self, name: str | None, earlier: Sequence[Rollout]) -> Rollout:
        """The rollout of these turns; `earlier` are those of the same conversation."""
        start = self.places[0][0] if self.places else len(self.ids)
        mask = [False] * (len(self.ids) - start)
        values = [0.0] * len(mask)
        sampled = iter(self.logprobs or ())
        for first, end in self.places:
            for index in range(first - start, end - start):
                mask[index], values[index] = True, next(sampled, 0.0)
        return Rollout(
            id=name,
            prompt_token_ids=self.ids[:start],
            token_ids=self.ids[start:],
            mask=tuple(mask),
            logprobs=None if self.logprobs is None else tuple(values),
            logprobs_of=self.logprobs_of,
            shared_prefix=max([self._shared(one, start) for one in earlier], default=0),
            images=self.images,
            image_digests=self.digests,
            image_grid_thw=self.grids,
        )

    def _shared(self, earlier: Rollout, end: int) -> int:
        """How many ids of the first prompt, which ends there, begin an earlier rollout too."""
        count = min(len(self.digests), len(earlier.image_digests))
        if self.digests[:count] != earlier.image_digests[:count]:
            return 0  # ids do not show which image they are
        ids, others = self.ids[:end], earlier.ids
        most = min(end, len(others))
        return bisect_left(range(most), True, key=lambda at: ids[: at + 1] != others[: at + 1])


def _sampled(result: GenerationResult) -> Iterator[tuple[int, int]]:
    """The places of an answer that were sampled; the first begins where its prompt ends."""
    start, forced = len(result.prompt_token_ids), {*result.forced}
    if not result.token_ids or 0 in forced:
        yield start, start
    for is_forced, places in groupby(range(len(result.token_ids)), forced.__contains__):
        if not is_forced:
            run = [*places]
            yield start + run[0], start + run[-1] + 1


def runs_of(
    result: GenerationResult, request: GenerationRequest | None = None
) -> tuple[tuple[Rollout, ...], TurnRun] | str:
    """The rollouts that have ended, and the run that a result's answer ends; or why they are not
    known. `request` is that of a single turn, where the result does not hold it. The request of the
    first turn holds the turns before it.
    """
    turns = result.rounds or (result,)
    if request is None and turns[0].turn is not None:
        request = turns[0].turn.request
    earlier: list[Rollout] = []
    runs: list[TurnRun] = []
    if request is not None and (continues := request.continues) is not None:
        if continues.sampled is None:
            return "the ids of the turns before it are not known"
        before = (request.messages or ())[: continues.messages]
        runs.append(
            TurnRun(
                continues.before,
                continues.sampled,
                continues.logprobs,
                continues.logprobs_of,
                _named([source for message in before for source in message.sources]),
                continues.image_digests,
                continues.image_grid_thw,
            )
        )
        earlier += continues.earlier
    elif turns[0].exact is not None:
        return "it was read from a file, which does not hold the turns before it"
    for turn in turns:
        if not turn.prompt_token_ids or (turn.completion_tokens and not turn.token_ids):
            return "a chat server rendered its prompt and gave no ids"
        run = runs[-1] if runs else TurnRun()
        if not run.goes_on(turn):
            if turn.exact and not any(one.goes_on(turn) for one in runs):
                return "its rounds are several conversations"
            earlier.append(run.rollout(result.id, earlier))
            run = TurnRun()
        runs.append(run.then(turn))
    return tuple(earlier), runs[-1]


def rollouts_of(result: GenerationResult) -> tuple[Rollout, ...]:
    """The rollouts of a result; see `GenerationResult.rollouts`."""
    runs = runs_of(result)
    if isinstance(runs, str):
        raise InvalidField(
            f"there is no exact rollout of this conversation: {runs}; engines that take ids give"
            ' one, with history="kept" and rounds in the result; each answer alone is'
            " prompt_token_ids and token_ids of its own turn"
        )
    earlier, run = runs
    return *earlier, run.rollout(result.id, earlier)


def one_rollout(result: GenerationResult) -> Rollout:
    """The rollout of a result; see `GenerationResult.rollout`."""
    rollout, *others = rollouts_of(result)
    if others:
        raise InvalidField(
            f"this conversation has {1 + len(others)} rollouts, since a prompt of it does not begin"
            " with the ids of the turns before: take them all, from result.rollouts"
        )
    return rollout


def _images(result: GenerationResult) -> tuple[ImageSource, ...] | None:
    if result.turn is None:
        return None if result.image_digests else ()
    return _named(result.turn.request.sources)


def _named(sources: Sequence[ImageSource | None]) -> tuple[ImageSource, ...]:
    """Images as the requests named them."""
    return tuple(
        [
            source.origin or unchecked_replace(source, **_unbounded(source))
            for source in sources
            if source is not None
        ]
    )


def _unbounded(source: ImageSource) -> dict[str, None]:
    """The bounds of a source that the run has set, which are not its own."""
    bounds = ("max_pixels", "max_seconds", "max_decoded_pixels")
    return {name: None for name in names_of(source) if name in bounds}
