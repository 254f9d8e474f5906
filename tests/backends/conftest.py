"""For tests of the online backends: asks and answers as plain data, and no key from the
environment.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipegen.backends.servers.wire import ServerRequest
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "SGLANG_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ask() -> Any:
    """Makes an `ServerRequest` of ids, with options written flat."""

    def make(
        token_ids: tuple[int, ...] = (1, 2, 3),
        *,
        ending_ids: tuple[int, ...] = (),
        stops: tuple[str, ...] = (),
        **more: Any,
    ) -> ServerRequest:
        own = {
            name: more.pop(name)
            for name in ("extra_body", "images", "model", "stream", "rid", "messages", "tools")
            if name in more
        }
        options = resolve(GenerationOptions(**more))
        return ServerRequest(
            token_ids=token_ids,
            options=options,
            ending_ids=ending_ids,
            stops=stops,
            prompt_tokens=len(token_ids),
            **own,
        )

    return make
