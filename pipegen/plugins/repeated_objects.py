"""Keep a row from writing the same JSON object twice, for models that loop when they write a list.

>>> from pipegen.engines.capabilities import ENGINES
>>> plugin = forbid_repeated_objects(keys=("label", "box"))
>>> sorted(plugin.needs), plugin.needs <= ENGINES["hf"]
(['logits_processor'], True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from pipegen.core.names import InvalidField
from pipegen.ending.detokenize import Detokenizer
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.engines.tokenizer import Tokenizer
from pipegen.plugins.json_reader import ENDERS, QUOTE, JsonState, digest, following, needed, read

INCOMPLETE = "\ufffd"
SHORT = 24
CONTEXT = 8
"""Tokens before an incomplete character that are decoded with it."""


def forbid_repeated_objects(
    *, keys: Sequence[str] | None = None, min_match: int | None = None
) -> Plugin:
    """Forbid an answer to write a JSON object a second time; Hugging Face engines only.

    At each step the tokens whose text would complete a repeat are forbidden, however it is
    tokenised; other rows are not changed. Checked are objects that are list items or outermost
    values. Two are equal if their JSON is, whatever the white space, escapes and order of members.

    keys: the members that tell objects apart. An object without one of them may repeat. By default
    all members count, and the model must add one or break its JSON.
    min_match: objects of fewer characters, without white space, may repeat. By default 24 without
    `keys`, and 0 with them.

    All generated text counts, `<think>` included, special tokens excluded. An object inside prose
    that begins like JSON is missed. The cost of a step does not depend on the length of the output.
    Raises `InvalidField` for `keys` that are not at least one string, or a `min_match` below 0.
    """
    if keys is not None and (
        isinstance(keys, str) or not keys or not all(isinstance(key, str) for key in keys)
    ):
        raise InvalidField(
            "forbid_repeated_objects takes at least one name of a member as keys, in a tuple or a"
            f" list, or None, not {keys!r}"
        )
    if min_match is not None and (type(min_match) is not int or min_match < 0):
        raise InvalidField(
            "forbid_repeated_objects takes a whole number of at least 0 as min_match, or None, not"
            f" {min_match!r}"
        )
    min_size = min_match if min_match is not None else SHORT if keys is None else 0
    names = None if keys is None else tuple(digest(key) for key in keys)
    last_read: list[Vocabulary] = []  # at most one: a plugin rarely sees two models

    def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
        vocabulary = next(
            (vocabulary for vocabulary in last_read if vocabulary.tokenizer is tokenizer), None
        )
        if vocabulary is None:
            vocabulary = Vocabulary(tokenizer, "}" if names is None else ENDERS)
            last_read[:] = [vocabulary]
        return vocabulary

    return Plugin(
        name="forbid_repeated_objects",
        version=f"keys={keys and sorted(keys)}, min_match={min_match}",
        logits_processor=lambda context: RepeatedObjects(context, names, min_size, vocabulary_of),
    )


PrefixNodes = tuple[tuple[str, "PrefixNode"], ...]


class PrefixNode:
    """The tokens with a common prefix: a node of a prefix tree that is built on demand."""

    def __init__(self, tokens: Sequence[tuple[str, int]], depth: int) -> None:
        self._tokens = tokens  # sorted
        self._depth = depth
        self._chosen: dict[tuple[frozenset[str], str, str], PrefixNodes] = {}

    @property
    def token_ids(self) -> Iterator[int]:
        return (token_id for _, token_id in self._tokens)

    @cached_property
    def ahead(self) -> frozenset[str]:
        """The characters after the prefix, in any of the tokens."""
        return frozenset().union(*(text[self._depth :] for text, _ in self._tokens))

    @cached_property
    def _longer(self) -> PrefixNodes:
        """The branches whose prefix is one character longer, with that character."""
        tokens = (token for token in self._tokens if len(token[0]) > self._depth)
        return tuple(
            (char, PrefixNode(list(group), self._depth + 1))
            for char, group in groupby(tokens, key=lambda token: token[0][self._depth])
        )

    def after(self, reading: JsonState, keys: Sequence[int] | None) -> PrefixNodes:
        """The longer branches that may complete an object after `reading`; others are ruled out
        without reading them.
        """
        key = following(reading), needed(reading, keys), "}" if keys is None else ":"
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = tuple(
                (char, branch) for char, branch in self._longer if branch.fits(char, *key)
            )
        return chosen

    def fits(self, char: str, goes_on_with: frozenset[str], needs: str, inner: str) -> bool:
        """Whether this branch, which begins with `char`, may end an open object, or contain a whole
        one, with `inner` after the brace.
        """
        holds_object = (char == "{" or "{" in self.ahead) and inner in self.ahead
        if goes_on_with is QUOTE and char != '"' and '"' not in self.ahead:
            return False  # the string does not end
        goes_on = goes_on_with is QUOTE or char in goes_on_with
        return holds_object or (goes_on and (char in needs or not self.ahead.isdisjoint(needs)))


class Vocabulary:
    """The tokens that can complete an object: those with one of the characters `enders`, without
    special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, enders: str) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(tokenizer.special_tokens.values())
        # some tokenizers drop a space at the start of a text
        before = tokenizer.encode_plain("0", first=True)
        start = len(tokenizer.decode(before))
        texts = (
            (tokenizer.decode((*before, token_id))[start:], token_id)
            for token_id in range(tokenizer.vocab_size)
            if token_id not in self.special
        )
        tokens = sorted(
            (text, token_id) for text, token_id in texts if not set(enders).isdisjoint(text)
        )
        self.root = PrefixNode(tokens, 0)
        self.partial = frozenset(
            token_id for text, token_id in tokens if text.startswith(INCOMPLETE)
        )
        """Tokens that may complete a character begun by the ones before."""


class RepeatedObjects:
    """The logits processor of one row."""

    def __init__(
        self,
        context: RowContext,
        keys: tuple[int, ...] | None,
        min_size: int,
        vocabulary_of: Callable[[Tokenizer], Vocabulary],
    ) -> None:
        tokenizer = context.exact_tokenizer or context.tokenizer
        self._tokenizer, self._keys, self._min_size, self._vocabulary_of = (
            tokenizer,
            keys,
            min_size,
            vocabulary_of,
        )
        self._read = context.prompt_length
        self._detokenizer = Detokenizer(tokenizer)
        self._recent: list[int] = []
        self._reading = JsonState()
        self._written: set[int] = set()
        self._strings = {0}
        """Digests of the strings written, and of all their prefixes."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores (1, vocabulary), minus infinity for tokens that would complete a repeat;
        `input_ids` (1, length) begin with the prompt.
        """
        vocabulary = self._vocabulary_of(self._tokenizer)
        new_ids = input_ids[0, self._read :].tolist()
        self._read += len(new_ids)
        self._take(token_id for token_id in new_ids if token_id not in vocabulary.special)
        forbidden = self._forbidden(vocabulary)
        if forbidden:
            scores = scores.clone()
            scores[0, sorted(forbidden)] = -math.inf
        return scores

    def _take(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self._recent.append(token_id)
            for char in self._detokenizer.feed(token_id):
                self._reading, mark = read(self._reading, char, self._keys, self._min_size)
                if mark is not None:
                    self._written.add(mark)
                if self._reading.string is not None:
                    self._strings.add(self._reading.string)

    def _forbidden(self, vocabulary: Vocabulary) -> set[int]:
        if not self._written and "{" not in vocabulary.root.ahead:
            return set()  # no token can hold an object and its repeat
        self._recent = self._recent[-CONTEXT:]
        if not self._detokenizer.waits:
            return set(self._search(vocabulary, self._reading))
        shown = self._tokenizer.decode(self._recent)
        waiting = shown[len(shown.rstrip(INCOMPLETE)) :]
        reading = self._reading
        for char in waiting:  # an incomplete character stays one unless a token completes it
            reading, _ = read(reading, char, self._keys, self._min_size)
        forbidden = set(self._search(vocabulary, reading))
        if waiting:
            settled = len(shown) - len(waiting)
            texts = {
                token_id: self._tokenizer.decode([*self._recent, token_id])[settled:]
                for token_id in vocabulary.partial
            }
            forbidden = forbidden - vocabulary.partial | {
                token_id for token_id, text in texts.items() if self._repeats(text)
            }
        return forbidden

    def _search(self, vocabulary: Vocabulary, reading: JsonState) -> Iterator[int]:
        """The tokens that would complete a repeat after `reading`."""
        paths = [(vocabulary.root, reading, frozenset[int]())]
        while paths:
            branch, before, new = paths.pop()
            for char, longer in branch.after(before, self._keys):
                after, mark = read(before, char, self._keys, self._min_size)
                if mark is not None and (mark in self._written or mark in new):
                    yield from longer.token_ids
                elif longer.ahead and not self._is_new(before, after, longer.ahead):
                    paths.append((longer, after, new if mark is None else new | {mark}))

    def _is_new(self, before: JsonState, after: JsonState, ahead: frozenset[str]) -> bool:
        """Whether a new string is being written, so that its object is new, and no other object can
        begin.
        """
        # An escape may write half a character, after which nothing is known.
        in_escape = before.escape or after.escape
        return (
            after.string is not None
            and not in_escape
            and after.string not in self._strings
            and ahead.isdisjoint(":{")
        )

    def _repeats(self, text: str) -> bool:
        """Whether the row would repeat an object if `text` came next."""
        reading, written = self._reading, set(self._written)
        for char in text:
            reading, mark = read(reading, char, self._keys, self._min_size)
            if mark in written:
                return True
            if mark is not None:
                written.add(mark)
        return False
