"""What a tool gave, as the content of its message: text, JSON, or parts with images.

A text is itself. All else is JSON as pydantic writes it. Dates are in the ISO form. A Decimal is a
text. An Enum is its value. The items of a set are in the order of their texts.

>>> import datetime, decimal
>>> content_of({"on": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.50")}).unwrap()
'{"on": "2026-01-02", "price": "1.50"}'
>>> content_of([object()]).failure().message
'what it gave cannot be written as JSON: at $[0]: an object of type object'
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import io
import json
import sys
import uuid
from collections.abc import Mapping, Sequence, Set as AbstractSet, ValuesView
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from returns.result import Failure, Result, Success

from pipegen.core.errors import StageFailed
from pipegen.core.slots import Slot

Content: TypeAlias = str | list[dict[str, Any]]
"""The content of a message."""
_DEEPEST = 64
_DATA = "data:image/*;base64,"
"""Before the bytes of an image, whatever its format."""


class _UnwritableError(Exception):
    """Nothing writes a value as JSON."""


def content_of(value: object) -> Slot[Content]:
    """The content of a tool's message; `StageFailed` where nothing can write it.

    Images of PIL and of MCP become parts. So does a list that has images.

    >>> content_of([{"type": "image", "image": b"abc"}, "A red circle."]).unwrap()[1]
    {'type': 'text', 'text': 'A red circle.'}
    """
    try:
        return Success(_content(value))
    except _UnwritableError as error:
        return Failure(StageFailed(f"what it gave cannot be written as JSON: {error}"))


def is_error(value: object) -> bool:
    """Whether this is a result of MCP that says that the tool failed."""
    return _is_mcp(value) and bool(_either(value, "isError", "is_error"))


def text_of(content: Content) -> str:
    """The words of a content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _content(value: Any) -> Content:
    if isinstance(value, str):
        return str(value)
    if _is_mcp(value):
        blocks = value.content
        structured = _either(value, "structuredContent", "structured_content")
        if blocks or structured is None:
            return _joined(blocks, "$.content")
        return _dumped(structured)
    if _is_image(value):
        return [_part(value, "$")]
    is_list = isinstance(value, (list, tuple)) and all(map(_is_block, value))
    if is_list and any(_is_image(item) or not isinstance(item, (str, Mapping)) for item in value):
        return _joined(value, "$")
    return _dumped(value)


def _dumped(value: object) -> str:
    plain = _plain(value, "$", 0)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _joined(blocks: Sequence[object], path: str) -> Content:
    """Blocks of a content: one text, or parts where there are images."""
    parts = [_part(block, f"{path}[{index}]") for index, block in enumerate(blocks)]
    return parts if any(part["type"] != "text" for part in parts) else text_of(parts)


def _either(value: object, *names: str) -> Any:
    values = (getattr(value, name, None) for name in names)
    return next((known for known in values if known is not None), None)


def _is_mcp(value: object) -> bool:
    has_flag = hasattr(value, "isError") or hasattr(value, "is_error")
    return has_flag and isinstance(getattr(value, "content", None), (list, tuple))


def _is_pil(value: object) -> bool:
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def _is_image(value: object) -> bool:
    match value:
        case (
            {"type": "image_url", "image_url": str() | Mapping()}
            | {"type": "image", "data": str(), "mimeType": _}
            | {"type": "image", "image": str() | bytes() | bytearray() | PurePath()}
        ):
            return True
        case {"type": "image", "image": image}:
            return _is_pil(image)
        case Mapping():
            return False
        case object(model_dump=_, type="image", data=_):  # of MCP
            return True
    return _is_pil(value)


def _is_block(value: object) -> bool:
    match value:
        case str() | {"type": "text", "text": str()}:
            return True
        case Mapping():
            return _is_image(value)
        case object(model_dump=_, type="text", text=_):  # of MCP
            return True
    return _is_image(value)


def _part(value: Any, path: str) -> dict[str, object]:
    """One part of a content, as plain data."""
    if isinstance(value, str):
        return {"type": "text", "text": str(value)}
    if _is_pil(value):
        file = io.BytesIO()
        value.save(file, "PNG")
        return _image_part(file.getvalue())
    if not isinstance(value, Mapping):
        kind, inner = _either(value, "type"), _either(value, "resource") or value
        data, media = _either(inner, "data", "blob"), _either(inner, "mime_type", "mimeType")
        if data is not None and (kind == "image" or str(media).startswith("image/")):
            return _image_part(base64.b64decode(data, validate=True))
        words = _either(inner, "text", "uri")
        if words is None:
            raise _UnwritableError(f"at {path}: a block of type {kind}")
        return {"type": "text", "text": str(words)}
    if value.get("type") in ("image", "image_url"):
        image = value.get("image_url", value.get("image", value.get("data")))
        image = image.get("url") if isinstance(image, Mapping) else image
        if _is_pil(image):
            return _part(image, path)
        if isinstance(image, (bytes, bytearray)):
            return _image_part(bytes(image))
        if isinstance(image, str):
            head, mark, data = image.rpartition(";base64,")
            if "mimeType" in value or (mark and head[:5].lower() == "data:"):
                return _image_part(base64.b64decode(data, validate=True))
        if isinstance(image, PurePath) or (isinstance(image, str) and ":" not in image):
            return _image_part(Path(image).read_bytes())
    plain: dict[str, Any] = _plain(value, path, 0)
    return plain


def with_image_bytes(content: Any) -> object:
    """A content whose images are their bytes, as a request has images that were read.

    >>> with_image_bytes([_image_part(b"abc")])
    [{'type': 'image', 'image': b'abc'}]
    """
    if isinstance(content, str):
        return content
    return [
        {"type": "image", "image": base64.b64decode(part["image_url"]["url"].removeprefix(_DATA))}
        if part.get("type") == "image_url" and part["image_url"]["url"].startswith(_DATA)
        else part
        for part in content
    ]


def with_images_apart(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Messages with their images in a user's message behind them, and marks in the places of these.

    >>> tool = {"role": "tool", "content": [{"type": "text", "text": "Here:"}, _image_part(b"abc")]}
    >>> for message in with_images_apart([tool]):
    ...     print(message["role"], message["content"])
    tool Here:
    [image 1]
    user [{'type': 'text', 'text': '[image 1]'}, {'type': 'image_url', 'image_url': {'url': 'data:image/*;base64,YWJj'}}]
    """
    moved: list[dict[str, object]] = []

    def mark(part: dict[str, object]) -> str:
        if part["type"] == "text":
            return str(part["text"])
        words = f"[image {len(moved) // 2 + 1}]"
        moved.extend([{"type": "text", "text": words}, part])
        return words

    left = [
        {**message, "content": "\n".join(map(mark, message["content"]))}
        if isinstance(message["content"], list)
        else {**message}
        for message in messages
    ]
    return [*left, {"role": "user", "content": moved}] if moved else left


def _image_part(data: bytes) -> dict[str, object]:
    url = _DATA + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _plain(value: object, path: str, depth: int) -> Any:
    """The value as JSON has it."""
    if depth > _DEEPEST:
        raise _UnwritableError(f"at {path}: it is nested more than {_DEEPEST} deep")
    match value:
        case enum.Enum():
            return _plain(value.value, path, depth + 1)
        case None | str() | int() | float():
            return value
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return f"PT{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "S"
        case decimal.Decimal() | PurePath() | uuid.UUID():
            return str(value)
        case Mapping():
            return {
                _key(key, path): _plain(item, f"{path}.{key}", depth + 1)
                for key, item in value.items()
            }
        case AbstractSet():
            items = [_plain(item, f"{path}[...]", depth + 1) for item in value]
            return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
        case bytes() | bytearray() | memoryview():
            pass
        case Sequence() | ValuesView():
            return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        case type():
            raise _UnwritableError(f"at {path}: the type {value.__name__}")
    fields: Any = getattr(type(value), "__attrs_attrs__", None)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else fields
    if fields is not None:
        values = {field.name: getattr(value, field.name) for field in fields}
        return _plain(values, path, depth)
    model_dump: object = getattr(value, "model_dump", None)  # pydantic
    if callable(model_dump):
        return _plain(model_dump(mode="json"), path, depth + 1)
    tolist: object = getattr(value, "tolist", None)  # numpy, torch
    if callable(tolist):
        return _plain(tolist(), path, depth + 1)
    advice = ""
    if isinstance(value, Result):
        advice = ": return the value itself, and where there is none raise an exception"
    raise _UnwritableError(f"at {path}: an object of type {type(value).__name__}{advice}")


def _key(key: object, path: str) -> Any:
    with contextlib.suppress(_UnwritableError):
        plain = _plain(key, path, 0)
        if not isinstance(plain, (list, dict)):
            return plain
    raise _UnwritableError(f"at {path}: a key of type {type(key).__name__}")
