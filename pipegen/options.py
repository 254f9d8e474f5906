"""Options: what a caller may ask of a generation, and the one pure step that gives every option its value.

Every field of an option record may be `None`, which means "not said". `resolve` fills what is not said: the request's own options win, then those of
the whole run, then (only if asked) the checkpoint's `generation_config`, then pipegen's defaults. The result is again a `GenerationOptions`, with
everything said; resolving it again changes nothing, so it can be sent again for the same call.

>>> effective = resolve(GenerationOptions(temperature=0.7))
>>> effective.temperature, effective.max_new_tokens, effective.stop.stop
(0.7, 512, ())
>>> resolve(effective) == effective
True
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from immutabledict import immutabledict

from pipegen.fields import InvalidField, UnknownField, boolean, mapping, nearest, one_of, real, record, text, tuple_of, whole

__all__ = [
    "DEFAULTS",
    "ChatTemplateOptions",
    "DecodeOptions",
    "GenerationOptions",
    "StopOptions",
    "VlmPreprocessOptions",
    "flat_values",
    "merge",
    "option_names",
    "options_from",
    "resolve",
]

R = TypeVar("R")


@record
class StopOptions:
    """Where generation ends, besides the model's own end tokens."""

    stop: Annotated[tuple[str, ...] | None, tuple_of(text)] = None
    """Stop strings; the one that completes first wins, and the text ends before it."""
    stop_token_ids: Annotated[tuple[int, ...] | None, tuple_of(whole(low=0))] = None
    """Token ids that end generation; their text stays in `raw_text` only."""
    ignore_eos: Annotated[bool | None, boolean] = None
    """Generate on past the model's own end tokens."""


@record
class DecodeOptions:
    """How token ids become `text`. `raw_text` is never touched by these."""

    skip_special_tokens: Annotated[bool | None, boolean] = None
    """Leave special tokens out of `text`."""
    strip_whitespace: Annotated[bool | None, boolean] = None
    """Strip whitespace from both ends of `text`, after the cut and before plugins."""


@record
class ChatTemplateOptions:
    """How messages become a prompt."""

    add_generation_prompt: Annotated[bool | None, boolean] = None
    """Open the assistant's turn at the end of the prompt (the default unless a final message is continued)."""
    continue_final_message: Annotated[bool | None, boolean] = None
    """Continue the last assistant turn instead of opening a new one."""
    enable_thinking: Annotated[bool | None, boolean] = None
    """The template's thinking switch, where it has one; the result says whether it was honoured."""
    control_tokens: Annotated[Literal["text", "reject", "allow"] | None, one_of("text", "reject", "allow")] = None
    """What text in user and tool content that looks like a control token becomes: plain text, an error, or the token."""
    template: Annotated[str | None, text] = None
    """A chat template (Jinja) to use instead of the checkpoint's own."""
    template_kwargs: Annotated[Mapping[str, Any] | None, mapping] = None
    """Further variables for the template."""

    def check_all(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField("ChatTemplateOptions takes continue_final_message=True or add_generation_prompt=True, not both")


@record
class VlmPreprocessOptions:
    """How pictures become pixels; all in pixels (an area, not a side)."""

    min_pixels: Annotated[int | None, whole(low=1)] = None
    max_pixels: Annotated[int | None, whole(low=1)] = None
    do_resize: Annotated[bool | None, boolean] = None
    """Resize to a size that the model's processor keeps; with False the sides must already be such a size."""

    def check_all(self) -> None:
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise InvalidField(f"VlmPreprocessOptions takes min_pixels of at most max_pixels, not {self.min_pixels} > {self.max_pixels}")


def _nested(kind: type[Any], also: str = "") -> Any:
    """A check that takes the record itself or a mapping of its fields."""

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return kind(**value)
        raise ValueError(f"a {kind.__name__}{also}")

    return check


def _stops(value: Any) -> Any:
    """Stop strings alone are enough: `stop=("END",)`."""
    return StopOptions(stop=tuple(value)) if isinstance(value, (tuple, list)) else _nested(StopOptions, " or a tuple of stop strings")(value)


@record
class GenerationOptions:
    """Everything that one generation can be asked for. `None` means "not said"; see `resolve`."""

    max_new_tokens: Annotated[int | None, whole(low=1)] = None
    min_new_tokens: Annotated[int | None, whole(low=0)] = None
    """Nothing ends a row before it has this many tokens, and a stop within them does not count."""
    temperature: Annotated[float | None, real(0)] = None
    """0 takes the likeliest token each time (greedy)."""
    top_p: Annotated[float | None, real(above=0, high=1)] = None
    top_k: Annotated[int | None, whole(low=0)] = None
    """Sample from the k likeliest tokens only; 0 means all."""
    min_p: Annotated[float | None, real(0, 1)] = None
    repetition_penalty: Annotated[float | None, real(above=0)] = None
    presence_penalty: Annotated[float | None, real(-2, 2)] = None
    frequency_penalty: Annotated[float | None, real(-2, 2)] = None
    no_repeat_ngram_size: Annotated[int | None, whole(low=0)] = None
    seed: Annotated[int | None, whole(low=0, high=2**63 - 1)] = None
    """Makes a sampled row repeatable, whatever batch it rides in. Not said: a row that samples may differ from run to run."""
    samples: Annotated[int | None, whole(low=1)] = None
    """How many completions to draw for the one prompt; their seeds are derived from `seed`."""
    logprobs: Annotated[bool | None, boolean] = None
    """Report the model's own log probability of each generated token (before temperature, penalties and filters)."""
    top_logprobs: Annotated[int | None, whole(low=0, high=20)] = None
    """Report that many likeliest tokens for each position too; asks for `logprobs`."""
    on_overflow: Annotated[Literal["error", "clip"] | None, one_of("error", "clip")] = None
    """What to do when prompt and answer do not fit: fail the slot, or lower `max_new_tokens` and say so in the result."""
    use_generation_config: Annotated[bool | None, boolean] = None
    """Take what is not said from the checkpoint's `generation_config` before pipegen's defaults."""
    stop: Annotated[StopOptions | None, _stops] = None
    decode: Annotated[DecodeOptions | None, _nested(DecodeOptions)] = None
    chat: Annotated[ChatTemplateOptions | None, _nested(ChatTemplateOptions)] = None
    preprocess: Annotated[VlmPreprocessOptions | None, _nested(VlmPreprocessOptions)] = None

    if TYPE_CHECKING:  # stops alone may be given for StopOptions

        def __init__(
            self,
            *,
            max_new_tokens: int | None = None,
            min_new_tokens: int | None = None,
            temperature: float | None = None,
            top_p: float | None = None,
            top_k: int | None = None,
            min_p: float | None = None,
            repetition_penalty: float | None = None,
            presence_penalty: float | None = None,
            frequency_penalty: float | None = None,
            no_repeat_ngram_size: int | None = None,
            seed: int | None = None,
            samples: int | None = None,
            logprobs: bool | None = None,
            top_logprobs: int | None = None,
            on_overflow: Literal["error", "clip"] | None = None,
            use_generation_config: bool | None = None,
            stop: StopOptions | Sequence[str] | None = None,
            decode: DecodeOptions | None = None,
            chat: ChatTemplateOptions | None = None,
            preprocess: VlmPreprocessOptions | None = None,
        ) -> None: ...

    def check_all(self) -> None:
        if self.top_logprobs and self.logprobs is False:
            raise InvalidField("GenerationOptions takes top_logprobs only with logprobs=True")
        if self.min_new_tokens is not None and self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidField(f"GenerationOptions takes min_new_tokens of at most max_new_tokens, not {self.min_new_tokens} > {self.max_new_tokens}")


DEFAULTS = GenerationOptions(
    max_new_tokens=512,
    min_new_tokens=0,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    no_repeat_ngram_size=0,
    samples=1,
    logprobs=False,
    top_logprobs=0,
    on_overflow="error",
    use_generation_config=False,
    stop=StopOptions(stop=(), stop_token_ids=(), ignore_eos=False),
    decode=DecodeOptions(skip_special_tokens=True, strip_whitespace=False),
    chat=ChatTemplateOptions(continue_final_message=False, enable_thinking=False, control_tokens="text", template_kwargs=immutabledict()),
    preprocess=VlmPreprocessOptions(do_resize=True),
)
"""pipegen's defaults. `seed`, `chat.template`, `min_pixels` and `max_pixels` have none: the checkpoint's own apply, and no seed means unseeded."""

_NESTED: Mapping[str, type[Any]] = {"stop": StopOptions, "decode": DecodeOptions, "chat": ChatTemplateOptions, "preprocess": VlmPreprocessOptions}
_FLAT: Mapping[str, str] = {f.name: group for group, kind in _NESTED.items() for f in dataclasses.fields(kind)}
_PLAIN = tuple(f.name for f in dataclasses.fields(GenerationOptions) if f.name not in _NESTED)
CHECKPOINT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size", "max_new_tokens", "min_new_tokens")
"""What `use_generation_config=True` takes from the checkpoint."""


def merge(first: R | None, second: R | None) -> R | None:
    """Field by field (and in nested records too), what `first` says, else what `second` says.

    >>> merge(GenerationOptions(seed=1), GenerationOptions(seed=2, top_k=3)).top_k
    3
    """
    if first is None or second is None or first == second:
        return second if first is None else first
    said: dict[str, Any] = {}
    for f in dataclasses.fields(first):  # type: ignore[arg-type]  # R is one of the option records
        own, other = getattr(first, f.name), getattr(second, f.name)
        said[f.name] = merge(own, other) if f.name in _NESTED and dataclasses.is_dataclass(own if own is not None else other) else own if own is not None else other
    if isinstance(first, ChatTemplateOptions):
        # The two switches exclude each other: the one that the stronger side set wins.
        said.update({"add_generation_prompt": False} if first.continue_final_message else {"continue_final_message": False} if first.add_generation_prompt else {})
    if isinstance(first, GenerationOptions) and first.logprobs is False:
        said["top_logprobs"] = 0
    elif said.get("top_logprobs") and said["logprobs"] is False:
        said["logprobs"] = True  # asking for the likeliest tokens asks for the chosen one too
    return type(first)(**said)


@functools.lru_cache(maxsize=1024)
def resolve(*said: GenerationOptions | None, checkpoint: immutabledict[str, Any] = immutabledict()) -> GenerationOptions:
    """Give every option its value: earlier arguments win over later ones, then the checkpoint's values if asked, then `DEFAULTS`.

    `checkpoint` is the checkpoint's `generation_config` as a mapping; it counts only where `use_generation_config=True` was said. A checkpoint that
    says `do_sample: false` is greedy whatever temperature it names. Raises `InvalidField` when the merged options contradict each other.

    >>> resolve(GenerationOptions(use_generation_config=True), checkpoint=immutabledict(top_k=20)).top_k
    20
    """
    options: GenerationOptions | None = None  # the function is pure and its arguments are hashable, so it is cached: runs share few distinct options
    for layer in said:
        options = merge(options, layer)
    if options is not None and options.use_generation_config:
        from_checkpoint = {name: checkpoint[name] for name in CHECKPOINT_FIELDS if checkpoint.get(name) is not None}
        if not checkpoint.get("do_sample", False):
            from_checkpoint["temperature"] = 0.0
        elif "temperature" not in from_checkpoint:
            from_checkpoint["temperature"] = 1.0
        options = merge(options, GenerationOptions(**from_checkpoint))
    full = merge(options, DEFAULTS)
    if full is None or full.chat is None:
        raise AssertionError("DEFAULTS says everything")
    add = not full.chat.continue_final_message if full.chat.add_generation_prompt is None else full.chat.add_generation_prompt
    chat = dataclasses.replace(full.chat, add_generation_prompt=add)
    return dataclasses.replace(full, chat=chat, use_generation_config=False)


def options_from(values: Mapping[str, Any], place: str = "options") -> GenerationOptions:
    """Options from plain data (JSON, YAML, flags): nested as the records are, or flat, such as `{"stop": ["END"], "strip_whitespace": true}`.

    Raises `UnknownField` with the place and the nearest name, `InvalidField` with the place and what the field takes.

    >>> options_from({"temperature": 0.2, "stop": ["END"], "enable_thinking": True}).chat.enable_thinking
    True
    >>> options_from({"temprature": 0.2}, place="line 3")
    Traceback (most recent call last):
    ...
    pipegen.fields.UnknownField: line 3: there is no option 'temprature'; did you mean 'temperature'?
    """
    plain: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name in _NESTED and isinstance(value, Mapping):
            groups.setdefault(name, {}).update(value)
        elif name in _PLAIN:
            plain[name] = value
        elif name in _FLAT:
            groups.setdefault(_FLAT[name], {})[name] = value
        elif name in _NESTED:
            raise InvalidField(f"{place}: {name} takes a mapping, not {value!r:.200}")
        else:
            raise UnknownField(f"{place}: there is no option {name!r}{nearest(name, option_names())}")
    try:
        return GenerationOptions(**plain, **{group: _NESTED[group](**fields) for group, fields in groups.items()})
    except InvalidField as refusal:
        raise type(refusal)(f"{place}: {refusal}") from None


def option_names() -> Iterable[str]:
    """Every flat option name, as `options_from`, the flags and the capability table use them.

    >>> "stop_token_ids" in option_names()
    True
    """
    return (*_PLAIN, *_FLAT)


def flat_values(options: GenerationOptions) -> dict[str, Any]:
    """Every option by its flat name, as `options_from` takes them.

    >>> flat_values(DEFAULTS)["strip_whitespace"]
    False
    """
    values = {name: getattr(options, name) for name in _PLAIN}
    for group, kind in _NESTED.items():
        fields = getattr(options, group)
        values.update({f.name: getattr(fields, f.name) if fields is not None else None for f in dataclasses.fields(kind)})
    return values
