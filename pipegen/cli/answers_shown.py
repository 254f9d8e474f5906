"""The answers of a chat while they are generated, and their timing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipegen.config import Agent
from pipegen.core.errors import ContractError, GenerationError, TemplateFailed
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.streaming import Delta, astream
from pipegen.io.jsonl import to_plain
from pipegen.plugins import reasoning_of
from pipegen.records import strict_json
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult

Message = dict[str, Any]
NO_ANSWER = (
    "no answer: the tokens ran out while the model was thinking; allow more with max_new_tokens"
    " (max_tokens), or leave thinking off"
)


@dataclass
class Speaker:
    """A model of the chat, with its conversation so far."""

    agent: Agent
    route: Pipe[GenerationRequest, GenerationResult]
    last: GenerationResult | None = None
    """Its last answer, which the conversation goes on from."""

    def messages(self, prompt: str) -> list[Message]:
        """A conversation that begins with a prompt."""
        system = (
            [{"role": "system", "content": self.agent.system_message}]
            if self.agent.system_message
            else []
        )
        return [*system, {"role": "user", "content": prompt}]

    def requests(self, prompt: str) -> list[Request]:
        """What asks a prompt: the next turn by ids, and where the template has none, all turns
        rendered again.
        """
        if self.last is None:
            return [{"messages": self.messages(prompt)}]
        return [self.last.then(prompt), self.last.then(prompt, history="template")]


_LEAST = 0.05
"""Seconds in which an answer comes in one piece."""


@dataclass
class StreamedAnswer:
    """One answer while it is generated. Times are monotonic, in seconds."""

    speaker: Speaker
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    ended: float | None = None
    text: str = ""
    """The answer so far; it begins with the reasoning if the server does not separate that."""
    reasoning: str = ""
    slot: Slot[GenerationResult] | None = None

    def take(self, delta: Delta) -> None:
        """Add a piece."""
        self.first = time.monotonic() if self.first is None else self.first
        if delta.sample == 0:
            self.reasoning += delta.reasoning
            self.text += delta.text

    def end(self, slot: Slot[GenerationResult]) -> None:
        """Set the final result."""
        self.slot, self.ended = slot, time.monotonic()

    @property
    def result(self) -> GenerationResult | None:
        """The final result; None before it, and if it failed."""
        return None if self.slot is None else self.slot.value_or(None)

    @property
    def error(self) -> GenerationError | None:
        """Why it failed; None if it did not."""
        return None if self.slot is None or is_ok(self.slot) else self.slot.failure()

    @property
    def answered(self) -> bool:
        """Whether there is an answer: it is finished, and did not end while the model was
        thinking.
        """
        return self.result is not None and not self.note

    @property
    def note(self) -> str:
        """Why there is no answer, if nothing failed; else empty."""
        return NO_ANSWER if self.result is not None and self.result.thinking_unfinished else ""

    def parts(self) -> tuple[str, str]:
        """What the model thought, and what it answered."""
        result = self.result
        reasoning = result.reasoning if result is not None else self.reasoning
        text = result.text if result is not None else self.text
        if reasoning:
            return reasoning, text
        split = reasoning_of(
            text,
            opened=result is not None and (result.prompt_text or "").rstrip().endswith("<think>"),
        )
        return split.reasoning or "", split.answer

    @property
    def calls(self) -> tuple[str, ...]:
        """The tool calls, as they are shown."""
        functions = [
            call.get("function") for call in (self.result.tool_calls if self.result else ())
        ]
        return tuple(
            f"{function.get('name')}({function.get('arguments') or ''})"
            for function in functions
            if isinstance(function, Mapping)
        )

    def facts(self) -> dict[str, Any]:
        """`seconds`, `seconds_to_first`, and `tokens_per_second` from the first piece on: what came
        before may be loading. Of an answer in one piece it is over the whole time.
        """
        if self.ended is None:
            return {}
        seconds = self.ended - self.began
        tokens = self.result.completion_tokens if self.result else 0
        first = None if self.first is None else round(self.first - self.began, 3)
        wrote = seconds if self.first is None else self.ended - self.first
        return {
            "seconds": round(seconds, 3),
            "seconds_to_first": first,
            "tokens_per_second": round(tokens / max(wrote if wrote > _LEAST else seconds, 1e-9), 2),
        }


async def ask(
    speakers: Sequence[Speaker],
    prompt: str,
    began: Callable[[list[StreamedAnswer]], None],
    changed: Callable[[StreamedAnswer], None],
) -> list[StreamedAnswer]:
    """Ask all of them at the same time; those that answered go on from there.

    began: called with the unfinished answers before the first piece.
    changed: called with each answer that has a new piece or is finished.
    """
    answers = [StreamedAnswer(speaker) for speaker in speakers]
    began(answers)
    async with asyncio.TaskGroup() as group:
        for answer in answers:
            group.create_task(_follow(answer, prompt, changed))
    for answer in answers:
        if answer.answered and answer.result is not None:
            # a chat server gets messages: without what was thought, and calls that nobody answers
            answer.speaker.last = replace(
                answer.result,
                text=answer.parts()[1],
                reasoning=None,
                tool_calls=(),
                content=None,
            )
    return answers


async def _follow(
    answer: StreamedAnswer, prompt: str, changed: Callable[[StreamedAnswer], None]
) -> None:
    speaker = answer.speaker
    for request in speaker.requests(prompt):
        async for event in astream(speaker.route, [request], speaker.agent.backend.options):
            if isinstance(event, Delta):
                answer.take(event)
            else:
                answer.end(event.slot)
            changed(answer)
        if not isinstance(answer.error, TemplateFailed):
            break


def as_line(answer: StreamedAnswer, *, brief: bool = True) -> str:
    """The answer as one line of JSON: `agent`, `model`, the output line of `pipegen generate`, and
    the times.
    """
    if answer.slot is None:
        raise ContractError("an answer is written when it is finished")
    values = to_plain(answer.slot, brief=brief)
    del values["id"]
    if values["ok"]:
        reasoning, text = answer.parts()
        values |= {"text": text, "reasoning": reasoning or None}
    return strict_json.dump(
        {
            "agent": answer.speaker.agent.id,
            "model": answer.speaker.agent.backend.model,
            **values,
            **answer.facts(),
        }
    )
