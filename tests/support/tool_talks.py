"""Conversations with tools for tests: what a scripted engine writes, and what it was asked."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["asked", "calls", "replies"]


def calls(*them: tuple[str, dict[str, Any]]) -> str:
    """The text of an answer with these calls."""
    return (
        json.dumps(
            [
                {"id": f"call{number:05d}", "type": "function", "function": function}
                for number, function in enumerate(
                    {"name": name, "arguments": arguments} for name, arguments in them
                )
            ]
        )
        + "<|im_end|>"
    )


def replies(row: Any) -> list[Any]:
    """The contents of the tools' messages that an engine is asked with."""
    return [one.content for one in row.request.messages if one.role == "tool"]


def asked(number: int = 0, **more: Any) -> dict[str, Any]:
    """A request."""
    return {
        "id": f"row {number}",
        "messages": [{"role": "user", "content": f"Count, {number}"}],
        **more,
    }
