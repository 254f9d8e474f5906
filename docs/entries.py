"""The reference as Markdown that every viewer shows: signature, words, arguments, fields, methods
and examples of a name, all read from the code. `docs/tables.py` writes it into the pages.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

import pipegen
from pipegen.records.fields import help_of

ENTRY = re.compile(
    r"^<!-- reference: (pipegen\S+?)(?: as (\S+))? -->\n.*?<!-- end of reference -->",
    re.MULTILINE | re.DOTALL,
)
NOT_SHOWN = re.compile(r"_|(check_all|default_hint|unchanging|T)$")
INNER: Mapping[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        "Pipe": "steps owns program stages leads_on keeps_text internal routes backend"
        " with_parts rebound",
        "Job": "before made_before removed rest tidy",
        "GenerationError": "after with_fields",
        "GenerationRequest": "continues sources with_sources",
        "GenerationResult": "turn written_transcript trimmed_by previous",
        "Message": "sources",
        "Route": "rebound",
        "Scored": "tried thinking image_grid_thw",
        "Rollout": "image_grid_thw ids",
    }.items()
}
"""Fields and methods that pipegen's own code uses, by class: the reference leaves them out."""
ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (?=\S)")


class _AsWritten(NamedTuple):
    """A default; one that has no short form in code is shown as `...`."""

    value: object

    def __repr__(self) -> str:
        shown = repr(self.value).replace("immutabledict({})", "{}")
        return "..." if "<" in shown or len(shown) > 60 else shown


def shown_type(annotation: Any) -> str:
    """An annotation as it stands in the code, without what checks its values."""
    written = getattr(annotation, "__forward_arg__", annotation)
    text = (
        written
        if isinstance(written, str)
        else inspect.formatannotation(written)
    )
    text = re.sub(r"\b(?:typing|collections\.abc|pipegen[\w.]*)\.", "", text)
    if text.startswith("Annotated["):
        text = ast.unparse(
            ast.parse(text, mode="eval").body.slice.elts[0]  # type: ignore[attr-defined]
        )
    return text.strip("'\"")


def argument_type(parameter: inspect.Parameter) -> str:
    """What an argument takes, without what its default in the signature already shows."""
    if parameter.annotation is parameter.empty:
        return ""
    shown, default = shown_type(parameter.annotation), parameter.default
    if default is None:
        return shown.removesuffix(" | None")
    return "" if shown == type(default).__name__ else shown


def signature_of(name: str, value: Any) -> str:
    """The call without annotations: one line, or one line for each argument."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    bare = [
        parameter
        if parameter.default is parameter.empty
        else parameter.replace(default=_AsWritten(parameter.default))
        for parameter in bare
    ]
    empty = inspect.Signature.empty
    whole = (
        f"{name}{signature.replace(parameters=bare, return_annotation=empty)}"
    )
    if len(whole) <= 80:
        return whole
    lines, star = [], False
    for parameter in bare:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("*")
        star = star or parameter.kind in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        )
        lines.append(str(parameter))
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), ")"])


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, each in one line."""
    return re.split(r"(?<=\.) (?=[A-Z`\"'])", " ".join(text.split()))


def first_sentence(text: str) -> str:
    """What a table shows of a docstring."""
    return sentences_of(re.split(r"\n\s*\n", text, maxsplit=1)[0])[0]


def in_short(text: str) -> str:
    """The first sentence up to its colon or semicolon."""
    return re.split(r"[:;] |[.:]$", first_sentence(text))[0] + "."


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def type_cell(text: str) -> str:
    """A type for a cell: Python-Markdown shows the backslash of an escaped bar in code."""
    return cell(text.replace(" | ", " or "))


def arguments_in(paragraph: str) -> list[tuple[str, str]]:
    """The lines `name: words` of a paragraph, or nothing where it is no list of arguments."""
    found: list[tuple[str, str]] = []
    for line in paragraph.splitlines():
        start = ARGUMENT.match(line)
        if start is not None:
            found.append((start[1], line[start.end() :]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return []
    return found


def raises_in(paragraph: str) -> str:
    """The sentences that say what is raised."""
    raises = [
        one for one in sentences_of(paragraph) if one.startswith("Raises ")
    ]
    return textwrap.fill(" ".join(raises), 100, break_on_hyphens=False)


def blocks_of(
    words: str, types: Mapping[str, str], *, arguments_shown: bool
) -> Iterator[str]:
    """A docstring as Markdown: its first paragraph, what it raises, its arguments as a table, its
    examples as code. Further rules are on the pages about them, and in `help()`.
    """
    arguments: list[tuple[str, str]] = []
    is_first = True

    def table() -> str:
        rows = ["| argument | type | meaning |", "| --- | --- | --- |"]
        for names, meaning in arguments:
            first = types.get(names.split(", ")[0].lstrip("*"), "")
            kind = f"`{type_cell(first)}`" if first else ""
            shown = ", ".join(f"`{one}`" for one in names.split(", "))
            rows.append(f"| {shown} | {kind} | {cell(meaning)} |")
        arguments.clear()
        return "\n".join(rows)

    for paragraph in re.split(r"\n\s*\n", words):
        example = paragraph.lstrip().startswith(">>> ")
        listed = [] if example else arguments_in(paragraph)
        if listed and (types.keys() & {name.lstrip("*") for name, _ in listed}):
            arguments += listed if arguments_shown else []
            continue
        if arguments:
            yield table()
        if example:
            yield f"```pycon\n{textwrap.dedent(paragraph)}\n```"
        else:
            words = paragraph if is_first else raises_in(paragraph)
            is_first = False
            if words:
                yield words
    if arguments:
        yield table()


def sentences_below(kind: type[Any]) -> dict[str, str]:
    """The string below each field of a class."""
    try:
        (body,) = [
            node.body
            for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            if isinstance(node, ast.ClassDef)
        ]
    except (OSError, TypeError, ValueError):
        return {}
    return {
        ast.unparse(field.target): after.value.value
        for field, after in zip(body, [*body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def documented_base(kind: type[Any]) -> type[Any] | None:
    """The nearest base that has an entry of its own."""
    return next(
        (
            base
            for base in kind.__mro__[1:]
            if getattr(pipegen, base.__name__, None) is base
        ),
        None,
    )


def own_bases(kind: type[Any]) -> list[type[Any]]:
    """The class and its bases below the nearest one that has an entry, the class last."""
    base = documented_base(kind)
    return [
        one
        for one in reversed(kind.__mro__)
        if one.__module__.startswith("pipegen")
        and not (base is not None and issubclass(base, one))
    ]


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default in the words of the code, or nothing where a value must be given, and where it is
    the `None` of the type or empty.
    """
    if field.default is None or field.default in ("", (), {}):
        return ""
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is dataclasses.MISSING else ", ..."
    return f", `{cell(repr(_AsWritten(field.default)))}`"


def hidden(kind: type[Any], name: str) -> bool:
    """Whether the reference leaves a field or a method out."""
    return bool(NOT_SHOWN.match(name)) or name in INNER.get(
        kind.__name__, frozenset()
    )


def fields_table(kind: type[Any], described: Mapping[str, str]) -> str | None:
    """A row for each field of a record, without those of a base that has an entry."""
    own = own_bases(kind)
    below: dict[str, str] = {}
    annotations: dict[str, Any] = {}
    for one in own:
        below |= sentences_below(one)
        annotations |= inspect.get_annotations(one)
    rows = []
    if dataclasses.is_dataclass(kind):
        helps = help_of(kind)
        for field in dataclasses.fields(kind):
            name = field.name
            if name in annotations and not hidden(kind, name):
                words = (
                    described.get(name) or below.get(name) or helps.get(name)
                )
                rows.append(
                    f"| `{name}` | `{type_cell(shown_type(annotations[name]))}`{default_of(field)} |"
                    f" {cell(first_sentence(words or ''))} |"
                )
    else:
        rows = [
            f"| `{name}` | `{type_cell(shown_type(annotation))}` |"
            f" {cell(first_sentence(described.get(name) or below.get(name) or ''))} |"
            for name, annotation in annotations.items()
            if (name in getattr(kind, "_fields", ()) or name in below)
            and not hidden(kind, name)
        ]
    if not rows:
        return None
    return "\n".join(
        ["| field | type, default | meaning |", "| --- | --- | --- |", *rows]
    )


def methods_table(kind: type[Any]) -> str | None:
    """A row for each public method and property that has words of its own."""
    rows = []
    for name, member in (
        found for one in own_bases(kind) for found in vars(one).items()
    ):
        called = getattr(member, "__func__", member)
        is_value = isinstance(called, (property, functools.cached_property))
        words = inspect.getdoc(
            getattr(called, "fget", getattr(called, "func", called))
        )
        if (
            hidden(kind, name)
            or not words
            or not (is_value or inspect.isfunction(called))
        ):
            continue
        shown = (
            name if is_value else " ".join(signature_of(name, called).split())
        )
        shown = shown.replace("( ", "(").replace(", )", ")")
        rows.append(f"| `{cell(shown)}` | {cell(in_short(words))} |")
    if not rows:
        return None
    return "\n".join(["| method or property | |", "| --- | --- |", *rows])


def entry(name: str, value: Any) -> str:
    """The part of a page for one name, from its heading on."""
    words = inspect.getdoc(value) or ""
    is_kind = isinstance(value, type)
    types: dict[str, str] = {}
    if callable(value) and get_origin(value) is None and not get_args(value):
        try:
            parameters = inspect.signature(value).parameters
        except (TypeError, ValueError):
            parameters = {}  # type: ignore[assignment]
        types = {name: argument_type(one) for name, one in parameters.items()}
    described: dict[str, str] = {}
    if is_kind:
        described = {
            one.lstrip("*"): meaning
            for paragraph in re.split(r"\n\s*\n", words)
            for names, meaning in arguments_in(paragraph)
            for one in names.split(", ")
        }
    fields = fields_table(value, described) if is_kind else None
    parts = [f"### {name}"]
    is_enum = is_kind and issubclass(value, enum.Enum)
    if fields is None and (types or is_kind) and not is_enum:
        parts.append(f"```python\n{signature_of(name, value)}\n```")
    parts += blocks_of(words, types, arguments_shown=fields is None)
    if is_kind:
        base = documented_base(value)
        if base is not None and fields is not None:
            parts.append(f"Beside the fields of `{base.__name__}`:")
        parts += [table for table in (fields, methods_table(value)) if table]
        if is_enum:
            shown = ", ".join(f"`{one}`" for one in value.__members__)
            parts.append(f"One of {shown}.")
    return "\n\n".join(parts)
