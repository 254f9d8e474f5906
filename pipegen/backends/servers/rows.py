"""One row of a call on a server: what comes back of it, whole or piece by piece, as an engine's answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from pipegen.backends.rows import EngineRow, other_prompt
from pipegen.backends.servers.wire import Completion
from pipegen.core.errors import MalformedResponse
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import TokensMade
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.results import Encoded, Raw

__all__ = ["ServerRow", "touches"]


@functools.lru_cache(maxsize=4096)
def touches(stop: str, tokens: tuple[str, ...]) -> bool:
    """Whether a stop string could match within the text of one of these tokens, or across its edge.

    >>> touches("|", ("<|im_end|>",)), touches("a<", ("<|im_end|>",)), touches("END", ("<|im_end|>",))
    (True, True, False)
    """
    edges = range(1, len(stop))
    return any(stop in token or token in stop or any(token.startswith(stop[at:]) or token.endswith(stop[:at]) for at in edges) for token in tokens)


class ServerRow(EngineRow):
    """A row on a server, whole or piece by piece: it is done where pipegen's rules end it, whatever the server goes on to say."""

    def __init__(
        self,
        encoded: Encoded,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        plugins: Sequence[Plugin],
        server: str,
        *,
        position: int = 0,
        text: bool = False,
    ) -> None:
        super().__init__(position, encoded, tokenizer, eos_token_ids, plugins, text=text)
        self._server, self._vocab_size = server, tokenizer.vocab_size
        self._finish: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted of the server."""
        return self._finish is not None or super().done

    def take_piece(self, piece: Completion) -> TokensMade | None:
        """Take a piece; the event of the tokens that belong to the row."""
        hint = "see that the server runs the same checkpoint, with the same limits on images"
        self.fail(other_prompt(piece.prompt_token_ids, self.encoded.prompt, self._server, hint))
        ids = piece.token_ids or ()
        if ids and max(ids) >= self._vocab_size:
            self.fail(MalformedResponse(f"{self._server} generated id {max(ids)}, and the vocabulary has {self._vocab_size} ids"))
        event = self.take(ids, piece.logprobs) if self.error is None else None
        self._finish = piece.finish
        return event

    def slot(self) -> Slot[Raw]:
        """The finished row's answer.

        A server that ends a row for its length before `max_new_tokens` has clipped it: the options then say what was really allowed, and `clipped_from`
        what was asked.
        """
        if self.error is None and self.decoder.finish is None:
            count, limit, least = len(self.token_ids), self.options.max_new_tokens or 0, self.options.min_new_tokens or 0
            self.aborted = self._finish not in ("stop", "length")
            if not self.aborted and not count:
                self.fail(MalformedResponse(f"{self._server} ended the row as {self._finish!r} without a token"))
            elif not self.aborted and count < least:
                self.fail(MalformedResponse(f"{self._server} ended the row after {count} tokens, of at least {least}"))
            elif self._finish == "length":
                clipped = dataclasses.replace(self.options, max_new_tokens=count)
                self.encoded = dataclasses.replace(self.encoded, options=clipped, clipped_from=self.encoded.clipped_from or limit)
        return super().slot()
