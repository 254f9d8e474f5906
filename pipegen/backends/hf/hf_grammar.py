"""Rows whose answer has a form: each follows its own grammar, beside rows that are free.

A row's grammar reads the tokens that the row has made when the next one is to be chosen. So it is
where the row is, however the row came there: in another batch, or after it has waited for memory.
"""

# llguidance need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from returns.result import Failure, Success

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf.hf_rows import HFRow
from pipegen.core.errors import GenerationError, UnsupportedOption
from pipegen.core.foreign_calls import Raised, guard
from pipegen.core.slots import Slot
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions

KEPT = 256
"""Compiled grammars that are kept for one model."""
MANY = 16
"""So many masks are filled by several threads; to wake them costs more than to fill a few."""


class RowGrammar:
    """The grammar of one row's answer, and how far the row has come in it."""

    def __init__(self, option: str, matcher: Any, vocabulary: int) -> None:
        self.option, self.matcher, self.vocabulary = option, matcher, vocabulary
        self._read = 0
        # made once: numpy takes longer to make it than to work on it
        mask = np.empty((vocabulary + 31) // 32, dtype=np.int32)
        self._packed, self._place, self._size = (
            mask.view(np.uint8),
            mask.ctypes.data,
            mask.nbytes,
        )

    def advance(self, token_ids: Sequence[int]) -> GenerationError | None:
        """Read the row's tokens, which begin with those of the last call. The error where the
        grammar cannot go on.
        """
        self.matcher.consume_tokens(list(token_ids[self._read :]))
        self._read = len(token_ids)
        return broken(self.option, self.matcher)

    def packed(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Which ids may come next, a bit for each. The next call writes over it."""
        self.matcher.unsafe_compute_mask_ptr(self._place, self._size)
        return self._packed

    def stuck(self) -> GenerationError:
        """The error of a row for which no next token is left."""
        message = (
            f"no token is left that both {self.option} and the row's other options allow: its"
            " answer can neither end here nor go on"
        )
        hint = (
            "lower min_new_tokens, or leave out what else limits the tokens, such as"
            " allowed_token_ids"
        )
        return broken(self.option, self.matcher) or UnsupportedOption(
            message, option=self.option, hint=hint
        )


def broken(option: str, matcher: Any) -> UnsupportedOption | None:
    """The error where a grammar cannot go on: a limit of llguidance's is passed. Otherwise None."""
    from pipegen.backends.grammar import cannot_compile

    return cannot_compile(option, matcher.get_error()) if matcher.is_error() else None


class Grammars:
    """Makes the grammars of rows. Compiled ones are kept, and rows of equal forms start with
    copies; the tokenizer is read once, when it is first needed.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._lock = checkpoint, threading.RLock()
        self._tokenizer: Any = None
        self._compiled = functools.lru_cache(maxsize=KEPT)(self._compile)

    def of(self, options: GenerationOptions) -> Slot[RowGrammar | None]:
        """The grammar of a row with these options, at its beginning; None where the form of the
        answer is free. Fails as `grammar_of` does.
        """
        from pipegen.backends.grammar import form_of, grammar_of, unsupported_with_form

        checkpoint = self._checkpoint
        name = next(iter(form_of(options)), "")
        if not name:
            return Success(None)
        refused = unsupported_with_form(options, "hf", masked_here=True)
        if refused is not None:
            return Failure(refused)

        def unread(raised: Raised) -> GenerationError:
            return UnsupportedOption(
                f"{shown('hf')} does not honour {name}: llguidance cannot use the model's tokenizer: {raised.words}"[
                    :600
                ],
                option=name,
            )

        def compiled(text: str | None) -> Slot[object]:
            with self._lock:
                return guard(lambda: self._compiled(text).deep_copy(), unread)

        def of_row(compiled_form: object) -> Slot[RowGrammar]:
            wrong = broken(name, compiled_form)
            if wrong is not None:
                return Failure(wrong)
            return Success(RowGrammar(name, compiled_form, self._tokenizer.vocab_size))

        text = grammar_of(
            options, checkpoint.tokenizer, checkpoint.eos_token_ids, checkpoint.vocab_size, "hf"
        )
        return text.bind(compiled).bind(of_row)

    def _compile(self, text: str) -> Any:
        from llguidance import LLMatcher, LLTokenizer

        if self._tokenizer is None:
            checkpoint = self._checkpoint
            size, raw = (
                max(checkpoint.vocab_size or 0, checkpoint.tokenizer.vocab_size),
                checkpoint.tokenizer.source,
            )
            end = next(
                token_id
                for token_id in (raw.eos_token_id, *checkpoint.eos_token_ids, None)
                if token_id is None or token_id < size
            )
            self._tokenizer = LLTokenizer(
                raw.backend_tokenizer.to_str(), n_vocab=size, eos_token=end
            )
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(text), log_level=0)
        # what is too large shows at the first token; and copies know the first mask
        matcher.compute_bitmask()
        return matcher

    def clear(self) -> None:
        """Let go of the tokenizer and of all compiled grammars."""
        with self._lock:
            self._tokenizer = None
            self._compiled.cache_clear()


def constrain(rows: Mapping[int, HFRow], scores: torch.Tensor) -> None:
    """Leave to these rows of a batch, each at its index, only the tokens that its grammar allows
    next. A row whose grammar fails is done.
    """
    for row in rows.values():
        row.fail(row.grammar.advance(row.token_ids))
    going = [index for index, row in rows.items() if row.error is None]
    if going:
        forbidden = torch.from_numpy(
            _masks([rows[index].grammar for index in going], scores.shape[-1])
        ).to(scores.device)
        for position, index in enumerate(going):
            scores[index].masked_fill_(forbidden[position], -torch.inf)


def _masks(grammars: Sequence[RowGrammar], width: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which ids each grammar forbids next, shape (grammars, width), those among them that the
    tokenizer does not have.
    """
    count = min(width, grammars[0].vocabulary)
    if len(grammars) == 1:
        packed = grammars[0].packed()[None]
    elif len(grammars) < MANY:
        packed = np.stack([grammar.packed() for grammar in grammars])
    else:
        masks = np.empty((len(grammars), (grammars[0].vocabulary + 31) // 32), dtype=np.int32)
        matchers = [(grammar.matcher, index) for index, grammar in enumerate(grammars)]
        _threads(os.getpid()).unsafe_compute_mask_ptr(
            matchers, masks.ctypes.data, masks.shape[1] * 4, len(grammars)
        )
        packed = masks.view(np.uint8)
    forbidden = np.unpackbits(~packed, axis=1, count=count, bitorder="little").view(np.bool_)
    return (
        forbidden
        if count == width
        else np.pad(forbidden, ((0, 0), (0, width - count)), constant_values=True)
    )


@functools.cache
def _threads(process: int) -> Any:
    """The threads that fill masks, of this process: those of another do not come along when it is
    forked.
    """
    from llguidance import LLExecutor

    return LLExecutor()
