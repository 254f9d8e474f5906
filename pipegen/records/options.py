"""Options: what a caller may ask of a generation, and the one pure step that gives every option its
value.

Every field of an option record may be `None`, which means "not set". `resolve` fills what is not
set: the request's own options win, then those of the whole run, then (only if asked) the
checkpoint's `generation_config`, then pipegen's defaults. The result is again a
`GenerationOptions`, with everything set; resolving it again changes nothing, so it can be sent
again for the same call.

>>> effective = resolve(GenerationOptions(temperature=0.7))
>>> effective.temperature, effective.max_new_tokens, effective.stop.stop
(0.7, 512, ())
>>> resolve(effective) == effective
True
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from immutabledict import immutabledict

from pipegen.core.names import InvalidField
from pipegen.records.fields import UnknownField
from pipegen.records.frozen import NOTHING, printed
from pipegen.records.option_groups import (
    GROUPS,
    ChatTemplateOptions,
    StructuredOptions,
)
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_row import Role
from pipegen.records.option_table import DEFAULTS, OPTIONS, names_in, nearest_option

R = TypeVar("R")


def merge(first: R | None, second: R | None) -> R | None:
    """Field by field (and in nested records too), what `first` says, else what `second` says.

    >>> merge(GenerationOptions(seed=1), GenerationOptions(seed=2, top_k=3)).top_k
    3
    """
    if first is None or second is None or first == second:
        return second if first is None else first
    values: dict[str, Any] = {}
    for f in dataclasses.fields(first):  # type: ignore[arg-type]  # R is one of the option records
        own, other = getattr(first, f.name), getattr(second, f.name)
        nested = f.name in GROUPS and dataclasses.is_dataclass(own if own is not None else other)
        values[f.name] = merge(own, other) if nested else other if own is None else own
    if isinstance(first, ChatTemplateOptions) and (
        first.add_generation_prompt,
        first.continue_final_message,
    ) != (None, None):
        # How the prompt ends is one setting, although it takes two switches: setting one sets both.
        values |= {
            "add_generation_prompt": first.add_generation_prompt,
            "continue_final_message": first.continue_final_message,
        }
    if isinstance(first, StructuredOptions) and first != StructuredOptions():
        return first  # the form of the answer is one setting: setting one excludes the others
    if isinstance(first, GenerationOptions) and first.logprobs is False:
        values["top_logprobs"] = 0
    elif values.get("top_logprobs") and values["logprobs"] is False:
        values["logprobs"] = True  # asking for the likeliest tokens asks for the chosen one too
    return type(first)(**values)


@functools.lru_cache(maxsize=1024)
def resolve(
    *layers: GenerationOptions | None, checkpoint: immutabledict[str, Any] = NOTHING
) -> GenerationOptions:
    """Give every option its value: earlier arguments win over later ones, then the checkpoint's
    values if asked, then `DEFAULTS`.

    `checkpoint` is the checkpoint's `generation_config` as a mapping; it counts only where
    `use_generation_config=True` was set. A checkpoint that says `do_sample: false` is greedy
    whatever temperature it names. Raises `InvalidField` when the merged options contradict each
    other.

    >>> resolve(
    ...     GenerationOptions(use_generation_config=True), checkpoint=immutabledict(top_k=20)
    ... ).top_k
    20
    """
    # the function is pure and its arguments are hashable, so it is cached: runs share few distinct
    # options
    options: GenerationOptions | None = None
    for layer in layers:
        options = merge(options, layer)
    if options is not None and options.use_generation_config:
        from_checkpoint = {
            name: checkpoint[name]
            for name, entry in OPTIONS.items()
            if entry.row.checkpoint and checkpoint.get(name) is not None
        }
        if not checkpoint.get("do_sample", False):
            from_checkpoint["temperature"] = 0.0
        elif "temperature" not in from_checkpoint:
            from_checkpoint["temperature"] = 1.0
        options = merge(options, GenerationOptions(**from_checkpoint))
    full = merge(options, DEFAULTS) or DEFAULTS
    chat = full.chat or ChatTemplateOptions()
    thinking = None if options is None or options.chat is None else options.chat.enable_thinking
    if full.max_thinking_tokens is not None and thinking is None:
        chat = dataclasses.replace(chat, enable_thinking=True)
    continues = bool(chat.continue_final_message)
    adds = not continues if chat.add_generation_prompt is None else chat.add_generation_prompt
    chat = dataclasses.replace(chat, add_generation_prompt=adds, continue_final_message=continues)
    structured = full.structured if full.structured != StructuredOptions() else None
    return dataclasses.replace(full, chat=chat, structured=structured, use_generation_config=False)


def options_from(values: Mapping[str, object], where: str = "options") -> GenerationOptions:
    """Options from plain data (JSON, YAML, flags): nested as the records are, or flat, such as
    `{"stop": ["END"], "strip_whitespace": true}`.

    Raises `UnknownField` with the place and the nearest name, `InvalidField` with the place and
    what the field takes.

    >>> options_from(
    ...     {"temperature": 0.2, "stop": ["END"], "enable_thinking": True}
    ... ).chat.enable_thinking
    True
    >>> options_from({"temprature": 0.2}, where="line 3")
    Traceback (most recent call last):
    ...
    pipegen.records.fields.UnknownField: line 3: there is no option 'temprature'; did you mean 'temperature'?
    """
    if not isinstance(values, Mapping):
        raise InvalidField(f"{where}: options are an object, not {type(values).__name__}")
    plain: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name in GROUPS and isinstance(value, Mapping):
            unnamed = next((key for key in value if not isinstance(key, str)), None)
            if unnamed is not None:
                raise InvalidField(
                    f"{where}: {name} takes a mapping with names as keys, not {printed(unnamed)}"
                )
            groups.setdefault(name, {}).update(value)
        elif name in OPTIONS:
            (groups.setdefault(OPTIONS[name].group, {}) if OPTIONS[name].group else plain)[name] = (
                value
            )
        elif name in GROUPS:
            raise InvalidField(f"{where}: {name} takes a mapping, not {printed(value)}")
        else:
            raise UnknownField(
                f"{where}: there is no option"
                f" {printed(name)}{nearest_option(str(name), option_names())}"
            )
    try:
        return GenerationOptions(
            **plain, **{group: GROUPS[group](**fields) for group, fields in groups.items()}
        )
    except InvalidField as refusal:
        raise type(refusal)(f"{where}: {refusal}") from None


def option_names() -> Iterable[str]:
    """Every flat option name, as `options_from`, the flags and the capability table use them.

    >>> "stop_token_ids" in option_names()
    True
    """
    return OPTIONS.keys()


def flat_values(options: GenerationOptions) -> dict[str, Any]:
    """Every option by its flat name, as `options_from` takes them.

    >>> flat_values(DEFAULTS)["strip_whitespace"]
    False
    """
    records = {group: getattr(options, group) for group in GROUPS} | {"": options}
    return {name: getattr(records[entry.group], name, None) for name, entry in OPTIONS.items()}


@functools.lru_cache
def in_effect(options: GenerationOptions, *roles: Role) -> tuple[str, ...]:
    """The options of these roles, or of all, whose values are neither their defaults nor neutral.

    >>> in_effect(GenerationOptions(temperature=1, top_p=0.5, min_p=0), "temperature", "filter")
    ('top_p',)
    """
    values = flat_values(options)
    return tuple(
        name
        for name in (names_in(*roles) if roles else OPTIONS)
        if values[name] not in OPTIONS[name].row.neutral_values
    )


@functools.cache
def _values_of() -> Callable[[GenerationOptions], tuple[Any, ...]]:
    """Gives the values that are never None once an engine's options are resolved."""
    return operator.attrgetter(*_always_set())


@functools.cache
def _always_set() -> tuple[str, ...]:
    """The options that keep a value; `control_tokens` has none where nothing is to be guarded."""
    defaults = flat_values(resolve(GenerationOptions()))
    return tuple(
        f"{entry.group}.{name}" if entry.group else name
        for name, entry in OPTIONS.items()
        if defaults[name] is not None and name != "control_tokens"
    )


def unset(options: GenerationOptions) -> str:
    """The first option without a value of those that `resolve` gives one; empty where there is
    none.

    >>> unset(resolve(GenerationOptions())), unset(GenerationOptions(max_new_tokens=4))
    ('', 'min_new_tokens')
    """
    try:
        if type(None) not in map(type, _values_of()(options)):
            return ""
    except AttributeError:  # a group is not set
        pass
    values = flat_values(options)
    return next(name for path in _always_set() if values[name := path.rpartition(".")[2]] is None)


def in_our_words(name: str, value: object) -> object:
    """The option's value for what a server's field says: -1 means all to the engines' `top_k`, and
    0 does here.
    """
    return 0 if name == "top_k" and type(value) is int and value == -1 else value
