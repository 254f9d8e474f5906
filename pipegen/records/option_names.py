"""What somebody means who calls an option by a name that it does not have here.

>>> meant("max_tokens", {})
"; did you mean 'max_new_tokens'?"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pipegen.records.fields import nearest

__all__ = ["OTHER_NAMES", "meant", "nearest_option"]

OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_length"), "max_new_tokens"),
    **dict.fromkeys(("min_tokens", "min_length"), "min_new_tokens"),
    **dict.fromkeys(("n", "best_of", "num_return_sequences"), "samples"),
    **dict.fromkeys(("stop_sequences", "stop_strings"), "stop"),
    **dict.fromkeys(("response_format", "guided_json", "json"), "json_schema"),
    "guided_regex": "regex",
    "guided_choice": "choice",
    "eos_token_id": "stop_token_ids",
    "do_sample": "temperature",
    "random_seed": "seed",
    "chat_template": "template",
    "chat_template_kwargs": "template_kwargs",
    "truncate_prompt_tokens": "max_prompt_tokens",
}
"""What other libraries and servers call it, and what is nearest to that here."""


def nearest_option(name: str, known: Iterable[str]) -> str:
    """As `nearest`, which knows how things are spelt; this also knows what others call them."""
    return f"; did you mean {OTHER_NAMES[name]!r}?" if name in OTHER_NAMES else nearest(name, known)


def meant(name: str, groups: Mapping[str, type[Any]], plain: Iterable[str] = ()) -> str:
    """What to say of an option that does not stand in `GenerationOptions` itself; `groups` are the records of options by their fields there."""
    homes = {f.name: f"{group}: {group}={kind.__name__}({f.name}=...)" for group, kind in groups.items() for f in dataclasses.fields(kind) if f.name != group}
    if name in homes:
        return f"; it stands in {homes[name]}"
    words = nearest_option(name, (*plain, *homes))
    return words + next((f" It stands in {home}" for own, home in homes.items() if f" {own!r}?" in words), "")
