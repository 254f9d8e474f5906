"""What an engine can do, as data.

A capability is a word: `images`, `stream`, `logits`, ... or the flat name of an option. An engine's `Capabilities` say which it has; preflight, `attach`
and `pipegen doctor` read the same table.

>>> missing({"images"}, Capabilities(engine="x", honours=frozenset({"seed"})))
('images',)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pipegen.records.fields import integer, record
from pipegen.records.options import option_names

__all__ = ["ENGINES", "FEATURES", "Capabilities", "Capability", "missing"]

Capability = str
FEATURES: Mapping[Capability, str] = {
    "images": "takes images",
    "stream": "yields text as it comes",
    "token_ids": "takes and gives token ids, so that prompt, text and finish are pipegen's own",
    "repeatable": "a seeded row comes out the same again, in any company",
    "watch": "can be halted by an engine-neutral plugin: at the very token; by chat, at the very character",
    "stopping_criteria": "takes Hugging Face StoppingCriteria",
    "logits_processor": "takes Hugging Face LogitsProcessors",
}
"""The capabilities that are not options."""
_OPTIONS: frozenset[Capability] = frozenset(option_names())


@record
class Capabilities:
    """What one loaded engine honours, and its limits (None where unknown or unlimited)."""

    engine: str
    honours: frozenset[Capability]
    context_length: Annotated[int | None, integer(low=1)] = None
    """Prompt and answer together, in tokens."""
    max_images: Annotated[int | None, integer(low=0)] = None
    """Images in one request."""
    vocab_size: Annotated[int | None, integer(low=1)] = None
    """The ids that the model takes are those below it; None where that is not known."""
    reason: str = ""
    """Why images are not taken, for the error message."""


_NOT_HF: frozenset[Capability] = frozenset({"no_repeat_ngram_size", "stopping_criteria", "logits_processor"})
_STRUCTURED: frozenset[Capability] = frozenset({"json_schema", "regex", "choice"})
# Where the server renders, what is promised of prompts, ids and pixels does not hold.
_CHAT: frozenset[Capability] = frozenset({"images", "stream", "max_new_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"})
_CHAT |= {"samples", "stop", "strip_whitespace", "watch"}
_CHAT_MORE: frozenset[Capability] = frozenset({"top_k", "min_p", "repetition_penalty", "min_new_tokens", "stop_token_ids", "ignore_eos"})
_CHAT_MORE |= {"skip_special_tokens", "enable_thinking", "template_kwargs", "continue_final_message", "add_generation_prompt"}
_CHAT_MORE |= {"logprobs", "top_logprobs"} | _STRUCTURED

ENGINES: Mapping[str, frozenset[Capability]] = {
    "hf": (_OPTIONS | frozenset(FEATURES)) - _STRUCTURED,
    "vllm": (_OPTIONS | frozenset(FEATURES)) - _NOT_HF,
    "vllm_server": (_OPTIONS | frozenset(FEATURES)) - _NOT_HF,
    "sglang_server": (_OPTIONS | frozenset(FEATURES)) - _NOT_HF - {"repeatable", "repetition_penalty"},
    "vllm_chat": (_CHAT | _CHAT_MORE) - {"skip_special_tokens"},  # its parsers of tools and of reasoning settle it
    "sglang_chat": _CHAT | _CHAT_MORE,
    "openai_chat": _CHAT,
}
"""What each engine honours at best; a text-only model takes `images` away. `images` also needs a vision model."""


def missing(needed: Iterable[Capability], capabilities: Capabilities) -> tuple[Capability, ...]:
    """The needed capabilities that are not there, sorted."""
    return tuple(sorted(set(needed) - capabilities.honours))
