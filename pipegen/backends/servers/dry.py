"""What a route would send, without sending it."""

from __future__ import annotations

from collections.abc import Iterable

from returns.result import Failure

from pipegen.backends.servers.wire import WireRequest
from pipegen.core.errors import GenerationError
from pipegen.core.interpreter import Row, advance
from pipegen.core.slots import Batch, Slot
from pipegen.drivers.arguments import Options, check_settings
from pipegen.drivers.route import Route
from pipegen.records.parse_request import Request
from pipegen.records.requests import ImagePolicy


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
    batch = check_settings(options, image_policy).batch(requests)
    advanced = advance(route, [Row(number, slot) for number, slot in enumerate(batch)])
    wire_slots: dict[int, Slot[WireRequest]] = {}
    for row, call in sorted(advanced.calls, key=lambda pair: (pair[0].key, pair[0].sample)):
        wire_slots.setdefault(row.key, prepare(call.input, stream=stream))
    unsent = [row.answered(Failure(GenerationError("not sent"))) for row, _ in advanced.calls]
    ended = advance(route, [*unsent, *advanced.waiting])
    if ended.calls:
        raise TypeError(
            f"{route.name} makes more than one call: ask for the requests of each engine"
        )
    slots = {row.key: row.value for row in (*advanced.ended, *ended.ended)}
    return tuple([wire_slots.get(number, slots[number]) for number in range(len(batch))])
