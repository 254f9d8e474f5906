"""What the configuration of a checkpoint says, kept for its files from one process to the next: a
command that asks no model needs no transformers to know it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from pipegen.backends.checkpoint.verdicts import keep, kept
from pipegen.core.foreign_calls import attempt

T = TypeVar("T")
_CHECK, _READ_BY = "facts", ("transformers", "torch", "torchvision", "pillow")
"""What facts are kept under, and the packages that they are read by."""


class KeptFacts:
    """Facts by their names, as plain data.

    identity: the digest of the checkpoint's files; where it raises, nothing is kept.

    >>> facts = KeptFacts(None)
    >>> facts("words", lambda: 3), facts("words", lambda: 4)
    (3, 3)
    """

    def __init__(self, identity: Callable[[], str] | None) -> None:
        self._identity_of = identity

    def __call__(self, name: str, find: Callable[[], T]) -> T:
        """A fact, found where it is not known. Raises what `find` raises."""
        if name not in self._known:
            self._known[name] = find()
            if self.model is not None:
                keep(_CHECK, self._known, model=self.model, packages=_READ_BY)
        fact: T = self._known[name]
        return fact

    @cached_property
    def model(self) -> str | None:
        """What is kept is about these files; None where nothing is kept."""
        if self._identity_of is None:
            return None
        return attempt(self._identity_of).value_or(None)

    @cached_property
    def _known(self) -> dict[str, Any]:
        if self.model is None:
            return {}
        return dict(kept(_CHECK, model=self.model, packages=_READ_BY) or {})
