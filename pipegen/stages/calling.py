"""Call: what is asked of an engine that takes token ids. The log probabilities of prompts are asked
of it as scores are, and an answer of no tokens not at all.

With the option `prompt_logprobs`, the ids of a prompt after the first are a continuation of it.
Prompts that several rows share are read once more, whatever is generated after them. With
`max_new_tokens=0` nothing is: the row ends with `LENGTH`.

>>> from pipegen.drivers.drive import drive
>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> from pipegen.records.requests import GenerationRequest
>>> from pipegen.records.results import Prompt
>>> from pipegen.testing.fake import FakeEngine
>>> options = resolve(GenerationOptions(max_new_tokens=0, prompt_logprobs=True))
>>> asked = Encoded(
...     request=GenerationRequest(prompt="Hi"),
...     options=options,
...     prompt=Prompt(token_ids=(72, 105), compact_token_ids=(72, 105)),
... )
>>> raw = drive(call(FakeEngine("never")), (Success(asked),))[0].unwrap()
>>> raw.token_ids, raw.prompt_logprobs[0], raw.prompt_logprobs[1].logprob
((), None, -1.105)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.core.backend import AnyBackend, Backend, require_backend
from pipegen.core.errors import UnsupportedOption, UnsupportedPlugin
from pipegen.core.pipe import Pipe, pipe_of
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import Branch, Call, EngineRequest, PluginStage, Step, Steps
from pipegen.engines.model import reader_of
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import is_text_engine, scores_tokens
from pipegen.records.engine_list import shown
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import flat_values, in_effect, resolve
from pipegen.records.results import Encoded, Prompt, Raw, ResolvedRequest, TokenLogprob
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.stages.fitting import check_changed

if TYPE_CHECKING:
    from pipegen.stages.multi_call import Asks

A = TypeVar("A")
B = TypeVar("B")

PromptLogprobs: TypeAlias = tuple[TokenLogprob | None, ...]


def call(backend: Backend[A, B]) -> Pipe[A, B]:
    """The stage that calls an engine with exactly the slots that have a value; where none has, it is
    not called. It is named `call`. It says what is asked; the driver asks it.

    With token ids, an engine is called once for what the rows generate, and before that once for
    the prompts that are to be scored. A row with a thought or a forced call takes a call for each
    part, and with `logprobs` one that scores what was not generated. Where scores fail, so do their
    rows.
    `UnsupportedOption` where the engine gives no scores, and for prompts with images.
    """
    require_backend("call", backend)
    return pipe_of(_call(backend, (), ()))


def _call(backend: AnyBackend, before: Steps, after: Steps) -> Call:
    admit = _admission(backend, before, after)

    def ask(value: Any, answers: tuple[Slot[object], ...]) -> EngineRequest | Slot[object]:
        several = _takes_several(value)
        if answers and not several:
            return answers[0] if admit is None else answers[0].map(partial(_to, value))
        sent = value
        if admit is not None:
            admitted = admit(value)
            if not is_ok(admitted):
                return admitted
            sent = admitted.unwrap()
        if not several:
            return EngineRequest(backend, sent)
        from pipegen.stages.multi_call import replayed

        return replayed(_asking(backend, value, sent), answers)

    takes, gives = _records_of(backend)
    return Call(
        name="call",
        backend=backend,
        ask=ask,
        takes=takes,
        gives=gives,
        among=partial(_call, backend),
        rebind=lambda new: call(new.engine(backend)),
    )


def _records_of(backend: object) -> tuple[type, type]:
    """The records that the backend takes and gives; one that is no engine may have any."""
    if is_text_engine(backend):
        return ResolvedRequest, object
    return (Encoded, Raw) if hasattr(type(backend), "prepare_image") else (object, object)


def _asking(engine: AnyBackend, encoded: Encoded, sent: Encoded) -> Asks[Raw]:
    """What a row wants that takes more than one answer, or none: the scores of its prompt, which
    equal prompts share, and then its answer, perhaps after a thought.
    """
    scores: PromptLogprobs | None = None
    if encoded.options.prompt_logprobs:
        refused, ids = _unsupported(encoded, engine), encoded.prompt.token_ids
        if refused is not None:
            yield Failure(refused)
        scores = (None,)
        if len(ids) > 1:
            continued = _continued(encoded)
            same = (continued.top, ids, encoded.options.adapter)
            scores = _logprobs((yield EngineRequest(engine, continued, shown=False, same=same)))
    if encoded.options.max_new_tokens == 0:
        raw = Raw(encoded=encoded, token_ids=())
    elif encoded.prompt.thought is not None or encoded.prompt.call is not None:
        from pipegen.stages.multi_call import answer_in_parts

        model = yield reader_of(engine)()
        raw = yield from answer_in_parts(encoded, sent, engine, model)
    else:
        raw = _to(encoded, (yield EngineRequest(engine, sent)))
    return raw if scores is None else unchecked_replace(raw, prompt_logprobs=scores)


def _admission(
    backend: AnyBackend, before: Steps, after: Steps
) -> Callable[[Any], Slot[Any]] | None:
    """What the engine is to get of a row, by the stages around its call, up to the calls before and
    after it. None where it gets each row as it is: there is nothing to refuse and nothing to change,
    whatever a request asks for.

    Where a stage of one's own comes before the one that cuts, the engine is not to end the row for
    that one. `UnsupportedOption` for an option whose stage is not in the pipe, `UnsupportedPlugin`
    for a plugin, and `InvalidRequest` for what a stage has broken since `fit`.
    """
    before = tuple(takewhile(_calls_nothing, reversed(before)))
    after = tuple(takewhile(_calls_nothing, after))
    # what only performs calls has none
    plugins: tuple[Plugin, ...] = getattr(backend, "plugins", ())
    by_itself = is_text_engine(backend)  # then all but `trim` is the engine's own
    earlier, later = (
        {name for part in parts for name in (part.name, part.honours)} for parts in (before, after)
    )
    there = {
        "fit": by_itself or "fit" in earlier,
        "stop": by_itself or "stop" in later or any(map(_ends, after)),
        "trim": "trim" in later or any(part.routes for part in after),
    }
    absent = {
        option: row.stage for option, (*_, row) in OPTIONS.items() if not there.get(row.stage, True)
    }
    since_fit = takewhile(lambda part: "fit" not in (part.name, part.honours), before)
    # a stage of one's own may have changed what `fit` has checked
    changes = not by_itself and not all(part.internal for part in since_fit)
    refused = _unhonoured(plugins, by_itself, after)
    halts = by_itself or _halts(after)
    watches = any(plugin.feed is not None for plugin in plugins)

    def admit(value: object) -> Slot[object]:
        if not isinstance(value, (Encoded, ResolvedRequest)):
            return Success(value)
        broken = check_changed(value) if changes and isinstance(value, Encoded) else None
        if broken is not None:
            return Failure(broken)
        for option in in_effect(value.options) if absent else ():
            if option in absent:
                asked, stage = flat_values(value.options)[option], absent[option]
                message = (
                    f"{option}={asked!r:.80} is what the stage {stage} does, and the pipe has no"
                    " such stage for this call"
                )
                hint = (
                    f"put pg.stages.{stage}(engine), or a stage of your own of that name, into the"
                    " pipe"
                )
                return Failure(UnsupportedOption(message, option=option, hint=hint))
        if refused is not None:
            return Failure(refused)
        stop = value.options.stop
        if (
            halts
            or isinstance(value, ResolvedRequest)
            or not (watches or (stop is not None and stop.stop))
        ):
            return Success(value)
        unstopped = (
            value.options
            if stop is None
            else unchecked_replace(value.options, stop=unchecked_replace(stop, stop=()))
        )
        return Success(unchecked_replace(value, options=unstopped, plugins_in_engine=False))

    return None if halts and not (absent or changes or refused) else admit


def _unhonoured(
    plugins: Collection[Plugin], by_itself: bool, after: Steps
) -> UnsupportedPlugin | None:
    """The error of the first plugin of the called engine for which no later stage cuts or trims, or
    of a later stage which the called engine would have to have.
    """
    one_engine = "made with the engine that is called (engine = pg.attach(route, plugin).engine)"
    there = [part for part in after if isinstance(part, PluginStage)]
    for does, stage, asks in (("watches", "stop", "feed"), ("trims", "trim", "trim")):
        honours = [part for part in there if part.name == stage]
        honoured = plugins if by_itself and stage == "stop" else _plugins(honours)
        for plugin in plugins:
            if getattr(plugin, asks) is not None and plugin not in honoured:
                reason = (
                    f"the engine of the pipe's stage {stage} has no such plugin"
                    if honours
                    else f"the pipe has no stage {stage}"
                )
                hint = (
                    f"put pg.stages.{stage}(engine) into the pipe, {one_engine}, or attach no plugin"
                    f" that {does} the text"
                )
                message = f"plugin {plugin.name!r} {does} the text, and {reason}"
                return UnsupportedPlugin(message, plugin=plugin.name, hint=hint)
    for plugin in _plugins(there):
        steers = plugin.logits_processor is not None or plugin.stopping_criteria is not None
        if steers and plugin not in plugins:
            message = (
                f"plugin {plugin.name!r} works in the engine, and the one that is called has no such"
                " plugin"
            )
            hint = f"put pg.call(engine) into the pipe, {one_engine}"
            return UnsupportedPlugin(message, plugin=plugin.name, hint=hint)
    return None


def _calls_nothing(step: Step) -> bool:
    if isinstance(step, Branch):
        return all(_calls_nothing(inner) for way in step.ways for inner in way.steps)
    return not isinstance(step, Call)


def _plugins(parts: Iterable[PluginStage]) -> list[Plugin]:
    return [plugin for part in parts for plugin in part.plugins]


def _ends(part: Step) -> bool:
    """Whether it ends rows: then the engine may end them, too."""
    return isinstance(part, PluginStage) and part.name == "stop"


def _halts(after: Steps) -> bool:
    """Whether the answer comes as it is to the stage that cuts it: then the engine may end a row
    where that stage would.
    """
    return next((_ends(part) for part in after if _ends(part) or not part.keeps_text), False)


def _to(value: object, answer: object) -> Any:
    """The answer to what was asked of the call, whatever of it the engine got."""
    return (
        unchecked_replace(answer, encoded=value)
        if isinstance(answer, Raw) and isinstance(value, Encoded)
        else answer
    )


def _takes_several(value: object) -> bool:
    """Whether the row takes more than one answer, or none: its prompt is to be scored, nothing is
    to be generated after it, or it thinks before it answers, or calls a tool.
    """
    return isinstance(value, Encoded) and (
        bool(value.options.prompt_logprobs)
        or value.options.max_new_tokens == 0
        or value.prompt.thought is not None
        or value.prompt.call is not None
    )


_NEUTRAL = resolve(GenerationOptions(max_new_tokens=1))


def _unsupported(encoded: Encoded, engine: Any) -> UnsupportedOption | None:
    if not scores_tokens(engine):
        return UnsupportedOption(
            f"{shown(engine.name)} does not give the log probabilities of prompts",
            option="prompt_logprobs",
        )
    if encoded.prompt.images:
        message = "the log probabilities of a prompt with images are not given"
        return UnsupportedOption(
            message,
            option="prompt_logprobs",
            hint="leave it out, and score the text after the images with pg.score",
        )
    return None


def to_score(encoded: Encoded, prompt: Prompt, ids: tuple[int, ...], option: str) -> ScoreInput:
    """These ids as the row's continuation of that prompt, for that option. Its adapter and
    `top_logprobs` alone count: log probabilities are the model's own.
    """
    options = unchecked_replace(_NEUTRAL, adapter=encoded.options.adapter)
    return ScoreInput(
        encoded=unchecked_replace(encoded, prompt=prompt, options=options),
        continuation=ids,
        top=encoded.options.top_logprobs or 0,
        option=option,
    )


def _continued(encoded: Encoded) -> ScoreInput:
    """The prompt as a continuation of its first token."""
    ids = encoded.prompt.token_ids
    first: Prompt = unchecked_replace(encoded.prompt, token_ids=ids[:1], compact_token_ids=ids[:1])
    return to_score(encoded, first, ids[1:], "prompt_logprobs")


def _logprobs(scores: TokenScores) -> PromptLogprobs:
    """One for each token, with the likeliest ones in its place; none for the first."""
    tops = scores.top if scores.continued.top else [(one,) for one in scores.likeliest]
    each = zip(scores.continued.continuation, scores.logprobs, tops, strict=True)
    return (
        None,
        *(TokenLogprob(token_id=token, logprob=logprob, top=top) for token, logprob, top in each),
    )
