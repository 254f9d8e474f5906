"""What checks of engines have found, kept from one process to the next. A start that was checked
before pays nothing.

A verdict is a small JSON file in `checks`. Its name is a digest of what it is about: the check, the
model, the versions of the packages, the engine's code. If any of these changes, the check is made
again. A file that cannot be read or written is as if it were not there.

>>> import tempfile
>>> from unittest import mock
>>> with mock.patch.dict("os.environ", XDG_CACHE_HOME=tempfile.mkdtemp()):
...     before = kept("taste", model="a", packages=("pip",))
...     keep("taste", {"sweet": True}, model="a", packages=("pip",))
...     before, kept("taste", model="a", packages=("pip",)), kept("taste", model="b", packages=())
(None, {'sweet': True}, None)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pipegen.core.distribution import version
from pipegen.core.foreign_calls import attempt

_LARGEST = 4096
"""The most bytes of a verdict, by default."""
_ROOMS = ("checkpoint", "hf", "vllm")


class CannotCheck(Exception):
    """What a check would find is not known, for this reason."""


def checks() -> Path:
    """The folder of the verdicts: `pipegen/checks` in `XDG_CACHE_HOME`, which is `~/.cache` where it
    is not set.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipegen" / "checks"


def kept(
    check: str, *, model: str, packages: Sequence[str], most: int = _LARGEST
) -> Mapping[str, Any] | None:
    """What a check found of a model with these packages as they are installed; None where it has
    not been made, or has more than `most` bytes.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # as if it were not there
        file = _file(check, model, packages)
        if file.stat().st_size <= most:
            verdict = json.loads(file.read_text(encoding="utf-8"))
            return verdict if isinstance(verdict, dict) else None
    return None


def keep(
    check: str,
    verdict: Mapping[str, object],
    *,
    model: str,
    packages: Sequence[str],
    most: int = _LARGEST,
) -> None:
    """Keep what a check has found, as plain data of at most so many bytes."""
    data = json.dumps(verdict).encode()
    if len(data) > most:
        return
    with contextlib.suppress(OSError, RuntimeError):  # it is checked again
        file = _file(check, model, packages)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with open(handle, "wb") as opened:
                opened.write(data)
            os.replace(name, file)
        except OSError:
            os.unlink(name)
            raise


def _file(check: str, model: str, packages: Sequence[str]) -> Path:
    versions = {name: installed(name) for name in packages}
    about = json.dumps([check, model, _own_version(), versions, _code()], sort_keys=True)
    return checks() / f"{hashlib.blake2b(about.encode(), digest_size=16).hexdigest()}.json"


_own_version = cache(version)


@cache
def installed(package: str) -> str | None:
    """The version of a package that is installed, read once: each reading parses the package's metadata."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _code() -> str:
    """A digest of the code that checks and is checked: a clone may change without its version."""
    digest = hashlib.blake2b(digest_size=16)
    for room in _ROOMS:
        for file in sorted((Path(__file__).parents[1] / room).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


T = TypeVar("T")
_CHECK, _READ_BY = "facts", ("transformers", "torch", "torchvision", "pillow")
"""What facts are kept under, and the packages that they are read by."""


class KeptFacts:
    """What the configuration of a checkpoint says, by names, as plain data. It is kept for the
    checkpoint's files: a command that asks no model needs no transformers to know it.

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
