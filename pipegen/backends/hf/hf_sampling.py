"""Choosing the next token of each row, every row by its own options, in one batch.

The order is vLLM's: biases, penalties, the mask of ending tokens, the plugins' processors, temperature,
min_p, top_k, top_p. The form of the answer is the last mask before temperature. The formulas are
those of transformers' logits processors and warpers, and of the OpenAI API for presence and
frequency. Repetition counts prompt and answer, the other two the answer alone. Raw logprobs come
from the logits as the model gave them. Processed ones come from the scores that were sampled from;
a greedy row has those before temperature and filters, as vLLM has it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import NoRepeatNGramLogitsProcessor

from pipegen.answer.barred import barred_after
from pipegen.backends.hf.hf_grammar import constrain
from pipegen.backends.hf.hf_rows import HFRow
from pipegen.core.errors import BackendFailed, GenerationError, UnsupportedOption
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import in_effect
from pipegen.records.results import TokenLogprob, margin_of
from pipegen.records.scores import likely

NO_NUMBERS = "the model's logits are no finite numbers"
Choice = tuple[int, TokenLogprob | None]
"""A token, with its logprob where its row asks for it."""


def penalise(
    scores: torch.Tensor,
    seen: torch.Tensor,
    counts: torch.Tensor,
    options: Sequence[GenerationOptions],
) -> torch.Tensor:
    """The scores after the three penalties. `seen` marks the tokens of prompt and answer, `counts`
    counts those of the answer.

    A repetition penalty divides the positive scores of seen tokens and multiplies the negative ones
    (CTRL, Keskar et al. 2019); the others are subtracted: frequency once for each time a token was
    made, presence once.
    """
    presence, frequency = (
        _constants([getattr(option, name) for option in options], scores)
        for name in ("presence_penalty", "frequency_penalty")
    )
    repetition, bounds = (
        _factors([option.repetition_penalty for option in options], scores),
        torch.finfo(scores.dtype),
    )
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition).clamp(
        bounds.min, bounds.max
    )
    return torch.where(seen, repeated, scores) - frequency * counts - presence * (counts > 0)


def narrow(scores: torch.Tensor, options: Sequence[GenerationOptions]) -> torch.Tensor:
    """The scores after temperature, min_p, top_k and top_p: a row samples from their softmax. All
    temperatures are above 0.
    """
    peaks = scores.amax(-1, keepdim=True)
    # the peak is 0: a tiny temperature cannot overflow
    scores = (scores - peaks) / _factors([option.temperature for option in options], scores)
    if any(option.min_p for option in options):
        least = _constants(
            [math.log(option.min_p) if option.min_p else -math.inf for option in options], scores
        )
        scores = scores.masked_fill(scores < least, -torch.inf)
    limits = [min(option.top_k or 0, scores.shape[-1]) for option in options]
    if any(limits):
        best = scores.topk(max(limits)).values
        least = best.gather(
            -1, _constants([max(limit - 1, 0) for limit in limits], scores, torch.long)
        )
        limited = _constants([limit > 0 for limit in limits], scores, torch.bool)
        scores = scores.masked_fill((scores < least) & limited, -torch.inf)
    narrowed = [row for row, option in enumerate(options) if (option.top_p or 1.0) < 1.0]
    if narrowed:
        rows = _constants(narrowed, scores, torch.long)[:, 0]
        top_p = _constants([options[row].top_p for row in narrowed], scores)
        scores = scores.index_copy(0, rows, _nucleus(scores[rows], top_p))
    return scores


def _nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the fewest likeliest tokens that together have a probability of `top_p` (Holtzman et al.
    2019).
    """
    ordered, order = scores.sort(dim=-1, stable=True)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    outside[..., -1] = False
    return scores.masked_fill(outside.scatter(-1, order, outside), -torch.inf)


def draw(chances: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """The token at which the summed probabilities pass each row's uniform number in [0, 1): shape
    (rows, 1). A token of probability 0 is never drawn.
    """
    summed = chances.to(_precise(chances.device)).cumsum(-1)
    total = summed[:, -1:]
    thresholds = torch.tensor(
        [[uniform] for uniform in uniforms], dtype=summed.dtype, device=summed.device
    )
    goal = torch.minimum(thresholds * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(summed, goal, right=True)


def _constants(
    values: Sequence[float | None], like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A column that is the same at every step, as options are: it goes to the device once. It must
    not be written to.
    """
    return _tensor_of(tuple(values), like.dtype if dtype is None else dtype, like.device)


def _factors(values: Sequence[float | None], like: torch.Tensor) -> torch.Tensor:
    """Constants above 0 to multiply or divide by; what the type would round to 0 or to infinity,
    and so to no number, becomes its least or its greatest.
    """
    bounds = torch.finfo(like.dtype)
    return _constants([min(max(value or 1.0, bounds.tiny), bounds.max) for value in values], like)


@functools.lru_cache(maxsize=64)
def _tensor_of(
    values: tuple[float | None, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.tensor([[value] for value in values], dtype=dtype, device=device)


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


class Sampler:
    """Chooses tokens for the rows of one batch, and keeps the history that penalties need (only
    where some row has one).
    """

    def __init__(self, rows: Sequence[HFRow], vocabulary: int, device: torch.device) -> None:
        self._device, self._vocabulary = device, vocabulary
        self._rows: list[HFRow] = []
        self._history: tuple[torch.Tensor, torch.Tensor] | None = None
        """Which tokens are in prompt and answer, and how often each is in the answer."""
        self.use(rows)

    def use(self, rows: Sequence[HFRow]) -> None:
        """Go on with these rows: some of those before, and new ones."""
        before, self._rows = {id(row): at for at, row in enumerate(self._rows)}, list(rows)
        self._options = [row.options for row in rows]
        self._sampled = [at for at, option in enumerate(self._options) if option.temperature]
        self._least = [at for at, row in enumerate(rows) if row.ending_ids]
        self._special = [
            at
            for at, row in enumerate(rows)
            if row.has_processors
            or row.options.no_repeat_ngram_size
            or row.options.allowed_token_ids
            or row.barred
        ]
        biases = [
            (at, token, bias)
            for at, option in enumerate(self._options)
            for token, bias in (option.logit_bias or {}).items()
        ]
        self._bias = [
            torch.tensor(column, device=self._device) for column in zip(*biases, strict=True)
        ]
        self._formed = [at for at, row in enumerate(rows) if row.grammar is not None]
        with_logprobs = [option for option in self._options if option.logprobs]
        self._top = max((option.top_logprobs or 0 for option in with_logprobs), default=0)
        self._logprobs = bool(with_logprobs)
        self._processes = [
            at for at, option in enumerate(self._options) if option.logprobs == "processed"
        ]
        history, self._history = self._history, None
        if any(in_effect(option, "penalty") for option in self._options):
            counts = torch.zeros((len(rows), self._vocabulary), device=self._device)
            seen = counts.bool()
            self._history = seen, counts
            for at, row in enumerate(rows):
                if history is not None and id(row) in before:
                    seen[at], counts[at] = (past[before[id(row)]] for past in history)
                else:
                    sequence = torch.tensor(row.sequence)
                    seen[at, sequence[sequence < self._vocabulary].to(self._device)] = True
                    counts[at] = torch.bincount(
                        torch.tensor(row.token_ids, dtype=torch.long), minlength=self._vocabulary
                    ).to(counts)

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, list[Choice]]:
        """The next token of each row, on the device with shape (rows, 1), and on the host.

        `logits` are the model's own, in float32. There is one transfer from the device; a row whose
        scores are no numbers fails.
        """
        scores = self._processed(logits)
        peaks, tokens = scores.max(-1, keepdim=True)
        if self._sampled:
            rows = _constants(self._sampled, scores, torch.long)[:, 0]
            narrowed = narrow(scores[rows], [self._options[at] for at in self._sampled])
            drawn = draw(narrowed.softmax(-1), [self._rows[at].uniform for at in self._sampled])
            if self._processes:
                scores = scores.index_copy(0, rows, narrowed)
            # beyond the end only where the scores are no numbers
            tokens[rows] = drawn.clamp(max=scores.shape[-1] - 1)
        if self._history is not None:
            seen, counts = self._history
            seen.scatter_(1, tokens, True)
            counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=counts.dtype))
        if self._processes:
            rows = _constants(self._processes, scores, torch.long)[:, 0]
            logits = logits.index_copy(0, rows, scores[rows])
        return tokens, self._reported(logits, tokens, peaks)

    def _processed(self, logits: torch.Tensor) -> torch.Tensor:
        scores = logits
        if self._bias:
            rows, tokens, biases = self._bias
            scores = logits.index_put((rows, tokens), biases.to(logits), accumulate=True)
        if self._history is not None:
            scores = penalise(scores, *self._history, self._options)
        waiting = [
            at
            for at in self._least
            if len(self._rows[at].token_ids) < (self._options[at].min_new_tokens or 0)
        ]
        blocked = [
            (at, token)
            for at in waiting
            for token in self._rows[at].ending_ids
            if token < self._vocabulary
        ]
        special = [at for at in self._special if not self._rows[at].done]
        formed = {at: self._rows[at] for at in self._formed if not self._rows[at].done}
        if scores is logits and (blocked or special or formed):
            scores = scores.clone()
        if blocked:
            at, token = torch.tensor(blocked, device=self._device).T
            scores[at, token] = -torch.inf
        for at in special:
            row, row_scores = self._rows[at], scores[at : at + 1]
            if row.options.allowed_token_ids:
                allowed = torch.tensor([row.options.allowed_token_ids], device=self._device)
                row_scores = torch.full_like(row_scores, -torch.inf).scatter(
                    -1, allowed, row_scores.gather(-1, allowed)
                )
            if barred := barred_after(row.token_ids, row.barred):
                row_scores[0, barred] = -torch.inf
            if row.options.no_repeat_ngram_size:
                # annotated for subclasses of Tensor that nothing makes
                ban: Any = NoRepeatNGramLogitsProcessor(row.options.no_repeat_ngram_size)
                row_scores = ban(row.ids(self._device), row_scores)
            scores[at] = row.process(row_scores)[0]
        if formed:
            constrain(formed, scores)
        return scores

    def _reported(
        self, logits: torch.Tensor, tokens: torch.Tensor, peaks: torch.Tensor
    ) -> list[Choice]:
        """Bring to the host, in one transfer, what it needs of the step."""
        columns = [tokens, peaks]
        if self._logprobs:
            table = logits.log_softmax(-1)
            # two for the margin
            columns += [
                table.gather(-1, tokens),
                *table.topk(min(max(self._top, 2), table.shape[-1])),
            ]
        choices: list[Choice] = []
        precise = _precise(self._device)
        for row, values in zip(
            self._rows,
            torch.cat([column.to(precise) for column in columns], dim=-1).tolist(),
            strict=True,
        ):
            if not math.isfinite(values[1]) and not row.done:
                hint = "try dtype='float32' or 'bfloat16'"
                refusal = _none_left(row) if values[1] == -math.inf else None
                row.error = refusal or BackendFailed(
                    NO_NUMBERS, backend="hf", scope="row", hint=hint
                )
            choices.append(
                (int(values[0]), _logprob(row.options, values) if row.options.logprobs else None)
            )
        return choices


def _logprob(options: GenerationOptions, values: Sequence[float]) -> TokenLogprob:
    wide = (len(values) - 3) // 2
    top = min(options.top_logprobs or 0, wide)
    likeliest = zip(map(int, values[3 + wide :][:top]), values[3 : 3 + top], strict=True)
    return TokenLogprob(
        token_id=int(values[0]),
        logprob=values[2],
        top=likely(likeliest),
        margin=margin_of(values[3 : min(5, 3 + wide)]),
    )


def _none_left(row: HFRow) -> GenerationError | None:
    """The error where the row's own options may have left no token."""
    if row.grammar is not None:
        stuck: GenerationError = row.grammar.stuck()
        return stuck
    names = in_effect(row.options, "tokens", "repeats")
    if not names:
        return None
    words = f"no token is left that {' and '.join(names)} allow"
    return UnsupportedOption(words, option=names[0], hint="bar fewer tokens")
