"""Show the doctests of docstrings as code: a Griffe extension, used by .mkdocs.yml."""

from __future__ import annotations

import ast
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
            words = [ast.literal_eval(extra) for extra in map(str, extras) if extra[:1] in "'\""]
            attr.annotation = kind
            if words and attr.docstring is None:
                attr.docstring = griffe.Docstring(words[0], parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
