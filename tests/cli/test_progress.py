"""The bar of `pipegen generate`."""

from __future__ import annotations

import io
import sys

import pytest

from pipegen.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    seen = []
    plain = Progress.update
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(Progress, "update", lambda self, task, **said: (seen.append(said["completed"]), plain(self, task, **said)))
    with progress(10) as moved:
        for done in (3, None, 2, 5):
            moved(done, "words")
    assert seen == [3, 3, 3, 5]
