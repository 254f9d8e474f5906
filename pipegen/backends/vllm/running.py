"""A vLLM engine that runs: requests go in, outputs come out, for several calls at a time.

**States.** An engine is *not started*, *running*, or *failed* (it died, or was closed); `Core`
starts it when it is first needed, and again after that. A request is *queued* (`add`), *stepping*
with all others that are queued, and *ended* (its output says finished, or `drop` aborts it).

**Who steps.** vLLM has one queue of outputs for all requests, so one call's step can bring another
call's tokens: see `pipegen.backends.step_loop`. Each request knows the mailbox of its call.

**Invariants.**

- A step without requests would wait for ever, so there is none then.
- A request is in `_mailboxes` from `add` until its last output, the step after `drop`, or `stop`;
  outputs of others are discarded.
- vLLM is foreign code: whatever a step of it raises ends the engine, and is one `BackendFailed` of
  all calls that it was for. What it raises for one request fails that row.
- After `stop` nothing reaches the engine: every later use raises `CallFailed` with the first
  reason.
- A call that is left (finished, closed early or cancelled) leaves no request behind.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from pipegen.backends.checkpoint.adapters import BadAdapter
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import release
from pipegen.backends.checkpoint.engine_parity import Differs
from pipegen.backends.checkpoint.load_errors import engine_failed
from pipegen.backends.checkpoint.locate import adapters_of
from pipegen.backends.step_loop import Mailbox, SharedSteps
from pipegen.backends.vllm.self_check import checked_lengths
from pipegen.backends.vllm.start import (
    adapter_arguments,
    adapter_slots,
    check_adapter_settings,
    check_files,
    check_version,
    deaths,
    engine_arguments,
    refusals,
    starting,
    unscored,
    use_batch_invariance,
)
from pipegen.core.errors import BackendFailed, CallFailed, UnsupportedOption
from pipegen.core.foreign_calls import Raised, guard, report
from pipegen.core.slots import is_ok
from pipegen.engines.settings import ModelLoadConfig


class Running(SharedSteps[Any]):
    """A started engine. Its methods may be called from several threads."""

    def __init__(self, engine: Any, load: ModelLoadConfig) -> None:
        super().__init__()
        self.engine: Any = engine
        self.model_config = engine.vllm_config.model_config
        self.side_by_side = int(engine.vllm_config.scheduler_config.max_num_seqs)
        """How many requests it runs at a time at most; where memory is short, fewer."""
        self.failed: BackendFailed | None = None
        """Why the engine no longer runs; None while it does."""
        self._mailboxes: dict[str, Mailbox[Any]] = {}
        self._dropped = deque[Iterable[str]]()
        self._adapters: dict[str, dict[str, Any]] = {}
        """How the rows of each adapter are asked for, by its name; the empty one is of all others."""
        for number, (name, folder) in enumerate(adapters_of(load).items(), 1):
            from vllm.lora.request import LoRARequest

            adapter = LoRARequest(name or folder, number, str(Path(folder).expanduser()))
            self._adapters[name] = {"lora_request": adapter}
            if hasattr(engine, "add_lora"):
                # an adapter that does not fit is found out now, and not by the first row
                engine.add_lora(adapter)

    def rendered(self, prompt: dict[str, Any]) -> Any:
        """The prompt with its images processed, as vLLM will run it; in versions that do this with
        the request, the prompt as it is.
        """
        renderer: Any = getattr(self.engine, "renderer", None)
        if not hasattr(renderer, "render_cmpl"):
            return prompt
        with self.entered():
            return renderer.render_cmpl([prompt])[0]

    def add(
        self,
        request_id: str,
        prompt: object,
        params: object,
        mailbox: Mailbox[Any],
        adapter: str = "",
    ) -> None:
        """Queue a request for that adapter; its outputs will go to `mailbox`. Raises one of `refusals()` where vLLM
        does not take it, and `CallFailed`.
        """
        with self.entered():
            if self.failed is not None:
                raise CallFailed(self.failed)
            try:
                more = self._adapters.get(adapter, {})
                self.engine.add_request(request_id, prompt, params, **more)
            except deaths() as error:
                because = _failed(report(error))
                self.stop(because)
                raise CallFailed(because) from error
            except refusals():
                raise
            except Exception:
                # vLLM may have noted the request before it failed, and would wait for its end
                self._abort([request_id])
                raise
            self._mailboxes[request_id] = mailbox

    def _advance(self) -> None:
        if not self._mailboxes:
            return
        stepped = guard(self._outputs, _failed)
        for output in stepped.value_or(()):
            if output.request_id in self._mailboxes:
                self._mailboxes[output.request_id].put(output)
            if output.finished:
                self._mailboxes.pop(output.request_id, None)
        if not is_ok(stepped):
            self.stop(stepped.failure())

    def _outputs(self) -> Sequence[Any]:
        _wait(self.engine.engine_core)
        outputs: Sequence[Any] = self.engine.step()
        return outputs

    def drop(self, request_ids: Iterable[str], mailbox: Mailbox[Any]) -> None:
        """End requests whose outputs nobody wants any more: those that are among `request_ids`
        before the next step.
        """
        self._dropped.append(request_ids)
        self.leave(mailbox)

    def _drop(self) -> None:
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        live = [
            request_id
            for request_ids in dropped
            for request_id in request_ids
            if self._mailboxes.pop(request_id, None) is not None
        ]
        if live:
            self._abort(live)

    def _abort(self, request_ids: list[str]) -> None:
        aborted = guard(lambda: self.engine.abort_request(request_ids), _failed)
        if not is_ok(aborted):
            self.stop(aborted.failure())

    def stop(self, because: BackendFailed) -> None:
        """Shut the engine down and give its memory back; calls that still wait for it fail with
        `because`.
        """
        with self.lock:
            if self.failed is None:
                self.failed = because
                for mailbox in {*self._mailboxes.values()}:
                    mailbox.fail(CallFailed(because))
                self._mailboxes.clear()
                engine, self.engine = self.engine, None
                # what has failed may fail once more; the log has it
                guard(engine.engine_core.shutdown, _failed)
                del engine
                release()

    def close(self) -> None:
        """Shut the engine down, as its owner wants it. It is logged only where a call still
        waits.
        """
        with self.lock:
            self._drop_left()
            message = "the engine was closed while the call ran"
            self.stop(
                engine_failed("vllm", message)
                if self._mailboxes
                else BackendFailed(message, backend="vllm")
            )


def _failed(raised: Raised) -> BackendFailed:
    return BackendFailed(raised.words, backend="vllm", incident=raised.incident)


def _wait(core: object) -> None:
    """Wait for outputs of an engine in a process of its own. vLLM's `step` would wait for ever for
    a process that was killed: it only notes its death.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    outputs: Any = getattr(core, "outputs_queue", None)
    resources: Any = getattr(core, "resources", None)
    if isinstance(outputs, Queue) and hasattr(resources, "engine_dead"):
        with outputs.not_empty:
            while not outputs.queue:
                if resources.engine_dead:
                    raise EngineDeadError
                outputs.not_empty.wait(0.2)


class Core:
    """An engine that starts when it is first needed, and again after it was closed or died. Engines
    that differ only in their plugins share it.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._running: Running | None = None
        self._model_config: Any = None
        self._lock = threading.RLock()
        self.differs: Differs | None = None
        """Beyond which length it gives another text than transformers, as far as that is known."""
        self.unscored: UnsupportedOption | None = None
        """Why it does not score, where it does not."""

    @property
    def loaded(self) -> bool:
        return self._running is not None and self._running.failed is None

    @property
    def side_by_side(self) -> int | None:
        """How many requests it runs at a time at most; None before it has started."""
        return None if self._running is None else self._running.side_by_side

    def running(self) -> Running:
        """The engine; starts it where needed."""
        with self._lock:
            if self._running is None or self._running.failed is not None:
                with starting(self._checkpoint.load, self._checkpoint.source):
                    use_batch_invariance(self._checkpoint.load)
                    check_version()
                    self.unscored = unscored(self._checkpoint.load)
                    self.differs = checked_lengths(
                        self._checkpoint, int(self.model_config().max_model_len)
                    )
                self._running = self._start()
            return self._running

    def _start(self) -> Running:
        """Start vLLM. Files that are not whole are named before: vLLM says why it cannot start in
        another process, and by its log alone.
        """
        checkpoint = self._checkpoint
        load = checkpoint.load
        try:
            room = adapter_arguments(checkpoint)
        except BadAdapter as error:
            raise CallFailed(engine_failed("vllm", str(error), hint=error.hint)) from error
        with starting(load, checkpoint.source):
            check_files(load, checkpoint.source)
            check_adapter_settings(load)
            from vllm import EngineArgs, LLMEngine
            from vllm.usage.usage_lib import UsageContext

            # with the limits that vLLM's own class for this purpose has: by default, an engine is
            # given fewer rows and tokens for a step
            engine = LLMEngine.from_engine_args(
                EngineArgs(**{**room, **adapter_slots(load), **engine_arguments(checkpoint)}),
                usage_context=UsageContext.LLM_CLASS,
            )
            try:
                return Running(engine, load)
            except BaseException:
                engine.engine_core.shutdown()
                raise

    def model_config(self) -> Any:
        """The model as vLLM sees it, found out without loading weights: the same before it starts
        as after. Raises one of `refusals()`, or `OSError`.
        """
        with self._lock:
            if self._model_config is None and self._running is not None:
                self._model_config = self._running.model_config
            if self._model_config is None:
                with starting(self._checkpoint.load, self._checkpoint.source):
                    use_batch_invariance(self._checkpoint.load)
                    check_version()
                    from vllm import EngineArgs

                    self._model_config = EngineArgs(
                        **engine_arguments(self._checkpoint)
                    ).create_model_config()
            return self._model_config

    def close(self) -> None:
        with self._lock:
            if self._running is not None:
                running, self._running = self._running, None
                if running.failed is None:
                    running.close()
