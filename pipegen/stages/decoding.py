"""Turn the ids that an engine gave back into text, up to the id that ends the row.

The order in which a generated token is judged, once the row has more than `min_new_tokens`: a stop
token ends it, then one of the model's end tokens, then a stop string (see `stop`), then a plugin,
then the length. A stop token's text, and an end token's, is in `raw_text` only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import UnsupportedOption
from pipegen.core.pipe import Pipe, row_stage
from pipegen.core.slots import Slot
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import altered
from pipegen.records.results import Decoded, Encoded, Finish, Raw, TokenLogprob
from pipegen.stages.parts.detokenize import Detokenizer, added, own_text, spell
from pipegen.stages.stopping import endings, plan_stops

__all__ = ["Detokenizer", "decode", "decode_row", "hidden_ids"]


def hidden_ids(tokenizer: Tokenizer, skip_special_tokens: bool | None) -> frozenset[int]:
    """The ids that `text` does not show.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> sorted(hidden_ids(ToyTokenizer(), True)), sorted(hidden_ids(ToyTokenizer(), False))
    ([256, 257, 258, 259], [])
    """
    return _special_ids(tokenizer) if skip_special_tokens else frozenset()


@functools.lru_cache(maxsize=64)
def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(tokenizer.special_tokens.values())


def decode(engine: TokenEngine) -> Pipe[Raw, Decoded]:
    """The stage that makes text of generated ids; see `decode_row`. While a call streams, text is
    given out as soon as it is final.
    """
    require_token_engine("decode", engine)

    def follow(encoded: Encoded) -> Any:
        # which is made of this stage and the two after it
        from pipegen.stages.parts.row_decoder import RowDecoder

        return RowDecoder(encoded.options, engine.tokenizer, engine.eos_token_ids, engine.plugins)

    def decoded(raw: Raw) -> Slot[Decoded]:
        return decode_row(raw, engine.tokenizer, engine.eos_token_ids)

    return row_stage(
        "decode",
        decoded,
        keeps_text=True,
        follow=follow,
        takes=Raw,
        rebind=lambda new: decode(new.engine(engine)),
    )


def decode_row(raw: Raw, tokenizer: Tokenizer, eos_token_ids: Sequence[int] = ()) -> Slot[Decoded]:
    """The text of the ids, not yet cut at stop strings, and how the row ended as far as the ids
    say.

    Ids after the one that ends the row, or beyond `max_new_tokens`, are dropped with their
    logprobs. The finish is `ABORTED` where the engine gave the row up or the ids end for no known
    reason, and `PLUGIN` where a plugin on the engine's side ended it.

    >>> from pipegen.records.options import GenerationOptions, resolve
    >>> from pipegen.records.results import Encoded, Prompt
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
    >>> encoded = Encoded(
    ...     request=TextGenerationRequest(prompt="A"),
    ...     options=resolve(GenerationOptions()),
    ...     prompt=prompt,
    ... )
    >>> decoded = decode_row(
    ...     Raw(encoded=encoded, token_ids=(66, 257, 67)), ToyTokenizer(), eos_token_ids=(257,)
    ... ).unwrap()
    >>> decoded.text, decoded.raw_text, decoded.raw.token_ids, decoded.finish.value
    ('B', 'B<|im_end|>', (66, 257), 'eos')
    """
    options, ids = raw.encoded.options, raw.token_ids
    if options.decode is None or options.max_new_tokens is None or options.min_new_tokens is None:
        raise ValueError("the options take a value for everything: resolve(options) first")
    if options.prompt_logprobs and raw.prompt_logprobs is None:
        words = "prompt_logprobs takes a pipe that asks for them: none of its stages does"
        return Failure(
            UnsupportedOption(
                words,
                option="prompt_logprobs",
                hint=(
                    "pg.call(engine) asks for them; a stage of your own in its place sets"
                    " Raw.prompt_logprobs"
                ),
            )
        )
    ends = endings(options, plan_stops(options, tokenizer), eos_token_ids)
    count = min(len(ids), options.max_new_tokens)
    ended = (
        None
        if ends.keys().isdisjoint(ids)
        else next(
            (place for place in range(options.min_new_tokens, count) if ids[place] in ends), None
        )
    )
    kept = count if ended is None else ended + 1
    finish, stop = (
        _unforced(raw, kept, options.max_new_tokens) if ended is None else ends[ids[ended]]
    )
    if kept < len(ids):
        raw = dataclasses.replace(
            raw,
            token_ids=ids[:kept],
            logprobs=None if raw.logprobs is None else raw.logprobs[:kept],
            ending=None,
        )
    if raw.logprobs is not None:
        raw = dataclasses.replace(
            raw, logprobs=tuple([_spelled(one, tokenizer) for one in raw.logprobs])
        )
    if raw.prompt_logprobs is not None:
        raw = dataclasses.replace(
            raw,
            prompt_logprobs=tuple(
                [None if one is None else _spelled(one, tokenizer) for one in raw.prompt_logprobs]
            ),
        )
    raw_text, raw_ends = spell(tokenizer, raw.token_ids)
    hidden = hidden_ids(tokenizer, options.decode.skip_special_tokens)
    shown = raw.token_ids[:ended]
    last = "" if ended is None else added(tokenizer, ids[ended])
    # then it is known what the ending token has put to the text
    if hidden.isdisjoint(shown) and last is not None and len(last) < len(raw_text):
        text, text_ends = raw_text.removesuffix(last), raw_ends[: len(shown)]
    else:
        text, text_ends = spell(tokenizer, shown, hidden)
    text_ends += text_ends[-1:] or (0,) if ended is not None else ()
    followed = (
        (text, raw_text, text_ends, raw_ends)
        if raw.ending is not None and raw.ending.is_about(raw)
        else None
    )
    return Success(
        Decoded(
            raw=raw,
            text=text,
            raw_text=raw_text,
            text_ends=text_ends,
            raw_ends=raw_ends,
            finish=finish,
            stop=stop,
            written=text,
            followed=followed,
        )
    )


def _spelled(one: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprob:
    """The log probability with the texts of its tokens."""
    return altered(
        one,
        text=own_text(tokenizer, one.token_id),
        top_texts=tuple([own_text(tokenizer, token_id) for token_id, _ in one.top]),
    )


def _unforced(raw: Raw, kept: int, limit: int) -> tuple[Finish, str | None]:
    """How a row ended that no id ended."""
    if kept == len(raw.token_ids) and raw.aborted:
        return Finish.ABORTED, None
    if kept == len(raw.token_ids) and raw.halted is not None:
        return Finish.PLUGIN, raw.halted
    return (Finish.LENGTH if kept >= limit else Finish.ABORTED), None
