"""Options: each is declared here once, with what it takes, its help, its default, the engines that
honour it, and what others call it.

`None` means "not set"; `pipegen.records.options` gives every option its value.
`pipegen.records.option_table` makes the table of these rows.

>>> GenerationOptions(temperature=0.7, stop=("END",)).stop.stop
('END',)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from immutabledict import immutabledict

from pipegen.records import strict_json
from pipegen.records.engine_list import ENGINE_LIST, TOKEN_ENGINES
from pipegen.records.fields import (
    InvalidField,
    boolean,
    integer,
    mapping,
    non_empty_string,
    number,
    one_of,
    record,
    schema_of,
    tuple_of,
    with_schema,
)
from pipegen.records.frozen import freeze, plain_list

__all__ = [
    "GROUPS",
    "ChatTemplateOptions",
    "DecodeOptions",
    "GenerationOptions",
    "OptionRow",
    "StopOptions",
    "StructuredOptions",
    "VlmPreprocessOptions",
]

EVERY = frozenset(ENGINE_LIST)
SERVED = EVERY - {"openai_chat"}
"""Every engine but a chat server that knows OpenAI's fields alone."""
_OF_VIDEOS = frozenset({"hf", "vllm"})
"""The engines that take videos."""


class OptionRow(NamedTuple):
    """What the table says of an option besides its name, its type, its check and its help."""

    default: Any = None
    engines: frozenset[str] = TOKEN_ENGINES
    """The engines that honour it; those that take token ids honour what pipegen's own stages do."""
    fields: str = ""
    """The fields of servers' requests that set it, where they are not its name in `wires`; files
    take these names too.
    """
    near: str = ""
    """What other libraries call it, or something like it: for "did you mean"."""
    trial: Any = None
    """A value that is not the default, for tests that try every option."""
    wires: str = ""
    """Its name where its value is sent as it is: for vLLM, SGLang and chat servers, or one name for
    all three.
    """
    limits: str = ""
    """What bounds it in a request: `integer`, which is 32 bits for itself or each of its items, and
    fields of `RequestPolicy`, which bound what all options of that limit have together.
    """


@record
class StopOptions:
    """Where generation ends, besides the model's own end tokens."""

    stop: Annotated[
        tuple[str, ...] | None,
        tuple_of(non_empty_string),
        "Stop strings; the one that completes first wins, and the text ends before it.",
        OptionRow(
            (),
            EVERY,
            fields="stop",
            near="stop_sequences stop_strings",
            trial=("a",),
            limits="max_stops max_option_bytes",
        ),
    ] = None
    stop_token_ids: Annotated[
        tuple[int, ...] | None,
        tuple_of(integer(low=0)),
        "Token ids that end generation; their text stays in `raw_text` only.",
        OptionRow(
            (),
            SERVED,
            fields="stop_token_ids",
            near="eos_token_id",
            trial=(5,),
            limits="integer max_stops",
        ),
    ] = None
    ignore_eos: Annotated[
        bool | None,
        boolean,
        "Do not stop at the model's own end tokens.",
        OptionRow(False, fields="ignore_eos", trial=True),
    ] = None


@record
class DecodeOptions:
    """How token ids become `text`. `raw_text` is never touched by these."""

    skip_special_tokens: Annotated[
        bool | None,
        boolean,
        "Leave special tokens out of `text`.",
        OptionRow(True, SERVED - {"vllm_chat"}, fields="skip_special_tokens", trial=False),
    ] = None
    strip_whitespace: Annotated[
        bool | None,
        boolean,
        "Strip whitespace from both ends of `text`, after the cut and before plugins.",
        OptionRow(False, EVERY, trial=True),
    ] = None


@record
class ChatTemplateOptions:
    """How messages become a prompt."""

    add_generation_prompt: Annotated[
        bool | None,
        boolean,
        "Open the assistant's turn at the end of the prompt (the default unless a final message is"
        " continued).",
        OptionRow(None, SERVED, trial=False),
    ] = None
    continue_final_message: Annotated[
        bool | None,
        boolean,
        "Continue the last assistant turn instead of opening a new one.",
        OptionRow(False, SERVED, trial=True),
    ] = None
    enable_thinking: Annotated[
        bool | None,
        boolean,
        "The template's thinking switch, if it has one; the result says whether it is honoured.",
        OptionRow(False, SERVED, fields="enable_thinking", trial=True),
    ] = None
    control_tokens: Annotated[
        Literal["text", "reject", "allow"] | None,
        one_of("text", "reject", "allow"),
        "What text of users that looks like a control token becomes: plain text, an error, or the"
        " token. In a plain prompt only where request or run sets it.",
        OptionRow("text", trial="allow"),
    ] = None
    trust: Annotated[
        tuple[str, ...] | None,
        tuple_of(one_of("assistant", "tools", "template_kwargs")),
        "What may hold control tokens besides system and developer turns: earlier answers,"
        " definitions of tools, variables of the template.",
        OptionRow((), trial=("assistant",)),
    ] = None
    template: Annotated[
        str | None,
        non_empty_string,
        "A chat template (Jinja) to use instead of the checkpoint's own.",
        OptionRow(near="chat_template", trial="{{ messages }}", limits="max_option_bytes"),
    ] = None
    template_kwargs: Annotated[
        Mapping[str, Any] | None,
        mapping,
        "Further variables for the template.",
        OptionRow(
            immutabledict(),
            SERVED,
            fields="chat_template_kwargs",
            trial=immutabledict(x=1),
            limits="max_option_bytes",
        ),
    ] = None

    def check_all(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField(
                "ChatTemplateOptions takes continue_final_message=True or"
                " add_generation_prompt=True, not both"
            )


@record
class VlmPreprocessOptions:
    """How images and videos become pixels. Sizes are in pixels (an area, not a side), and those of
    images hold for each frame of a video too.
    """

    min_pixels: Annotated[
        int | None,
        integer(low=1),
        "Enlarge smaller images to at least this area.",
        OptionRow(trial=4096, limits="integer"),
    ] = None
    max_pixels: Annotated[
        int | None,
        integer(low=1),
        "Shrink larger images to at most this area.",
        OptionRow(trial=8192, limits="integer"),
    ] = None
    do_resize: Annotated[
        bool | None,
        boolean,
        "Resize to a size that the model's processor keeps; with `False` the image must have such a"
        " size already.",
        OptionRow(True, trial=False),
    ] = None
    fps: Annotated[
        float | None,
        number(above=0),
        "Frames taken of each second of a video; images with times are all taken unless it is set.",
        OptionRow(None, _OF_VIDEOS, near="video_fps sample_fps sampling_fps", trial=1.0),
    ] = None
    max_frames: Annotated[
        int | None,
        integer(low=1),
        "Take at most this many frames of a video.",
        OptionRow(None, _OF_VIDEOS, near="num_frames nframes", trial=4, limits="integer"),
    ] = None
    max_video_pixels: Annotated[
        int | None,
        integer(low=1),
        "Shrink the frames of a video, and take fewer of them, to at most this area of all of them"
        " together.",
        OptionRow(None, _OF_VIDEOS, near="total_pixels", trial=65536, limits="integer"),
    ] = None

    def check_all(self) -> None:
        if (
            self.min_pixels is not None
            and self.max_pixels is not None
            and self.min_pixels > self.max_pixels
        ):
            raise InvalidField(
                "VlmPreprocessOptions takes min_pixels of at most max_pixels, not"
                f" {self.min_pixels} > {self.max_pixels}"
            )


def _schema(value: Any) -> str:
    """A JSON object, as JSON text: the order of a schema's properties counts, and its text keeps
    it. A text keeps the digits of its numbers.
    """
    if not isinstance(value, (str, Mapping)):
        raise ValueError("a JSON Schema as a mapping or as JSON text")
    try:
        schema = strict_json.load(
            value if isinstance(value, str) else json.dumps(freeze(value), default=_jsonable)
        )
    except ValueError as refusal:  # strict_json.NotStrict is one
        raise ValueError(f"a JSON Schema as a mapping or as JSON text ({refusal})") from None
    if not isinstance(schema, dict):
        raise ValueError("a JSON Schema as a mapping or as JSON text")
    if isinstance(value, str) and not strict_json.floats_hold(value):
        return value.strip()
    return strict_json.dump(schema)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"JSON holds no {type(value).__name__}")


def _choices(value: Any) -> Any:
    choices = tuple_of(non_empty_string)(value)
    if not choices:
        raise ValueError("at least one text to choose")
    return choices


def _allowed(value: Any) -> Any:
    ids = tuple_of(integer(low=0, high=2**31 - 1))(value)
    if not ids:
        raise ValueError("at least one token id")
    return ids


with_schema(_allowed, {**schema_of(tuple_of(integer(low=0, high=2**31 - 1))), "minItems": 1})
with_schema(_schema, {"type": ["object", "string"]})
with_schema(_choices, {**schema_of(tuple_of(non_empty_string)), "minItems": 1})


@record
class StructuredOptions:
    """What form the answer must have: one of these at most, or none."""

    json_schema: Annotated[
        Mapping[str, Any] | str | None,
        _schema,
        "The answer is JSON that this JSON Schema describes; kept as JSON text, because the order"
        " of its properties counts.",
        OptionRow(
            None,
            EVERY,
            fields="guided_json",
            near="response_format json",
            trial='{"enum": [1, 2]}',
            limits="max_option_bytes",
        ),
    ] = None
    regex: Annotated[
        str | None,
        non_empty_string,
        "The whole answer matches this regular expression, in the dialect of the engine.",
        OptionRow(None, SERVED, fields="guided_regex", trial="[ab]+", limits="max_option_bytes"),
    ] = None
    choice: Annotated[
        tuple[str, ...] | None,
        _choices,
        "The answer is one of these texts.",
        OptionRow(
            None,
            SERVED,
            fields="guided_choice",
            trial=("yes", "no"),
            limits="max_choices max_option_bytes",
        ),
    ] = None
    tool_choice: Annotated[
        str | None,
        non_empty_string,
        "The answer is one tool call, in the form of the chat template: `required` for one of the"
        " request's tools, or the name of one.",
        OptionRow(None, trial="required", limits="max_option_bytes"),
    ] = None

    def check_all(self) -> None:
        names = ("json_schema", "regex", "choice", "tool_choice")
        forms = [name for name in names if getattr(self, name) is not None]
        if len(forms) > 1:
            raise InvalidField(
                "StructuredOptions takes one of json_schema, regex, choice and tool_choice, not"
                f" {' and '.join(forms)}"
            )


GROUPS: Mapping[str, type[Any]] = {
    "stop": StopOptions,
    "decode": DecodeOptions,
    "chat": ChatTemplateOptions,
    "preprocess": VlmPreprocessOptions,
    "structured": StructuredOptions,
}
"""The options that are in a record of their own, by the name of its field."""


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
    value = plain_list(value)
    return (
        StopOptions(stop=tuple(value))
        if isinstance(value, (tuple, list))
        else _nested(StopOptions, " or a tuple of stop strings")(value)
    )


@record
class GenerationOptions:
    """Everything that one generation can be asked for. `None` means "not set"; see `resolve`."""

    max_new_tokens: Annotated[
        int | None,
        integer(low=0),
        "The most tokens to generate; a row that reaches it ends with `LENGTH`. With 0 only the"
        " prompt is read, for its `prompt_logprobs`.",
        OptionRow(
            512,
            EVERY,
            fields="max_tokens max_completion_tokens",
            near="max_output_tokens max_length",
            wires="max_tokens max_new_tokens max_tokens",
            trial=3,
            limits="integer",
        ),
    ] = None
    max_thinking_tokens: Annotated[
        int | None,
        integer(low=0),
        "Think first, in at most this many tokens, which `max_new_tokens` counts too; then the"
        " thought is closed, and the answer begins. Turns `enable_thinking` on.",
        OptionRow(near="thinking_token_budget thinking_budget", trial=2, limits="integer"),
    ] = None
    min_new_tokens: Annotated[
        int | None,
        integer(low=0),
        "Nothing ends a row before it has this many tokens, and a stop within them does not count.",
        OptionRow(0, SERVED, fields="min_tokens", near="min_length", trial=2, limits="integer"),
    ] = None
    temperature: Annotated[
        float | None,
        number(0),
        "0 takes the likeliest token each time (greedy).",
        OptionRow(0.0, EVERY, near="do_sample", wires="temperature", trial=0.7),
    ] = None
    top_p: Annotated[
        float | None,
        number(above=0, high=1),
        "Sample from the likeliest tokens whose probabilities add up to this much only; 1 means"
        " all.",
        OptionRow(1.0, EVERY, wires="top_p", trial=0.5),
    ] = None
    top_k: Annotated[
        int | None,
        integer(low=0),
        "Sample from the k likeliest tokens only; 0 means all.",
        OptionRow(0, SERVED, fields="top_k", trial=2, limits="integer"),
    ] = None
    min_p: Annotated[
        float | None,
        number(0, 1),
        "Sample from tokens that are at least this many times as likely as the likeliest only; 0"
        " means all.",
        OptionRow(0.0, SERVED, wires="min_p", trial=0.5),
    ] = None
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        _allowed,
        "Generate these tokens only; an end token too, if it is among them. Without it every token"
        " may be generated.",
        OptionRow(
            None,
            frozenset({"hf", "vllm", "vllm_server", "vllm_chat"}),
            wires="allowed_token_ids",
            trial=(5, 6),
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        number(above=0),
        "Divide the positive logits of tokens in the prompt or the answer, and multiply the"
        " negative ones; 1 changes nothing.",
        OptionRow(
            1.0, SERVED - {"sglang_server", "sglang_chat"}, wires="repetition_penalty", trial=1.5
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        number(-2, 2),
        "Subtract this from the logits of tokens that are in the answer.",
        OptionRow(0.0, EVERY, wires="presence_penalty", trial=1.5),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        number(-2, 2),
        "Subtract this from the logits of tokens for each time that they are in the answer.",
        OptionRow(0.0, EVERY, wires="frequency_penalty", trial=1.5),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        integer(low=0),
        "Never write the same sequence of that many tokens twice; 0 means no limit.",
        OptionRow(0, frozenset({"hf"}), trial=2, limits="integer"),
    ] = None
    seed: Annotated[
        int | None,
        integer(low=0, high=2**63 - 1),
        "Makes a sampled row repeatable in any batch. Without it, sampled rows may differ from run"
        " to run.",
        OptionRow(None, EVERY, near="random_seed", wires="seed sampling_seed seed", trial=3),
    ] = None
    samples: Annotated[
        int | None,
        integer(low=1),
        "How many completions to draw for one prompt; their seeds are derived from `seed`.",
        OptionRow(
            1, EVERY, fields="n", near="best_of num_return_sequences", trial=2, limits="max_samples"
        ),
    ] = None
    logprobs: Annotated[
        bool | None,
        boolean,
        "Report the model's own log probability of each generated token (before temperature,"
        " penalties and filters).",
        OptionRow(False, SERVED, trial=True),
    ] = None
    top_logprobs: Annotated[
        int | None,
        integer(low=0, high=20),
        "Also report that many likeliest tokens for each position; turns `logprobs` on.",
        OptionRow(0, SERVED, trial=2),
    ] = None
    prompt_logprobs: Annotated[
        bool | None,
        boolean,
        "Report the model's own log probability of each token of the prompt but the first, with the"
        " likeliest there; it is read once more.",
        OptionRow(False, trial=True),
    ] = None
    max_prompt_tokens: Annotated[
        int | None,
        integer(low=1),
        "Fail a longer prompt, images included, before the engine is called. Without it, only the"
        " model's own limit counts.",
        OptionRow(near="truncate_prompt_tokens", trial=100_000, limits="integer"),
    ] = None
    on_overflow: Annotated[
        Literal["error", "clip"] | None,
        one_of("error", "clip"),
        "What to do when prompt and answer do not fit: fail the slot, or lower `max_new_tokens` and"
        " say so in the result.",
        OptionRow("error", trial="clip"),
    ] = None
    use_generation_config: Annotated[
        bool | None,
        boolean,
        "Options that are not set come from the checkpoint's `generation_config`, then from"
        " pipegen's defaults.",
        OptionRow(False, trial=True),
    ] = None
    stop: Annotated[StopOptions | None, _stops] = None
    """What ends an answer."""
    decode: Annotated[DecodeOptions | None, _nested(DecodeOptions)] = None
    """How ids become text."""
    chat: Annotated[ChatTemplateOptions | None, _nested(ChatTemplateOptions)] = None
    """How messages become a prompt."""
    preprocess: Annotated[VlmPreprocessOptions | None, _nested(VlmPreprocessOptions)] = None
    """How images are resized."""
    structured: Annotated[StructuredOptions | None, _nested(StructuredOptions)] = None
    """The form of the answer."""

    if TYPE_CHECKING:  # stops alone may be given for StopOptions

        def __init__(
            self,
            *,
            max_new_tokens: int | None = None,
            max_thinking_tokens: int | None = None,
            min_new_tokens: int | None = None,
            temperature: float | None = None,
            top_p: float | None = None,
            top_k: int | None = None,
            min_p: float | None = None,
            allowed_token_ids: Sequence[int] | None = None,
            repetition_penalty: float | None = None,
            presence_penalty: float | None = None,
            frequency_penalty: float | None = None,
            no_repeat_ngram_size: int | None = None,
            seed: int | None = None,
            samples: int | None = None,
            logprobs: bool | None = None,
            top_logprobs: int | None = None,
            prompt_logprobs: bool | None = None,
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
        from pipegen.records.option_table import unknown_hint

        return unknown_hint(name)

    def check_all(self) -> None:
        if self.top_logprobs and self.logprobs is False:
            raise InvalidField("GenerationOptions takes top_logprobs only with logprobs=True")
        if (
            self.min_new_tokens is not None
            and self.max_new_tokens is not None
            and self.min_new_tokens > self.max_new_tokens
        ):
            raise InvalidField(
                "GenerationOptions takes min_new_tokens of at most max_new_tokens, not"
                f" {self.min_new_tokens} > {self.max_new_tokens}"
            )
