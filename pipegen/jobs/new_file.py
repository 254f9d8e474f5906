"""A file that is there whole or not at all: it is written under another name, synced, and takes its
place by a rename.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = ".pipegen-"
"""How the names of files begin that are being written; the machine's name and the process's number
follow.
"""
_BUFFER = 2**18
"""Bytes that are written at a time."""


class JournalError(Exception):
    """A journal cannot be read, written or shared; the message says which file, why, and what to
    do.
    """


class Replaced(JournalError):
    """A file that was to be written has come to hold what others wrote meanwhile."""


@contextlib.contextmanager
def refused(path: str | os.PathLike[str], kind: str = "written", then: str = "") -> Iterator[None]:
    """Raise `JournalError` for an `OSError` of the block: the file cannot be written, or whatever
    `kind` says; and `then` what that means.
    """
    try:
        yield
    except OSError as refusal:
        raise JournalError(
            f"{os.fspath(path)} cannot be {kind}: {refusal.strerror}{then and '; '}{then}"
        ) from refusal


class _NewFile(io.FileIO):
    """The file while it is written. Where that fails, it raises `JournalError`, which names the
    file whose place it takes.
    """

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(handle, "wb")
        self._path = path

    def write(self, data: Any, /) -> int:
        with refused(self._path):
            return os.write(self.fileno(), data)

    def close(self) -> None:
        with refused(self._path):
            super().close()


@contextlib.contextmanager
def new_file(path: Path, *, changed: Callable[[], bool] = lambda: False) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of the file when the block is left; where it raises,
    the old file stays.

    Raises `JournalError` where the file cannot be written, and where there is something else than a
    file: a device is never replaced.

    changed: whether others have written to the file meanwhile. Raises `Replaced` where they wrote
        something else: that stays.
    """
    import tempfile

    path = Path(os.path.realpath(path))  # a link stays one
    with refused(path):
        if path.exists() and not path.is_file():
            raise JournalError(f"{path} is no regular file, and is not replaced")
        handle, name = tempfile.mkstemp(
            prefix=f"{TEMPORARY}{os.uname().nodename}-{os.getpid()}-", dir=path.parent
        )
    try:
        with io.BufferedWriter(_NewFile(handle, path), _BUFFER) as stream:
            yield stream
            stream.flush()
            with refused(path):
                os.fchmod(
                    handle, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask()
                )
                os.fsync(handle)
        with refused(path):
            if changed() and not _alike(name, path):
                raise Replaced(f"{path} was written by others in the meantime, and is not replaced")
            os.replace(name, path)  # the names are what counts here
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _alike(one: str, other: Path) -> bool:
    """Whether two files have the same bytes."""
    import filecmp

    return filecmp.cmp(one, other, shallow=False)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_stale(folder: Path) -> None:
    """Remove what killed processes of this machine were writing in the folder by `new_file`. What
    cannot be removed stays: it does no harm.
    """
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{TEMPORARY}{os.uname().nodename}-*"):
            number = path.name.rpartition("-")[0].rpartition("-")[2]
            if number.isdecimal() and not _runs(int(number)):
                path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user's
        return True
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
