"""The images of a folder, in natural order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = frozenset(
    {
        *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif"),
        *(".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),
    }
)
"""The file name endings of images, in lower case."""


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers in names by their value.

    >>> sorted(["img10.png", "img9.png", "IMG1.png"], key=natural)
    ['IMG1.png', 'img9.png', 'img10.png']
    """
    pieces = re.findall(r"([0-9]{1,1000})|([^0-9]+)", name)
    return (
        *((0, int(number), "") if number else (1, 0, word.casefold()) for number, word in pieces),
        (-1, 0, name),
    )


def images_in(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """The images of a folder and its subfolders, in natural order of their paths, found by their
    names' endings.

    Hidden files and folders are left out, and files that are not regular. Links are followed, but
    each real folder is entered once. What cannot be read, such as a dangling link or a closed
    folder, is listed too, so that its request fails visibly.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("10.png", "9.JPG", "8.heic", "notes.txt"):
    ...         Path(folder, name).touch()
    ...     print([image.name for image in images_in(folder)])
    ['8.heic', '9.JPG', '10.png']
    """
    top = os.path.realpath(folder)
    entered = set[str]()

    def walk(directory: Path, linked: bool) -> Iterator[Path]:
        try:
            names = sorted(
                (name for name in os.listdir(directory) if not name.startswith(".")), key=natural
            )
        except OSError:
            yield directory
            return
        for path in (directory / name for name in names):
            if path.is_dir():
                link = linked or path.is_symlink()
                if not link or _enter(os.path.realpath(path), top, entered):
                    yield from walk(path, link)
            elif path.suffix.lower() in SUFFIXES and (
                path.is_file() or (path.is_symlink() and not path.exists())
            ):
                yield path

    return walk(Path(folder), linked=False)


def _enter(real: str, top: str, entered: set[str]) -> bool:
    """Whether the target of a link is new: not inside the top folder, not around it, not entered
    before.
    """
    if real in entered or os.path.commonpath((real, top)) in (real, top):
        return False
    entered.add(real)
    return True
