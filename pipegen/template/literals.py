"""What a chat template compares words with: the text in its comparisons, its `in` tests, and calls
such as `replace` and `split`.

Words that hold such text may change more of a prompt than their own place, as `/no_think` does
where the template then writes the end of a thought.

>>> compared = compared_with(
...     "{% if '/no_think' in m.content or m.name == 'Python' %}{{ 'written' }}{% endif %}"
... )
>>> compared.parts, compared.alone
(frozenset({'/no_think'}), frozenset({'python'}))
>>> (
...     sorted(compared.found_in(["Think. /NO_THINK", " python "])),
...     sorted(compared.found_in(["a python bites"])),
... )
(['/no_think', 'python'], [])
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jinja2 import Environment, nodes


_READERS = frozenset(
    (
        *(
            "startswith",
            "endswith",
            "find",
            "rfind",
            "index",
            "rindex",
            "count",
            "split",
            "rsplit",
            "partition",
            "rpartition",
            "replace",
        ),
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
    )
)
"""Filters, and methods of strings, that look for their arguments in the words."""
_SELECTORS = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
"""Filters with the position of the test that they are given by name, before its argument."""
_KEEPERS = frozenset(
    (
        "trim",
        "strip",
        "lower",
        "upper",
        "casefold",
        "capitalize",
        "title",
        "string",
        "default",
        "d",
        "list",
        "safe",
    )
)
"""Filters and methods that change no more than case and the white space around."""


class ComparedText(NamedTuple):
    """The text that a template compares words with, in lower case and without white space around
    it.
    """

    alone: frozenset[str] = frozenset()
    """Text that is compared with whole entries of the request: words count where they are nothing
    else.
    """
    parts: frozenset[str] = frozenset()
    """Text that is looked for within the words."""

    def without(self, characters: Collection[str]) -> ComparedText:
        """The text that holds none of the characters."""
        return ComparedText(
            *(
                frozenset(
                    text for text in texts if not any(character in text for character in characters)
                )
                for texts in self
            )
        )

    def found_in(self, texts: Collection[str]) -> frozenset[str]:
        """The text that the words hold; pieces of it may lie in words that follow one another."""
        longest = max(map(len, self.alone), default=0) + 20
        joined = "".join(texts).casefold() if self.parts else ""
        stripped = (
            {text.strip().casefold() for text in texts if len(text) <= longest}
            if self.alone
            else ()
        )
        return self.alone.intersection(stripped).union(
            text for text in self.parts if text in joined
        )


@functools.lru_cache(maxsize=64)
def compared_beyond(source: str, characters: frozenset[str]) -> ComparedText:
    """The text that a Jinja source compares with, as far as it holds none of the characters."""
    return compared_with(source).without(characters)


@functools.lru_cache(maxsize=32)
def compared_with(source: str) -> ComparedText:
    """The text that a Jinja source compares with; none where it is no Jinja, or Jinja is not
    installed.
    """
    try:
        from jinja2 import TemplateError
    except ImportError:
        return ComparedText()
    try:
        return _TemplateTree(_environment().parse(source)).compared()
    except (TemplateError, RecursionError):  # then it does not render
        return ComparedText()


@functools.cache
def _environment() -> Environment:
    """One that knows the tags of chat templates."""
    from jinja2 import Environment
    from jinja2.ext import Extension

    class IgnoredTag(Extension):
        """`{% generation %}` of transformers: around what the model wrote."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    # it renders nothing
    return Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do", IgnoredTag])  # noqa: S701


class _TemplateTree:
    """A template's tree, with what its names stand for."""

    def __init__(self, tree: nodes.Template) -> None:
        from jinja2 import nodes

        self.tree = tree
        self.values: dict[str, list[nodes.Node]] = {}
        self.looped: set[str] = set()
        """Names of loops over something other than a name: over characters, as far as can be
        seen.
        """
        for call in tree.find_all(nodes.Call):
            self._note_arguments(call)
        for assignment in tree.find_all(nodes.Assign):
            self._note_all(assignment.target, assignment.node)
        for loop in tree.find_all(nodes.For):
            names = self._note_all(loop.target, loop.iter)
            self.looped.update(() if isinstance(loop.iter, nodes.Name) else names)

    def _note_all(self, target: nodes.Node, value: nodes.Node) -> list[str]:
        from jinja2 import nodes

        names = [
            self._name(node)
            for node in (target.items if isinstance(target, nodes.Tuple) else [target])
        ]
        for name in names:
            self._note(name, value)
        return names

    def _note(self, name: str, value: nodes.Node) -> None:
        from jinja2 import nodes

        self.values.setdefault(name, []).append(value)
        if isinstance(value, nodes.Call):
            for keyword in value.kwargs:  # those of `namespace(...)`
                self.values.setdefault(f"{name}.{keyword.key}", []).append(keyword.value)

    def _note_arguments(self, call: nodes.Call) -> None:
        """The arguments of a macro are what it is called with."""
        from jinja2 import nodes

        for macro in self.tree.find_all(nodes.Macro):
            if macro.name == getattr(call.node, "name", None):
                for parameter, value in zip(macro.args, call.args, strict=False):
                    self._note(parameter.name, value)

    def _name(self, node: nodes.Node) -> str:
        """The name of a variable, or of an entry of one."""
        from jinja2 import nodes

        if isinstance(node, nodes.NSRef):
            return f"{node.name}.{node.attr}"
        if isinstance(node, nodes.Getattr):
            return f"{getattr(node.node, 'name', '')}.{node.attr}"
        return str(getattr(node, "name", ""))

    def literals(self, node: nodes.Node, seen: frozenset[str] = frozenset()) -> Iterator[str]:
        """The strings that an expression may be, or is put together of."""
        from jinja2 import nodes

        name = self._name(node)
        if isinstance(node, nodes.Const):
            yield from [node.value] if isinstance(node.value, str) else []
        elif isinstance(node, (nodes.Name, nodes.Getattr)):
            for value in () if name in seen else self.values.get(name, ()):
                yield from self.literals(value, seen | {name})
        elif isinstance(
            node,
            (
                nodes.List,
                nodes.Tuple,
                nodes.Dict,
                nodes.Pair,
                nodes.Concat,
                nodes.Add,
                nodes.CondExpr,
                nodes.Or,
                nodes.Filter,
            ),
        ):
            for child in node.iter_child_nodes(exclude=("args", "kwargs", "test")):
                yield from self.literals(child, seen)

    def is_entry(self, node: nodes.Node, seen: frozenset[str] = frozenset()) -> bool:
        """Whether the value is an entry of the request, or a text of the template, but for its case
        and the white space around it.
        """
        from jinja2 import nodes

        name = self._name(node)
        if isinstance(node, (nodes.Name, nodes.Getattr)):
            return name not in self.looped and all(
                self.is_entry(value, seen | {name})
                for value in ([] if name in seen else self.values.get(name, []))
            )
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str)
        if isinstance(node, nodes.Filter):
            return (
                node.name in _KEEPERS and node.node is not None and self.is_entry(node.node, seen)
            )
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            return node.node.attr == "get" or (
                node.node.attr in _KEEPERS and self.is_entry(node.node.node, seen)
            )
        return isinstance(node, (nodes.Literal, nodes.CondExpr))

    def compared(self) -> ComparedText:
        """All of it."""
        from jinja2 import nodes

        alone, parts = set[str](), set[str]()
        for node in self.tree.find_all(nodes.Compare):
            sides = [node.expr, *(operand.expr for operand in node.ops)]
            looks_within = node.ops[0].op in ("in", "notin") and any(self.literals(node.expr))
            group = alone if not looks_within and all(map(self.is_entry, sides)) else parts
            group.update(text for side in sides for text in self.literals(side))
        for table in self.tree.find_all(nodes.Dict):
            alone.update(text for pair in table.items for text in self.literals(pair.key))
        within = [argument for test in self.tree.find_all(nodes.Test) for argument in test.args]
        for filtered in self.tree.find_all(nodes.Filter):
            skipped = (
                0
                if filtered.name in _READERS
                else _SELECTORS.get(filtered.name, len(filtered.args)) + 1
            )
            within += filtered.args[skipped:]
        for call in self.tree.find_all(nodes.Call):
            within += (
                call.args
                if isinstance(call.node, nodes.Getattr) and call.node.attr in _READERS
                else ()
            )
        parts.update(text for argument in within for text in self.literals(argument))
        return ComparedText(
            *(
                frozenset({text.strip().casefold() for text in texts} - {""})
                for texts in (alone, parts)
            )
        )
