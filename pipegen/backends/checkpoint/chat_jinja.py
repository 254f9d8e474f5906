"""A chat template, rendered by Jinja in the environment that transformers gives it. transformers
itself is not imported.

>>> render("{{ bos_token }}{{ messages[0].content }}", [{"content": "Hi"}], {"bos_token": "<s>"})
'<s>Hi'
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pipegen.backends.checkpoint.verdicts import installed, keep, kept

RENDERING = ("transformers", "tokenizers", "jinja2")
"""The packages whose versions bear on what a template writes."""


class Rendering(NamedTuple):
    """What the installed transformers does about a template."""

    rewrites: tuple[str, ...]
    """See `pipegen.engines.tokenizer.Renderer`: a thought has more names, and entries that are null
    are taken out.
    """
    guarded: bool
    """Whether `dict` and `namespace` are limited ones."""
    reserved: frozenset[str]
    """The names that it uses itself, and that no variable of a template can have."""


_READ = (5, 16, 0), (5, 24, 0)
"""The first and the last version of transformers whose source was read."""
_SINCE = {
    "sanitize_control_tokens": (5, 20, 0),
    "reasoning": (5, 21, 0),
    "guarded": (5, 22, 2),
    "null": (5, 23, 0),
}
"""The versions that brought something to rendering."""
_RESERVED = (
    *("chat_template", "conversation", "kwargs", "max_length", "padding", "return_dict", "tools"),
    *("return_assistant_tokens_mask", "return_tensors", "tokenize", "tokenizer_kwargs"),
    "truncation",
)


def _release() -> tuple[int, ...] | None:
    """The version of transformers that is installed; None where its source was not read."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", installed("transformers") or "")
    release = tuple(map(int, found.groups())) if found else ()
    return release if _READ[0] <= release <= _READ[1] else None


def is_read() -> bool:
    """Whether it is known from its source what the installed transformers does."""
    return _release() is not None


@functools.cache
def rendering() -> Rendering:
    """What the installed transformers does. For a version whose source was not read it is found out
    by templates that write what they see, and kept.
    """
    release = _release()
    if release is not None:
        since = [name for name, first in _SINCE.items() if first <= release]
        rewrites = tuple(name for name in ("null", "reasoning") if name in since)
        names = frozenset((*_RESERVED, *since)) - {"null", "reasoning", "guarded"}
        return Rendering(rewrites, "guarded" in since, names)
    about: dict[str, Any] = {"model": "", "packages": RENDERING}
    found = kept("rendering", **about)
    if found is None or found.keys() != {*Rendering._fields}:
        found = _found()
        keep("rendering", found, **about)
    return Rendering(tuple(found["rewrites"]), bool(found["guarded"]), frozenset(found["reserved"]))


def _found() -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "reasoning": "thought"}
    try:
        from jinja2.exceptions import SecurityError
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        fast: Any = PreTrainedTokenizerFast
        call = fast(tokenizer_object=Tokenizer(models.BPE())).apply_chat_template
        seen = json.loads(
            call([message], chat_template="{{ messages[0] | tojson }}", tokenize=False)
        )
        try:
            call([message], chat_template="{{ namespace(_a=1) }}", tokenize=False)
            guarded = False
        except SecurityError:
            guarded = True
    except ImportError:  # of transformers, or of the Jinja that it wants: no template is rendered
        return {"rewrites": [], "guarded": False, "reserved": []}
    changed = {"null": "content" not in seen, "reasoning": "reasoning_content" in seen}
    return {
        "rewrites": [name for name, is_changed in changed.items() if is_changed],
        "guarded": guarded,
        "reserved": sorted(reserved_by(call)),
    }


def reserved_by(call: Any) -> frozenset[str]:
    """The names of arguments of `apply_chat_template` that are no variables of a template."""
    return frozenset(inspect.signature(call).parameters) - {
        "documents",
        "add_generation_prompt",
        "continue_final_message",
    }


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The text that the template writes. Whatever it raises comes through; `TypeError` is for
    documents that are no objects, `ValueError` for no message.
    """
    if not messages:
        raise ValueError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    rules = rendering()
    template = _compiled(source, rules.guarded)
    given = {"documents": None, "add_generation_prompt": False, **variables}
    for document in given["documents"] or ():
        if not isinstance(document, dict):
            raise TypeError("Documents should be a list of dicts with 'title' and 'text' keys!")
    chat: list[Mapping[str, Any]] = [*messages]
    if "null" in rules.rewrites:
        chat = [
            {name: value for name, value in message.items() if value is not None}
            for message in chat
        ]
    if "reasoning" in rules.rewrites:
        chat = [*map(_with_thought, chat)]
    return str(template.render(messages=chat, tools=tools, **given))


def _with_thought(message: Mapping[str, object]) -> Mapping[str, object]:
    """The message with its thought under the names that templates read."""
    thoughts = (message.get(name) for name in ("reasoning_content", "thinking", "reasoning"))
    thought = next((text for text in thoughts if text is not None), None)
    if thought is None:
        return message
    return {"thinking": thought, **message, "reasoning_content": thought}


@functools.lru_cache(maxsize=128)
def _compiled(source: str, guarded: bool) -> Any:
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class GenerationTag(Extension):
        """The tags around what a model is trained on: their text is written as it is."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

        def written(self, caller: Any) -> str:
            return str(caller())

    class LimitedDict:
        def __call__(self, *args: object, **entries: object) -> dict[Any, Any]:
            return dict(*args, **entries)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    class LimitedNamespace(Namespace):
        def __init__(*args: object, **entries: object) -> None:
            self, *more = args
            values = dict(*more, **entries)
            for name in values:
                check(name)
            Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: object) -> None:
            check(name)
            Namespace.__setitem__(self, name, value)

    def check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(
                "Chat templates cannot store underscore-prefixed attributes on a namespace, but"
                f" got {name!r}. Please rename the attribute."
            )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),  # noqa: DTZ005 - local time, as transformers
        **({"dict": LimitedDict(), "namespace": LimitedNamespace} if guarded else {}),
    }
    return environment.from_string(source)
