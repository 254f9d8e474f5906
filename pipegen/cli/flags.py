"""A flag for every generation option and every engine setting, made from their records.

>>> flag_of("max_new_tokens"), unescape(r"END\\n")
('--max-new-tokens', 'END\\n')
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from pipegen.core.names import InvalidField
from pipegen.engines.settings import BESIDE, SETTINGS, fields_of
from pipegen.records import strict_json
from pipegen.records.engine_list import BACKENDS
from pipegen.records.fields import help_of
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import options_from

_PANELS = {
    "": "Sampling and length",
    "stop": "Stops",
    "chat": "Prompt and chat template",
    "decode": "Answer",
    "structured": "Answer",
    "preprocess": "Images",
}
_SECRETS = ("api_key", "headers")
"""Settings without a flag: a command line is no place for a key."""
_VALUES = {"--ray": re.compile(r"local|auto|(ray://)?[\w.\[\]:-]+:\d+")}
"""Flags whose value may be left out, and what a value looks like."""
_NO = "no"
_YES_OR_NO: Mapping[Any, bool] = {"": True, _NO: False}
"""The value of an option that is on, off, or one of several words."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def flag_of(name: str) -> str:
    """The flag of an option or a setting."""
    return "--" + name.replace("_", "-")


def unescape(text: str) -> str:
    r"""A stop as it is meant: `\n`, `\t`, `\r`, `\\` and `\uXXXX` are read; any other backslash
    stays as it is.

    >>> unescape(r"\boxed{\\n}")
    '\\boxed{\\n}'
    """
    return re.sub(
        r"\\(?:u([0-9a-fA-F]{4})|([ntr\\]))",
        lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPES[match[2]],
        text,
    )


def _kind(hint: object) -> Any:
    """What a field takes, without `None`, and without what its check makes of other types."""
    parts = (
        [part for part in get_args(hint) if part is not type(None)]
        if get_origin(hint) not in (tuple, Literal) and get_args(hint)
        else [hint]
    )
    return next((part for part in parts if part is str), parts[0])


def _flag(name: str, hint: object, words: str, default: object, panel: str) -> inspect.Parameter:
    """The parameter of a command that typer makes the flag of."""
    kind, flag = _kind(hint), flag_of(name)
    flag_type: object
    words = words.replace("`", "")
    settings: dict[str, Any] = {"rich_help_panel": panel}
    choices = [value for part in get_args(hint) for value in get_args(part)]
    if kind is bool and choices:
        flag_type, settings["metavar"] = str, f"[{'|'.join([*choices, _NO])}]"
        _VALUES[flag] = re.compile("|".join([*choices, _NO]))
        words += f" Default: {'yes' if default else _NO}."
    elif kind is bool:
        flag_type = bool
        flag = f"{flag}/--no-{flag[2:]}"
        words += "" if default is None else f" Default: {'yes' if default else 'no'}."
    elif get_origin(kind) is tuple:
        item = get_args(kind)[0]
        flag_type = list[item]  # type: ignore[valid-type]
        settings["metavar"] = f"<{item.__name__}>"
        words += " May be given several times."
    else:
        flag_type = kind if kind in (int, float) else str
        settings["metavar"] = (
            "|".join(get_args(kind))
            if get_origin(kind) is Literal
            else "JSON"
            if _is_json(hint)
            else None
        )
        words += (
            ""
            if default is None or isinstance(default, (Mapping, tuple))
            else f" Default: {default}."
        )
    option = typer.Option(flag, help=words, **settings)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[flag_type | None, option],
    )


def _is_json(hint: Any) -> bool:
    return any(
        isinstance(get_origin(part), type) and issubclass(get_origin(part), Mapping)
        for part in (hint, *get_args(hint))
    )


def _option_flags() -> Mapping[str, inspect.Parameter]:
    # of `stop`, that in its group
    types = {
        name: hint
        for kind in (GenerationOptions, *GROUPS.values())
        for name, hint in get_type_hints(kind).items()
    }
    escapes = {"stop": r" \n, \t, \r, \\ and \u000a are read as in JSON."}
    return {
        name: _flag(
            name,
            types[name],
            entry.help + escapes.get(name, ""),
            entry.row.default,
            _PANELS[entry.group],
        )
        for name, entry in OPTIONS.items()
    }


def _setting_flags() -> Mapping[str, inspect.Parameter]:
    flags: dict[str, inspect.Parameter] = {}
    for backend in BACKENDS:
        kind, types = SETTINGS[backend], get_type_hints(SETTINGS[backend])
        panel = {"hf": "Model", "vllm": "vLLM, in this process"}.get(backend, "Server")
        for name, field in fields_of(backend).items():
            if name not in flags and name not in _SECRETS:
                flags[name] = _flag(name, types[name], help_of(kind)[name], field.default, panel)
    return flags


OPTION_FLAGS, SETTING_FLAGS = _option_flags(), _setting_flags()


def _both(name: str) -> inspect.Parameter:
    """The flag of a name that is a setting and an option."""
    setting, option = SETTING_FLAGS[name], OPTION_FLAGS[name]
    words, others = (get_args(flag.annotation)[1].help for flag in (setting, option))
    info = get_args(setting.annotation)[1]
    help_text = f"{words} With {flag_of(BESIDE[name])}: {others}"
    flag = typer.Option(*info.param_decls, help=help_text, rich_help_panel=info.rich_help_panel)
    return setting.replace(annotation=Annotated[str | None, flag])


_ALL = "pipegen.help_all"


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show every flag."),
    ],
)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of its argument `flags`, a dataclass, whose fields they are: it gets
    them as that.

    For an argument `options` or `settings` it has a flag for each of these; those that are set
    reach it by name. So many need `--help-all` beside `--help`.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: flags
        for name, flags in (("options", OPTION_FLAGS), ("settings", SETTING_FLAGS))
        if name in signature.parameters
    }
    kind: type[Any] = signature.parameters["flags"].annotation
    hints, missing = get_type_hints(kind, include_extras=True), inspect.Parameter.empty
    defaults = {
        field.name: missing if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }
    fields = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
        )
        for name, default in defaults.items()
    ]

    @functools.wraps(command)
    def flagged(**values: object) -> None:
        values.pop("help_all", None)  # which has ended the command
        values_by_group = {
            group: {name: values.pop(name, None) for name in flags}
            for group, flags in groups.items()
        }
        set_values = {
            group: {name: value for name, value in entries.items() if value not in (None, [], ())}
            for group, entries in values_by_group.items()
        }
        if len(groups) > 1:
            for name, other in BESIDE.items():
                if name in set_values["options"] and other not in set_values["settings"]:
                    set_values["settings"][name] = set_values["options"].pop(name)
        command(**set_values, flags=kind(**{name: values.pop(name) for name in defaults}), **values)

    flags_by_name = {name: flag for flags in groups.values() for name, flag in flags.items()}
    if len(groups) > 1:
        flags_by_name |= {name: _both(name) for name in BESIDE}
    parameters = [
        *fields,
        *(
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name not in (*groups, "flags")
        ),
        *([_HELP_ALL] if groups else []),
        *flags_by_name.values(),
    ]
    # what typer reads
    flagged.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flagged.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flagged


def setting_values(flags: Mapping[str, Any]) -> dict[str, object]:
    """The settings that flags set, JSON read. Raises `typer.BadParameter`, which names the flag."""
    return {
        name: (
            _loaded(name, value)
            if get_args(SETTING_FLAGS[name].annotation)[1].metavar == "JSON"
            else value
        )
        for name, value in flags.items()
    }


def _loaded(name: str, text: str) -> object:
    try:
        return strict_json.load(text)
    except strict_json.NotStrict as refusal:
        raise typer.BadParameter(str(refusal), param_hint=flag_of(name)) from None


def options_of_flags(flags: Mapping[str, object]) -> GenerationOptions:
    """The options that flags say. Raises `typer.BadParameter`, which names the flag."""
    values: dict[str, object] = {}
    for name, value in flags.items():
        try:
            values[name] = _value(name, value)
            options_from({name: values[name]}, flag_of(name))
        except (InvalidField, strict_json.NotStrict) as refusal:
            raise typer.BadParameter(
                str(refusal).removeprefix(f"{flag_of(name)}: "), param_hint=flag_of(name)
            ) from None
    try:
        return options_from(values, "flags")
    except InvalidField as refusal:
        raise typer.BadParameter(str(refusal)) from None


def _value(name: str, value: Any) -> Any:
    if name == "stop":
        return [unescape(text) for text in value]
    if isinstance(value, str) and isinstance(OPTIONS[name].row.default, Mapping):
        return strict_json.load(value)
    if flag_of(name) in _VALUES:
        return _YES_OR_NO.get(value, value)
    return list(value) if isinstance(value, (list, tuple)) else value


def _with_values(arguments: list[str]) -> Iterator[str]:
    """The arguments, with an empty value after a flag whose value is left out.

    >>> list(_with_values(["--ray", "in.jsonl", "--ray", "10.0.0.1:6379"]))
    ['--ray', '', 'in.jsonl', '--ray', '10.0.0.1:6379']
    >>> list(_with_values(["--logprobs", "processed", "--no-logprobs"]))
    ['--logprobs', 'processed', '--logprobs', 'no']
    """
    off = [flag for flag, values in _VALUES.items() if values.fullmatch(_NO)]
    negated = {flag.replace("--", "--no-"): [flag, _NO] for flag in off}
    arguments = [part for argument in arguments for part in negated.get(argument, [argument])]
    for place, argument in enumerate(arguments):
        yield argument
        if argument in _VALUES and not _VALUES[argument].fullmatch(
            (arguments[place + 1 :] or [""])[0]
        ):
            yield ""


class InSections(TyperCommand):
    """A command whose help shows its flags in sections, each with its whole name."""

    usual: frozenset[str] | None = None
    """The parameters that `--help` shows; None is all of them. `--help-all` shows all."""
    more = ""
    """What `--help-all` says after the text of `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does, with the values that are left out."""
        return super().parse_args(ctx, list(_with_values(args)))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The command's text, and what there is more of it."""
        super().format_help_text(ctx, formatter)
        if _ALL in ctx.meta and self.more:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(self.more)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """One section for each `rich_help_panel`, in the order of the flags."""
        usual = None if _ALL in ctx.meta else self.usual
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx)
            if help_record is not None and (usual is None or parameter.name in usual):
                sections.setdefault(
                    getattr(parameter, "rich_help_panel", None) or "Options", []
                ).append(help_record)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)
