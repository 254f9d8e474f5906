"""Render: the request's messages to prompt text, by its chat template.

The rule: **the control tokens of a prompt are those of the same conversation with harmless words**,
whatever the template does with the words. Foreign text (see `pipegen.template.untrusted`)
may have a character that can begin or end a control token. Then the conversation is rendered with
marks in the place of these characters: that is the one with harmless words. All other requests are
rendered once, as they are.

Some templates read the words: they split an answer at `</think>`, or escape `<`. So the words are
rendered without marks too, and that render is used if its control tokens are those of the marked
one.

>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> from pipegen.records.requests import TextGenerationRequest
>>> from pipegen.testing.fake import ToyRenderer
>>> from pipegen.testing.toy import ToyTokenizer
>>> resolved = ResolvedRequest(
...     request=TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}]),
...     options=resolve(GenerationOptions()),
... )
>>> rendered = render_row(resolved, ToyTokenizer(), ToyRenderer()).unwrap()
>>> rendered.text, rendered.thinking
('<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n<think></think>', 'honoured')
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Annotated, Any

from returns.result import Failure, Success

from pipegen.answer.forced_calls import call_form, tool_choice
from pipegen.answer.split_thought import thinking_beside_form
from pipegen.core.errors import InvalidRequest, TemplateFailed
from pipegen.core.names import InvalidField
from pipegen.core.pipe import Pipe, batch_stage
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.model import TokenModel, reader_of
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.call_arguments import arguments_read, unread_arguments, without_unread
from pipegen.records.call_form import CallForm
from pipegen.records.continues import Continues
from pipegen.records.fields import instance, record, string, unchecked_replace
from pipegen.records.frozen import NOTHING, thaw
from pipegen.records.messages import Message, plain_messages
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import PreparedImage, ResolvedRequest, Thinking, ThoughtForm
from pipegen.stages.continuation import Before, PromptInputs, bridged, kept_turn
from pipegen.template.choose_render import ALLOW, chosen_render, marker
from pipegen.template.control_tokens import ControlTokens, control_tokens
from pipegen.template.image_places import image_tokens, images_of, prepare_images
from pipegen.template.template import (
    PromptFunction,
    author,
    call_template,
    honours_thinking,
    probed_template,
    shape_content,
)
from pipegen.template.template_facts import template_facts
from pipegen.template.thinking import thinks_apart, thought_form
from pipegen.template.untrusted import (
    OWN,
    Conversation,
    Marks,
    choose_marks,
    foreign_strings,
    trusted_part,
)
from pipegen.template.unwritten import is_inert, unwritten_words

_OWN_VARIABLES = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "enable_thinking",
)
_ADVICE = 'take it out, or set control_tokens="text" to keep it as plain text'


@record
class Rendered:
    """A request with its prompt as text, and what the tokenizer has to know about it. Or it has the
    token ids that the caller gave instead.

    A stage of your own changes the prompt by `rewritten`, which keeps `text` and `hidden` together.
    """

    request: GenerationRequest
    """The request as it came."""
    options: Annotated[GenerationOptions, instance(GenerationOptions)]
    """The effective options."""
    text: Annotated[str | None, string] = None
    """What the template wrote, or the plain prompt, as it is."""
    hidden: Annotated[str | None, string] = None
    """The same with look-alikes of control tokens hidden behind `marks`; None without any."""
    marks: Marks = Marks()
    """What stands for what in `hidden`."""
    control: ControlTokens | None = None
    """The control tokens to guard against; None where all of them count."""
    refuses: bool = False
    """Whether look-alikes are refused rather than kept as text."""
    bos: str = ""
    """What was put in front of a plain prompt."""
    token_ids: tuple[int, ...] | None = None
    """The ids that the caller gave in the place of a text."""
    thinking: Thinking | None = None
    """As in `GenerationResult`."""
    images: tuple[PreparedImage, ...] = ()
    """The prepared images and videos, in message order."""
    before: Before | None = None
    """The ids of the turns before, where the text is what follows them (see
    `pipegen.stages.continuation`).
    """
    thought: ThoughtForm | None = None
    """How the template writes a thought, where the row thinks in a call of its own."""
    call: CallForm | None = None
    """How the template writes a tool call, where the answer is to be one."""

    def check_all(self) -> None:
        if self.hidden is not None and self.marks.put_back(self.hidden) != self.text:
            raise InvalidField(
                "Rendered.text and Rendered.hidden are one text: rendered.rewritten(f) changes both"
            )
        if self.hidden is not None and self.marks.left_in(self.text or ""):
            raise InvalidField(
                "Rendered.text spells a mark in other characters: the f of rendered.rewritten(f)"
                " may move characters, and not encode them"
            )

    @property
    def to_tokenize(self) -> str:
        """The text, look-alikes of control tokens hidden."""
        return (self.text if self.hidden is None else self.hidden) or ""

    def rewritten(self, f: Callable[[str], str]) -> Rendered:
        """The prompt with its text changed by `f`. Control tokens that `f` writes count; what looks
        like one in the words of users stays text.

        Raises `InvalidField` for a prompt of token ids, and `TypeError` if `f` gives something
        other than text.
        """
        if self.text is None:
            raise InvalidField("a prompt of token ids has no text to rewrite")
        changed: object = f(self.to_tokenize)
        if not isinstance(changed, str):
            raise TypeError(
                "rewritten takes a function from text to text; this one gave"
                f" {type(changed).__name__}"
            )
        return dataclasses.replace(
            self, text=self.marks.put_back(changed), hidden=None if self.hidden is None else changed
        )


def render(
    engine: TokenEngine, write: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
) -> Pipe[ResolvedRequest, Rendered]:
    """The stage that makes prompts of messages, by the engine's chat template, and prepares their
    images.

    write: a function from messages (as plain data) to the prompt's text, in the place of the chat
        template. Words of users stay text, and images are prepared. Tools fail the row, because the
        function does not get them. It is called several times for a request, so its result must
        depend on its messages alone.

    Requests of a batch with equal prompts and equal settings are rendered once, and equal images
    are prepared once. The whole batch is rendered before any of it is tokenised: in turn, templates
    and tokenizers would push each other out of the processor's caches. Fails as `render_row` does,
    and with `BadImage` or `BadVideo`.
    """
    require_token_engine("render", engine)
    if write is not None and not callable(write):
        raise TypeError(f"write is a function from messages to text, not {type(write).__name__}")
    read = reader_of(engine)

    def prepare(
        jobs: Sequence[ResolvedRequest],
    ) -> Callable[[ResolvedRequest], Slot[Rendered]]:
        if not is_ok(slot := read()):
            return lambda resolved: slot
        model: TokenModel = slot.unwrap()
        if write is not None:
            model = dataclasses.replace(model, renderer=PromptFunction(write))
        prepared = prepare_images(jobs, model)
        prompts: dict[Hashable, Slot[Rendered]] = {}

        def rendered(resolved: ResolvedRequest) -> Slot[Rendered]:
            key = _key(resolved)
            if key in prompts:
                return prompts[key].map(
                    lambda row: unchecked_replace(
                        row, request=resolved.request, options=resolved.options
                    )
                )
            images = images_of(resolved, prepared)
            if not is_ok(images):
                return Failure(images.failure())
            found, tokenizer = images.unwrap(), model.tokenizer
            places = model.image_placeholder, model.video_placeholder
            image_marks, bos = image_tokens(found, tokenizer, *places), model.bos_token
            prompt = render_row(
                resolved, tokenizer, model.renderer, bos_token=bos, image_marks=image_marks
            )
            if found:
                prompt = prompt.map(lambda row: unchecked_replace(row, images=found))
            prompts[key] = prompt
            return prompt

        return rendered

    return batch_stage(
        "render",
        prepare,
        takes=ResolvedRequest,
        gives=Rendered,
        internal=write is None,
        rebind=lambda new: render(new.engine(engine), write),
    )


def _key(resolved: ResolvedRequest) -> Hashable:
    """What a prompt's text is made of."""
    request, options = resolved.request, resolved.options
    return (
        request.messages,
        request.prompt,
        request.prompt_token_ids,
        request.tools,
        request.continues,
        options.chat,
        options.preprocess,
        thinks_apart(options),
        tool_choice(options),
    )


def render_row(
    resolved: ResolvedRequest,
    tokenizer: Tokenizer,
    renderer: Renderer,
    *,
    bos_token: str = "",
    image_marks: str = "",
) -> Slot[Rendered]:
    """The request's prompt as text; `InvalidRequest` or `TemplateFailed` where there is none.

    Messages go through the chat template; `image_marks` holds the added tokens that stand for the
    request's images, which are control tokens too. A plain prompt is taken as it is written, with
    `bos_token` in front unless it is there already. Its control tokens count, unless
    `control_tokens` asks for "text" or "reject". Token ids are taken as they are.
    `UnsupportedOption` for `max_thinking_tokens` where there is no thought to bound, and for
    `tool_choice` where the template's form of calls cannot be forced. So it is for
    `enable_thinking=True` beside a form where the template has a switch and no thought that a form
    can come after.
    """
    inputs = PromptInputs(resolved, tokenizer, renderer, image_marks)
    if resolved.request.messages is None:
        prompt = _plain_prompt(inputs, bos_token)
    elif (continues := kept_turn(resolved.request)) is not None:
        prompt = _bridged(inputs, continues)
    else:
        prompt = _render_messages(inputs)
    if thinks_apart(resolved.options) or tool_choice(resolved.options) is not None:
        return prompt.bind(functools.partial(_with_forms, inputs))
    return prompt


def _with_forms(inputs: PromptInputs, prompt: Rendered) -> Slot[Rendered]:
    """The prompt with the forms of the thought and the call that are asked for."""
    resolved, tokenizer, renderer, _ = inputs
    request, options = resolved.request, resolved.options
    thought = thought_form(request, options, tokenizer, renderer, inputs.control)
    call: Slot[CallForm | None] = Success(None)
    if tool_choice(options) is not None:
        control = None if thought.value_or(None) is None else inputs.control()
        call = call_form(request, options, tokenizer, renderer, control)

    def put(form: CallForm | None, thought: ThoughtForm | None) -> Slot[Rendered]:
        silent = thinks_apart(options) and thought is None and prompt.thinking == "honoured"
        refused = thinking_beside_form(options) if silent else None
        return (
            Success(unchecked_replace(prompt, thought=thought, call=form))
            if refused is None
            else Failure(refused)
        )

    return call.bind(lambda form: thought.bind(functools.partial(put, form)))


def _plain_prompt(inputs: PromptInputs, bos_token: str) -> Slot[Rendered]:
    """A prompt of token ids, or one that the template does not write."""
    resolved, request, chat = inputs.resolved, inputs.resolved.request, inputs.chat
    if request.prompt is None:
        return Success(
            Rendered(request=request, options=resolved.options, token_ids=request.prompt_token_ids)
        )
    if is_guarded(request, chat):
        control = control_tokens(
            inputs.tokenizer, inputs.renderer.template or "", inputs.image_marks
        )
        return _guarded_prompt(resolved, request.prompt, chat, control, bos_token)
    bos = bos_token if bos_token and not request.prompt.startswith(bos_token) else ""
    return Success(
        Rendered(request=request, options=resolved.options, text=bos + request.prompt, bos=bos)
    )


def _bridged(inputs: PromptInputs, continues: Continues) -> Slot[Rendered]:
    """What follows the ids of the turns before."""
    request = inputs.resolved.request

    def render_these(messages: Sequence[Message]) -> Slot[Rendered]:
        short = unchecked_replace(request, messages=tuple(messages))
        return _render_messages(
            inputs._replace(resolved=unchecked_replace(inputs.resolved, request=short))
        )

    return bridged(inputs, continues, render_these)


def is_guarded(request: GenerationRequest, chat: ChatTemplateOptions) -> bool:
    """Whether control tokens in the request's words are to be kept from counting."""
    if request.prompt is not None:
        return is_guarded_prompt(request.options, chat)
    return chat.control_tokens in ("reject", "text")


def is_guarded_prompt(requested: GenerationOptions | None, chat: ChatTemplateOptions) -> bool:
    """As `is_guarded`, for a plain prompt: its control tokens are text only where the request's own
    options say so.
    """
    requested_chat = requested.chat if requested is not None else None
    if chat.control_tokens == "text":
        return requested_chat is not None and requested_chat.control_tokens == "text"
    return chat.control_tokens == "reject"


def _guarded_prompt(
    resolved: ResolvedRequest,
    prompt: str,
    chat: ChatTemplateOptions,
    control: ControlTokens,
    bos: str,
) -> Slot[Rendered]:
    match = control.found_in(prompt)
    refuses = chat.control_tokens == "reject"
    if match and refuses:
        return Failure(_refused("prompt", match[1]))
    marks = choose_marks(control.edges.intersection(prompt), avoid=[prompt]) if match else Marks()
    if marks is None:
        return Failure(_no_marks())
    hidden = bos + marks.mark(prompt) if match else None
    rendered = Rendered(
        request=resolved.request,
        options=resolved.options,
        text=bos + prompt,
        hidden=hidden,
        bos=bos,
        marks=marks,
        control=control,
        refuses=refuses,
    )
    return Success(rendered)


def _render_messages(inputs: PromptInputs) -> Slot[Rendered]:
    resolved, tokenizer, renderer, image_marks = inputs
    chat = inputs.chat
    more = chat.template_kwargs or NOTHING
    plain = Conversation(
        arguments_read(plain_messages(resolved.request.messages or ())),
        [thaw(tool) for tool in resolved.request.tools],
        thaw(more),
    )
    refusal = _refusal(plain.messages, chat, more, renderer)
    if refusal is not None:
        return Failure(refusal)
    template, continued = probed_template(renderer, chat), bool(chat.continue_final_message)
    shaped = plain._replace(
        messages=[
            shape_content(message, template, continued=continued and message is plain.messages[-1])
            for message in plain.messages
        ]
    )
    honoured = honours_thinking(template)
    thinking: Thinking = "honoured" if honoured else "unsupported"
    switches = {
        "add_generation_prompt": bool(chat.add_generation_prompt),
        "continue_final_message": continued,
        **({"enable_thinking": bool(chat.enable_thinking)} if honoured else {}),
    }

    write = functools.partial(call_template, renderer, chat.template, switches)
    unread = unread_arguments(shaped.messages)
    if unread is not None and not is_ok(write(shaped)):
        readable = write(shaped._replace(messages=without_unread(shaped.messages)))
        if is_ok(readable):
            return Failure(_not_taken(unread, renderer))
    unwritten = unwritten_words(write, shaped, template)
    if unwritten is not None:
        return Failure(unwritten)
    if not is_guarded(resolved.request, chat):
        return write(shaped).map(
            lambda text: Rendered(
                request=resolved.request, options=resolved.options, text=text, thinking=thinking
            )
        )
    facts = template_facts(tokenizer, template, image_marks)
    control = facts.control
    trust, refuses = OWN.union(chat.trust or ()), chat.control_tokens == "reject"
    texts = foreign_strings(shaped, trust)
    trusted = [text for _, text in foreign_strings(trusted_part(shaped, trust), ())]
    guarded = facts.guarded(trusted, texts)

    def compared(beyond: frozenset[str]) -> frozenset[str]:
        return frozenset(
            text for text in facts.compared(texts, beyond) if not is_inert(text, template, control)
        )

    sought = compared(guarded)
    joined = "\0".join(text for _, text in texts)
    present = {
        character
        for character in guarded.union(*({*text, *text.upper()} for text in sought))
        if character in joined
    }

    def rendered(hidden: str, marks: Marks) -> Slot[Rendered]:
        if refuses and marks != Marks():
            match = _look_alike(foreign_strings(plain, trust), control)
            return Failure(_marks_refused(match, sought, renderer))
        text = marks.put_back(hidden)
        if marks.left_in(text):
            return Failure(
                InvalidRequest(
                    f"{author(renderer)} encodes characters of the content so that they cannot be"
                    " found again",
                    hint=ALLOW,
                )
            )
        row = Rendered(
            request=resolved.request,
            options=resolved.options,
            text=text,
            marks=marks,
            control=control,
            refuses=refuses,
            thinking=thinking,
        )
        return Success(unchecked_replace(row, hidden=hidden) if marks.originals else row)

    if not present:
        return write(shaped).bind(lambda text: rendered(text, Marks()))
    match = _look_alike(foreign_strings(plain, trust | {"assistant"}), control) if refuses else None
    if match:
        return Failure(_refused(*match))
    marks = choose_marks(present, avoid=[joined, *trusted], source=facts.source)
    if marks is None:
        return Failure(_no_marks())
    mark = marker(marks, facts.known, compared(frozenset()), control)
    chosen = chosen_render(write, shaped, trust, marks, control, mark)
    return chosen.bind(lambda pair: rendered(*pair))


def _refusal(
    messages: list[dict[str, Any]],
    chat: ChatTemplateOptions,
    template_variables: Mapping[str, object],
    renderer: Renderer,
) -> InvalidRequest | TemplateFailed | None:
    if chat.template is None and renderer.template is None:
        return TemplateFailed(
            "the checkpoint has no chat template",
            hint="send `prompt` instead of messages, or set options.chat.template",
        )
    for name in template_variables:
        if name in _OWN_VARIABLES:
            return InvalidRequest(
                f"template_kwargs holds {name!r}, which has a place of its own",
                hint="set it there, and take it out of template_kwargs",
            )
    if chat.continue_final_message and messages[-1]["role"] != "assistant":
        path = f"messages[{len(messages) - 1}]"
        return InvalidRequest(
            f"continue_final_message continues an assistant turn, and {path} is of role"
            f" {messages[-1]['role']!r}"
        )
    return None


def _not_taken(path: str, renderer: Renderer) -> InvalidRequest:
    return InvalidRequest(
        f"{path} is text that is no JSON object, and {author(renderer)} takes none",
        hint='write the arguments as a mapping, or as the JSON text of an object: {"city": "Rome"}',
    )


def _marks_refused(
    match: tuple[str, str] | None, sought: Collection[str], renderer: Renderer
) -> InvalidRequest:
    """Why a prompt that needs marks is refused."""
    if match is not None:
        return _refused(*match)
    if not sought:
        message = f"{author(renderer)} makes a control token of the content's words"
        return InvalidRequest(message, hint=_ADVICE)
    message = (
        f"{author(renderer)} writes other control tokens where the content holds"
        f" {', '.join(map(repr, sorted(sought)))}"
    )
    return InvalidRequest(message, hint=f'{_ADVICE}, or "allow" to let it count')


def _refused(path: str, token: str) -> InvalidRequest:
    return InvalidRequest(f"{path} holds the control token {token!r}", hint=_ADVICE)


def _no_marks() -> InvalidRequest:
    message = (
        "the request holds text that looks like control tokens, and so many private-use characters"
        " that none is left to mark it with"
    )
    return InvalidRequest(message, hint="take either of them out")


def _look_alike(
    strings: Collection[tuple[str, str]], control: ControlTokens
) -> tuple[str, str] | None:
    """The place of the first text that looks like a control token, and the token; text parts of one
    message may make it together.
    """
    for _, group in groupby(
        strings,
        key=lambda entry: (
            entry[0].partition(".content[")[0] if ".content[" in entry[0] else entry[0]
        ),
    ):
        parts = list(group)
        for form in (str, str.strip):
            written = [form(text) for _, text in parts]
            match = control.found_in("".join(written))
            if match:
                return (
                    parts[bisect_right(list(accumulate(map(len, written))), match[0])][0],
                    match[1],
                )
    return None
