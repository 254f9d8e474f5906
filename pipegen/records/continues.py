"""What a request continues: the ids of the turns before it, which its prompt begins with.

>>> Continues(messages=2, prompt_token_ids=(5, 6), token_ids=(7,)).before
(5, 6, 7)
>>> Continues(messages=2, prompt_token_ids=(), token_ids=(7,))
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: Continues.prompt_token_ids takes at least one token id, not ()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pipegen.records.fields import (
    InvalidField,
    boolean,
    integer,
    non_empty_string,
    one_of,
    record,
    token_ids,
    tuple_of,
)

__all__ = ["Continues", "History", "continues_from"]

History = Literal["kept", "template"]
"""How earlier turns come into the prompt: by their ids, or rendered again."""
_answer_ids = token_ids  # a field has this name


def _prompt_ids(value: Any) -> Any:
    ids = token_ids(value)
    if not ids:
        raise ValueError("at least one token id")
    return ids


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

    def check_all(self) -> None:
        if self.image_digests and self.prompt_token_ids and self.compact_token_ids is None:
            raise InvalidField(
                "Continues takes compact_token_ids too where the turns so far have images"
            )

    @property
    def before(self) -> tuple[int, ...]:
        """The ids that the next prompt begins with."""
        return (self.prompt_token_ids or ()) + self.token_ids

    @property
    def compact_before(self) -> tuple[int, ...]:
        """The same, with one placeholder for each image."""
        return (self.compact_token_ids or self.prompt_token_ids or ()) + self.token_ids


def continues_from(value: Any) -> Any:
    """The record of plain data; the check of a request's field."""
    if isinstance(value, Continues):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("a Continues, as result.then(...) gives it, or its plain data")
    return Continues(**{name: entry for name, entry in value.items() if entry is not None})
