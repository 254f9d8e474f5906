"""The option table: every row by its name, and what is made of the rows: defaults, the names that
others have, the fields that wires have.

>>> OPTIONS["min_p"].row.default, OPTIONS["stop_token_ids"].group, SERVER_NAMES["max_tokens"]
(0.0, 'stop', 'max_new_tokens')
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from pipegen.core.names import nearest
from pipegen.records.fields import help_of, metadata_of
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_row import OptionRow


class OptionEntry(NamedTuple):
    """An option as the table has it, found by its flat name."""

    group: str
    """The field of `GenerationOptions` whose record holds it; empty where that is
    `GenerationOptions` itself.
    """
    help: str
    row: OptionRow

    @property
    def role(self) -> str:
        """What it is about."""
        return self.row.role or self.group


def server_fields(row: OptionRow) -> list[str]:
    """The fields of servers' requests that set an option."""
    return row.fields.split() or row.wires.split()[-1:]


def _entries() -> Mapping[str, OptionEntry]:
    entries: dict[str, OptionEntry] = {}
    for group, kind in ("", GenerationOptions), *GROUPS.items():
        help_texts, extras = help_of(kind), metadata_of(kind)
        rows = {
            name: next((extra for extra in extras[name] if isinstance(extra, OptionRow)), None)
            for name in extras
        }
        entries |= {
            name: OptionEntry(group, help_texts[name], row)
            for name, row in rows.items()
            if row is not None
        }
    return entries


OPTIONS: Mapping[str, OptionEntry] = _entries()
"""Every option by its flat name, as plain data, flags and the capability table use them."""


@functools.cache
def names_in(*roles: str) -> tuple[str, ...]:
    """The options of these roles, in the order of the table.

    >>> names_in("filter"), names_in("tokens", "seed")
    (('top_p', 'top_k', 'min_p'), ('allowed_token_ids', 'bad_words', 'seed'))
    """
    return tuple(name for name, entry in OPTIONS.items() if entry.role in roles)


SERVER_NAMES: Mapping[str, str] = {
    field: name
    for name, entry in OPTIONS.items()
    for field in server_fields(entry.row)
    if field != name
}
"""Fields of servers' requests under another name than the option that they set."""
OTHER_NAMES: Mapping[str, str] = {
    **SERVER_NAMES,
    **{other: name for name, entry in OPTIONS.items() for other in entry.row.near.split()},
}
"""What other libraries and servers call an option, or something near to it."""


def _in_group(group: str) -> dict[str, Any]:
    return {name: entry.row.default for name, entry in OPTIONS.items() if entry.group == group}


DEFAULTS = GenerationOptions(
    **_in_group(""),
    **{group: kind(**_in_group(group)) for group, kind in GROUPS.items() if group != "structured"},
)
"""pipegen's defaults. Without `template`, `min_pixels` and `max_pixels` the checkpoint's own apply;
without `seed` a row is unseeded, without `max_prompt_tokens` only the model's own limit counts, and
without `structured` the form of the answer is free."""


def nearest_option(name: str, names: Iterable[str]) -> str:
    """As `nearest`, which knows how names are spelt; this also knows what others call an option.

    >>> nearest_option("max_length", OPTIONS)
    "; did you mean 'max_new_tokens'?"
    """
    return f"; did you mean {OTHER_NAMES[name]!r}?" if name in OTHER_NAMES else nearest(name, names)


def unknown_hint(name: str) -> str:
    """What to say of an option that is no field of `GenerationOptions` itself."""
    groups = {
        option: f"{entry.group}: {entry.group}={GROUPS[entry.group].__name__}({option}=...)"
        for option, entry in OPTIONS.items()
        if entry.group
    }
    if name in groups:
        return f"; it is a field of {groups[name]}"
    hint = nearest_option(name, (*OPTIONS, *GROUPS))
    return hint + next(
        (
            f" It is a field of {where}"
            for option, where in groups.items()
            if f" {option!r}?" in hint and option not in GROUPS
        ),
        "",
    )


Wire = Literal["vllm", "sglang", "chat"]


@functools.cache
def wire_names(wire: Wire, engine: str = "") -> Mapping[str, str]:
    """The options whose values are sent as they are, each with its name on this wire: all of them,
    or those that the engine honours.
    """
    position = get_args(Wire).index(wire)
    sent = {
        name: entry.row.wires.split()
        for name, entry in OPTIONS.items()
        if entry.row.wires and (not engine or engine in entry.row.engines)
    }
    return {name: names[min(position, len(names) - 1)] for name, names in sent.items()}


def wire_fields(options: GenerationOptions, wire: Wire, engine: str = "") -> dict[str, Any]:
    """The values of those options, by their names on this wire.

    >>> wire_fields(GenerationOptions(seed=1), "sglang")["sampling_seed"]
    1
    """
    values = _values_of(wire, engine)(options)
    return {
        field: _json_form(value)
        for field, value in zip(wire_names(wire, engine).values(), values, strict=True)
    }


def _json_form(value: object) -> object:
    """The value as JSON has it; no list or object is sent that is empty."""
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()} or None
    return ([*value] or None) if isinstance(value, tuple) else value


@functools.cache
def _values_of(wire: Wire, engine: str) -> operator.attrgetter[tuple[Any, ...]]:
    return operator.attrgetter(*wire_names(wire, engine))
