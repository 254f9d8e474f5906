"""Plugins: values that watch, trim or steer a row. None does anything until it is attached to a
route (`pipegen.attach`).
"""

from pipegen.answer.split_thought import Reasoning, reasoning_of
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.plugins.balanced_json import balanced_json
from pipegen.plugins.hf_hooks import hf_hooks
from pipegen.plugins.repeated_objects import forbid_repeated_objects
from pipegen.plugins.repetition import halt_on_repetition
from pipegen.plugins.trims import split_reasoning, strip_prefix

__all__ = [
    "Plugin",
    "Reasoning",
    "RowContext",
    "balanced_json",
    "forbid_repeated_objects",
    "halt_on_repetition",
    "hf_hooks",
    "reasoning_of",
    "split_reasoning",
    "strip_prefix",
]
