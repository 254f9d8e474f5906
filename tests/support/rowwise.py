"""A fake engine that is fed while it works, and answers one row a step, those that wait longest
first: it dies of the row that the test says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.engines.protocol import RowDone
from pipegen.testing.fake import FakeEngine

__all__ = ["Fuse", "Rowwise"]


class Fuse:
    """Raises `KeyboardInterrupt` instead of answer number `at`, of whatever engine; `asked` has the
    texts of all rows that were begun, `answered` those of the rows that have ended.
    """

    def __init__(self, at: int = -1) -> None:
        self.left = at
        self.asked: list[str] = []
        self.answered: list[str] = []

    def burn(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1


class Rowwise(FakeEngine):
    def __init__(self, script: Any, fuse: Fuse, *, name: str = "fake") -> None:
        super().__init__(script, name=name)
        self.fuse, self.in_flight, self.side_by_side = fuse, 4, 1

    def open(self, wake: Callable[[], object], **how: Any) -> Rowwise:
        self.rows: list[tuple[int, Any]] = []
        return self

    def add(self, inputs: Mapping[int, Any]) -> None:
        self.fuse.asked += [self.text_of(asked) for asked in inputs.values()]
        self.rows += inputs.items()

    def step(self) -> Sequence[RowDone]:
        number, asked = self.rows.pop(0)
        self.fuse.burn()
        self.fuse.answered.append(self.text_of(asked))
        return [RowDone(row=number, slot=self.generate([asked])[0])]

    def text_of(self, asked: Any) -> str:
        return f"{self.name}: {asked.prompt.text} {asked.options.seed}"

    def close(self) -> None:
        """Nothing is held."""
