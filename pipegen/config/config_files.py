"""Plain data from JSON and YAML files, with the place of every entry.

Loading is safe: no tags that make objects, no key twice, no aliases, no endless nesting, a limit on
the length. (By aliases a short file could hold endless data.) An error names the file, and in YAML
with the line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from immutabledict import immutabledict

from pipegen.core.names import InvalidField
from pipegen.records import strict_json

if TYPE_CHECKING:
    import yaml


MAX_FILE_BYTES = 2**20
"""How long a file of options or of a chat may be."""
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_TEXT_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+|0o[0-7]+")
Path_ = tuple[str | int, ...]


class Place(NamedTuple):
    """Where an entry is: the file, the way to it through mappings and lists, and the lines that are
    known.

    >>> print(Place("chat.yaml", {("agents", 0): 3}).at("agents", 0))
    chat.yaml line 3: agents[0]
    """

    file: str
    lines: Mapping[Path_, int] = immutabledict()
    path: Path_ = ()

    def at(self, *steps: str | int) -> Place:
        """The place of an entry further in."""
        return self._replace(path=self.path + steps)

    def line(self) -> str:
        """The file, and the line where it is known: the entry's own, or that of the nearest entry
        around it.
        """
        number = next(
            (
                self.lines[self.path[:end]]
                for end in range(len(self.path), 0, -1)
                if self.path[:end] in self.lines
            ),
            None,
        )
        return self.file if number is None else f"{self.file} line {number}"

    def __str__(self) -> str:
        way = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path
        ).removeprefix(".")
        return f"{self.line()}: {way}" if way else self.line()


def read_plain(path: str | os.PathLike[str], what: str) -> tuple[object, Place]:
    """The value of a `.json`, `.yaml` or `.yml` file, and its place; an empty YAML file is an empty
    mapping.

    `what` names the kind of file in refusals. Raises `InvalidField`, also when the file cannot be
    read.
    """
    file = Path(path)
    text = _text(file, what)
    if file.suffix.lower() == ".json":
        try:
            return strict_json.load(text), Place(str(file))
        except strict_json.NotStrict as refusal:
            raise InvalidField(f"{file}: not JSON: {refusal}") from None
    if file.suffix.lower() in (".yaml", ".yml"):
        return _yaml(file, text, what)
    raise InvalidField(f"{file}: {what} takes a name that ends in .json, .yaml or .yml")


def _text(file: Path, what: str) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as refusal:
        raise InvalidField(f"{file}: cannot be read: {refusal.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidField(
            f"{file}: is longer than the {MAX_FILE_BYTES} bytes that {what} may have"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as refusal:
        raise InvalidField(
            f"{file}: not UTF-8: byte 0x{data[refusal.start]:02x} at position {refusal.start}"
        ) from None


def _yaml(file: Path, text: str, what: str) -> tuple[object, Place]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return {}, Place(str(file))
        lines = _lines(file, root, what)
        values = yaml.safe_load(text)
        strict_json.check_plain(values)
    except yaml.MarkedYAMLError as refusal:
        line = f" line {refusal.problem_mark.line + 1}" if refusal.problem_mark else ""
        raise InvalidField(f"{file}{line}: not YAML: {refusal.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as refusal:
        # an unprintable character; endless nesting; a date that is none; NaN
        if isinstance(refusal, InvalidField):
            raise
        raise InvalidField(
            f"{file}: not YAML that is taken here: {str(refusal).splitlines()[0]}"
        ) from None
    return values, Place(str(file), lines)


def _lines(file: Path, root: yaml.Node, what: str) -> Mapping[Path_, int]:
    """The line of every entry. Keys that occur twice or are no strings are refused, and anchors and
    aliases.
    """
    import yaml

    lines: dict[Path_, int] = {}
    left: list[tuple[yaml.Node, Path_]] = [(root, ())]
    seen = set[int]()
    while left:
        node, path = left.pop()
        if id(node) in seen:
            raise InvalidField(
                f"{file} line {node.start_mark.line + 1}: anchors and aliases are not taken in"
                f" {what}"
            )
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set[Hashable]()
            for key, value in node.value:
                where = f"{file} line {key.start_mark.line + 1}"
                if key.tag != "tag:yaml.org,2002:str":
                    raise InvalidField(f"{where}: a key takes a string, not {key.value!r:.200}")
                if key.value in keys:
                    raise InvalidField(f"{where}: the key {key.value!r:.200} occurs twice")
                keys.add(key.value)
                lines[*path, key.value] = key.start_mark.line + 1
                left.append((value, (*path, key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                lines[*path, position] = item.start_mark.line + 1
                left.append((item, (*path, position)))
        trap = _trap(node)
        if trap:
            raise InvalidField(f"{Place(str(file), lines, path)}: {trap}")
    return lines


def _trap(node: yaml.Node) -> str:
    """What readers of YAML understand differently, or JSON does not have, and what to write
    instead; the value itself may be a key and is not shown.
    """
    import yaml

    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in ("map", "seq", "str", "int", "float", "bool", "null"):
        return (
            "a date in YAML: write it in quotes"
            if kind == "timestamp"
            else f"the tag {node.tag!r:.200} is not taken"
        )
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return ""
    if kind in ("int", "float") and (":" in node.value or _OCTAL.fullmatch(node.value)):
        return (
            "a number with a leading zero or a colon, which YAML reads by another base: write it"
            " plainly, or in quotes where it is text"
        )
    if kind == "str" and _TEXT_NUMBER.fullmatch(node.value):
        return (
            "YAML takes this number for text: write it as 0.001 or 1.0e-3, or in quotes where it is"
            " text"
        )
    return ""
