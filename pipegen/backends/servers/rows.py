"""One row of a call on a server: what comes back of it, whole or piece by piece, as an engine's answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from returns.result import Failure, Success

from pipegen.backends.servers.wire import Completion
from pipegen.core.errors import GenerationError, MalformedResponse
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.results import Encoded, Prompt, Raw, TokenLogprob
from pipegen.stages.parts.row_decoder import RowDecoder

__all__ = ["Row", "raw_of", "touches"]


@functools.lru_cache(maxsize=4096)
def touches(stop: str, tokens: tuple[str, ...]) -> bool:
    """Whether a stop string could match within the text of one of these tokens, or across its edge.

    >>> touches("|", ("<|im_end|>",)), touches("a<", ("<|im_end|>",)), touches("END", ("<|im_end|>",))
    (True, True, False)
    """
    edges = range(1, len(stop))
    return any(stop in token or token in stop or any(token.startswith(stop[at:]) or token.endswith(stop[:at]) for at in edges) for token in tokens)


def other_prompt(ids: Sequence[int] | None, prompt: Prompt, server: str) -> MalformedResponse | None:
    """What is wrong where the server says that it ran another prompt than pipegen's."""
    if ids is None or tuple(ids) == prompt.token_ids:
        return None
    pairs = zip(ids, prompt.token_ids, strict=False)
    first = next((at for at, (seen, wanted) in enumerate(pairs) if seen != wanted), min(len(ids), len(prompt.token_ids)))
    words = f"{server} ran a prompt of {len(ids)} tokens, which has {len(prompt.token_ids)} for pipegen; they differ from position {first} on"
    return MalformedResponse(words, hint="see that the server runs the same checkpoint, with the same limits on images; the answer was not used")


def raw_of(encoded: Encoded, completion: Completion, vocab_size: int, server: str) -> Slot[Raw]:
    """The engine's answer, from a completion that is whole.

    A server that ends a row for its length before `max_new_tokens` has clipped it: the options then say what was really allowed, and `clipped_from`
    what was asked.
    """
    wrong = other_prompt(completion.prompt_token_ids, encoded.prompt, server)
    if wrong is not None:
        return Failure(wrong)
    if completion.token_ids is None:
        return Failure(MalformedResponse(f"{server} gives no token ids"))
    ids, limit = completion.token_ids, encoded.options.max_new_tokens or 0
    if ids and max(ids) >= vocab_size:
        return Failure(MalformedResponse(f"{server} generated id {max(ids)}, and the vocabulary has {vocab_size} ids"))
    if completion.finish in ("stop", "length") and not ids:
        return Failure(MalformedResponse(f"{server} ended the row as {completion.finish!r} without a token"))
    if completion.finish in ("stop", "length") and len(ids) < (encoded.options.min_new_tokens or 0):
        return Failure(MalformedResponse(f"{server} ended the row after {len(ids)} tokens, of at least {encoded.options.min_new_tokens}"))
    if completion.finish == "length" and len(ids) < limit:
        clipped = dataclasses.replace(encoded.options, max_new_tokens=len(ids))
        encoded = dataclasses.replace(encoded, options=clipped, clipped_from=encoded.clipped_from or limit)
    aborted = completion.finish not in ("stop", "length")
    return Success(Raw(encoded=encoded, token_ids=ids, logprobs=completion.logprobs, aborted=aborted))


class Row:
    """A row that comes piece by piece, followed token by token: it is done where pipegen's rules end it, whatever the server goes on to say."""

    def __init__(self, encoded: Encoded, tokenizer: Tokenizer, eos_token_ids: Sequence[int], plugins: Sequence[Plugin], server: str) -> None:
        self.encoded, self.server = encoded, server
        self.error: GenerationError | None = None
        self.token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish: str | None = None
        self._vocab_size = tokenizer.vocab_size
        self._follower = RowDecoder(encoded.options, tokenizer, eos_token_ids, plugins, text=False)

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted of the server."""
        return self.error is not None or self._follower.finish is not None or self._finish is not None

    def take(self, piece: Completion) -> tuple[int, ...]:
        """Take a piece; the tokens that belong to the row, up to the one that ends it."""
        self.error = other_prompt(piece.prompt_token_ids, self.encoded.prompt, self.server)
        ids = piece.token_ids or ()
        if self.error is None and ids and max(ids) >= self._vocab_size:
            self.error = MalformedResponse(f"{self.server} generated id {max(ids)}, and the vocabulary has {self._vocab_size} ids")
        began = len(self.token_ids)
        for place, token_id in enumerate(ids):
            if self.done:
                break
            self.token_ids.append(token_id)
            if piece.logprobs is not None:
                self._logprobs.append(piece.logprobs[place])
            self._follower.feed(token_id)
            self.error = self._follower.failure
        self._finish = piece.finish
        return () if self.error is not None else tuple(self.token_ids[began:])

    def slot(self) -> Slot[Raw]:
        """The finished row's answer."""
        if self.error is not None:
            return Failure(self.error)
        logprobs = tuple(self._logprobs) if self.encoded.options.logprobs else None
        if self._follower.finish is not None:
            return Success(Raw(encoded=self.encoded, token_ids=tuple(self.token_ids), logprobs=logprobs))
        return raw_of(self.encoded, Completion(token_ids=tuple(self.token_ids), logprobs=logprobs, finish=self._finish), self._vocab_size, self.server)
