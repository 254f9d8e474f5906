"""The last stage: strip if asked, then the plugins' trims in their order, and the result is
complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

from returns.result import Failure, Result, Success

from pipegen.answer.split_thought import thinking_unfinished
from pipegen.core.backend import require_backend
from pipegen.core.errors import MalformedResponse, PluginFailed
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.pipe import Pipe, pipe_of
from pipegen.core.slots import Slot
from pipegen.core.steps import PluginStage
from pipegen.ending.detokenize import spell
from pipegen.ending.plugin_state import ask_plugin
from pipegen.engines.model import TokenModel, on_model
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Engine, TextEngine, TokenEngine, takes_tokens
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import unchecked_replace
from pipegen.records.frozen import freeze, thaw
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import (
    Decoded,
    Encoded,
    Finish,
    GenerationResult,
    Raw,
    Thought,
    Turn,
    closest_choice,
)
from pipegen.stages.gather_samples import GATHER
from pipegen.template.template import call


def trimmed(text: str, options: GenerationOptions, plugins: Sequence[Plugin] = ()) -> Slot[str]:
    """The text of the result. A plugin whose trim raises, or gives back something other than text,
    makes `PluginFailed`.
    """
    if options.decode is not None and options.decode.strip_whitespace:
        text = text.strip()
    slot: Slot[str] = Success(text)
    for plugin in plugins:
        slot = slot.bind(partial(_trimmed_by, plugin))
    return slot


def _trimmed_by(plugin: Plugin, text: str) -> Slot[str]:
    return ask_plugin(plugin, partial(_asked_to_trim, plugin, text))


def _asked_to_trim(plugin: Plugin, text: str) -> Result[str, PluginFailed]:
    trimmed_text: object = text if plugin.trim is None else plugin.trim(text)
    if isinstance(trimmed_text, str):
        return Success(trimmed_text)
    return Failure(
        PluginFailed(
            f"plugin {plugin.name!r} trimmed to {type(trimmed_text).__name__}; trim takes and gives"
            " back text",
            plugin=plugin.name,
        )
    )


def trimmers(plugins: Sequence[Plugin]) -> tuple[str, ...]:
    """The names of the plugins that trim."""
    return tuple([plugin.name for plugin in plugins if plugin.trim is not None])


@overload
def trim(engine: TokenEngine, route: str | None = None) -> Pipe[Decoded, GenerationResult]: ...
@overload
def trim(engine: TextEngine, route: str | None = None) -> Pipe[Any, GenerationResult]: ...
def trim(engine: Engine, route: str | None = None) -> Pipe[Any, GenerationResult]:
    """The stage that strips and trims the text and completes the result; see `trim_row`. Results
    carry the engine's name, or the one given as `route`.

    After it, the rows of a request are one slot again. Text that a plugin may
    still trim is not streamed before it is final.
    """
    require_backend("trim", engine)
    name = engine.name if route is None else route
    finished: Callable[[Any], Slot[GenerationResult]]
    finished = (
        on_model(engine, partial(_finished, name))
        if takes_tokens(engine)
        else partial(engine.result, route=name)
    )
    finishing = PluginStage(
        name="trim",
        row=finished,
        keeps_text=not any(plugin.trim is not None for plugin in engine.plugins),
        takes=Decoded if takes_tokens(engine) else object,
        gives=GenerationResult,
        routes=(name,),
        plugins=engine.plugins,
        rebind=lambda new: trim(new.engine(engine), new.route(name)),
    )
    return pipe_of(finishing, GATHER)


def _finished(route_name: str, decoded: Decoded, model: TokenModel) -> Slot[GenerationResult]:
    result = trim_row(decoded, route_name, model.plugins)
    request, thought = decoded.raw.encoded.request, decoded.raw.thought
    if request.tools and request.messages is not None:
        result = result.map(
            lambda finished: with_tool_calls(finished, decoded.raw, model.tokenizer, model.renderer)
        )
    if thought is None:
        return result
    return result.map(lambda finished: with_thought(finished, thought, model.tokenizer))


def with_thought(
    result: GenerationResult, thought: Thought, tokenizer: Tokenizer
) -> GenerationResult:
    """The result of an answer with what came before it: all as of one answer, but `text`, which is
    the answer alone.
    """
    encoded, token_ids = thought.asked, thought.token_ids + result.token_ids
    both = thought.logprobs is not None and result.logprobs is not None
    logprobs = (*(thought.logprobs or ()), *(result.logprobs or ())) if both else None
    turn = result.turn
    if turn is not None and turn.compact_token_ids is not None:
        turn = unchecked_replace(turn, compact_token_ids=encoded.prompt.compact_token_ids)
    return dataclasses.replace(
        result,
        raw_text=spell(tokenizer, token_ids)[0],
        prompt_token_ids=encoded.prompt.token_ids,
        prompt_tokens=len(encoded.prompt.token_ids),
        token_ids=token_ids,
        completion_tokens=len(token_ids),
        logprobs=logprobs,
        margin=closest_choice(logprobs),
        reasoning=thought.text,
        forced=(*thought.forced, *(len(thought.token_ids) + index for index in result.forced)),
        thinking_unfinished=result.finish is Finish.LENGTH and not thought.closed,
        options=encoded.options,
        clipped_from=encoded.clipped_from,
        turn=turn,
    )


def with_tool_calls(
    result: GenerationResult, raw: Raw, tokenizer: Tokenizer, renderer: Renderer
) -> GenerationResult:
    """The result with the tool calls of its answer: the one that was forced, or those that are read
    (see `pipegen.answer.tool_calls`).
    """
    from pipegen.answer.tool_calls import read_calls
    from pipegen.template.call_signs import what_cut
    from pipegen.template.call_syntax import loads, openai_call, writer_of

    if raw.call is not None and result.finish is Finish.EOS:
        name, arguments = raw.call
        forced = freeze(openai_call(call(name, loads(arguments))))
        return dataclasses.replace(result, tool_calls=(forced,), content="")
    ends_by_token = result.finish in (Finish.EOS, Finish.STOP_TOKEN)
    count = len(result.token_ids) - 1 if ends_by_token else len(result.token_ids)
    answer, ending = (
        call_tokenizer(tokenizer.decode, ids) if ids else ""
        for ids in (result.token_ids[:count], result.token_ids[count:])
    )
    chat = result.options.chat or ChatTemplateOptions()
    tools = thaw(raw.encoded.request.tools)
    writer = writer_of(renderer, chat)
    cut = what_cut(result.finish, result.stop, result.options)
    read = read_calls(answer, ending, tools, writer, cut)
    if raw.thought is not None and not read.calls:  # some write other calls after thoughts
        ids = (*raw.thought.token_ids, *result.token_ids[:count])
        both = call_tokenizer(tokenizer.decode, ids)
        behind = read_calls(both, ending, tools, writer, cut)
        if behind.calls:
            content = (behind.content or "")[len(both) - len(answer) :]
            read = behind._replace(content=content)
    form = result.options.structured
    of_a_form = form is not None and form.tool_choice is None  # then it is no call that failed
    return dataclasses.replace(
        result,
        tool_calls=read.calls,
        content=read.content,
        tool_calls_unread=None if of_a_form else read.unread,
    )


def trim_row(
    decoded: Decoded, route_name: str, plugins: Sequence[Plugin] = ()
) -> Slot[GenerationResult]:
    """The finished result. Fails as `trimmed` does, and with `MalformedResponse` where the answer
    has not the form that was asked.
    """
    raw, encoded = decoded.raw, decoded.raw.encoded
    prompt, options = encoded.prompt, encoded.options
    wrong = (
        _wrong_form(decoded, route_name)
        if options.structured is not None and decoded.text == decoded.stage_text
        else None
    )
    if wrong is not None:
        return Failure(wrong)
    return trimmed(decoded.text, options, plugins).map(
        lambda text: GenerationResult(
            id=encoded.request.id,
            text=text,
            raw_text=decoded.raw_text,
            prompt_text=prompt.text,
            prompt_token_ids=prompt.token_ids,
            token_ids=raw.token_ids,
            finish=decoded.finish,
            stop=decoded.stop,
            prompt_tokens=len(prompt.token_ids),
            completion_tokens=len(raw.token_ids),
            logprobs=raw.logprobs,
            margin=closest_choice(raw.logprobs),
            prompt_logprobs=raw.prompt_logprobs,
            route=route_name,
            forced=tuple([index for index in raw.forced if index < len(raw.token_ids)]),
            thinking=prompt.thinking,
            thinking_unfinished=thinking_unfinished(
                decoded.finish, decoded.raw_text, prompt=prompt.text
            ),
            image_grid_thw=tuple([image.grid for image in prompt.images]),
            image_digests=tuple([image.digest for image in prompt.images]),
            video_times=tuple([image.times for image in prompt.images if image.is_video]),
            options=options,
            clipped_from=encoded.clipped_from,
            trimmed_by=(
                *trimmers(plugins),
                *(() if decoded.text == decoded.stage_text else ("a stage",)),
            ),
            exact=_is_exact(encoded),
            render_differs=prompt.render_differs,
            turn=Turn(
                request=encoded.request,
                compact_token_ids=prompt.compact_token_ids if prompt.images else None,
            ),
        )
    )


def _is_exact(encoded: Encoded) -> bool | None:
    """Whether the prompt begins with the ids of the turns before it."""
    continues = encoded.request.continues
    if continues is None:
        return None
    before = continues.before
    return bool(before) and encoded.prompt.token_ids[: len(before)] == before


def _wrong_form(decoded: Decoded, route_name: str) -> MalformedResponse | None:
    """What is wrong with the form of an answer; one that something else than an end token ended
    need not be complete.
    """
    from pipegen.answer.answer_check import WORDS, UntrimmedAnswer, disobeyed

    answer = UntrimmedAnswer(
        text=decoded.text, finish=WORDS[decoded.finish], stops=decoded.finish is not Finish.EOS
    )
    return disobeyed(answer, decoded.raw.encoded.options, route_name)
