"""Follow one row while it is generated: what an engine halts by, at the very token, and what a stream shows.

>>> from pipegen.records.options import GenerationOptions, resolve
>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = ToyTokenizer()
>>> follower = RowDecoder(resolve(GenerationOptions(stop=("END",))), toy, eos_token_ids=(257,))
>>> [follower.feed(token_id) for token_id in toy.encode("aEbEND")], follower.finish.value, follower.stop, follower.count
(['a', '', 'Eb', '', '', ''], 'stop_string', 'END', 6)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipegen.core.errors import PluginFailed
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.options import GenerationOptions
from pipegen.records.results import Finish
from pipegen.stages.decoding import hidden_ids
from pipegen.stages.parts.detokenize import Detokenizer
from pipegen.stages.parts.stop_safe_tokens import quiet_tokens
from pipegen.stages.parts.stop_scan import StopScanner
from pipegen.stages.parts.watching import Watch
from pipegen.stages.stopping import ending_ids, endings, plan_stops, text_offset
from pipegen.stages.trimming import Stripper

__all__ = ["RowDecoder", "ending_ids", "feed_each"]

NONE: Mapping[int, str] = {}


class RowDecoder:
    """`decode` and `stop`, one token at a time, with the same text, finish, stop and count.

    The joined pieces that `feed` and `close` give back are the text, stripped if the options ask for it, before any plugin trims it. With `text=False`
    they are empty, and ids become text only where a stop string or a plugin needs it: tokens that can complete no stop are only kept (see `quiet`), and
    looked at later, as far as a stop may reach back. `options` must be resolved, or `ValueError` is raised.
    """

    def __init__(
        self, options: GenerationOptions, tokenizer: Tokenizer, eos_token_ids: Sequence[int] = (), plugins: Sequence[Plugin] = (), *, text: bool = True
    ) -> None:
        if options.decode is None or options.max_new_tokens is None or options.min_new_tokens is None:
            raise ValueError("the options take a value for everything: resolve(options) first")
        plan = plan_stops(options, tokenizer)
        self.finish: Finish | None = None
        """How the row ended; None while it runs."""
        self.stop: str | int | None = None
        """What ended it: the stop string, the stop token's id, or the plugin's name."""
        self.token_ids: list[int] = []
        """The generated tokens, the ending one included."""
        self.failure: PluginFailed | None = None
        """What a plugin did wrong while it watched; the row is then `ABORTED`."""
        self._endings = endings(options, plan, eos_token_ids)
        self._min, self._max = options.min_new_tokens, options.max_new_tokens
        self._watch = Watch(plugins)
        self.reads = bool(text or plan.text or plan.raw or self._watch)
        """Whether text bears on where the row ends, or is given out; else ids and their number tell all."""
        self._shows = text
        self._halts_only = not (text or plan.raw or self._watch)  # then it is enough to know whether a stop string completes
        self._hidden = hidden_ids(tokenizer, options.decode.skip_special_tokens) if self.reads else frozenset()
        self._text, self._stops = Detokenizer(tokenizer), StopScanner(plan.text)
        self._raw = _RawText(tokenizer, plan.raw) if plan.raw else None
        self._stripper = Stripper() if options.decode.strip_whitespace else None
        self._pending, self._given = "", 0  # text not given out yet, and the length of what is
        self._looked = 0  # so many tokens have been looked at
        self._tokens = quiet_tokens(tokenizer, plan.text, frozenset(self._endings), skips_special=bool(self._hidden)) if self._halts_only else None
        self.quiet: Mapping[int, str] = NONE
        """Tokens that now need no look: while there are fewer than `room` tokens, these may also be put to `token_ids` without `feed`."""
        self.room = self._max - 1
        """How many tokens the row takes before the one that ends it anyway."""
        self._rest()

    @property
    def count(self) -> int:
        """Generated tokens, the ending one included."""
        return len(self.token_ids)

    def feed(self, token_id: int) -> str:
        """The text that is final with this token. A row that has ended takes no more tokens and gives nothing."""
        if self.finish is not None:
            return ""
        if self._tokens is not None and self.quiet is not NONE and len(self.token_ids) < self.room and self._tokens.takes(token_id):
            self.token_ids.append(token_id)
            return ""
        self._catch_up()
        self.token_ids.append(token_id)
        self._looked = len(self.token_ids)
        shown = self._look(token_id)
        self._rest()
        return shown

    def _look(self, token_id: int) -> str:
        """Judge the newest token."""
        if token_id in self._endings and self.count > self._min:
            finish, stop = self._endings[token_id]
            return self._end(finish, stop, ending_id=token_id)
        piece = ""
        if self.reads:
            visible = "" if token_id in self._hidden else self._text.feed(token_id)
            piece = self._meet(visible) if self._halts_only else self._take(visible, "" if self._raw is None else self._raw.detokenizer.feed(token_id))
        if self.finish is None and self.count >= self._max:
            return self._show(piece) + self._end(Finish.LENGTH, None)
        return self._show(piece)

    def _rest(self) -> None:
        """From here on quiet tokens need no look, if the row goes on and nothing is held back of what came before."""
        rests = self._tokens is not None and self.finish is None and (not self.reads or self._text.settled)
        self.quiet = self._tokens.pieces if rests and self._tokens is not None else NONE

    def _catch_up(self) -> None:
        """Read of the tokens that were not looked at the characters that a stop may still need. As context of the next token the one before them does."""
        reach, missing = [], 0 if self._tokens is None else self._tokens.longest - 1
        for place in range(len(self.token_ids) - 1, self._looked - 1, -1):
            piece = self.quiet[self.token_ids[place]]
            reach.append(piece)
            missing -= len(piece)
            if missing <= 0:  # a stop that began before these would be complete within them
                break
        for piece in reversed(reach):
            self._stops.meets(piece)

    def close(self, *, aborted: bool = False, halted: str | None = None) -> str:
        """The row gets no more tokens: the engine gave up, or a plugin of its own (named by `halted`) ended it. Gives the text still held."""
        if self.finish is not None:
            return ""
        return self._end(Finish.ABORTED if aborted or halted is None else Finish.PLUGIN, None if aborted else halted)

    def _end(self, finish: Finish, stop: str | int | None, *, ending_id: int | None = None) -> str:
        """End the row, unless a stop string or a plugin ends it with this very token, or in what was held back of the last character."""
        raw_piece = ""
        if self._raw is not None and finish is not Finish.STOP_TOKEN:  # a stop token is judged by its id alone
            raw_piece = ("" if ending_id is None else self._raw.detokenizer.feed(ending_id)) + self._raw.detokenizer.finish()
        piece = ""
        if self.reads:
            piece = self._meet(self._text.finish()) if self._halts_only else self._take(self._text.finish(), raw_piece)
        if self.finish is None:
            self.finish, self.stop = finish, stop
            piece += self._pending
        return self._show(piece)

    def _meet(self, piece: str) -> str:
        """Judge new text that nobody is shown."""
        stop = self._stops.meets(piece, counts=self.count > self._min) if piece else None
        if stop is not None:
            self.finish, self.stop = Finish.STOP_STRING, stop
        return ""

    def _take(self, piece: str, raw_piece: str) -> str:
        """Judge new text, and give what is final of the text so far."""
        counts, start = self.count > self._min, self._given + len(self._pending)
        self._pending += piece
        scan = self._stops.feed(piece, counts=counts)
        stop = scan.stop
        length = start + len(piece) - len(self._stops.held) if scan.end is None or stop is None else start + scan.end - len(stop)
        if self._raw is not None:
            stop, length = self._raw.weigh(raw_piece, stop, length, len(piece) - (scan.end or 0), start + len(piece), counts)
        if stop is not None:
            self.finish, self.stop = Finish.STOP_STRING, stop
        else:
            halt = self._watch.feed(piece)
            if isinstance(halt, PluginFailed):
                self.finish, self.failure, length = Finish.ABORTED, halt, self._given
            elif halt is not None and counts:
                self.finish, self.stop, length = Finish.PLUGIN, halt.plugin, start + halt.kept
        final, self._pending = self._pending[: length - self._given], self._pending[length - self._given :] if self.finish is None else ""
        self._given = length
        return final

    def _show(self, piece: str) -> str:
        return "" if not self._shows else piece if self._stripper is None else self._stripper.feed(piece)


def feed_each(followers: Sequence[RowDecoder], token_ids: Sequence[int]) -> None:
    """`feed` for several rows, one token each: a step of a batch. Most tokens are quiet, and cost a look into a table.

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> rows = [RowDecoder(resolve(GenerationOptions(stop=stop)), ToyTokenizer(), text=False) for stop in (("ab",), ("b",))]
    >>> for token_id in b"xab":
    ...     feed_each(rows, (token_id, token_id))
    >>> [row.stop for row in rows]
    ['ab', 'b']
    """
    for follower, token_id in zip(followers, token_ids, strict=True):
        ids = follower.token_ids
        if token_id in follower.quiet and len(ids) < follower.room:
            ids.append(token_id)
        else:
            follower.feed(token_id)


class _RawText:
    """`raw_text` of the row, the stops looked for in it, and the lengths of both texts after each token."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self.detokenizer = Detokenizer(tokenizer)
        self._stops = StopScanner(stops)
        self._text_ends, self._raw_ends = [0], [0]

    def weigh(self, piece: str, stop: str | None, length: int, left: int, text_end: int, counts: bool) -> tuple[str | None, int]:
        """The stop to end at, and how much of `text` is final, given the same from `text`, where `stop` completes `left` characters before its end."""
        start = self._raw_ends[-1]
        self._text_ends.append(text_end)
        self._raw_ends.append(start + len(piece))
        scan = self._stops.feed(piece, counts=counts)
        if scan.stop is None or scan.end is None:
            return stop, length if stop is not None else min(length, self._offset(self._raw_ends[-1] - len(self._stops.held)))
        if stop is not None and (-left, -len(stop)) <= (scan.end - len(piece), -len(scan.stop)):
            return stop, length
        return scan.stop, self._offset(start + scan.end - len(scan.stop))

    def _offset(self, raw_offset: int) -> int:
        return text_offset(raw_offset, self._text_ends, self._raw_ends)
