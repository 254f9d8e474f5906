"""Results in: the lines, or rows of Parquet and Arrow, that `pipegen generate` wrote, and lines of
OpenAI's batches, each in the form of `to_plain`. CSV does not hold all of a result, and is refused.

A row of Parquet or Arrow also has `row`: the columns of its input.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

from pipegen.core.errors import GenerationError, MalformedResponse, Refused
from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.io.answer_columns import answer_columns, logprobs_in
from pipegen.io.forms import TableError, form_of, open_bytes
from pipegen.io.jsonl import LineId, from_plain
from pipegen.io.openai_batch import error_of_batch
from pipegen.io.tables import read_table
from pipegen.io.text_tables import records_of
from pipegen.records import strict_json
from pipegen.records.answer_parts import texts_of, whole_number
from pipegen.records.codec import declared, error_to_plain, is_plain, item_of
from pipegen.records.finish_words import Meaning, meaning_of, word_of
from pipegen.records.frozen import plain_id
from pipegen.records.results import GenerationResult


def results_in(path: Path) -> Iterator[dict[str, Any]]:
    """The results of a file, in its order. Raises `TableError`, which names the file and the line,
    for what is none, and `OSError`.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    kind = form_of(path).kind
    if kind in ("csv", "tsv", "text"):
        raise TableError(
            f"{path}: results are read from JSON Lines, Parquet and Arrow files: pipegen export JOB"
            " -o results.jsonl writes them"
        )
    if kind in ("parquet", "arrow"):
        table = read_table(path)
        if not {"ok", "text", "finish"} <= set(table.schema.names):
            raise TableError(
                f"{path}: not results of pipegen generate: it has no columns ok, text and finish"
            )
        yield from map(partial(_from_row, answer_columns(brief=False).names), table)
        return
    with open_bytes(path) as stream:
        for line in records_of(path, stream):
            try:
                values = strict_json.load((line.data or b"").decode())
            except (strict_json.NotStrict, UnicodeDecodeError) as refusal:
                raise TableError(
                    f"{path}: not results of pipegen generate: line {line.number}: {refusal}"
                ) from None
            if isinstance(values, dict) and "custom_id" in values and "response" in values:
                values = _from_batch(values)
            if not isinstance(values, dict) or not isinstance(values.get("id"), (str, int)):
                raise TableError(
                    f"{path} line {line.number}: takes a result with an id, as pipegen generate"
                    " writes it"
                )
            if "ok" not in values and ("text" not in values or "prompt" in values):
                asks = any(name in values for name in ("prompt", "messages", "body"))
                raise TableError(
                    f"{path}: not results of pipegen generate: line {line.number}"
                    f" {'is a request' if asks else 'has no field ok'}"
                )
            yield without_none(values)  # as pandas fills in what other lines have


def slots_in(path: Path, *, brief: bool = False) -> Iterator[tuple[LineId, Slot[GenerationResult]]]:
    """The slots of a file of results, each with its id. With `brief`, brief lines are read too:
    what they leave out is empty. Raises as `results_in` does.
    """
    for values in results_in(path):
        values.pop("row", None)
        try:
            yield values["id"], from_plain(_filled(values) if brief else values)
        except InvalidField as refusal:
            raise TableError(
                f"{path}: not results of pipegen generate: the row {values['id']!r:.80}: {refusal}"
            ) from None


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what a brief line leaves out."""
    filled = {"raw_text": "", "options": {}, **values} if "text" in values else {**values}
    for name in ("samples", "rounds"):
        if isinstance(filled.get(name), list):
            filled[name] = [
                _filled(item) if isinstance(item, dict) else item for item in filled[name]
            ]
    return filled


def _is_json(hint: object) -> bool:
    return Mapping in (get_origin(hint), get_origin(item_of(hint)))


_COLUMNS = [
    field for field in declared(GenerationResult) if field.row.column and not field.row.source
]
_AS_THEY_ARE = ["finish", *(field.key for field in _COLUMNS if is_plain(field.hint))]
"""The columns whose values are those of the lines."""
_JSON = ["options", "transcript", *(field.key for field in _COLUMNS if _is_json(field.hint))]
"""The columns that hold JSON."""


def _from_row(names: Sequence[str], line: Mapping[str, Any]) -> dict[str, object]:
    line_fields: dict[str, object] = {
        "id": plain_id(line.get("id")),
        "ok": bool(line.get("ok")),
        "row": {name: value for name, value in line.items() if name not in names},
    }
    if not line_fields["ok"]:
        error = dict(line.get("error") or {})
        return {**line_fields, "error": {**error, "type": error.get("type") or "InternalError"}}
    values = {name: line[name] for name in _AS_THEY_ARE if line.get(name) is not None}
    values |= {name: strict_json.load(line[name]) for name in _JSON if line.get(name)}
    values |= {
        f"{place}logprobs": logprobs_in(line, place)
        for place in ("", "prompt_")
        if line.get(f"{place}logprobs") is not None
    }
    usage = line.get("usage") or {}
    answer = {
        "prompt_tokens": usage.get("prompt_tokens") or 0,
        "completion_tokens": usage.get("completion_tokens") or 0,
        "raw_text": "",
        "options": {},
        **values,
    }
    samples, rounds = (
        [
            {
                "text": entry["text"] or "",
                "raw_text": entry["text"] or "",
                "finish": entry["finish"],
                "completion_tokens": entry.get("completion_tokens") or 0,
                "options": {},  # each has its own, such as its seed, and no column has them
            }
            for entry in line.get(name) or ()
            if entry["text"] is not None
        ]
        for name in ("samples", "rounds")
    )
    failed = [
        {"sample": number, "error": {"type": entry["finish"], "message": entry["finish"]}}
        for number, entry in enumerate(line.get("samples") or ())
        if entry["text"] is None
    ]
    own = ("text", "finish", "options")
    # the row's other columns are those of its first sample
    samples[:1] = [{**answer, **{name: one[name] for name in own}} for one in samples[:1]]
    parts = {"samples": samples, "rounds": rounds, "failed_samples": failed}
    return {**line_fields, **answer, **parts}


_FINISH_OF: Mapping[Meaning, str] = {"stop": "eos", "length": "length", "failed": "aborted"}
"""How an answer of the batch form ended; a stop string is no kind of its own there."""


def _from_batch(values: Mapping[str, Any]) -> dict[str, object]:
    """A line of the OpenAI batch form: of this library, of OpenAI, or of `vllm run-batch`."""
    error, answers = error_of_batch(values), list[dict[str, Any] | GenerationError]()
    body = values["response"]["body"] if error is None else {}
    choices, usage = body.get("choices"), body.get("usage")
    if isinstance(choices, list) and choices and all(map(_is_choice, choices)):
        # in the order in which they were asked for, not in that in which they ended
        answers = [
            *map(
                _answer, sorted(choices, key=lambda choice: whole_number(choice.get("index")) or 0)
            )
        ]
    else:
        error = error or MalformedResponse(
            f"the answer of the line has no choices that can be read, in {body!r:.300}"
        )
    samples = [answer for answer in answers if not isinstance(answer, GenerationError)]
    failed = [
        {"sample": number, "error": error_to_plain(answer)}
        for number, answer in enumerate(answers)
        if isinstance(answer, GenerationError)
    ]
    if not samples:
        plain = failed[0]["error"] if error is None else error_to_plain(error)
        return {"id": values["custom_id"], "ok": False, "error": plain}
    counts = usage if isinstance(usage, Mapping) else {}
    return {
        "id": values["custom_id"],
        "ok": True,
        **samples[0],
        **{
            name: whole_number(counts.get(name)) or 0
            for name in ("prompt_tokens", "completion_tokens")
        },
        **({"samples": samples, "failed_samples": failed} if len(answers) > 1 else {}),
    }


def _is_choice(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("index"), (int, float, str, NoneType))
        and isinstance(value.get("finish_reason"), (str, NoneType))
    )


def _answer(choice: Mapping[str, Any]) -> dict[str, Any] | GenerationError:
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    text, thought = texts_of(choice.get("text", message.get("content")))
    reasoning = message.get("reasoning_content") or message.get("reasoning") or thought
    word = word_of(choice.get("finish_reason")) or "stop"
    meaning, refusal = meaning_of(word), message.get("refusal") or ""
    if meaning == "unknown":
        return MalformedResponse(f"finish_reason {word!r:.60} is no end that is known")
    if meaning == "refused" or refusal:
        words = text if isinstance(text, str) else ""
        return Refused(f"the server refused to answer ({word})", refusal=refusal, text=words)
    return {
        "text": text or "",
        "raw_text": text or "",
        "finish": _FINISH_OF[meaning],
        "options": {},
        **without_none({"reasoning": reasoning, "tool_calls": message.get("tool_calls") or None}),
    }
