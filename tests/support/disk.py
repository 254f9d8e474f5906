"""The system calls on one folder, counted: any one of them fails, is done in part, or is the last
one of the process.

    with Disk(folder, at=7, fault="ENOSPC").mounted(monkeypatch) as disk:
        ...
    disk.calls  # what was called, in order
    disk.after_power_loss(folder, more=5)  # what was synced, and 5 bytes of each file after that

Faults: "kill" (before the call), "kill after" it, "kill half" (a write is done by half), "short" (a
write takes half), and the names of errors. A kill is an exception that nothing catches; after it no
call changes anything, so the folder is what a killed process leaves. Calls of other threads are not
counted: their order is not the same each time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

__all__ = ["FAULTS", "Disk", "Killed"]

FAULTS = ("kill", "kill after", "kill half", "short", "ENOSPC", "EIO", "EINTR")
BY_PATH = ("open", "mkdir", "replace", "unlink", "stat", "scandir")
BY_HANDLE = ("write", "pwrite", "ftruncate", "fchmod", "fstat", "pread", "close")
UNDOING = ("close", "unlink")
"""Calls that fail only after they were done, as far as anybody can tell."""


class Killed(BaseException):
    """The process is gone."""


class _Reading(io.RawIOBase):
    """A file whose reads are system calls of the disk."""

    def __init__(self, disk: Disk, raw: io.FileIO) -> None:
        self._disk, self._raw, self.name = disk, raw, raw.name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._raw.seek(offset, whence)

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        count: int | None = self._disk.call(
            "read", str(self.name), lambda: self._raw.readinto(buffer)
        )
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class Disk:
    def __init__(self, root: Path, at: int = -1, fault: str = "") -> None:
        self.root, self.at, self.fault = str(root), at, fault
        self.calls: list[str] = []
        self.dead = self.failed = False
        self._names: dict[str, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}

    @contextlib.contextmanager
    def mounted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Self]:
        """Every call on the folder goes through the disk."""
        with monkeypatch.context() as patch:
            for name in BY_PATH:
                patch.setattr(
                    os, name, self._counted(name, getattr(os, name), lambda given, **_: given)
                )
            for name in BY_HANDLE:
                patch.setattr(
                    os, name, self._counted(name, getattr(os, name), self._path_of, named=False)
                )
            patch.setattr(
                os, "fsync", self._counted("fsync", self._sync, self._path_of, named=False)
            )
            patch.setattr(
                fcntl, "flock", self._counted("flock", fcntl.flock, self._path_of, named=False)
            )
            patch.setattr(io, "open", self._opened)
            yield self

    def call(
        self,
        name: str,
        path: str,
        done: Callable[[], Any],
        half: Callable[[], Any] | None = None,
        *,
        named: bool = False,
    ) -> Any:
        """Do a call, or what the fault makes of it. `half` does a part of it; `named` says whether
        the error has the file's name.
        """
        if threading.current_thread() is not threading.main_thread():
            return None if self.dead else done()
        if self.dead:
            if name == "close":
                return done()
            raise Killed
        number = len(self.calls)
        self.calls.append(f"{name} {re.sub(_TEMPORARY, 'new', os.path.relpath(path, self.root))}")
        if number != self.at:
            return done()
        self.failed = True
        if self.fault.startswith("kill"):
            if self.fault == "kill after" or name == "close":
                done()
            elif self.fault == "kill half" and half is not None:
                half()
            self.dead = True
            raise Killed
        if self.fault == "short" and half is not None:
            return half()
        # Python itself calls again
        if self.fault == "short" or (self.fault == "EINTR" and name != "write"):
            self.failed = False
            return done()
        if name in UNDOING:
            done()
        code = getattr(errno, self.fault)
        raise OSError(code, os.strerror(code), *([path] if named else []))

    def _sync(self, handle: int) -> None:
        """Note what is on the disk from now on: the names of a folder, or the content of a file."""
        if threading.current_thread() is not threading.main_thread():
            return  # the process may die meanwhile
        path = Path(self._path_of(handle))
        if path.is_dir():
            self._names[str(path)] = {entry.name: entry.inode() for entry in _REAL_SCANDIR(path)}
        else:
            with _REAL_OPEN(path, "rb") as stream:
                self._contents[path.lstat().st_ino] = stream.read()

    def after_power_loss(self, folder: Path, more: int) -> None:
        """Lay into the folder what was synced, with so many bytes of what was written to each file
        after that.
        """
        folder.mkdir()
        names = self._names.get(self.root, {})
        held = {path.stat().st_ino: path for path in Path(self.root).rglob("*")}
        left = [(folder / name, number) for name, number in names.items()]
        while left:
            path, number = left.pop()
            if number in held and held[number].is_dir():
                path.mkdir()
                left += [
                    (path / name, inner)
                    for name, inner in self._names.get(str(held[number]), {}).items()
                ]
            else:
                synced = self._contents.get(number, b"")
                now = held[number].read_bytes() if number in held else b""
                path.write_bytes(
                    synced + now[len(synced) : len(synced) + more]
                    if now.startswith(synced)
                    else synced
                )

    def _counted(
        self,
        name: str,
        real: Callable[..., Any],
        path_of: Callable[..., Any],
        *,
        named: bool = True,
    ) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            path = str(path_of(*arguments[:1])) if arguments else ""
            if not path.startswith(self.root):
                return real(*arguments, **more)
            half = None
            if name == "write":
                handle, data = arguments
                half = lambda: real(handle, bytes(data)[: max(1, len(data) // 2)])  # noqa: E731
            return self.call(name, path, lambda: real(*arguments, **more), half, named=named)

        return called

    def _path_of(self, handle: Any) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{handle}") if isinstance(handle, int) else ""
        except OSError:
            return ""

    def _opened(self, file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if not str(file).startswith(self.root) or mode not in ("r", "rb"):
            return _REAL_OPEN(file, mode, *arguments, **more)
        raw = self.call("open", str(file), lambda: io.FileIO(str(file), "rb"), named=True)
        stream = io.BufferedReader(_Reading(self, raw))
        return (
            stream
            if mode == "rb"
            else io.TextIOWrapper(stream, encoding=more.get("encoding") or "utf-8")
        )


_REAL_OPEN, _REAL_SCANDIR = io.open, os.scandir
_TEMPORARY = r"\.pipegen-[^/]*"
