"""Decode one row token by token: ids in, text and ending out. The one way to end a row, used by
every engine's loop and for whole answers.

>>> from pipegen.records.options import GenerationOptions, resolve
>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = ToyTokenizer()
>>> row = RowDecoder(resolve(GenerationOptions(stop=("END",))), toy, eos_token_ids=(257,))
>>> [row.feed(token_id) for token_id in toy.encode("aEbEND")], row.finish.value, row.stop, row.count
(['a', '', 'Eb', '', '', ''], 'stop_string', 'END', 6)
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from pipegen.core.border import EXHAUSTED, report
from pipegen.core.errors import GenerationError, PluginFailed, StageFailed
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.options import GenerationOptions
from pipegen.records.results import Ending, Finish
from pipegen.stages.decoding import hidden_ids
from pipegen.stages.parts.detokenize import Detokenizer, added
from pipegen.stages.parts.stop_scan import StopScanner
from pipegen.stages.parts.watching import Watch
from pipegen.stages.stopping import ending_ids, endings, plan_stops, text_offset
from pipegen.stages.trimming import Stripper

__all__ = ["RowDecoder", "StopSafeTokens", "ending_ids", "feed_each", "stop_safe_tokens"]

NONE: Mapping[int, str] = {}


class RowDecoder:
    """`decode` and `stop`, one token at a time, with the same text, finish, stop and count.

    The joined pieces that `feed` and `close` return are the text, stripped if the options ask for
    it, before any plugin trims it. With `text=False` they are empty, and ids become text only where
    a stop string or a plugin needs it: tokens that can complete no stop are only stored (see
    `stop_safe`) and read later, as far as a stop may reach back. A tokenizer or a plugin that
    raises fails the row: see `failure`. Raises `ValueError` for options that are not resolved.
    """

    def __init__(
        self,
        options: GenerationOptions,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int] = (),
        plugins: Sequence[Plugin] = (),
        *,
        text: bool = True,
    ) -> None:
        if (
            options.decode is None
            or options.max_new_tokens is None
            or options.min_new_tokens is None
        ):
            raise ValueError("the options take a value for everything: resolve(options) first")
        plan, self._options = plan_stops(options, tokenizer), options
        self.finish: Finish | None = None
        """How the row ended; None while it runs."""
        self.stop: str | int | None = None
        """What ended it: the stop string, the stop token's id, or the plugin's name."""
        self.token_ids: list[int] = []
        """The generated tokens, the ending one included."""
        self.shown = ""
        """The text that `feed_each` made final last."""
        self.failure: GenerationError | None = None
        """What a plugin or the tokenizer did wrong; the row is then `ABORTED`."""
        self._endings = endings(options, plan, eos_token_ids)
        self._min, self._max = options.min_new_tokens, options.max_new_tokens
        self._watch, self._watched = (
            Watch(plugins),
            tuple(plugin.name for plugin in plugins if plugin.feed is not None),
        )
        self.reads = bool(text or plan.text or plan.raw or self._watch)
        """Whether text is returned or decides where the row ends; otherwise the ids and their
        number do.
        """
        self._shows = text
        # then it is enough to know whether a stop string completes
        self._halts_only = not (text or plan.raw or self._watch)
        self._hidden = (
            hidden_ids(tokenizer, options.decode.skip_special_tokens) if self.reads else frozenset()
        )
        self._text, self._stops = Detokenizer(tokenizer), StopScanner(plan.text)
        self._raw = _RawText(tokenizer, plan.raw) if plan.raw else None
        self._stripper = Stripper() if options.decode.strip_whitespace else None
        # text not returned yet, and the length of the text that was
        self._pending, self._given = "", 0
        self._looked = 0  # how many tokens have been read
        self._tokens = (
            stop_safe_tokens(
                tokenizer, plan.text, frozenset(self._endings), skips_special=bool(self._hidden)
            )
            if self._halts_only
            else None
        )
        self.stop_safe: Mapping[int, str] = NONE
        """Tokens that can complete no stop now: before the token at `last`, they may also be
        appended to `token_ids` without `feed`.
        """
        self.last = self._max - 1
        """The position of the token that ends the row by its length."""
        self._rest()

    @property
    def count(self) -> int:
        """Generated tokens, the ending one included."""
        return len(self.token_ids)

    def feed(self, token_id: int) -> str:
        """The text that is final with this token. A row that has ended takes no more tokens and
        gives nothing.
        """
        if self.finish is not None:
            return ""
        try:
            if (
                self._tokens is not None
                and self.stop_safe is not NONE
                and len(self.token_ids) < self.last
                and self._tokens.takes(token_id)
            ):
                self.token_ids.append(token_id)
                return ""
            self._catch_up()
            self.token_ids.append(token_id)
            self._looked = len(self.token_ids)
            shown = self._look(token_id)
            self._rest()
        except EXHAUSTED as raised:
            return self._fail(raised)
        return shown

    def take(self, token_ids: Sequence[int]) -> str:
        """`feed` for several tokens, up to the one that ends the row."""
        ids, shown = self.token_ids, ""
        # all but those that may end the row are only stored
        if not self.reads and self.finish is None:
            stored = token_ids[: max(0, self.last - len(ids))]
            if not self._endings.keys().isdisjoint(stored):
                stored = stored[
                    : next(
                        place for place, token_id in enumerate(stored) if token_id in self._endings
                    )
                ]
            ids += stored
            self._looked = len(ids)
            token_ids = token_ids[len(stored) :]
        for token_id in token_ids:
            if token_id in self.stop_safe and len(ids) < self.last:
                ids.append(token_id)
            elif self.finish is None:
                shown += self.feed(token_id)
        return shown

    def _look(self, token_id: int) -> str:
        """Judge the newest token."""
        if token_id in self._endings and self.count > self._min:
            finish, stop = self._endings[token_id]
            return self._end(finish, stop, ending_id=token_id)
        piece = ""
        if self.reads:
            visible = "" if token_id in self._hidden else self._text.feed(token_id)
            piece = (
                self._meet(visible)
                if self._halts_only
                else self._take(
                    visible, "" if self._raw is None else self._raw.detokenizer.feed(token_id)
                )
            )
        if self.finish is None and self.count >= self._max:
            return self._show(piece) + self._end(Finish.LENGTH, None)
        return self._show(piece)

    def _rest(self) -> None:
        """From here on stop-safe tokens are only stored, if the row goes on and nothing is held
        back of what came before.
        """
        rests = (
            self._tokens is not None
            and self.finish is None
            and (not self.reads or self._text.settled)
        )
        self.stop_safe = self._tokens.pieces if rests and self._tokens is not None else NONE

    def _catch_up(self) -> None:
        """Read those characters of the stored tokens that a stop may still need. For the next
        token's context, the last token that was read will do.
        """
        reach, missing = [], 0 if self._tokens is None else self._tokens.longest - 1
        for place in range(len(self.token_ids) - 1, self._looked - 1, -1):
            piece = self.stop_safe[self.token_ids[place]]
            reach.append(piece)
            missing -= len(piece)
            if missing <= 0:  # a stop that began before these would be complete within them
                break
        for piece in reversed(reach):
            self._stops.meets(piece)

    def close(self, *, aborted: bool = False, halted: str | None = None) -> str:
        """The row gets no more tokens: the engine gave up, or a plugin of its own (named by
        `halted`) ended it. Returns the text still held.
        """
        if self.finish is not None:
            return ""
        try:
            return self._end(
                Finish.ABORTED if aborted or halted is None else Finish.PLUGIN,
                None if aborted else halted,
            )
        except EXHAUSTED as raised:
            return self._fail(raised)

    @property
    def ending(self) -> Ending | None:
        """How the row ended, for the stages after the engine, which then look for no stop again;
        None while it runs.
        """
        if self.finish is None or self.failure is not None:
            return None
        cut = self.finish in (Finish.STOP_STRING, Finish.PLUGIN) and not self._halts_only
        length, ids = self._given if cut else None, tuple(self.token_ids)
        return Ending(
            finish=self.finish,
            stop=self.stop,
            length=length,
            watched=self._watched,
            token_ids=ids,
            options=self._options,
        )

    def _fail(self, raised: Exception) -> str:
        seen = report(raised)
        self.stop_safe = NONE
        self.finish, self.failure = (
            Finish.ABORTED,
            StageFailed(
                f"the generated ids cannot be decoded: {seen.words}",
                stage="decode",
                incident=seen.incident,
            ),
        )
        return ""

    def _end(self, finish: Finish, stop: str | int | None, *, ending_id: int | None = None) -> str:
        """End the row, unless a stop string or a plugin ends it with this very token, or in what
        was held back of the last character.
        """
        raw_piece = ""
        # a stop token is judged by its id alone
        if self._raw is not None and finish is not Finish.STOP_TOKEN:
            raw_piece = (
                "" if ending_id is None else self._raw.detokenizer.feed(ending_id)
            ) + self._raw.detokenizer.finish()
        piece = ""
        if self.reads:
            piece = (
                self._meet(self._text.finish())
                if self._halts_only
                else self._take(self._text.finish(), raw_piece)
            )
        if self.finish is None:
            self.finish, self.stop = finish, stop
            piece += self._pending
            self._given += len(self._pending)
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
        length = (
            start + len(piece) - len(self._stops.held)
            if scan.end is None or stop is None
            else start + scan.end - len(stop)
        )
        if self._raw is not None:
            stop, length = self._raw.weigh(
                raw_piece, stop, length, len(piece) - (scan.end or 0), start + len(piece), counts
            )
        if stop is not None:
            self.finish, self.stop = Finish.STOP_STRING, stop
        else:
            halt = self._watch.feed(piece)
            if isinstance(halt, PluginFailed):
                self.finish, self.failure, length = Finish.ABORTED, halt, self._given
            elif halt is not None and counts:
                self.finish, self.stop, length = Finish.PLUGIN, halt.plugin, start + halt.kept
        final, self._pending = (
            self._pending[: length - self._given],
            (self._pending[length - self._given :] if self.finish is None else ""),
        )
        self._given = length
        return final

    def _show(self, piece: str) -> str:
        return (
            ""
            if not self._shows
            else piece
            if self._stripper is None
            else self._stripper.feed(piece)
        )


def feed_each(rows: Sequence[RowDecoder], token_ids: Sequence[int]) -> None:
    """`feed` for several rows, one token each: a step of a batch. Most tokens are stop-safe, and
    cost one look-up.

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> rows = [
    ...     RowDecoder(resolve(GenerationOptions(stop=stop)), ToyTokenizer(), text=False)
    ...     for stop in (("ab",), ("b",))
    ... ]
    >>> for token_id in b"xab":
    ...     feed_each(rows, (token_id, token_id))
    >>> [row.stop for row in rows]
    ['ab', 'b']
    """
    for row, token_id in zip(rows, token_ids, strict=True):
        ids = row.token_ids
        if token_id in row.stop_safe and len(ids) < row.last:
            ids.append(token_id)
        else:
            row.shown = row.feed(token_id)


class _RawText:
    """`raw_text` of the row, the stops looked for in it, and the lengths of both texts after each
    token.
    """

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self.detokenizer = Detokenizer(tokenizer)
        self._stops = StopScanner(stops)
        self._text_ends, self._raw_ends = [0], [0]

    def weigh(
        self, piece: str, stop: str | None, length: int, left: int, text_end: int, counts: bool
    ) -> tuple[str | None, int]:
        """The stop to end at, and how much of `text` is final, given the same from `text`, where
        `stop` completes `left` characters before its end.
        """
        start = self._raw_ends[-1]
        self._text_ends.append(text_end)
        self._raw_ends.append(start + len(piece))
        scan = self._stops.feed(piece, counts=counts)
        if scan.stop is None or scan.end is None:
            return stop, (
                length
                if stop is not None
                else min(length, self._offset(self._raw_ends[-1] - len(self._stops.held)))
            )
        if stop is not None and (-left, -len(stop)) <= (scan.end - len(piece), -len(scan.stop)):
            return stop, length
        return scan.stop, self._offset(start + scan.end - len(scan.stop))

    def _offset(self, raw_offset: int) -> int:
        return text_offset(raw_offset, self._text_ends, self._raw_ends)


class StopSafeTokens:
    """The tokens seen so far that can complete no stop, whatever text came before, each with what
    it adds to the text: `pieces`.

    A piece completes a stop only if it contains the stop, or begins as the stop ends. That is found
    out when a token first comes, and kept for all rows with the same tokenizer and stops. Ids in
    `endings` are not stop-safe.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> toy = ToyTokenizer(merges=("ND of", "no"))
    >>> tokens = stop_safe_tokens(toy, ("END",), frozenset(), skips_special=True)
    >>> [tokens.takes(token_id) for token_id in toy.encode("no D END of")]
    [True, True, False, True, True, False]
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Collection[str],
        endings: frozenset[int],
        hidden: frozenset[int],
    ) -> None:
        self.pieces: dict[int, str] = {}
        self.longest = max(map(len, stops), default=0)
        """Characters of the longest stop."""
        self._stops, self._endings, self._hidden = tuple(stops), endings, hidden
        self._last = {stop[-1] for stop in stops}
        self._ends = tuple({stop[start:] for stop in stops for start in range(len(stop))})
        self._tokenizer = tokenizer
        self._others: set[int] = set()

    def takes(self, token_id: int) -> bool:
        """Whether the token is stop-safe; if it is, `pieces` has it from now on."""
        if token_id in self.pieces:
            return True
        if token_id in self._others:
            return False
        piece = self._added(token_id)
        if piece is None:
            self._others.add(token_id)
            return False
        self.pieces[token_id] = piece
        return True

    def _added(self, token_id: int) -> str | None:
        """What a stop-safe token adds; None for any other."""
        if token_id in self._endings:
            return None
        if token_id in self._hidden or not self._stops:
            return ""
        piece = added(self._tokenizer, token_id)
        return None if piece is None or self._completes(piece) else piece

    def _completes(self, piece: str) -> bool:
        return not self._last.isdisjoint(piece) and (
            piece.startswith(self._ends) or any(stop in piece for stop in self._stops)
        )


@functools.lru_cache(maxsize=64)  # each may hold a vocabulary
def stop_safe_tokens(
    tokenizer: Tokenizer, stops: tuple[str, ...], endings: frozenset[int], *, skips_special: bool
) -> StopSafeTokens:
    """The stop-safe tokens of a tokenizer for these stops, the same object each time; `endings` are
    the ids that end a row by themselves.
    """
    return StopSafeTokens(tokenizer, stops, endings, hidden_ids(tokenizer, skips_special))
