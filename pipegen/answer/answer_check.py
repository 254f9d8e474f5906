"""Does this answer obey its request? One pure rule for every server, at run time, and for `pipegen
verify`.

An answer is judged by what is known of it: what it does not say is not judged.

>>> from pipegen.records.options import resolve
>>> asked = resolve(GenerationOptions(max_new_tokens=8, structured={"choice": ("yes", "no")}))
>>> check_answer(UntrimmedAnswer(text="Perhaps", finish="stop", token_count=9), asked)
(Finding(kind='length', words='9 tokens came, and at most 8 were asked', hint=''), Finding(kind='form', words="'Perhaps' is none of the 2 choices", hint=''))
>>> check_answer(
...     UntrimmedAnswer(text="ye", finish="length", token_count=8), asked
... )  # cut by the length, it need not be complete
()
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, NoReturn

from pipegen.answer.barred import Spellings, barred_in
from pipegen.answer.regex_check import matches
from pipegen.core.errors import MalformedResponse
from pipegen.ending.stop_scan import cut
from pipegen.records.answer_parts import common_prefix
from pipegen.records.option_groups import StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Finish

FindingKind = Literal["form", "length", "finish", "text", "prompt", "count", "stop", "tokens"]
HINTS: Mapping[FindingKind, str] = {
    "form": (
        "see that the server honours structured output: a reasoning parser, or a server that does"
        " not know the field, leaves the form out"
    ),
    "length": "see what limits the server sets of its own, or ask for as many tokens as it gives",
    "finish": (
        "see what stands between pipegen and the server: the end that it names is not the end of"
        " these tokens"
    ),
    "text": "see what stands between pipegen and the server: it changes the text of answers",
    "prompt": "see that the server runs the same checkpoint, and changes no prompts",
    "count": "see what extra_body asks for: pipegen asks for one answer at a time",
    "stop": "see that the server was sent the stop strings",
    "tokens": "see that the server was sent bad_words, and is not too old to know it",
}
"""What to do, by what is wrong."""
CUT_PROMPT = "see that the server has the context length of the model, and does not cut prompts"
"""What to do where a server ran fewer tokens than it was sent."""


class Finding(NamedTuple):
    """Something in an answer that was not asked for."""

    kind: FindingKind
    words: str
    """What came, and what was asked."""
    hint: str = ""
    """What to do, where that is more than `HINTS` says."""


class UntrimmedAnswer(NamedTuple):
    """One answer as it came, before white space is stripped and plugins trim it. None stands for
    what is not known.
    """

    text: str | None = None
    """The text, cut before its stop; without reasoning."""
    finish: str | None = None
    """How it ended, in the words of servers: `stop`, `length`, or another one for an answer that
    was given up.
    """
    token_ids: tuple[int, ...] | None = None
    """The generated ids, the ending one included."""
    token_count: int | None = None
    """How many tokens were generated, as the server counts them."""
    ending_ids: frozenset[int] | None = None
    """All ids that end the answer where it is generated: those that the server was sent."""
    stops: bool = False
    """Whether something else may have ended it: a stop string, or a token that ends no form."""
    spelled: str | None = None
    """The text of `token_ids`, by a tokenizer, as far as `text` shows it: without special tokens
    where these are hidden.
    """
    exact: bool = False
    """Whether `text` has to be `spelled` to the letter: both were made here."""
    room: int | None = None
    """How many tokens the server had room for behind the prompt."""
    prompt: tuple[int, ...] | None = None
    """The prompt as it was sent, or should have been rendered."""
    prompt_ran: tuple[int, ...] | None = None
    """The prompt as the server says that it ran it."""
    prompt_count: int | None = None
    """How many tokens the server counts in the prompt."""
    choices: int | None = None
    """How many completions came."""
    barred: Spellings = ()
    """The spellings of `bad_words`, where the engine was to leave them out."""
    called: bool = False
    """Whether it calls tools: then it has no form of its own."""


WORDS: Mapping[Finish, str] = {
    Finish.EOS: "stop",
    Finish.STOP_TOKEN: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
    Finish.PLUGIN: "plugin",
    Finish.ABORTED: "abort",
}
"""How a result ended, in the words of servers."""


def check_answer(answer: UntrimmedAnswer, options: GenerationOptions) -> tuple[Finding, ...]:
    """What in this answer does not obey its request, asked with these resolved options; empty where
    nothing is known to.
    """
    looks = _OF_TOKENS if answer.text is None else (*_OF_TOKENS, _text, _stop, _form)
    return tuple([finding for look in looks if (finding := look(answer, options)) is not None])


def disobeyed(
    answer: UntrimmedAnswer, options: GenerationOptions, server: str
) -> MalformedResponse | None:
    """The error of a row whose answer does not obey its request; None where it does."""
    findings = check_answer(answer, options)
    if not findings:
        return None
    message = "; ".join(finding.words for finding in findings)
    return MalformedResponse(
        f"the answer of {server} does not obey its request: {message}",
        hint=findings[0].hint or HINTS[findings[0].kind],
    )


def _count(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    samples = options.samples or 1
    if answer.choices is None or answer.choices == samples:
        return None
    return Finding(
        "count",
        f"{answer.choices} answers came, and {samples} {'was' if samples == 1 else 'were'} asked",
    )


def _prompt(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    sent, ran, count = answer.prompt, answer.prompt_ran, answer.prompt_count
    if sent is None:
        return None
    if ran is not None and ran != sent:
        return Finding(
            "prompt",
            f"the server ran a prompt of {len(ran)} tokens that differs from the {len(sent)} sent"
            f" at token {common_prefix(sent, ran)}",
            CUT_PROMPT if len(ran) < len(sent) else "",
        )
    if count is not None and count != len(sent):
        return Finding(
            "prompt",
            f"the server counts {count} tokens in the prompt, and {len(sent)} were sent",
            CUT_PROMPT if count < len(sent) else "",
        )
    return None


def _length(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    count = answer.token_count if answer.token_ids is None else len(answer.token_ids)
    least, most = options.min_new_tokens or 0, options.max_new_tokens
    if count is None:
        return None
    if answer.token_ids and answer.token_count is not None and count != answer.token_count:
        return Finding("length", f"{count} ids came, and the server counts {answer.token_count}")
    if most is not None and count > most:
        return Finding("length", f"{count} tokens came, and at most {most} were asked")
    if 0 < count < least and answer.finish in ("stop", "length"):
        return Finding(
            "length", f"the answer ended after {count} tokens, and at least {least} were asked"
        )
    cut_early = (
        answer.finish == "length"
        and most is not None
        and answer.room is not None
        and count < min(most, answer.room)
    )
    if cut_early and not _ended(answer, options):
        return Finding(
            "length",
            f"the answer was cut for its length after {count} tokens, and {most} were asked",
        )
    return None


def _ended(answer: UntrimmedAnswer, options: GenerationOptions) -> bool:
    """Whether the last id is one that ends the answer."""
    ids, ends = answer.token_ids or (), answer.ending_ids or ()
    return bool(ids) and ids[-1] in ends and len(ids) > (options.min_new_tokens or 0)


def _finish(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    ids, most = answer.token_ids, options.max_new_tokens
    if not ids or answer.ending_ids is None:
        return None
    if not answer.ending_ids.isdisjoint(ids[options.min_new_tokens or 0 : -1]):
        # it was asked to end there, and its end now is another one: what comes behind is not used
        return None
    if (
        answer.finish == "length"
        and most is not None
        and len(ids) < most
        and _ended(answer, options)
    ):
        return Finding(
            "finish",
            f"the finish is length after {len(ids)} tokens of {most}, and the last id, {ids[-1]},"
            " ends an answer",
        )
    if answer.finish == "stop" and not answer.stops and ids[-1] not in answer.ending_ids:
        return Finding("finish", f"the finish is stop, and the last id, {ids[-1]}, ends no answer")
    return None


def _tokens(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    ids = answer.token_ids or ()
    index = barred_in(ids, answer.barred) if answer.barred else None
    if index is None:
        return None
    return Finding("tokens", f"at token {index}, of the id {ids[index]}, a word of bad_words ends")


_OF_TOKENS = _count, _prompt, _length, _finish, _tokens
"""What is looked at where only ids came."""


def _text(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    text, spelled = answer.text, answer.spelled
    if text is None or spelled is None:
        return None
    # half a character at the end may be held back
    shown, expected = text.rstrip("\ufffd"), spelled.rstrip("\ufffd")
    alike = shown in (expected, expected.removeprefix(" ")) or (
        answer.stops and expected.startswith(shown)
    )
    if text == spelled or (alike and not answer.exact):
        return None
    return Finding("text", f"the text {text!r:.80} is not that of its ids, {spelled!r:.80}")


def _stop(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    stops: Sequence[str] = (options.stop.stop or ()) if options.stop is not None else ()
    if not stops or answer.text is None or options.min_new_tokens:
        return None
    left = cut(answer.text, stops).stop
    return None if left is None else Finding("stop", f"the text holds the stop string {left!r}")


def _form(answer: UntrimmedAnswer, options: GenerationOptions) -> Finding | None:
    if options.structured is None or answer.text is None or answer.called:
        return None
    stripped = options.decode is not None and bool(options.decode.strip_whitespace)
    wrong = wrong_form(
        answer.text,
        options.structured,
        complete=answer.finish == "stop" and not answer.stops,
        stripped=stripped,
    )
    if wrong:
        return Finding("form", wrong)
    spaces = (
        _spaces_within(answer.text)
        if answer.finish == "length" and options.structured.json_schema is not None
        else 0
    )
    if spaces >= max(_SPACES, len(answer.text) / 2):
        message = (
            f"the JSON ran into white space until its length ended it: {spaces} of"
            f" {len(answer.text)} characters"
        )
        return Finding("form", message, _NO_SPACES)
    return None


_SPACES = 16
"""So many characters of white space at the end of a JSON text, which are half of it at least, are
no indentation.
"""
_NO_SPACES = (
    'forbid white space in JSON: start vLLM with --structured-outputs-config \'{"backend":'
    ' "guidance", "disable_any_whitespace": true}\', and SGLang with'
    " --constrained-json-disable-any-whitespace"
)


def wrong_form(
    text: str, form: StructuredOptions, *, complete: bool = True, stripped: bool = False
) -> str:
    """What of a text is not of the form that was asked; empty where nothing is known to be.

    A text that is not `complete`, because its length or a stop ended it, need only be the start of
    one that has the form. White space about a `stripped` text is, or was, no part of it.

    >>> (
    ...     wrong_form("[1", StructuredOptions(json_schema={})),
    ...     wrong_form("[1", StructuredOptions(json_schema={}), complete=False),
    ... )
    ("'[1' is not JSON: Expecting ',' delimiter at character 2", '')
    """
    if form.choice is not None:
        strip = str.strip if stripped else str
        # a first space may not be shown
        texts = [
            strip(string) for choice in form.choice for string in (choice, choice.removeprefix(" "))
        ]
        shown = strip(text)
        right = shown in texts or (not complete and any(one.startswith(shown) for one in texts))
        return "" if right else f"{text!r:.80} is none of the {len(form.choice)} choices"
    if form.regex is not None:
        # a first space may not be shown
        tries = [matches(form.regex, string, cut=not complete) for string in (text, f" {text}")]
        return (
            ""
            if stripped or any(tries) or None in tries
            else f"{text!r:.80} does not match the regular expression {form.regex!r:.80}"
        )
    if form.json_schema is None:
        return ""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except json.JSONDecodeError as refusal:
        may_go_on = not complete and _begins_json(text, refusal)
        return (
            ""
            if may_go_on
            else f"{text!r:.80} is not JSON: {refusal.msg} at character {refusal.pos}"
        )
    except (ValueError, RecursionError) as refusal:
        if isinstance(refusal, _KeyTwice):
            return str(refusal)
        # a number of thousands of digits, or nested too deeply to be read
        return f"{text!r:.80} is not JSON: {refusal}" if isinstance(refusal, _NoNumber) else ""
    from pipegen.answer.json_check import wrong_in_json

    wrong = wrong_in_json(value, json.loads(str(form.json_schema)))
    number_goes_on = not complete and type(value) in (int, float)
    return f"the JSON is not as its schema says, {wrong}" if wrong and not number_goes_on else ""


def _spaces_within(text: str) -> int:
    """How many characters of white space a JSON text ends with that is neither whole nor within a
    string.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as refusal:
        return (
            0 if refusal.msg.startswith("Unterminated string") else len(text) - len(text.rstrip())
        )
    except (ValueError, RecursionError):  # it cannot be read here
        pass
    return 0


class _NoNumber(ValueError):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _NoNumber(f"{name} is no number of JSON")


class _KeyTwice(ValueError):
    pass


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs. Readers of JSON differ in which of two equal keys counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _KeyTwice(f"the JSON has the key {json.dumps(twice, ensure_ascii=False):.80} twice")
    return found


_PART = re.compile(r"-?\d*\.?\d*([eE][+-]?\d*)?\s*")


def _begins_json(text: str, refusal: json.JSONDecodeError) -> bool:
    """Whether JSON that cannot be read may be the start of some: what is wrong is that it ends."""
    left = text[refusal.pos :]
    if not left.strip() or refusal.msg.startswith("Unterminated string"):
        return True
    if any(word.startswith(left) for word in ("true", "false", "null")) or _PART.fullmatch(left):
        return True
    return refusal.msg.startswith("Invalid \\") and len(text) - refusal.pos < 6
