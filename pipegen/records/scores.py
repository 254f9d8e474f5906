"""Scores: what an engine is asked for the log probability of a given continuation, what it answers,
and what is made of the answers.

A log probability is natural, and the model's own: before temperature, penalties and filters. The
first token of a sequence has none.

>>> one = Scored(
...     logprob=-3.0, token_logprobs=(-1.0, -2.0), token_ids=(7, 8), greedy=False, tokens=2, bytes=4
... )
>>> one.per_token, one.per_byte
(-1.5, -0.75)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from pipegen.core.errors import GenerationError
from pipegen.records.fields import FieldRow, record, unchecked_replace
from pipegen.records.results import Encoded, Thinking
from pipegen.records.rollouts import Grid


def likely(pairs: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The tokens whose probability is not 0.

    >>> likely([(7, -0.5), (8, float("-inf"))])
    ((7, -0.5),)
    """
    return tuple([pair for pair in pairs if pair[1] > -math.inf])


@record
class ScoreInput:
    """A context and the ids of a continuation: what an engine scores."""

    encoded: Encoded
    """The context, with the effective options."""
    continuation: tuple[int, ...]
    """The ids whose log probabilities are asked, each after the context and those before it."""
    text: str | None = None
    """The continuation as text, where the request gave one."""
    joined: bool = False
    """Whether the ids of both spell another text than the request gave; see `Scored.joined`."""
    top: int = 0
    """How many of the likeliest tokens of each place are asked for too."""
    option: str = "continuation"
    """What asks for it: a request's continuation, or the option `prompt_logprobs` or `logprobs`."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Context and continuation, each image expanded to all of its tokens."""
        return self.encoded.prompt.token_ids + self.continuation

    @property
    def whole(self) -> Encoded:
        """Both together as a prompt, of which one token more is generated: as servers and vLLM are
        asked.
        """
        prompt = self.encoded.prompt
        ids = {
            "token_ids": self.token_ids,
            "compact_token_ids": prompt.compact_token_ids + self.continuation,
        }
        options = unchecked_replace(self.encoded.options, max_new_tokens=1, max_prompt_tokens=None)
        return unchecked_replace(
            self.encoded, prompt=unchecked_replace(prompt, **ids), options=options
        )


@record
class TokenScores:
    """What an engine answers for one row."""

    continued: ScoreInput
    """What the engine was asked."""
    logprobs: tuple[float, ...]
    """One for each token of the continuation, in float32."""
    likeliest: tuple[tuple[int, float], ...]
    """For each, the likeliest token there with its log probability; the token itself, where it ties
    with another for the highest.
    """
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each, as many of the likeliest tokens there as were asked for, best first; empty where
    none were.
    """

    @property
    def greedy(self) -> tuple[bool, ...]:
        """For each, whether no other token is likelier there."""
        return tuple(
            [
                likeliest == token
                for (likeliest, _), token in zip(
                    self.likeliest, self.continued.continuation, strict=True
                )
            ]
        )


@record
class Scored:
    """The log probability of one continuation."""

    _word = "score"  # in messages of the codec
    id: str | None = None
    """The `id` of the request."""
    text: str | None = None
    """The continuation as the request gave it; None where it gave ids."""
    logprob: float
    """The sum of `token_logprobs`."""
    token_logprobs: tuple[float, ...]
    """The log probability (natural) of each token, given what is before it."""
    token_ids: tuple[int, ...]
    """The ids of the continuation. White space at the end of a context is a part of it (see
    `pipegen.stages.joining`).
    """
    joined: bool = False
    """Whether the context and `token_ids` spell another text, because the tokenizer joins their
    letters. Begin the continuation where a word begins, or give it as ids.
    """
    greedy: bool
    """Whether greedy decoding would write the continuation. A token that ties with another for the
    highest counts.
    """
    likeliest: tuple[tuple[int, float], ...] = ()
    """For each token the likeliest one in its place, with its log probability."""
    tokens: int
    """How many tokens the continuation has."""
    bytes: int
    """How many bytes of UTF-8 the continuation has as a text."""
    prompt_token_ids: Annotated[tuple[int, ...], FieldRow(brief=False)] = ()
    """The ids of the context, each image expanded to all of its tokens."""
    prompt_tokens: int = 0
    """Tokens of the context, images included."""
    route: str = ""
    """The name of the route that scored."""
    tried: tuple[GenerationError, ...] = ()
    """The errors of the routes tried before this one, oldest first."""
    thinking: Thinking | None = None
    """Whether the chat template honours the thinking switch."""
    image_grid_thw: tuple[Grid | None, ...] = ()
    """For each image, its patches in time, height and width; `None` for models that do not work on
    such a grid.
    """

    @property
    def per_token(self) -> float:
        """The mean log probability of a token."""
        return self.logprob / self.tokens

    @property
    def per_byte(self) -> float:
        """The mean log probability of a byte."""
        return self.logprob / max(self.bytes, 1)


@record
class Chosen:
    """The scores of several continuations of one context."""

    choices: tuple[Scored, ...]
    """One for each choice, in order."""

    @property
    def best(self) -> int:
        """The choice with the highest log probability, counted from 0; the first of equal ones."""
        return _first_highest([scored.logprob for scored in self.choices])

    @property
    def best_per_token(self) -> int:
        """The choice with the highest mean log probability of a token."""
        return _first_highest([scored.per_token for scored in self.choices])

    @property
    def best_per_byte(self) -> int:
        """The choice with the highest mean log probability of a byte."""
        return _first_highest([scored.per_byte for scored in self.choices])

    @property
    def probabilities(self) -> tuple[float, ...]:
        """How likely each choice is among these, by its log probability.

        >>> def scored(logprob):
        ...     return Scored(
        ...         logprob=logprob,
        ...         token_logprobs=(logprob,),
        ...         token_ids=(1,),
        ...         greedy=False,
        ...         tokens=1,
        ...         bytes=1,
        ...     )
        >>> Chosen(choices=(scored(-1000.0), scored(-1000.0))).probabilities
        (0.5, 0.5)
        """
        highest = max(scored.logprob for scored in self.choices)
        weights = [
            math.exp(scored.logprob - highest) if highest > -math.inf else 1.0
            for scored in self.choices
        ]
        return tuple(weight / math.fsum(weights) for weight in weights)


def _first_highest(values: list[float]) -> int:
    return max(range(len(values)), key=lambda index: (values[index], -index))


@record
class Perplexity:
    """The log probability of a whole text, each token predicted once.

    >>> Perplexity(logprob=-8.0, tokens=4, words=2, bytes=8).token_perplexity == math.exp(2.0)
    True
    """

    logprob: float
    """The sum over all tokens of the text."""
    tokens: int
    """Tokens that were predicted."""
    words: int
    """Words of the text, cut at white space."""
    bytes: int
    """Bytes of the text in UTF-8."""
    windows: int = 1
    """Calls' rows that it took: 1 where the text fits the model."""

    @property
    def token_perplexity(self) -> float:
        """Perplexity by token."""
        return _perplexity(self.logprob, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """Perplexity by word."""
        return _perplexity(self.logprob, self.words)

    @property
    def byte_perplexity(self) -> float:
        """Perplexity by byte."""
        return _perplexity(self.logprob, self.bytes)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of text."""
        return -self.logprob / max(self.bytes, 1) / math.log(2)


def _perplexity(logprob: float, count: int) -> float:
    exponent = -logprob / max(count, 1)
    return math.exp(exponent) if exponent < 700 else math.inf
