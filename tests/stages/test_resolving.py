"""What the first stage finds out about a request before anything is made of it."""

from __future__ import annotations

import pytest

import pipegen as pg
from pipegen.core.slots import is_ok
from pipegen.engines.capabilities import Capabilities
from pipegen.records.options import options_from, resolve
from pipegen.records.results import ResolvedRequest
from pipegen.stages.resolving import check_support


def supported(adapter: str, known: tuple[str, ...] | None) -> object:
    request = pg.TextGenerationRequest(prompt="a")
    options = resolve(options_from({"adapter": adapter}))
    engine = Capabilities(engine="hf", honours=frozenset({"adapter"}), adapters=known)
    slot = check_support(ResolvedRequest(request=request, options=options), engine)
    return None if is_ok(slot) else slot.failure()


@pytest.mark.parametrize(
    ("known", "message", "hint"),
    [
        (("legal", "casual"), "its adapters are 'legal', 'casual'", "name one of them"),
        ((), "it was given none", "or leave the option out"),
    ],
)
def test_an_adapter_that_the_engine_lacks_is_named_with_those_that_it_has(
    known: tuple[str, ...], message: str, hint: str
) -> None:
    error = supported("legall", known)
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "adapter"
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(("adapter", "known"), [("legal", ("legal",)), ("", ()), ("x", None)])
def test_an_adapter_that_it_has_or_none_is_taken(
    adapter: str, known: tuple[str, ...] | None
) -> None:
    assert supported(adapter, known) is None
