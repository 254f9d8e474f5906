"""Does a recorded answer obey its request, as far as the file tells?

The rule is that of `pipegen.answer.answer_check`, which servers are held to as well. Here is
what a file tells of an answer: its ids are decoded and cut once more, so that text, finish and
counts have to be theirs. Without ids, the text has to be the raw text, cut and stripped.

>>> from pipegen.records.options import resolve
>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = ToyTokenizer()
>>> options = resolve(GenerationOptions(max_new_tokens=8))
>>> fields = {"finish": Finish.LENGTH, "token_ids": toy.encode("It rains"), "route": "hf"}
>>> result = GenerationResult(
...     text="It rains", raw_text="It rains", completion_tokens=8, options=options, **fields
... )
>>> disobedience(result, toy, ())
>>> disobedience(dataclasses.replace(result, raw_text="IT RAINS", text="IT RAINS"), toy, ())
('text', "the text 'IT RAINS' is not that of its ids, 'It rains'")
>>> disobedience(dataclasses.replace(result, completion_tokens=9), toy, ())
('length', '8 ids came, and the server counts 9')
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pipegen.answer.answer_check import WORDS, Finding, FindingKind, UntrimmedAnswer, check_answer
from pipegen.answer.barred import spellings
from pipegen.ending.detokenize import spell
from pipegen.ending.stop_scan import cut
from pipegen.ending.stop_state import TokenFold, plan_of
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.engine_list import TOKEN_ENGINES
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Finish, GenerationResult

SLACK = 8
"""A server may end an answer for its length so many tokens before its context is full."""
NAMES_ENDS = TOKEN_ENGINES | {"vllm_chat"}
"""Engines whose ids hold the end token."""
_GOOD = 3
"""So many answers at least show that what they have in common is no chance."""
FaultName = Literal["template", "length", "text", "sampling"]
"""Those of the names of faults that say that an answer does not obey its request."""
_NAMES: Mapping[FindingKind, FaultName] = {
    "text": "text",
    "form": "text",
    "prompt": "template",
    "tokens": "sampling",
}


def kind_of(kind: FindingKind) -> FaultName:
    """The name of a fault, by what does not obey the request.

    >>> kind_of("form"), kind_of("prompt"), kind_of("finish")
    ('text', 'template', 'length')
    """
    return _NAMES.get(kind, "length")


def disobedience(
    result: GenerationResult,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    *,
    room: int | None = None,
) -> tuple[FaultName, str] | None:
    """What in this result does not obey its request: the name of the fault, and what was seen; None
    where nothing is known to.

    room: how many tokens there was room for behind the prompt; see `room_in`.
    """
    findings = findings_in(result, tokenizer, eos_token_ids, room)
    if not findings:
        return None
    return kind_of(findings[0].kind), "; ".join(
        dict.fromkeys(finding.words for finding in findings)
    )


def has_images(result: GenerationResult) -> bool:
    """Whether the row's prompt has images."""
    return bool(result.image_grid_thw or result.image_digests)


def is_taken_apart(result: GenerationResult) -> bool:
    """Whether its reasoning or its tool calls were taken out of its text, and there are no ids."""
    thought = result.reasoning is not None or result.options.max_thinking_tokens is not None
    return not result.token_ids and (thought or bool(result.tool_calls))


def findings_in(
    result: GenerationResult, tokenizer: Tokenizer, eos_token_ids: Sequence[int], room: int | None
) -> list[Finding]:
    """All that in a served answer, or a recorded row, does not obey its request."""
    texts, options = _texts(result, tokenizer, eos_token_ids), result.options
    if result.clipped_from is not None:  # what was asked before the server lowered it
        options = dataclasses.replace(options, max_new_tokens=result.clipped_from)
    images, trimmed, stop = has_images(result), result.trimmed_by, options.stop
    # servers need not name the stop string
    unnamed = not texts.here and stop is not None and bool(stop.stop)
    answer = UntrimmedAnswer(
        # the form was judged before it was trimmed, unless a stage had changed it
        text=result.text if not trimmed else None if "a stage" in trimmed else texts.written,
        finish=WORDS[result.finish],
        token_ids=result.token_ids or None,
        token_count=result.completion_tokens or (0 if result.token_ids else None),
        ending_ids=_endings(result, tokenizer, eos_token_ids, here=texts.here),
        stops=unnamed or result.finish in (Finish.STOP_STRING, Finish.STOP_TOKEN),
        spelled=None if trimmed else _shown(result, texts.written),
        exact=not trimmed,
        room=room,
        prompt=None if images else result.prompt_token_ids or None,
        prompt_ran=result.prompt_token_ids or None,
        prompt_count=result.prompt_tokens or None,
        choices=len(result.completions),
        # what is put between two calls of the engine was not sampled
        barred=() if result.forced else spellings(options.bad_words or (), tokenizer),
        called=bool(result.tool_calls),
    )
    raw_answer = UntrimmedAnswer(
        text=result.raw_text, spelled=texts.raw, exact=texts.here, stops=answer.stops
    )
    return [
        *check_answer(answer, options),
        *check_answer(raw_answer, GenerationOptions()),
        *(_unasked(result) if texts.here else ()),
    ]


def _unasked(result: GenerationResult) -> Iterator[Finding]:
    """A stop that ended the answer, and that its request does not have."""
    stop = result.options.stop
    if stop is not None and result.finish in (Finish.STOP_STRING, Finish.STOP_TOKEN):
        asked = [str(one) for one in (*(stop.stop or ()), *(stop.stop_token_ids or ()))]
        if str(result.stop) not in asked:  # tables have ids of tokens as text
            words = f"its request asks for {', '.join(map(repr, asked)) or 'none'}"
            yield Finding("finish", f"the stop {result.stop!r} ended it, and {words}")


def ids_of(
    result: GenerationResult, tokenizer: Tokenizer, eos_token_ids: Sequence[int]
) -> tuple[int, ...]:
    """The ids of a result as a reference scores them: without ids, the reading of its text. An end
    token is put behind an answer that ended by one which the engine does not name.
    """
    ids = result.token_ids or tuple(tokenizer.encode(result.raw_text))
    named = result.token_ids and result.route in NAMES_ENDS
    ended = result.finish is Finish.EOS and not (ids and ids[-1] in eos_token_ids)
    return (*ids, *eos_token_ids[:1]) if ended and not named else ids


def is_one_text(ids: Sequence[int], choice: int, tokenizer: Tokenizer) -> bool:
    """Whether these ids are the text that goes on with that choice, in other tokens."""
    left, word = tokenizer.decode(ids), tokenizer.decode((choice,))
    return left.startswith(word) or word.startswith(left)


def room_in(results: Iterable[GenerationResult]) -> Callable[[GenerationResult], int | None]:
    """How many tokens there was room for behind a result's prompt, as all results together tell.

    Where `max_new_tokens` was not lowered, nothing says that there was less. Where it was, there
    was room for what other rows of the same route have; and if several rows are cut after the same
    number of tokens, whatever their prompts have, it is no room that ended them.
    """
    longest, cuts = defaultdict[str, int](int), defaultdict[str, list[GenerationResult]](list)
    for result in results:
        tokens = result.prompt_tokens + result.completion_tokens
        longest[result.route] = max(longest[result.route], tokens)
        if result.clipped_from is not None and result.finish is Finish.LENGTH:
            cuts[result.route].append(result)

    def room(result: GenerationResult) -> int | None:
        most, rows = result.options.max_new_tokens, cuts[result.route]
        if result.clipped_from is None or most is None or not result.prompt_tokens:
            return most
        prompts, counts = (
            {row.prompt_tokens for row in rows},
            {row.completion_tokens for row in rows},
        )
        if len(rows) >= _GOOD and len(counts) == 1 < len(prompts):
            return result.clipped_from
        return max(most, longest[result.route] - result.prompt_tokens - SLACK)

    return room


def _spelled_by_server(result: GenerationResult, text: str, tokenizer: Tokenizer) -> str | None:
    """What a server shows of a result's ids, beside the text that it gave; None where that is not
    known.

    What is no text is shown by each server in its own way, and what the server took apart is not
    put together again.
    """
    if not result.token_ids or result.reasoning is not None or result.tool_calls:
        return None
    special = frozenset(tokenizer.special_tokens.values())
    full_text, before = (
        tokenizer.decode([token_id for token_id in ids if token_id not in special])
        for ids in (result.token_ids, result.token_ids[:-1])
    )
    # the server leaves out the token that ended the answer
    if result.finish is not Finish.LENGTH and before == text:
        return before
    return None if "\ufffd" in full_text else full_text


class _ExpectedTexts(NamedTuple):
    """What the texts of a result have to be, as far as its file tells; None where it does not."""

    raw: str | None
    written: str | None
    """The text before it is stripped and trimmed."""
    here: bool
    """Whether pipegen made the texts of the ids, and no server did."""


def _texts(result: GenerationResult, tokenizer: Tokenizer, ends: Sequence[int]) -> _ExpectedTexts:
    ids = result.token_ids
    if not ids:
        return _ExpectedTexts(None, _cut_here(result, tokenizer), here=False)
    if not all(0 <= token_id < tokenizer.vocab_size for token_id in ids):
        return _ExpectedTexts(None, None, here=False)
    raw, _ = spell(tokenizer, ids)
    if result.route in TOKEN_ENGINES or result.raw_text == raw:
        # where the thought was asked for apart, the text is the answer alone
        apart = result.reasoning is not None
        return _ExpectedTexts(raw, None if apart else _decoded(result, tokenizer, ends), here=True)
    shown = _spelled_by_server(result, result.raw_text, tokenizer)
    return _ExpectedTexts(shown, _cut_here(result, tokenizer), here=False)


def _decoded(result: GenerationResult, tokenizer: Tokenizer, ends: Sequence[int]) -> str | None:
    """The text of the ids, cut at its stop."""
    options, ids = result.options, result.token_ids
    if options.decode is None or options.stop is None:
        return None
    least = options.min_new_tokens or 0
    uncut = dataclasses.replace(
        options,
        max_new_tokens=max(least, len(ids)),
        min_new_tokens=least,
        decode=dataclasses.replace(options.decode, strip_whitespace=False),
    )
    row = TokenFold(uncut, tokenizer, ends)
    text = row.take(ids) + row.close()
    return text if row.failure is None else None


def _cut_here(result: GenerationResult, tokenizer: Tokenizer) -> str | None:
    """The raw text of a row without ids, or of a server, cut at its stop."""
    options, raw = result.options, result.raw_text
    stops = (options.stop.stop or ()) if options.stop is not None else ()
    if options.decode is None or (stops and options.min_new_tokens):
        return None
    if (not raw and result.text) or result.finish is Finish.STOP_TOKEN:
        return None  # tables of some forms have no raw text; and the stop's own text is not known
    text = cut(raw, stops).text
    if (text.strip() if options.decode.strip_whitespace else text) == result.text:
        return text
    for token in tokenizer.special_tokens if options.decode.skip_special_tokens else ():
        raw = raw.replace(token, "")
    return cut(raw, stops).text


def _shown(result: GenerationResult, written: str | None) -> str | None:
    """The text of a result that no plugin has trimmed."""
    if written is None:
        return None
    decode, text = result.options.decode, result.text
    strips = decode is not None and decode.strip_whitespace
    shown = written.strip() if strips else written
    if result.finish is Finish.PLUGIN and shown.startswith(text):
        return text  # where the plugin ended it
    if result.trimmed_by is None and text.strip() in shown:
        return text  # a plugin may have trimmed it
    return shown


def _endings(
    result: GenerationResult, tokenizer: Tokenizer, ends: Sequence[int], *, here: bool
) -> frozenset[int] | None:
    """The ids that end the answer; None where they are not known, or are not among its ids."""
    stop = result.options.stop
    if here and stop is not None:
        return frozenset(dict(plan_of(result.options, tokenizer, ends).ids))
    if result.route == "vllm_chat":
        return frozenset({*ends, *((stop.stop_token_ids or ()) if stop is not None else ())})
    return None
