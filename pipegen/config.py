"""Options files: generation options as JSON or YAML.

A file holds one mapping of options, flat (`strip_whitespace: true`) or nested as the records are (`decode: {strip_whitespace: true}`). Nothing in it
is ignored: an unknown name, a value that its option does not take, and a key that stands there twice are refused, with the file and the line.

    # options.yaml
    max_new_tokens: 256
    temperature: 0.2
    stop: ["\\n\\n"]
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipegen import strict_json
from pipegen.fields import InvalidField
from pipegen.options import GenerationOptions, options_from

if TYPE_CHECKING:
    import yaml

__all__ = ["MAX_FILE_BYTES", "read_options"]

MAX_FILE_BYTES = 2**20
"""How long an options file may be."""


def read_options(path: str | os.PathLike[str]) -> GenerationOptions:
    """The options of a `.json`, `.yaml` or `.yml` file.

    Raises `InvalidField` (`UnknownField` for an unknown name, with the nearest one), which names the file and the place in it, also when the file
    cannot be read.
    """
    file = Path(path)
    text = _text(file)
    lines: dict[str, int] = {}
    if file.suffix.lower() == ".json":
        values = _json(file, text)
    elif file.suffix.lower() in (".yaml", ".yml"):
        values, lines = _yaml(file, text)
    else:
        raise InvalidField(f"{file}: an options file takes a name that ends in .json, .yaml or .yml")
    if not isinstance(values, dict):
        raise InvalidField(f"{file}: takes a mapping of options, not {type(values).__name__}")
    for name, value in values.items():  # one by one: so each refusal has its place
        options_from({name: value}, f"{file} line {lines[name]}" if name in lines else str(file))
    return options_from(values, str(file))


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as refusal:
        raise InvalidField(f"{file}: cannot be read: {refusal.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidField(f"{file}: is longer than the {MAX_FILE_BYTES} bytes that an options file may have")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as refusal:
        raise InvalidField(f"{file}: not UTF-8: byte 0x{data[refusal.start]:02x} at position {refusal.start}") from None


def _json(file: Path, text: str) -> Any:
    try:
        return strict_json.load(text)
    except strict_json.NotStrict as refusal:
        raise InvalidField(f"{file}: not JSON: {refusal}") from None


def _yaml(file: Path, text: str) -> tuple[Any, dict[str, int]]:
    """The value of a YAML text, and the line on which each of its keys stands."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return {}, {}
        _check_nodes(file, root)
        values = yaml.safe_load(text)
        strict_json.check_plain(values)
    except yaml.MarkedYAMLError as refusal:
        line = f" line {refusal.problem_mark.line + 1}" if refusal.problem_mark else ""
        raise InvalidField(f"{file}{line}: not YAML: {refusal.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as refusal:  # an unprintable character; endless nesting; a date that is none; NaN
        if isinstance(refusal, InvalidField):
            raise
        raise InvalidField(f"{file}: not YAML that is taken here: {str(refusal).splitlines()[0]}") from None
    keys = root.value if isinstance(root, yaml.MappingNode) else ()
    return values, {key.value: key.start_mark.line + 1 for key, _ in keys}


def _check_nodes(file: Path, root: yaml.Node) -> None:
    """Refuse keys that stand twice, keys that are no strings, and aliases (`*name`), by which a short file could hold endless data."""
    import yaml

    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        place = f"{file} line {node.start_mark.line + 1}"
        if id(node) in seen:
            raise InvalidField(f"{place}: anchors and aliases are not taken in an options file")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set[Hashable]()
            for key, value in node.value:
                place = f"{file} line {key.start_mark.line + 1}"
                if key.tag != "tag:yaml.org,2002:str":
                    raise InvalidField(f"{place}: a key takes a string, not {key.value!r:.200}")
                if key.value in keys:
                    raise InvalidField(f"{place}: the key {key.value!r:.200} stands there twice")
                keys.add(key.value)
                left.append(value)
        elif isinstance(node, yaml.SequenceNode):
            left.extend(node.value)
