"""The records of what a caller may ask of a generation; `pipegen.records.options` gives every one of their fields a value.

>>> GenerationOptions(temperature=0.7, stop=("END",)).stop.stop
('END',)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from immutabledict import immutabledict

from pipegen.records import strict_json
from pipegen.records.fields import InvalidField, boolean, freeze, integer, mapping, non_empty_string, number, one_of, record, schema_of, tuple_of, with_schema
from pipegen.records.option_names import meant

__all__ = ["DEFAULTS", "GROUPS", "ChatTemplateOptions", "DecodeOptions", "GenerationOptions", "StopOptions", "StructuredOptions", "VlmPreprocessOptions"]


@record
class StopOptions:
    """Where generation ends, besides the model's own end tokens."""

    stop: Annotated[tuple[str, ...] | None, tuple_of(non_empty_string)] = None
    """Stop strings; the one that completes first wins, and the text ends before it."""
    stop_token_ids: Annotated[tuple[int, ...] | None, tuple_of(integer(low=0))] = None
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
    """What foreign text that looks like a control token becomes: plain text, an error, or the token. In a plain prompt only where request or run sets it."""
    trust: Annotated[tuple[str, ...] | None, tuple_of(one_of("assistant", "tools", "template_kwargs"))] = None
    """What may hold control tokens besides system and developer turns: earlier answers, definitions of tools, variables of the template."""
    template: Annotated[str | None, non_empty_string] = None
    """A chat template (Jinja) to use instead of the checkpoint's own."""
    template_kwargs: Annotated[Mapping[str, Any] | None, mapping] = None
    """Further variables for the template."""

    def check_all(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField("ChatTemplateOptions takes continue_final_message=True or add_generation_prompt=True, not both")


@record
class VlmPreprocessOptions:
    """How images become pixels; all in pixels (an area, not a side)."""

    min_pixels: Annotated[int | None, integer(low=1)] = None
    """Enlarge smaller images to at least this area."""
    max_pixels: Annotated[int | None, integer(low=1)] = None
    """Shrink larger images to at most this area."""
    do_resize: Annotated[bool | None, boolean] = None
    """Resize to a size that the model's processor keeps; with False the sides must already be such a size."""

    def check_all(self) -> None:
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise InvalidField(f"VlmPreprocessOptions takes min_pixels of at most max_pixels, not {self.min_pixels} > {self.max_pixels}")


def _schema(value: Any) -> str:
    """A JSON object, as JSON text: in a schema the order of the properties counts, as it does not between mappings."""
    if not isinstance(value, (str, Mapping)):
        raise ValueError("a JSON Schema as a mapping or as JSON text")
    try:
        schema = strict_json.load(value if isinstance(value, str) else json.dumps(freeze(value), default=_jsonable))
    except ValueError as refusal:  # strict_json.NotStrict is one
        raise ValueError(f"a JSON Schema as a mapping or as JSON text ({refusal})") from None
    if not isinstance(schema, dict):
        raise ValueError("a JSON Schema as a mapping or as JSON text")
    return strict_json.dump(schema)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"JSON holds no {type(value).__name__}")


def _choices(value: Any) -> Any:
    kept = tuple_of(non_empty_string)(value)
    if not kept:
        raise ValueError("at least one text to choose")
    return kept


with_schema(_schema, {"type": ["object", "string"]})
with_schema(_choices, {**schema_of(tuple_of(non_empty_string)), "minItems": 1})


@record
class StructuredOptions:
    """What form the answer must have: one of these at most, or none."""

    json_schema: Annotated[Mapping[str, Any] | str | None, _schema] = None
    """The answer is JSON that this JSON Schema describes; kept as JSON text, for the order of its properties counts."""
    regex: Annotated[str | None, non_empty_string] = None
    """The whole answer matches this regular expression, in the dialect of the engine."""
    choice: Annotated[tuple[str, ...] | None, _choices] = None
    """The answer is one of these texts."""

    def check_all(self) -> None:
        said = [name for name in ("json_schema", "regex", "choice") if getattr(self, name) is not None]
        if len(said) > 1:
            raise InvalidField(f"StructuredOptions takes one of json_schema, regex and choice, not {' and '.join(said)}")


GROUPS: Mapping[str, type[Any]] = {
    "stop": StopOptions,
    "decode": DecodeOptions,
    "chat": ChatTemplateOptions,
    "preprocess": VlmPreprocessOptions,
    "structured": StructuredOptions,
}
"""The options that stand in a record of their own, by the name of its field."""


def _nested(kind: type[Any], also: str = "") -> Any:
    """A check that takes the record itself or a mapping of its fields."""

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return kind(**value)
        raise ValueError(f"a {kind.__name__}{also}, or a mapping with its fields' names")

    return check


def _stops(value: Any) -> Any:
    """Stop strings alone are enough: `stop=("END",)`."""
    return StopOptions(stop=tuple(value)) if isinstance(value, (tuple, list)) else _nested(StopOptions, " or a tuple of stop strings")(value)


@record
class GenerationOptions:
    """Everything that one generation can be asked for. `None` means "not said"; see `resolve`."""

    max_new_tokens: Annotated[int | None, integer(low=1)] = None
    """How many tokens may be generated at most; a row that gets there ends with `LENGTH`."""
    min_new_tokens: Annotated[int | None, integer(low=0)] = None
    """Nothing ends a row before it has this many tokens, and a stop within them does not count."""
    temperature: Annotated[float | None, number(0)] = None
    """0 takes the likeliest token each time (greedy)."""
    top_p: Annotated[float | None, number(above=0, high=1)] = None
    """Sample from the likeliest tokens whose probabilities add up to this much only; 1 means all."""
    top_k: Annotated[int | None, integer(low=0)] = None
    """Sample from the k likeliest tokens only; 0 means all."""
    min_p: Annotated[float | None, number(0, 1)] = None
    """Sample from tokens that are at least this many times as likely as the likeliest only; 0 means all."""
    repetition_penalty: Annotated[float | None, number(above=0)] = None
    """Divide the positive logits of tokens that stand in the prompt or the answer, and multiply the negative ones; 1 changes nothing."""
    presence_penalty: Annotated[float | None, number(-2, 2)] = None
    """Subtract this from the logits of tokens that stand in the answer."""
    frequency_penalty: Annotated[float | None, number(-2, 2)] = None
    """Subtract this from the logits of tokens for each time that they stand in the answer."""
    no_repeat_ngram_size: Annotated[int | None, integer(low=0)] = None
    """Never write the same sequence of that many tokens twice; 0 means no limit."""
    seed: Annotated[int | None, integer(low=0, high=2**63 - 1)] = None
    """Makes a sampled row repeatable, whatever batch it rides in. Not said: a row that samples may differ from run to run."""
    samples: Annotated[int | None, integer(low=1)] = None
    """How many completions to draw for the one prompt; their seeds are derived from `seed`."""
    logprobs: Annotated[bool | None, boolean] = None
    """Report the model's own log probability of each generated token (before temperature, penalties and filters)."""
    top_logprobs: Annotated[int | None, integer(low=0, high=20)] = None
    """Report that many likeliest tokens for each position too; asks for `logprobs`."""
    max_prompt_tokens: Annotated[int | None, integer(low=1)] = None
    """Fail the slot of a longer prompt, images counted in, before the engine is called. Not said: only the model's own limit counts."""
    on_overflow: Annotated[Literal["error", "clip"] | None, one_of("error", "clip")] = None
    """What to do when prompt and answer do not fit: fail the slot, or lower `max_new_tokens` and say so in the result."""
    use_generation_config: Annotated[bool | None, boolean] = None
    """Take what is not said from the checkpoint's `generation_config` before pipegen's defaults."""
    stop: Annotated[StopOptions | None, _stops] = None
    decode: Annotated[DecodeOptions | None, _nested(DecodeOptions)] = None
    chat: Annotated[ChatTemplateOptions | None, _nested(ChatTemplateOptions)] = None
    preprocess: Annotated[VlmPreprocessOptions | None, _nested(VlmPreprocessOptions)] = None
    structured: Annotated[StructuredOptions | None, _nested(StructuredOptions)] = None

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
            max_prompt_tokens: int | None = None,
            on_overflow: Literal["error", "clip"] | None = None,
            use_generation_config: bool | None = None,
            stop: StopOptions | Sequence[str] | None = None,
            decode: DecodeOptions | None = None,
            chat: ChatTemplateOptions | None = None,
            preprocess: VlmPreprocessOptions | None = None,
            structured: StructuredOptions | None = None,
        ) -> None: ...

    @staticmethod
    def _hint_for(name: str) -> str:
        return meant(name, GROUPS, [f.name for f in dataclasses.fields(GenerationOptions)])

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
    chat=ChatTemplateOptions(continue_final_message=False, enable_thinking=False, control_tokens="text", trust=(), template_kwargs=immutabledict()),
    preprocess=VlmPreprocessOptions(do_resize=True),
)
"""pipegen's defaults. `chat.template`, `min_pixels` and `max_pixels` have none: the checkpoint's own apply. No `seed` means unseeded, no
`max_prompt_tokens` that only the model's own limit counts, and no `structured` that the answer is free."""
