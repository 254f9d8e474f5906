"""Which distribution an engine's log probabilities are of, and whether those were asked for.

>>> shifts(GenerationOptions(temperature=0.7, top_k=5)), shifts(GenerationOptions(top_k=5))
(('temperature', 'top_k'), ())
>>> other_logprobs(GenerationOptions(logprobs=True), "raw", "vllm", "") is None
True
"""

from __future__ import annotations

from pipegen.core.errors import UnsupportedOption
from pipegen.records.engine_list import shown
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_row import LogprobsOf
from pipegen.records.options import in_effect


def shifts(options: GenerationOptions, *, filters: bool = True) -> tuple[str, ...]:
    """The options by which the distribution that is sampled from is not the model's own. A greedy
    row has no filters.
    """
    names = in_effect(options, "temperature", "tokens", "bias", "penalty", "repeats")
    if filters and options.temperature:
        names += in_effect(options, "filter")
    if options.min_new_tokens:  # by which the end token is barred
        names += ("min_new_tokens",)
    return names


def other_logprobs(
    options: GenerationOptions, given: LogprobsOf | None, engine: str, hint: str
) -> UnsupportedOption | None:
    """The refusal of log probabilities where the engine gives those of another distribution, and
    the options make a difference between them. `given` is None where that is not known: then they
    are taken for the model's own.

    hint: what to do to get those after penalties, temperature and filters.

    >>> other_logprobs(GenerationOptions(logprobs="processed"), "raw", "vllm", "").message
    "vLLM gives no log probabilities of the distribution that is sampled from (logprobs='processed')"
    """
    if options.logprobs == "processed" and given != "processed":
        words = (
            f"{shown(engine)} gives no log probabilities of the distribution that is sampled from"
            " (logprobs='processed')"
        )
        return UnsupportedOption(words, option="logprobs", hint=hint)
    changed = shifts(options) if options.logprobs is True and given == "processed" else ()
    if not changed:
        return None
    words = (
        f"this {shown(engine)} gives log probabilities after {', '.join(changed)}, and so not the"
        " model's own"
    )
    hint = "ask for logprobs='processed', or start it with logprobs_mode raw_logprobs"
    return UnsupportedOption(words, option="logprobs", hint=hint)
