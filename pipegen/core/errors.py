"""What can go wrong with one request, as data.

Errors are frozen, picklable, comparable records that travel in a request's own slot. They are
exceptions too, so that `slot.unwrap()` shows the message and the hint, and `raise slot.failure()`
works. What runs pipes raises none of them. Two more exceptions are for the two other
kinds of trouble. By `CallFailed` a backend says that a whole call failed. `ContractError` says that
somebody's code broke a promise (a bug).

>>> PromptTooLong(10, 4).message
'the prompt has 10 tokens; the limit is 4'
>>> PromptTooLong(10, 4).retryable
False
>>> raise PromptTooLong(10, 4)
Traceback (most recent call last):
...
pipegen.core.errors.PromptTooLong: the prompt has 10 tokens; the limit is 4 (hint: shorten the prompt)
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import ClassVar, Self, TypeVar, cast, dataclass_transform

__all__ = [
    "BackendFailed",
    "BadImage",
    "BadVideo",
    "CallFailed",
    "ContractError",
    "GenerationError",
    "InternalError",
    "InvalidRequest",
    "MalformedResponse",
    "PluginFailed",
    "PromptTooLong",
    "RateLimited",
    "Refused",
    "StageFailed",
    "TemplateFailed",
    "Timeout",
    "UnsupportedMultimodal",
    "UnsupportedOption",
    "UnsupportedPlugin",
]


E = TypeVar("E")
_OF_EXCEPTIONS = ("__cause__", "__context__", "__notes__", "__suppress_context__", "__traceback__")
"""What Python itself sets on an exception that is raised."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _error(cls: type[E]) -> type[E]:
    """A frozen dataclass that can be raised: its fields never change, what Python keeps on
    exceptions may.
    """
    error_class = dataclass(frozen=True, slots=True)(cls)

    def set_attribute(self: RuntimeError, name: str, value: object) -> None:
        if name not in _OF_EXCEPTIONS:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        RuntimeError.__setattr__(self, name, value)

    # type checkers take no assignment to it
    setattr(error_class, "__setattr__", set_attribute)  # noqa: B010
    return error_class


@_error
class GenerationError(RuntimeError):
    """Why one request got no result.

    Two errors that differ in their `incident` alone are equal.
    """

    message: str = ""
    """What was seen, and where."""
    hint: str = field(default="", kw_only=True)
    """What to do about it, in one line."""
    earlier: tuple[GenerationError, ...] = field(default=(), kw_only=True)
    """The errors of the routes that were tried before, oldest first."""
    incident: str = field(default="", kw_only=True, compare=False)
    """The id of the traceback in the log of the logger `pipegen`; empty if nothing was logged."""

    retryable: ClassVar[bool] = False
    """Whether the same request may succeed when it is sent again."""
    default_hint: ClassVar[str] = "read the message; the request itself has to change"

    def __post_init__(self) -> None:
        if not self.message:
            object.__setattr__(self, "message", self._describe())
        if not self.hint:
            object.__setattr__(self, "hint", self._advise())

    def _describe(self) -> str:
        return type(self).__name__

    def _advise(self) -> str:
        return self.default_hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})"

    def __reduce__(self) -> tuple[object, ...]:
        return _made_again, (type(self), self._values())

    def _values(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def after(self, earlier: tuple[GenerationError, ...]) -> Self:
        """The same error, with `earlier` put before its history.

        >>> StageFailed("late", stage="x").after((InvalidRequest("early"),)).earlier[0].message
        'early'
        """
        return self.with_fields(earlier=earlier + self.earlier)

    def with_fields(self, **values: object) -> Self:
        """The same error with other values of its fields, whatever arguments its class takes."""
        return _made_again(type(self), {**self._values(), **values})


def _made_again(kind: type[E], values: dict[str, object]) -> E:
    """An error of these values. Its class may have arguments of its own, so it is not called."""
    error = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(error, name, value)
    return error


@_error
class UnsupportedMultimodal(GenerationError):
    """An image or a video was sent to an engine or a model that takes none, or more of them than
    it takes.
    """

    default_hint: ClassVar[str] = (
        "send it to a vision model, or catch it with fallback(first, second,"
        " when=UnsupportedMultimodal)"
    )


@_error
class UnsupportedOption(GenerationError):
    """An option that this engine cannot honour; it is refused, never ignored."""

    option: str = field(default="", kw_only=True)
    """The option's name."""
    default_hint: ClassVar[str] = (
        "leave the option out, or choose an engine that honours it: `pipegen doctor` prints the"
        " table"
    )


@_error
class UnsupportedPlugin(GenerationError):
    """A plugin needs something that this engine or this request does not offer."""

    plugin: str = field(default="", kw_only=True)
    """The plugin's name."""
    default_hint: ClassVar[str] = (
        "attach the plugin to an engine with the capabilities it requires, such as hf"
    )


@_error
class PromptTooLong(GenerationError):
    """The prompt, or the prompt with the room asked for the answer, is longer than the model takes
    (both counted in tokens; None where not known).
    """

    message: str = field(default="", kw_only=True)
    """What was seen, and where."""
    prompt_tokens: int | None = field(default=None, kw_only=False)
    """Tokens of the prompt; None if unknown."""
    limit: int | None = field(default=None, kw_only=False)
    """The limit in tokens; None if unknown."""
    default_hint: ClassVar[str] = (
        'shorten the prompt, lower max_new_tokens, or set on_overflow="clip"'
    )

    def _describe(self) -> str:
        if self.limit is None or self.prompt_tokens is None:
            counted = (
                "" if self.prompt_tokens is None else f", which has {self.prompt_tokens} tokens,"
            )
            return (
                f"the prompt{counted} is longer than the model"
                f" takes{'' if self.limit is None else f'; the limit is {self.limit} tokens'}"
            )
        if self.prompt_tokens == self.limit:
            return (
                f"the prompt has {self.prompt_tokens} tokens and leaves no room for an answer; the"
                f" limit for both is {self.limit}"
            )
        return f"the prompt has {self.prompt_tokens} tokens; the limit is {self.limit}"

    def _advise(self) -> str:
        full = (
            self.limit is not None
            and self.prompt_tokens is not None
            and self.prompt_tokens >= self.limit
        )
        # no room is gained by asking for less
        return "shorten the prompt" if full else self.default_hint


@_error
class BadImage(GenerationError):
    """The image at position `index` of the request (counted from 0 among its images, in message
    order) cannot be used.
    """

    message: str = field(default="", kw_only=True)
    """What was seen, and where."""
    index: int = field(default=0, kw_only=False)
    """The position of the image, from 0, in message order."""
    default_hint: ClassVar[str] = "check that the file is a complete image within the limits"

    def _describe(self) -> str:
        return f"image {self.index} cannot be used"


@_error
class BadVideo(GenerationError):
    """The video at position `index` of the request (counted from 0 among its videos, in message
    order) cannot be used.
    """

    message: str = field(default="", kw_only=True)
    """What was seen, and where."""
    index: int = field(default=0, kw_only=False)
    """The position of the video, from 0, in message order."""
    default_hint: ClassVar[str] = "check that the file is a complete video within the limits"

    def _describe(self) -> str:
        return f"video {self.index} cannot be used"


@_error
class InvalidRequest(GenerationError):
    """The request is malformed; the message names the place."""

    default_hint: ClassVar[str] = "correct the request at the place that the message names"


@_error
class TemplateFailed(GenerationError):
    """The chat template raised while it rendered the messages."""

    default_hint: ClassVar[str] = (
        "check the messages against what the model's chat template expects"
    )


class _UnlessLasting:
    """True of the class, and of an error that is not `lasting`."""

    def __get__(self, error: BackendFailed | None, kind: type) -> bool:
        return error is None or not error.lasting


@_error
class BackendFailed(GenerationError):
    """The engine failed: for one row (`scope="row"`) or for the whole call (`scope="batch"`).

    All slots of one failed call carry the same `incident`. A `lasting` failure comes again until a
    setting is corrected (a key, an address). It is not `retryable`, though a job asks for the row
    again the next time.

    >>> BackendFailed("busy").retryable, BackendFailed("no such key", lasting=True).retryable
    (True, False)
    """

    backend: str = field(default="", kw_only=True)
    """The engine's name."""
    scope: str = field(default="batch", kw_only=True)
    """`"row"` for one row, `"batch"` for a whole call."""
    lasting: bool = field(default=False, kw_only=True)
    """Whether a setting is wrong, so that sending again does not help."""
    retryable: ClassVar[bool] = cast(bool, _UnlessLasting())
    """False if the cause lasts."""
    default_hint: ClassVar[str] = "see the engine's own log; the request can be sent again"

    def _advise(self) -> str:
        if self.lasting:
            return "correct the setting that the message names"
        return (
            "look for the incident in the log; the request can be sent again"
            if self.incident
            else self.default_hint
        )


@_error
class Timeout(GenerationError):
    """No answer came within the time allowed."""

    retryable: ClassVar[bool] = True
    """The same request may succeed when it is sent again."""
    default_hint: ClassVar[str] = "send it again, or allow more time"


@_error
class RateLimited(GenerationError):
    """The server gets more requests than it takes; `retry_after` is in seconds, None when it did
    not say.
    """

    retry_after: float | None = field(default=None, kw_only=True)
    """Seconds to wait; None if the server did not say."""
    retryable: ClassVar[bool] = True
    """The same request may succeed when it is sent again."""
    default_hint: ClassVar[str] = "send it again later, or lower max_in_flight"


@_error
class Refused(GenerationError):
    """The server did not answer for what was asked: its content filter ended the answer, or the
    model refused. `text` is what had come.
    """

    refusal: str = field(default="", kw_only=True)
    """The words of the refusal; empty if the server gave none."""
    text: str = field(default="", kw_only=True)
    """The answer up to there."""
    default_hint: ClassVar[str] = (
        "change what is asked, or ask another model: fallback(first, second, when=Refused)"
    )


@_error
class MalformedResponse(GenerationError):
    """The engine answered with something that its protocol does not allow; the message names the
    place.
    """

    default_hint: ClassVar[str] = "report it with the engine's version; the answer was not used"


@_error
class PluginFailed(GenerationError):
    """A plugin raised, or returned something that it may not."""

    plugin: str = field(default="", kw_only=True)
    """The plugin's name."""
    default_hint: ClassVar[str] = "correct the plugin, or do not attach it"


@_error
class StageFailed(GenerationError):
    """A stage raised an exception that `each(..., catch=...)` lists, or ran out of memory or of
    recursion depth.

    Where bugs are isolated, as in a job, so does any other exception of a stage that is not
    pipegen's own; `incident` is then set.
    """

    stage: str = field(default="", kw_only=True)
    """The stage's name."""
    default_hint: ClassVar[str] = "the stage refused this request; see the message"


@_error
class InternalError(GenerationError):
    """A bug of pipegen's. Only a job and the command line make it, where one row must not end the
    others; elsewhere the bug's own exception raises.
    """

    default_hint: ClassVar[str] = (
        "report it, with the traceback that the log has under the incident"
    )


class CallFailed(Exception):
    """Raised by a backend when a whole call failed: every slot of the call gets `error`. Raises
    `TypeError` for an error that is none of pipegen's.
    """

    def __init__(self, error: GenerationError) -> None:
        if not isinstance(error, GenerationError):
            raise TypeError(
                "CallFailed takes a GenerationError, such as BackendFailed(message, backend=name),"
                f" not {error!r:.80}"
            )
        super().__init__(error)
        self.error = error
        """The error that each slot of the call gets."""

    def __str__(self) -> str:
        return self.error.message


class ContractError(Exception):
    """Somebody's code broke a promise, such as an engine that returned 3 outputs for 4 inputs. It
    is a bug, and it raises.
    """
