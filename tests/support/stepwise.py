"""An engine that is fed: a row takes as many steps as its prompt says, and a step takes one second
of the engine's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipegen.engines.protocol import RowDone
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine

__all__ = ["Stepwise", "echo"]


def echo(encoded: Encoded) -> str:
    return f"re: {encoded.request.prompt}<|im_end|>"


class Steps:
    """An open call whose rows end after as many steps as they say; each step takes one second."""

    def __init__(self, engine: Stepwise, wake: Callable[[], object]) -> None:
        self.engine, self.wake, self.side_by_side = engine, wake, engine.side_by_side
        self.rows: dict[int, list[Any]] = {}

    def add(self, inputs: Mapping[int, Any]) -> None:
        self.rows.update(
            {
                number: [int(encoded.request.prompt.split()[0]), encoded]
                for number, encoded in inputs.items()
            }
        )

    def step(self) -> list[RowDone]:
        self.engine.now += 1
        self.engine.before_step()
        for row in self.rows.values():
            row[0] -= 1
        if not self.side_by_side:
            self.wake()
        return [
            RowDone(row=number, slot=self.engine.generate([self.rows.pop(number)[1]])[0])
            for number, row in [*self.rows.items()]
            if row[0] <= 0
        ]

    def close(self) -> None:
        self.engine.left += len(self.rows)


class Stepwise(FakeEngine):
    """An engine that is fed."""

    in_flight = 3

    def __init__(
        self, *, side_by_side: int = 3, before_step: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(echo)
        self.side_by_side, self.now, self.left, self.before_step = side_by_side, 0.0, 0, before_step

    def open(self, wake: Callable[[], object], **how: Any) -> Steps:
        return Steps(self, wake)
