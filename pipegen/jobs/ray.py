"""pipegen on Ray Data: `Generate`, a class for `Dataset.map_batches`. Ray starts its actors, hands
batches to them, and starts them again when they die.

dataset.map_batches(
    pg.ray.Generate,
    fn_constructor_args=(pg.ModelLoadConfig(model="Qwen/Qwen3-4B"), options),
    fn_constructor_kwargs={"job": "/shared/answers.job"},
    batch_format="pyarrow",
    batch_size=256,
    num_gpus=1,
    compute=ray.data.ActorPoolStrategy(size=4, max_concurrent_calls_per_actor=4),
)
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from returns.result import Success

from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import Admission, Options, check_settings
from pipegen.drivers.progress import Progress, watched
from pipegen.engines.settings import ModelLoadConfig
from pipegen.io.table_out import AnswerTable
from pipegen.io.tables import Block, Columns, TableRow
from pipegen.jobs.history import note_run, settings_of
from pipegen.jobs.replica import Replica
from pipegen.jobs.row_keys import Keys
from pipegen.records.parse_request import request_from
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Counts", "Generate", "Keeper", "Metered", "T"]

Make: TypeAlias = ModelLoadConfig | Callable[[], Pipe[GenerationRequest, GenerationResult]]
"""What a route is made from in the process that uses it: a configuration, or a function."""
_log = logging.getLogger("pipegen")


class Generate:
    """Answers the rows of a Ray dataset: a batch of rows in, the same rows with the columns of an
    answer out.

    A row is a request, as in a table file: columns named as the fields of a request are its fields.
    Messages may be JSON text. A row with `turns` is a conversation. The columns of an answer and their types are those of a table that
    pipegen writes, and are always the same. A row that fails has `ok: false` and its `error`; it
    raises nothing.

    Many batches may be in flight at a time: all their rows are fed to one engine, which takes new
    rows while others run.

    load: a `ModelLoadConfig`, or a function that makes the route in the actor, such as
    `pg.turns(route)`.
    options: options of all rows.
    job: the folder of a job, on a disk that all machines share.
    columns: the columns of fields that have other names: `{"prompt": "question"}`.
    retry, version: as those of `pg.job`.
    in_flight: how many rows run at a time. By default, as many as keep the engine full.
    model: the name in the column `model`. By default, that of the configuration.
    brief: leave token ids and log probabilities out.

    When the engine dies, its actor ends, so that Ray starts a new one and hands it the same
    batches. In a job, a row that was in flight alone at three such deaths fails with
    `BackendFailed`.

    In a job, equal requests share one answer. Requests that are to have answers of their own have
    different seeds.
    """

    def __init__(
        self,
        load: Make,
        options: Options | None = None,
        *,
        job: str | os.PathLike[str] | None = None,
        columns: Mapping[str, str] | None = None,
        image_policy: ImagePolicy | None = None,
        policy: RequestPolicy | None = None,
        retry: str = "retryable",
        version: str = "",
        in_flight: int | None = None,
        model: str = "",
        brief: bool = False,
    ) -> None:
        route = _route(load)
        self._admission = check_settings(options, image_policy, policy)
        self._columns, self._brief = Columns(columns or {}), brief
        self._model = model or (str(load.model) if isinstance(load, ModelLoadConfig) else "")
        folder = None if job is None else Path(job)
        run, owner = _names()
        replica_settings: dict[str, Any] = {"retry": retry, "in_flight": in_flight, "died": _died}
        self._replica = Replica(
            route, self._admission, folder=folder, run=run, owner=owner, **replica_settings
        )
        self._settings = (
            None if folder is None else settings_of(route, self._admission.options, version)
        )
        if folder is not None and self._settings is not None:
            self._settings, _ = note_run(folder, self._settings)

    async def __call__(self, table: pa.Table) -> pa.Table:
        """The table with the columns of its answers. Raises where the engine cannot go on."""
        import asyncio

        blocks = [*map(Block, table.combine_chunks().to_batches())]
        rows = [
            TableRow(None, block, index)
            for block in blocks
            for index in range(block.batch.num_rows)
        ]
        requests = [
            request_from(self._columns.request(values), "row")
            for block in blocks
            for values in block.asked
        ]
        keyed_requests = await asyncio.to_thread(self._keyed, requests)
        slots = await _slots(self._replica, keyed_requests)
        root = self._admission.images.root
        answers = AnswerTable(
            table.schema, self._columns, root, model=self._model, brief=self._brief, numbered=False
        )
        for row, request, slot in zip(rows, requests, slots, strict=True):
            answers.add(row, "", _named(slot, request))
        return answers.taken() if rows else answers.schema.empty_table()

    def close(self) -> None:
        """End what is in flight, and release the engine."""
        self._replica.close()

    def _keyed(
        self, requests: Sequence[Slot[GenerationRequest]]
    ) -> list[tuple[str | None, Slot[GenerationRequest]]]:
        """The requests with their keys, and their images loaded; a key needs both. Without a job
        there are none.
        """
        if self._settings is None:
            return [(None, request) for request in requests]
        keys = Keys(self._settings)  # equal requests have one key, and share one answer
        return [
            (
                ready.map(keys.first).map(bytes.hex).value_or(None),
                ready.bind(partial(_with_options_of, unmerged)),
            )
            for unmerged, ready in zip(requests, self._admission.batch(requests), strict=True)
        ]


def _with_options_of(
    unmerged: Slot[GenerationRequest], ready: GenerationRequest
) -> Slot[GenerationRequest]:
    """A request that is loaded, with its own options alone."""
    return unmerged.map(lambda request: dataclasses.replace(ready, options=request.options))


async def _slots(
    replica: Replica, keyed_requests: Sequence[tuple[str | None, Slot[GenerationRequest]]]
) -> list[Slot[Any]]:
    """The slots of rows, once all have ended. Raises where the engine cannot go on."""
    import asyncio  # half of what `import pipegen` would cost

    return await asyncio.gather(
        *(asyncio.wrap_future(replica.ask(key, request)) for key, request in keyed_requests)
    )


def _named(slot: Slot[Any], request: Slot[GenerationRequest]) -> Slot[Any]:
    """The slot with the id of this request: equal ones share an answer."""
    return slot.map(lambda result: dataclasses.replace(result, id=request.unwrap().id))


class Tallied(Protocol):
    """Counts of requests."""

    def count(self, slot: Slot[Any], name: str, /) -> None: ...

    def add(self, other: Self, /) -> None: ...


T = TypeVar("T", bound=Tallied)


class Metered(Protocol):
    """What the clock says of the work of a process."""

    @property
    def worked(self) -> float | None: ...

    def see(self, now: Progress, /) -> None: ...


class Counts(NamedTuple, Generic[T]):
    """What became of rows that an actor was handed."""

    blocks: Mapping[str, T]
    """Of each block, by the key of its first row, the rows that have ended."""
    worked: float | None = None
    """For how many seconds the engine has worked; None before its first token."""


class Keeper(Generic[T]):
    """The actor of `pipegen generate --ray`: it is handed rows with their keys, keeps what it
    finishes in the job's folder, and gives back counts.

    tally, meter: make what counts the rows of a block, and what notes when the engine works.
    """

    def __init__(
        self,
        load: Make,
        admission: Admission,
        folder: str,
        run: str,
        how: Mapping[str, Any],
        tally: Callable[[], T],
        meter: Callable[[], Metered],
    ) -> None:
        self._tally, self._meter = tally, meter()
        self._open: dict[str, list[tuple[str, Future[Slot[Any]]]]] = {}
        """The ids and slots of the blocks that were not answered."""

        def made() -> Replica:
            route = watched(_route(load), self._meter.see)
            owner = _names()[1]
            return Replica(
                route, admission, folder=Path(folder), run=run, owner=owner, died=_died, **how
            )

        # the calls raise: what a constructor raises comes as text with a traceback
        self._made = attempt(made)

    @property
    def _replica(self) -> Replica:
        if not is_ok(self._made):
            raise self._made.failure()
        return self._made.unwrap()

    async def ready(self) -> int:
        """How many rows are to be in flight here. Raises where the engine cannot begin."""
        return self._replica.in_flight

    async def answer(self, rows: Sequence[tuple[str, GenerationRequest]]) -> Counts[T]:
        """Answer rows. Raises where the engine cannot go on."""
        import asyncio

        replica, name = self._replica, rows[0][0]
        self._open[name] = [
            (str(request.id), replica.ask(key, Success(request))) for key, request in rows
        ]
        await asyncio.gather(*(asyncio.wrap_future(slot) for _, slot in self._open[name]))
        return Counts({name: self._counted(self._open.pop(name))}, self._meter.worked)

    async def seen(self) -> Counts[T]:
        """What became of the blocks that were not answered."""
        blocks = {name: self._counted(block) for name, block in self._open.items()}
        return Counts(blocks, self._meter.worked)

    async def close(self, grace: float) -> Counts[T]:
        """End: rows in flight have so many seconds. Gives what became of those blocks that were not
        answered before.
        """
        import asyncio

        blocks = dict(self._open)
        await asyncio.to_thread(self._replica.close, grace)
        counted = {name: self._counted(block) for name, block in blocks.items()}
        return Counts(counted, self._meter.worked)

    def _counted(self, block: Sequence[tuple[str, Future[Slot[Any]]]]) -> T:
        tally = self._tally()
        for name, slot in block:
            if slot.done() and slot.exception() is None:
                tally.count(slot.result(), name)
        return tally


def _route(load: Make) -> Pipe[GenerationRequest, GenerationResult]:
    from pipegen import backends
    from pipegen.drivers.turns import turns

    route = turns(backends.load(load)) if isinstance(load, ModelLoadConfig) else load()
    if not isinstance(route, Pipe):
        raise TypeError(
            "a ModelLoadConfig, or a function that makes a route, is wanted; this one made"
            f" {type(route).__name__}"
        )
    return route


def _names() -> tuple[str, str]:
    """The name of the run, which is the program that started the actors, and that of this process
    within it: an actor that is started again keeps its own.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return uuid.uuid4().hex, uuid.uuid4().hex
    context = ray.get_runtime_context()
    return (
        f"{context.gcs_address} {context.get_job_id()}",
        context.get_actor_id() or uuid.uuid4().hex,
    )


def _died(failure: CallFailed) -> None:
    """End an actor whose engine has died: Ray starts another one, whose process has a new engine,
    where an exception would leave it with the dead one.
    """
    ray = sys.modules.get("ray")
    if (
        ray is not None
        and ray.is_initialized()
        and ray.get_runtime_context().get_actor_id() is not None
    ):
        _log.error(
            "incident %s: the engine has died, and its actor ends: %s",
            failure.error.incident,
            failure,
        )
        logging.shutdown()
        os._exit(1)
