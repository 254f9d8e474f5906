"""How a tool call that an answer is to be is put together: see `pipegen.stages.multi_call`.

>>> from pipegen.records.option_groups import StructuredOptions
>>> words, rest = StructuredOptions(json_schema={}), StructuredOptions(regex="</call>")
>>> value = ValueForm(opens="<words>", form=words, closes=(1,), then=rest)
>>> arguments = ArgumentsForm(form=StructuredOptions(regex="<words>|</call>"), values=(value,))
>>> arguments.value_behind("<words>") is value, arguments.value_behind("</call>")
(True, None)
"""

from __future__ import annotations

from pipegen.records.fields import record
from pipegen.records.option_groups import StructuredOptions


@record
class ValueForm:
    """A value that is JSON among tagged ones. It is generated in a call of its own."""

    opens: str
    """What is generated before it."""
    form: StructuredOptions
    """The form of the value."""
    closes: tuple[int, ...]
    """The ids behind it."""
    then: StructuredOptions
    """The form of what follows these."""


@record
class ArgumentsForm:
    """How the arguments of one tool are generated."""

    form: StructuredOptions
    """The form of all of them, or of those up to a value that is JSON."""
    values: tuple[ValueForm, ...] = ()
    """Those values."""

    def value_behind(self, text: str) -> ValueForm | None:
        """The value that follows this text; None where the arguments end with it."""
        behind = [value for value in self.values if text.endswith(value.opens)]
        return max(behind, key=lambda value: len(value.opens), default=None)


@record
class CallForm:
    """How a chat template writes a tool call, and the tools to call."""

    opens: tuple[int, ...]
    """The ids before the name."""
    names: tuple[str, ...]
    """The names of the tools."""
    between: str
    """What is between a name and the arguments."""
    arguments: tuple[ArgumentsForm, ...]
    """The arguments of each tool."""
    closes: tuple[int, ...]
    """The ids behind the arguments."""
