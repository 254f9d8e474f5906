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
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipegen.core.distribution import version

_LARGEST = 4096
"""No verdict has more bytes."""
_ROOMS = ("checkpoint", "hf", "vllm")


class CannotCheck(Exception):
    """What a check would find is not known, for this reason."""


def checks() -> Path:
    """The folder of the verdicts: `pipegen/checks` in `XDG_CACHE_HOME`, which is `~/.cache` where it
    is not set.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipegen" / "checks"


def kept(check: str, *, model: str, packages: Sequence[str]) -> Mapping[str, Any] | None:
    """What a check found of a model with these packages as they are installed; None where it has
    not been made.
    """
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # as if it were not there
        file = _file(check, model, packages)
        if file.stat().st_size <= _LARGEST:
            verdict = json.loads(file.read_text(encoding="utf-8"))
            return verdict if isinstance(verdict, dict) else None
    return None


def keep(check: str, verdict: Mapping[str, Any], *, model: str, packages: Sequence[str]) -> None:
    """Keep what a check has found, as plain data."""
    with contextlib.suppress(OSError, RuntimeError):  # it is checked again
        file = _file(check, model, packages)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        with open(handle, "w", encoding="utf-8") as opened:
            json.dump(verdict, opened)
        os.replace(name, file)


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
