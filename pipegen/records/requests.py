"""Requests, and what a request may read and ask for.

>>> request = TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}])
>>> request.messages[0].content
'Hi'
>>> TextGenerationRequest()
Traceback (most recent call last):
...
pipegen.core.names.InvalidField: TextGenerationRequest takes exactly one of messages, prompt and prompt_token_ids
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from immutabledict import immutabledict

from pipegen.core.names import InvalidField, folded, misspelt, nearest
from pipegen.records.continues import Continues, continues_from
from pipegen.records.fields import (
    boolean,
    integer,
    mapping,
    non_empty_string,
    number,
    path,
    record,
    schema_of,
    token_ids,
    tuple_of,
    with_schema,
)
from pipegen.records.frozen import exact, plain_list, printed
from pipegen.records.media_places import filled, place
from pipegen.records.messages import (
    ImageSource,
    Message,
    TextPart,
    VideoSource,
    array_advice,
    message_from,
    sources_in,
)
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OTHER_NAMES
from pipegen.records.options import option_names

MESSAGES = '[{"role": "user", "content": "..."}]'
"""The form of messages, for words about what has another one."""


def _messages(value: object) -> tuple[Message, ...]:
    value = plain_list(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"a list of messages such as {MESSAGES}, with prompt for a plain text")
    if not value:
        raise ValueError("at least one message")
    return tuple(
        message_from(message, f"messages[{position}]") for position, message in enumerate(value)
    )


def _turns(value: object) -> tuple[Message, ...]:
    value = plain_list(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of the user's messages: texts, or messages")
    return tuple(
        Message(role="user", content=turn)
        if isinstance(turn, str)
        else message_from(turn, f"turns[{position}]")
        for position, turn in enumerate(value)
    )


def _images(value: object) -> tuple[ImageSource, ...]:
    value = plain_list(value)
    if not isinstance(value, (list, tuple)):
        advice = array_advice(value)
        if advice:
            raise InvalidField(f"images takes a list of images, not {type(value).__name__}{advice}")
    return sources_in(ImageSource, "images", "images", value)


def _videos(value: object) -> tuple[ImageSource, ...]:
    return sources_in(VideoSource, "videos", "videos", value)


def _metadata(value: object) -> Mapping[str, object]:
    """Frozen at its first level only: the values are the caller's own, of any type."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("a mapping with string keys")
    return immutabledict({exact(name): entry for name, entry in value.items()})


with_schema(_metadata, {"type": "object"})

FIELDS = (
    "id",
    "messages",
    "prompt",
    "prompt_token_ids",
    "images",
    "videos",
    "tools",
    "options",
    "metadata",
    "continuation",
    "continues",
    "turns",
)
"""The fields of a request."""


def field_hint(name: str) -> str:
    """The hint for a field that a request does not have.

    >>> field_hint("temperature")
    '; it is an option, and goes into options'
    """
    if name in ("images", "videos"):
        return f"; {name} go into a VlmGenerationRequest"
    if name in GROUPS or name in option_names():
        return "; it is an option, and goes into options"
    if name in OTHER_NAMES:
        return f"; did you mean the option {OTHER_NAMES[name]!r}? It goes into options"
    return nearest(name, FIELDS)


@functools.lru_cache(maxsize=1024)
def misplaced(name: str) -> str | None:
    """The hint for an entry of a request's plain data that is an option, is spelt nearly like one,
    or is named as a path into `options`. None for any other, which is the caller's own.

    A word and its plural are two words: a data set has `choices`.

    >>> misplaced("temprature"), misplaced("choices"), misplaced("label")
    ("; did you mean the option 'temperature'? It goes into options", None, None)
    >>> misplaced("options.seed"), misplaced("option_a"), misplaced("N")
    ('; options go into options, as in "options": {"temperature": 0}', None, None)
    """
    if name in GROUPS or name in option_names() or name in OTHER_NAMES:
        return field_hint(name)
    if name != (plain := name.strip().lower()) and len(plain) > 1:  # `N` is a count
        return misplaced(plain)
    near = misspelt(name, option_names())
    if near:
        return f"; did you mean the option {near!r}? It goes into options"
    path = _PATH.fullmatch(name[:100])
    if path is None:
        return None
    head, divider, rest = path.groups()
    known = holds_options(head)
    is_clear = known and divider not in ("_", "-")
    # a question has an `option_n`
    is_option = (known or head in GROUPS) and len(rest) > 1 and misplaced(rest)
    return _IN_OPTIONS if is_clear or is_option else None


_IN_OPTIONS = '; options go into options, as in "options": {"temperature": 0}'
_PATH = re.compile(r"([a-z]+)([./:\[]|__?|-)(?!(?:[^n]|[0-9]+)\]?\Z)(.*?)\]?", re.DOTALL)
"""A name such as `options.seed`, as programs write it that make a flat table of nested data.
`options.a` and `option.1` are choices of a question.
"""


@functools.lru_cache(maxsize=1024)
def holds_options(name: str) -> bool:
    """Whether a name is `options`, or spelt nearly like it.

    >>> holds_options("option"), holds_options("Options"), holds_options("captions")
    (True, True, False)
    """
    from difflib import get_close_matches

    word = folded(name[:100])
    return word[:1] == "o" and bool(get_close_matches(word, ("options", "opts"), cutoff=0.85))


_MEDIA_NAME = re.compile(
    r"(?:image|img|picture|photo|(?P<video>video))s?"
    r"(?:_?(?:path|file|filename|file_name|url|uri|bytes|data)s?)?",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=1024)
def unread_media(name: str) -> str | None:
    """The hint for an entry that by its name holds images or videos, of a request that has none.
    None for any other.

    >>> unread_media("image_path")
    '; images go into images, as in "images": ["path"]'
    >>> unread_media("image_id") is None
    True
    """
    from difflib import get_close_matches

    match = _MEDIA_NAME.fullmatch(name)
    near = get_close_matches(name[:100].lower(), ("images", "videos"), n=1, cutoff=0.8)
    if match is None and not near:
        return None
    media = "videos" if (near[0] == "videos" if match is None else match["video"]) else "images"
    return f'; {media} go into {media}, as in "{media}": ["path"]'


@record
class GenerationRequest:
    """What to generate from: messages, a plain prompt (completed without a chat template), or token
    ids.

    `id` is the caller's name for the request. `tools` go to the chat template. `metadata` is the
    caller's: it is carried along, no engine sees it, and requests that differ in nothing else are
    equal. `continues` holds the ids of the turns before, in a request of `result.then(...)`.

    `turns` are a user's messages, texts or messages, that `pg.turns(route)` asks one after another.
    Where `messages` do not end with a user's, the first of them is put there.

    >>> request = GenerationRequest(turns=["What is 2 + 3?", "Why?"])
    >>> [one.content for one in request.messages], [one.content for one in request.turns]
    (['What is 2 + 3?'], ['Why?'])
    """

    id: Annotated[str | None, non_empty_string] = None
    """The caller's name for the request."""
    messages: Annotated[tuple[Message, ...] | None, _messages] = None
    """The conversation, as `Message` records or dicts of the OpenAI form."""
    prompt: str | None = None
    """A text that the model continues."""
    prompt_token_ids: Annotated[tuple[int, ...] | None, token_ids] = None
    """The ids of the prompt, used as they are."""
    tools: Annotated[tuple[Mapping[str, Any], ...], tuple_of(mapping)] = ()
    """Definitions of tools, for the chat template."""
    options: GenerationOptions | None = None
    """Options of this request. They override those of the run."""
    metadata: Annotated[Mapping[str, Any], _metadata] = dataclasses.field(
        default=immutabledict(), compare=False, repr=False
    )
    """The caller's own entries, carried along to the result."""
    continues: Annotated[Continues | None, continues_from] = None
    """The turns before, in a request of `result.then`."""
    turns: Annotated[tuple[Message, ...], _turns] = ()
    """The user's next messages, asked one after another."""

    if TYPE_CHECKING:  # accepts wider types than the fields have

        def __init__(
            self,
            *,
            id: str | None = None,
            messages: Sequence[Message | Mapping[str, object]] | None = None,
            prompt: str | None = None,
            prompt_token_ids: Sequence[int] | None = None,
            tools: Sequence[Mapping[str, object]] = (),
            options: GenerationOptions | None = None,
            metadata: Mapping[str, object] = ...,
            continues: Continues | Mapping[str, object] | None = None,
            turns: Sequence[str | Message | Mapping[str, object]] = (),
        ) -> None: ...

    @staticmethod
    def _hint_for(name: str) -> str:
        return field_hint(name)

    def check_all(self) -> None:
        name = type(self).__name__
        if self.turns and self.prompt is None and self.prompt_token_ids is None:
            before = self.messages or ()
            if not before or before[-1].role not in ("user", "tool"):
                object.__setattr__(self, "messages", (*before, self.turns[0]))
                object.__setattr__(self, "turns", self.turns[1:])
        if self.turns and self.messages is None:
            raise InvalidField(
                f"{name}.turns go on with messages, or stand alone: a plain prompt and ids have no"
                " next turn"
            )
        absent = self.messages is None, self.prompt is None, self.prompt_token_ids is None
        if sum(absent) != 2:
            raise InvalidField(f"{name} takes exactly one of messages, prompt and prompt_token_ids")
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise InvalidField(f"{name}.prompt takes a string, not {printed(self.prompt)}")
        if self.prompt is not None and type(self.prompt) is not str:
            object.__setattr__(self, "prompt", exact(self.prompt))
        if self.prompt_token_ids is not None and not self.prompt_token_ids:
            raise InvalidField(f"{name}.prompt_token_ids takes at least one token id")
        if self.options is not None and not isinstance(self.options, GenerationOptions):
            raise InvalidField(
                f"{name}.options takes GenerationOptions, not {type(self.options).__name__}"
            )
        if self.continues is not None and self.continues.messages >= len(self.messages or ()):
            raise InvalidField(
                f"{name}.continues is of {self.continues.messages} messages, and the request has"
                f" {len(self.messages or ())}: it takes at least one more, such as a user's"
            )

    @property
    def sources(self) -> tuple[ImageSource, ...]:
        """The request's images and videos, in message order; those of `turns` come last."""
        return tuple(
            source
            for message in (*(self.messages or ()), *self.turns)
            for source in message.sources
            if source is not None
        )

    def with_sources(self, sources: tuple[ImageSource, ...]) -> GenerationRequest:
        """The same request with its images and videos replaced, in message order."""
        left = iter(sources)
        messages = tuple([filled(message, left) for message in self.messages or ()])
        turns = tuple([filled(message, left) for message in self.turns])
        return dataclasses.replace(self, messages=messages, turns=turns)


class TextGenerationRequest(GenerationRequest):
    """A request without images and videos."""

    __slots__ = ()

    @property
    def sources(self) -> tuple[ImageSource, ...]:
        """Always empty."""
        return ()

    def check_all(self) -> None:
        GenerationRequest.check_all(self)
        for name, messages in (("messages", self.messages or ()), ("turns", self.turns)):
            for position, message in enumerate(messages):
                if message.sources:
                    raise InvalidField(
                        f"{name}[{position}].content holds an image or a video: use"
                        " VlmGenerationRequest"
                    )


@record
class VlmGenerationRequest(GenerationRequest):
    """A request with any number of images and videos; it may have none, as a row of a table whose
    list of images is empty.

    Images are in the messages, or in `images`. These fill the messages' empty image parts and the
    tags `<image>` of their texts, in order. If there are none, they go before the text of the first
    user turn. So do `videos`, with the tag `<video>`, behind the images. `prompt` with images is
    short for one user turn: the images, then the text.

    >>> VlmGenerationRequest(prompt="What is it?", images=["a.png"]).messages[0].content[0].source
    ImageSource(path='a.png')
    """

    images: Annotated[tuple[ImageSource, ...], _images] = ()
    """Images beside the messages, or of the prompt, in order."""
    videos: Annotated[tuple[VideoSource, ...], _videos] = ()
    """Videos beside the messages, or of the prompt, in order."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            id: str | None = None,
            messages: Sequence[Message | Mapping[str, object]] | None = None,
            prompt: str | None = None,
            prompt_token_ids: Sequence[int] | None = None,
            images: Sequence[object] = (),
            videos: Sequence[object] = (),
            tools: Sequence[Mapping[str, object]] = (),
            options: GenerationOptions | None = None,
            metadata: Mapping[str, object] = ...,
            continues: Continues | Mapping[str, object] | None = None,
            turns: Sequence[str | Message | Mapping[str, object]] = (),
        ) -> None: ...

    def check_all(self) -> None:
        beside = bool(self.images or self.videos)
        if self.prompt is not None and beside and self.messages is None:
            object.__setattr__(
                self, "messages", (Message(role="user", content=(TextPart(text=self.prompt),)),)
            )
            object.__setattr__(self, "prompt", None)
        GenerationRequest.check_all(self)
        if self.prompt_token_ids is not None and beside:
            raise InvalidField(
                "VlmGenerationRequest takes images and videos with messages or prompt, not with"
                " prompt_token_ids"
            )
        if any(source is None for message in self.turns for source in message.sources):
            raise InvalidField(
                "turns name their images and videos themselves: a part of one is empty"
            )
        if self.messages is not None:
            messages, turns = place(self.messages, self.turns, self.images, self.videos)
            object.__setattr__(self, "messages", messages)
            object.__setattr__(self, "turns", turns)
            object.__setattr__(self, "images", ())
            object.__setattr__(self, "videos", ())


def _continuation(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return non_empty_string(value)
    if isinstance(value, (list, tuple)) and value:
        return token_ids(value)
    raise ValueError("a text or token ids, at least one")


with_schema(
    _continuation, {"anyOf": [schema_of(non_empty_string), {**schema_of(token_ids), "minItems": 1}]}
)


@record
class ScoringRequest(VlmGenerationRequest):
    """A context, as a request has it, and the continuation whose log probability after it is asked:
    see `pg.score`.

    >>> ScoringRequest(prompt="The capital of France is", continuation=" Paris").continuation
    ' Paris'
    >>> ScoringRequest(prompt="a", continuation="")
    Traceback (most recent call last):
    ...
    pipegen.core.names.InvalidField: ScoringRequest.continuation takes a string that is not empty, not ''
    """

    continuation: Annotated[str | tuple[int, ...], _continuation]
    """The text or the ids to score."""

    def check_all(self) -> None:
        VlmGenerationRequest.check_all(self)
        if self.turns:
            raise InvalidField(
                "ScoringRequest takes no turns: a continuation ends the conversation"
            )

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            continuation: str | Sequence[int],
            id: str | None = None,
            messages: Sequence[Message | Mapping[str, object]] | None = None,
            prompt: str | None = None,
            prompt_token_ids: Sequence[int] | None = None,
            images: Sequence[object] = (),
            videos: Sequence[object] = (),
            tools: Sequence[Mapping[str, object]] = (),
            options: GenerationOptions | None = None,
            metadata: Mapping[str, object] = ...,
            turns: Sequence[str | Message | Mapping[str, object]] = (),
            continues: Continues | Mapping[str, object] | None = None,
        ) -> None: ...


def folder(value: object) -> str:
    """The path of a folder that exists."""
    result = path(value)
    if not os.path.isdir(result):
        raise ValueError("a folder that exists")
    return result


@record
class ImagePolicy:
    """Which images and videos may be read, and how much of them.

    root: only files in this folder are read, whatever `..` and links say. None: any file.
    allow_http: whether `http:` and `https:` URLs are fetched.
    allowed_hosts: hosts that may have private addresses.
    """

    root: Annotated[str | os.PathLike[str] | None, folder] = None
    """The folder in which files may be read; None allows any file."""
    allow_http: Annotated[bool, boolean] = False
    """Whether `http:` and `https:` URLs are fetched."""
    allowed_hosts: Annotated[tuple[str, ...], tuple_of(non_empty_string)] = ()
    """Hosts that may have private addresses."""
    max_bytes: Annotated[int, integer(low=1)] = 64 * 2**20
    """The most bytes of one image."""
    max_source_pixels: Annotated[int, integer(low=1)] = 100_000_000
    """The most pixels of an image or a frame that is decoded. Each pixel takes 10 to 24 bytes until
    it is resized.
    """
    max_video_bytes: Annotated[int, integer(low=1)] = 256 * 2**20
    """The most bytes of one video."""
    max_video_seconds: Annotated[float, number(above=0)] = 3600.0
    """The longest that a video may be, in seconds."""
    max_decoded_pixels: Annotated[int, integer(low=1)] = 250_000_000_000
    """The most pixels that are decoded for one video. An hour of 1920x1080 at 30 frames a second has
    224 thousand million.
    """
    timeout: Annotated[float, number(above=0)] = 30.0
    """Seconds for one download."""


@record
class RequestPolicy:
    """What one request may ask for. More fails the request with `InvalidRequest`, which names the
    setting.

    Without limits one line of a file could take all the memory, or never end. No request may have a
    chat template of its own, which is a program: a template comes with the options of the run or of
    a route.
    """

    max_samples: Annotated[int, integer(low=1)] = 1024
    """The most samples of one request."""
    max_messages: Annotated[int, integer(low=1)] = 10_000
    """The most messages."""
    max_parts: Annotated[int, integer(low=1)] = 100_000
    """Parts of content, of all messages together."""
    max_images: Annotated[int, integer(low=0)] = 1024
    """The most images and videos. Each image of a video that is given as images counts."""
    max_stops: Annotated[int, integer(low=0)] = 1024
    """Stop strings and stop token ids together."""
    max_choices: Annotated[int, integer(low=1)] = 10_000
    """Texts of the option `choice`."""
    max_prompt_bytes: Annotated[int, integer(low=1)] = 64 * 2**20
    """Text of the prompt, messages and tools in UTF-8. A token id counts four bytes."""
    max_option_bytes: Annotated[int, integer(low=1)] = 2**20
    """Text of the options in UTF-8."""
