"""What an engine can do, as data.

A capability is a word: `images`, `stream`, `logits`, ... or the flat name of an option. An engine's
`Capabilities` say which it has; preflight, `attach` and `pipegen doctor` read the same table.

>>> missing({"images"}, Capabilities(engine="x", honours=frozenset({"seed"})))
('images',)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from immutabledict import immutabledict

from pipegen.records.engine_list import ENGINE_LIST, TOKEN_ENGINES
from pipegen.records.fields import integer, record
from pipegen.records.option_table import OPTIONS

Capability = str
_FEATURES: Mapping[Capability, tuple[str, frozenset[str]]] = {
    "images": ("takes images", frozenset(ENGINE_LIST)),
    "videos": ("takes videos", frozenset({"hf", "vllm"})),
    "stream": ("yields text as it comes", frozenset(ENGINE_LIST)),
    "token_ids": (
        "takes and returns token ids, so that prompt, text and finish are pipegen's own",
        TOKEN_ENGINES,
    ),
    "repeatable": (
        "a seeded request gets the same result again, in any batch",
        TOKEN_ENGINES - {"sglang_server"},
    ),
    "watch": (
        (
            "can be stopped by a plugin of any engine: at the exact token, or by chat at the exact"
            " character"
        ),
        frozenset(ENGINE_LIST),
    ),
    "stopping_criteria": ("takes Hugging Face StoppingCriteria", frozenset({"hf"})),
    "logits_processor": ("takes Hugging Face LogitsProcessors", frozenset({"hf"})),
}
FEATURES: Mapping[Capability, str] = {name: text for name, (text, _) in _FEATURES.items()}
"""The capabilities that are not options."""
_HONOURED = {name: engines for name, (_, engines) in _FEATURES.items()} | {
    name: entry.row.engines for name, entry in OPTIONS.items()
}


class Engines(immutabledict[str, frozenset[Capability]]):
    """What each engine honours at best, by its name: options and features. A text-only model takes
    `images` and `videos` away, and a vision model whose videos pipegen does not prepare `videos`.

    >>> "logits_processor" in ENGINES["hf"], "logits_processor" in ENGINES["vllm"]
    (True, False)
    """


ENGINES = Engines(
    {
        engine: frozenset(name for name, by in _HONOURED.items() if engine in by)
        for engine in ENGINE_LIST
    }
)
"""What each engine honours at best, by its name: options and features. A text-only model takes
`images` and `videos` away, and a vision model whose videos pipegen does not prepare `videos`.
"""


@record
class Capabilities:
    """What one loaded engine honours, and its limits (None where unknown or unlimited)."""

    engine: str
    """The engine's name."""
    honours: frozenset[Capability]
    """The options and features that it honours."""
    context_length: Annotated[int | None, integer(low=1)] = None
    """Prompt and answer together, in tokens."""
    max_images: Annotated[int | None, integer(low=0)] = None
    """Images in one request."""
    max_videos: Annotated[int | None, integer(low=0)] = None
    """Videos in one request."""
    vocab_size: Annotated[int | None, integer(low=1)] = None
    """The ids that the model takes are those below it; None where that is not known."""
    adapters: tuple[str, ...] | None = None
    """The names that the option `adapter` takes; None where they are not known."""
    fills_context: bool = False
    """Whether a row whose options set no `max_new_tokens` may fill the context length."""
    reason: str = ""
    """Why images are not taken, for the error message."""
    no_videos_because: str = ""
    """Why videos are not taken, for the error message."""


def missing(needed: Iterable[Capability], capabilities: Capabilities) -> tuple[Capability, ...]:
    """The needed capabilities that are not there, sorted."""
    return tuple(sorted(set(needed) - capabilities.honours))
