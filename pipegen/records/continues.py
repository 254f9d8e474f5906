"""What a request continues: the ids of the turns before it, which its prompt begins with.

>>> Continues(messages=2, prompt_token_ids=(5, 6), token_ids=(7,)).before
(5, 6, 7)
>>> Continues(messages=2, prompt_token_ids=(), token_ids=(7,))
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: Continues.prompt_token_ids takes at least one token id, not ()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal
from zlib import crc32

from pipegen.core.names import InvalidField
from pipegen.records.fields import (
    boolean,
    integer,
    non_empty_string,
    one_of,
    record,
    token_ids,
    tuple_of,
)
from pipegen.records.option_row import LogprobsOf
from pipegen.records.rollouts import Grid, Rollout

History = Literal["kept", "template"]
"""How earlier turns come into the prompt: by their ids, or rendered again."""
_answer_ids = token_ids  # a field has this name


def _prompt_ids(value: object) -> object:
    ids = token_ids(value)
    if not ids:
        raise ValueError("at least one token id")
    return ids


def _places(value: object) -> object:
    """Pairs of whole numbers, in order; JSON has lists for them."""
    pairs = [token_ids(pair) for pair in value] if isinstance(value, (list, tuple)) else [()]
    flat = [end for pair in pairs for end in pair]
    if any(len(pair) != 2 for pair in pairs) or flat != sorted(flat):
        raise ValueError("pairs of a start and an end, in order")
    return tuple(pairs)


def _numbers(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of numbers")
    return tuple(map(float, value))


def _grids(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list with the patches of each image, or null")
    return tuple([None if grid is None else token_ids(grid) for grid in value])


def _rollouts(value: object) -> object:
    """Records, or their plain data."""
    from pipegen.records.codec import decode  # which a request without a conversation does not need

    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of rollouts")
    return tuple([one if isinstance(one, Rollout) else decode(one, Rollout) for one in value])


@record
class Continues:
    """The last turn of a conversation, of which the request is the next one.

    With `history="template"` the earlier turns are rendered again, and the ids say only what the
    new prompt is compared with. There are none of a turn that a chat server rendered.
    """

    messages: Annotated[int, integer(low=1)]
    """How many of the request's messages the turns so far are, the answer included."""
    prompt_token_ids: Annotated[tuple[int, ...] | None, _prompt_ids] = None
    """The ids of the last prompt, each image expanded to all of its tokens."""
    token_ids: Annotated[tuple[int, ...], _answer_ids] = ()
    """The ids of the answer, the ending one included."""
    compact_token_ids: Annotated[tuple[int, ...] | None, _prompt_ids] = None
    """The ids of the last prompt with one placeholder for each image; None where there are no
    images.
    """
    image_digests: Annotated[tuple[str, ...], tuple_of(non_empty_string)] = ()
    """The images of the turns so far: SHA-256 of their upright RGB pixels."""
    history: Annotated[History, one_of("kept", "template")] = "kept"
    """Whether earlier turns keep their ids, or are rendered again by the template."""
    render_differs: Annotated[bool, boolean] = False
    """Whether a render of the turns so far would have other ids."""
    first: Annotated[int | None, integer(low=1)] = dataclasses.field(default=None, compare=False)
    """How many of the messages are those of the first request, by which a shard has the whole
    conversation; None where that is not known. No answer depends on it.
    """
    raw_text_crc32: Annotated[int | None, integer(low=0)] = dataclasses.field(
        default=None, compare=False
    )
    """The CRC-32 of the answer's raw text: where a tokenizer reads `token_ids` as another text, they
    are not its ids, and the row fails. None where that is not known.
    """
    sampled: Annotated[tuple[tuple[int, int], ...] | None, _places] = dataclasses.field(
        default=None, compare=False
    )
    """Where the ids that were sampled so far are, the last answer included: their starts and ends.
    None where that is not known. No answer depends on it.
    """
    logprobs: Annotated[tuple[float, ...] | None, _numbers] = dataclasses.field(
        default=None, compare=False
    )
    """The log probabilities of all that was sampled so far, the last answer included; None where a
    turn has none. No answer depends on them.
    """
    logprobs_of: Annotated[LogprobsOf, one_of("raw", "processed")] = dataclasses.field(
        default="raw", compare=False
    )
    """Which distribution these are of."""
    image_grid_thw: Annotated[tuple[Grid | None, ...], _grids] = dataclasses.field(
        default=(), compare=False
    )
    """For each image of the turns so far, its patches in time, height and width. No answer depends
    on them.
    """
    earlier: Annotated[tuple[Rollout, ...], _rollouts] = dataclasses.field(
        default=(), compare=False
    )
    """The rollouts that had ended before the last prompt. No answer depends on them."""

    def check_all(self) -> None:
        if self.image_digests and self.prompt_token_ids and self.compact_token_ids is None:
            raise InvalidField(
                "Continues takes compact_token_ids too where the turns so far have images"
            )
        ends = [end for _, end in self.sampled or ()]
        if ends and ends[-1] > len(self.before):
            raise InvalidField(
                f"Continues.sampled ends at {ends[-1]}, and the turns so far have"
                f" {len(self.before)} ids"
            )

    @property
    def before(self) -> tuple[int, ...]:
        """The ids that the next prompt begins with."""
        return (self.prompt_token_ids or ()) + self.token_ids

    @property
    def compact_before(self) -> tuple[int, ...]:
        """The same, with one placeholder for each image."""
        return (self.compact_token_ids or self.prompt_token_ids or ()) + self.token_ids


def text_crc32(text: str) -> int:
    """The CRC-32 of a text.

    >>> text_crc32("Yes.")
    26849541
    """
    return crc32(text.encode("utf-8", "surrogatepass"))


def continues_from(value: object) -> Continues:
    """The record of plain data; the check of a request's field."""
    if isinstance(value, Continues):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("a Continues, as result.then(...) gives it, or its plain data")
    return Continues(**{name: entry for name, entry in value.items() if entry is not None})
