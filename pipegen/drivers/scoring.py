"""Scores through a route: how likely its model finds given continuations, given choices and whole
texts.

The pipe is that of a route, but for its call and what comes after it. `scoring(route)` joins each
context with its continuation, has the engine score them, and sums up. So requests fail in their
slots as they do in `run`, and every driver takes it: `pg.imap(pg.scoring(route), requests)`.

>>> from pipegen.drivers.route import route
>>> from pipegen.testing.fake import FakeEngine
>>> made, refused = score(
...     route(FakeEngine("")),
...     [{"prompt": "Hi", "continuation": "!"}, {"prompt": "", "continuation": "!"}],
... )
>>> made.unwrap().tokens, made.unwrap().token_ids, refused.failure().message
(1, (33,), 'the context is empty, and the first token of a sequence has no log probability')
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from returns.result import Failure, Result, Success

from pipegen.core.errors import ContractError, InvalidRequest, MalformedResponse
from pipegen.core.foreign_calls import guard
from pipegen.core.pipe import Pipe, call, identity, row_stage
from pipegen.core.slots import Batch, Slot, all_of, live
from pipegen.drivers.arguments import Options, whole_number, with_option_words
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.ending.length import check_length
from pipegen.engines.model import TokenModel, on_model
from pipegen.engines.protocol import TokenEngine, takes_tokens
from pipegen.records.frozen import plain_number, printed
from pipegen.records.parse_request import Request, request_from
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy, ScoringRequest
from pipegen.records.scores import Chosen, Perplexity, Scored, TokenScores
from pipegen.stages.joining import EmptyContext, first_token, join, resolve_scoring, scores_none


def scoring(
    route: Route, *, empty_context: EmptyContext = "refuse"
) -> Pipe[GenerationRequest, Scored]:
    """The pipe that scores requests with a `continuation` on the engine of a route:
    `ScoringRequest`, or plain data of that shape.

    `empty_context` says what the first token of an empty context is scored after. "refuse" fails
    the request, "bos" is the model's BOS (its end token where it has none), and a number is that
    token's id. Stages that were inserted into the route before `tokenize` stay. Raises `TypeError`
    for what is no route through one engine (`pg.fallback` joins two such pipes). So it does for a
    stage of one's own after `tokenize`, which is for generated text.
    """
    if not isinstance(route, Route):
        name = route.name if isinstance(route, Pipe) else type(route).__name__
        raise TypeError(
            f"a route through one engine scores, not {name}: fallback(scoring(first),"
            " scoring(second), when=...) joins two"
        )
    empty_context = plain_number(empty_context)
    if empty_context not in ("refuse", "bos") and (
        type(empty_context) is not int or empty_context < 0
    ):
        raise TypeError(
            f'empty_context takes "refuse", "bos" or a token id, not {empty_context!r:.80}'
        )
    engine = route.engine
    pipe: Pipe[GenerationRequest, Any] = resolve_scoring(engine)
    if takes_tokens(engine):
        backend: Any = engine
        pipe = _before(route) >> join(engine, empty_context) >> call(backend)
    return pipe >> _sum_up(engine, route.name)


_DROPPED = frozenset({"fit", "call", "decode", "stop", "trim"})


def _before(route: Route) -> Pipe[GenerationRequest, Any]:
    """The stages of a route up to its prompts as text."""
    names = [part.name for part in route.parts]
    if "tokenize" not in names or "resolve" not in names:
        raise TypeError(
            f"the route {route.name!r} has no stage 'resolve' or 'tokenize' in whose place its"
            " requests could be scored"
        )
    place = names.index("tokenize")
    later_stage = next((name for name in names[place + 1 :] if name not in _DROPPED), None)
    if later_stage is not None:
        raise TypeError(
            f"the route {route.name!r} has the stage {later_stage!r} after 'tokenize', which a"
            " score does not go through: take it out with remove"
        )
    start: Pipe[GenerationRequest, Any] = identity()
    prompt_pipe = start.with_parts(
        resolve_scoring(route.engine) if part.name == "resolve" else part
        for part in route.parts[:place]
    )
    return dataclasses.replace(prompt_pipe, owns=route.owns)


def _sum_up(engine: Any, name: str) -> Pipe[TokenScores, Scored]:
    """The stage that makes the result."""

    def summed(scores: TokenScores, model: TokenModel) -> Slot[Scored]:
        continued = scores.continued
        prompt, ids = continued.encoded.prompt, continued.continuation
        if not len(scores.logprobs) == len(scores.likeliest) == len(ids):
            raise ContractError(
                f"engine {engine.name} gave {len(scores.logprobs)} log probabilities of {len(ids)}"
                " tokens"
            )
        wrong = next(
            (place for place, value in enumerate(scores.logprobs) if math.isnan(value)), None
        )
        if wrong is not None:
            return Failure(
                MalformedResponse(
                    f"the log probability of token {wrong} of the continuation (id {ids[wrong]}) is"
                    " not a number"
                )
            )
        text = model.tokenizer.decode(ids) if continued.text is None else continued.text
        return Success(
            Scored(
                id=continued.encoded.request.id,
                text=continued.text,
                logprob=math.fsum(scores.logprobs),
                token_logprobs=scores.logprobs,
                token_ids=ids,
                joined=continued.joined,
                greedy=all(scores.greedy),
                likeliest=scores.likeliest,
                tokens=len(ids),
                bytes=len(text.encode("utf-8", "surrogatepass")),
                prompt_token_ids=prompt.token_ids,
                prompt_tokens=len(prompt.token_ids),
                route=name,
                thinking=prompt.thinking,
                image_grid_thw=tuple([image.grid for image in prompt.images]),
            )
        )

    return row_stage(
        "sum_up",
        on_model(engine, summed),
        gives=Scored,
        routes=(name,),
        rebind=lambda new: _sum_up(new.engine(engine), new.route(name)),
    )


@with_option_words
def score(
    route: Route,
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    empty_context: EmptyContext = "refuse",
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[Scored]:
    """How likely the model finds given continuations: N requests in, N slots out, in order, with
    one engine call.

    A request is as for `pg.run`, with a `continuation` (text or ids). What contexts share is read
    once. Of the options those of the prompt count: the chat template's and the images'. Errors and
    arguments are those of `run` and `scoring`; `pipegen.stages.joining` has the rule of how both
    texts are encoded.

    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> score(route(FakeEngine("")), [{"prompt": "a", "continuation": "bc"}])[0].unwrap().token_ids
    (98, 99)
    """
    return run(
        scoring(route, empty_context=empty_context),
        requests,
        options,
        image_policy=image_policy,
        policy=policy,
    )


@with_option_words
def choose(
    route: Route,
    request: Request,
    choices: Iterable[str | Sequence[int]],
    options: Options | None = None,
    *,
    empty_context: EmptyContext = "refuse",
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Slot[Chosen]:
    """The scores of several continuations of one request, and the best: by the sum, by token and by
    byte. One that fails fails the whole.

    A choice is taken as it is: after a plain prompt, a word usually begins with a space.

    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> chosen = choose(route(FakeEngine("")), {"prompt": "Is it?"}, [" no", " yes"]).unwrap()
    >>> chosen.best, len(chosen.probabilities)
    (0, 2)
    """
    if isinstance(choices, (str, bytes)):
        raise TypeError("choices are a list of texts or of ids, not one text")
    pipe = scoring(route, empty_context=empty_context)
    slots = run(
        pipe,
        [continued_by(request, choice) for choice in choices],
        options,
        image_policy=image_policy,
        policy=policy,
    )
    if not slots:
        return Failure(InvalidRequest("there are no choices: give at least one"))
    return all_of(slots).map(lambda scored: Chosen(choices=scored))


def continued_by(request: Request, choice: object) -> Slot[GenerationRequest]:
    """The request with that continuation."""
    if isinstance(request, Result):
        return request.bind(lambda record: continued_by(record, choice))
    if isinstance(request, GenerationRequest):
        fields = dataclasses.fields(GenerationRequest)
        request = {field.name: getattr(request, field.name) for field in fields}
    return request_from(
        {**request, "continuation": choice} if isinstance(request, Mapping) else request
    )


PERPLEXITY_WINDOW = 2048
"""The tokens of a window where neither the caller nor the engine names a limit."""


def perplexity(
    route: Route,
    texts: Iterable[str],
    *,
    window: int | None = None,
    empty_context: EmptyContext = "bos",
) -> Batch[Perplexity]:
    """The log probability of whole texts; each token is predicted once, after as much of the text
    before it as the model takes.

    A text that is longer than `window` (the engine's own limit, unless it is lower) is predicted in
    rolling windows. Each goes on where the last one ended. The last one is as long as the others
    and predicts what is left. The first token comes after the token that `empty_context`
    names.

    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> [
    ...     made.unwrap().windows
    ...     for made in perplexity(route(FakeEngine("")), ["abc", "abcdef"], window=4)
    ... ]
    [1, 2]
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError("texts are a list or another iterable, not one text: put it into a list")
    window = whole_number("window", window, or_none=True)
    empty_context = plain_number(empty_context)
    pipe = scoring(route, empty_context=empty_context)
    engine, text_list = route.engine, [*texts]
    error = scores_none(engine)
    if error is not None:
        return tuple([Failure(error) for _ in text_list])
    first = first_token(engine) if empty_context == "bos" else empty_context
    if not isinstance(first, int):
        return tuple(
            [
                Failure(
                    InvalidRequest(
                        "the model has neither a BOS nor an end token",
                        hint="set empty_context to a token id",
                    )
                )
                for _ in text_list
            ]
        )
    limit = PERPLEXITY_WINDOW + 1 if engine.longest_scored is None else engine.longest_scored
    size = limit - 1 if window is None else min(window, limit - 1)
    window_slots = [_windows(text, engine, first, size) for text in text_list]
    rows = [
        ScoringRequest(prompt_token_ids=context, continuation=continuation)
        for windows in live(window_slots)
        for context, continuation in windows
    ]
    answers = iter(run(pipe, rows))

    def perplexity_of(text: str, windows: Slot[list[_Window]]) -> Slot[Perplexity]:
        return windows.bind(
            lambda text_windows: _whole(text, [next(answers) for _ in text_windows])
        )

    return tuple(
        [perplexity_of(text, slot) for text, slot in zip(text_list, window_slots, strict=True)]
    )


_Window = tuple[tuple[int, ...], tuple[int, ...]]


def _windows(text: object, engine: TokenEngine, first: int, size: int) -> Slot[list[_Window]]:
    """The text's ids in windows: what each is conditioned on, and what it predicts."""
    if not isinstance(text, str) or not text:
        return Failure(InvalidRequest(f"a text that is not empty is wanted, not {printed(text)}"))
    too_long = check_length(text, engine.tokenizer, None)
    if too_long is not None:
        return Failure(too_long)
    return guard(
        lambda: engine.tokenizer.encode(text),
        lambda raised: InvalidRequest(f"the text cannot be encoded: {raised.words}"),
    ).map(lambda ids: [*rolling(ids, first, size)])


def rolling(ids: Sequence[int], first: int, size: int) -> Iterator[_Window]:
    """Each id predicted once: pairs of the ids before and those that are predicted, at most `size`
    + 1 together; the first comes after `first`.

    >>> [*rolling((1, 2, 3, 4, 5, 6), 0, 4)]
    [((0,), (1, 2, 3, 4)), ((2, 3, 4), (5, 6))]
    """
    start = 0
    while start < len(ids):
        end = min(start + size, len(ids))
        yield tuple(ids[end - size - 1 : start]) if start else (first,), tuple(ids[start:end])
        start = end


def _whole(text: str, windows: Sequence[Slot[Scored]]) -> Slot[Perplexity]:
    return all_of(windows).map(
        lambda scored: Perplexity(
            logprob=math.fsum(window.logprob for window in scored),
            windows=len(scored),
            tokens=sum(window.tokens for window in scored),
            words=len(text.split()),
            bytes=len(text.encode("utf-8", "surrogatepass")),
        )
    )
