"""What a `ModelLoadConfig` says to a server's function.

>>> from pipegen.backends import vllm_server
>>> arguments_of(ModelLoadConfig(model="m", backend="vllm_server", batch_size=8, engine_kwargs={"base_url": "http://h:1"}), vllm_server)
{'base_url': 'http://h:1', 'max_in_flight': 8}
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from pipegen.records.fields import InvalidField, UnknownField, nearest
from pipegen.records.results import ModelLoadConfig
from pipegen.records.secret import revealed

__all__ = ["arguments_of"]

_SECRET = ("api_key", "headers")
_ELSEWHERE = ("model", "backend", "fallback_backend", "engine_kwargs", "batch_size")


def arguments_of(config: ModelLoadConfig, function: Callable[..., Any]) -> dict[str, Any]:
    """The function's arguments: `engine_kwargs` as they stand, `batch_size` as `max_in_flight`, and the fields that it has under the same names.

    Raises `UnknownField` with the nearest name for an argument that it does not have, and `InvalidField` for a field that says something which a server
    settles for itself (`dtype`, `device`), and for a key, which the environment holds: a record would show it.
    """
    taken = inspect.signature(function).parameters
    arguments: dict[str, Any] = revealed(config.engine_kwargs)
    for name in arguments:
        if name in _SECRET:
            raise InvalidField(f"ModelLoadConfig.engine_kwargs takes no {name}, which it would show; set the environment variable, or call {config.backend}")
        if name not in taken or name == "model":
            raise UnknownField(f"ModelLoadConfig.engine_kwargs: {config.backend} takes no {name!r}{nearest(name, taken)}")
    if config.batch_size is not None:
        arguments.setdefault("max_in_flight", config.batch_size)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _ELSEWHERE or value == field.default:
            continue
        if field.name not in taken:
            raise InvalidField(f"ModelLoadConfig.{field.name} is for engines in this process; the server behind {config.backend} settles it itself")
        arguments[field.name] = value
    return arguments
