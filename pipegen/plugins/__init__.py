"""Plugins: values that watch, trim or steer a row. None does anything until it is attached to a
route (`pipegen.attach`).
"""

from pipegen.engines.plugin import Plugin, RowContext
from pipegen.plugins.balanced_json import balanced_json
from pipegen.plugins.hf_hooks import hf_hooks
from pipegen.plugins.prefix import strip_prefix
from pipegen.plugins.reasoning import Reasoning, reasoning_of, split_reasoning
from pipegen.plugins.repeated_objects import forbid_repeated_objects
from pipegen.plugins.repetition import halt_on_repetition

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
