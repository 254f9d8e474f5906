"""What the table says of an option: one row of facts beside its type, its check and its help.

>>> OptionRow(1.0, EVERY, role="filter").neutral_values
(None, 1.0, None)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pipegen.records.engine_list import ENGINE_LIST, TOKEN_ENGINES, UNKNOWN_SERVERS

EVERY = frozenset(ENGINE_LIST)
SERVED = EVERY - UNKNOWN_SERVERS
"""Every engine but servers of which pipegen does not know what they honour."""
VIDEOS = frozenset({"hf", "vllm"})
"""The engines that take videos."""
LogprobsOf = Literal["raw", "processed"]
"""Which distribution log probabilities are of: the model's own, or that which was sampled from."""
Role = Literal[
    "length",  # how many tokens at most
    "stop",  # where an answer ends
    "temperature",
    "filter",  # which unlikely tokens are not drawn
    "tokens",  # which tokens may not come
    "bias",  # which tokens are likelier, whatever was written
    "penalty",  # how likely a token is after what was written
    "repeats",  # which tokens may not come after what was written
    "seed",
    "adapter",  # which weights are added to the model's
    "samples",
    "report",  # what a result has beside its text
    "fit",  # what becomes of a prompt that is too long
    "defaults",  # where values come from
    "decode",
    "chat",
    "preprocess",
    "structured",
]
"""What an option is about. Those of a group have the role of their group."""


class OptionRow(NamedTuple):
    """What the table says of an option besides its name, its type, its check and its help."""

    default: object = None
    engines: frozenset[str] = TOKEN_ENGINES
    """The engines that honour it; those that take token ids honour what pipegen's own stages do."""
    fields: str = ""
    """The fields of servers' requests that set it, where they are not its name in `wires`; files
    take these names too.
    """
    near: str = ""
    """What other libraries call it, or something like it: for "did you mean"."""
    trial: Any = None
    """A value that is not the default, for tests that try every option; of a filter, the narrowest.
    """
    wires: str = ""
    """Its name where its value is sent as it is: for vLLM, SGLang and chat servers, or one name for
    all three.
    """
    limits: str = ""
    """What bounds it in a request: `integer`, which is 32 bits for itself or each of its items, and
    fields of `RequestPolicy`, which bound what all options of that limit have together.
    """
    role: Role | None = None
    """What it is about, where it is in no group."""
    neutral: object = None
    """The value that changes nothing, where that is not the default."""
    draws: tuple[float, float] | None = None
    """The range from which tests draw it, where that of its check is too wide."""
    stage: str = ""
    """The stage that carries it out, where a pipe without that stage refuses it."""
    anywhere: bool = False
    """Whether pipegen itself carries it out, whatever the engine."""
    checkpoint: bool = False
    """Whether `use_generation_config=True` takes it from the checkpoint."""
    usual: bool = False
    """Whether the short help of the command line shows it."""
    later: bool = False
    """Whether earlier versions do not have it. Where it is not set, keys of jobs are as they were.
    """

    @property
    def neutral_values(self) -> tuple[object, ...]:
        """The values that change nothing in what the model gives."""
        return None, self.default, self.neutral
