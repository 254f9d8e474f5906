"""The engine behind the chat route: the server renders, tokenises and decodes; the text is cut
here, by the same `TextFold` as everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.answer.answer_check import WORDS, UntrimmedAnswer, disobeyed, wrong_form
from pipegen.answer.split_thought import thinking_unfinished
from pipegen.backends.http.transport import RowCall
from pipegen.backends.servers.call_pieces import CallPieces
from pipegen.backends.servers.extra_body import unthought_form
from pipegen.backends.servers.finishes import ended_wrong
from pipegen.backends.servers.http_engine import HttpEngine, WholeRow
from pipegen.backends.servers.image_urls import messages_of
from pipegen.backends.servers.server import SPARE
from pipegen.backends.servers.wire import Completion, Facts, ServerRequest
from pipegen.core.errors import (
    GenerationError,
    InvalidRequest,
    MalformedResponse,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.ending.stop_state import TextFold
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import TextMade
from pipegen.records.engine_list import UNKNOWN_SERVERS, shown
from pipegen.records.finish_words import calls_tools, meaning_of
from pipegen.records.frozen import NOTHING
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, OTHER_NAMES
from pipegen.records.options import in_effect, resolve
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import (
    ChatOutput,
    Finish,
    GenerationResult,
    ResolvedRequest,
    TokenLogprob,
    Turn,
    closest_choice,
)
from pipegen.stages.trimming import trimmed, trimmers
from pipegen.template.call_signs import unread_by_server, what_cut

UNSET = GenerationOptions()
_CUT = (Finish.STOP_STRING, Finish.PLUGIN)
LENGTHS = frozenset(other for other, name in OTHER_NAMES.items() if name == "max_new_tokens")
"""Fields of `extra_body` that set another length than the options."""


class ChatDelta(NamedTuple):
    """What a piece brought: text that is final, and reasoning."""

    text: str
    reasoning: str


class ChatRow:
    """One row that is collected piece by piece; a whole answer is one piece.

    >>> from pipegen.records.option_records import GenerationOptions
    >>> from pipegen.records.options import resolve
    >>> from pipegen.records.requests import TextGenerationRequest
    >>> row = ChatRow(
    ...     ResolvedRequest(
    ...         request=TextGenerationRequest(prompt="Hi"),
    ...         options=resolve(GenerationOptions(stop=("END",))),
    ...     )
    ... )
    >>> (
    ...     [row.take(Completion(text=text)).text for text in ("a E", "N", "D b")],
    ...     row.cut_short,
    ...     row.slot().unwrap().stop,
    ... )
    (['a ', '', ''], True, 'END')
    """

    def __init__(
        self, resolved: ResolvedRequest, plugins: Sequence[Plugin] = (), server: str = "the server"
    ) -> None:
        decode, self._server = resolved.options.decode, server
        self._resolved, self._stops = resolved, _stops(resolved)
        self._fold = TextFold(
            self._stops, plugins=plugins, strip=decode is not None and bool(decode.strip_whitespace)
        )
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallPieces()
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_ids: tuple[int, ...] = ()
        self._refusal: list[str] = []
        self._names: dict[str, int] = {}
        """The server's names for the answer, each with the number of its pieces."""
        self._finish: str | None = None
        self._words = ""
        self._usage: Mapping[str, int] = {}
        self._error: GenerationError | None = None

    @property
    def cut_short(self) -> bool:
        """Whether nothing more is wanted: a stop completed in the text, a plugin halted the row, or
        a piece was malformed.
        """
        fold = self._fold
        return self._error is not None or fold.failure is not None or fold.finish in _CUT

    @property
    def ended(self) -> bool:
        """Whether the row ended, by the server's word or by pipegen's."""
        return self.cut_short or self._finish is not None

    @property
    def left(self) -> bool:
        """Whether the row is over before the server has ended it. A row that the server ended at a
        stop is read on: its counts come last.
        """
        return self._finish is None and self.cut_short

    @property
    def _wrong(self) -> GenerationError | None:
        return self._error or self._fold.failure

    def take(self, piece: Completion) -> ChatDelta:
        """Take a piece; what of it is final. Of what comes after a row that is over, only the counts
        are of it.
        """
        self._usage = piece.usage or self._usage
        if self.cut_short:
            return ChatDelta("", "")
        goes_on = piece.text or piece.reasoning or piece.tool_calls
        if self._finish is not None and (goes_on or piece.finish not in (None, self._finish)):
            more = "" if goes_on else f", with finish_reason {piece.finish!r:.40}"
            self._error = MalformedResponse(
                f"the stream goes on after finish_reason {self._finish!r:.40}{more}"
            )
        if goes_on and piece.answer_id:
            self._name(piece.answer_id)
        if piece.refusal:
            self._refusal.append(piece.refusal)
        final = self._read(piece.text) if piece.text else ""
        if piece.finish is not None and self._finish is None:
            if isinstance(piece.stop, str) and piece.stop in self._stops:
                # The server cut its stop away. With it, the text is cut by pipegen's rule,
                # whichever stop the server took.
                final += self._read(piece.stop)
            final += self._fold.end(*self._ending(piece.finish, piece.stop))
            self._finish, self._words = piece.finish, piece.words
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        for place, call in enumerate(piece.tool_calls):
            self._error = self._calls.add(call, place) or self._error
        self._ids += piece.token_ids or ()
        self._logprobs += piece.logprobs or ()
        self._prompt_ids = piece.prompt_token_ids or self._prompt_ids
        return ChatDelta(final, piece.reasoning or "")

    def _read(self, text: str) -> str:
        """What is final with this text. A plugin sees it character by character, so that it halts
        before a stop that completes later in the piece.
        """
        self._text.append(text)
        if self._fold.watched:
            return "".join(map(self._fold.feed_text, text))
        return self._fold.feed_text(text)

    def _ending(self, finish: str, stop: str | int | None) -> tuple[Finish, str | int | None]:
        """How the row ended, by the words of the server."""
        meaning = meaning_of(finish)
        if meaning != "stop":
            return (Finish.LENGTH if meaning == "length" else Finish.ABORTED), None
        stop_options = self._resolved.options.stop
        if stop_options is not None and stop in (stop_options.stop_token_ids or ()):
            return Finish.STOP_TOKEN, stop
        return Finish.EOS, None

    def _settled(self, text: str) -> Finish | None:
        """How the row ended. A word that is not known stands for the end that pipegen sees: the
        length that was asked, or a form that is complete.
        """
        finish, options = self._fold.finish, self._resolved.options
        if finish is not Finish.ABORTED or meaning_of(self._finish or "") != "unknown":
            return finish
        if (
            options.max_new_tokens
            and self._usage.get("completion_tokens") == options.max_new_tokens
        ):
            return Finish.LENGTH
        form = options.structured
        whole = form is not None and form.regex is None and not wrong_form(text, form)
        return Finish.EOS if whole else finish

    def _name(self, answer_id: str) -> None:
        """Take the server's name for the answer that a piece is of: the same in all of them, or
        another one in each.
        """
        self._names[answer_id] = self._names.get(answer_id, 0) + 1
        if 1 < len(self._names) < sum(self._names.values()):
            ids = " and ".join(repr(name)[:60] for name in list(self._names)[:2])
            self._error = MalformedResponse(
                f"the stream mixes the pieces of several answers, of the ids {ids}"
            )

    def _lost_call(self, text: str) -> str | None:
        """What says that a tool call did not come, or not whole."""
        calls = self._calls.joined
        for place, call in enumerate(calls):
            if not call.get("function", {}).get("name"):
                return f"tool_calls[{place}] names no function"
        if not calls and not text and calls_tools(self._finish or ""):
            return f"the answer ended with finish_reason {self._finish!r:.40}, and holds no call"
        return None

    def slot(self, limit: int | None = None) -> Slot[ChatOutput]:
        """The finished row's answer, with the limit that the server names for it. What a server
        writes behind its end is no part of the row.
        """
        if self._wrong is not None:
            return Failure(self._wrong)
        fold, text = self._fold, "".join(self._text)
        finish, refusal = self._settled(text[: fold.length]), "".join(self._refusal)
        given_up = self._finish is not None and finish is Finish.ABORTED
        if given_up or (refusal and fold.finish not in _CUT):
            return Failure(
                ended_wrong(
                    self._server, self._finish or "", self._words, text[: fold.length], refusal
                )
            )
        if fold.finish not in _CUT and (lost := self._lost_call(text)) is not None:
            return Failure(MalformedResponse(lost))
        output = ChatOutput(
            resolved=self._resolved,
            text=text[: fold.length],
            raw_text=text[: fold.seen],
            reasoning="".join(self._reasoning) if self._reasoning else None,
            tool_calls=self._calls.joined,
            finish=finish or fold.finish or Finish.ABORTED,
            stop=fold.stop,
            token_ids=tuple(self._ids),
            logprobs=tuple(self._logprobs) if self._resolved.options.logprobs else None,
            prompt_token_ids=self._prompt_ids,
            usage=immutabledict(self._usage),
            limit=limit,
        )
        return Success(output)


def result_of(
    output: ChatOutput,
    route: str,
    plugins: Sequence[Plugin],
    extra_body: Mapping[str, object] = NOTHING,
) -> Slot[GenerationResult]:
    """The result: stripped and trimmed as on every route, with the counts that the server reports.

    A server that ends a row for its length before `max_new_tokens` has clipped it. The options then
    say what was really allowed, and `clipped_from` what was asked. Where the server had room for
    more, by its limit of a row, that is no answer to the request.
    """
    token_count, token_limit = (
        output.usage.get("completion_tokens", len(output.token_ids)),
        output.resolved.options.max_new_tokens or 0,
    )
    judged = _judged(output, token_count, route, extra_body)
    wrong = disobeyed(judged, output.resolved.options, route)
    if wrong is not None:
        return Failure(wrong)
    clipped = output.finish is Finish.LENGTH and 0 < token_count < token_limit
    options = (
        dataclasses.replace(output.resolved.options, max_new_tokens=token_count)
        if clipped
        else output.resolved.options
    )
    return trimmed(output.text, options, plugins).map(
        lambda text: GenerationResult(
            id=output.resolved.request.id,
            text=text,
            raw_text=output.raw_text,
            prompt_token_ids=output.prompt_token_ids,
            token_ids=output.token_ids,
            finish=output.finish,
            stop=output.stop,
            prompt_tokens=output.usage.get("prompt_tokens", len(output.prompt_token_ids)),
            completion_tokens=token_count,
            logprobs=output.logprobs,
            margin=closest_choice(output.logprobs),
            route=route,
            reasoning=output.reasoning,
            thinking_unfinished=not output.tool_calls
            and thinking_unfinished(output.finish, output.raw_text, reasoning=output.reasoning),
            tool_calls=output.tool_calls,
            tool_calls_unread=None
            if output.tool_calls or options.structured is not None
            else unread_by_server(
                output.text,
                output.resolved.request.tools,
                what_cut(output.finish, output.stop, options),
            ),
            options=options,
            clipped_from=token_limit if clipped else None,
            trimmed_by=trimmers(plugins),
            exact=None if output.resolved.request.continues is None else False,
            turn=Turn(request=output.resolved.request),
        )
    )


def _judged(
    output: ChatOutput, token_count: int, route: str, extra_body: Mapping[str, object]
) -> UntrimmedAnswer:
    """The answer, as far as it can be judged. Of a plain server, whose fields for a length are not
    all known, only more tokens than it was asked for are held against it.
    """
    prompt, limit = output.usage.get("prompt_tokens", 0), output.limit
    most, counted = output.resolved.options.max_new_tokens, route not in UNKNOWN_SERVERS
    if not counted and most is not None and not LENGTHS.intersection(extra_body):
        counted = token_count > most + 1  # it may count the end token beside them
    return UntrimmedAnswer(
        text=output.text,
        finish=WORDS[output.finish],
        stops=output.finish is not Finish.EOS,
        token_count=token_count if counted else None,
        room=None if limit is None or not prompt else limit - prompt - SPARE,
        called=bool(output.tool_calls),
    )


class ChatEngine(HttpEngine[ResolvedRequest, ChatOutput]):
    """An engine that is asked in messages and answers in text. It has no tokenizer: what pipegen
    promises of ids does not hold here.
    """

    generation_config: immutabledict[str, object] = immutabledict()

    @property
    def identity(self) -> str:
        """All that is known of the weights: the model's name, and who serves it."""
        return self.address

    @property
    def depends_on(self) -> Mapping[str, object]:
        """See `answers_depend_on`. Of the model, its name at the server and the server's address are
        known.
        """
        return {"base_url": self.server_root, **self.asked_settings()}

    def capabilities_by(self, facts: Facts) -> Capabilities:
        """The context length, and whether the model takes images, is the server's to say."""
        blind = _no_images(facts)
        honours = ENGINES[self.name] - {"images"} if blind else ENGINES[self.name]
        return Capabilities(
            engine=self.name, honours=honours, context_length=self.limit_of(facts), reason=blind
        )

    def resolve(self, request: GenerationRequest) -> Slot[ResolvedRequest]:
        """The request with its effective options, or the promise that does not hold when a server
        renders.
        """
        requested = request.options or UNSET
        thinks = None if requested.chat is None else requested.chat.enable_thinking
        unread = {
            "fit": "the prompt's length is not known before the server has it",
            "resolve": "the checkpoint's generation settings are not known here",
        }
        for name in in_effect(requested):
            if words := unread.get(OPTIONS[name].row.stage):
                return self._refused(name, f"does not honour {name}: {words}")
        try:
            options = resolve(request.options)
        except InvalidField as refusal:
            return Failure(InvalidRequest(f"options: {refusal}"))
        if options.min_new_tokens and (
            self.watches or (options.stop is not None and options.stop.stop)
        ):
            words = (
                "with stop strings or with plugins that halt: where a token ends in the text is not"
                " known here"
            )
            return self._refused("min_new_tokens", f"does not honour min_new_tokens {words}")
        if self.sender.settings.server_limit and requested.max_new_tokens is None:
            options = dataclasses.replace(options, max_new_tokens=None)
        chat = options.chat
        if (
            chat is not None
            and "reasoning_effort" in self.sender.settings.extra_body
            and thinks is None
        ):
            # The servers themselves switch thinking on and off by it, unless the switch is set too.
            options = dataclasses.replace(
                options, chat=dataclasses.replace(chat, enable_thinking=None)
            )
        if not self.wire.known and chat is not None:
            if thinks is False:
                words = (
                    "does not honour enable_thinking=False: a plain server has no field for it, and"
                    " what it would do is not known"
                )
                return self._refused(
                    "enable_thinking",
                    words,
                    hint="leave it out, or set the server's own switch in extra_body",
                )
            # nothing is sent
            options = dataclasses.replace(
                options, chat=dataclasses.replace(chat, enable_thinking=thinks)
            )
        return Success(ResolvedRequest(request=request, options=options))

    def _refused(self, option: str, words: str, hint: str = "") -> Failure[Any]:
        return Failure(UnsupportedOption(f"{shown(self.name)} {words}", option=option, hint=hint))

    def result(self, answer: ChatOutput, route: str) -> Slot[GenerationResult]:
        """The finished result of a row's answer, cut and trimmed.

        A server without a reasoning parser holds a form from the first token, so that nothing is
        thought: its answer is no answer to a request for both.
        """
        thought = answer.reasoning or answer.tool_calls or not self.wire.known
        unthought = (
            None if thought else unthought_form(answer.resolved.options, self.sender.extra_body)
        )
        if unthought is not None:
            hint = (
                "start the server with a reasoning parser (--reasoning-parser), or"
                f" {unthought.hint}"
            )
            return Failure(unthought.with_fields(hint=hint))
        made = result_of(answer, route, self.plugins, self.sender.extra_body)
        return made.alt(self.sender.access.scrubbed)

    def row(self, engine_input: ResolvedRequest, call: RowCall) -> Awaitable[Slot[ChatOutput]]:
        if self._cuts_away(engine_input) or self.watches:
            # The server's own cut looks like other ends: the stream is cut here instead, and
            # closed.
            return self.followed(0, engine_input, call, None)
        return self.sender.whole(WholeRow(self, engine_input), call)

    async def followed(
        self,
        position: int,
        engine_input: ResolvedRequest,
        call: RowCall,
        tell: Callable[[TextMade], None] | None,
    ) -> Slot[ChatOutput]:
        row = ChatRow(engine_input, self.plugins, shown(self.name))

        def take(piece: Completion) -> bool:
            addition = row.take(piece)
            if tell is not None and (addition.text or addition.reasoning):
                tell(TextMade(row=position, text=addition.text, reasoning=addition.reasoning))
            return row.left

        make = functools.partial(self.ask, engine_input, True)
        error = await self.sender.pieces(
            make, take, call, heavy=self.heavy(engine_input), ended=lambda: row.ended, bounded=True
        )
        return self._ended(row) if error is None else Failure(error)

    @property
    def watches(self) -> bool:
        """Whether a plugin may halt its rows."""
        return any(plugin.feed is not None for plugin in self.plugins)

    def _cuts_away(self, engine_input: ResolvedRequest) -> bool:
        return bool(_stops(engine_input)) and "stops" not in self.wire.server_side_stops(
            engine_input.options
        )

    def heavy(self, engine_input: ResolvedRequest) -> bool:
        return bool(engine_input.request.sources)

    def ask(self, engine_input: ResolvedRequest, stream: bool, facts: Facts) -> Slot[ServerRequest]:
        if engine_input.request.sources and _no_images(facts):
            return Failure(
                UnsupportedMultimodal(f"{shown(self.name)} takes no images: {_no_images(facts)}")
            )
        return messages_of(engine_input.request).map(
            lambda messages: ServerRequest(
                messages=messages,
                tools=engine_input.request.tools,
                options=engine_input.options,
                ending_ids=(
                    (engine_input.options.stop.stop_token_ids or ())
                    if engine_input.options.stop is not None
                    else ()
                ),
                stops=() if self._cuts_away(engine_input) else _stops(engine_input),
                stream=stream,
            )
        )

    def answer(self, engine_input: ResolvedRequest, completion: Completion) -> Slot[ChatOutput]:
        row = ChatRow(engine_input, self.plugins, shown(self.name))
        row.take(completion)
        return self._ended(row)

    def _ended(self, chat_row: ChatRow) -> Slot[ChatOutput]:
        """The finished row's answer, with its exact limit where the server names one."""
        return chat_row.slot(self.limit_of(self.known) if self.wire.exact_limit else None)


def _no_images(facts: Facts) -> str:
    """Why the server takes no images; empty where it is not known to take none. SGLang says so only
    there, and leaves out images without a word.
    """
    return (
        "the server's model takes none"
        if "images" in facts.lacks or facts.about.get("has_image_understanding") is False
        else ""
    )


def _stops(resolved: ResolvedRequest) -> tuple[str, ...]:
    return (resolved.options.stop.stop or ()) if resolved.options.stop is not None else ()
