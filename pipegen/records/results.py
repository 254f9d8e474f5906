"""The records of a pipeline, from the resolved request to the result.

>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> GenerationResult(
...     text="a", raw_text="a", finish=Finish.EOS, options=resolve(GenerationOptions())
... ).finish.value
'eos'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from returns.result import Failure, Success

from pipegen.core.errors import GenerationError
from pipegen.core.slots import Batch
from pipegen.records.call_form import CallForm
from pipegen.records.continues import History
from pipegen.records.fields import BRIEF, UNWRITTEN, FieldRow, instance, record, string
from pipegen.records.messages import Message, plain_messages
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.rollouts import Grid, Rollout, one_rollout, rollouts_of

RoundsEnd = Literal["done", "limit", "tokens", "unread", "cut"]
"""How the rounds of a loop ended."""
Thinking = Literal["honoured", "unsupported"]
"""Whether the chat template honours the thinking switch."""
_ANSWER, _SEEN = FieldRow(brief=True, column="answer"), FieldRow(brief=True, column="more")
_USAGE, _MORE = FieldRow(column="usage"), FieldRow(column="more")
_IDS, _SCORES = FieldRow(column="ids"), FieldRow(column="scores")
_RUN = FieldRow(column="run")


class Finish(StrEnum):
    """How a generation ended. Not an error."""

    EOS = "eos"
    """The model ended its answer."""
    STOP_TOKEN = "stop_token"
    """An id of `stop_token_ids`, or a stop that is one special token, ended it."""
    STOP_STRING = "stop_string"
    """A stop string ended it."""
    PLUGIN = "plugin"
    """A plugin ended it."""
    LENGTH = "length"
    """It reached `max_new_tokens`."""
    ABORTED = "aborted"
    """The engine ended it early."""


@record
class PreparedImage:
    """An image, or the frames of a video, as every engine gets it: RGB, upright, resized once."""

    width: int
    """In pixels."""
    height: int
    """In pixels."""
    rgb: bytes
    """The pixels, row by row: `height * width * 3` bytes; of a video frame by frame."""
    digest: str
    """SHA-256 of the upright RGB image before it was resized: the same for the same pixels,
    whatever the source. Of a video: of its chosen frames and their times.
    """
    grid: Grid | None = None
    """Patches in time, height and width, where the model works on such a grid."""
    tokens: int = 1
    """How many tokens of the prompt the image takes."""
    times: tuple[float, ...] = ()
    """Of a video, the time of each frame in seconds; empty for an image."""
    expansion: str | None = None
    """What replaces its placeholder in the prompt, if that is more than copies of it: frames, tile
    marks, line ends, time stamps.
    """

    @property
    def is_video(self) -> bool:
        """Whether these are the frames of a video."""
        return bool(self.times)

    def __repr__(self) -> str:
        return (
            f"PreparedImage({self.width}x{self.height}, {self.digest[:12]}, grid={self.grid},"
            f" tokens={self.tokens})"
        )


@record
class ResolvedRequest:
    """A request with its effective options."""

    request: GenerationRequest
    """The request as it came."""
    options: Annotated[GenerationOptions, instance(GenerationOptions)]
    """Its options, with a value for each of them."""


@record
class ThoughtForm:
    """The ids that a chat template writes around a thought."""

    opens: tuple[int, ...]
    """What is between the prompt and the thought; empty where the prompt opens it."""
    closes: tuple[int, ...]
    """What is between the thought and its end token."""
    end_id: int
    bridge: tuple[int, ...]
    """What is between the end token and the answer."""
    text_opens: tuple[int, ...] = ()  # what a text then begins with, if a call begins otherwise


@record
class Prompt:
    """The record of a prompt: the ids are what every engine gets."""

    token_ids: tuple[int, ...]
    """The ids, with each image and video expanded to all of its tokens."""
    compact_token_ids: tuple[int, ...]
    """The ids, with one placeholder for each image and video."""
    text: str | None = None
    """The rendered text; `None` if the request gave ids."""
    images: tuple[PreparedImage, ...] = ()
    """The images and videos, in message order."""
    thinking: Thinking | None = None
    """Whether the template honours the thinking switch."""
    render_differs: bool | None = None
    """As in `GenerationResult`."""
    thought: ThoughtForm | None = None
    """How the template writes a thought, where the row thinks before it answers."""
    call: CallForm | None = None
    """How the template writes a tool call, where the answer is to be one."""


@record
class Encoded:
    """A prompt and the effective options: the input of an engine."""

    request: GenerationRequest
    """The request as it came."""
    options: Annotated[GenerationOptions, instance(GenerationOptions)]
    """The effective options: an engine reads every setting here."""
    prompt: Annotated[Prompt, instance(Prompt)]
    """The ids and the images."""
    clipped_from: int | None = None
    """The requested `max_new_tokens`, if `on_overflow="clip"` lowered it."""
    plugins_in_engine: bool = True
    """Whether plugins watch the row while it is generated. False where a stage of one's own may
    change what they are to see: then the stage `stop` shows them the text."""
    checked: int | None = dataclasses.field(default=None, init=False, compare=False, repr=False)
    """Set by the stage `fit`: a model with so many ids has all of this row, and no engine looks at
    them again. A changed copy has lost it."""


@record
class TokenLogprob:
    """The log probability (natural) of one generated token: the model's own, before penalties,
    temperature and filters, or with `logprobs="processed"` that after them.
    """

    token_id: int
    """The generated token."""
    logprob: float
    """Its log probability."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens at that position with their log probabilities, best first, if
    requested; none whose probability is 0.
    """
    margin: float | None = None
    """The difference between the two greatest log probabilities there. None if the engine does not
    report two.
    """
    text: str | None = None
    """The token's own text. U+FFFD stands for a part of a character. None before it is decoded."""
    top_texts: tuple[str, ...] = ()
    """The own texts of the tokens in `top`."""


def margin_of(logprobs: Iterable[float]) -> float | None:
    """The difference between the two greatest log probabilities at one position; None if unknown.

    >>> margin_of([-2.0, -0.5, -0.75]), margin_of([-0.5]), margin_of([-0.5, float("-inf")])
    (0.25, None, None)
    """
    best = sorted(logprobs, reverse=True)[:2]
    return best[0] - best[1] if len(best) == 2 and math.isfinite(best[0] - best[1]) else None


def closest_choice(logprobs: Sequence[TokenLogprob] | None) -> float | None:
    """The smallest margin of these tokens; None if there are none or one is unknown.

    >>> closest_choice(
    ...     [
    ...         TokenLogprob(token_id=1, logprob=-0.5, margin=0.25),
    ...         TokenLogprob(token_id=2, logprob=-1.0, top=((3, -0.5), (2, -1.0))),
    ...     ]
    ... )
    0.25
    """
    margins = [
        token.margin if token.margin is not None else margin_of(value for _, value in token.top)
        for token in logprobs or ()
    ]
    known_margins = [margin for margin in margins if margin is not None]
    return min(known_margins) if known_margins and len(known_margins) == len(margins) else None


@record
class Ending:
    """How a row ended, as whatever followed its ids found it."""

    finish: Finish
    """How the row ended."""
    stop: str | int | None = None
    """The stop string, token id or plugin that ended it."""
    length: int | None = None
    """How many characters of the text belong to the answer; None where nothing is cut, or the text
    ends before `stop`, which its last token completes.
    """
    watched: tuple[str, ...] = ()
    """The names of the plugins that have seen the text."""
    token_ids: Annotated[tuple[int, ...], UNWRITTEN]
    """The generated ids that it is about."""
    options: Annotated[GenerationOptions, UNWRITTEN]
    """The options under which they were followed."""

    def is_about(self, raw: Raw) -> bool:
        """Whether it is about this very answer. A stage that gives the row other ids or options has
        the row judged anew.
        """
        return self.token_ids == raw.token_ids and self.options == raw.encoded.options


@record
class Thought:
    """What was generated before the answer of a row, in a call of its own (see
    `pipegen.template.thinking`).
    """

    asked: Encoded
    """The row as it came to its call; the options of the answer's call are made of its own."""
    token_ids: tuple[int, ...]
    """The ids before the answer, with those that the template writes around a thought."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each id, if the option `logprobs` is on."""
    forced: Annotated[tuple[int, ...], _IDS] = ()
    """The places of the ids that were not generated."""
    text: str
    """The thought alone."""
    closed: bool
    """Whether it ended, so that the answer could begin."""


@record
class Raw:
    """What an engine returns for one row. Shared stages make the text from the ids."""

    _text_is = "token_ids"  # what a stage that keeps the text may not change: see pg.each
    encoded: Annotated[Encoded, UNWRITTEN]
    """What the engine was called with."""
    token_ids: tuple[int, ...]
    """The generated ids, the ending one included."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each id, if the option `logprobs` is on."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """One for each id of the prompt, None for the first, if the option `prompt_logprobs` is on."""
    aborted: bool = False
    """The engine stopped the row early, for example because it was cancelled."""
    ended_by_plugin: str | None = None
    """The name of the engine-side plugin that ended the row."""
    ending: Annotated[Ending | None, UNWRITTEN] = None
    """How the row ended, where it was followed. If it says where in the text, the stage `stop` looks
    for no stop and shows the plugins nothing again. It counts for its own ids and options only."""
    forced: Annotated[tuple[int, ...], UNWRITTEN] = ()
    """The places of the ids that were not generated. Set by the stage `call`."""
    thought: Annotated[Thought | None, UNWRITTEN] = None
    """What the row thought before; its ids are in the prompt of `encoded`. Set by `call`."""
    call: tuple[str, str] | None = None
    """The name and arguments of the forced tool call, where it is complete. Set by `call`."""


@record
class ChatOutput:
    """What a chat server answered for one row."""

    _text_is = "text"  # what a stage that keeps the text may not change: see pg.each
    resolved: Annotated[ResolvedRequest, UNWRITTEN]
    """What it was asked."""
    text: Annotated[str, string]
    """The answer, cut before the stop."""
    raw_text: Annotated[str, string]
    """The answer as it came."""
    reasoning: str | None = None
    """The reasoning, where the server gives it apart."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """The tool calls, as the server gives them."""
    finish: Finish
    """How the generation ended."""
    stop: str | int | None = None
    """The stop string, token id or plugin that ended it."""
    token_ids: tuple[int, ...] = ()
    """The generated ids, where the server tells them."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token, if the option `logprobs` is on."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt's ids, where the server tells them."""
    usage: Mapping[str, int]
    """The server's own counts."""
    limit: int | None = None
    """The most tokens that prompt and answer might have together, where the server said so."""


@record
class Decoded:
    """Generated ids as text, with how it ended."""

    _text_is = "text"  # what a stage that keeps the text may not change: see pg.each
    raw: Raw
    """What the engine returned."""
    text: Annotated[str, string]
    """The ids as text, without special tokens unless asked."""
    raw_text: Annotated[str, string]
    """The ids as text, special tokens included."""
    text_ends: tuple[int, ...]
    """The length of `text`, in characters, after each token."""
    raw_ends: tuple[int, ...]
    """The length of `raw_text`, in characters, after each token."""
    finish: Annotated[Finish, instance(Finish)]
    """How the generation ended."""
    stop: str | int | None = None
    """The stop string, token id or plugin that ended it."""
    stage_text: str | None = None
    """The text as the stages `decode` and `stop` wrote it, from what the engine generated. Another
    `text` is one that a stage of your own has changed.
    """
    engine_texts: tuple[str, str, tuple[int, ...], tuple[int, ...]] | None = None
    """The texts that `raw.ending` is about, and the lengths after each token, where the row was
    followed: other texts are searched again.
    """

    @property
    def spelled(self) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
        """Both texts, and the lengths of both after each token."""
        return self.text, self.raw_text, self.text_ends, self.raw_ends


@record
class Turn:
    """What `GenerationResult.then` needs beside the result itself."""

    request: GenerationRequest
    """The request, with the conversation so far."""
    compact_token_ids: tuple[int, ...] | None = None
    """The ids of its prompt with one placeholder for each image; None where there are no images."""


@record
class GenerationResult:
    """One finished generation."""

    _text_is = "text"  # what a stage that keeps the text may not change: see pg.each
    _word = "result"  # in messages of the codec
    id: str | None = None
    """The `id` of the request."""
    text: Annotated[str, string, _ANSWER]
    """The answer: decoded, cut before the stop, stripped if asked, trimmed by plugins."""
    raw_text: Annotated[str, string, _MORE]
    """Everything generated, special tokens and the ending included; never stripped, never
    padded.
    """
    prompt_text: str | None = None
    """The prompt as the chat template rendered it. `None` where only ids were given, or where a
    server renders.
    """
    prompt_token_ids: Annotated[tuple[int, ...], _IDS] = ()
    """The ids that the engine got, each image expanded to all of its tokens. Empty where a server
    renders.
    """
    token_ids: Annotated[tuple[int, ...], _IDS] = ()
    """The generated ids, the ending one included. Empty where a chat server does not report
    them.
    """
    finish: Annotated[Finish, instance(Finish), _ANSWER]
    """How the generation ended."""
    stop: Annotated[str | int | None, _ANSWER] = None
    """What ended it: the stop string, the stop token's id, or the plugin's name."""
    prompt_tokens: Annotated[int, _USAGE] = 0
    """Tokens of the prompt, images included."""
    completion_tokens: Annotated[int, _USAGE] = 0
    """Generated tokens, the ending one included."""
    logprobs: Annotated[tuple[TokenLogprob, ...] | None, _SCORES] = None
    """One for each of `token_ids`, if the option `logprobs` is on."""
    margin: float | None = None
    """With `logprobs`: the smallest `TokenLogprob.margin` of `token_ids`; None if one is unknown. A
    near tie (0.01 in float32, 0.1 in bfloat16, or less) may come out differently in another batch,
    engine or device. It is measured on the distribution that `logprobs` are of."""
    prompt_logprobs: Annotated[tuple[TokenLogprob | None, ...] | None, _SCORES] = None
    """One for each of `prompt_token_ids`, if the option `prompt_logprobs` is on. `top` has the
    likeliest tokens there, at least one. The first token has none.
    """
    route: Annotated[str, _RUN] = ""
    """The name of the route that made this result, such as `hf`."""
    tried: tuple[GenerationError, ...] = ()
    """The errors of the routes tried before this one, oldest first."""
    thinking: Thinking | None = None
    """Whether the chat template honours the thinking switch. `None` where no template was rendered
    here.
    """
    reasoning: Annotated[str | None, _SEEN] = None
    """The reasoning, if a server returns it separately, or `max_thinking_tokens` or a constraint
    separates it. `text` is then the answer alone.
    """
    forced: Annotated[tuple[int, ...], _IDS] = ()
    """The positions in `token_ids` of tokens that were not sampled."""
    thinking_unfinished: Annotated[bool, BRIEF] = False
    """The length limit ended the thinking, and there is no answer. Raise `max_new_tokens`."""
    tool_calls: Annotated[tuple[Mapping[str, Any], ...], _SEEN] = ()
    """The tool calls in the answer, in the OpenAI form."""
    tool_calls_unread: Annotated[str | None, BRIEF] = None
    """Why no tool call was read, where the answer looks like one."""
    content: str | None = None
    """The text before the tool calls, where pipegen read some; `text` holds both."""
    exact: bool | None = None
    """Whether the prompt begins with the very ids of the turns before; None for a first turn."""
    render_differs: bool | None = None
    """Whether the chat template would write the turns so far with other ids. None for a first turn,
    and where a server renders.
    """
    image_grid_thw: tuple[Grid | None, ...] = ()
    """For each image and video, its patches in time, height and width. `None` for models that do not
    work on such a grid.
    """
    image_digests: tuple[str, ...] = ()
    """For each image and video, the SHA-256 of its pixels before it was resized."""
    video_times: tuple[tuple[float, ...], ...] = ()
    """For each video, the times of the frames that were taken, in seconds."""
    options: Annotated[GenerationOptions, _RUN]
    """The effective options: sent again, they give the same call."""
    clipped_from: int | None = None
    """The `max_new_tokens` that was asked for, if `on_overflow="clip"` lowered it."""
    trimmed_by: tuple[str, ...] | None = None
    """What may have changed the text beyond the options: the plugins that trim, by name, and `a
    stage` for a stage of one's own. None where that is not known.
    """
    previous: GenerationResult | None = None
    """The answer that this one's request was made of, where a stage between two routes made it: for
    a judgement the answer that was judged.
    """
    samples: Annotated[tuple[GenerationResult, ...], _SEEN] = ()
    """The samples, in order, if the option `samples` is more than 1. The other fields are those of
    the first.
    """
    failed_samples: Annotated[tuple[tuple[int, GenerationError], ...], BRIEF] = ()
    """The samples that failed while others succeeded: their index, and the error."""
    rounds: Annotated[tuple[GenerationResult, ...], _SEEN] = ()
    """After `pg.repeat` or `pg.turns`: the results of all rounds, the last one included."""
    rounds_end: Annotated[RoundsEnd | None, BRIEF] = None
    """After `pg.repeat` or `pg.turns`: `done`, or what ended them before (`limit`, `tokens`,
    `unread`, `cut`).
    """
    turn: Annotated[Turn | None, UNWRITTEN] = dataclasses.field(
        default=None, compare=False, repr=False
    )
    """What `then` goes on from. It is in no file of results."""
    written_transcript: Annotated[
        tuple[Mapping[str, Any], ...],
        _SEEN._replace(name="transcript", source="_transcript", omit=True),
    ] = dataclasses.field(default=(), compare=False, repr=False)
    """The transcript of a result that was read from a file."""

    def then(
        self,
        words: str | Mapping[str, object] | Message | Sequence[Mapping[str, object] | Message],
        *,
        images: Sequence[object] = (),
        history: History = "kept",
        options: GenerationOptions | Mapping[str, object] | None = None,
        continuation: str | Sequence[int] | None = None,
        request: GenerationRequest | Mapping[str, object] | None = None,
    ) -> GenerationRequest:
        """The request that continues this conversation: a user's words, or messages such as the
        results of tools.

        With `history="kept"`, its prompt is the ids of this one, the ids of the answer, and what
        the chat template writes between two turns. With "template" the template renders all turns
        again. The options `adapter`, `chat` and `preprocess` are those of this turn, the others
        those of the run; `options` wins. With a `continuation`, the request is one for `pg.score`. A result that
        was read from a file takes its `request` too, as a record or as plain data.

        Raises `InvalidField` for other messages, and where the request had none. Raises it too for
        a result of several rounds that was read from a file, which holds no messages between them.
        """
        from pipegen.records.next_turn import next_turn  # which is made of results

        return next_turn(
            self,
            words,
            images=images,
            history=history,
            options=options,
            continuation=continuation,
            request=request,
        )

    @property
    def rollout(self) -> Rollout:
        """The ids of the conversation so far and what of them was sampled, for a trainer. Each of
        several samples has its own. `InvalidField` where the conversation has several, or none."""
        return one_rollout(self)

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """The same, split at each prompt that does not begin with the ids before it. Each sampled
        token is in the mask of exactly one. `InvalidField` where a chat server returned no ids, or
        the result was read from a file without its earlier turns."""
        return rollouts_of(self)

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """The conversation as messages. Tools' answers are in it. `InvalidField` if it is unknown."""
        from pipegen.records.next_turn import transcript_of  # which is made of results

        return transcript_of(self)

    @property
    def _transcript(self) -> list[dict[str, Any]]:
        """What lines and tables have of it: that of a result of several rounds."""
        held = self.written_transcript if self.turn is None else self.turn.request.messages
        return self.transcript if self.rounds and held else []

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an assistant's message, to append to the conversation.

        Control tokens in its text stay text, unless `ChatTemplateOptions.trust` includes the
        assistant.
        """
        more = {"reasoning_content": self.reasoning, "tool_calls": self.tool_calls}
        message = Message(
            role="assistant",
            content=self.text if self.content is None else self.content,
            extras={name: value for name, value in more.items() if value},
        )
        return plain_messages([message])[0]

    @property
    def completions(self) -> Batch[GenerationResult]:
        """A slot for each requested completion, in order."""
        failed, results = dict(self.failed_samples), iter(self.samples or (self,))
        count = len(self.samples or (self,)) + len(failed)
        return tuple(
            Failure(failed[sample]) if sample in failed else Success(next(results))
            for sample in range(count)
        )


@record
class ToolReplies:
    """What the tools have answered to the calls of one result."""

    result: Annotated[GenerationResult, UNWRITTEN]
    """The result with the calls."""
    messages: tuple[Mapping[str, Any], ...]
    """A message for each call, in order."""
