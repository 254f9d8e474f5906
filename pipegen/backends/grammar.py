"""The form of an answer as a grammar. Engines that run in this process are given the same grammar
text, so that they leave the same tokens to choose from.

The grammar is Lark's, as the library llguidance reads it: the form, and then one of the tokens that
end the answer. JSON has no white space between its parts (a schema's own `x-guidance` may say
otherwise).

>>> from pipegen.records.option_groups import StructuredOptions
>>> text_of(StructuredOptions(choice=("yes", "no")), (2, 5))
'start: form (<[2]> | <[5]>)\\nform: TEXT\\nTEXT: "yes" | "no"\\n'
"""

# llguidance need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.answer.regex_check import ascii_regex, edge_in
from pipegen.backends.settled_schema import (
    NO_EDGES,
    rounded_in,
    scalars,
    schema_parts,
    settled,
    wrong_in_schema,
)
from pipegen.core.distribution import MissingExtra, need
from pipegen.core.errors import UnsupportedOption
from pipegen.core.foreign_calls import guard
from pipegen.core.slots import Slot
from pipegen.ending.stop_state import ending_ids
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.engine_list import shown
from pipegen.records.option_groups import StructuredOptions
from pipegen.records.option_records import GenerationOptions


@functools.lru_cache(maxsize=1024)
def written_out(form: StructuredOptions) -> StructuredOptions:
    r"""The form with the same meaning for every engine: in regular expressions, classes of
    characters are those of ASCII; a schema is `settled`.

    >>> (
    ...     written_out(StructuredOptions(regex=r"\d{4}")).regex,
    ...     written_out(StructuredOptions(json_schema={"pattern": r"^\w+$"})).json_schema,
    ... )
    ('[0-9]{4}', '{"pattern": "^[0-9A-Za-z_]+$"}')
    """
    if form.regex is not None:
        return StructuredOptions(regex=ascii_regex(form.regex))
    if form.json_schema is None:
        return form
    schema = json.loads(str(form.json_schema))
    plain = settled(schema)
    return form if plain == schema else StructuredOptions(json_schema=plain)


def form_of(options: GenerationOptions) -> dict[str, Any]:
    """What form the answer must have, under the option's name; empty where it is free.

    >>> form_of(GenerationOptions(structured={"choice": ("a", "b")}))
    {'choice': ['a', 'b']}
    """
    if options.structured is None:
        return {}
    asked = written_out(options.structured)
    choice = None if asked.choice is None else list(asked.choice)
    given = {"json_schema": asked.json_schema, "regex": asked.regex, "choice": choice}
    return {name: value for name, value in given.items() if value is not None}


def unsupported_with_form(
    options: GenerationOptions, engine: str, *, masked_here: bool = False
) -> UnsupportedOption | None:
    """What an engine cannot honour of a form and what stands beside it; None where all is well.

    `masked_here` says that pipegen itself masks the logits. Then `min_new_tokens` is kept beside a
    form, and logprobs are the model's own; others take logprobs after the mask, as processed ones
    are to be.
    """
    name = next(iter(form_of(options)), None)
    if name is None or options.structured is None:
        return None
    beside = f"{shown(engine)} does not honour {{}} with {name}: "
    if options.min_new_tokens and not masked_here:
        words = (
            beside.format(f"min_new_tokens={options.min_new_tokens}")
            + "an answer that is complete before could neither end nor go on"
        )
        return UnsupportedOption(words, option="min_new_tokens")
    if options.stop is not None and options.stop.ignore_eos:
        words = (
            beside.format("ignore_eos=True")
            + "what came after the answer's end would not have its form"
        )
        return UnsupportedOption(words, option="ignore_eos")
    if options.logprobs is True and not masked_here:
        words = (
            beside.format("logprobs=True")
            + "it takes them among the tokens that the form allows, so they are not the model's own"
        )
        return UnsupportedOption(words, option="logprobs", hint="leave out logprobs, or use hf")
    wrong = _wrong_with(options.structured)
    return cannot_compile(name, wrong) if wrong else None


def _spelled_token(
    options: GenerationOptions, tokenizer: Tokenizer, engine: str
) -> UnsupportedOption | None:
    """The refusal of a choice that holds the text of a control token: llguidance lets the token
    itself stand for that text.
    """
    choices = form_of(options).get("choice", ())
    token = next(
        (token for token in tokenizer.special_tokens for choice in choices if token in choice), None
    )
    if token is None:
        return None
    words = (
        f"{shown(engine)} does not honour choice with the text {token!r}: it would be the control"
        " token"
    )
    return UnsupportedOption(words, option="choice", hint="use choices without that text")


def _changed_text(
    form: StructuredOptions, tokenizer: Tokenizer, option: str, engine: str
) -> UnsupportedOption | None:
    """The refusal of a form with text that the tokenizer would change: no tokens spell it."""
    text = _first_changed(form, tokenizer)
    if text is None:
        return None
    words = (
        f"{shown(engine)} does not honour {option} with the text {text!a}: the model's tokenizer"
        " changes it to another one"
    )
    return UnsupportedOption(
        words, option=option, hint="compose it: unicodedata.normalize('NFC', text)"
    )


@functools.lru_cache(maxsize=1024)
def _first_changed(form: StructuredOptions, tokenizer: Tokenizer) -> str | None:
    normalised = getattr(tokenizer, "normalised", None)
    return None if normalised is None else changed_in(form, normalised)


@functools.lru_cache(maxsize=1024)
def _wrong_with(form: StructuredOptions) -> str:
    """What is wrong with a form whichever engine reads it; empty where nothing is, or was found."""
    if form.regex is not None:
        return NO_EDGES if edge_in(form.regex) else ""
    return "" if form.json_schema is None else wrong_in_schema(json.loads(str(form.json_schema)))


def grammar_of(
    options: GenerationOptions,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
    vocab_size: int | None,
    engine: str,
) -> Slot[str | None]:
    """The grammar of the answer, checked; None where its form is free.

    A complete answer ends with one of the model's end tokens, or with another special token that
    ends the row. Gives `UnsupportedOption`, which names the option, for a form that llguidance does
    not take, and where llguidance is not installed.
    """
    name = next(iter(form_of(options)), None)
    if name is None or options.structured is None:
        return Success(None)
    try:
        need("llguidance", "structured", f"{name} on {shown(engine)}")
    except MissingExtra as missing:
        return Failure(UnsupportedOption(str(missing), option=name))
    refused = _spelled_token(options, tokenizer, engine) or _changed_text(
        options.structured, tokenizer, name, engine
    )
    if refused is not None:
        return Failure(refused)
    kept = {*eos_token_ids, *tokenizer.special_tokens.values()}
    ends = tuple(
        number
        for number in ending_ids(options, tokenizer, eos_token_ids, vocab_size)
        if number in kept
    )
    if not ends:
        words = (
            f"{shown(engine)} does not honour {name}: the model has no end token, with which a"
            " complete answer could end"
        )
        return Failure(UnsupportedOption(words, option=name, hint="set one in stop_token_ids"))
    made = guard(
        functools.partial(_checked, options.structured, ends),
        lambda raised: cannot_compile(name, raised.words),
    )
    return made.bind(
        lambda checked: (
            Failure(cannot_compile(name, checked[1])) if checked[1] else Success(checked[0])
        )
    )


@functools.lru_cache(maxsize=1024)
def _checked(form: StructuredOptions, ends: tuple[int, ...]) -> tuple[str, str]:
    """The grammar, and what is wrong with it; an empty text where nothing is."""
    wrong = _wrong_with(form)  # llguidance may not see it
    if not wrong and form.json_schema is not None:
        wrong = rounded_in(str(form.json_schema))
    if wrong:
        return "", wrong

    from llguidance import LLMatcher

    text = text_of(form, ends)
    return text, LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text))


@functools.lru_cache(maxsize=256)
def _by_bytes(form: StructuredOptions) -> Any:
    """The grammar of a form alone, over bytes instead of a model's tokens."""
    from llguidance import LLMatcher, LLTokenizer

    return LLMatcher(
        LLTokenizer("byte"), LLMatcher.grammar_from_lark(text_of(form, ())), log_level=0
    )


def has_form(form: StructuredOptions, text: str) -> bool:
    """Whether a whole text has the form. A space that the tokenizer does not show at the very start
    may be missing. No text has one that no engine takes.
    """
    if _wrong_with(form):
        return False
    for answer in (text.encode(), b" " + text.encode()):
        matcher = _by_bytes(form).deep_copy()
        if matcher.try_consume_tokens(list(answer)) == len(answer) and matcher.is_accepting():
            return True
    return False


def text_of(form: StructuredOptions, ends: Sequence[int]) -> str:
    """The grammar of a form, ended by one of these tokens where there are some. Of a regular
    expression, llguidance says how it is written in a grammar.
    """
    form = written_out(form)
    if form.choice is not None:
        # a name in capitals is one lexeme, however many texts there are
        body = "TEXT\nTEXT: " + " | ".join(map(json.dumps, form.choice))
    elif form.regex is not None:
        from llguidance import regex_to_lark

        body = f"/{regex_to_lark(form.regex, '')}/"
    else:
        schema = json.loads(str(form.json_schema))
        own = schema.get("x-guidance")
        settings = {"whitespace_flexible": False, **(own if isinstance(own, dict) else {})}
        body = "%json " + json.dumps({**schema, "x-guidance": settings})
    end = f" ({' | '.join(f'<[{number}]>' for number in ends)})" if ends else ""
    return f"start: form{end}\nform: {body}\n"


def cannot_compile(option: str, wrong: str) -> UnsupportedOption:
    """The error for a form that llguidance does not take, in its words.

    >>> cannot_compile(
    ...     "json_schema",
    ...     "at 2(7): failed to compile JSON schema: Invalid type: no\\n   1 | start: ...",
    ... ).message
    'json_schema cannot be compiled: Invalid type: no'
    >>> cannot_compile(
    ...     "regex",
    ...     'at 2(7): invalid regex "(" (in regex): regex parse error:\\n (\\n ^\\nerror: unclosed group',
    ... ).message
    'regex cannot be compiled: unclosed group'
    >>> cannot_compile("regex", "NoExtensionBias").message
    'regex cannot be compiled: no text has this form, says llguidance (NoExtensionBias)'
    """
    wrong = wrong.partition("\n<state>")[0]
    found = (
        re.search(r"^error: (.*)", wrong, re.MULTILINE)
        or re.search(r"failed to compile JSON schema: (.*)", wrong)
        or re.match(r"(.*)", wrong)
    )
    words = found[1] if found else wrong
    if re.fullmatch(r"\w*", words):  # the name of an error, and no words
        words = f"no text has this form, says llguidance ({words})"
    return UnsupportedOption(
        f"{option} cannot be compiled: {words}"[:600],
        option=option,
        hint=f"correct {option}, or leave it out",
    )


def changed_in(form: StructuredOptions, normalised: Callable[[str], str]) -> str | None:
    r"""The first text in a form that is another one when it is `normalised`; None where none is.

    A tokenizer in the manner of Qwen composes characters (NFC). llguidance asks it for the tokens of
    forced text, and gets those of another text.

    >>> import unicodedata
    >>> def composed(text):
    ...     return unicodedata.normalize("NFC", text)
    >>> changed_in(StructuredOptions(choice=("e\u0301", "x")), composed) == "e\u0301"
    True
    >>> changed_in(StructuredOptions(choice=("\u00e9", "x")), composed) is None
    True
    """
    if form.json_schema is not None:
        texts = [*_texts(json.loads(str(form.json_schema)))]
    else:
        texts = [(text, False) for text in form.choice or ()] + [(form.regex or "", True)]
    for text, is_pattern in texts:
        changed = _changed_in_regex(text, normalised) if is_pattern else None
        if not is_pattern and normalised(text) != text:
            changed = text
        if changed is not None:
            return changed
    return None


def _texts(schema: object) -> Iterator[tuple[str, bool]]:
    """The texts that a schema may force: constants, names, and patterns, for which it says so."""
    for part in schema_parts(schema):
        forced = scalars([part.get(key) for key in ("const", "enum", "required")])
        yield from ((text, False) for text in forced if isinstance(text, str))
        if isinstance(pattern := part.get("pattern"), str):
            yield pattern, True
        for key in ("properties", "patternProperties"):
            names = part.get(key)
            if isinstance(names, dict):
                yield from ((name, key == "patternProperties") for name in names)


_PART = re.compile(
    r"\\(?:x\{(?P<a>[0-9A-Fa-f]+)\}|u\{(?P<b>[0-9A-Fa-f]+)\}|x(?P<c>[0-9A-Fa-f]{2})"
    r"|u(?P<d>[0-9A-Fa-f]{4})|U(?P<e>[0-9A-Fa-f]{8})|[pP](?:\{[^}]*\}|.)|(?P<other>.))"
    r"|\[(?P<only>[^\\\]^])\]|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[0-9]*,?[0-9]*\}|[()|*+?^$.]"
    r"|(?P<plain>.)",
    re.DOTALL,
)
"""A part of a regular expression: a character, a class of them, or what is no character."""


def _literals(pattern: str) -> list[str]:
    """The characters that a regular expression names alone, each once.

    >>> _literals(r"a(b|[c-e]){2,3}\\.\\u0301[f]\\d")
    ['a', 'b', '.', '\u0301', 'f']
    """
    found: list[str] = []
    for match in _PART.finditer(pattern):
        digits = next(filter(None, map(match.group, "abcde")), None)
        other = match["other"] or ""
        if digits is not None and int(digits, 16) <= 0x10FFFF:
            found.append(chr(int(digits, 16)))
        else:
            found.append(match["plain"] or match["only"] or ("" if other.isalnum() else other))
    return [*dict.fromkeys(filter(None, found))]


def _changed_in_regex(pattern: str, normalised: Callable[[str], str]) -> str | None:
    """A character, or two of them, that the pattern may force and that would change. Where they
    stand in it is not looked at.
    """
    literals = _literals(pattern)
    for one in literals:
        if normalised(one) != one:
            return one
    # only what is beyond ASCII joins the character before it
    for second in literals:
        for first in [] if second.isascii() else literals:
            if normalised(first + second) != first + second:
                return first + second
    return None
