"""What the stages need of a tokenizer and of a chat template, as protocols; adapters for real ones
live with the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Nothing here adds tokens of its own or cleans text up. Two tokenizers
    are equal only if they are the same object.

    It may have `piece(token_id)` besides: what the token adds to the text after any other that is
    not empty, in whole characters. None if that may depend on its neighbours. Without it every
    token of a row with stop strings is looked at.

    It may have `normalised(text)`: the text as the tokenizer changes it before it cuts it, with
    plain spaces. Without it, no text is changed.
    """

    def __hash__(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The special tokens, invisible in `text`: each one's text and id."""
        ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Every added token that `encode` would recognise inside a text, special or not: its text
        and id.
        """
        ...

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to `vocab_size - 1`."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of the text; control tokens written in it become their ids."""
        ...

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Ids of the text in which control tokens stay plain text; `first` says that it stands at
        the very start of the prompt.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included. An incomplete character at the end shows as
        U+FFFD.
        """
        ...


@runtime_checkable
class Renderer(Protocol):
    """Messages to a prompt, by the owner of the chat template. Hashable, since what is found out
    about a template is remembered.

    It may have `read_response(text, prompt=..., tools=...)` besides: the answer as a message with
    `content` and `tool_calls`, as the checkpoint itself reads answers. None where that says nothing
    about it. Whatever its reader raises comes through.

    It may have `rewrites`: what it changes in messages before the template reads them, of `"null"`
    (it takes out entries that are null) and `"reasoning"` (it gives a thought under more names).
    Jobs have it in the keys of the rows with such messages. Without it, nothing is changed.
    """

    def __hash__(self) -> int: ...

    @property
    def template(self) -> str | None:
        """The chat template's source, or None where the checkpoint has none."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]],
        template: str | None,
        variables: Mapping[str, object],
    ) -> str:
        """Call the template once. Whatever the template raises comes through."""
        ...
