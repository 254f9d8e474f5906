"""One row of a call, on any engine: what was generated for it, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import GenerationError, MalformedResponse
from pipegen.core.slots import Slot, is_ok
from pipegen.ending.stop_state import TokenFold
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.results import Encoded, Prompt, Raw, TokenLogprob


class RowState:
    """A row that is followed token by token; `position` is its index among the call's inputs. With
    `text`, its tokens come with the text that is final.
    """

    def __init__(
        self,
        position: int,
        encoded: Encoded,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        plugins: Sequence[Plugin],
        *,
        text: bool = False,
    ) -> None:
        self.position, self.encoded, self.options = position, encoded, encoded.options
        self.fold = TokenFold(
            encoded.options,
            tokenizer,
            eos_token_ids,
            plugins if encoded.plugins_in_engine else (),
            text=text,
        )
        self.token_ids = self.fold.token_ids
        """What was generated so far."""
        self.logprobs: list[TokenLogprob] = []
        self.error: GenerationError | None = None
        self.ended_by_plugin: str | None = None
        """The plugin that ended the row by a hook of the engine's own."""
        self.aborted = False
        self.dropped = False
        """Whether the row's call has left it."""
        self.grammar: Any = None
        """The form of the answer as the engine follows it, where it has one."""
        self.reported = False
        """Whether the call has reported the row's end."""
        self._text = text

    @property
    def done(self) -> bool:
        return (
            self.fold.finish is not None
            or self.error is not None
            or self.ended_by_plugin is not None
            or self.dropped
            or self.aborted
        )

    def fail(self, error: GenerationError | None) -> None:
        """End the row with this error, unless it has one already, or there is none."""
        self.error = self.error or error

    def set_grammar(self, grammar: Slot[object]) -> None:
        """Give the answer the form of this grammar, or fail where there is none."""
        if is_ok(grammar):
            self.grammar = grammar.unwrap()
        else:
            self.fail(grammar.failure())

    def take(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> TokensMade | None:
        """Append tokens, up to the one that ends the row; with `text`, the event of those that
        belong to it, if any.
        """
        began = len(self.token_ids)
        shown = self.fold.take(token_ids)
        made = tuple(self.token_ids[began:])
        if logprobs is not None:
            self.logprobs += logprobs[: len(made)]
        self.fail(self.fold.failure)
        return (
            TokensMade(row=self.position, token_ids=made, text=shown)
            if self._text and made and self.error is None
            else None
        )

    def slot(self) -> Slot[Raw]:
        """The finished row's answer."""
        if self.error is None:
            self.fold.close(aborted=self.aborted, ended_by_plugin=self.ended_by_plugin)
            self.fail(self.fold.failure)
        if self.error is not None:
            return Failure(self.error)
        logprobs, ids = (
            tuple(self.logprobs) if self.options.logprobs else None,
            tuple(self.token_ids),
        )
        return Success(
            Raw(
                encoded=self.encoded,
                token_ids=ids,
                logprobs=logprobs,
                aborted=self.aborted,
                ended_by_plugin=self.ended_by_plugin,
                ending=self.fold.ending,
            )
        )


def newly_done(rows: Sequence[RowState]) -> Iterator[RowDone]:
    """The ends that have not been reported yet."""
    for row in rows:
        if row.done and not row.reported:
            row.reported = True
            yield RowDone(row=row.position, slot=row.slot())


def other_prompt(
    ids: Sequence[int] | None, prompt: Prompt, engine: str, hint: str
) -> MalformedResponse | None:
    """What is wrong where an engine says that it ran another prompt than pipegen's; None where it
    says nothing, or ran that one.
    """
    if ids is None or tuple(ids) == prompt.token_ids:
        return None
    pairs = zip(ids, prompt.token_ids, strict=False)
    first = next(
        (position for position, (seen, wanted) in enumerate(pairs) if seen != wanted),
        min(len(ids), len(prompt.token_ids)),
    )
    words = (
        f"{engine} ran a prompt of {len(ids)} tokens, which has {len(prompt.token_ids)} for"
        f" pipegen; they differ from position {first} on"
    )
    return MalformedResponse(words, hint=f"{hint}; the answer was not used")
