"""Conformance check: an engine refuses by name what it does not honour."""

from __future__ import annotations

from collections.abc import Mapping

from pipegen.drivers.route import Route
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import GenerationOptions, options_from
from pipegen.testing.ask import honours, refuses

__all__ = ["NOT_NEUTRAL", "what_is_not_honoured_is_refused"]

_OTHERWISE = ("max_new_tokens", "samples", "max_prompt_tokens", "on_overflow", "use_generation_config", "skip_special_tokens", "strip_whitespace")
"""Options that pipegen's own stages carry out for every engine."""
_WITH_OTHERS = ("top_logprobs", "stop", "continue_final_message")
"""Options that other checks try, with what they need beside them."""
NOT_NEUTRAL: Mapping[str, GenerationOptions] = {
    name: options_from({name: entry.row.trial}) for name, entry in OPTIONS.items() if name not in (*_OTHERWISE, *_WITH_OTHERS)
}
"""A value of each option that an engine itself must honour or refuse."""


def what_is_not_honoured_is_refused(route: Route) -> None:
    """In its slot, by name."""
    for name, options in NOT_NEUTRAL.items():
        if not honours(route, name):
            refuses(route, options, name)
