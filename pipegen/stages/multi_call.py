"""An answer that takes more than one call of its row: a thought and then the answer, or the parts
of a tool call. What the calls generate is put together by its ids.

The first call gets the prompt, with the opening of the thought where the prompt does not hold it.
It ends at the thought's end token. The second gets the ids so far, and what the template writes
between thought and answer.

- **Written, and not sampled**: the opening; where the thought is cut, what closes it; and what
  the template writes between the thought's end token and the answer.
- **A thought ends** with its end token, or is cut at its limit. An end token of the model ends the
  row; where a form is asked, it is left out, and the thought is closed.
- **A text or a call**: where the template begins the two otherwise, the first tokens are generated
  in a call of their own. If they are what it writes before a text, the answer is what follows.
- **Stops**, plugins and the form are about the answer alone. `max_new_tokens` and `min_new_tokens`
  count all tokens.
- **Seeds**: the thought has the row's own, the answer one that is derived from it.
- **A tool call** that is asked for is written around its name, which is generated where there is a
  choice, and around its arguments. They are JSON of the tool's schema, or tagged values, of which
  those that are JSON are generated on their own. The end token behind the call is written too: it
  was sampled where the arguments end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.answer.answer_check import WORDS, UntrimmedAnswer, disobeyed
from pipegen.core.backend import AnyBackend
from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.ending.detokenize import ids_behind, spell
from pipegen.engines.model import TokenModel
from pipegen.engines.protocol import scores_tokens
from pipegen.records.call_form import CallForm, ValueForm
from pipegen.records.engine_list import shown
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_groups import StopOptions, StructuredOptions
from pipegen.records.results import (
    Decoded,
    Encoded,
    Finish,
    Prompt,
    Raw,
    Thought,
    ThoughtForm,
    TokenLogprob,
)
from pipegen.records.scores import ScoreInput
from pipegen.stages.calling import to_score
from pipegen.stages.ending import BY_ID, decode_row, with_texts
from pipegen.stages.gather_samples import derive_seed

T = TypeVar("T")
Asks: TypeAlias = Generator["EngineRequest | Slot[Any]", Any, T]
"""What a row wants, one thing after another. It is sent the value of each answer, and of each slot
that it yields. The first failure among them is the row's, and ends it.
"""


def replayed(asks: Asks[Raw], answers: Iterable[Slot[object]]) -> EngineRequest | Slot[Raw]:
    """What the row wants after these answers, or its slot."""
    left = iter(answers)
    try:
        step = next(asks)
        while (slot := next(left, None) if isinstance(step, EngineRequest) else step) is not None:
            if not is_ok(slot):
                return Failure(slot.failure())
            step = asks.send(slot.unwrap())
    except StopIteration as ended:
        return Success(ended.value)
    return step


class _AnswerSoFar:
    """The ids of a row's answer so far, generated or not, within its `max_new_tokens`; and what
    generates them.
    """

    def __init__(
        self, encoded: Encoded, sent: Encoded, engine: AnyBackend, model: TokenModel
    ) -> None:
        self.asked, self.sent, self.engine, self.model = encoded, sent, engine, model
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob | None] = []
        self.forced: list[int] = []

    @property
    def room(self) -> int:
        return (self.asked.options.max_new_tokens or 0) - len(self.ids)

    def write(self, ids: Sequence[int]) -> None:
        """Add ids that are not generated, as far as there is room."""
        added = ids[: self.room]
        self.forced += range(len(self.ids), len(self.ids) + len(added))
        self.ids += added
        self.logprobs += [self._certain(token_id) for token_id in added]

    def _certain(self, token_id: int) -> TokenLogprob | None:
        """The log probability of an id that is not generated; None where it is to be scored."""
        options = self.asked.options
        if options.logprobs != "processed":
            return None
        top = ((token_id, 0.0),) if options.top_logprobs else ()
        return TokenLogprob(token_id=token_id, logprob=0.0, top=top)

    def take(self, raw: Raw, count: int) -> None:
        """Add the first ids of an answer."""
        self.ids += raw.token_ids[:count]
        self.logprobs += raw.logprobs[:count] if raw.logprobs is not None else [None] * count

    def logprobs_of(self, start: int, end: int) -> tuple[TokenLogprob, ...] | None:
        """One for each of these ids; None where one is unknown."""
        logprobs = tuple(entry for entry in self.logprobs[start:end] if entry is not None)
        return logprobs if self.asked.options.logprobs and len(logprobs) == end - start else None

    def row(self, base: Encoded, call: int, **options: object) -> Encoded:
        """The row as it goes on from these ids in a further call, with other options than those of
        `base`.
        """
        ids, base_options = tuple(self.ids), base.options
        prompt: Prompt = unchecked_replace(
            base.prompt,
            token_ids=(*base.prompt.token_ids, *ids),
            compact_token_ids=(*base.prompt.compact_token_ids, *ids),
            thought=None,
            call=None,
        )
        changed = {
            "max_new_tokens": self.room,
            "min_new_tokens": max(0, (base_options.min_new_tokens or 0) - len(ids)) if call else 0,
            "max_thinking_tokens": None,
            "prompt_logprobs": False,
            "seed": None if base_options.seed is None else derive_seed(base_options.seed, -call),
            **options,
        }
        row: Encoded = unchecked_replace(
            base, prompt=prompt, options=unchecked_replace(base_options, **changed)
        )
        return row

    def decoded(self, asks: Encoded) -> Asks[Decoded]:
        """The answer of one call of the row, as text."""
        raw = yield EngineRequest(
            self.engine, unchecked_replace(asks, plugins_in_engine=False), shown=False
        )
        decoded: Decoded = yield decode_row(raw, self.model.tokenizer, self.model.eos_token_ids)
        return decoded

    def scored(self) -> ScoreInput:
        """All ids up to the last that was not generated, to be scored."""
        prompt: Prompt = unchecked_replace(self.asked.prompt, thought=None, call=None)
        return to_score(self.asked, prompt, tuple(self.ids[: self.forced[-1] + 1]), "logprobs")


def answer_in_parts(
    encoded: Encoded, sent: Encoded, engine: AnyBackend, model: TokenModel
) -> Asks[Raw]:
    """The calls of a row that thinks before it answers, or whose answer is a tool call.

    `sent` is the row as its engine may get it, and `model` is that engine's. With `logprobs`, tokens that were not sampled are
    scored; with `logprobs="processed"` their probability is 1, since no other could come.
    """
    options, written = encoded.options, _AnswerSoFar(encoded, sent, engine, model)
    if options.logprobs is True and not scores_tokens(engine):
        message = f"{shown(engine.name)} gives no log probabilities of tokens that are not sampled"
        hint = "leave out logprobs, the thought and tool_choice"
        yield Failure(UnsupportedOption(message, option="logprobs", hint=hint))
    thought = last = None
    if encoded.prompt.thought is not None:
        thought, last = yield from _thought(written, encoded.prompt.thought)
    start, answer, begun = len(written.ids), written.row(encoded, 1), None
    opens = () if encoded.prompt.thought is None else encoded.prompt.thought.text_opens
    if last is None and opens and written.room > 0:
        begun = yield from _begun(written, opens)
        if begun is None:
            start, answer = len(written.ids), written.row(encoded, 2)
    final = Raw(encoded=answer, token_ids=(), logprobs=() if options.logprobs else None)
    if last is not None:
        final = unchecked_replace(last, encoded=answer)
    elif encoded.prompt.call is not None:
        called = yield from _called(written, encoded.prompt.call)
        final = unchecked_replace(called, encoded=answer, ending=None)
    elif begun is not None:
        final = unchecked_replace(
            begun,
            encoded=answer,
            token_ids=tuple(written.ids[start:]),
            logprobs=written.logprobs_of(start, len(written.ids)),
            ending=None,
        )
    elif written.room > 0:
        stopped = unchecked_replace(answer.options, stop=sent.options.stop)
        raw = yield EngineRequest(
            engine,
            unchecked_replace(answer, options=stopped, plugins_in_engine=sent.plugins_in_engine),
        )
        final = unchecked_replace(raw, encoded=answer)
    if options.logprobs is True and written.forced:
        scores = yield EngineRequest(engine, written.scored(), shown=False)
        _fill(written, scores)
    if encoded.prompt.call is not None and last is None:
        forced = tuple(index - start for index in written.forced if index >= start)
        final = unchecked_replace(
            final,
            token_ids=tuple(written.ids[start:]),
            logprobs=written.logprobs_of(start, len(written.ids)),
            forced=forced,
        )
    if thought is None:
        return final
    before = Raw(
        encoded=answer,
        token_ids=tuple(written.ids[:start]),
        logprobs=written.logprobs_of(0, start),
    )
    thought_record = Thought(
        asked=encoded,
        token_ids=before.token_ids,
        logprobs=with_texts(before, model.tokenizer).logprobs,
        forced=tuple(index for index in written.forced if index < start),
        text=thought.text,
        closed=thought.closed,
    )
    return unchecked_replace(final, thought=thought_record)


class _Thinking(NamedTuple):
    text: str
    closed: bool


def _thought(written: _AnswerSoFar, form: ThoughtForm) -> Asks[tuple[_Thinking, Raw | None]]:
    """The thought, and the end of the row where that is within it."""
    options = written.asked.options
    written.write(form.opens)
    most = written.room
    if options.max_thinking_tokens is not None:
        most = min(most, options.max_thinking_tokens)
    finish, raw = Finish.LENGTH, Raw(encoded=written.asked, token_ids=())
    if most > 0:
        stop = StopOptions(
            stop=(),
            stop_token_ids=(form.end_id,),
            ignore_eos=options.stop is not None and options.stop.ignore_eos,
        )
        asks = written.row(written.sent, 0, max_new_tokens=most, structured=None, stop=stop)
        judged = yield from written.decoded(asks)
        finish, raw = judged.finish, judged.raw
    count = len(raw.token_ids) - (finish in BY_ID)
    text = spell(written.model.tokenizer, raw.token_ids[:count])[0].strip()
    by_itself, given_up = finish is Finish.STOP_TOKEN, finish in (Finish.ABORTED, Finish.PLUGIN)
    written.take(raw, count + by_itself)
    early = len(written.ids) < (options.min_new_tokens or 0)
    if given_up or (finish is Finish.EOS and options.structured is None and not early):
        last = Raw(
            encoded=written.asked,
            token_ids=raw.token_ids[count:],
            logprobs=None if raw.logprobs is None else raw.logprobs[count:],
            aborted=finish is Finish.ABORTED,
            ended_by_plugin=raw.ended_by_plugin,
        )
        return _Thinking(text, False), last
    before = len(written.ids)
    written.write((*(() if by_itself else (*form.closes, form.end_id)), *form.bridge))
    closed = by_itself or form.end_id in written.ids[before:]
    return _Thinking(text, closed), None


def _begun(written: _AnswerSoFar, opens: tuple[int, ...]) -> Asks[Raw | None]:
    """The answer, where it does not begin as the template begins a text: its ids are in `written`.
    None where it does: what follows `opens` is the answer, and is still to be generated.
    """
    given = written.sent.options.stop
    stop = (
        None if given is None else unchecked_replace(given, stop=())
    )  # they are about all of the answer
    most = min(len(opens), written.room)
    least = min(most, max(0, (written.sent.options.min_new_tokens or 0) - len(written.ids)))
    call, limits = 1, {"max_new_tokens": most, "min_new_tokens": least}
    while True:
        judged = yield from written.decoded(written.row(written.sent, call, stop=stop, **limits))
        raw = judged.raw
        written.take(raw, len(raw.token_ids))
        if limits and raw.token_ids == opens[:most]:
            return None
        if judged.finish is not Finish.LENGTH or written.room <= 0:
            return raw
        call, limits = 2, {}


def _called(written: _AnswerSoFar, form: CallForm) -> Asks[Raw]:
    """The call: its name, if there is a choice, and its arguments. What is returned says how it
    ended, and which call it is where that is complete; its ids are in `written`.
    """
    unstopped = StopOptions(stop=(), stop_token_ids=(), ignore_eos=False)
    written.write(form.opens)
    raw, text, count = Raw(encoded=written.asked, token_ids=()), "", 0
    names = tuple(name + form.between for name in form.names)
    chosen: int | None = None
    part: StructuredOptions | None = StructuredOptions(choice=names)
    value: ValueForm | None = None
    if len(names) == 1:
        written.write(ids_behind(written.model.tokenizer, names[0]))
        chosen, part = 0, form.arguments[0].form
    while part is not None:
        if written.room <= 0:
            return raw
        count += 1
        asks = written.row(written.sent, count, structured=part, stop=unstopped)
        judged = yield from written.decoded(asks)
        raw, text, complete = judged.raw, judged.text, judged.finish is Finish.EOS
        answer = UntrimmedAnswer(text=text, finish=WORDS[judged.finish])
        wrong = disobeyed(answer, asks.options, shown(written.engine.name))
        if wrong is not None:
            yield Failure(wrong)
        written.take(raw, len(raw.token_ids) - complete)
        if not complete:
            return raw
        if chosen is None:
            chosen = names.index(text)
            part = form.arguments[chosen].form
        elif value is not None:
            written.write(value.closes)
            part, value = value.then, None
        else:
            value = form.arguments[chosen].value_behind(text)
            part = None if value is None else value.form
    written.write(form.closes)
    if written.room <= 0:
        return raw
    written.write(raw.token_ids[-1:])  # it was sampled before the end of the call, not behind it
    # tagged values get their types where the answer is read
    name = form.names[chosen or 0]
    is_json = form.arguments[chosen or 0].form.json_schema is not None
    return unchecked_replace(raw, call=(name, text) if is_json else None)


def _fill(written: _AnswerSoFar, scores: Any) -> None:
    """The log probabilities of what was not generated."""
    for index in written.forced:
        written.logprobs[index] = TokenLogprob(
            token_id=written.ids[index],
            logprob=scores.logprobs[index],
            top=scores.top[index] if scores.top else (),
        )
