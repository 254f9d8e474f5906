"""What the reference shows of docstrings and fields: a Griffe extension, used by .mkdocs.yml."""

from __future__ import annotations

import ast
import inspect
import pydoc
from typing import Any

import griffe


def fenced(text: str) -> str:
    """The text with every doctest (from `>>>` to the next blank line) in a code block."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>> "):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def split_annotated(annotation: Any) -> tuple[Any, str]:
    """The type in `Annotated[type, ...]`, and its help: the first text among the rest. Any other
    annotation is a type without help.
    """
    if (
        not isinstance(annotation, griffe.ExprSubscript)
        or str(annotation.left) != "Annotated"
        or not isinstance(annotation.slice, griffe.ExprTuple)
    ):
        return annotation, ""
    shown, *rest = annotation.slice.elements
    texts = [
        ast.literal_eval(one) for one in map(str, rest) if one[:1] in ("'", '"')
    ]
    return shown, texts[0] if texts else ""


class Doctests(griffe.Extension):
    """Applied to every object that is loaded."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show a field of a record by its type, with the help that its annotation holds."""
        if (
            isinstance(attr.annotation, griffe.ExprSubscript)
            and str(attr.annotation.left) == "Annotated"
            and isinstance(attr.annotation.slice, griffe.ExprTuple)
        ):
            kind, *extras = attr.annotation.slice.elements
            words = [
                ast.literal_eval(extra)
                for extra in map(str, extras)
                if extra[:1] in "'\""
            ]
            attr.annotation = kind
            if words and attr.docstring is None:
                attr.docstring = griffe.Docstring(words[0], parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if isinstance(obj, griffe.Attribute):
            obj.annotation, words = split_annotated(obj.annotation)
            if words and obj.docstring is None:
                obj.docstring = griffe.Docstring(words, parent=obj)
            if str(obj.annotation) == "TypeAlias" and obj.docstring is None:
                alias = inspect.getdoc(pydoc.locate(obj.path)) or ""
                obj.docstring = griffe.Docstring(alias, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
