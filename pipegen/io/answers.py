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

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from immutabledict import immutabledict

from pipegen.io.jsonl import logprobs_from, prompt_logprobs_from
from pipegen.records import strict_json
from pipegen.records.fields import altered
from pipegen.records.frozen import freeze
from pipegen.records.results import ChatOutput, Ending, Finish, Raw, ToolReplies

__all__ = ["answer_from", "answer_to_plain"]


_READ: Mapping[str, Callable[[Any], Any]] = {
    "token_ids": tuple,
    "prompt_token_ids": tuple,
    "logprobs": logprobs_from,
    "prompt_logprobs": prompt_logprobs_from,
    "finish": Finish,
    "tool_calls": freeze,
    "messages": freeze,
    "usage": freeze,
}
"""How fields are read whose type JSON does not have."""


_KINDS: Mapping[str, tuple[type[Any], str]] = {
    "tokens": (Raw, "encoded"),
    "text": (ChatOutput, "job"),
    "tools": (ToolReplies, "result"),
}
"""The answers that have a plain form, each with its field for what was asked."""
_OF_ENDING = ("finish", "stop", "length", "watched")
"""The fields of an ending; the others are those of the answer, and of what was asked."""


def answer_to_plain(answer: Any) -> dict[str, Any] | None:
    """The answer as JSON data; None where it is of an engine of one's own that answers in another
    form.
    """
    for name, (kind, input_name) in _KINDS.items():
        if type(answer) is kind:
            fields = {
                f.name: getattr(answer, f.name)
                for f in dataclasses.fields(kind)
                if f.name not in (input_name, "ending", "thought", "forced")
            }
            if (
                isinstance(answer, Raw)
                and answer.ending is not None
                and answer.ending.is_about(answer)
            ):
                fields["ending"] = immutabledict(
                    {name: getattr(answer.ending, name) for name in _OF_ENDING}
                )
            values: dict[str, Any] = strict_json.plain(
                {"answer": name, **{field: _plain(value) for field, value in fields.items()}}
            )
            return values
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, immutabledict):
        return {name: _plain(item) for name, item in value.items()}
    return value.value if isinstance(value, Finish) else value


def answer_from(values: Mapping[str, Any], asked: Any) -> Any:
    """The answer that `answer_to_plain` was given, to this row. Raises `KeyError`, `TypeError` or
    `ValueError` for other data.
    """
    fields = dict(values)
    kind, name = _KINDS[fields.pop("answer")]
    ending = fields.pop("ending", None)
    answer = kind(
        **{name: asked},
        **{
            field: _READ[field](value) if field in _READ and value is not None else value
            for field, value in fields.items()
        },
    )
    if ending is None:
        return answer
    ending_fields = {
        **ending,
        "finish": Finish(ending["finish"]),
        "watched": tuple(ending["watched"]),
    }
    return altered(
        answer, ending=Ending(**ending_fields, token_ids=answer.token_ids, options=asked.options)
    )
