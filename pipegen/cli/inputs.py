"""Read requests one at a time, from the lines of a file or the images of a folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from returns.result import Failure, Success

from pipegen.core.border import Raised, guard
from pipegen.core.errors import InvalidRequest
from pipegen.core.slots import Slot, is_ok
from pipegen.io.jsonl import Line, LineId, lines_of, request_from_line, values_of_line
from pipegen.io.openai_batch import CHAT, ENDPOINTS, is_batch, request_from_batch
from pipegen.media.folder import images_in
from pipegen.records.messages import ImagePart, ImageSource, Message, TextPart
from pipegen.records.requests import GenerationRequest, VlmGenerationRequest

__all__ = ["Item", "Origin", "from_folder", "from_lines", "with_system"]


class Origin(NamedTuple):
    """Where a request comes from, and so where its answer goes."""

    id: LineId
    read: int
    """How much of the input is read with this request: bytes, or images."""
    sidecar: Path | None = None
    batch: str | None = None
    """The endpoint that a line of a batch file names; the answer has that form too."""


class Item(NamedTuple):
    """A request and its origin."""

    slot: Slot[GenerationRequest]
    origin: Origin


def from_lines(stream: BinaryIO, folder: Path | None) -> Iterator[Item]:
    """The requests of JSON Lines, in pipegen's format or that of OpenAI batch files. Relative image paths start at `folder` (None: at the policy's root)."""
    for line in lines_of(stream):
        read = guard(partial(_item, line, folder), partial(_unread, line))
        yield read.unwrap() if is_ok(read) else Item(Failure(read.failure()), Origin(str(line.number), line.end))


def _unread(line: Line, raised: Raised) -> InvalidRequest:
    return InvalidRequest(f"line {line.number}: it cannot be read: {raised.words}", incident=raised.incident)


def _item(line: Line, folder: Path | None) -> Item:
    item = _from_batch(line) or _from_line(line)
    return item if folder is None else item._replace(slot=item.slot.map(lambda request: _based(request, folder)))


def _from_line(line: Line) -> Item:
    name, slot = request_from_line(line)
    return Item(slot, Origin(name, line.end))


def _from_batch(line: Line) -> Item | None:
    """The request of a batch file's line; None for other lines."""
    read = values_of_line(line) if line.data is not None and b'"custom_id"' in line.data else None
    if read is None or not is_ok(read) or not is_batch(read.unwrap()):
        return None
    values = read.unwrap()
    slot = request_from_batch(values, f"line {line.number}")
    name = values["custom_id"] if isinstance(values["custom_id"], str) and values["custom_id"] else str(line.number)
    return Item(slot, Origin(name, line.end, batch=values["url"] if values.get("url") in ENDPOINTS else CHAT))


def _based(request: GenerationRequest, folder: Path) -> GenerationRequest:
    if not request.sources:
        return request
    return request.with_sources(tuple(ImageSource(path=os.path.join(folder, source.path)) if source.path is not None else source for source in request.sources))


def with_system(items: Iterator[Item], system: str | None) -> Iterator[Item]:
    """The items with a system message first in each request, unless it has one.

    >>> hi = Item(Success(GenerationRequest(messages=[{"role": "user", "content": "Hi"}])), Origin("1", 0))
    >>> next(with_system(iter([hi]), "Be brief.")).slot.unwrap().messages[0].content
    'Be brief.'
    """
    return items if system is None else (item._replace(slot=item.slot.bind(partial(_with_system, system))) for item in items)


def _with_system(system: str, request: GenerationRequest) -> Slot[GenerationRequest]:
    if request.messages is None:
        message = "the chat file has a system_message, which goes before messages, and this request has none"
        return Failure(InvalidRequest(message, hint="write the prompt as messages, or take system_message out of the chat file"))
    if request.messages[0].role in ("system", "developer"):
        return Success(request)
    return Success(dataclasses.replace(request, messages=(Message(role="system", content=system), *request.messages)))


def from_folder(folder: Path, prompt: str, system: str | None, sidecar: str | None, overwrite: bool) -> Iterator[Item]:
    """One request for each image of a folder, with the image's path within the folder as its id.

    An image whose sidecar exists already, or belongs to an image before it, fails.
    """
    before: tuple[Path, dict[Path, Path]] = (folder, {})
    for number, image in enumerate(images_in(folder), 1):
        beside = None if sidecar is None else image.with_suffix(f".{sidecar}")
        request: Slot[GenerationRequest] = Success(_request(folder, image, prompt, system))
        if beside is not None:
            if before[0] != image.parent:
                before = (image.parent, {})
            taken = before[1].setdefault(beside, image)
            if taken != image:
                request = Failure(InvalidRequest(f"{beside.name} is the sidecar of {taken.name} already", hint="give the images different names"))
            elif not overwrite and os.path.lexists(beside):
                request = Failure(InvalidRequest(f"the sidecar {beside.name} exists already", hint="--overwrite replaces it"))
        yield Item(request, Origin(image.relative_to(folder).as_posix(), number, beside))


def _request(folder: Path, image: Path, prompt: str, system: str | None) -> GenerationRequest:
    question = Message(role="user", content=(ImagePart(source=ImageSource(path=os.path.abspath(image))), TextPart(text=prompt)))
    messages = (*([Message(role="system", content=system)] if system is not None else []), question)
    return VlmGenerationRequest(id=image.relative_to(folder).as_posix(), messages=messages)
