"""Options as vLLM's `SamplingParams`, one fresh one for each row, with everything set."""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from pipegen.answer.barred import Spellings
from pipegen.backends.grammar import form_of
from pipegen.core.errors import UnsupportedOption
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_row import LogprobsOf
from pipegen.records.option_table import wire_fields
from pipegen.records.results import TokenLogprob, margin_of
from pipegen.records.scores import likely

MOST_SPELLINGS, MOST_SPELLED = 128, 1024
"""The sequences of tokens that vLLM bars in a row, and the tokens of all of them, unless
`VLLM_MAX_NUM_BAD_WORDS` and `VLLM_MAX_BAD_WORDS_TOTAL_TOKENS` say otherwise.
"""
MOST_LOGPROBS = 20
"""How many logprobs of a position vLLM gives unless `max_logprobs` says otherwise; -1 is all."""

LOGPROBS_OF: Mapping[str, LogprobsOf] = {
    "raw_logprobs": "raw",
    "processed_logprobs": "processed",
}
"""Which distribution log probabilities are of, by vLLM's `logprobs_mode`; its other modes give
logits.
"""


@functools.cache
def _params() -> Any:
    from vllm import SamplingParams

    # vLLM is not there when types are checked
    class _AsAsked(SamplingParams):  # type: ignore[misc]
        """vLLM adds the tokenizer's own end token to what ends a row and to what `min_tokens` holds
        back, even with `ignore_eos`; here everything is set.
        """

        def update_from_generation_config(self, *_: object, **__: object) -> None:
            """Nothing comes from the checkpoint."""

        def update_from_tokenizer(self, *_: object) -> None:
            """Barred words are spelled by pipegen: vLLM leaves out a spelling with a space if it has
            more tokens, or fewer, than that without one.
            """

    return _AsAsked


def fewer(top: int, most: int) -> UnsupportedOption | None:
    """The refusal of more likeliest tokens than vLLM gives; it gives any number where that is
    negative.
    """
    if not 0 <= most < top:
        return None
    return UnsupportedOption(
        f"this vLLM gives the {most} likeliest tokens, not {top}",
        option="top_logprobs",
        hint=f"set engine_kwargs={{'max_logprobs': {top}}}, or -1 for all",
    )


def unsupported(
    options: GenerationOptions, most_logprobs: int = MOST_LOGPROBS
) -> UnsupportedOption | None:
    """The value that vLLM would change, if there is one: it raises a temperature above 0 to at
    least its own least, with a warning only. Or more likeliest tokens than it gives.
    """
    refusal = fewer(options.top_logprobs or 0, most_logprobs)
    if refusal is not None:
        return refusal
    from vllm import sampling_params as module

    least = float(getattr(module, "_MAX_TEMP", 0.01))
    if options.temperature and options.temperature < least:
        message = (
            f"vllm does not honour temperature={options.temperature:g}: it would take {least:g},"
            " the least above 0"
        )
        return UnsupportedOption(
            message,
            option="temperature",
            hint=f"use temperature 0 (greedy), or {least:g} and above",
        )
    return None


def too_many(barred: Spellings) -> UnsupportedOption | None:
    """The refusal of more spellings of `bad_words` than vLLM takes; its engine could end at them."""
    tokens = sum(map(len, barred))
    if len(barred) <= MOST_SPELLINGS and tokens <= MOST_SPELLED:
        return None
    return UnsupportedOption(
        f"vLLM bars at most {MOST_SPELLINGS} spellings of {MOST_SPELLED} tokens, and bad_words has"
        f" {len(barred)} of {tokens}",
        option="bad_words",
        hint="bar fewer words, or use hf",
    )


def _structured(options: GenerationOptions, grammar: str | None) -> dict[str, object]:
    """The form of the answer as an argument of `SamplingParams`, as a grammar where there is
    one.
    """
    form = form_of(options) if grammar is None else {"grammar": grammar}
    if not form:
        return {}
    from vllm.sampling_params import StructuredOutputsParams

    ((name, value),) = form.items()
    return {
        "structured_outputs": StructuredOutputsParams(
            **{"json" if name == "json_schema" else name: value}
        )
    }


def sampling_params(
    options: GenerationOptions,
    ending_ids: tuple[int, ...],
    *,
    final_only: bool = False,
    most_logprobs: int = MOST_LOGPROBS,
    grammar: str | None = None,
    barred: Spellings = (),
) -> Any:
    """The parameters of one row. `ending_ids` are all the ids that end it, the checkpoint's end
    tokens too. `final_only` asks for one output, at its end. `most_logprobs` is vLLM's own
    `max_logprobs`. `grammar` is the form of the answer, where vLLM is to take it from pipegen. `barred` are the
    spellings of `bad_words`.

    vLLM halts at those ids. Stop strings and plugins are followed by pipegen, token by token, as
    for every engine; so vLLM makes no text.
    """
    from vllm.sampling_params import RequestOutputKind

    return _params()(
        **wire_fields(options, "vllm") | {"logit_bias": dict(options.logit_bias or {}) or None},
        bad_words=list(options.bad_words or ()),
        _bad_words_token_ids=[list(ids) for ids in barred] or None,
        n=1,
        top_k=options.top_k or 0,
        min_tokens=options.min_new_tokens or 0,
        stop=[],
        stop_token_ids=list(ending_ids),
        ignore_eos=True,  # the end tokens are among the ending ids
        logprobs=_candidates(options, most_logprobs) if options.logprobs else None,
        detokenize=False,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY if final_only else RequestOutputKind.DELTA,
        **_structured(options, grammar),
    )


def scoring_params(top: int) -> Any:
    """The parameters of a row of which only the log probabilities of its prompt are wanted, with
    so many of the likeliest tokens in each place; vLLM makes one token at least.
    """
    from vllm.sampling_params import RequestOutputKind

    return _params()(
        n=1,
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=max(1, top),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _candidates(options: GenerationOptions, most: int) -> int:
    """How many of the likeliest tokens are asked for: two for the margin, or as many as may be
    had.
    """
    top = options.top_logprobs or 0
    return max(top, 2 if most < 0 else min(2, most))


def logprob_of(
    token_id: int, table: Any, top: int, *, most_logprobs: int = MOST_LOGPROBS
) -> TokenLogprob | None:
    """The logprob of one generated token from vLLM's table of that position (id -> entry); None
    where it is not there or no number.

    The table holds the likeliest tokens and the generated one; so without two of the likeliest no
    margin is known.
    """
    values = {int(other): float(entry.logprob) for other, entry in (table or {}).items()}
    if not math.isfinite(values.get(token_id, math.nan)):
        return None
    likeliest = sorted(values.items(), key=lambda entry: -entry[1])[:top]
    margin = margin_of(values.values()) if most_logprobs < 0 or most_logprobs >= 2 else None
    return TokenLogprob(
        token_id=token_id, logprob=values[token_id], top=likely(likeliest), margin=margin
    )
