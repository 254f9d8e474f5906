"""The engine behind the chat route: the server renders, tokenises and decodes; the text is cut here, by the same `cut` as everywhere."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.backends.http.access import Access
from pipegen.backends.http.plain_json import encoded
from pipegen.backends.servers.collect import ChatOutput, ChatRow, result_of
from pipegen.backends.servers.http_engine import HttpEngine
from pipegen.backends.servers.sending import Make
from pipegen.backends.servers.wire import Completion, Facts, ServerRequest, Wire
from pipegen.core.errors import InvalidRequest, MalformedResponse, UnsupportedMultimodal, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.route import Route, route
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.protocol import TextMade
from pipegen.engines.settings import ChatServerSettings
from pipegen.media.image import file_to_send
from pipegen.records.engine_list import shown
from pipegen.records.fields import InvalidField
from pipegen.records.messages import ImagePart, Message, plain_messages
from pipegen.records.options import resolve
from pipegen.records.requests import GenerationRequest, ImagePolicy
from pipegen.records.results import GenerationResult, ResolvedRequest
from pipegen.records.secret import revealed

__all__ = ["ChatEngine", "chat_route"]


class ChatEngine(HttpEngine[ResolvedRequest, ChatOutput]):
    """An engine that is asked in messages and answers in text. It has no tokenizer: what pipegen promises of ids does not hold here."""

    generation_config: immutabledict[str, Any] = immutabledict()

    def __init__(self, wire: Wire, access: Access, settings: ChatServerSettings, model: str) -> None:
        super().__init__(wire, access, settings, model)
        self.server_limit = settings.server_limit

    @property
    def identity(self) -> str:
        """All that is known of the weights: the model's name, and who serves it."""
        return self.address

    def _capable_by(self, facts: Facts) -> Capabilities:
        """The context length, and whether the model takes images, is the server's to say."""
        blind = _no_images(facts)
        honours = ENGINES[self.name] - {"images"} if blind else ENGINES[self.name]
        return Capabilities(engine=self.name, honours=honours, context_length=self.limit_of(facts), reason=blind)

    def resolve(self, request: GenerationRequest) -> Slot[ResolvedRequest]:
        """The request with its effective options, or the promise that does not hold when a server renders."""
        return _resolved(request, self)

    def result(self, answer: ChatOutput, route: str) -> Slot[GenerationResult]:
        """The finished result of a row's answer, cut and trimmed."""
        return result_of(answer, route, self.plugins)

    def row(self, asked: ResolvedRequest, deadline: float) -> Awaitable[Slot[ChatOutput]]:
        if self._cuts_away(asked) or self.watches:
            # The server's own cut could not be told from other ends: the stream is cut here instead, and closed.
            return self.followed(0, asked, deadline, None)
        return self.sender.whole(_Whole(self, asked), deadline)

    async def followed(self, position: int, asked: ResolvedRequest, deadline: float, tell: Callable[[TextMade], None] | None) -> Slot[ChatOutput]:
        row = ChatRow(asked, self.plugins)

        def take(piece: Completion) -> bool:
            made = row.take(piece)
            if tell is not None and (made.text or made.reasoning):
                tell(TextMade(row=position, text=made.text, reasoning=made.reasoning))
            return row.cut_short

        make = self.make(asked, stream=True)
        error = await self.sender.pieces(make, take, deadline, heavy=bool(asked.request.sources), ended=lambda: row.ended, bounded=True)
        return row.slot() if error is None else Failure(error)

    @property
    def watches(self) -> bool:
        """Whether a plugin may halt its rows."""
        return any(plugin.feed is not None for plugin in self.plugins)

    def _cuts_away(self, job: ResolvedRequest) -> bool:
        return bool(_stops(job)) and "stops" not in self.wire.server_side_stops(job.options)

    def make(self, asked: ResolvedRequest, *, stream: bool) -> Make:
        return functools.partial(self.ask, asked, stream)

    def ask(self, asked: ResolvedRequest, stream: bool, facts: Facts, model: str | None, rid: str) -> Slot[ServerRequest]:
        if asked.request.sources and _no_images(facts):
            return Failure(UnsupportedMultimodal(f"{shown(self.name)} takes no images: {_no_images(facts)}"))
        return messages_of(asked.request).map(
            lambda messages: ServerRequest(
                messages=messages,
                tools=tuple(asked.request.tools),
                options=asked.options,
                ending_ids=tuple((asked.options.stop.stop_token_ids or ()) if asked.options.stop is not None else ()),
                stops=() if self._cuts_away(asked) else _stops(asked),
                model=model,
                rid=rid,
                stream=stream,
                extra_body=revealed(self.sender.settings.extra_body),
            )
        )

    def answer(self, asked: ResolvedRequest, completions: tuple[Completion, ...]) -> Slot[ChatOutput]:
        if len(completions) != 1:
            return Failure(MalformedResponse(f"{shown(self.name)} gave {len(completions)} completions where one was asked"))
        row = ChatRow(asked, self.plugins)
        row.take(completions[0])
        return row.slot()


class _Whole(NamedTuple):
    """A row that is asked for whole."""

    engine: ChatEngine
    job: ResolvedRequest

    @property
    def heavy(self) -> bool:
        return bool(self.job.request.sources)

    def ask(self, facts: Facts, model: str | None, rid: str) -> Slot[ServerRequest]:
        return self.engine.ask(self.job, False, facts, model, rid)

    def read(self, completions: tuple[Completion, ...]) -> Slot[ChatOutput]:
        return self.engine.answer(self.job, completions)


def _no_images(facts: Facts) -> str:
    """Why the server takes no images; empty where it is not known to take none. SGLang says so only there, and leaves out images without a word."""
    return "the server's model takes none" if "images" in facts.lacks or facts.about.get("has_image_understanding") is False else ""


def _stops(job: ResolvedRequest) -> tuple[str, ...]:
    return (job.options.stop.stop or ()) if job.options.stop is not None else ()


def messages_of(request: GenerationRequest) -> Slot[tuple[Mapping[str, Any], ...]]:
    """The messages as the server takes them; a plain prompt is one user turn.

    Images go as data URLs: the file itself where its pixels are taken as they are (see `file_to_send`), else the upright RGB image as a PNG.
    """
    if request.prompt_token_ids is not None:
        return Failure(InvalidRequest("a chat server takes messages, not token ids", hint="use vllm_server or sglang_server"))
    messages = request.messages or (Message(role="user", content=request.prompt or ""),)
    plain = plain_messages(messages)
    try:
        encoded([plain, request.tools])
    except UnicodeEncodeError:
        return Failure(InvalidRequest("the messages hold half a surrogate pair", hint="send whole characters: the text was cut inside one, or decoded wrongly"))
    for message, written in zip(messages, plain, strict=True):
        for place, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if isinstance(part, ImagePart):
                url = _data_url(part)
                if not is_ok(url):
                    return Failure(url.failure())
                written["content"][place] = {"type": "image_url", "image_url": {"url": url.unwrap()}}
    return Success(tuple(plain))


def _data_url(part: ImagePart) -> Slot[str]:
    source = part.source
    if source is None or source.data is None:
        return Failure(InvalidRequest("an image of the messages was not loaded"))
    policy = ImagePolicy() if source.max_pixels is None else ImagePolicy(max_source_pixels=source.max_pixels)
    return file_to_send(source.data, policy).map(lambda file: f"data:image/{file.kind};base64,{base64.b64encode(file.data).decode('ascii')}")


def _resolved(request: GenerationRequest, engine: ChatEngine) -> Slot[ResolvedRequest]:
    """The request with its effective options, or the promise that does not hold when a server renders."""
    said = request.options
    for name, asked, words in (
        ("use_generation_config", said is not None and said.use_generation_config, "the checkpoint's generation settings are not known here"),
        ("max_prompt_tokens", said is not None and said.max_prompt_tokens is not None, "the prompt's length is not known before the server has it"),
        ("on_overflow", said is not None and said.on_overflow == "clip", "the prompt's length is not known before the server has it"),
    ):
        if asked:
            return Failure(UnsupportedOption(f"{shown(engine.name)} does not honour {name}: {words}", option=name))
    try:
        options = resolve(said)
    except InvalidField as refusal:
        return Failure(InvalidRequest(f"options: {refusal}"))
    if options.min_new_tokens and (engine.watches or (options.stop is not None and options.stop.stop)):
        words = (
            f"{shown(engine.name)} does not honour min_new_tokens with stop strings or with plugins that halt: where a token ends in the text is not known here"
        )
        return Failure(UnsupportedOption(words, option="min_new_tokens"))
    if engine.server_limit and (said is None or said.max_new_tokens is None):
        options = dataclasses.replace(options, max_new_tokens=None)
    chat = options.chat
    if (
        chat is not None
        and "reasoning_effort" in engine.sender.settings.extra_body
        and (said is None or said.chat is None or said.chat.enable_thinking is None)
    ):
        # The servers themselves switch thinking on and off by it, unless the switch is set too.
        options = dataclasses.replace(options, chat=dataclasses.replace(chat, enable_thinking=None))
    if engine.name == "openai_chat" and chat is not None:
        if said is not None and said.chat is not None and said.chat.enable_thinking is False:
            words = f"{shown(engine.name)} does not honour enable_thinking=False: a plain server has no field for it, and what it would do is not known"
            return Failure(UnsupportedOption(words, option="enable_thinking", hint="leave it out, or say the server's own switch in extra_body"))
        options = dataclasses.replace(options, chat=dataclasses.replace(chat, enable_thinking=chat.enable_thinking or None))  # nothing is said of it
    if engine.name == "sglang_chat" and chat is not None and not chat.add_generation_prompt and not chat.continue_final_message:
        return Failure(UnsupportedOption(f"{shown(engine.name)} always opens the assistant's turn", option="add_generation_prompt"))
    if engine.name in ("openai_chat", "vllm_chat") and options.decode is not None and options.decode.skip_special_tokens is False:
        return Failure(UnsupportedOption(f"{shown(engine.name)} does not honour skip_special_tokens=False", option="skip_special_tokens"))
    return Success(ResolvedRequest(request=request, options=options))


def chat_route(engine: ChatEngine) -> Route:
    """The route through a chat server: resolve >> call >> trim."""
    return route(engine)
