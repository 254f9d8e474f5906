"""The requests of a chat that would be sent, as plain data without keys."""

from __future__ import annotations

from typing import Any

from pipegen.backends.servers.dry import wire_requests
from pipegen.cli.answers import Speaker
from pipegen.core.slots import is_ok
from pipegen.io.jsonl import error_to_plain
from pipegen.records import strict_json
from pipegen.records.options import flat_values

__all__ = ["dry_line"]


def dry_line(speaker: Speaker, prompt: str) -> tuple[str, bool]:
    """One line of JSON with `agent`, `method`, `url` and `body` (or `error`), and whether there is a request.

    For a model in this process, `method` is `call`, `url` is null, and `body` is a line for `pipegen generate`.
    """
    agent, messages = speaker.agent, speaker.messages(prompt)
    engine: Any = speaker.route.engine
    if not hasattr(engine, "prepare"):
        options = {name: value for name, value in flat_values(agent.backend.options).items() if value is not None}
        return strict_json.dump({"agent": agent.id, "method": "call", "url": None, "body": {"messages": messages, "options": options}}), True
    slot = wire_requests(speaker.route, [{"messages": messages}], agent.backend.options, stream=True)[0]
    if not is_ok(slot):
        return strict_json.dump({"agent": agent.id, "error": error_to_plain(slot.failure())}), False
    request = slot.unwrap()
    url = engine.sender.access.url(request.path)
    return strict_json.dump({"agent": agent.id, "method": request.method, "url": url, "body": request.body}), True
