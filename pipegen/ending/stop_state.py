"""Where a row ends: a fold over its text, which comes in pieces, or over its ids.

A `TextFold` is fed the text of a row, and a `TokenFold` its ids, which it makes text of. Engines
feed a fold while they generate, and so end rows early. Routes to chat servers feed it what the
server writes. The stage `stop` feeds it a text, unless an engine has reported where in it the row
ended. With plugins or stops in special tokens it does so token by token.
Of a whole answer, the stage `decode` feeds none: the `EndPlan` finds the id that ends the row. What
ends a row, and in which order, is in `pipegen.stages.ending`.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from immutabledict import immutabledict

from pipegen.core.errors import GenerationError, PluginFailed, StageFailed
from pipegen.core.foreign_calls import EXHAUSTED, report
from pipegen.ending.detokenize import Detokenizer
from pipegen.ending.plugin_state import PluginStates
from pipegen.ending.stop_safe import stop_safe_tokens
from pipegen.ending.stop_scan import StopScanner
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import record
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Ending, Finish

NONE: Mapping[int, str] = {}
UNRESOLVED = "the options take a value for everything: resolve(options) first"


@record
class EndPlan:
    """What ends the rows of the same options."""

    ids: immutabledict[int, tuple[Finish, str | int | None]]
    """The ids that end a row, each with how it ends and what the result names."""
    ending: frozenset[int]
    """Those ids alone."""
    text: tuple[str, ...] = ()
    """Stops that are looked for in `text`, where special tokens are invisible."""
    raw: tuple[str, ...] = ()
    """Stops that contain a special token's text among other text: looked for in `raw_text`, also
    where the model's own end token completes them."""
    hidden: frozenset[int] = frozenset()
    """The ids that `text` does not show."""

    def first_end(self, ids: Sequence[int], start: int, end: int) -> int | None:
        """The place of the first id that ends a row, of those from `start` to `end`."""
        if self.ending.isdisjoint(ids):
            return None
        return next((index for index in range(start, end) if ids[index] in self.ending), None)


def plan_of(
    options: GenerationOptions, tokenizer: Tokenizer, eos_token_ids: Sequence[int] = ()
) -> EndPlan:
    """What ends rows with these options; rows with equal stops share one plan.

    A stop that is exactly one special token is looked for as its id. A stop token goes before an
    end token, and is named as the caller wrote it. Raises `ValueError` for options that are not
    resolved.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> options = resolve(GenerationOptions(stop=("<|im_end|>", "END", "END<|im_end|>")))
    >>> plan = plan_of(options, ToyTokenizer(), (0,))
    >>> dict(plan.ids)[257][1], plan.text, plan.raw
    ('<|im_end|>', ('END',), ('END<|im_end|>',))
    """
    if options.stop is None or options.decode is None:
        raise ValueError(UNRESOLVED)
    skips = bool(options.decode.skip_special_tokens)
    return _plan(options.stop, skips, tokenizer, tuple(eos_token_ids))


@functools.lru_cache(maxsize=256)
def _plan(
    stop: StopOptions, skips: bool, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]
) -> EndPlan:
    special, stops = tokenizer.special_tokens, stop.stop or ()
    eos: tuple[Finish, str | int | None] = (Finish.EOS, None)
    ids = dict.fromkeys(() if stop.ignore_eos else eos_token_ids, eos)
    ids |= {token_id: (Finish.STOP_TOKEN, token_id) for token_id in stop.stop_token_ids or ()}
    ids |= {special[text]: (Finish.STOP_TOKEN, text) for text in stops if text in special}
    others = [text for text in stops if text not in special]
    raw = tuple(text for text in others if any(token in text for token in special))
    return EndPlan(
        ids=immutabledict(ids),
        ending=frozenset(ids),
        text=tuple(text for text in others if text not in raw),
        raw=raw,
        hidden=frozenset(special.values()) if skips else frozenset(),
    )


def ending_ids(
    options: GenerationOptions,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    vocab_size: int | None = None,
) -> tuple[int, ...]:
    """The ids that end a row, sorted: what an engine stops at, and must not draw as one of the
    first `min_new_tokens` tokens.

    Ids from `vocab_size` on, which the model cannot generate, are left out.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> options = resolve(GenerationOptions(stop=("<|im_end|>", "END")))
    >>> ending_ids(options, ToyTokenizer(), (0, 258))
    (0, 257, 258)
    """
    ids = plan_of(options, tokenizer, eos_token_ids).ids
    return tuple(
        sorted(token_id for token_id in ids if vocab_size is None or token_id < vocab_size)
    )


def text_offset(raw_offset: int, text_ends: Sequence[int], raw_ends: Sequence[int]) -> int:
    """The offset in `text` that belongs to `raw_offset` in `raw_text`, from the lengths of both
    after each token.

    Within a token, both are equally far from its end; a special token that `text` does not show has
    no length there.

    >>> text_offset(5, text_ends=(3, 3, 6), raw_ends=(3, 13, 16))
    3
    >>> text_offset(14, text_ends=(3, 3, 6), raw_ends=(3, 13, 16))
    4
    """
    token = bisect_right(raw_ends, raw_offset)
    if token == len(raw_ends):
        return text_ends[-1] if text_ends else 0
    return max(
        text_ends[token - 1] if token else 0, text_ends[token] - (raw_ends[token] - raw_offset)
    )


def not_ended(
    full: bool, *, aborted: bool, ended_by_plugin: str | None
) -> tuple[Finish, str | int | None]:
    """How a row ends that nothing in it ends: the engine gave it up, a plugin of the engine's own
    (named by `ended_by_plugin`) ended it, or it is `full`."""
    if aborted or ended_by_plugin is None:
        return (Finish.LENGTH if full and not aborted else Finish.ABORTED), None
    return Finish.PLUGIN, ended_by_plugin


class Stripper:
    """`str.strip` for a text that comes in pieces: the joined pieces are the stripped text.

    >>> stripper = Stripper()
    >>> [stripper.feed(piece) for piece in (" ", " a", " ", "b ", " ")]
    ['', 'a', '', ' b', '']
    """

    def __init__(self) -> None:
        self._begun = False
        self._spaces: list[str] = []  # the end of the text, unless something follows

    def feed(self, piece: str) -> str:
        """The text that is final now; whitespace at the end of the whole never is."""
        if not self._begun:
            piece = piece.lstrip()
        final = piece.rstrip()
        if final:
            self._begun = True
            spaces, self._spaces = self._spaces, [piece[len(final) :]]
            return "".join((*spaces, final))
        if piece:
            self._spaces.append(piece)
        return ""


class TextFold:
    """Where the text of a row ends, piece by piece: at the first stop string to complete, or where
    a plugin halts it. If both come in the same piece, the stop string wins.

    The joined pieces that `feed_text` and `end` return are the text, stripped with `strip`. What
    may still become part of a stop is held back.

    >>> fold = TextFold(("END",))
    >>> [fold.feed_text(piece) for piece in ("a E", "Eb", "END", "c")]
    ['a ', 'EEb', '', '']
    >>> fold.finish.value, fold.stop, fold.length
    ('stop_string', 'END', 5)
    """

    def __init__(
        self,
        stops: Sequence[str],
        raw_stops: Sequence[str] = (),
        plugins: Sequence[Plugin] = (),
        *,
        strip: bool = False,
    ) -> None:
        self.finish: Finish | None = None
        """How the row ended; None while it runs."""
        self.stop: str | int | None = None
        """What ended it: the stop string, the stop token's id, or the plugin's name."""
        self.failure: GenerationError | None = None
        """What a plugin or the tokenizer did wrong; the row is then `ABORTED`."""
        self.length = 0
        """How many characters of the text are final; once the row has ended, those that belong to
        the answer."""
        self.seen = 0
        """How many characters were judged, the stop included; none behind it."""
        self.plugins = PluginStates(plugins)
        self.watched = bool(self.plugins)
        """Whether a plugin watches the row."""
        self._stops = StopScanner(stops) if stops else None
        self._raw_stops = StopScanner(raw_stops) if raw_stops else None
        self._text_ends, self._raw_ends = [0], [0]  # after each piece, where stops are in raw text
        self._pending = ""  # text that was not returned yet
        self._stripper = Stripper() if strip else None

    def feed_text(self, text: str, raw: str = "", *, counts: bool = True) -> str:
        """The text that is final with this piece, which is `raw` in `raw_text`. A row that has
        ended takes no more and gives nothing. With `counts=False` nothing ends it in this piece.
        """
        if self.finish is not None:
            return ""
        start, stop = self.seen, None
        length = self.seen = start + len(text)
        if self._stops is not None:
            _, stop, end = self._stops.feed(text, counts=counts)
            if stop is not None and end is not None:
                self.seen = start + end
                length = self.seen - len(stop)
            else:
                length -= len(self._stops.held)
        if self._raw_stops is not None:
            position = stop, length, start + len(text)
            stop, length = self._earlier(self._raw_stops, position, raw, counts=counts)
        if stop is not None:
            self.finish, self.stop = Finish.STOP_STRING, stop
        elif self.watched:
            halt = self.plugins.feed(text)
            if isinstance(halt, PluginFailed):
                self.finish, self.failure, length = Finish.ABORTED, halt, self.length
            elif halt is not None and counts:
                self.finish, self.stop, length = Finish.PLUGIN, halt.plugin, start + halt.kept
        return self._release(text, length)

    def end(self, finish: Finish, stop: str | int | None = None) -> str:
        """End the row, unless its text has. Returns the text that was held back."""
        if self.finish is not None:
            return ""
        self.finish, self.stop = finish, stop
        return self._release("", self.seen)

    def _release(self, text: str, length: int) -> str:
        """What is final of the text with this piece, which makes it final up to a length."""
        text, count = self._pending + text, length - self.length
        shown, self._pending, self.length = text[:count], text[count:], length
        return shown if self._stripper is None else self._stripper.feed(shown)

    def _earlier(
        self, stops: StopScanner, position: tuple[str | None, int, int], raw: str, *, counts: bool
    ) -> tuple[str | None, int]:
        """The stop that completes first in text and raw text, and how much of the text is final,
        given both for the text alone, with its length; of two that complete together, the longer
        one."""
        (stop, length, text_end), start = position, self._raw_ends[-1]
        self._text_ends.append(text_end)
        self._raw_ends.append(start + len(raw))
        scan = stops.feed(raw, counts=counts)
        if scan.stop is None or scan.end is None:
            final = self._offset(self._raw_ends[-1] - len(stops.held))
            return stop, length if stop is not None else min(length, final)
        behind, raw_behind = text_end - self.seen, len(raw) - scan.end
        if stop is not None and (-behind, -len(stop)) <= (-raw_behind, -len(scan.stop)):
            return stop, length
        return scan.stop, self._offset(start + scan.end - len(scan.stop))

    def _offset(self, raw_offset: int) -> int:
        return text_offset(raw_offset, self._text_ends, self._raw_ends)


class TokenFold(TextFold):
    """Where a row ends, token by token, and its text.

    With `text=False` no text is returned, and ids become text only where a stop string or a plugin
    needs it. Tokens that can complete no stop are only stored (see `stop_safe`) and read later, as
    far as a stop may reach back. A tokenizer or a plugin that raises fails the row: see `failure`.
    Raises `ValueError` for options that are not resolved.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> toy = ToyTokenizer()
    >>> row = TokenFold(resolve(GenerationOptions(stop=("END",))), toy, eos_token_ids=(257,))
    >>> [row.feed(token_id) for token_id in toy.encode("aEbEND")]
    ['a', '', 'Eb', '', '', '']
    >>> row.finish.value, row.stop, row.count
    ('stop_string', 'END', 6)
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
        plan = plan_of(options, tokenizer, eos_token_ids)
        if options.max_new_tokens is None or options.min_new_tokens is None:
            raise ValueError(UNRESOLVED)
        strip = options.decode is not None and bool(options.decode.strip_whitespace)
        super().__init__(plan.text, plan.raw, plugins, strip=strip)
        self.token_ids: list[int] = []
        """The generated tokens, the ending one included."""
        self.shown = ""
        """The text that `feed_each` made final last."""
        self.reads = bool(text or plan.text or plan.raw or self.plugins)
        """Whether text is returned or decides where the row ends; else the ids and their number
        do."""
        self.last = options.max_new_tokens - 1
        """The position of the token that ends the row by its length."""
        self.stop_safe: Mapping[int, str] = NONE
        """Tokens that can complete no stop now: before the token at `last`, they may also be
        appended to `token_ids` without `feed`."""
        self._options, self._plan, self._shows = options, plan, text
        self._min = options.min_new_tokens
        self._text = Detokenizer(tokenizer)
        self._raw = Detokenizer(tokenizer) if plan.raw else None
        self._tokens = None
        if not (text or plan.raw or self.plugins):
            self._tokens = stop_safe_tokens(tokenizer, plan.text, plan.ending, plan.hidden)
        self._read = 0  # how many tokens have been read
        self._rest()

    @property
    def count(self) -> int:
        """Generated tokens, the ending one included."""
        return len(self.token_ids)

    def feed(self, token_id: int) -> str:
        """The text that is final with this token. A row that has ended takes no more tokens and
        gives nothing."""
        if self.finish is not None:
            return ""
        ids = self.token_ids
        try:
            if self._tokens is not None and self.stop_safe is not NONE:
                if len(ids) < self.last and self._tokens.takes(token_id):
                    ids.append(token_id)
                    return ""
                self._catch_up(self._tokens.longest - 1)
            ids.append(token_id)
            self._read = len(ids)
            shown = self._judge(token_id)
            self._rest()
        except EXHAUSTED as raised:
            return self._fail(raised)
        return shown if self._shows else ""

    def take(self, token_ids: Sequence[int]) -> str:
        """`feed` for several tokens, up to the one that ends the row."""
        ids, shown = self.token_ids, ""
        if not self.reads and self.finish is None:  # all but those that may end the row are stored
            room = min(len(token_ids), max(0, self.last - len(ids)))
            first = self._plan.first_end(token_ids, max(0, self._min - len(ids)), room)
            stored = token_ids[: room if first is None else first]
            ids += stored
            self._read = len(ids)
            token_ids = token_ids[len(stored) :]
        for token_id in token_ids:
            shown += self.feed(token_id)
        return shown

    def close(self, *, aborted: bool = False, ended_by_plugin: str | None = None) -> str:
        """The row gets no more tokens: the engine gave up, or a plugin of its own (named by
        `ended_by_plugin`) ended it. Returns the text still held."""
        if self.finish is not None:
            return ""
        try:
            shown = self._end(
                *not_ended(self.count > self.last, aborted=aborted, ended_by_plugin=ended_by_plugin)
            )
        except EXHAUSTED as raised:
            return self._fail(raised)
        return shown if self._shows else ""

    @property
    def ending(self) -> Ending | None:
        """How the row ended, for the stages after the engine; None while it runs."""
        if self.finish is None or self.failure is not None:
            return None
        cuts = self.finish in (Finish.STOP_STRING, Finish.PLUGIN) and self._tokens is None
        return Ending(
            finish=self.finish,
            stop=self.stop,
            length=self.length if cuts else None,
            watched=self.plugins.names,
            token_ids=tuple(self.token_ids),
            options=self._options,
        )

    def _judge(self, token_id: int) -> str:
        """Judge the newest token."""
        counts = self.count > self._min
        if counts and token_id in self._plan.ending:
            return self._end(*self._plan.ids[token_id], ending_id=token_id)
        shown = ""
        if self.reads:
            text = "" if token_id in self._plan.hidden else self._text.feed(token_id)
            raw = "" if self._raw is None else self._raw.feed(token_id)
            shown = self._see(text, raw, counts=counts)
        if self.finish is None and self.count > self.last:
            shown += self._end(Finish.LENGTH, None)
        return shown

    def _end(self, finish: Finish, stop: str | int | None, ending_id: int | None = None) -> str:
        """End the row, unless a stop string or a plugin ends it with this very token, or in what
        was held back of the last character.
        """
        shown = raw = ""
        if self._raw is not None and finish is not Finish.STOP_TOKEN:  # that is judged by its id
            raw = "" if ending_id is None else self._raw.feed(ending_id)
            raw += self._raw.finish()
        if self.reads:
            shown = self._see(self._text.finish(), raw, counts=self.count > self._min)
        return shown + self.end(finish, stop)

    def _see(self, text: str, raw: str = "", *, counts: bool) -> str:
        """`feed_text`, which is more than is needed where nobody wants the text."""
        if self._tokens is None:
            return self.feed_text(text, raw, counts=counts)
        stop = None if self._stops is None else self._stops.meets(text, counts=counts)
        if stop is not None:
            self.finish, self.stop = Finish.STOP_STRING, stop
        return ""

    def _rest(self) -> None:
        """From here on stop-safe tokens are only stored, if the row goes on and nothing is held
        back of what came before.
        """
        rests = self.finish is None and (not self.reads or self._text.settled)
        self.stop_safe = self._tokens.pieces if self._tokens is not None and rests else NONE

    def _catch_up(self, missing: int) -> None:
        """Read so many characters of the stored tokens: a stop may still need them. For the next
        token's context, the last token that was read will do."""
        pieces: list[str] = []
        for index in range(len(self.token_ids) - 1, self._read - 1, -1):
            pieces.append(self.stop_safe[self.token_ids[index]])
            missing -= len(pieces[-1])
            if missing <= 0:  # a stop that began before these would be complete within them
                break
        for piece in reversed(pieces):
            self._see(piece, counts=False)

    def _fail(self, raised: Exception) -> str:
        seen = report(raised)
        message = f"the generated ids cannot be decoded: {seen.words}"
        self.stop_safe, self.finish = NONE, Finish.ABORTED
        self.failure = StageFailed(message, stage="decode", incident=seen.incident)
        return ""


def feed_each(rows: Sequence[TokenFold], token_ids: Sequence[int]) -> None:
    """`feed` for several rows, one token each: a step of a batch. Most tokens are stop-safe, and
    cost one look-up.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> options = [resolve(GenerationOptions(stop=stop)) for stop in (("ab",), ("b",))]
    >>> rows = [TokenFold(each, ToyTokenizer(), text=False) for each in options]
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
