"""Plugins: values that watch, trim or steer a row. None does anything until it is attached to a route (`pipegen.attach`)."""

from pipegen.plugins.balanced_json import balanced_json
from pipegen.plugins.plugin import Plugin, RowContext
from pipegen.plugins.repeated_objects import forbid_repeated_objects

__all__ = ["Plugin", "RowContext", "balanced_json", "forbid_repeated_objects"]
