"""Images that are loaded as those of a request, or refused."""

from __future__ import annotations

from typing import Any

from pipegen.core.errors import BadImage, GenerationError
from pipegen.media.source import load_sources
from pipegen.records.requests import ImagePolicy, VlmGenerationRequest

__all__ = ["DATA", "POLICY", "load", "refusal"]

POLICY = ImagePolicy()
DATA = b"\x89PNG and more bytes \x00\xff"


def load(*images: Any, policy: ImagePolicy = POLICY) -> list[bytes | None]:
    return [
        source.data
        for source in (
            load_sources(VlmGenerationRequest(prompt="?", images=images), policy).unwrap().sources
        )
    ]


def refusal(*images: Any, policy: ImagePolicy = POLICY) -> GenerationError:
    error = load_sources(VlmGenerationRequest(prompt="?", images=images), policy).failure()
    assert isinstance(error, BadImage)
    return error
