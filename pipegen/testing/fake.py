"""An engine that generates what a script says, logs its calls, and fails on demand, for tests.

>>> import pipegen as pg
>>> engine = FakeEngine("Hello STOP and more")
>>> slot = pg.run(
...     pg.route(engine),
...     [{"prompt": "Hi"}],
...     pg.GenerationOptions(stop=pg.StopOptions(stop=("STOP",))),
... )[0]
>>> slot.unwrap().text, slot.unwrap().finish.value, len(engine.calls)
('Hello ', 'stop_string', 1)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.core.errors import BadImage, CallFailed, GenerationError
from pipegen.core.slots import Slot
from pipegen.ending.stop_state import TokenFold
from pipegen.engines.capabilities import ENGINES, Capabilities, Capability
from pipegen.engines.plugin import Pluggable
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.testing.toy import ToyTokenizer

__all__ = ["FakeEngine", "Script", "ToyRenderer"]

T = TypeVar("T")
Script = Callable[[Encoded], Sequence[int] | str | GenerationError]
"""The output of a row: token ids, a text to encode, or an error."""


class ToyRenderer:
    """ChatML without Jinja. Set `thinking=False` for a template without a thinking switch."""

    def __init__(self, *, thinking: bool = True, raises: Exception | None = None) -> None:
        self.thinking, self.raises = thinking, raises
        self.renders = 0
        self.template: str | None = "<think> toy" if thinking else "toy"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        """One `<|im_start|>role\\ncontent<|im_end|>\\n` for each message; an image is
        `<|image_pad|>`. Tools and their calls are written as JSON.
        """
        self.renders += 1
        if self.raises is not None:
            raise self.raises
        turns = [f"<|im_start|>system\n{json.dumps(list(tools))}<|im_end|>\n"] if tools else []
        for message in messages:
            content = message["content"] or ""
            text = (
                content
                if isinstance(content, str)
                else "".join(part.get("text", "<|image_pad|>") for part in content)
            )
            calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
            turns.append(f"<|im_start|>{message['role']}\n{text}{calls}<|im_end|>\n")
        if variables.get("continue_final_message"):
            return "".join(turns).removesuffix("<|im_end|>\n")
        if variables.get("add_generation_prompt"):
            turns.append("<|im_start|>assistant\n")
            if self.thinking and variables.get("enable_thinking") is False:
                turns.append("<think></think>")
        return "".join(turns)


class FakeEngine(Pluggable):
    """A scripted engine with the toy tokenizer.

    script: the text of every row, or a function from the encoded prompt to token ids, a text or an
    error. A row that ends without an end token such as
        `<|im_end|>` is `ABORTED`.
    server_side_stops: False generates past stops and end tokens.
    fault: raised by every call.
    answers: the number of outputs of a call, to break the contract.
    honours: what it takes. It has no logits, so it refuses plugins that work on them, and
        transformers' stopping criteria.

    `calls` logs the inputs of each call, `scored` those of each call that scores, `closed` counts
    releases.
    """

    def __init__(
        self,
        script: str | Script,
        *,
        name: str = "fake",
        tokenizer: ToyTokenizer | None = None,
        renderer: ToyRenderer | None = None,
        honours: Collection[Capability] = ENGINES["hf"]
        - {"videos", "logits_processor", "stopping_criteria"},
        context_length: int | None = None,
        max_images: int | None = None,
        eos_tokens: Sequence[str] = ("<|im_end|>", "<|endoftext|>"),
        generation_config: Mapping[str, Any] = immutabledict(),
        server_side_stops: bool = True,
        fault: BaseException | None = None,
        answers: int | None = None,
    ) -> None:
        if not (isinstance(script, str) or callable(script)):
            raise TypeError(
                "a FakeEngine takes the text of every row, or a function from the encoded prompt to"
                f" a text, not {type(script).__name__}"
            )
        self.identity = f"fake {name}"
        self.name, self.script, self.server_side_stops, self.fault, self.answers = (
            name,
            script,
            server_side_stops,
            fault,
            answers,
        )
        self.tokenizer = tokenizer or ToyTokenizer()
        self.renderer = renderer or ToyRenderer()
        limits: dict[str, Any] = {"context_length": context_length, "max_images": max_images}
        self.capabilities = Capabilities(
            engine=name, honours=frozenset(honours), reason="the toy model is text-only", **limits
        )
        self.eos_token_ids = tuple(self.tokenizer.special_tokens[token] for token in eos_tokens)
        self.generation_config = immutabledict(generation_config)
        self.bos_token: str | None = None
        self.image_placeholder: str | None = "<|image_pad|>"
        self.calls: list[tuple[Encoded, ...]] = []
        self.scored: list[tuple[ScoreInput, ...]] = []
        self.closed = 0

    def _made(self, encoded: Encoded) -> Slot[Raw]:
        output = self.script if isinstance(self.script, str) else self.script(encoded)
        if isinstance(output, GenerationError):
            return Failure(output)
        if not isinstance(output, Sequence):
            raise TypeError(
                "the function of a FakeEngine returns a text, token ids or an error, not"
                f" {type(output).__name__}"
            )
        ids = (self.tokenizer.encode(output) if isinstance(output, str) else tuple(output))[
            : encoded.options.max_new_tokens
        ]
        if not self.server_side_stops:
            return Success(Raw(encoded=encoded, token_ids=ids))
        row = TokenFold(
            encoded.options,
            self.tokenizer,
            self.eos_token_ids,
            self.plugins if encoded.plugins_in_engine else (),
        )
        row.take(ids)
        if row.finish is None:
            row.close(aborted=True)
        return (
            Success(Raw(encoded=encoded, token_ids=ids[: row.count], ending=row.ending))
            if row.failure is None
            else Failure(row.failure)
        )

    def generate(self, inputs: Sequence[Encoded]) -> Sequence[Slot[Raw]]:
        """The script's rows; logs the call."""
        self.calls.append(tuple(inputs))
        if self.fault is not None:
            raise self.fault
        slots = [self._made(encoded) for encoded in inputs]
        return self._as_many(slots)

    def _as_many(self, slots: list[Slot[T]]) -> list[Slot[T]]:
        """As many slots as the engine was made to answer."""
        return slots if self.answers is None else (slots * (self.answers + 1))[: self.answers]

    def stream(self, inputs: Sequence[Encoded]) -> Iterator[TokensMade | RowDone]:
        """The same rows, a token of each in turn; a `CallFailed` fault comes after the first token
        of each.
        """
        self.calls.append(tuple(inputs))
        if self.fault is not None and not isinstance(self.fault, CallFailed):
            raise self.fault
        slots = [self._made(encoded) for encoded in inputs]
        made = [slot.map(lambda raw: raw.token_ids).value_or(()) for slot in slots]
        for step in range(max(map(len, made), default=0)):
            for row, token_ids in enumerate(made):
                if step < len(token_ids):
                    yield TokensMade(row=row, token_ids=token_ids[step : step + 1])
            if self.fault is not None:
                raise self.fault
        for row, slot in enumerate(slots):
            yield RowDone(row=row, slot=slot)

    @property
    def longest_scored(self) -> int | None:
        """The context length, if there is one."""
        return self.capabilities.context_length

    def score(self, inputs: Sequence[ScoreInput]) -> Sequence[Slot[TokenScores]]:
        """Each token has the log probability -1 - id / 1000, and is greedy where its id is even.
        Else the id before is likelier, with -0.5. Of other tokens, those with the lowest ids are
        the likeliest.

        Logs the call in `scored`, and fails as `generate` does.
        """
        self.scored.append(tuple(inputs))
        if self.fault is not None:
            raise self.fault
        slots: list[Slot[TokenScores]] = []
        for row in inputs:
            logprobs = tuple([-1 - token_id / 1000 for token_id in row.continuation])
            likeliest = tuple(
                [
                    (token_id - 1, -0.5) if token_id % 2 else (token_id, logprob)
                    for token_id, logprob in zip(row.continuation, logprobs, strict=True)
                ]
            )
            others = [(token_id, -20.0 - token_id) for token_id in range(row.top)]
            tops = [
                (best, *[pair for pair in others if pair[0] != best[0]])[: row.top]
                for best in likeliest
            ]
            scores = TokenScores(
                continued=row,
                logprobs=logprobs,
                likeliest=likeliest,
                top=tuple(tops) if row.top else (),
            )
            slots.append(Success(scores))
        return self._as_many(slots)

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """Any bytes are an image of one black pixel and three tokens, unless they begin with
        `broken`.
        """
        data = source.data or b""
        if data.startswith(b"broken"):
            return Failure(BadImage(index))
        return Success(
            PreparedImage(
                width=1,
                height=1,
                rgb=bytes(3),
                digest=hashlib.sha256(data).hexdigest(),
                grid=(1, 2, 6),
                tokens=3,
            )
        )

    def close(self) -> None:
        """Count the release."""
        self.closed += 1
