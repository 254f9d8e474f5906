"""An engine's answer to one row as plain data, without the row: who reads it has what was asked.

>>> from pipegen.stages.fitting import Encoded
>>> from pipegen.records.options import resolve
>>> from pipegen.records.requests import GenerationRequest
>>> from pipegen.records.results import Prompt
>>> asked = Encoded(
...     request=GenerationRequest(prompt="Hi"),
...     options=resolve(),
...     prompt=Prompt(token_ids=(72,), compact_token_ids=(72,)),
... )
>>> answer = Raw(encoded=asked, token_ids=(66, 257))
>>> answer_from(answer_to_plain(answer), asked) == answer
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.records.codec import decode, encode
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import ChatOutput, Ending, ToolReplies
from pipegen.stages import Raw

_KINDS: Mapping[str, tuple[type[Any], str]] = {
    "tokens": (Raw, "encoded"),
    "text": (ChatOutput, "job"),
    "tools": (ToolReplies, "result"),
}
"""The answers that have a plain form, each with its field for what was asked."""


def answer_to_plain(answer: Any) -> dict[str, Any] | None:
    """The answer as JSON data; None where it is of an engine of one's own that answers in another
    form.
    """
    for name, (kind, _) in _KINDS.items():
        if type(answer) is kind:
            ending = answer.ending if isinstance(answer, Raw) else None
            is_its_own = ending is not None and ending.is_about(answer)
            return {
                "answer": name,
                **encode(answer),
                **({"ending": encode(ending)} if is_its_own else {}),
            }
    return None


def answer_from(values: Mapping[str, Any], asked: Any) -> Any:
    """The answer that `answer_to_plain` was given, to this row. Raises `KeyError`, `TypeError` or
    `ValueError` for other data.
    """
    fields = dict(values)
    kind, name = _KINDS[fields.pop("answer")]
    ending = fields.pop("ending", None)
    answer = decode(fields, kind, **{name: asked})
    if ending is None:
        return answer
    of_ending = {"token_ids": answer.token_ids, "options": asked.options}
    return unchecked_replace(answer, ending=decode(ending, Ending, **of_ending))
