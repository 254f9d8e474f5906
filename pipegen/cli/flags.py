"""A flag for every generation option, made from the option records.

>>> flag_of("max_new_tokens"), unescape(r"END\\n")
('--max-new-tokens', 'END\\n')
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from pipegen.records import strict_json
from pipegen.records.fields import InvalidField
from pipegen.records.options import (
    DEFAULTS,
    ChatTemplateOptions,
    DecodeOptions,
    GenerationOptions,
    StopOptions,
    StructuredOptions,
    VlmPreprocessOptions,
    flat_values,
    options_from,
)

__all__ = ["HELP", "flag_of", "options_of_flags", "unescape", "with_option_flags"]

SAMPLING, STOPS, CHAT, TEXT, IMAGES = "Sampling", "Stops and length", "Prompt and chat template", "Answer", "Images"
HELP: Mapping[str, tuple[str, str]] = {
    "max_new_tokens": (STOPS, "Most tokens that an answer may have."),
    "min_new_tokens": (STOPS, "Nothing ends an answer before it has this many tokens."),
    "stop": (STOPS, r"End the answer before this text; may be given several times. \n, \t, \r, \\ and \u000a are read as in JSON."),
    "stop_token_ids": (STOPS, "End the answer at this token id; may be given several times."),
    "ignore_eos": (STOPS, "Generate on past the model's own end tokens."),
    "temperature": (SAMPLING, "0 takes the likeliest token each time; higher is more varied."),
    "top_p": (SAMPLING, "Sample from the likeliest tokens that make up this share of the probability."),
    "top_k": (SAMPLING, "Sample from the k likeliest tokens; 0 means all."),
    "min_p": (SAMPLING, "Leave out tokens less likely than this share of the likeliest."),
    "repetition_penalty": (SAMPLING, "Above 1 makes tokens that stand in prompt or answer less likely."),
    "presence_penalty": (SAMPLING, "Above 0 makes tokens that stand in the answer less likely."),
    "frequency_penalty": (SAMPLING, "As presence, for each time the token stands there."),
    "no_repeat_ngram_size": (SAMPLING, "No run of that many tokens comes twice; 0 switches it off."),
    "seed": (SAMPLING, "Makes sampling repeatable, whatever else is in the batch."),
    "samples": (SAMPLING, "How many answers to draw for each request."),
    "logprobs": (TEXT, "Report the model's log probability of each generated token."),
    "top_logprobs": (TEXT, "Report that many likeliest tokens at each position too."),
    "skip_special_tokens": (TEXT, "Leave special tokens out of the text (raw_text keeps them)."),
    "strip_whitespace": (TEXT, "Strip whitespace from both ends of the text (raw_text keeps it)."),
    "max_prompt_tokens": (CHAT, "Fail a request whose prompt has more tokens than this, images counted in."),
    "json_schema": (TEXT, "The answer is JSON that this JSON Schema describes."),
    "regex": (TEXT, "The whole answer matches this regular expression."),
    "choice": (TEXT, "The answer is this text, or another one given in the same way."),
    "on_overflow": (STOPS, "When prompt and answer do not fit: fail that request, or clip max_new_tokens."),
    "use_generation_config": (SAMPLING, "Take what is not said from the checkpoint's generation_config."),
    "add_generation_prompt": (CHAT, "Open the assistant's turn at the end of the prompt."),
    "continue_final_message": (CHAT, "Continue the last assistant turn instead."),
    "enable_thinking": (CHAT, "The chat template's thinking switch, where it has one."),
    "control_tokens": (CHAT, "What text that looks like a control token becomes: plain text, an error, or the token."),
    "trust": (CHAT, "What may hold control tokens besides system turns: assistant, tools or template_kwargs; may be given several times."),
    "template": (CHAT, "A chat template (Jinja) instead of the checkpoint's own."),
    "template_kwargs": (CHAT, "Further variables for the template, as a JSON object."),
    "min_pixels": (IMAGES, "Enlarge smaller images to this many pixels (an area)."),
    "max_pixels": (IMAGES, "Reduce larger images to this many pixels (an area)."),
    "do_resize": (IMAGES, "Resize images to a size that the model keeps."),
}
"""For each option its panel in the help, and what it does."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def flag_of(name: str) -> str:
    """The flag of an option."""
    return "--" + name.replace("_", "-")


def unescape(text: str) -> str:
    r"""A stop as it is meant: `\n`, `\t`, `\r`, `\\` and `\uXXXX` are read; any other backslash stays as it is.

    >>> unescape(r"\boxed{\\n}")
    '\\boxed{\\n}'
    """
    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|([ntr\\]))", lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES[found[2]], text)


@functools.cache
def _types() -> Mapping[str, Any]:
    """What each option takes, without `None` and checks."""
    hints = get_type_hints(GenerationOptions)
    for group in (StopOptions, DecodeOptions, ChatTemplateOptions, VlmPreprocessOptions, StructuredOptions):
        hints |= get_type_hints(group)  # `stop` is a record in GenerationOptions, and here the strings in it
    return {name: next(part for part in get_args(hints[name]) if part is not type(None)) for name in HELP}


def _option(name: str) -> tuple[Any, Any]:
    """The type and the `typer.Option` of one flag."""
    kind, (panel, words) = _types()[name], HELP[name]
    default = flat_values(DEFAULTS)[name]
    if default not in (None, (), {}) and not isinstance(default, bool):
        words += f" Default: {default}."
    if kind is bool:
        shown = "" if default is None else f" Default: {'yes' if default else 'no'}."
        return bool | None, typer.Option(f"{flag_of(name)}/--no-{flag_of(name)[2:]}", help=words + shown, rich_help_panel=panel)
    if get_origin(kind) is tuple:
        item: Any = get_args(kind)[0]
        return list[item] | None, typer.Option(flag_of(name), help=words, metavar=f"<{item.__name__}>", rich_help_panel=panel)
    metavar = "|".join(get_args(kind)) if get_origin(kind) is Literal else "JSON" if get_origin(kind) is not None else None
    return (kind if kind in (int, float) else str) | None, typer.Option(flag_of(name), help=words, metavar=metavar, rich_help_panel=panel)


def with_option_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each generation option; those that were said reach it, by name, as its argument `flags`."""
    own = inspect.signature(command, eval_str=True)
    made = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_option(name)]) for name in HELP]

    @functools.wraps(command)
    def with_flags(**values: Any) -> None:
        said = {name: value for name, value in ((name, values.pop(name, None)) for name in HELP) if value is not None and value != [] and value != ()}
        command(**values, flags=said)

    parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, parameter in own.parameters.items() if name != "flags"), *made]
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def options_of_flags(flags: Mapping[str, Any]) -> GenerationOptions:
    """The options that flags say. Raises `typer.BadParameter`, which names the flag."""
    values: dict[str, Any] = {}
    for name, given in flags.items():
        try:
            values[name] = _value(name, given)
            options_from({name: values[name]}, flag_of(name))
        except (InvalidField, strict_json.NotStrict) as refusal:
            raise typer.BadParameter(str(refusal).removeprefix(f"{flag_of(name)}: "), param_hint=flag_of(name)) from None
    try:
        return options_from(values, "flags")
    except InvalidField as refusal:
        raise typer.BadParameter(str(refusal)) from None


def _value(name: str, given: Any) -> Any:
    if name == "stop":
        return [unescape(text) for text in given]
    if name == "template_kwargs":
        return strict_json.load(given)
    return list(given) if isinstance(given, (list, tuple)) else given
