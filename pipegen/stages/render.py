"""Render: the request's messages to prompt text, by its chat template, once.

Plain prompts and given token ids pass without a template. Look-alikes of control tokens in user and tool content are hidden from the tokenizer (see
`pipegen.stages.control_tokens`), refused or allowed, as the options say.

>>> from pipegen.options import GenerationOptions, resolve
>>> from pipegen.requests import TextGenerationRequest
>>> from pipegen.testing.fake import ToyRenderer
>>> from pipegen.testing.toy import ToyTokenizer
>>> job = Job(request=TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}]), options=resolve(GenerationOptions()))
>>> rendered = render(job, ToyTokenizer(), ToyRenderer()).unwrap()
>>> rendered.text, rendered.thinking
('<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n<think></think>', 'honoured')
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.errors import InvalidRequest, TemplateFailed
from pipegen.fields import record
from pipegen.messages import plain_messages
from pipegen.options import ChatTemplateOptions
from pipegen.records import Job, Thinking
from pipegen.slots import Slot
from pipegen.stages.control_tokens import ControlTokens, Marks, choose_marks, control_tokens, rewrite_untrusted
from pipegen.stages.template import call_template, honours_thinking, shape_content, thaw, written_by
from pipegen.tokenizer import Renderer, Tokenizer

__all__ = ["Rendered", "render"]

_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "enable_thinking")


@record
class Rendered:
    """A prompt as text, with what the tokenizer has to know about it; or the token ids that the caller gave instead."""

    text: str | None = None
    """What the template wrote, or the plain prompt; look-alikes put back."""
    hidden: str | None = None
    """The same with look-alikes hidden behind `marks`."""
    marks: Marks = Marks()
    control: ControlTokens | None = None
    """The control tokens to guard against; None where all of them count."""
    refuses: bool = False
    """Whether look-alikes are refused rather than kept as text."""
    bos: str = ""
    """What was put in front of a plain prompt."""
    token_ids: tuple[int, ...] | None = None
    thinking: Thinking | None = None


def render(job: Job, tokenizer: Tokenizer, renderer: Renderer, *, bos_token: str | None = None, written: str = "") -> Slot[Rendered]:
    """The job's prompt as text; `InvalidRequest` or `TemplateFailed` where there is none.

    Messages go through the chat template, which is called once for them; `written` holds the added tokens that stand for the request's pictures, which
    are control tokens too. A plain prompt stands as it is written (control tokens included), with
    `bos_token` in front unless it is there already. Token ids stand as they are.
    """
    request, chat = job.request, job.options.chat
    if request.prompt_token_ids is not None:
        return Success(Rendered(token_ids=request.prompt_token_ids))
    if request.prompt is not None:
        bos = bos_token if bos_token and not request.prompt.startswith(bos_token) else ""
        return Success(Rendered(text=bos + request.prompt, hidden=bos + request.prompt, bos=bos))
    return _render_messages(job, chat or ChatTemplateOptions(), tokenizer, renderer, written)


def _render_messages(job: Job, chat: ChatTemplateOptions, tokenizer: Tokenizer, renderer: Renderer, written: str) -> Slot[Rendered]:
    messages = plain_messages(job.request.messages or ())
    more = chat.template_kwargs if isinstance(chat.template_kwargs, immutabledict) else immutabledict[str, Any]()
    refusal = _refusal(messages, chat, more, renderer)
    if refusal is not None:
        return Failure(refusal)
    tools = [thaw(tool) for tool in job.request.tools]
    honoured = honours_thinking(renderer, chat.template, more)
    control, marks = None, Marks()
    if chat.control_tokens != "allow":
        control = control_tokens(tokenizer, written_by(renderer, chat.template, more), written)  # remembered, both: the same string each time
        found = _look_alikes(messages, control)
        if found and chat.control_tokens == "reject":
            place, token = found[0]
            return Failure(
                InvalidRequest(f"{place} holds the control token {token!r}", hint='take it out, or set control_tokens="text" to keep it as plain text')
            )
        if found:
            chosen = choose_marks(control, avoid=json.dumps([messages, tools, thaw(more), chat.template, renderer.template], ensure_ascii=False))
            if chosen is None:
                return Failure(InvalidRequest("the messages hold every private-use character there is, and text that looks like a control token"))
            marks = chosen
            messages = _hidden(messages, control, marks)
    variables = {
        "add_generation_prompt": bool(chat.add_generation_prompt),
        "continue_final_message": bool(chat.continue_final_message),
        **({"enable_thinking": bool(chat.enable_thinking)} if honoured else {}),
        **thaw(more),
    }
    shaped = [shape_content(message, renderer, chat.template, more) for message in messages]

    def rendered(hidden: str) -> Rendered:
        thinking: Thinking = "honoured" if honoured else "unsupported"
        return Rendered(text=marks.put_back(hidden), hidden=hidden, marks=marks, control=control, refuses=chat.control_tokens == "reject", thinking=thinking)

    return call_template(renderer, shaped, tools=tools, template=chat.template, variables=variables).map(rendered)


def _refusal(messages: list[dict[str, Any]], chat: ChatTemplateOptions, more: Mapping[str, Any], renderer: Renderer) -> InvalidRequest | TemplateFailed | None:
    if chat.template is None and renderer.template is None:
        return TemplateFailed("the checkpoint has no chat template", hint="send `prompt` instead of messages, or set options.chat.template")
    for name in more:
        if name in _OWN_VARIABLES:
            return InvalidRequest(f"template_kwargs holds {name!r}, which has a place of its own", hint="set it there, and take it out of template_kwargs")
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        place = f"messages[{len(messages) - 1}]"
        return InvalidRequest(f"continue_final_message continues an assistant turn, and {place} is of role {messages[-1]['role']!r}")
    return None


def _look_alikes(messages: list[dict[str, Any]], control: ControlTokens) -> list[tuple[str, str]]:
    """The places of look-alikes in user and tool content, each with the token."""
    found: list[tuple[str, str]] = []

    def look(texts: list[str], places: list[str]) -> list[str]:
        stripped = [text.strip() for text in texts]
        for parts in (texts, stripped) if texts != stripped else (texts,):
            seen = control.found_in("".join(parts))
            if seen:
                ends = [sum(map(len, parts[: row + 1])) for row in range(len(parts))]
                row = next(row for row, end in enumerate(ends) if seen[0] < end)
                found.append((places[row], seen[1]))
                break
        return texts

    rewrite_untrusted(messages, look)
    return found


def _hidden(messages: list[dict[str, Any]], control: ControlTokens, marks: Marks) -> list[dict[str, Any]]:
    return rewrite_untrusted(messages, lambda texts, _: control.hide_parts(texts, marks))
