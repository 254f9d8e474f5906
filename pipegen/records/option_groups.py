"""The options that stand in records of their own: where an answer ends, how ids become text, how
messages become a prompt, how images become pixels, which form an answer has.

>>> StopOptions(stop=("END",)).stop
('END',)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from immutabledict import immutabledict

from pipegen.core.names import InvalidField
from pipegen.records import strict_json
from pipegen.records.fields import (
    boolean,
    integer,
    mapping,
    names_of,
    non_empty_string,
    number,
    one_of,
    record,
    schema_of,
    tuple_of,
    with_schema,
)
from pipegen.records.frozen import freeze
from pipegen.records.option_row import EVERY, SERVED, VIDEOS, OptionRow


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
            stage="stop",
            usual=True,
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
        OptionRow(
            True, SERVED - {"vllm_chat"}, fields="skip_special_tokens", trial=False, anywhere=True
        ),
    ] = None
    strip_whitespace: Annotated[
        bool | None,
        boolean,
        "Strip whitespace from both ends of `text`, after the cut and before plugins.",
        OptionRow(False, EVERY, trial=True, anywhere=True, stage="trim"),
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
        OptionRow(False, SERVED, fields="enable_thinking", trial=True, usual=True),
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
        OptionRow(None, VIDEOS, near="video_fps sample_fps sampling_fps", trial=1.0, later=True),
    ] = None
    max_frames: Annotated[
        int | None,
        integer(low=1),
        "Take at most this many frames of a video.",
        OptionRow(None, VIDEOS, near="num_frames nframes", trial=4, limits="integer", later=True),
    ] = None
    max_video_pixels: Annotated[
        int | None,
        integer(low=1),
        "Shrink the frames of a video, and take fewer of them, to at most this area of all of them"
        " together.",
        OptionRow(None, VIDEOS, near="total_pixels", trial=65536, limits="integer", later=True),
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


def _schema(value: object) -> str:
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


def _jsonable(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"JSON holds no {type(value).__name__}")


def _choices(value: object) -> object:
    choices = tuple_of(non_empty_string)(value)
    if not choices:
        raise ValueError("at least one text to choose")
    return choices


with_schema(_schema, {"type": ["object", "string"]})
with_schema(_choices, {**schema_of(tuple_of(non_empty_string)), "minItems": 1})


@record
class StructuredOptions:
    """What form the answer must have: one of these at most, or none."""

    json_schema: Annotated[
        Mapping[str, Any] | str | None,
        _schema,
        "The answer is JSON that this JSON Schema describes, with its properties in this order.",
        OptionRow(
            None,
            EVERY,
            fields="guided_json",
            near="response_format json",
            trial='{"enum": [1, 2]}',
            limits="max_option_bytes",
            usual=True,
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
        OptionRow(None, trial="required", limits="max_option_bytes", later=True),
    ] = None

    def check_all(self) -> None:
        forms = [name for name in names_of(self) if getattr(self, name) is not None]
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
