"""How a row ends: one rule for every engine, whether its answer comes whole or in pieces.

A token may end the row once there are more than `min_new_tokens`. What ends it is the first of
these: a stop string that completes in the text, a plugin that halts it by the text, a stop token, an
end token. After these come an engine that gave the row up, a plugin that stops the
engine, and the length.

The text of a stop token, or of an end token, is in `raw_text` only. With it comes what was held back
of the character before it, in which a stop string may complete. Of its own text, an end token's may
complete a stop that holds a special token; a stop token's completes none. A stop that is exactly
one special token is a stop token.

`text` ends before the stop string, or where the plugin says. The stage `trim` may change it then.

Engines of this process follow their ids with a `TokenFold` (`pipegen.backends.engine_rows`). A
server is sent the stops; its answer is followed where it cannot end the row, and where tokens are
streamed. Where it says that it failed or refused, the slot fails. Then `decode` makes text of the
ids, and `stop` cuts it. `stop` takes the engine's word (`Ending`) only where it is about the very
ids, options, texts and plugins of the answer, and says where. Else it feeds a `TextFold`. An engine
gets no stops if a stage before `stop` changes the text (see `pipegen.stages.calling`). Chat routes
have neither stage: `pipegen.backends.servers.chat_engine` feeds a `TextFold`, and takes other ends
from the server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from returns.result import Failure, Success

from pipegen.core.errors import CallFailed, MalformedResponse, UnsupportedOption
from pipegen.core.pipe import Pipe, pipe_of, row_stage
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import PluginStage
from pipegen.ending.detokenize import added, own_text, spell
from pipegen.ending.stop_scan import Cut, cut
from pipegen.ending.stop_state import UNRESOLVED, TextFold, TokenFold, not_ended, plan_of
from pipegen.engines.model import TokenModel, on_model, reader_of
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import Decoded, Encoded, Ending, Finish, Raw, TokenLogprob

__all__ = [
    "BY_ID",
    "Cut",
    "cut",
    "decode",
    "decode_row",
    "end_row",
    "stop",
    "stop_row",
    "with_texts",
]

BY_ID = (Finish.EOS, Finish.STOP_TOKEN)
"""How a row ends by an id."""


def decode(engine: TokenEngine) -> Pipe[Raw, Decoded]:
    """The stage that makes text of generated ids; see `decode_row`. While a call streams, text is
    given out as soon as it is final. Fails with `MalformedResponse` for ids that are no tuple of
    the model's ids, and for log probabilities of another number.
    """
    require_token_engine("decode", engine)

    read = reader_of(engine)

    def follow(encoded: Encoded) -> TokenFold:
        slot = read()
        if not is_ok(slot):
            raise CallFailed(slot.failure())
        model: TokenModel = slot.unwrap()
        return TokenFold(encoded.options, model.tokenizer, model.eos_token_ids, model.plugins)

    def decoded(raw: Raw, model: TokenModel) -> Slot[Decoded]:
        wrong = _wrong_ids(raw, model)
        if wrong:
            message = f"the answer of {model.name} has {wrong}"
            return Failure(MalformedResponse(message, hint=_IDS))
        return decode_row(raw, model.tokenizer, model.eos_token_ids)

    return row_stage(
        "decode",
        on_model(engine, decoded),
        keeps_text=True,
        follow=follow,
        takes=Raw,
        gives=Decoded,
        rebind=lambda new: decode(new.engine(engine)),
    )


_IDS = (
    "correct the engine, or your stage after it: Raw.token_ids is a tuple of the ids that it"
    " generated, all of them int, and Raw.logprobs is None or has one entry for each"
)


def _wrong_ids(raw: Raw, model: TokenModel) -> str:
    """What is wrong with the ids of an answer, or with their log probabilities; empty where nothing
    is.
    """
    ids: object = raw.token_ids
    if type(ids) is not tuple:
        return f"token_ids of type {type(ids).__name__}, not a tuple"
    kinds = {*map(type, ids)} - {int}
    if kinds:
        return f"{min(kind.__name__ for kind in kinds)} among its token_ids, not int"
    size = model.capabilities.vocab_size
    if not ids or (min(ids) >= 0 and (size is None or max(ids) < size)):
        count = len(ids if raw.logprobs is None else raw.logprobs)
        return "" if count == len(ids) else f"{count} logprobs for {len(ids)} token_ids"
    wrong = next(
        token_id for token_id in ids if token_id < 0 or (size is not None and token_id >= size)
    )
    return f"the token id {wrong}" + ("" if size is None else f", and the model has {size} ids")


def stop(engine: TokenEngine) -> Pipe[Decoded, Decoded]:
    """The stage that ends each answer at its first stop string, or where a plugin halts it; see
    `stop_row`."""
    require_token_engine("stop", engine)

    def stopped(decoded: Decoded, model: TokenModel) -> Slot[Decoded]:
        return stop_row(decoded, model.tokenizer, model.plugins)

    return pipe_of(
        PluginStage(
            name="stop",
            row=on_model(engine, stopped),
            takes=Decoded,
            gives=Decoded,
            plugins=engine.plugins,
            rebind=lambda new: stop(new.engine(engine)),
        )
    )


def end_row(
    raw: Raw,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int] = (),
    plugins: Sequence[Plugin] = (),
) -> Slot[Decoded]:
    """What the stages `decode` and `stop` make of an answer, one after the other."""
    decoded = decode_row(raw, tokenizer, eos_token_ids)
    return decoded.bind(lambda row: stop_row(row, tokenizer, plugins))


def decode_row(raw: Raw, tokenizer: Tokenizer, eos_token_ids: Sequence[int] = ()) -> Slot[Decoded]:
    """The text of the ids, not yet cut at stop strings, and how the row ended as far as the ids
    say.

    Ids after the one that ends the row, or beyond `max_new_tokens`, are dropped with their
    logprobs. The finish is `ABORTED` where the engine gave the row up or the ids end for no known
    reason. It is `PLUGIN` where a plugin on the engine's side ended it.

    >>> from pipegen.records.option_records import GenerationOptions
    >>> from pipegen.records.options import resolve
    >>> from pipegen.records.results import Prompt
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> from pipegen.testing.toy import ToyTokenizer
    >>> encoded = Encoded(
    ...     request=TextGenerationRequest(prompt="A"),
    ...     options=resolve(GenerationOptions()),
    ...     prompt=Prompt(token_ids=(65,), compact_token_ids=(65,)),
    ... )
    >>> raw = Raw(encoded=encoded, token_ids=(66, 257, 67))
    >>> decoded = decode_row(raw, ToyTokenizer(), eos_token_ids=(257,)).unwrap()
    >>> decoded.text, decoded.raw_text, decoded.raw.token_ids, decoded.finish.value
    ('B', 'B<|im_end|>', (66, 257), 'eos')
    """
    options = raw.encoded.options
    if options.prompt_logprobs and raw.prompt_logprobs is None:
        message = "prompt_logprobs takes a pipe that asks for them: none of its stages does"
        hint = "pg.call(engine) asks for them; a stage of your own in its place sets"
        hint += " Raw.prompt_logprobs"
        return Failure(UnsupportedOption(message, option="prompt_logprobs", hint=hint))
    if options.max_new_tokens is None or options.min_new_tokens is None:
        raise ValueError(UNRESOLVED)
    plan, limit = plan_of(options, tokenizer, eos_token_ids), options.max_new_tokens
    count, hidden = len(raw.token_ids), plan.hidden
    index = plan.first_end(raw.token_ids, options.min_new_tokens, min(count, limit))
    by_id = index is not None
    raw = with_texts(_first_ids(raw, limit if index is None else index + 1), tokenizer)
    ids = shown = raw.token_ids
    last: str | None = ""
    if by_id:
        finish, stop = plan.ids[ids[-1]]
        shown, last = ids[:-1], added(tokenizer, ids[-1])
    else:
        complete = count == len(ids)  # how the engine ended the row, it says of its last token
        aborted, ended_by_plugin = (
            complete and raw.aborted,
            raw.ended_by_plugin if complete else None,
        )
        finish, stop = not_ended(
            len(ids) >= limit, aborted=aborted, ended_by_plugin=ended_by_plugin
        )
    raw_text, raw_ends = spell(tokenizer, ids)
    if hidden.isdisjoint(shown) and last is not None and len(last) < len(raw_text):
        # It is known what the ending token has put to the text.
        text, text_ends = raw_text.removesuffix(last), raw_ends[: len(shown)]
    else:
        text, text_ends = spell(tokenizer, shown, hidden)
    if by_id:
        text_ends += text_ends[-1:] or (0,)
    engine_texts = None
    if raw.ending is not None:  # `stop` sees whether it is about this answer
        engine_texts = (text, raw_text, text_ends, raw_ends)
    return Success(
        Decoded(
            raw=raw,
            text=text,
            raw_text=raw_text,
            text_ends=text_ends,
            raw_ends=raw_ends,
            finish=finish,
            stop=stop,
            stage_text=text,
            engine_texts=engine_texts,
        )
    )


def _first_ids(raw: Raw, count: int) -> Raw:
    """The answer up to so many ids, with their logprobs."""
    if count >= len(raw.token_ids):
        return raw
    logprobs = None if raw.logprobs is None else raw.logprobs[:count]
    shorter: Raw = unchecked_replace(
        raw, token_ids=raw.token_ids[:count], logprobs=logprobs, ending=None
    )
    return shorter


def with_texts(raw: Raw, tokenizer: Tokenizer) -> Raw:
    """The answer, its log probabilities with the texts of their tokens."""

    def spelled(entry: TokenLogprob) -> TokenLogprob:
        tops = tuple([own_text(tokenizer, token_id) for token_id, _ in entry.top])
        return unchecked_replace(entry, text=own_text(tokenizer, entry.token_id), top_texts=tops)

    if raw.logprobs is not None:
        raw = unchecked_replace(raw, logprobs=tuple([spelled(entry) for entry in raw.logprobs]))
    if raw.prompt_logprobs is not None:
        entries = [None if entry is None else spelled(entry) for entry in raw.prompt_logprobs]
        raw = unchecked_replace(raw, prompt_logprobs=tuple(entries))
    return raw


def stop_row(
    decoded: Decoded, tokenizer: Tokenizer, plugins: Sequence[Plugin] = ()
) -> Slot[Decoded]:
    """End the row at the first stop string to complete, or where a plugin halts it. If both come at
    the same token, the stop string wins.

    What came after the ending token is dropped; `raw_text` still ends with that token. Where a
    stage of one's own has changed the length of the text, only the text is cut. Ids and `raw_text`
    stay whole, since no token is known at which the new text ends. Fails with `PluginFailed`, and
    with `UnsupportedOption` where a stop that holds a special token, which is in `raw_text` alone,
    would cut such a text.
    """
    raw, options = decoded.raw, decoded.raw.encoded.options
    if not plugins and options.stop is not None and not options.stop.stop:
        return Success(decoded)
    plan = plan_of(options, tokenizer)
    if not (plan.text or plan.raw or plugins):
        return Success(decoded)
    fold, count = TextFold(plan.text, plan.raw, plugins), len(raw.token_ids)
    ending = _ending(decoded, fold.plugins.names)
    if ending is not None:
        if ending.length is None:
            return Success(decoded)
        finish, stop, length = ending.finish, ending.stop, ending.length
    else:
        each = bool(plan.raw or fold.plugins)
        until = _tokens_until_end(decoded, fold, each=each)
        count = min(count, until) if _ends_are_of_text(decoded) else count
        if fold.failure is not None:
            return Failure(fold.failure)
        if fold.finish is None:
            return Success(decoded)
        if fold.stop in plan.raw and not _ends_are_of_text(decoded):
            return Failure(_no_place(fold.stop))
        finish, stop, length = fold.finish, fold.stop, fold.length
    text, raw_text = decoded.text[:length], decoded.raw_text
    if count < len(raw.token_ids):
        raw = _first_ids(raw, count)
        raw_text, _ = spell(tokenizer, raw.token_ids)
    return Success(
        Decoded(
            raw=raw,
            text=text,
            raw_text=raw_text,
            text_ends=tuple([min(end, length) for end in decoded.text_ends[:count]]),
            raw_ends=decoded.raw_ends[:count],
            finish=finish,
            stop=stop,
            stage_text=text if decoded.text == decoded.stage_text else None,
        )
    )


def _ending(decoded: Decoded, plugins: tuple[str, ...]) -> Ending | None:
    """How an engine ended the row with these plugins, where that is about these very ids, options
    and texts, and says where the text ends."""
    ending = decoded.raw.ending if decoded.engine_texts == decoded.spelled else None
    if ending is None or ending.watched != plugins or not ending.is_about(decoded.raw):
        return None
    return None if ending.finish is Finish.STOP_STRING and ending.length is None else ending


def _ends_are_of_text(decoded: Decoded) -> bool:
    """Whether the ends of the tokens are places in the row's text. They are not where a stage of
    one's own has changed its length: no token is known then at which the text ends."""
    ends = decoded.text_ends
    return decoded.text == decoded.stage_text or (ends[-1] if ends else 0) == len(decoded.text)


def _no_place(stop: object) -> UnsupportedOption:
    return UnsupportedOption(
        f"the stop {stop!r} holds a special token, and was found in raw_text; a stage before `stop`"
        " has changed the length of the text, so it is not known where the new text ends",
        option="stop",
        hint="put the stage after `stop`, or take a stop without a special token",
    )


def _tokens_until_end(decoded: Decoded, fold: TextFold, *, each: bool) -> int:
    """Feed the text to a fold; how many tokens there are up to the row's end. With `each` it goes
    token by token: for stops in `raw_text` and plugins it makes a difference how characters are
    grouped."""
    first = decoded.raw.encoded.options.min_new_tokens or 0
    count, text_start, raw_start = len(decoded.text_ends), 0, 0
    # What was held back of the last character comes with the id that ends the row.
    places = range(count - 1 if decoded.finish in BY_ID else count)
    for index in places if each else places[max(first - 1, 0) : first]:
        text_end, raw_end = decoded.text_ends[index], decoded.raw_ends[index]
        text, raw = decoded.text[text_start:text_end], decoded.raw_text[raw_start:raw_end]
        fold.feed_text(text, raw, counts=index + 1 > first)
        if fold.finish is not None:
            return index + 1
        text_start, raw_start = text_end, raw_end
    raw = "" if decoded.finish is Finish.STOP_TOKEN else decoded.raw_text[raw_start:]
    fold.feed_text(decoded.text[text_start:], raw, counts=count > first)
    return count if each else bisect_left(decoded.text_ends, fold.seen) + 1
