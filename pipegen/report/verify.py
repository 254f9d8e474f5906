"""Ask a server greedily, by chat and by token ids, and have a reference score what it answers; `pipegen.report.verdict` has the rules of judging.

Nothing but the temperature and the length is set in a request by chat, so that the server's own defaults show. A request by ids sets everything.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from returns.result import Failure, Success

from pipegen import backends
from pipegen.core.errors import GenerationError, InvalidRequest, MalformedResponse, PromptTooLong, UnsupportedMultimodal, UnsupportedOption
from pipegen.core.functional import partition_all
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.batch import prepare_batch, run
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import continued_by, scoring
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.options import GenerationOptions
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import Finish, GenerationResult
from pipegen.records.scores import Scored
from pipegen.report.verdict import Answer, Precision, Verdict, judge, spread

__all__ = ["Routes", "answers_of", "prompts", "verify"]

WINDOW = 64
"""Requests that are asked, and then scored, together."""
MAX_NEW_TOKENS = 32
LEFT_TO_SERVER = (
    *("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
    "skip_special_tokens",
)
"""The fields of a request by chat that are not sent."""
Dialect = Literal["vllm", "sglang", "plain"]
Tell = Callable[[int, str], object]
"""Called with how many requests are done, and what is done now."""


class Routes(NamedTuple):
    """The ways to a server, and what its answers are scored by."""

    chat: Route
    by_ids: Route | None
    """None where the server is asked by chat alone."""
    reference: Route
    """It has the weights that the server should have."""


class Failed(NamedTuple):
    id: str
    way: Literal["chat", "ids"]
    error: GenerationError


def verify(
    url: str,
    model: str,
    requests: Iterable[Request] | None = None,
    *,
    dialect: Dialect | None = None,
    chat_only: bool = False,
    reference: Route | None = None,
    precision: Precision | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    image_policy: ImagePolicy | None = None,
    dtype: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    tell: Tell = lambda done, words: None,
    **settings: Any,
) -> Verdict:
    """Whether the server at this address serves this model right.

    requests: what to ask, without options but `max_new_tokens` and those of the prompt; a small set comes with pipegen.
    dialect: `vllm`, `sglang` or `plain`; found out where it is not set. chat_only: do not ask by token ids.
    reference: a route whose engine scores, on the weights that the server should have; by default `hf` on the model, with this `dtype` and `device`.
    precision: what the server should compute in; by default the checkpoint's own dtype.
    settings: those of servers, such as `api_key`, `timeout`, `served_model_name`.

    Raises `CallFailed` where the server cannot be reached or the model cannot be read, `InvalidField` for bad settings.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.backends.servers.dialects import find_dialect

    checkpoint: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    spoken = find_dialect(url, **settings) if dialect is None else dialect
    with contextlib.ExitStack() as stack:
        if reference is None:
            reference = stack.enter_context(backends.hf(model, dtype=dtype, device=device, **checkpoint))
        chat = stack.enter_context(_chat(url, model, spoken, settings))
        serve: Any = backends.vllm_server if spoken == "vllm" else backends.sglang_server
        by_ids = None if chat_only or spoken == "plain" else stack.enter_context(serve(model, base_url=url, **settings, **checkpoint))
        routes = Routes(chat, by_ids, reference)
        wanted: Any = precision or Checkpoint(ModelLoadConfig(model=model, **checkpoint)).dtype
        decode = reference.engine.tokenizer.decode
        found: list[Answer | Failed] = []
        count = 0
        for window in partition_all(WINDOW, prompts() if requests is None else requests):
            found += answers_of(routes, window, max_new_tokens, image_policy, lambda words: tell(count, words))  # noqa: B023 - called at once
            count += len(window)
            tell(count, "")
    answers, failed = [one for one in found if isinstance(one, Answer)], [one for one in found if isinstance(one, Failed)]
    expected = [answer for answer in answers if not answer.other_prompt]
    margins = [parting.margin for answer in expected if (parting := answer.parting) is not None]
    wrong = [failure for failure in failed if not isinstance(failure.error, PromptTooLong)]
    return Verdict(
        url=url,
        model=model,
        dialect=spoken,
        precision=wanted,
        prompts=count,
        answers=len(answers),
        agreeing=len(expected) - len(margins),
        ways=tuple(way for way in ("chat", "ids") if any(answer.way == way for answer in answers)),
        spread=spread(answer for answer in expected if answer.way == "ids") or spread(expected),
        margin=max(margins, default=0.0),
        faults=judge(answers, wanted, decode),
        failed=tuple(wrong),
        too_long=len({failure.id for failure in failed}) - len({failure.id for failure in wrong}),
    )


def _chat(url: str, model: str, dialect: str, settings: Mapping[str, Any]) -> Route:
    """The route by chat, which leaves to the server whatever it has a default for."""
    extra: dict[str, Any] = dict.fromkeys(LEFT_TO_SERVER)
    if dialect == "sglang":
        extra |= {"return_token_ids": True, "return_prompt_token_ids": True}
    make: Any = backends.openai_server
    route: Route = make(model, base_url=url, dialect=dialect, extra_body=extra, **settings)
    return route


def answers_of(
    routes: Routes, requests: Sequence[Request], max_new_tokens: int, image_policy: ImagePolicy | None = None, tell: Callable[[str], object] = print
) -> list[Answer | Failed]:
    """What the server answers to these requests, each way, scored by the reference; one that fails either way comes with its error."""
    plain = [_plain(slot, number) for number, slot in enumerate(prepare_batch(requests, None, image_policy, None), 1)]
    out: list[Answer | Failed] = []
    for way, route in (("chat", routes.chat), ("ids", routes.by_ids)):
        if route is None:
            continue
        tell(f"asking by {way}")
        chosen: Any = way
        logprobs = "logprobs" in route.engine.capabilities.honours
        options = GenerationOptions(temperature=0.0, max_new_tokens=max_new_tokens, logprobs=logprobs or None)
        asked = [slot for slot in plain if (slot.unwrap().messages is not None or way == "ids" if is_ok(slot) else way == "chat")]
        made = run(route, asked, options, image_policy=image_policy)
        rows = [_row(slot, routes.reference) for slot in made]
        tell(f"scoring the answers by {way}")
        continued = [slot.bind(lambda row, own=own: continued_by(own, row.ids)) for slot, own in zip(rows, asked, strict=True)]  # type: ignore[misc]
        scored = run(scoring(routes.reference), continued, image_policy=image_policy)
        for own, row, score in zip(asked, rows, scored, strict=True):
            name = (own.unwrap().id if is_ok(own) else None) or "?"
            if is_ok(score):
                out.append(_judged(_answer(name, chosen, row.unwrap(), score.unwrap(), routes.reference)))
            elif way == "chat" or not isinstance(score.failure(), (UnsupportedMultimodal, UnsupportedOption)):
                out.append(Failed(name, chosen, score.failure()))
    return out


_TAKEN = ("max_new_tokens", "chat", "preprocess")


def _plain(slot: Slot[GenerationRequest], number: int) -> Slot[GenerationRequest]:
    """The request with an id, and without options that would change what is greedy."""
    if not is_ok(slot):
        return slot
    request = slot.unwrap()
    given = request.options
    set_too = [field.name for field in dataclasses.fields(given) if getattr(given, field.name) is not None] if given is not None else []
    more = [name for name in set_too if name not in _TAKEN]
    if more:
        words = f"a server is asked greedily, without the option {more[0]}"
        return Failure(InvalidRequest(words, hint="leave it out: of the options those of the prompt are taken, and max_new_tokens"))
    return Success(request if request.id is not None else dataclasses.replace(request, id=str(number)))


class _Row(NamedTuple):
    """A server's answer, and the ids that are scored."""

    result: GenerationResult
    ids: tuple[int, ...]
    by_text: bool
    """Whether the server gave its text alone."""
    empty: bool = False
    """Whether the server answered nothing: an end token is scored in its place, for the prompt as the reference renders it."""


def _row(slot: Slot[GenerationResult], reference: Route) -> Slot[_Row]:
    if not is_ok(slot):
        return Failure(slot.failure())
    result, engine = slot.unwrap(), reference.engine
    ids = result.token_ids or tuple(engine.tokenizer.encode(result.raw_text))
    ends: tuple[int, ...] = engine.eos_token_ids
    if result.finish is Finish.EOS and ends and not (ids and ids[-1] in ends):
        ids = (*ids, ends[0])
    if not ids and not ends:
        return Failure(MalformedResponse(_NOTHING))
    return Success(_Row(result, ids or ends[:1], not result.token_ids, empty=not ids))


_NOTHING = "the server answers nothing, and names no end"


def _judged(answer: Answer) -> Answer | Failed:
    """The answer; of an empty one only the prompt can be wrong."""
    return answer if answer.token_ids or answer.other_prompt else Failed(answer.id, answer.way, MalformedResponse(_NOTHING))


def _answer(name: str, way: Literal["chat", "ids"], row: _Row, scored: Scored, reference: Route) -> Answer:
    result = row.result
    by_ids = way == "ids"  # which are those that were sent
    made = 0 if row.empty else len(row.ids)
    answer = Answer(
        id=name,
        way=way,
        expected=scored.prompt_token_ids,
        prompt_token_ids=() if by_ids else result.prompt_token_ids,
        prompt_tokens=0 if by_ids else result.prompt_tokens,
        token_ids=row.ids[:made],
        logprobs=scored.token_logprobs[:made],
        likeliest=scored.likeliest[:made],
        server_logprobs=tuple([one.logprob for one in result.logprobs or ()]),
        ends=frozenset(reference.engine.eos_token_ids),
    )
    return _read_as_written(answer, reference) if row.by_text else answer


def _read_as_written(answer: Answer, reference: Route) -> Answer:
    """A text may have been written in other tokens than it is read in. The answer ends before a place where the reference goes on with the same text."""
    parting, tokenizer = answer.parting, reference.engine.tokenizer
    if parting is None or parting.choice in answer.ends:
        return answer
    left, choice = tokenizer.decode(answer.token_ids[parting.place :]), tokenizer.decode((parting.choice,))
    if not (left.startswith(choice) or choice.startswith(left)):
        return answer
    kept = {name: getattr(answer, name)[: parting.place] for name in ("token_ids", "logprobs", "likeliest", "server_logprobs")}
    return dataclasses.replace(answer, **kept)


_QUESTIONS = (
    "List the months of the year.",
    "What is 2 + 3? Answer with the number alone.",
    "Count from 1 to 12.",
    "Name three colours, one on each line.",
    "Write a short story about a cat and a lighthouse.",
    "Explain in two sentences why the sky is blue.",
    'Give a JSON object with the keys "name" and "age".',
    "Write a Python function that reverses a string.",
    "Translate to French: The train leaves at eight.",
    "Перечисли дни недели.",
    "日本の首都はどこですか。",
    "اكتب جملة قصيرة عن البحر.",
    "Repeat after me: one one one two two two three three three",
    "What comes after A, B, C, D?",
    "Summarise: the meeting was moved from Monday to Thursday, since half of the team is ill.",
    "  Two spaces before this,\n\ntwo line ends within, and a tab\tat the end.\t",
    "Is a tomato a fruit? Give reasons for both answers 🍅",
    "Sort these words: pear, apple, fig, melon, cherry",
)
_SYSTEMS = ("You are a helpful assistant.", "Answer in one short sentence.")
_LONG = (100, 400, 1600)
"""Sentences of the long prompts: about ten tokens each."""


def prompts() -> Iterator[dict[str, Any]]:
    """The requests that are asked where none are given: turns of every kind, many scripts, and long prompts. Each has an id that says what it is.

    >>> len(list(prompts())), next(prompts())["id"]
    (44, 'question-1')
    """
    for number, question in enumerate(_QUESTIONS, 1):
        yield {"id": f"question-{number}", "messages": [{"role": "user", "content": question}]}
    for number, question in enumerate(_QUESTIONS, 1):
        system = {"role": "system", "content": _SYSTEMS[number % len(_SYSTEMS)]}
        yield {"id": f"system-{number}", "messages": [system, {"role": "user", "content": question}]}
    for number, question in enumerate(_QUESTIONS[:5], 1):
        turns = [("user", "Hello!"), ("assistant", "Hello! How can I help you?"), ("user", question)]
        yield {"id": f"turns-{number}", "messages": [{"role": role, "content": text} for role, text in turns]}
    for sentences in _LONG:
        text = " ".join(f"Item number {number} costs {number * 7 % 101} coins." for number in range(sentences))
        yield {"id": f"long-{sentences}", "messages": [{"role": "user", "content": f"{text}\nWhat does item number 3 cost?"}]}
