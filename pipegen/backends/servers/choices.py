"""The one choice of an answer, or of an event of a stream: where the servers have each field of it.

>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> request = ServerRequest(options=resolve(GenerationOptions()))
>>> answer = {"choices": [{"token_ids": [5], "finish_reason": "stop", "matched_stop": 7}]}
>>> read = pieces(answer, lambda choice, answer: read_choice(choice, answer, request))
>>> (completion,) = read.bind(whole).unwrap()
>>> completion.token_ids, completion.finish, completion.stop
((5,), 'stop', 7)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from returns.result import Success

from pipegen.backends.servers.logprobs import (
    entries_in,
    entries_of_masks,
    entries_of_meta,
    logprobs_of,
    scores_of_meta,
    scores_of_tables,
)
from pipegen.backends.servers.reading import found, ids_of, malformed, usage_of
from pipegen.backends.servers.wire import Completion, ServerRequest
from pipegen.core.slots import Slot, all_of
from pipegen.records.answer_parts import whole_number
from pipegen.records.finish_words import word_of

Read: TypeAlias = Callable[
    [Mapping[str, object], Mapping[str, object]], Slot[tuple[Completion, ...]]
]
"""Reads a choice of an answer, as the only completion."""


def pieces(answer: object, read: Read, *, event: bool = False) -> Slot[tuple[Completion, ...]]:
    """What the choice of an answer, or of one event of a stream, brings; none where there is no
    choice. An `event` may have no choices at all: it is a sign of life.

    >>> pieces({"choices": [7]}, lambda choice, answer: Success((Completion(),))).failure().message
    'choices[0] is int, not an object'
    """
    holder = answer if isinstance(answer, dict) else {}
    choices = holder.get("choices")
    if choices == [] or (choices is None and event and holder is answer):
        return Success(())
    if not isinstance(choices, list):
        return malformed(
            f"choices is {type(choices).__name__}, not a list, in {json.dumps(answer)[:400]}"
        )
    if len(choices) > 1:
        return malformed(f"the answer holds {len(choices)} choices, and 1 was asked")
    if not isinstance(choices[0], dict):
        return malformed(f"choices[0] is {type(choices[0]).__name__}, not an object")
    return read(choices[0], holder)


def whole(completions: tuple[Completion, ...]) -> Slot[tuple[Completion, ...]]:
    """The completion of a whole answer: there is one, and the server says how it ended."""
    if not completions:
        return malformed("the answer holds choices [], and 1 were asked")
    if completions[0].finish is None:
        return malformed("a choice of the answer has no finish_reason")
    return Success(completions)


def read_choice(
    choice: Mapping[str, object],
    answer: Mapping[str, object],
    request: ServerRequest,
    tokens_before: int = 0,
    **message: Any,
) -> Slot[tuple[Completion, ...]]:
    """What a choice holds: ids, log probabilities, how it ended, and what was counted. Each is read
    where vLLM or SGLang has it: in the choice, or beside the choices.

    tokens_before: how many tokens came before. message: fields that are read already.
    """
    finish = choice.get("finish_reason")
    index = choice.get("index")
    if not isinstance(finish, (str, type(None))):
        return malformed(f"choices[0].finish_reason is {type(finish).__name__}, not a string")
    if index is not None and whole_number(index) != 0:
        return malformed(f"choices[0].index is {index!r:.40}, and 1 was asked")
    meta = choice.get("meta_info")
    stop = found(("stop_reason", "matched_stop"), choice)
    ids = found(("token_ids", "response_token_ids"), choice)
    prompt = found(("prompt_token_ids",), choice, answer)
    fields: dict[str, Slot[Any]] = {}
    """Those that may be malformed, as far as they are there."""
    if ids is not None:
        fields["token_ids"] = ids_of(ids, "choices[0].token_ids")
    if prompt is not None:
        fields["prompt_token_ids"] = ids_of(prompt, "prompt_token_ids")
    if request.scored:
        fields["scores"] = (
            scores_of_meta(meta, request)
            if isinstance(meta, dict)
            else scores_of_tables(found(("prompt_logprobs",), choice, answer), request)
        )
    if request.options.logprobs:
        fields["logprobs"] = fields.get("token_ids", Success(())).bind(
            lambda new: logprobs_of(
                entries_of_masks(meta, new, tokens_before)
                if isinstance(meta, dict) and "output_token_sampling_logprobs" in meta
                else entries_of_meta(meta, tokens_before, len(new))
                if isinstance(meta, dict)
                else entries_in(choice.get("logprobs")),
                new,
                wanted=request.options.top_logprobs or 0,
                tokens_before=tokens_before,
                filtered=request.options.logprobs == "processed",
            )
        )
    return all_of(fields.values()).map(
        lambda values: (
            Completion(
                finish=word_of(finish),
                stop=stop if isinstance(stop, (int, str)) else None,
                usage=usage_of(answer.get("usage")),
                **message,
                **dict(zip(fields, values, strict=True)),
            ),
        )
    )
