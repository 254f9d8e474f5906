"""Whether a text looks like a tool call, in the form of its chat template or in another one.

>>> tools = [{"type": "function", "function": {"name": "add"}}]
>>> looks_like_call('{"arguments": {}, "name": "add"}', tools)
True
>>> looks_like_call("I could add them.", tools)
False
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Finish
from pipegen.template.call_syntax import tool_of

_TAG = re.compile(r"<[^<>\s][^<>]*>|\[[A-Z_]{2,}\]")
_OF_CALLS = re.compile(
    r"[<\[][^<>\[\]\n]{0,40}(tool|function)_?calls?[^<>\[\]\n]{0,40}[>\]]", re.IGNORECASE
)
"""A tag that is named for calls, as many models write one."""


def looks_like_call(
    answer: str,
    tools: Sequence[object],
    openings: Sequence[str] = (),
    plain: str = "",
    *,
    cut: bool = False,
) -> bool:
    """Whether an answer looks like a tool call.

    openings: what the template writes before the name of a call.
    plain: an answer without calls, as the template writes it. What is in it is no sign of a call.
    cut: whether something cut the answer. Then the beginning of a call is a sign.
    """
    tags = [
        tag
        for opening in openings
        for tag in _TAG.findall(opening)
        if tag not in plain and "think" not in tag.lower()
    ]
    if any(tag in answer for tag in tags) or _OF_CALLS.search(answer):
        return True
    names = "|".join(re.escape(name) for name, _ in map(tool_of, tools) if name)
    if names and re.search(
        rf'"(?:name|function|tool|tool_name)"\s*:\s*"(?:{names})"'
        rf"|<function=\"?(?:{names})\"?>|<invoke name=\"(?:{names})\"|functions\.(?:{names}):[0-9]"
        rf"|^\s*\[?(?:{names})\(|(?:^|[\n>\]])\W{{0,4}}(?:{names})\s*\{{",
        answer,
    ):
        return True
    if not cut:
        return False
    begun = answer.strip()
    return any(begun[:2] == opening.strip()[:2] for opening in openings if begun) or any(
        begun.endswith(tag[:size]) for tag in tags for size in range(3, len(tag))
    )


def what_cut(finish: Finish, stop: str | int | None, options: GenerationOptions) -> str:
    """What cut an answer that the model did not end; empty where nothing did."""
    if finish is Finish.LENGTH:
        return f"max_new_tokens={options.max_new_tokens} ended it"
    if finish in (Finish.STOP_STRING, Finish.STOP_TOKEN):
        return f"the stop {stop!r:.80} ended it"
    return "" if finish is Finish.EOS else f"it ended with {finish.value!r}"


def unread_by_server(text: str, tools: Sequence[object], cut: str) -> str | None:
    """Why a server that reads calls itself gave none; None where the text does not look like one."""
    if not tools or not looks_like_call(text, tools, cut=bool(cut)):
        return None
    return (
        f"the answer was cut within a tool call: {cut}"
        if cut
        else "the server gave the call as text: start it with the tool parser of the model"
    )
