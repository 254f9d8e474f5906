"""Call: what is asked of an engine that takes token ids. The log probabilities of prompts are asked of it as scores are, and an answer of no tokens not at all.

With the option `prompt_logprobs`, the ids of a prompt after the first are a continuation of it: prompts that several rows share are read once more, whatever
is generated after them. With `max_new_tokens=0` nothing is: the row ends with `LENGTH`.

>>> from pipegen.core.drive import drive
>>> from pipegen.records.options import GenerationOptions, resolve
>>> from pipegen.records.requests import GenerationRequest
>>> from pipegen.records.results import Prompt
>>> from pipegen.testing.fake import FakeEngine
>>> options = resolve(GenerationOptions(max_new_tokens=0, prompt_logprobs=True))
>>> asked = Encoded(request=GenerationRequest(prompt="Hi"), options=options, prompt=Prompt(token_ids=(72, 105), compact_token_ids=(72, 105)))
>>> raw = drive(call(FakeEngine("never")), (Success(asked),))[0].unwrap()
>>> raw.token_ids, raw.prompt_logprobs[0], raw.prompt_logprobs[1].logprob
((), None, -1.105)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core import pipe
from pipegen.core.backend import Backend
from pipegen.core.calls import Call, Steps
from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.engines.protocol import AsyncScoresTokens, ScoresTokens
from pipegen.records.engine_list import shown
from pipegen.records.fields import altered
from pipegen.records.options import GenerationOptions, resolve
from pipegen.records.results import Encoded, Prompt, Raw, TokenLogprob
from pipegen.records.scores import Continued, TokenScores

__all__ = ["Scorer", "call"]

A = TypeVar("A")
B = TypeVar("B")

PromptLogprobs: TypeAlias = tuple[TokenLogprob | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """The engine as the backend of a call that scores."""

    engine: Any

    @property
    def name(self) -> str:
        return str(self.engine.name)

    def generate(self, inputs: Sequence[Continued]) -> Sequence[Slot[TokenScores]]:
        scores: Sequence[Slot[TokenScores]] = self.engine.score(inputs)
        return scores

    async def agenerate(self, inputs: Sequence[Continued]) -> Sequence[Slot[TokenScores]]:
        if isinstance(self.engine, AsyncScoresTokens):
            return await self.engine.ascore(inputs)
        import asyncio

        return await asyncio.to_thread(self.generate, inputs)


def call(backend: Backend[A, B]) -> pipe.Pipe[A, B]:
    """The stage that calls an engine, once, with exactly the slots that have a value; where none has, it is not called. It is named `call`, and alone has an
    effect.

    With token ids, an engine is called once for what the rows generate, and before that once for the prompts that are to be scored. A prompt whose scores
    fail fails its rows. `UnsupportedOption` where the engine gives no scores, and for prompts with images.
    """
    plain, scorer = pipe.call(backend), Scorer(backend)

    def steps(batch: Batch[Any]) -> Steps[Any]:
        if not any(_scores(slot.unwrap()) for slot in batch if is_ok(slot)):
            return (yield from plain.steps(batch))
        rows = {row: slot.unwrap() for row, slot in enumerate(batch) if is_ok(slot)}
        scores = yield from _scored(scorer, {row: encoded for row, encoded in rows.items() if encoded.options.prompt_logprobs})
        failed = {row: slot for row, slot in scores.items() if not is_ok(slot)}
        slots: dict[int, Slot[Raw]] = {row: Success(Raw(encoded=encoded, token_ids=())) for row, encoded in rows.items()}
        going = [row for row, encoded in rows.items() if row not in failed and encoded.options.max_new_tokens != 0]
        if going:
            answers = yield Call(backend, tuple(rows[row] for row in going), tuple((row, 0) for row in going))
            slots |= dict(zip(going, answers, strict=True))

        def noted(row: int) -> Slot[Raw]:
            if row in failed:
                return Failure(failed[row].failure())
            if row not in scores:
                return slots[row]
            return slots[row].map(lambda raw: altered(raw, prompt_logprobs=scores[row].unwrap()))

        return tuple([noted(row) if row in rows else Failure(slot.failure()) for row, slot in enumerate(batch)])

    return pipe.Pipe("call", steps, keeps_text=False, internal=True, backend=backend, rebind=lambda new: call(new.engine(backend)))


def _scores(asked: Any) -> bool:
    """Whether the row's prompt is to be scored, or nothing is to be generated after it."""
    return isinstance(asked, Encoded) and (bool(asked.options.prompt_logprobs) or asked.options.max_new_tokens == 0)


_NEUTRAL = resolve(GenerationOptions(max_new_tokens=1))


def _scored(scorer: Scorer, rows: dict[int, Encoded]) -> Generator[Call, Sequence[Slot[Any]], dict[int, Slot[PromptLogprobs]]]:
    """The log probabilities of the rows' prompts: equal ones are asked for once, for the first of their rows."""
    prompts: dict[Any, list[int]] = {}
    out: dict[int, Slot[PromptLogprobs]] = {}
    for row, encoded in rows.items():
        refused = _unsupported(encoded, scorer.engine)
        if refused is not None:
            out[row] = Failure(refused)
        elif len(encoded.prompt.token_ids) == 1:
            out[row] = Success((None,))
        else:
            prompts.setdefault(encoded.prompt.token_ids, []).append(row)
    if prompts:
        firsts = [own[0] for own in prompts.values()]
        answers = yield Call(scorer, tuple(_continued(rows[row]) for row in firsts), tuple((row, 0) for row in firsts), shown=False)
        out |= {row: slot.map(_logprobs) for own, slot in zip(prompts.values(), answers, strict=True) for row in own}
    return out


def _unsupported(encoded: Encoded, engine: Any) -> UnsupportedOption | None:
    if not isinstance(engine, ScoresTokens):
        return UnsupportedOption(f"{shown(engine.name)} does not give the log probabilities of prompts", option="prompt_logprobs")
    if encoded.prompt.images:
        words = "the log probabilities of a prompt with images are not given"
        return UnsupportedOption(words, option="prompt_logprobs", hint="leave it out, and score the text after the images with pg.score")
    return None


def _continued(encoded: Encoded) -> Continued:
    """The prompt as a continuation of its first token. Of its options none count: log probabilities are the model's own."""
    ids = encoded.prompt.token_ids
    first: Prompt = altered(encoded.prompt, token_ids=ids[:1], compact_token_ids=ids[:1])
    return Continued(encoded=altered(encoded, prompt=first, options=_NEUTRAL), continuation=ids[1:])


def _logprobs(scores: TokenScores) -> PromptLogprobs:
    """One for each token, with the likeliest one in its place; none for the first."""
    each = zip(scores.continued.continuation, scores.logprobs, scores.likeliest, strict=True)
    return (None, *(TokenLogprob(token_id=token, logprob=own, top=(likeliest,)) for token, own, likeliest in each))
