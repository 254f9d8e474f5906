"""The vLLM engine: vLLM schedules and computes, in this process or one that it starts; text, stops
and plugins are pipegen's, token by token.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from returns.methods import unwrap_or_failure
from returns.result import Failure, Result, Success

from pipegen.answer.barred import spellings
from pipegen.backends.checkpoint.checkpoint_engine import CheckpointEngine
from pipegen.backends.checkpoint.engine_parity import refused_beyond
from pipegen.backends.checkpoint.image_processors import grid_only
from pipegen.backends.checkpoint.load_errors import engine_failed, short
from pipegen.backends.checkpoint.positions import other_factors
from pipegen.backends.distributions import other_logprobs
from pipegen.backends.engine_rows import newly_done
from pipegen.backends.grammar import grammar_of, unsupported_with_form
from pipegen.backends.request_queue import RequestQueue, beginning
from pipegen.backends.step_loop import Mailbox
from pipegen.backends.vllm.running import Core, Running
from pipegen.backends.vllm.start import (
    check_arguments,
    image_limit,
    leaves_out_times,
    refusals,
    takes_grammars,
)
from pipegen.backends.vllm.vllm_rows import VLLMRow, differs, scores_of, vllm_prompt
from pipegen.backends.vllm.vllm_sampling import (
    LOGPROBS_OF,
    MOST_LOGPROBS,
    fewer,
    sampling_params,
    scoring_params,
    too_many,
    unsupported,
)
from pipegen.core.distribution import need
from pipegen.core.errors import CallFailed, GenerationError, InvalidRequest, UnsupportedOption
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import Event, PromptWork, RowDone
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Prompt
from pipegen.records.scores import ScoreInput
from pipegen.stages.fitting import check_fit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


MODE = "start it with engine_kwargs={'logprobs_mode': 'processed_logprobs'}"
"""What to do where vLLM gives the model's own log probabilities."""


_SEQUENCES = 256
"""Rows that vLLM runs side by side, as far as is known before it has started; by default it runs
more on a large GPU.
"""


class VLLMEngine(CheckpointEngine):
    """An engine on one checkpoint. Tokenizer, template, limits and images work at once; vLLM is
    imported and starts with the first call.

    Raises `NoSuchModel` where the checkpoint's folder is not there, and `MissingExtra` where vLLM
    is not installed. `InvalidField` is for settings that are not for vLLM (`UnknownField` with the
    nearest one, for an argument).
    """

    name = _kind = "vllm"

    def __init__(self, load: ModelLoadConfig) -> None:
        need("vllm", "vllm", "the vLLM engine")
        super().__init__(load)
        check_arguments(self._checkpoint)
        self._core = Core(self._checkpoint)
        self.prompt_work = PromptWork()
        """What vLLM has counted of prompts."""

    @property
    def _limits(self) -> dict[str, Any]:
        return {
            "context_length": self._context_length,
            "max_images": image_limit(self._checkpoint),
            "max_videos": image_limit(self._checkpoint, "video"),
        }

    @property
    def _no_images_because(self) -> str:
        """For a vision model vLLM itself is asked, which imports it."""
        if refused := super()._no_images_because:
            return refused
        if image_limit(self._checkpoint) == 0:
            return "limit_mm_per_prompt allows none"
        if self._core.model_config().is_multimodal_model:
            return ""
        import vllm

        return f"vLLM {vllm.__version__} runs {self._checkpoint.config.model_type} as a text model"

    @property
    def _no_videos_because(self) -> str:
        if refused := super()._no_videos_because:
            return refused
        if image_limit(self._checkpoint, "video") == 0:
            return "limit_mm_per_prompt allows none"
        return leaves_out_times(self._checkpoint.config.model_type)

    @property
    def _context_length(self) -> int | None:
        """vLLM's own limit, the same before it starts as after; no more than the positions whose
        factors do not depend on the length (dynamic NTK).
        """
        refused: tuple[type[Exception], ...] = (CallFailed, OSError, *refusals())
        try:
            limit = int(self._core.model_config().max_model_len)
        except refused:
            # vLLM does not take this model: its start says why
            return self._checkpoint.context_length
        positions = self._checkpoint.positions
        return min(limit, positions.context_length or limit) if positions.dynamic else limit

    @property
    def loaded(self) -> bool:
        """Whether vLLM runs."""
        return self._core.loaded

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        return grid_only(super().prepare_image(source, options, index), self.name)

    def close(self) -> None:
        self._core.close()

    @property
    def in_flight(self) -> int:
        """How many requests are kept in flight for it: twice as many as vLLM runs side by side. So
        there are some to put in order.
        """
        return 2 * self._side_by_side

    @property
    def _side_by_side(self) -> int:
        load = self._checkpoint.load
        return self._core.side_by_side or int(
            load.batch_size or load.engine_kwargs.get("max_num_seqs") or _SEQUENCES
        )

    def open(
        self,
        wake: Callable[[], object],
        *,
        tokens: bool = False,
        loop: AbstractEventLoop | None = None,
        fed: bool = False,
    ) -> VLLMSession:
        """A call to which rows may be added between the steps of vLLM.

        Without `tokens`, rows that no stop string or plugin ends come whole, since an output for
        each token costs vLLM more.
        """
        return VLLMSession(self, None if loop is None else wake, text=tokens)

    @property
    def longest_scored(self) -> int | None:
        """One token less than vLLM's limit: it generates one behind them."""
        limit = self.capabilities.context_length
        return None if limit is None else limit - 1

    def _rows(self, inputs: Sequence[tuple[int, Encoded]], *, text: bool) -> list[VLLMRow]:
        shared: dict[str, Any] = {
            "text": text,
            "vocab_size": self._checkpoint.vocab_size,
            "most_logprobs": self._most_logprobs,
        }
        rows = [
            VLLMRow(position, encoded, self.tokenizer, self.eos_token_ids, self.plugins, **shared)
            for position, encoded in inputs
        ]
        for row in rows:
            row.fail(unsupported_with_form(row.options, self.name))
            if takes_grammars(self._checkpoint.load):
                row.set_grammar(
                    grammar_of(
                        row.options,
                        self.tokenizer,
                        self.eos_token_ids,
                        self._checkpoint.vocab_size,
                        self.name,
                    )
                )
        return rows

    @property
    def _most_logprobs(self) -> int:
        """How many logprobs of a position vLLM may be asked for."""
        limit = self._checkpoint.load.engine_kwargs.get("max_logprobs")
        return limit if isinstance(limit, int) else MOST_LOGPROBS

    def _asked(self, row: VLLMRow | ScoreInput) -> Result[tuple[Prompt, Any], GenerationError]:
        """The prompt and the parameters by which vLLM is asked for a row; or why it is not: for
        what it would change, what only the running engine knows, and what it refuses.
        """
        if isinstance(row, ScoreInput):
            unscored = self._core.unscored
            wrong = (
                (unscored and dataclasses.replace(unscored, option=row.option))
                or fewer(row.top, self._most_logprobs)
                or self._check(row.whole)
            )
            return (
                Success((row.whole.prompt, scoring_params(row.top)))
                if wrong is None
                else Failure(wrong)
            )
        options = row.encoded.options
        barred = spellings(options.bad_words, self.tokenizer) if options.bad_words else ()
        mode = self._checkpoint.load.engine_kwargs.get("logprobs_mode", "raw_logprobs")
        wrong = (
            unsupported(options, self._most_logprobs)
            or other_logprobs(options, LOGPROBS_OF[mode], self.name, MODE)
            or too_many(barred)
            or self._check(row.encoded)
        )
        if wrong is not None:
            return Failure(wrong)
        try:
            params = sampling_params(
                options,
                row.ending_ids,
                final_only=row.whole,
                most_logprobs=self._most_logprobs,
                grammar=row.grammar,
                barred=barred,
            )
        except refusals() as error:
            words = f"vllm does not honour the options: {error}"
            option = getattr(error, "parameter", None) or ""
            return Failure(UnsupportedOption(words, option=option))
        return Success((row.encoded.prompt, params))

    def _check(self, encoded: Encoded) -> GenerationError | None:
        """What is wrong with a row that vLLM would change, or that does not fit."""
        fits = check_fit(encoded, self.capabilities)
        differs = self._core.differs
        return (
            self._checkpoint.check_placeholders(encoded.prompt)
            or (None if is_ok(fits) else fits.failure())
            or other_factors(self._checkpoint.positions, encoded, self.capabilities)
            or (None if differs is None else refused_beyond(differs, encoded, self.name))
        )


class VLLMSession:
    """The rows of one call, to which more may be added. vLLM starts with the first one.

    vLLM has as many rows as it runs side by side, and a quarter more to choose from. The others
    wait, and are put in order in rounds, so that prompts that begin alike are handed over one after
    another: vLLM's prefix cache serves them.
    """

    def __init__(
        self, engine: VLLMEngine, wake: Callable[[], object] | None, *, text: bool
    ) -> None:
        self._engine, self._text, self._mailbox = engine, text, Mailbox[Any](wake)
        self._running: Running | None = None
        """vLLM, once a row was to go there."""
        self._requests: dict[str, int] = {}
        """The rows that it has, by the ids of their requests."""
        self.rows: dict[int, VLLMRow | ScoreInput] = {}
        """The rows that have not ended."""
        self._refused: list[RowDone] = []
        self._waiting = RequestQueue[tuple[int, VLLMRow | ScoreInput]](1, 1, key=_beginning)

    @property
    def side_by_side(self) -> int:
        """How many rows vLLM runs side by side."""
        return self._engine._side_by_side if self._mailbox.wake is None else 0

    @property
    def running(self) -> int:
        """How many rows vLLM runs, at most."""
        return min(len(self._requests), self._engine._side_by_side)

    def add(self, inputs: Mapping[int, Encoded | ScoreInput]) -> None:
        """Add rows, by their numbers. Raises `CallFailed` where vLLM cannot start, or has
        died.
        """
        rows = self._engine._rows(
            [(number, row) for number, row in inputs.items() if not isinstance(row, ScoreInput)],
            text=self._text,
        )
        scored = {number: row for number, row in inputs.items() if isinstance(row, ScoreInput)}
        self.rows |= {row.position: row for row in rows}
        self.rows |= scored
        self._refused += newly_done(rows)
        self._waiting.add([(row.position, row) for row in rows if not row.done])
        self._waiting.add([*scored.items()])
        self._hand_over()

    def _hand_over(self) -> None:
        """Hand rows to vLLM, as far as it has room."""
        while self._waiting:
            self._running = running = self._running or self._engine._core.running()
            if len(self._requests) >= running.side_by_side * 5 // 4:
                return
            (((position, row),),) = self._waiting.next(1)
            self._waiting.take([0])
            asked = self._engine._asked(row)
            adapter = row.encoded.options.adapter or ""
            refused = unwrap_or_failure(asked.map(partial(self._queue, running, position, adapter)))
            if refused is not None:
                self._refused.append(RowDone(row=position, slot=Failure(refused)))

    def _queue(
        self,
        running: Running,
        position: int,
        adapter: str,
        prompt_and_params: tuple[Prompt, object],
    ) -> GenerationError | None:
        """Queue a row with its sampling parameters, or say why vLLM refuses it."""
        prompt, params = prompt_and_params
        checkpoint, name = self._engine._checkpoint, f"pipegen-{uuid.uuid4().hex}"

        def add() -> GenerationError | None:
            resized = bool(prompt.images) and checkpoint.image_spec.kind == "grid"
            rendered = running.rendered(vllm_prompt(prompt, resized=resized))
            wrong = differs(rendered, prompt)
            if wrong is None:
                running.add(name, rendered, params, self._mailbox, adapter)
                self._requests[name] = position
            return wrong

        added = attempt(add)
        if is_ok(added):
            return added.unwrap()
        error = added.failure()
        if isinstance(error, CallFailed):
            raise error
        if isinstance(error, refusals()):
            return InvalidRequest(f"vLLM refuses the request: {type(error).__name__}: {error}")
        return engine_failed(
            "vllm", f"vLLM failed on the request: {short(error)}", scope="row", raised=error
        )

    def step(self) -> list[Event]:
        """What has come, after a step where nothing has. Raises as `generate` does."""
        self._hand_over()
        events: list[Event] = [*self._refused]
        self._refused.clear()
        if not events and self._running is not None:
            events = [*self._made(self._running, self._running.step(self._mailbox))]
        for event in events:
            if isinstance(event, RowDone):
                del self.rows[event.row]
        return events

    def _made(self, running: Running, outputs: Sequence[Any]) -> Iterator[Event]:
        """What the outputs bring to their rows. Rows that stop strings or plugins have ended, of
        which vLLM does not know, are aborted there.
        """
        ended: list[str] = []
        for output in outputs:
            position = self._requests.get(output.request_id)
            if position is None:
                continue
            if output.finished:
                del self._requests[output.request_id]
            row = self.rows[position]
            if isinstance(row, ScoreInput):
                if output.finished:
                    yield RowDone(row=position, slot=scores_of(row, output.prompt_logprobs))
            elif not row.done:
                event = row.take_output(output)
                if event is not None:
                    yield event
                if row.done:
                    cached = getattr(output, "num_cached_tokens", None) or 0
                    self._engine.prompt_work.count(
                        len(output.prompt_token_ids or ()), cached=cached
                    )
                    ended += [] if output.finished else [output.request_id]
                    yield RowDone(row=position, slot=row.slot())
        if ended:
            for request_id in ended:
                del self._requests[request_id]
            running.drop(ended, self._mailbox)

    def close(self) -> None:
        """End the rows that still run."""
        self._waiting.clear()
        if self._running is not None:
            self._running.drop(self._requests, self._mailbox)


def _beginning(waiting: tuple[int, VLLMRow | ScoreInput]) -> tuple[Any, ...]:
    _, row = waiting
    return beginning(row if isinstance(row, ScoreInput) else row.encoded)
