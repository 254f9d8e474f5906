r"""How a chat template writes a thought before an answer, read without code for any family of
models; and whether a row thinks in a call of its own.

The first of these that says it counts. One is an answer with a thought, as the template writes it
(in `reasoning_content`, `reasoning` or `thinking`). Then comes the empty thought that it writes
where thinking is off. Last is an opening token at the end of the prompt, which `</think>` closes as
`<think>`. What ends a thought is a control token.

>>> from pipegen.stages.parts.control_tokens import control_tokens
>>> from pipegen.testing.fake import ToyRenderer
>>> from pipegen.testing.toy import ToyTokenizer
>>> toy = Writer(ToyRenderer(), variables=freeze({"enable_thinking": True}))
>>> thought_texts(toy, control_tokens(ToyTokenizer(), "<think></think>"))
ThoughtTexts(opens='<think>', closes='', end='</think>', bridge='')
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import UnsupportedOption
from pipegen.core.slots import Slot
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.frozen import freeze, thaw
from pipegen.records.options import ChatTemplateOptions, GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import ThoughtForm
from pipegen.stages.parts.control_tokens import ControlTokens
from pipegen.stages.parts.detokenize import ids_behind
from pipegen.stages.parts.tool_calls import Writer, writer_of

__all__ = ["ThoughtTexts", "thinks_apart", "thought_form", "thought_texts"]

_THOUGHT, _WORDS = "Qzthought", "Qzwords"
_FIELDS = ("reasoning_content", "reasoning", "thinking")
_USER = {"role": "user", "content": "Hello there"}


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

    `UnsupportedOption` where `max_thinking_tokens` is asked and there is no thought to bound.
    """
    chat = options.chat or ChatTemplateOptions()
    if not thinks_apart(options):
        return Success(None)
    words, hint = "", "leave max_thinking_tokens out"
    texts: ThoughtTexts | None = None
    if request.messages is None:
        words = "a plain prompt does not say where a thought begins: max_thinking_tokens takes"
        words += " messages"
    elif not chat.add_generation_prompt:
        words = "max_thinking_tokens takes a prompt that opens a new turn of the assistant"
    elif not chat.enable_thinking:
        words = "max_thinking_tokens takes enable_thinking=True, and it is False"
    else:
        texts = thought_texts(writer_of(renderer, chat), control())
        if texts is None:
            words = "max_thinking_tokens takes a chat template that writes a thought with an end"
            words += " token, and this one does not"
    if texts is not None:
        return Success(_encoded(texts, tokenizer))
    if options.max_thinking_tokens is None:  # the form holds from the first token
        return Success(None)
    return Failure(UnsupportedOption(words, option="max_thinking_tokens", hint=hint))


def _encoded(texts: ThoughtTexts, tokenizer: Tokenizer) -> ThoughtForm:
    return ThoughtForm(
        opens=ids_behind(tokenizer, texts.opens),
        closes=ids_behind(tokenizer, texts.closes),
        end_id=tokenizer.control_tokens[texts.end],
        bridge=ids_behind(tokenizer, texts.bridge, after=texts.end),
    )


@functools.lru_cache(maxsize=64)
def thought_texts(writer: Writer, control: ControlTokens) -> ThoughtTexts | None:
    """What the template writes around a thought; None where it writes none, or no control token
    ends it.
    """
    prompt = writer.write([_USER], (), opens=True) or ""
    pieces = control.pieces(prompt)
    for opens, closing in (
        *_written(writer, prompt),
        *_left_empty(writer, prompt, control),
        *_opened(pieces),
    ):
        parts = control.pieces(closing, at_most=1)
        if len(parts) == 3 and not parts[0].strip():
            return ThoughtTexts(opens, *parts)
    return None


def _written(writer: Writer, prompt: str) -> Iterator[tuple[str, str]]:
    """What is before and behind the thought of an answer."""
    for field in _FIELDS:
        answer = {"role": "assistant", "content": _WORDS, field: _THOUGHT}
        whole = writer.write([_USER, answer], (), opens=False) or ""
        head, thought, rest = whole.partition(_THOUGHT)
        closing, words, _ = rest.partition(_WORDS)
        if not thought or not words:
            continue
        if head.startswith(prompt):
            yield head.removeprefix(prompt), closing
        elif prompt.startswith(head) and not prompt.removeprefix(head).strip():
            yield "", closing


def _left_empty(writer: Writer, prompt: str, control: ControlTokens) -> Iterator[tuple[str, str]]:
    """The empty thought at the end of a prompt where thinking is off."""
    off = freeze({**thaw(writer.variables), "enable_thinking": False})
    other = writer._replace(variables=off).write([_USER], (), opens=True) or ""
    if not other.startswith(prompt):
        return
    pieces = control.pieces(other.removeprefix(prompt))
    if len(pieces) == 3:  # the prompt opens the thought
        yield "", "".join(pieces)
    if len(pieces) == 5 and not pieces[0].strip() and not pieces[2].strip():
        half = (len(pieces[2]) + 1) // 2
        yield "".join((*pieces[:2], pieces[2][:half])), "".join((pieces[2][half:], *pieces[3:]))


def _opened(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """The opening token at the end of a prompt, and the token that closes it by its name."""
    if len(pieces) > 2 and not pieces[-1].strip():
        yield "", f"{pieces[-1]}{pieces[-2][:1]}/{pieces[-2][1:]}"
