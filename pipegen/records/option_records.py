"""Options: each is declared here once, with what it takes, its help, its default, the engines that
honour it, and what others call it.

`None` means "not set"; `pipegen.records.options` gives every option its value.
`pipegen.records.option_table` makes the table of these rows.

>>> GenerationOptions(temperature=0.7, stop=("END",)).stop.stop
('END',)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pipegen.core.names import InvalidField
from pipegen.records.fields import (
    boolean,
    integer,
    non_empty_string,
    number,
    one_of,
    record,
    schema_of,
    tuple_of,
    with_schema,
)
from pipegen.records.frozen import NOTHING, FrozenMapping, plain_list
from pipegen.records.option_groups import (
    ChatTemplateOptions,
    DecodeOptions,
    StopOptions,
    StructuredOptions,
    VlmPreprocessOptions,
)
from pipegen.records.option_row import EVERY, SERVED, LogprobsOf, OptionRow


def _allowed(value: object) -> object:
    ids = tuple_of(integer(low=0, high=2**31 - 1))(value)
    if not ids:
        raise ValueError("at least one token id")
    return ids


with_schema(_allowed, {**schema_of(tuple_of(integer(low=0, high=2**31 - 1))), "minItems": 1})


def _words(value: object) -> object:
    words = tuple_of(non_empty_string)(value)
    if not all(word.strip() for word in words):
        raise ValueError("a list of words, none of them white space alone")
    return words


with_schema(_words, schema_of(tuple_of(non_empty_string)))


def _adapter(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("the name of an adapter, or an empty text for none")
    return value


with_schema(_adapter, {"type": "string"})
_MOST_BIASES = 1024
"""vLLM's engine ends where a request has more."""


def _bias(value: object) -> object:
    """Ids may be texts, as keys of JSON are."""
    if not isinstance(value, Mapping) or len(value) > _MOST_BIASES:
        raise ValueError(f"a mapping of token ids to numbers, {_MOST_BIASES} at most")
    token_id, bias = integer(low=0, high=2**31 - 1), number(-100, 100)
    biases: dict[int, float] = {}
    for key, entry in value.items():
        read = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        try:
            biases[token_id(read)] = bias(entry)
        except ValueError:
            raise ValueError("a mapping of token ids to numbers from -100 to 100") from None
    if len(biases) < len(value):
        raise ValueError("a mapping with each token id once")
    return FrozenMapping(sorted(biases.items()))


with_schema(
    _bias,
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
)


def _logprobs(value: object) -> object:
    """ "raw" is the same as True."""
    if isinstance(value, str) and value.lower() in ("raw", "processed"):
        return value.lower() == "raw" or "processed"
    try:
        return boolean(value)
    except ValueError as refusal:
        raise ValueError(f"{refusal}, or 'raw' or 'processed'") from None


with_schema(_logprobs, {"enum": [True, False, "raw", "processed"]})


def _nested(kind: type[Any], also: str = "") -> Any:
    """A check that takes the record itself or a mapping of its fields."""

    def check(value: object) -> object:
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return kind(**value)
        raise ValueError(f"a {kind.__name__}{also}, or a mapping with its fields' names")

    return check


def _stops(value: object) -> object:
    """Stop strings alone are enough: `stop=("END",)`."""
    value = plain_list(value)
    return (
        StopOptions(stop=tuple(value))
        if isinstance(value, (tuple, list))
        else _nested(StopOptions, " or a tuple of stop strings")(value)
    )


@record
class GenerationOptions:
    """Everything that one generation can be asked for. `None` means "not set"; see `resolve`."""

    max_new_tokens: Annotated[
        int | None,
        integer(low=0),
        "The most tokens to generate. With 0 only the prompt is read, for its `prompt_logprobs`.",
        OptionRow(
            512,
            EVERY,
            fields="max_tokens max_completion_tokens",
            near="max_output_tokens max_length",
            wires="max_tokens max_new_tokens max_tokens",
            trial=3,
            limits="integer",
            role="length",
            draws=(8, 64),
            anywhere=True,
            checkpoint=True,
            usual=True,
        ),
    ] = None
    max_thinking_tokens: Annotated[
        int | None,
        integer(low=0),
        "Think first, in at most this many tokens, which `max_new_tokens` counts too. Turns"
        " `enable_thinking` on.",
        OptionRow(
            near="thinking_token_budget thinking_budget",
            trial=2,
            limits="integer",
            role="length",
            later=True,
        ),
    ] = None
    min_new_tokens: Annotated[
        int | None,
        integer(low=0),
        "Nothing ends the answer before it has this many tokens; a stop within them does not "
        "count.",
        OptionRow(
            0,
            SERVED,
            fields="min_tokens",
            near="min_length",
            trial=2,
            limits="integer",
            role="stop",
            draws=(0, 8),
            checkpoint=True,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        number(0),
        "0 takes the likeliest token each time (greedy).",
        OptionRow(
            0.0,
            EVERY,
            near="do_sample",
            wires="temperature",
            trial=0.7,
            role="temperature",
            neutral=1.0,
            draws=(0, 4),
            checkpoint=True,
            usual=True,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        number(above=0, high=1),
        "Sample from the likeliest tokens whose probabilities add up to this much; 1 means all.",
        OptionRow(
            1.0, EVERY, wires="top_p", trial=0.0001, role="filter", checkpoint=True, usual=True
        ),
    ] = None
    top_k: Annotated[
        int | None,
        integer(low=0),
        "Sample from the k likeliest tokens; 0 means all.",
        OptionRow(
            0,
            SERVED,
            fields="top_k",
            trial=1,
            limits="integer",
            role="filter",
            draws=(0, 50),
            checkpoint=True,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        number(0, 1),
        "Sample from tokens at least this many times as likely as the likeliest; 0 means all.",
        OptionRow(0.0, SERVED, wires="min_p", trial=1.0, role="filter", checkpoint=True),
    ] = None
    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        _allowed,
        "Generate these tokens only; an end token too, if it is among them.",
        OptionRow(
            None,
            frozenset({"hf", "vllm", "vllm_server", "vllm_chat"}),
            wires="allowed_token_ids",
            trial=(5, 6),
            role="tokens",
        ),
    ] = None
    bad_words: Annotated[
        tuple[str, ...] | None,
        _words,
        "Never write these words, however the tokenizer cuts them, with a space before them or "
        "without.",
        OptionRow(
            (),
            frozenset({"hf", "vllm", "vllm_server"}),
            fields="bad_words",
            near="bad_words_ids banned_strings",
            trial=("a",),
            limits="max_option_bytes",
            role="tokens",
            later=True,
        ),
    ] = None
    logit_bias: Annotated[
        Mapping[int, float] | None,
        _bias,
        "Add these numbers, from -100 to 100, to the logits of the tokens with these ids, before"
        " penalties, temperature and filters.",
        OptionRow(
            NOTHING,
            EVERY,
            near="sequence_bias",
            trial={5: -100.0},
            wires="logit_bias",
            role="bias",
            later=True,
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        number(above=0),
        "Divide the positive logits of tokens in the prompt or the answer, and multiply the"
        " negative ones; 1 changes nothing.",
        OptionRow(
            1.0,
            SERVED - {"sglang_server", "sglang_chat"},
            wires="repetition_penalty",
            trial=2.0,
            role="penalty",
            draws=(0.5, 2),
            checkpoint=True,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        number(-2, 2),
        "Subtract this from the logits of tokens that are in the answer.",
        OptionRow(0.0, EVERY, wires="presence_penalty", trial=2.0, role="penalty"),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        number(-2, 2),
        "Subtract this from the logits of tokens for each time that they are in the answer.",
        OptionRow(0.0, EVERY, wires="frequency_penalty", trial=2.0, role="penalty"),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        integer(low=0),
        "Never write the same sequence of that many tokens twice; 0 means no limit.",
        OptionRow(
            0,
            frozenset({"hf"}),
            trial=2,
            limits="integer",
            role="repeats",
            draws=(0, 4),
            checkpoint=True,
        ),
    ] = None
    seed: Annotated[
        int | None,
        integer(low=0, high=2**63 - 1),
        "Makes sampling repeatable, in any batch.",
        OptionRow(
            None,
            EVERY,
            near="random_seed",
            wires="seed sampling_seed seed",
            trial=3,
            role="seed",
            usual=True,
        ),
    ] = None
    adapter: Annotated[
        str | None,
        _adapter,
        "Answer with this adapter, by its name among the engine's `adapters`. Empty is none of them,"
        " whatever the run says.",
        OptionRow(
            engines=frozenset({"hf", "vllm", "vllm_server", "sglang_server"}),
            near="lora_name adapter_name",
            trial="a",
            role="adapter",
            neutral="",
            later=True,
        ),
    ] = None
    samples: Annotated[
        int | None,
        integer(low=1),
        "How many samples to draw for one prompt; their seeds are derived from `seed`.",
        OptionRow(
            1,
            EVERY,
            fields="n",
            near="best_of num_return_sequences",
            trial=2,
            limits="max_samples",
            role="samples",
            draws=(1, 3),
            anywhere=True,
            usual=True,
        ),
    ] = None
    logprobs: Annotated[
        bool | LogprobsOf | None,
        _logprobs,
        "Report the log probability of each generated token: the model's own (`True`, or `raw`), or"
        " after penalties, temperature and filters (`processed`).",
        OptionRow(False, SERVED, trial=True, role="report"),
    ] = None
    top_logprobs: Annotated[
        int | None,
        integer(low=0),
        "Also report that many likeliest tokens for each position, up to all; turns `logprobs` on.",
        OptionRow(0, SERVED, trial=2, limits="integer", role="report", draws=(0, 3)),
    ] = None
    prompt_logprobs: Annotated[
        bool | None,
        boolean,
        "Report the model's own log probability of each token of the prompt but the first, with the"
        " likeliest there; the prompt is computed once more.",
        OptionRow(False, trial=True, role="report"),
    ] = None
    max_prompt_tokens: Annotated[
        int | None,
        integer(low=1),
        "Fail a longer prompt, images included, before the engine is called.",
        OptionRow(
            near="truncate_prompt_tokens",
            trial=100_000,
            limits="integer",
            role="fit",
            draws=(1, 600),
            anywhere=True,
            stage="fit",
        ),
    ] = None
    on_overflow: Annotated[
        Literal["error", "clip"] | None,
        one_of("error", "clip"),
        "What to do when prompt and answer do not fit: fail the slot, or lower `max_new_tokens`.",
        OptionRow("error", trial="clip", role="fit", anywhere=True, stage="fit"),
    ] = None
    use_generation_config: Annotated[
        bool | None,
        boolean,
        "Take options that are not set from the checkpoint's `generation_config`, where it has "
        "them.",
        OptionRow(False, trial=True, role="defaults", anywhere=True, stage="resolve"),
    ] = None
    stop: Annotated[StopOptions | None, _stops] = None
    """What ends an answer."""
    decode: Annotated[DecodeOptions | None, _nested(DecodeOptions)] = None
    """How ids become text."""
    chat: Annotated[ChatTemplateOptions | None, _nested(ChatTemplateOptions)] = None
    """How messages become a prompt."""
    preprocess: Annotated[VlmPreprocessOptions | None, _nested(VlmPreprocessOptions)] = None
    """How images are resized."""
    structured: Annotated[StructuredOptions | None, _nested(StructuredOptions)] = None
    """The form of the answer."""

    if TYPE_CHECKING:  # stops alone may be given for StopOptions

        def __init__(
            self,
            *,
            max_new_tokens: int | None = None,
            max_thinking_tokens: int | None = None,
            min_new_tokens: int | None = None,
            temperature: float | None = None,
            top_p: float | None = None,
            top_k: int | None = None,
            min_p: float | None = None,
            allowed_token_ids: Sequence[int] | None = None,
            bad_words: Sequence[str] | None = None,
            logit_bias: Mapping[int, float] | None = None,
            repetition_penalty: float | None = None,
            presence_penalty: float | None = None,
            frequency_penalty: float | None = None,
            no_repeat_ngram_size: int | None = None,
            seed: int | None = None,
            adapter: str | None = None,
            samples: int | None = None,
            logprobs: bool | LogprobsOf | None = None,
            top_logprobs: int | None = None,
            prompt_logprobs: bool | None = None,
            max_prompt_tokens: int | None = None,
            on_overflow: Literal["error", "clip"] | None = None,
            use_generation_config: bool | None = None,
            stop: StopOptions | Sequence[str] | None = None,
            decode: DecodeOptions | None = None,
            chat: ChatTemplateOptions | None = None,
            preprocess: VlmPreprocessOptions | None = None,
            structured: StructuredOptions | None = None,
        ) -> None: ...

    @staticmethod
    def _hint_for(name: str) -> str:
        from pipegen.records.option_table import unknown_hint

        return unknown_hint(name)

    def check_all(self) -> None:
        if self.top_logprobs and self.logprobs is False:
            raise InvalidField("GenerationOptions takes top_logprobs only with logprobs=True")
        if (
            self.min_new_tokens is not None
            and self.max_new_tokens is not None
            and self.min_new_tokens > self.max_new_tokens
        ):
            raise InvalidField(
                "GenerationOptions takes min_new_tokens of at most max_new_tokens, not"
                f" {self.min_new_tokens} > {self.max_new_tokens}"
            )
