"""What the stages need of a tokenizer and of a chat template, as protocols; adapters for real ones
live with the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

__all__ = ["ReadsResponses", "Renderer", "SpellsAlone", "Tokenizer"]


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Nothing here adds tokens of its own or cleans text up. Two tokenizers
    are equal only if they are the same object.
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
class SpellsAlone(Protocol):
    """What a tokenizer may know beyond `Tokenizer`. Without it every token of a row with stop
    strings is looked at.
    """

    def piece(self, token_id: int) -> str | None:
        """What the token adds to the text after any other that is not empty, whole characters; None
        if that may depend on its neighbours.
        """
        ...


@runtime_checkable
class Renderer(Protocol):
    """Messages to a prompt, by the owner of the chat template. Hashable, since what is found out
    about a template is remembered.
    """

    def __hash__(self) -> int: ...

    @property
    def template(self) -> str | None:
        """The chat template's source, or None where the checkpoint has none."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Call the template once. Whatever the template raises comes through."""
        ...


@runtime_checkable
class ReadsResponses(Protocol):
    """What a renderer may know beyond `Renderer`: how the checkpoint itself has answers read."""

    def read_response(
        self, text: str, *, prompt: str, tools: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """The answer as a message with `content` and `tool_calls`; None where the checkpoint says
        nothing about it. Whatever its reader raises comes through.
        """
        ...
