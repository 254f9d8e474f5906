"""What a route would send, without sending it."""

from __future__ import annotations

from collections.abc import Iterable

from returns.result import Failure

from pipegen.backends.servers.wire import WireRequest
from pipegen.core.calls import Call
from pipegen.core.drive import advance
from pipegen.core.errors import GenerationError
from pipegen.core.slots import Batch, Slot
from pipegen.drivers.arguments import Options
from pipegen.drivers.batch import prepare_batch
from pipegen.drivers.route import Route
from pipegen.records.plain import Request
from pipegen.records.requests import ImagePolicy

__all__ = ["wire_requests"]


def wire_requests(
    route: Route,
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    stream: bool = False,
) -> Batch[WireRequest]:
    """For each request what an online route would send first for it, or why it would send nothing.
    Asks no server.

    The model's name is left out where only the server could tell it. Raises `TypeError` for a route
    whose engine is not a server.
    """
    engine = route.engine
    prepare = getattr(engine, "prepare", None)
    if prepare is None:
        raise TypeError(f"{route.name} is not a server: nothing is sent")
    running = route.steps(prepare_batch(requests, options, image_policy))
    step = advance(running)
    if not isinstance(step, Call):
        return step.batch
    wanted: dict[int, Slot[WireRequest]] = {}
    for (row, _), encoded in zip(step.rows, step.inputs, strict=True):
        wanted.setdefault(row, prepare(encoded, stream=stream))
    ended = advance(running, [Failure(GenerationError("not sent"))] * len(step.inputs))
    if isinstance(ended, Call):
        raise TypeError(
            f"{route.name} makes more than one call: ask for the requests of each engine"
        )
    return tuple(wanted.get(row, slot) for row, slot in enumerate(ended.batch))
