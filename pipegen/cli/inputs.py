"""Where requests come from: the lines of a file, or the pictures of a folder. Either way one at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from returns.result import Failure, Success

from pipegen.errors import InvalidRequest
from pipegen.io import LineId, lines_of, request_from_line
from pipegen.messages import ImagePart, ImageSource, Message, TextPart
from pipegen.requests import GenerationRequest, VlmGenerationRequest
from pipegen.slots import Slot

__all__ = ["SUFFIXES", "Item", "Place", "from_folder", "from_lines", "natural", "pictures_in"]

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
"""What a picture's name ends in, in capitals or not."""


class Place(NamedTuple):
    """Where the answer to one request belongs: its id, its sidecar, and how much of the input is read with it (bytes, or pictures)."""

    id: LineId
    read: int
    sidecar: Path | None = None


class Item(NamedTuple):
    """One request to be, and its place."""

    slot: Slot[GenerationRequest]
    place: Place


def from_lines(stream: BinaryIO, folder: Path | None) -> Iterator[Item]:
    """The requests of JSON Lines; relative picture paths start at `folder` (None: as the image policy has it)."""
    for line in lines_of(stream):
        name, slot = request_from_line(line)
        yield Item(slot if folder is None else slot.map(lambda request: _based(request, folder)), Place(name, line.end))


def _based(request: GenerationRequest, folder: Path) -> GenerationRequest:
    if not request.sources:
        return request
    return request.with_sources(tuple(ImageSource(path=os.path.join(folder, source.path)) if source.path is not None else source for source in request.sources))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers in names by their value.

    >>> sorted(["img10.png", "img9.png", "IMG1.png"], key=natural)
    ['IMG1.png', 'img9.png', 'img10.png']
    """
    pieces = re.findall(r"([0-9]{1,1000})|([^0-9]+)", name)
    return (*((0, int(number), "") if number else (1, 0, word.casefold()) for number, word in pieces), (-1, 0, name))


def pictures_in(folder: Path) -> Iterator[Path]:
    """The pictures of a folder and its subfolders, in natural order of their paths, part by part.

    Hidden files and folders are left out, and what is no regular file. Links are followed, but each real folder is entered once: a loop has an end.
    What cannot be read, such as a link to nothing or a folder that is closed, is named all the same, so that its request fails and somebody hears of it.
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

    return walk(folder, linked=False)


def _enter(real: str, top: str, entered: set[str]) -> bool:
    """Whether a folder that a link leads to is new: neither within the top folder (it is found there), nor around it, nor entered before."""
    if real in entered or os.path.commonpath((real, top)) in (real, top):
        return False
    entered.add(real)
    return True


def from_folder(folder: Path, prompt: str, system: str | None, sidecar: str | None, overwrite: bool) -> Iterator[Item]:
    """One request for each picture of a folder; its id is the picture's path within the folder, with `/` between the parts.

    A picture whose sidecar exists already, or is that of a picture before it, fails before any engine sees it.
    """
    before: tuple[Path, dict[Path, Path]] = (folder, {})
    for number, picture in enumerate(pictures_in(folder), 1):
        beside = None if sidecar is None else picture.with_suffix(f".{sidecar}")
        request: Slot[GenerationRequest] = Success(_request(folder, picture, prompt, system))
        if beside is not None:
            if before[0] != picture.parent:
                before = (picture.parent, {})
            taken = before[1].setdefault(beside, picture)
            if taken != picture:
                request = Failure(InvalidRequest(f"{beside.name} is the sidecar of {taken.name} already", hint="give the pictures different names"))
            elif not overwrite and os.path.lexists(beside):
                request = Failure(InvalidRequest(f"the sidecar {beside.name} exists already", hint="--overwrite replaces it"))
        yield Item(request, Place(picture.relative_to(folder).as_posix(), number, beside))


def _request(folder: Path, picture: Path, prompt: str, system: str | None) -> GenerationRequest:
    question = Message(role="user", content=(ImagePart(source=ImageSource(path=os.path.abspath(picture))), TextPart(text=prompt)))
    messages = (*([Message(role="system", content=system)] if system is not None else []), question)
    return VlmGenerationRequest(id=picture.relative_to(folder).as_posix(), messages=messages)
