"""What a chat template writes between the end of one answer and the next answer: the bridge.

The next prompt of a conversation is the ids of the last prompt, the ids of the answer, and the
bridge. What was sampled is never encoded again. The bridge comes from the template alone. A short
conversation is rendered with a sentinel in the place of the answer, and the bridge is what follows
the sentinel. So it costs as much as the new messages, however long the conversation is.

A template has a bridge if that text depends neither on the answer nor on the turns before it. This
is found out once for each template and form of the new messages, with two sentinels and two
histories.

If the answer ended with the template's own end-of-turn token, the bridge begins behind it;
otherwise the bridge brings it. New words are foreign text: they are rendered by the same guarded
render as a first prompt's.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest, TemplateFailed
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.slots import Slot, is_ok, live
from pipegen.ending.detokenize import spell
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.continues import Continues, text_crc32
from pipegen.records.fields import integer, record, token_ids, unchecked_replace
from pipegen.records.frozen import freeze
from pipegen.records.messages import Message, plain_messages
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import PreparedImage, ResolvedRequest
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.image_places import Placeholders, kind_of
from pipegen.template.template import (
    Template,
    call,
    numbered_id,
    probed_template,
    template_of,
    tool,
)
from pipegen.template.template_facts import template_facts
from pipegen.template.untrusted import Marks

if TYPE_CHECKING:
    from pipegen.stages.rendering import Rendered


_ids = token_ids  # a field has this name
_SENTINELS = ("QZXJ7", "Qz one, two. Three")
_ADVICE = 'ask with history="template": the template then renders every turn again'
Kind = Literal["call", "text"]
"""Whether the sentinel is in a tool call, or is the text of the answer."""


@record
class Before:
    """The ids that come before a rendered bridge."""

    token_ids: Annotated[tuple[int, ...], _ids]
    """The last prompt and its answer, each image expanded to all of its tokens."""
    compact_token_ids: Annotated[tuple[int, ...], _ids]
    """The same, with one placeholder for each image."""
    image_digests: tuple[str, ...] = ()
    """The images in them."""
    anchor: str = ""
    """The control token that the text of the bridge begins with, so that it is encoded as text
    that follows one; its id is left out. Empty where the bridge brings its own.
    """
    anchor_id: Annotated[int | None, integer(low=0)] = None
    """The id of the anchor."""
    lead: Annotated[int, integer(low=0)] = 0
    """How many characters of the bridge are text that follows the text of the answer."""
    render_differs: bool | None = None
    """As in `GenerationResult`."""


class MessagesForm(NamedTuple):
    """What of the new messages decides which text the template writes around them."""

    roles: tuple[tuple[str, bool], ...]
    """The roles of the new messages, each with whether it has images; of a long run of equal ones,
    two.
    """
    tools: bool
    """Whether tools are defined."""


def form_of(messages: Sequence[Message], tools: bool) -> MessagesForm:
    """The form of the new messages.

    >>> form_of([Message(role="tool", content="a")] * 5, tools=True)
    MessagesForm(roles=(('tool', False), ('tool', False)), tools=True)
    """
    roles: list[tuple[str, bool]] = []
    for message in messages:
        entry = (message.role, bool(message.sources))
        if roles[-2:] != [entry, entry]:
            roles.append(entry)
    return MessagesForm(tuple(roles), tools)


def sentinel_for(texts: Sequence[str]) -> str:
    """Words that are in none of the texts."""
    word, joined = _SENTINELS[0], "\0".join(texts)
    return next(
        sentinel
        for sentinel in (word + "j" * count for count in range(99))
        if sentinel not in joined
    )


def history_of(
    new: Sequence[Message], sentinel: str, kind: Kind, calls: Sequence[tuple[str, str]] = ()
) -> tuple[Message, ...]:
    """A short conversation whose last turn is an answer with the sentinel, and the new messages.
    `calls` are the ids and names of the answer's tool calls.
    """
    user = Message(role="user", content="Hello there")
    return (user, _answer(sentinel, kind, calls or _calls_for(new)), *new)


def _calls_for(new: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The ids and names of the calls whose results begin the new messages."""
    calls: list[tuple[str, str]] = []
    for message in new:
        if message.role != "tool":
            break
        call_id, name = (message.extras.get(key) for key in ("tool_call_id", "name"))
        calls.append((str(call_id or numbered_id(len(calls))), str(name or "probe")))
    return tuple(calls)


def _answer(sentinel: str, kind: Kind, calls: Sequence[tuple[str, str]]) -> Message:
    if kind == "text":
        return Message(role="assistant", content=sentinel)
    words = [*["none"] * (len(calls) - 1), sentinel]
    entries = [
        call(name, {"probe": word}, call_id)
        for (call_id, name), word in zip(calls, words, strict=True)
    ]
    return Message(role="assistant", content="", extras=freeze({"tool_calls": entries}))


class _Shape(NamedTuple):
    """What is found out about a template and a form."""

    kind: Kind
    ends: tuple[str, ...]
    """The texts behind the answer in conversations that end with it, without a new turn."""


@functools.lru_cache(maxsize=128)
def _shape(template: Template, form: MessagesForm) -> Slot[_Shape]:
    """How the template goes on after an answer; `TemplateFailed` where that is not well defined."""
    of_text = functools.partial(_shape_of, "text", template, form)
    if form.roles[0][0] != "tool":
        return of_text()
    return _shape_of("call", template, form).lash(lambda _: of_text())


def _shape_of(kind: Kind, template: Template, form: MessagesForm) -> Slot[_Shape]:
    """The same, after an answer of this kind."""
    new, tools = _probes(form), [tool("probe", "probe")] if form.tools else []
    written: set[str] = set()
    ends: set[str] = set()
    for earlier, sentinel in itertools.product(_earlier(form), _SENTINELS):
        turns = plain_messages((*earlier, *history_of(new, sentinel, kind)))
        behind = functools.partial(_following, sentinel)
        after = template.write(turns, tools).bind(behind)
        if not is_ok(after):
            return _no_bridge(after.failure().message)
        written.add(after.unwrap())
        ended = {"add_generation_prompt": False, "continue_final_message": False}
        end = template.write(turns[: -len(new)], tools, **ended).bind(behind)
        ends.update(live((end,)))
    if len(written) > 1:
        return _no_bridge(
            "what it writes after an answer depends on the answer, or on the turns before it"
        )
    absent = _unwritten_role(form, written.pop())
    if absent is not None:
        return _no_bridge(f"it does not write a turn of role {absent!r} behind an answer")
    return Success(_Shape(kind, tuple(sorted(ends))))


def _no_bridge(why: str) -> Slot[_Shape]:
    message = f"the chat template has no bridge to such a turn: {why}"
    return Failure(TemplateFailed(message, hint=_ADVICE))


def _unwritten_role(form: MessagesForm, after: str) -> str | None:
    """The role of the first new turn whose words are not behind the answer, in their order."""
    place = 0
    for index, (role, _) in enumerate(form.roles):
        place = after.find(_words(index), place)
        if place < 0:
            return role
    return None


def _words(index: int) -> str:
    return f"probe words {index}"


def _earlier(form: MessagesForm) -> tuple[tuple[Message, ...], ...]:
    """What may be before the last turn, and must not change what follows it."""
    content = _content("Other words", any(has for _, has in form.roles))
    return (), (Message(role="user", content=content), Message(role="assistant", content="Yes."))


def _content(words: str, has_images: bool) -> Any:
    return [{"type": "image"}, {"type": "text", "text": words}] if has_images else words


def _probes(form: MessagesForm) -> tuple[Message, ...]:
    messages = []
    for index, (role, has_images) in enumerate(form.roles):
        extras = {"tool_call_id": numbered_id(index), "name": "probe"} if role == "tool" else {}
        content = _content(_words(index), has_images)
        messages.append(Message(role=role, content=content, extras=freeze(extras)))
    return tuple(messages)


def _following(sentinel: str, text: str, marks: Marks | None = None) -> Slot[str]:
    """What follows the sentinel, whose characters may be marked; `TemplateFailed` if it is not
    there once.
    """
    places = [*re.finditer(_pattern(sentinel, marks or Marks()), text)]
    if len(places) != 1:
        return Failure(TemplateFailed("it does not write the answer once, as it is", hint=_ADVICE))
    return Success(text[places[0].end() :])


def _pattern(sentinel: str, marks: Marks) -> str:
    forms: dict[str, list[str]] = {character: [character] for character in sentinel}
    for mark, original in marks.originals.items():
        if original in forms:
            forms[original] += [mark, json.dumps(mark)[1:-1]]
    return "".join(f"(?:{'|'.join(map(re.escape, forms[character]))})" for character in sentinel)


Render = Callable[[Sequence[Message]], "Slot[Rendered]"]
"""Renders messages as those of the request are, guard included."""


def kept_turn(request: GenerationRequest) -> Continues | None:
    """The turn whose ids the prompt begins with; None where it does not. A chat server's has none."""
    continues = request.continues
    if continues is None or continues.history != "kept" or continues.prompt_token_ids is None:
        return None
    return continues


class PromptInputs(NamedTuple):
    """What a request's prompt is written by."""

    resolved: ResolvedRequest
    tokenizer: Tokenizer
    renderer: Renderer
    image_marks: str
    """The added tokens that stand for images and videos."""

    @property
    def chat(self) -> ChatTemplateOptions:
        return self.resolved.options.chat or ChatTemplateOptions()

    def control(self) -> ControlTokens:
        template = probed_template(self.renderer, self.chat)
        return template_facts(self.tokenizer, template, self.image_marks).control


def bridged(inputs: PromptInputs, continues: Continues, render: Render) -> Slot[Rendered]:
    """The bridge of a request that continues this turn, as rendered text, with the ids before it.

    `TemplateFailed` where the template has none for these messages, `InvalidRequest` where the ids
    are another tokenizer's, and all that the render of the messages fails with.
    """
    resolved, tokenizer, renderer, _ = inputs
    request, chat = resolved.request, inputs.chat
    messages = request.messages or ()
    read = text_crc32(spell(tokenizer, continues.token_ids)[0])
    if continues.raw_text_crc32 not in (None, read):
        return Failure(
            InvalidRequest(
                "this tokenizer reads the ids of the answer before as another text: they are ids of"
                " another model",
                hint='go on with the model that answered, or with history="template"',
            )
        )
    new, answer = messages[continues.messages :], messages[continues.messages - 1]
    template = template_of(renderer, chat)
    switches = {
        "add_generation_prompt": bool(chat.add_generation_prompt),
        "continue_final_message": bool(chat.continue_final_message),
    }
    template = template._replace(variables=freeze({**switches, **template.variables}))
    sentinel = sentinel_for([str(plain_messages(new)), str(request.tools)])

    def cut(shape: _Shape, rendered: Rendered, after: str) -> Rendered:
        tokens = rendered.control or inputs.control()
        start, anchor = _begins(after, shape, continues.token_ids[-1:], tokens)
        text = after[start:]
        bridge = rendered.rewritten(
            lambda full_text: anchor + full_text[len(full_text) - len(text) :]
        )
        differs = continues.render_differs or _differs(
            render, answer, new, continues, (bridge.text or "")[len(anchor) :], tokenizer
        )
        before = Before(
            token_ids=continues.before,
            compact_token_ids=continues.compact_before,
            image_digests=continues.image_digests,
            anchor=anchor,
            anchor_id=tokens.ids[anchor] if anchor else None,
            lead=0 if anchor else len(tokens.pieces(text, at_most=1)[0]),
            render_differs=differs,
        )
        return unchecked_replace(bridge, request=request, before=before)

    def bridge_of(shape: _Shape) -> Slot[Rendered]:
        short = render(history_of(new, sentinel, shape.kind, _calls_of(answer, new)))
        return short.bind(
            lambda rendered: _following(sentinel, rendered.to_tokenize, rendered.marks).map(
                functools.partial(cut, shape, rendered)
            )
        )

    return _shape(template, form_of(new, bool(request.tools))).bind(bridge_of)


def _begins(
    after: str, shape: _Shape, last: tuple[int, ...], control: ControlTokens
) -> tuple[int, str]:
    """Where the bridge begins in the text behind the answer, and the token that it begins behind:
    the one that the answer ended with, if the template writes it there.
    """
    pieces = control.pieces(after, at_most=1)
    if shape.kind == "text":
        if len(pieces) < 2 or pieces[0].strip():
            return 0, ""  # no token ends the turn
        end = len(pieces[0]) + len(pieces[1])
        return (end, pieces[1]) if (control.ids[pieces[1]],) == last else (0, "")
    closing = [token for text in shape.ends[:1] for token in control.pieces(text)[1::2]]
    written = [token for token in closing if token in after]
    end_token = next((token for token in closing if (control.ids[token],) == last), None)
    if end_token is not None and written:
        token = end_token if end_token in written else written[-1]
        return after.index(token) + len(token), token
    if written:
        return after.index(written[-1]), ""
    end_text = shape.ends[0].rstrip() if shape.ends else ""
    return (len(end_text) if after.startswith(end_text) else 0), ""


def _calls_of(answer: Message, new: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """The ids and names of the answer's tool calls; those of the results where it has none."""
    calls = answer.extras.get("tool_calls") or ()
    named: dict[str, str] = {}
    for each in calls if isinstance(calls, tuple) else ():
        function = each.get("function") if isinstance(each, Mapping) else None
        if isinstance(function, Mapping):
            named[str(each.get("id"))] = str(function.get("name"))
    of_results = _calls_for(new)
    if named and all(call_id in named for call_id, _ in of_results):
        return tuple(named.items())
    return of_results


def _differs(
    render: Render,
    answer: Message,
    new: Sequence[Message],
    continues: Continues,
    text: str,
    tokenizer: Tokenizer,
) -> bool:
    """Whether the template would write the answer and what follows it in another way, or the
    tokenizer would encode the answer in another way.
    """
    user = Message(role="user", content="Hello there")
    prompt, rendered = render((user,)), render((user, answer, *new))
    written = call_tokenizer(tokenizer.decode, continues.token_ids)
    same = prompt.bind(
        lambda before: rendered.map(
            lambda whole: (before.text or "") + written + text == whole.text
        )
    )
    return (
        not same.value_or(False) or call_tokenizer(tokenizer.encode, written) != continues.token_ids
    )


def check_earlier_images(
    before: Before,
    images: Sequence[PreparedImage],
    tokenizer: Tokenizer,
    placeholders: Placeholders,
) -> InvalidRequest | None:
    """Why the images are not those that the ids before the bridge are of; None if they are."""
    for index, (image, digest) in enumerate(zip(images, before.image_digests, strict=False)):
        if image.digest != digest:
            return InvalidRequest(
                f"{kind_of(image)} {index} has other pixels than in the earlier turn",
                hint="keep the files of a conversation's images as they are, or give their bytes",
            )
    tokens = placeholders.ids(tokenizer)
    for kind, count in placeholders.counts(images):
        places = before.compact_token_ids.count(tokens[kind]) if kind in tokens else 0
        if places != count:
            return InvalidRequest(
                f"the turns so far hold {places} {kind} placeholders {placeholders.of(kind)!r} for"
                f" {count} {kind}s: the answer wrote some",
                hint="leave this answer out of the conversation",
            )
    if not tokens or any(image.expansion is not None for image in images):
        return None
    longer = sum(image.tokens - 1 for image in images)
    if len(before.token_ids) - len(before.compact_token_ids) != longer:
        return InvalidRequest(
            "an image of an earlier turn takes another number of tokens than it took there",
            hint="keep the options preprocess as they were in the first turn",
        )
    return None
