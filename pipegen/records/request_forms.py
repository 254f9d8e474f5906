"""Other people's forms of requests, read as pipegen's own.

`FORMS` is the table of the forms that are known. What names words for the model, or something that
it should obey, is read or refused: it is never carried along.

>>> row = {
...     "system": "Be brief.",
...     "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}],
... }
>>> [message["role"] for message in as_messages({}, row)["messages"]]
['system', 'user', 'assistant']
>>> sorted(read_keys(row)), refused("system_prompt")
(['conversations', 'system'], "; did you mean 'system'?")
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

from pipegen.core.names import InvalidField, folded, misspelt
from pipegen.records import strict_json
from pipegen.records.frozen import exact, plain_list, printed
from pipegen.records.messages import Message
from pipegen.records.option_table import OPTIONS, OTHER_NAMES
from pipegen.records.requests import MESSAGES


class RequestForm(NamedTuple):
    """A form of requests: by which keys it is known, and what becomes of the others."""

    name: str
    words: tuple[str, ...]
    """Keys that hold the conversation."""
    beside: tuple[str, ...]
    """Keys that are read beside it."""
    answers: tuple[str, ...] = ()
    """Keys of reference answers: these are carried along."""


FORMS = (
    RequestForm("OpenAI chat", ("messages",), ("tools",)),
    RequestForm("OpenAI batch", ("body",), ("custom_id", "method", "url")),
    RequestForm(
        "ms-swift",
        ("messages", "query"),
        ("system", "history", "images", "videos", "tools"),
        ("response", "rejected_response", "objects"),
    ),
    RequestForm("LLaVA", ("conversations",), ("system", "image", "images", "video", "videos")),
    RequestForm("ShareGPT", ("conversations", "conversation"), ("system", "tools")),
    RequestForm(
        "TRL",
        ("messages", "prompt"),
        ("tools", "images"),
        ("completion", "chosen", "rejected"),
    ),
)
"""The forms that are known beside pipegen's own."""
_OWN = ("messages", "prompt", "prompt_token_ids", "turns")
_WORDS = ("conversations", "conversation", "query")
"""Keys that hold the conversation where none of `_OWN` does; `turns` go on with it."""
KEYS = (*_WORDS, "system", "history")
"""The keys of other forms that are read as part of a request."""

_TOOLS = "; did you mean 'tools'?"
_NONE = "; pipegen has no such option"
_LENGTH = "; did you mean the option 'max_new_tokens'? It goes into options"
_THOUGHT = "; did you mean the option 'max_thinking_tokens'? It goes into options"
_SYSTEM = "; did you mean 'system'?"
_PREFILL = (
    "; the beginning of an answer is a last message of role assistant, with the option"
    " continue_final_message"
)
_ADAPTER = "; the option adapter, in options, names one of the engine's adapters"
_SAMPLING = "; options go into options, under pipegen's names"
_SOUND = "; pipegen takes no sound: write it down as text, or leave it out"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("system_prompt", "system_message", "system_instruction"), _SYSTEM),
    **dict.fromkeys(("instructions", "system_instructions", "system_content"), _SYSTEM),
    **dict.fromkeys(("sys_prompt", "developer_message", "developer_prompt"), _SYSTEM),
    **dict.fromkeys(("preamble", "system_preamble"), _SYSTEM),
    **dict.fromkeys(("chat_history", "message_history"), "; did you mean 'history'?"),
    "documents": '; documents go into options, as {"template_kwargs": {"documents": [...]}}',
    **dict.fromkeys(("functions", "function_definitions", "tool_definitions"), _TOOLS),
    "function_call": "; did you mean the option 'tool_choice'? It goes into options",
    **dict.fromkeys(("audio", "audios"), _SOUND),
    **dict.fromkeys(("prefill", "assistant_prefill", "assistant_prefix"), _PREFILL),
    **dict.fromkeys(("response_prefix", "response_prefill"), _PREFILL),
    "reasoning_effort": (
        '; it goes into options, as {"template_kwargs": {"reasoning_effort": ...}}'
    ),
    **dict.fromkeys(("num_beams", "use_beam_search"), _NONE),
    **dict.fromkeys(("early_stopping", "length_penalty", "typical_p", "top_a"), _NONE),
    **dict.fromkeys(("mirostat", "penalty_alpha", "force_words_ids", "ebnf"), _NONE),
    **dict.fromkeys(("logits_processors", "guided_grammar", "safety_settings"), _NONE),
    **dict.fromkeys(("lora", "lora_path", "lora_request"), _ADAPTER),
    "temp": "; did you mean the option 'temperature'? It goes into options",
    **dict.fromkeys(("sampling_params", "sampling_parameters", "generation_config"), _SAMPLING),
    **dict.fromkeys(("generation_kwargs", "generation_params", "gen_kwargs"), _SAMPLING),
    **dict.fromkeys(("extra_body", "model_kwargs", "sampling_args"), _SAMPLING),
    **dict.fromkeys(("guided_decoding", "structured_outputs", "inference_config"), _SAMPLING),
    "mm_processor_kwargs": "; the size of images goes into options, as max_pixels",
    **dict.fromkeys(("multi_modal_data", "mm_data"), "; images go into images"),
    "stop_words": "; did you mean the option 'stop'? It goes into options",
    "response_schema": "; did you mean the option 'json_schema'? It goes into options",
    "repeat_penalty": "; did you mean the option 'repetition_penalty'? It goes into options",
    **dict.fromkeys(("n_predict", "num_predict"), _LENGTH),
    **dict.fromkeys(("budget_tokens", "reasoning_budget"), _THOUGHT),
    "parallel_tool_calls": "; pipegen does not bound the number of calls",
}
"""Keys that other programs understand, each with what to do instead: it is refused."""
_NEUTRAL: Mapping[str, object] = {
    "parallel_tool_calls": True,
    **dict.fromkeys(("num_beams", "length_penalty", "typical_p", "repeat_penalty"), 1),
    **dict.fromkeys(("use_beam_search", "early_stopping", "mirostat"), 0),
}
"""Values that ask for what pipegen does anyway."""
_MEANT = re.compile(r"; did you mean (?:the option )?'(\w+)'")
_AUDIO_FILE = re.compile(
    r"(?:ref|reference|input|prompt)audios?|audios?(?:file|path|filename|filepath|url|uri|bytes|data)s?"
)
_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bot", "model", "ai"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
    **dict.fromkeys(("observation", "tool", "tool_response", "function_response"), "tool"),
    "system": "system",
    "developer": "developer",
}
"""What other forms call the roles."""
_TURN_KEYS = ("from", "role", "value", "content")
_TURN = '{"from": "human", "value": "..."}'
_UNSEEN = ", or put it into metadata if the model is not to see it"
_OBJECT_TAGS = ("<ref-object>", "<bbox>")
"""Tags in a text, in whose places ms-swift writes what `objects` holds."""
_PAIRS = 'pairs such as ["a question", "its answer"], or messages'


@functools.cache
def _known() -> Mapping[str, str]:
    """The keys as they are compared, each with its hint."""
    named = {key: f"; did you mean {key!r}?" for key in ("system", "history")}
    options = {
        name: f"; did you mean the option {name!r}? It goes into options"
        for name in OPTIONS
        if "_" in name
    }
    others = {
        other: f"; the option is named {name!r}, and goes into options"
        for other, name in OTHER_NAMES.items()
        if "_" in other
    }
    return {folded(key): hint for key, hint in {**others, **options, **named, **REFUSED}.items()}


def refused_entry(name: str, value: object) -> str | None:
    """As `refused`, for an entry: None where its value says nothing, as those that tables fill in.

    >>> refused_entry("documents", []), refused_entry("label", "yes")
    (None, None)
    """
    if isinstance(value, (str, bytes, Mapping, list, tuple)) and not value:
        return None
    return None if name in _NEUTRAL and _NEUTRAL[name] == value else refused(name)


@functools.lru_cache(maxsize=1024)
def refused(name: str) -> str | None:
    """The hint for a key that names words for the model, or something that it should obey, and is
    not read; None for any other.

    A word and its plural are two words: a data set has a `document`.

    >>> refused("functions"), refused("systemPrompt"), refused("document")
    ("; did you mean 'tools'?", "; did you mean 'system'?", None)
    """
    if name in KEYS or name in OPTIONS:
        return None
    word, known = folded(name[:100]), _known()
    if word in known:
        return known[word]
    if _AUDIO_FILE.fullmatch(word):
        return _SOUND
    near = misspelt(word, known)
    if near and near[0] == word[0]:
        return known[near]
    head = folded(re.split(r"[./:\[]|__", name[:100])[0])
    return _SAMPLING if known.get(head) == _SAMPLING else None


def meant(name: str) -> str:
    """What a key is another spelling or word for: an option, or `system`, `history`, `tools`. Empty
    for any other.

    >>> meant("top-k"), meant("system_mesage"), meant("stop_words"), meant("label")
    ('top_k', 'system', 'stop', '')
    """
    match = _MEANT.match(refused(name) or "")
    return match[1] if match else ""


def read_keys(values: Mapping[str, object]) -> frozenset[str]:
    """The keys of other forms that are read of these values.

    >>> sorted(read_keys({"prompt": "Hi", "query": "carried along", "system": "Be brief."}))
    ['system']
    >>> sorted(read_keys({"prompt": "", "query": "Hi"}))
    ['query']
    """
    if values.keys().isdisjoint(KEYS):
        return frozenset()
    names = [name for name in ("system", "history") if name in values]
    words = [name for name in _WORDS if _holds(values.get(name))]
    if not words and all(values.get(name) is None for name in _OWN):
        words = [name for name in _WORDS if values.get(name) is not None]
    if not any(_holds(values.get(name)) for name in _OWN[:3]):
        names += words[:1]
    return frozenset(names)


def _holds(value: object) -> bool:
    """Whether an entry holds words: tables fill in what only other rows have."""
    value = plain_list(value)
    if isinstance(value, str):
        value = exact(value)
    empty = isinstance(value, (str, list, tuple)) and (not value or value == "[]")
    return value is not None and not empty


def as_messages(fields: Mapping[str, object], values: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a request with what other forms say in `values`. Raises `InvalidField`.

    fields: pipegen's own fields of `values`, where JSON text is read already.
    """
    result = dict(fields)
    keys = read_keys(values)
    own = [name for name in _OWN if name in result]
    words = not keys.isdisjoint(_WORDS)
    if words or len(own) > 1:
        holding = [name for name in own if _holds(result[name])]
        for name in own if holding or words else ():
            if name not in holding:
                del result[name]
    if _is_conversation(result.get("prompt")) and "messages" not in result:
        result["messages"] = result.pop("prompt")
    for name in keys.intersection(_WORDS):
        if name == "query":
            history = values.get("history")
            result["messages"] = [_asked(_text(name, values[name]), result, history)]
        else:
            turns = _turns(name, _loaded(name, values[name]))
            result["messages"] = _in_our_roles(name, turns)
    if isinstance(messages := plain_list(result.get("messages")), (list, tuple)):
        result["messages"] = _in_our_roles("messages", messages)
    if values.get("objects"):
        _refuse_objects([result.get(name) for name in _OWN] + [values.get("history")])
    system = _text("system", values.get("system") or "") if "system" in keys else ""
    history = _history(_loaded("history", values.get("history"))) if "history" in keys else []
    if not system and not history:
        return result
    which = " and ".join([*(["system"] if system else []), *(["history"] if history else [])])
    if result.get("continues") is not None:
        raise InvalidField(f"{which} goes before a first turn, and this request continues one")
    return _with_turns(result, which, system, history)


def _refuse_objects(words: Sequence[object]) -> None:
    """Refuse words with places for `objects`: how a box is written differs between models."""
    tag = next((tag for tag in _OBJECT_TAGS if tag in str(words)), None)
    if tag is not None:
        raise InvalidField(
            f"the text has the tag {tag} beside objects, and each model has its own way to write a"
            f" box: write the objects into the text{_UNSEEN}"
        )


def _with_turns(
    result: dict[str, Any], which: str, system: str, history: list[Any]
) -> dict[str, object]:
    """The fields with a system message and earlier turns before their messages."""
    if isinstance(result.get("prompt"), str) and (result.get("images") or result.get("videos")):
        result["messages"] = [_asked(result.pop("prompt"), result, history)]
    elif result.get("prompt") is not None or result.get("prompt_token_ids") is not None:
        raise InvalidField(
            f"{which} goes before messages, and this request has none: its prompt is continued as"
            f" it is; ask by messages (on the command line --map user=COLUMN makes them){_UNSEEN}"
        )
    messages = result.get("messages", [] if result.get("turns") else None)
    if not isinstance(messages, (list, tuple)):
        return result  # which is refused for it
    head = [*takewhile(lambda message: _role(message) in ("system", "developer"), messages)]
    rest = messages[len(head) :]
    if system and head:
        if _content(head[0]) != system:
            raise InvalidField(
                "system and the system message of messages are two different texts: give one"
            )
    elif system:
        head = [{"role": "system", "content": system}]
    result["messages"] = [*head, *history, *rest]
    return result


def _asked(text: str, fields: Mapping[str, Any], past: object) -> dict[str, Any]:
    """A user's turn of the text and of the images beside it. They go before it, unless tags say
    where, in it or in the history.
    """
    words = f"{text}{past}"
    places = [
        {"type": kind}
        for kind in ("image", "video")
        if f"<{kind}>" not in words
        for _ in fields.get(f"{kind}s") or ()
    ]
    content = [*places, {"type": "text", "text": text}] if places else text
    return {"role": "user", "content": content}


def _is_conversation(value: object) -> bool:
    return (
        isinstance(value := plain_list(value), (list, tuple))
        and bool(value)
        and all(isinstance(entry, (Mapping, Message)) for entry in value)
    )


def _loaded(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    return json_text(name, value) if value.strip() else None


def json_text(name: str, text: str) -> object:
    """What an entry of a request says that is JSON text. Raises `InvalidField`.

    >>> json_text("turns", '["Why?"]')
    ['Why?']
    """
    try:
        return strict_json.load(text)
    except strict_json.NotStrict as refusal:
        form = (
            f"messages takes a list of messages such as {MESSAGES}, with prompt for a plain text,"
            f" not {printed(text)}; "
            if name == "messages"
            else ""
        )
        unseen = _UNSEEN if name == "history" else ""
        raise InvalidField(
            f"{form}{name}, where it is text, takes JSON: {refusal}{unseen}"
        ) from None


def metadata_of(value: object) -> Mapping[str, Any]:
    """The entries of a request's `metadata`, which in a table may be no mapping.

    >>> metadata_of({"page": 7}), metadata_of("page 7"), metadata_of(None)
    ({'page': 7}, {'metadata': 'page 7'}, {})
    """
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"metadata": value}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        unseen = _UNSEEN if name == "system" else ""
        raise InvalidField(f"{name} takes a text, not {printed(value)}{unseen}")
    return value


def _turns(name: str, value: object) -> list[object]:
    """The entries of a conversation; `{"human", "assistant"}` is two of them."""
    value = plain_list(value)
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidField(f"{name} takes a list of turns such as {_TURN}, not {printed(value)}")
    entries: list[object] = []
    for entry in value:
        pair = (
            [(role, entry[role]) for role in _PAIR if entry.get(role) is not None]
            if isinstance(entry, Mapping) and not entry.keys() & {"from", "role"}
            else []
        )
        entries += [{"from": role, "value": text} for role, text in pair] or [entry]
    return entries


_PAIR = ("system", "human", "user", "assistant", "gpt")


def _history(value: object) -> list[object]:
    """Earlier turns: pairs of a question and its answer, or messages."""
    value = plain_list(value)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise InvalidField(f"history takes a list of {_PAIRS}, not {printed(value)}{_UNSEEN}")
    turns: list[object] = []
    for position, entry in enumerate(map(plain_list, value)):
        if isinstance(entry, (Mapping, Message)):
            turns.append(entry)
        elif isinstance(entry, (list, tuple)) and len(entry) == 2:
            turns += [
                {"role": role, "content": _text(f"history[{position}]", text)}
                for role, text in zip(("user", "assistant"), entry, strict=True)
                if text is not None
            ]
        else:
            raise InvalidField(f"history[{position}] takes {_PAIRS}, not {printed(entry)}")
    return [*_in_our_roles("history", turns)]


def _role(message: object) -> str:
    return message.role if isinstance(message, Message) else _named(message)


def _content(message: Any) -> Any:
    """The content of a message, as a text where its parts are all text."""
    content = message.content if isinstance(message, Message) else message.get("content")
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        return "".join(map(str, texts)) if None not in texts else content
    return content


def _in_our_roles(name: str, messages: Sequence[Any]) -> Sequence[object]:
    """The messages with the roles and names of other forms as ours; calls that follow each other
    are one message.
    """
    if not any(map(_is_in_other_roles, messages)):
        return messages
    result: list[Any] = []
    follows_call = False
    for position, message in enumerate(messages):
        is_call = _ROLES.get(_named(message)) == "call"
        ours = message
        if isinstance(message, Mapping):
            ours = _in_our_role(f"{name}[{position}]", message)
        if is_call and follows_call:
            result[-1]["tool_calls"] += ours["tool_calls"]
        else:
            result.append(ours)
        follows_call = is_call
    return result


_OTHER_ROLES = frozenset(role for role, ours in _ROLES.items() if role != ours)


def _is_in_other_roles(message: object) -> bool:
    if not isinstance(message, Mapping):
        return False
    role = message.get("role")
    return "from" in message or (isinstance(role, str) and exact(role) in _OTHER_ROLES)


def _named(message: object) -> str:
    """What a turn calls its role."""
    if not isinstance(message, Mapping):
        return ""
    role = message.get("from", message.get("role"))
    return str(exact(role)) if isinstance(role, str) else ""


def _in_our_role(where: str, message: Mapping[str, object]) -> dict[str, object]:
    rest = {key: entry for key, entry in message.items() if key not in _TURN_KEYS}
    content = message["value"] if "value" in message else message.get("content")
    role = _ROLES.get(_named(message))
    if role is None:
        raise InvalidField(
            f"{where}.{'from' if 'from' in message else 'role'} takes one of"
            f" {', '.join(_ROLES)}, not {printed(message.get('from', message.get('role')))}"
        )
    if role == "call":
        return {"role": "assistant", "content": "", **rest, "tool_calls": _calls(where, content)}
    return {"role": role, "content": content, **rest}


def _calls(where: str, content: object) -> list[dict[str, Any]]:
    """The tool calls that a turn holds as JSON: one, or a list of them."""
    value = _loaded(where, content)
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, (list, tuple)) or not all(
        isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls
    ):
        raise InvalidField(
            f'{where} takes a call as JSON, such as {{"name": "get", "arguments": {{}}}}, not'
            f" {printed(content)}"
        )
    return [
        {
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": call.get("arguments", call.get("parameters", {})),
            },
        }
        for call in calls
    ]


def without_final_answer(values: Mapping[str, object]) -> Mapping[str, object]:
    """The values without the answers that end their conversation, which become `references` in
    their metadata. As they are where they end with no answer, cannot be read, or are a plain prompt.

    >>> row = {
    ...     "messages": [
    ...         {"role": "user", "content": "2 + 2?"},
    ...         {"role": "assistant", "content": "4"},
    ...     ]
    ... }
    >>> without_final_answer(row)
    {'messages': [{'role': 'user', 'content': '2 + 2?'}], 'metadata': {'references': ['4']}}
    """
    name = next((name for name in (*_OWN[:2], *_WORDS[:2]) if _holds(values.get(name))), None)
    if name is None:
        return values
    try:  # a prompt that is text is continued as it is
        turns = _turns(name, values[name] if name == "prompt" else _loaded(name, values[name]))
    except InvalidField:  # which the request says
        return values
    kept = [*dropwhile(_is_answer, reversed(turns))][::-1]
    dropped = turns[len(kept) :]
    if not dropped or not kept:
        return values
    result = {
        ("input_references" if key == "references" else key): entry
        for key, entry in values.items()
        if key != "metadata"
    }
    own, references = metadata_of(values.get("metadata")), [*map(_reference, dropped)]
    return {**result, name: kept, "metadata": {**own, "references": references}}


def _is_answer(turn: object) -> bool:
    role = turn.role if isinstance(turn, Message) else _named(turn)
    return _ROLES.get(role) in ("assistant", "call")


def _reference(turn: object) -> str:
    """The words of an answer; all of it as JSON text where it is more than words."""
    if isinstance(turn, Mapping):
        content = turn.get("value", turn.get("content"))
        others = [entry for key, entry in turn.items() if key not in _TURN_KEYS and entry]
        if isinstance(content, str) and not others:
            return content
    return strict_json.dump(turn)
