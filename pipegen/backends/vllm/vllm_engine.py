"""The vLLM engine: vLLM schedules and computes, in this process or one that it starts; text, stops
and plugins are pipegen's, token by token.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from returns.result import Failure

from pipegen.answer.barred import spellings
from pipegen.backends.checkpoint.checkpoint_engine import CheckpointEngine
from pipegen.backends.checkpoint.engine_parity import refused_beyond
from pipegen.backends.checkpoint.image_processors import grid_only
from pipegen.backends.checkpoint.load_errors import engine_failed, short
from pipegen.backends.checkpoint.positions import other_factors
from pipegen.backends.engine_rows import newly_done
from pipegen.backends.grammar import grammar_of, unsupported_with_form
from pipegen.backends.request_queue import Waiting, beginning
from pipegen.backends.vllm.running import Core, Requests
from pipegen.backends.vllm.start import (
    check_arguments,
    image_limit,
    leaves_out_times,
    refusals,
    takes_grammars,
)
from pipegen.backends.vllm.vllm_rows import VLLMRow, differs, scores_of, vllm_prompt
from pipegen.backends.vllm.vllm_sampling import (
    MOST_LOGPROBS,
    sampling_params,
    scoring_params,
    too_many,
    unsupported,
)
from pipegen.core.errors import CallFailed, GenerationError, InvalidRequest, UnsupportedOption
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.extras import need
from pipegen.engines.protocol import Event, RowDone, TokensMade
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Prompt
from pipegen.records.scores import ScoreInput
from pipegen.stages.fitting import check_fit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["VLLMEngine"]


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

    name = "vllm"

    def __init__(self, load: ModelLoadConfig) -> None:
        need("vllm", "vllm", "the vLLM engine")
        super().__init__(load)
        check_arguments(self._checkpoint)
        self._core = Core(self._checkpoint)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @cached_property
    def _capabilities(self) -> Capabilities:
        """Asked for several times for each row."""
        reason, limit = self._no_images_because, image_limit(self._checkpoint)
        no_videos = reason or self._no_videos_because
        honours = ENGINES["vllm"] - {"images"} if reason else ENGINES["vllm"]
        honours -= {"videos"} if no_videos else frozenset()
        limits: dict[str, Any] = {
            "context_length": self._context_length,
            "max_images": limit,
            "max_videos": image_limit(self._checkpoint, "video"),
            "no_videos_because": no_videos,
            "vocab_size": self._checkpoint.vocab_size,
        }
        return Capabilities(engine=self.name, honours=honours, reason=reason, **limits)

    @cached_property
    def _no_images_because(self) -> str:
        """Why images are not taken; empty where they are. For a vision model vLLM itself is asked,
        which imports it.
        """
        if not self._checkpoint.takes_images:
            return self._checkpoint.images_unsupported_reason
        if image_limit(self._checkpoint) == 0:
            return "limit_mm_per_prompt allows none"
        if self._core.model_config().is_multimodal_model:
            return ""
        import vllm

        return f"vLLM {vllm.__version__} runs {self._checkpoint.config.model_type} as a text model"

    @property
    def _no_videos_because(self) -> str:
        """Why a model that takes images takes no videos; empty where it does."""
        checkpoint = self._checkpoint
        if checkpoint.videos.unsupported_reason:
            return checkpoint.videos.unsupported_reason
        if image_limit(checkpoint, "video") == 0:
            return "limit_mm_per_prompt allows none"
        return leaves_out_times(checkpoint.config.model_type)

    @cached_property
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

    def _begin_score(self, position: int, row: ScoreInput, call: Requests) -> list[RowDone]:
        """Hand a row that is to be scored to vLLM; its end where it is refused."""
        encoded = row.whole
        refused = self._check(encoded) or self._add(
            position, encoded.prompt, scoring_params(), call
        )
        return [] if refused is None else [RowDone(row=position, slot=Failure(refused))]

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

    def _begin(self, rows: Sequence[VLLMRow], call: Requests) -> list[RowDone]:
        """Hand the rows to vLLM; those that are done already, for they are refused."""
        for row in rows:
            self._queue(row, call)
        return list(newly_done(rows))

    def _queue(self, row: VLLMRow, call: Requests) -> None:
        """Hand a row to vLLM, or fail it: for what vLLM would change, what only the running engine
        knows, and what vLLM refuses.
        """
        options = row.encoded.options
        barred = spellings(options.bad_words, self.tokenizer) if options.bad_words else ()
        row.fail(unsupported(options) or too_many(barred) or self._check(row.encoded))
        if row.error is not None:
            return
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
            row.fail(
                UnsupportedOption(
                    f"vllm does not honour the options: {error}",
                    option=getattr(error, "parameter", None) or "",
                )
            )
            return
        row.fail(self._add(row.position, row.encoded.prompt, params, call))

    def _check(self, encoded: Encoded) -> GenerationError | None:
        """What is wrong with a row that vLLM would change, or that does not fit."""
        fits = check_fit(encoded, self.capabilities)
        refused = self._checkpoint.check_placeholders(encoded.prompt) or (
            None if is_ok(fits) else fits.failure()
        )
        differs = self._core.differs
        refused = refused or other_factors(self._checkpoint.positions, encoded, self.capabilities)
        return refused or (None if differs is None else refused_beyond(differs, encoded, self.name))

    def _add(
        self, position: int, prompt: Prompt, params: Any, call: Requests
    ) -> GenerationError | None:
        """Add a row to the call, or say why vLLM refuses it."""

        def add() -> GenerationError | None:
            rendered = call.running.rendered(
                vllm_prompt(
                    prompt,
                    resized=bool(prompt.images) and self._checkpoint.image_spec.kind == "grid",
                )
            )
            wrong = differs(rendered, prompt)
            if wrong is None:
                call.add(position, rendered, params)
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


class VLLMSession:
    """The rows of one call, to which more may be added. vLLM starts with the first one.

    vLLM has as many rows as it runs side by side, and a quarter more to choose from. The others
    wait, and are put in order in rounds, so that prompts that begin alike are handed over one after
    another: vLLM's prefix cache serves them.
    """

    def __init__(
        self, engine: VLLMEngine, wake: Callable[[], object] | None, *, text: bool
    ) -> None:
        self._engine, self._wake, self._text = engine, wake, text
        self._call: Requests | None = None
        self.rows: dict[int, VLLMRow | ScoreInput] = {}
        """The rows that have not ended."""
        self._refused: list[RowDone] = []
        self._waiting = Waiting[tuple[int, VLLMRow | ScoreInput]](1, 1, key=_beginning)

    @property
    def side_by_side(self) -> int:
        """How many rows vLLM runs side by side."""
        return self._engine._side_by_side if self._wake is None else 0

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
            if self._call is None:
                self._call = Requests(self._engine._core.running(), self._wake)
            if self._call.in_flight >= self._call.running.side_by_side * 5 // 4:
                return
            ((position, row),) = self._waiting.pop()
            self._refused += (
                self._engine._begin_score(position, row, self._call)
                if isinstance(row, ScoreInput)
                else self._engine._begin([row], self._call)
            )

    def step(self) -> list[Event]:
        """What has come, after a step where nothing has. Raises as `generate` does."""
        self._hand_over()
        events: list[Event] = [*self._refused]
        self._refused.clear()
        if not events and self._call is not None:
            events = list(_events_of(self.rows, self._call, self._call.step()))
        for event in events:
            if isinstance(event, RowDone):
                del self.rows[event.row]
        return events

    def close(self) -> None:
        """End the rows that still run."""
        if self._call is not None:
            self._call.leave()


def _beginning(waiting: tuple[int, VLLMRow | ScoreInput]) -> tuple[Any, ...]:
    _, row = waiting
    return beginning(row if isinstance(row, ScoreInput) else row.encoded)


def _events_of(
    rows: Mapping[int, VLLMRow | ScoreInput], call: Requests, outputs: Sequence[tuple[int, Any]]
) -> Iterator[TokensMade | RowDone]:
    """What the outputs bring to their rows; vLLM is told which end by stop strings and
    plugins, of which it does not know.
    """
    done: list[int] = []
    for position, output in outputs:
        row = rows.get(position)
        if isinstance(row, ScoreInput):
            if output.finished:
                yield RowDone(row=position, slot=scores_of(row, output.prompt_logprobs))
            continue
        if row is None or row.done:
            continue
        event = row.take_output(output)
        if event is not None:
            yield event
        if row.done:
            done.append(position)
            yield RowDone(row=position, slot=row.slot())
    call.drop(done)
