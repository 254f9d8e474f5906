"""For the tests of the conformance suite: an engine that honours all that it claims, in plain
Python.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from returns.result import Success

from pipegen.answer.barred import barred_after, spellings
from pipegen.ending.stop_state import TokenFold, ending_ids
from pipegen.engines.capabilities import ENGINES, Capability
from pipegen.records.option_groups import StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Encoded, Raw, TokenLogprob
from pipegen.testing.fake import FakeEngine

# Its renderer knows no templates, its images have one size, and it writes few forms.
HONEST: frozenset[Capability] = (ENGINES["vllm"] | {"no_repeat_ngram_size"}) - {
    "template",
    "videos",
    "fps",
    "max_frames",
    "max_video_pixels",
    "template_kwargs",
    "min_pixels",
    "max_pixels",
    "do_resize",
    "tool_choice",
}
LETTERS = tuple(b" ,.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\n0123456789")


@functools.lru_cache(maxsize=20_000)
def drawn_logits(before: str, end: int) -> Mapping[int, float]:
    """Logits drawn at random, and always the same after the same; a space and the end are likelier
    than the rest.
    """
    drawn = random.Random(hashlib.sha256(before.encode()).digest())
    found = {token_id: drawn.gauss(2.0 if token_id == 32 else 0.0, 2.0) for token_id in LETTERS}
    return {**found, end: drawn.gauss(3.0, 2.0)}


class Model(FakeEngine):
    """A model without weights: its logits are hashed from the prompt, the images and the last two
    tokens.
    """

    def __init__(self, honours: frozenset[Capability] = HONEST) -> None:
        self.draws = 0
        super().__init__(
            "",
            honours=honours,
            context_length=300,
            generation_config={"do_sample": True, "temperature": 0.5, "top_k": 5},
        )

    def logits(self, encoded: Encoded, ids: Sequence[int]) -> Mapping[int, float]:
        """The model's own, of each token that it can write."""
        images = [image.digest for image in encoded.prompt.images]
        return drawn_logits(
            f"{encoded.prompt.compact_token_ids} {images} {ids[-2:]}", self.eos_token_ids[0]
        )

    def _made(self, encoded: Encoded) -> Any:
        options, form = encoded.options, encoded.options.structured
        if form is not None and form != StructuredOptions():
            text = "no way" if form.choice else "aba-09xy" if form.regex else '"yes"'
            ids = (*self.tokenizer.encode(text), self.eos_token_ids[0])
            entries = tuple(TokenLogprob(token_id=token_id, logprob=-0.25) for token_id in ids)
            return Success(
                Raw(encoded=encoded, token_ids=ids, logprobs=entries if options.logprobs else None)
            )
        follower, entries = (
            TokenFold(options, self.tokenizer, self.eos_token_ids, self.plugins),
            list[TokenLogprob](),
        )
        while follower.finish is None:
            logits = self.logits(encoded, follower.token_ids)
            token_id = self.chosen(encoded, follower.token_ids, logits)
            total = math.log(sum(map(math.exp, logits.values())))
            logprobs = {each: logit - total for each, logit in logits.items()}
            top = tuple(
                sorted(logprobs.items(), key=lambda entry: -entry[1])[: options.top_logprobs or 0]
            )
            entries.append(TokenLogprob(token_id=token_id, logprob=logprobs[token_id], top=top))
            follower.feed(token_id)
        return Success(
            Raw(
                encoded=encoded,
                token_ids=tuple(follower.token_ids),
                logprobs=tuple(entries) if options.logprobs else None,
            )
        )

    def chosen(self, encoded: Encoded, ids: Sequence[int], logits: Mapping[int, float]) -> int:
        """The next token by the row's options."""
        options = encoded.options
        scores = penalised(logits, encoded.prompt.token_ids, ids, options)
        banned = (
            set(ending_ids(options, self.tokenizer, self.eos_token_ids))
            if len(ids) < (options.min_new_tokens or 0)
            else set[int]()
        )
        size = options.no_repeat_ngram_size or 0
        if size and len(ids) + 1 >= size:
            last = tuple(ids[len(ids) + 1 - size :])
            banned |= {
                ids[at + size - 1]
                for at in range(len(ids) + 1 - size)
                if tuple(ids[at : at + size - 1]) == last
            }
        banned |= {*barred_after(ids, spellings(options.bad_words or (), self.tokenizer))}
        allowed = options.allowed_token_ids or scores
        left = sorted(
            (
                (score, token_id)
                for token_id, score in scores.items()
                if token_id in allowed and token_id not in banned
            ),
            reverse=True,
        )
        if not options.temperature:
            return left[0][1]
        weights = [
            (math.exp((score - left[0][0]) / options.temperature), token_id)
            for score, token_id in left
        ]
        kept = [pair for pair in weights if pair[0] >= (options.min_p or 0.0)][
            : options.top_k or None
        ]
        mass, count = sum(weight for weight, _ in kept), 1
        while sum(weight for weight, _ in kept[:count]) < (
            options.top_p or 1.0
        ) * mass and count < len(kept):
            count += 1
        if options.seed is None:
            # each draw differs from the one before, and each run of the tests is the same
            self.draws += 1
        drawn = random.Random(
            f"{options.seed} {len(ids) if options.seed is not None else self.draws}"
        )
        return drawn.choices(
            [token_id for _, token_id in kept[:count]], [weight for weight, _ in kept[:count]]
        )[0]


def penalised(
    logits: Mapping[int, float],
    prompt: Sequence[int],
    ids: Sequence[int],
    options: GenerationOptions,
) -> dict[int, float]:
    """The scores after biases and the three penalties."""
    biases = options.logit_bias or {}
    logits = {token_id: score + biases.get(token_id, 0.0) for token_id, score in logits.items()}
    divisor, seen = options.repetition_penalty or 1.0, {*prompt, *ids}
    scores = {
        token_id: (score / divisor if score > 0 else score * divisor) if token_id in seen else score
        for token_id, score in logits.items()
    }
    frequency, presence = options.frequency_penalty or 0.0, options.presence_penalty or 0.0
    return {
        token_id: score - frequency * ids.count(token_id) - presence * (token_id in ids)
        for token_id, score in scores.items()
    }


@pytest.fixture(scope="session")
def model() -> type[Model]:
    """The engine that honours all that it claims."""
    return Model
