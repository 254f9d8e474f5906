"""How a server is spoken to: patience, width and what is added to every body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from immutabledict import immutabledict

from pipegen.records.fields import boolean, integer, non_empty_string, number, record
from pipegen.records.secret import secretive

__all__ = ["ServerSettings"]


@record
class ServerSettings:
    """The settings that all online backends share. Raises `InvalidField` for a value that a field does not take."""

    timeout: Annotated[float, number(above=0)] = 600.0
    """Seconds for one request in all: its turn, the connection, the answer or the whole stream, pauses and further attempts."""
    max_in_flight: Annotated[int, integer(low=1)] = 256
    """Requests at the server at once, at most; fewer while it asks for patience."""
    retries: Annotated[int, integer(low=0)] = 3
    """How often at most one request is sent again, where that is safe."""
    batch_budget: Annotated[float | None, number(above=0)] = None
    """Seconds for a whole call, attempts and waits and all; what has no answer by then is `Timeout`. None is no limit."""
    served_model_name: Annotated[str | None, non_empty_string] = None
    """The name that the server knows the model by; not said, it is found out from `/v1/models`."""
    extra_body: Annotated[Mapping[str, Any], secretive] = immutabledict()
    """Merged into every body, deeply; `None` takes a key away."""
    server_limit: Annotated[bool, boolean] = False
    """Where no option says how long an answer may be, none is sent and the server's own limit holds (chat servers)."""
