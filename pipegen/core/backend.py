"""What performs calls, as protocols. A backend has a name, and answers a batch; one that takes rows
while it works has `open` besides (see `pipegen.engines.session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from pipegen.core.slots import Slot

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


@runtime_checkable
class Backend(Protocol[Asked_contra, Answer_co]):
    """Performs calls: encoded prompts in, one slot of generated ids for each out."""

    @property
    def name(self) -> str:
        """The engine's name."""
        ...

    def generate(self, inputs: Sequence[Asked_contra]) -> Sequence[Slot[Answer_co]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any
        other exception is a bug and comes through.
        """
        ...


AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend in a pipe: the stages around it know what it takes and answers."""


class Session(Protocol):
    """A call to which rows may be added while it runs. Who opened it closes it; one thread at a
    time uses it.
    """

    @property
    def side_by_side(self) -> int:
        """How many rows a step advances at most; 0 where rows end by themselves, and `wake` is
        called when one has.
        """
        ...

    def add(self, inputs: Mapping[int, Any]) -> None:
        """Add rows, each under a number of its own. Raises as `generate` does."""
        ...

    def step(self) -> Sequence[Any]:
        """What has come: the events of `pipegen.engines.protocol`, those of each row in order, with
        one `RowDone` for each row. Where nothing has, some work is done first; a session whose rows
        end by themselves never waits. Raises as `generate` does.
        """
        ...

    def close(self) -> None:
        """End the rows that still run."""
        ...


def require_backend(stage: str, backend: object) -> None:
    """Raise `TypeError` unless that is what the stage can be bound to, such as for a route in the
    place of its engine.
    """
    if not isinstance(getattr(backend, "name", None), str) or not callable(
        getattr(backend, "generate", None)
    ):
        raise TypeError(
            f"{stage} is bound to an engine, not to {type(backend).__name__}: route.engine is the"
            " engine of a route"
        )
