"""Were the tokens of a recorded row chosen as its options say, by this model?

Each of its ids is the likeliest one where it was greedy, and one that its filters leave where it was
drawn. Its recorded log probabilities are the reference's. What a row's options change beyond that
(penalties, a form) is not known to the reference, and such a row is `not judged`, unless its log
probabilities tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from pipegen.answer.barred import barred_after, spellings
from pipegen.drivers.route import Route
from pipegen.records.options import in_effect
from pipegen.report.audit_row import is_one_text
from pipegen.report.causes import OTHER_WEIGHTS
from pipegen.report.drawn import left_out, surely_left, unknown_options
from pipegen.report.together import ScoredRow, likeliest_at
from pipegen.report.verdict import NoiseLimits, other_prompt_in_words, rms

_LOOKED = 8
"""So many places of a row are looked at more closely."""
_UNLIKELY = -12.0
"""A token that is less likely shows other weights, where one is known not to be drawn."""
_ANY = 0.1
"""So often any token of the vocabulary comes, where it is not the model's."""
_NEVER = -14.0
"""A natural log probability that no row of a large file has."""
_Top = tuple[tuple[int, float], ...]
RowKind = Literal[
    "right", "template", "length", "text", "sampling", "weights", "unknown", "not judged"
]


class TokenJudge(NamedTuple):
    """What judges one row."""

    row: ScoredRow
    reference: Route
    limits: NoiseLimits

    def verdict(self) -> tuple[RowKind, str]:
        """The first check that fails and what it rests on; else that the row is right."""
        tries = (self._prompt, self._logprobs, self._allowed, self._not_judged, self._chosen)
        found = next((result for result in (look() for look in tries) if result is not None), None)
        if found is not None:
            return found
        distance = f"; log probabilities are {rms(self.row.far):.2g} away" if self.row.far else ""
        options = self.row.options
        how = (
            "the likeliest one"
            if not options.temperature
            else "one that its options leave"
            if in_effect(options, "filter")
            else "one that may be drawn"
        )
        return "right", f"each of the {len(self.row.ids)} ids is {how}{distance}"

    def _prompt(self) -> tuple[RowKind, str] | None:
        result, expected = self.row.result, self.row.expected
        prompt, decode = result.prompt_token_ids, self.reference.engine.tokenizer.decode
        count = len(prompt) or result.prompt_tokens
        if expected is not None and (
            prompt != expected if prompt else count not in (0, len(expected))
        ):
            return "template", other_prompt_in_words(expected, prompt, count, decode)
        text, images = result.prompt_text, result.image_grid_thw
        if text and prompt and not images and decode(prompt) != text:
            return "template", "the ids of the recorded prompt are not those of its text"
        return None

    def _logprobs(self) -> tuple[RowKind, str] | None:
        far = rms(self.row.far)
        if far is None or far <= 2 * self.limits.spread:
            return None
        return "weights" if far >= OTHER_WEIGHTS else "unknown", (
            f"the recorded log probabilities are {far:.2g} away, and {self.limits.spread:.2g} is"
            " explained"
        )

    def _allowed(self) -> tuple[RowKind, str] | None:
        """The first token that the request does not allow. Without ids nothing is known of them."""
        allowed, ids = self.row.options.allowed_token_ids, self.row.result.token_ids
        for index, token in enumerate(ids if allowed else ()):
            if token not in (allowed or ()):
                return (
                    "sampling",
                    f"{self._at(index)} ({token}), which allowed_token_ids leaves out",
                )
        return None

    def _not_judged(self) -> tuple[RowKind, str] | None:
        unknown = unknown_options(self.row.options)
        if not unknown:
            return None
        if self.row.far:
            return "right", (
                f"log probabilities are {rms(self.row.far):.2g} away; which tokens are chosen with"
                f" {unknown[0]} is not judged"
            )
        return "not judged", f"it was made with {' and '.join(unknown)}"

    def _chosen(self) -> tuple[RowKind, str] | None:
        odd = self._impossible() if self.row.options.temperature else self._parted()
        if odd is None:
            return None
        index, reason = odd
        logprobs = self.row.logprobs
        evidence = f"{reason}; to the reference its log probability is {logprobs[index]:.2g}"
        if self.row.far:
            return "sampling", f"{evidence}; the recorded log probabilities are the reference's"
        if self._is_foreign and min(logprobs) < _UNLIKELY:
            return "weights", f"{evidence}, and that of another token {min(logprobs):.2g}"
        return "unknown", evidence

    @property
    def _is_foreign(self) -> bool:
        """Whether such tokens are not drawn at temperature 1 either."""
        drawn = [self._unlikely(index, 1.0) for index in range(len(self.row.ids))]
        return not self.row.options.temperature or math.fsum(drawn) > -_NEVER

    @property
    def _free(self) -> frozenset[int]:
        """The places where the likeliest token may have been one that the options hold back, or where
        none was chosen.
        """
        options, ends = self.row.options, frozenset(self.reference.engine.eos_token_ids)
        stop = options.stop
        count = (
            len(self.row.ids)
            if stop is not None and stop.ignore_eos
            else options.min_new_tokens or 0
        )
        barred = spellings(options.bad_words or (), self.reference.engine.tokenizer)
        return frozenset(self.row.result.forced) | {
            index
            for index, (choice, _) in enumerate(self.row.likeliest)
            if (index < count and choice in ends)
            or (barred and choice in barred_after(self.row.ids[:index], barred))
        }

    @property
    def _others(self) -> Iterable[tuple[int, int, float]]:
        """The places, outside of these, where another token than the likeliest one was chosen: with
        the likeliest, and by how much that is likelier.
        """
        free, row = self._free, self.row
        for index, (token, (choice, highest)) in enumerate(
            zip(row.ids, row.likeliest, strict=True)
        ):
            if token != choice and index not in free:
                yield index, choice, highest - row.logprobs[index]

    def _parted(self) -> tuple[int, str] | None:
        """The first token that greedy decoding would not have chosen."""
        allowed, others = self.row.options.allowed_token_ids, [*self._others]
        if allowed:  # the likeliest of all may be one that is left out
            if not self.row.result.token_ids:
                return None
            odd = self._looked_at(
                [index for index, choice, _ in others if choice not in allowed], self._better
            )
            if odd is not None:
                return odd
            others = [place for place in others if place[1] in allowed]
        for index, choice, margin in others:
            if margin > self.limits.margin:
                return None if self._read_otherwise(index, choice) else self._greedy(index, choice)
        return None

    def _greedy(self, index: int, choice: int) -> tuple[int, str]:
        word = repr(self.reference.engine.tokenizer.decode((choice,)))
        return index, f"it was greedy, and {self._at(index)}, and the reference takes {word}"

    def _read_otherwise(self, index: int, choice: int) -> bool:
        """Whether the rest of a row without ids is the text that the reference goes on with, in
        other tokens: a stop string may end within a token.
        """
        rest, tokenizer = self.row.ids[index:], self.reference.engine.tokenizer
        return not self.row.result.token_ids and is_one_text(rest, choice, tokenizer)

    def _at(self, index: int) -> str:
        word = self.reference.engine.tokenizer.decode((self.row.ids[index],))
        return f"at token {index} it has {word!r}"

    def _impossible(self) -> tuple[int, str] | None:
        """The first token that the row's temperature and filters would not have left."""
        options, logprobs, free = (
            self.row.options,
            self.row.logprobs,
            self._free,
        )
        evidence = [
            0.0 if index in free else self._unlikely(index) for index in range(len(self.row.ids))
        ]
        if math.fsum(evidence) > -_NEVER:
            index = max(range(len(evidence)), key=evidence.__getitem__)
            return index, f"{self._at(index)}, and tokens as unlikely as the row's are not drawn"
        others = [place for place in self._others if not self._read_otherwise(*place[:2])]
        for index, _, margin in others if options.min_p else ():
            least = math.log(options.min_p or 1.0) - self.limits.margin
            if -margin / (options.temperature or 1.0) < least:
                return index, f"{self._at(index)}, which min_p={options.min_p:g} leaves out"
        unsure = [
            index
            for index, _, _ in others
            if in_effect(options, "filter") and not surely_left(logprobs[index], options)
        ]
        return self._looked_at(sorted(unsure, key=logprobs.__getitem__), self._left_out)

    def _unlikely(self, index: int, least: float = 0.0) -> float:
        """How a token shows that none was drawn from the reference, as a logarithm: by how much
        likelier it is where every now and then any token of the vocabulary comes.

        No right row has more than a number in sum, but for one in its exponential.
        """
        vocabulary = self.reference.engine.tokenizer.vocab_size
        temperature = self.row.options.temperature or 1.0
        below = self.row.likeliest[index][1] - self.row.logprobs[index]
        times = below / max(temperature, least) - math.log(vocabulary)
        return math.log1p(_ANY * math.expm1(min(times, 50.0)))

    def _looked_at(
        self, places: list[int], wrong: Callable[[int, _Top], tuple[int, str] | None]
    ) -> tuple[int, str] | None:
        """What is wrong in the first of a few places, by the likeliest tokens there."""
        rows = [(self.row, index) for index in sorted(places[:_LOOKED])]
        found = (wrong(index, tokens) for (_, index), tokens in likeliest_at(rows, self.reference))
        return next((odd for odd in found if odd is not None), None)

    def _left_out(self, index: int, tokens: _Top) -> tuple[int, str] | None:
        """Whether the token is not among those that top_k and top_p leave."""
        name = left_out(
            self.row.logprobs[index],
            tokens,
            self.row.options,
            self.limits.margin,
            self.reference.engine.tokenizer.vocab_size,
        )
        return (index, f"{self._at(index)}, which {name} leaves out") if name else None

    def _better(self, index: int, tokens: _Top) -> tuple[int, str] | None:
        """Whether greedy decoding takes another one of the allowed."""
        allowed = self.row.options.allowed_token_ids or ()
        for token, logprob in tokens:
            if token in allowed:
                margin = logprob - self.row.logprobs[index]
                is_other = token != self.row.ids[index] and margin > self.limits.margin
                return self._greedy(index, token) if is_other else None
        return None
