"""What an engine can do, as data.

A capability is a word: `images`, `stream`, `logits`, ... or the flat name of an option. An engine's `Capabilities` say which it has; preflight, `attach`
and `pipegen doctor` read the same table.

>>> missing({"images"}, Capabilities(engine="x", honours=frozenset({"seed"})))
('images',)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pipegen.fields import record, whole
from pipegen.options import option_names

__all__ = ["ENGINES", "FEATURES", "Capabilities", "Capability", "missing"]

Capability = str
FEATURES: Mapping[Capability, str] = {
    "images": "takes pictures",
    "stream": "yields text as it comes",
    "watch": "can be halted by an engine-neutral plugin at the very token",
    "stopping_criteria": "takes Hugging Face StoppingCriteria",
    "logits_processor": "takes Hugging Face LogitsProcessors",
}
"""The capabilities that are not options."""
_OPTIONS: frozenset[Capability] = frozenset(option_names())


@record
class Capabilities:
    """What one loaded engine honours, and its limits (in tokens; None where unknown or unlimited)."""

    engine: str
    honours: frozenset[Capability]
    context_length: Annotated[int | None, whole(low=1)] = None
    """Prompt and answer together."""
    max_images: Annotated[int | None, whole(low=0)] = None
    """Pictures in one request."""
    reason: str = ""
    """Why pictures are not taken, for the error message."""


ENGINES: Mapping[str, frozenset[Capability]] = {
    "hf": _OPTIONS | frozenset(FEATURES),
    "vllm": (_OPTIONS | frozenset(FEATURES)) - {"no_repeat_ngram_size", "stopping_criteria", "logits_processor"},
    "vllm_server": (_OPTIONS | frozenset(FEATURES)) - {"no_repeat_ngram_size", "stopping_criteria", "logits_processor"},
}
"""What each engine honours at best; a text-only model takes `images` away. `images` also needs a vision model."""


def missing(needed: Iterable[Capability], capabilities: Capabilities) -> tuple[Capability, ...]:
    """The needed capabilities that are not there, sorted."""
    return tuple(sorted(set(needed) - capabilities.honours))
