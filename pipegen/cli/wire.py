"""What would be sent, without sending it: each wire request of a chat as plain data, keys hidden."""

from __future__ import annotations

import dataclasses
from typing import Any

from returns.result import Success

from pipegen import strict_json
from pipegen.backends.online.wire import WireRequest
from pipegen.cli.answers import Speaker
from pipegen.drive import admit, advance
from pipegen.io import error_to_plain
from pipegen.options import flat_values
from pipegen.pipe import Call
from pipegen.slots import Slot, is_ok

__all__ = ["dry_line"]


def dry_line(speaker: Speaker, prompt: str) -> tuple[str, bool]:
    """One line of JSON, `agent`, `method`, `url` and `body`, and whether there is such a request; where there is none, `error` says why.

    A model in this process has no wire: its `method` is `call`, its `url` null, and its `body` what `pipegen generate` takes.
    """
    agent = speaker.agent
    messages = speaker.messages(prompt)
    engine: Any = getattr(speaker.route, "engine", None)
    prepare, access = getattr(engine, "prepare", None), getattr(engine, "access", None)
    if prepare is None or access is None:
        options = {name: value for name, value in flat_values(agent.backend.options).items() if value is not None}
        return strict_json.dump({"agent": agent.id, "method": "call", "url": None, "body": {"messages": messages, "options": options}}), True
    made = _wire(speaker, messages, prepare)
    if not is_ok(made):
        return strict_json.dump({"agent": agent.id, "error": error_to_plain(made.failure())}), False
    request = made.unwrap()
    return strict_json.dump({"agent": agent.id, "method": request.method, "url": f"{access.root}{request.path}", "body": request.body}), True


def _wire(speaker: Speaker, messages: list[dict[str, Any]], prepare: Any) -> Slot[WireRequest]:
    """The pipe's first call, taken in place of performing it."""
    batch = admit([{"messages": messages}], speaker.agent.backend.options)
    at_work = speaker.route.steps(batch)
    try:
        step = advance(at_work)
        while isinstance(step, Call) and not step.inputs:
            step = advance(at_work, ())
        if isinstance(step, Call):
            made: Slot[WireRequest] = prepare(step.inputs[0], stream=True)
            return made.map(lambda request: dataclasses.replace(request, rid=""))
        return Success(step.batch[0]).bind(lambda slot: slot) if is_ok(step.batch[0]) else step.batch[0]
    finally:
        at_work.close()
