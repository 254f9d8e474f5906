"""The images of a folder, in the order in which people count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SUFFIXES", "natural", "images_in"]

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
"""What an image's name ends in, in capitals or not."""


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers in names by their value.

    >>> sorted(["img10.png", "img9.png", "IMG1.png"], key=natural)
    ['IMG1.png', 'img9.png', 'img10.png']
    """
    pieces = re.findall(r"([0-9]{1,1000})|([^0-9]+)", name)
    return (*((0, int(number), "") if number else (1, 0, word.casefold()) for number, word in pieces), (-1, 0, name))


def images_in(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """The images of a folder and its subfolders, in natural order of their paths, part by part; told by their names' endings, never opened.

    Hidden files and folders are left out, and what is no regular file. Links are followed, but each real folder is entered once: a loop has an end.
    What cannot be read, such as a link to nothing or a folder that is closed, is named all the same, so that its request fails and somebody hears of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("10.png", "9.JPG", "notes.txt"):
    ...         Path(folder, name).touch()
    ...     print([image.name for image in images_in(folder)])
    ['9.JPG', '10.png']
    """
    top = os.path.realpath(folder)
    entered = set[str]()

    def walk(here: Path, linked: bool) -> Iterator[Path]:
        try:
            names = sorted((name for name in os.listdir(here) if not name.startswith(".")), key=natural)
        except OSError:
            yield here
            return
        for path in (here / name for name in names):
            if path.is_dir():
                link = linked or path.is_symlink()
                if not link or _enter(os.path.realpath(path), top, entered):
                    yield from walk(path, link)
            elif path.suffix.lower() in SUFFIXES and (path.is_file() or (path.is_symlink() and not path.exists())):
                yield path

    return walk(Path(folder), linked=False)


def _enter(real: str, top: str, entered: set[str]) -> bool:
    """Whether a folder that a link leads to is new: neither within the top folder (it is found there), nor around it, nor entered before."""
    if real in entered or os.path.commonpath((real, top)) in (real, top):
        return False
    entered.add(real)
    return True
