"""Conversations with foreign words in every place that can carry them, and the words that would
complete or make a control token there.

A conversation is plain data in which each `Foreign` stands for words that somebody else wrote.
Filled with harmless words it shows what the template writes before and after each place, and from
that follows which words would join with it to a control token: every added token, split at every
place.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pairs import Pair, loaded

from pipegen.core.slots import Slot, is_ok
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Prompt, ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A place of foreign words, and what stands there when they are harmless."""

    name: str
    harmless: str


def words(name: str) -> Foreign:
    return Foreign(name, f"Words{name}end")


USER, ANSWER = (
    {"role": "user", "content": "Hello there"},
    {
        "role": "assistant",
        "content": "Well, yes.",
    },
)
TOOL = {
    "type": "function",
    "function": {
        "name": Foreign("toolname", "lookup"),
        "description": words("Tooldesc"),
        "parameters": {
            "type": "object",
            "properties": {
                Foreign("paramname", "wherever"): {
                    "type": "string",
                    "description": words("Paramdesc"),
                    "enum": [words("Enum")],
                }
            },
        },
    },
}
CALL = {
    "type": "function",
    "id": "call00001",
    "function": {
        "name": Foreign("callname", "lookup"),
        "arguments": {Foreign("argname", "wherever"): words("Argument")},
    },
}
PLAIN_CALL = {
    "type": "function",
    "id": "call00001",
    "function": {"name": "lookup", "arguments": {"place": "here"}},
}
# messages, tools, further variables of the template
SHAPES: Mapping[str, tuple[list[Any], list[Any], dict[str, Any]]] = {
    "user": ([{"role": "user", "content": words("User")}], [], {}),
    "system": (
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": words("User")}],
        [],
        {},
    ),
    "parts": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": words("One")},
                    {"type": "text", "text": words("Two")},
                ],
            }
        ],
        [],
        {},
    ),
    "users": (
        [{"role": "user", "content": words("One")}, {"role": "user", "content": words("Two")}],
        [],
        {},
    ),
    "history": (
        [
            {"role": "user", "content": words("Asked")},
            {"role": "assistant", "content": words("Answered")},
            USER,
        ],
        [],
        {},
    ),
    "thought": (
        [
            USER,
            {"role": "assistant", "content": "Well.", "reasoning_content": words("Thought")},
            USER,
        ],
        [],
        {},
    ),
    "tools": ([{"role": "user", "content": words("User")}], [TOOL], {}),
    "called": (
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {
                "role": "tool",
                "content": words("Found"),
                "name": "lookup",
                "tool_call_id": "call00001",
            },
        ],
        [],
        {},
    ),
    "results": (
        [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [PLAIN_CALL, {**PLAIN_CALL, "id": "call00002"}],
            },
            {
                "role": "tool",
                "content": words("One"),
                "name": Foreign("resultname", "lookup"),
                "tool_call_id": "call00001",
            },
            {
                "role": "tool",
                "content": words("Two"),
                "name": "lookup",
                "tool_call_id": "call00002",
            },
        ],
        [],
        {},
    ),
    "ids": (
        [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**PLAIN_CALL, "id": Foreign("callid", "call00009")}],
            },
            {
                "role": "tool",
                "content": "Found.",
                "name": "lookup",
                "tool_call_id": Foreign("resultid", "call00009"),
            },
        ],
        [],
        {},
    ),
    "documents": (
        [USER],
        [],
        {"documents": [{"title": words("Title"), "text": words("Document"), "doc_id": "1"}]},
    ),
    "named": ([{"role": "user", "name": words("Name"), "content": "Hello"}], [], {}),
    "continued": (
        [USER, {"role": "assistant", "content": words("Begun")}],
        [],
        {"continue_final_message": True},
    ),
}


def filled(value: Any, said: Mapping[str, str]) -> Any:
    if isinstance(value, Foreign):
        return said.get(value.name, value.harmless)
    if isinstance(value, Mapping):
        return {filled(key, said): filled(entry, said) for key, entry in value.items()}
    return [filled(entry, said) for entry in value] if isinstance(value, (list, tuple)) else value


def carriers(value: Any) -> list[Foreign]:
    """The places in a conversation, in order."""
    if isinstance(value, Foreign):
        return [value]
    entries = (
        [*value, *value.values()]
        if isinstance(value, Mapping)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return [found for entry in entries for found in carriers(entry)]


def prompt_of(pair: Pair, shape: str, said: Mapping[str, str], **chat: Any) -> Slot[Prompt]:
    """The conversation's prompt, with these words in their places."""
    tokenizer, renderer = loaded(pair)
    messages, tools, more = filled(SHAPES[shape], said)
    if more.pop("continue_final_message", False):
        chat.update(continue_final_message=True, add_generation_prompt=False)
    options = resolve(GenerationOptions(chat=ChatTemplateOptions(**chat, template_kwargs=more)))
    job = ResolvedRequest(
        request=TextGenerationRequest(messages=messages, tools=tools), options=options
    )
    return render_row(job, tokenizer, renderer).bind(
        lambda rendered: tokenize_row(rendered, (), tokenizer, None)
    )


@functools.lru_cache(maxsize=2)
def harmless(pair: Pair) -> dict[str, Prompt]:
    """The prompts of harmless words, for the shapes that the template takes."""
    slots = {shape: prompt_of(pair, shape, {}) for shape in SHAPES}
    return {shape: slot.unwrap() for shape, slot in slots.items() if is_ok(slot)}


_SHAPED = re.compile(r"<\|.*\|?>|<.*\|>|<｜.*｜>|\[/?[A-Z_]+\]|</?s>", re.DOTALL)


@functools.lru_cache(maxsize=2)
def control(pair: Pair) -> dict[str, int]:
    """What users take for control tokens: special tokens, added ones that the template writes, and
    added ones that look like control tokens.
    """
    tokenizer, renderer = loaded(pair)
    written = "\0".join(
        [renderer.template or "", *(prompt.text or "" for prompt in harmless(pair).values())]
    )
    unknown = {
        number
        for rare in ("\U000f5a3c", "\U00013000", "\U0002a6d6", "\u1400")
        for number in tokenizer.encode(rare)
    }
    return {
        token: number
        for token, number in tokenizer.control_tokens.items()
        if token.strip(" \t\n\v\f\r▁")
        and (token in tokenizer.special_tokens or token in written or _SHAPED.fullmatch(token))
        and number not in unknown
    }


def control_ids(pair: Pair, prompt: Prompt) -> list[int]:
    known = frozenset(control(pair).values())
    return [number for number in prompt.token_ids if number in known]


@functools.lru_cache(maxsize=2)
def chosen(pair: Pair) -> tuple[str, ...]:
    """The control tokens to try: those that the template writes first, then one of each kind of the
    others, at most forty.
    """
    written = "\0".join(
        [loaded(pair)[1].template or "", *(prompt.text or "" for prompt in harmless(pair).values())]
    )
    order = sorted(control(pair), key=lambda token: (token not in written, -len(token)))
    kinds = {re.sub(r"\d+", "0", token): token for token in reversed(order)}
    return tuple(sorted(kinds.values(), key=order.index))[:40]


@dataclasses.dataclass(frozen=True)
class Attack:
    """Words for some places of a conversation, and how they would make a control token."""

    shape: str
    said: tuple[tuple[str, str], ...]
    kind: str


def _spans(text: str, places: list[Foreign]) -> list[tuple[int, int, Foreign]]:
    """Where the harmless words stand in a prompt, upper or lower case."""
    found = [
        (hit.start(), hit.end(), place)
        for place in places
        for hit in re.finditer(re.escape(place.harmless), text, re.IGNORECASE)
    ]
    return sorted(found, key=lambda span: span[:2])


def attacks(pair: Pair) -> Iterator[Attack]:
    """Everything to try on the pair."""
    for shape, prompt in harmless(pair).items():
        places, text = carriers(SHAPES[shape]), prompt.text or ""
        spans = _spans(text, places)
        for place in places:
            if any(place is found for _, _, found in spans):
                yield from _alone(pair, shape, place)
        for row, (start, end, place) in enumerate(spans):
            before, after = text[:start], text[end:]
            yield from _beside_the_template(pair, shape, place, before, after)
            if row + 1 < len(spans) and spans[row + 1][2] is not place:
                yield from _over_a_gap(
                    pair, shape, place, spans[row + 1][2], text[end : spans[row + 1][0]]
                )


def _alone(pair: Pair, shape: str, place: Foreign) -> Iterator[Attack]:
    """Whole tokens, and words out of which a rewriting makes them: upper and lower case, literals
    of the template within them or in their place.
    """
    tokens, source = chosen(pair), loaded(pair)[1].template or ""
    yield Attack(shape, ((place.name, " x ".join(tokens)),), "whole")
    yield Attack(shape, ((place.name, "x".join(token for token in tokens)),), "whole, side by side")
    for changed in (str.upper, str.lower, str.title):
        if f"|{changed.__name__}" in source.replace(" ", "") or f".{changed.__name__}(" in source:
            yield Attack(
                shape, ((place.name, " x ".join(map(str.swapcase, tokens))),), "swapped case"
            )
    for literal in _removed(source):
        for token in tokens[:12]:
            inside = " x ".join(token[:at] + literal + token[at:] for at in range(1, len(token)))
            yield Attack(shape, ((place.name, inside),), f"{literal!r} within")
        yield Attack(shape, ((place.name, f"some {literal} words"),), f"{literal!r} alone")
    for old, new in _replaced(source):
        for token in tokens:
            if new and new in token:
                yield Attack(
                    shape,
                    ((place.name, f"x {token.replace(new, old)} x"),),
                    f"{old!r} becomes {new!r}",
                )


_LITERAL = r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"


def _read(literal: str) -> str:
    return (
        literal[1:-1]
        .replace("\\n", "\n")
        .replace("\\'", "'")
        .replace('\\"', '"')
        .replace("\\\\", "\\")
    )


def _replaced(source: str) -> list[tuple[str, str]]:
    """What the template replaces by what."""
    return list(
        dict.fromkeys(
            (_read(old), _read(new))
            for old, new in re.findall(rf"replace\(\s*{_LITERAL}\s*,\s*{_LITERAL}", source)
        )
    )


def _removed(source: str) -> list[str]:
    """What the template may take out of words, or look for in them."""
    found = re.findall(
        rf"(?:split|strip|startswith|endswith|find)\(\s*{_LITERAL}", source
    ) + re.findall(rf"{_LITERAL} (?:not )?in ", source)
    literals = [old for old, _ in _replaced(source)] + [_read(literal) for literal in found]
    return [literal for literal in dict.fromkeys(literals) if literal and len(literal) < 40][:12]


def _beside_the_template(
    pair: Pair, shape: str, place: Foreign, before: str, after: str
) -> Iterator[Attack]:
    """Beginnings and ends of control tokens whose other part the template writes."""
    for token in control(pair):
        for at in range(1, len(token)):
            head, tail = token[:at], token[at:]
            if after.startswith(tail) or (tail.strip() and after.lstrip().startswith(tail)):
                yield Attack(
                    shape,
                    ((place.name, f"words {head}"),),
                    f"{head!r} before the template's {tail!r}",
                )
            if before.endswith(head) or (head.strip() and before.rstrip().endswith(head)):
                yield Attack(
                    shape,
                    ((place.name, f"{tail} words"),),
                    f"{tail!r} after the template's {head!r}",
                )
                for end in range(1, len(tail)):
                    if after.startswith(tail[end:]):
                        yield Attack(
                            shape,
                            ((place.name, tail[:end]),),
                            f"{tail[:end]!r} within the template's {head!r} and {tail[end:]!r}",
                        )


def _over_a_gap(
    pair: Pair, shape: str, first: Foreign, second: Foreign, gap: str
) -> Iterator[Attack]:
    """Two foreign words that join, with nothing or little of the template's between them."""
    if len(gap) > 12:
        return
    for token in chosen(pair):
        for at in range(1, len(token) - len(gap)):
            if token[at:].startswith(gap):
                head, tail = token[:at], token[at + len(gap) :]
                yield Attack(
                    shape,
                    ((first.name, f"words {head}"), (second.name, f"{tail} words")),
                    f"{head!r} and {tail!r} in {first.name} and {second.name}",
                )
