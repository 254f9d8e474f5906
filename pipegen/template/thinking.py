r"""How a chat template writes a thought before an answer, read without code for any family of
models; and whether a row thinks in a call of its own.

The first of these that says it counts. One is an answer with a thought, as the template writes it
(in `reasoning_content`, `reasoning` or `thinking`), of words or of a tool call. Then comes the empty
thought that it writes where thinking is off. Last is an opening token at the end of the prompt,
which `</think>` closes as `<think>`. What ends a thought is a control token.

Before a tool call that is forced, only an answer of a thought and a call says it. Where the model
may call tools, and the template begins a text and a call otherwise, as in channels, the model
chooses: after the thought only that is written which both begin with and prompts end with.

>>> from pipegen.template.control_tokens import control_tokens
>>> from pipegen.testing.fake import ToyRenderer
>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = writer_of(ToyRenderer(), ChatTemplateOptions(enable_thinking=True))
>>> thought_texts(toy, control_tokens(ToyTokenizer(), "<think></think>"))
ThoughtTexts(opens='<think>', closes='', end='</think>', bridge='')
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot
from pipegen.ending.detokenize import ids_behind
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import ThoughtForm
from pipegen.template.call_syntax import (
    WORDS,
    Writer,
    common_beginning,
    thought_before_call,
    thought_beside_call,
    thoughts_in,
    writer_of,
)
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.template import USER, assistant


class ThoughtTexts(NamedTuple):
    """What a template writes around a thought."""

    opens: str
    """What is between the prompt and the thought; empty where the prompt opens it."""
    closes: str
    """What is between the thought and its end token."""
    end: str
    """The end token."""
    bridge: str
    """What is between the end token and the answer."""


def thinks_apart(options: GenerationOptions) -> bool:
    """Whether a row with these options is to think in a call of its own, where its template has a
    thought: its length is bounded, or a form comes after it.
    """
    chat = options.chat or ChatTemplateOptions()
    formed = options.structured is not None and bool(chat.enable_thinking)
    return options.max_thinking_tokens is not None or formed


def thought_form(
    request: GenerationRequest,
    options: GenerationOptions,
    tokenizer: Tokenizer,
    renderer: Renderer,
    control: Callable[[], ControlTokens],
) -> Slot[ThoughtForm | None]:
    """The ids around the row's thought; None where it does not think in a call of its own.

    `UnsupportedOption` where `max_thinking_tokens` is asked and there is no thought to bound, and
    for `tool_choice` where the template writes no thought before a call.
    """
    chat = options.chat or ChatTemplateOptions()
    if not thinks_apart(options):
        return Success(None)
    message, hint = "", "leave max_thinking_tokens out"
    texts: ThoughtTexts | None = None
    if request.messages is None:
        message = "a plain prompt does not say where a thought begins: max_thinking_tokens takes"
        message += " messages"
    elif not chat.add_generation_prompt:
        message = "max_thinking_tokens takes a prompt that opens a new turn of the assistant"
    elif not chat.enable_thinking:
        message = "max_thinking_tokens takes enable_thinking=True, and it is False"
    else:
        writer = writer_of(renderer, chat)
        texts = thought_texts(writer, control())
        if texts is None:
            message = "max_thinking_tokens takes a chat template that writes a thought with an end"
            message += " token, and this one does not"
        elif options.structured is not None and options.structured.tool_choice is not None:
            called = call_after_thought(writer, control())
            if called is None:
                message = "a tool call cannot be forced after a thought: the chat template does not"
                message += " write a thought before a call, with an end token"
                hint = "leave out tool_choice, or set enable_thinking=False"
                return Failure(UnsupportedOption(message, option="tool_choice", hint=hint))
            texts = called[0]._replace(bridge="")  # what follows is a part of the call
        elif options.structured is None and request.tools:
            return Success(_open(texts, writer, control(), tokenizer))
    if texts is not None:
        return Success(_encoded(texts, tokenizer))
    if options.max_thinking_tokens is None:  # the form holds from the first token
        return Success(None)
    return Failure(UnsupportedOption(message, option="max_thinking_tokens", hint=hint))


def _encoded(texts: ThoughtTexts, tokenizer: Tokenizer) -> ThoughtForm:
    return ThoughtForm(
        opens=ids_behind(tokenizer, texts.opens),
        closes=ids_behind(tokenizer, texts.closes),
        end_id=tokenizer.control_tokens[texts.end],
        bridge=ids_behind(tokenizer, texts.bridge, after=texts.end),
    )


def _open(
    texts: ThoughtTexts, writer: Writer, control: ControlTokens, tokenizer: Tokenizer
) -> ThoughtForm:
    """The ids around a thought that a text or a tool call may follow."""
    form, called = _encoded(texts, tokenizer), call_after_thought(writer, control)
    call = "" if called is None else called[0].bridge
    if called is None or called[0][:3] != texts[:3] or call.startswith(texts.bridge):
        return form
    prompt, both = writer.prompt(()), common_beginning(texts.bridge, call)
    of_call = ids_behind(tokenizer, call, after=texts.end)
    begins = [both[:end] for end in range(len(both), 0, -1) if prompt.endswith(both[:end])]
    bridges = [*(ids_behind(tokenizer, text, after=texts.end) for text in begins), ()]
    bridge = next(ids for ids in bridges if form.bridge[: len(ids)] == ids == of_call[: len(ids)])
    return unchecked_replace(form, bridge=bridge, text_opens=form.bridge[len(bridge) :])


@functools.lru_cache(maxsize=64)
def thought_texts(writer: Writer, control: ControlTokens) -> ThoughtTexts | None:
    """What the template writes around a thought; None where it writes none, or no control token
    ends it.
    """
    prompt = writer.prompt(())
    around = chain(
        _written(writer), _left_empty(writer, prompt, control), _opened(control.pieces(prompt))
    )
    texts = (_texts(opens, closing, control) for opens, closing in around)
    return next((each for each in texts if each is not None), None)


def call_after_thought(writer: Writer, control: ControlTokens) -> tuple[ThoughtTexts, str] | None:
    """What the template writes around a thought before a tool call, up to the call's name, and what
    it writes behind the name; None where it writes no such answer, or no control token ends the
    thought.
    """
    thought = thought_before_call(writer)
    texts = None if thought is None else _texts(thought.opens, thought.closing, control)
    return None if thought is None or texts is None else (texts, thought.behind)


def _texts(opens: str, closing: str, control: ControlTokens) -> ThoughtTexts | None:
    parts = control.pieces(closing, at_most=1)
    return ThoughtTexts(opens, *parts) if len(parts) == 3 and not parts[0].strip() else None


def _written(writer: Writer) -> Iterator[tuple[str, str]]:
    """What is before and behind the thought of an answer. Some templates write one before a call
    alone.
    """
    for thought in thoughts_in(writer, assistant(WORDS), WORDS):
        yield thought.opens, thought.closing
    called = thought_beside_call(writer)
    if called is not None:
        yield called.opens, called.closing


def _left_empty(writer: Writer, prompt: str, control: ControlTokens) -> Iterator[tuple[str, str]]:
    """The empty thought at the end of a prompt where thinking is off."""
    other = writer.prompt((), enable_thinking=False)
    # thinking may be switched in the system's turn too
    opened, closed = (text.rpartition(USER["content"])[2] for text in (prompt, other))
    if not closed.startswith(opened):
        return
    pieces = control.pieces(closed.removeprefix(opened))
    if len(pieces) == 3:  # the prompt opens the thought
        yield "", "".join(pieces)
    if len(pieces) == 5 and not pieces[0].strip() and not pieces[2].strip():
        half = (len(pieces[2]) + 1) // 2
        yield "".join((*pieces[:2], pieces[2][:half])), "".join((pieces[2][half:], *pieces[3:]))


def _opened(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """The opening token at the end of a prompt, and the token that closes it by its name."""
    if len(pieces) > 2 and not pieces[-1].strip():
        yield "", f"{pieces[-1]}{pieces[-2][:1]}/{pieces[-2][1:]}"
