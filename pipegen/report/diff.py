"""Where two runs of the same requests differ: the first stage whose outputs differ, since later
stages follow from it.

>>> from pipegen.records.option_records import GenerationOptions
>>> from pipegen.records.options import resolve
>>> from pipegen.records.results import Finish
>>> from returns.result import Success
>>> options = resolve(GenerationOptions())
>>> one, other = (
...     GenerationResult(
...         text=text, raw_text=text, token_ids=(1, last), finish=Finish.EOS, options=options
...     )
...     for text, last in (("a", 2), ("b", 3))
... )
>>> first_difference(Success(one), Success(other))
Difference(stage='ids', first="2 tokens, at 1: 2; text at 0: 'a'", second="2 tokens, at 1: 3; text at 0: 'b'")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from returns.result import Success

from pipegen.core.slots import Slot, is_ok, live
from pipegen.records import strict_json
from pipegen.records.answer_parts import common_prefix
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import flat_values
from pipegen.records.results import GenerationResult

Name = TypeVar("Name")
WIDTH = 60
"""How many characters of a value are shown."""
BEFORE = 30
"""How many characters of a text are shown before the place where it differs."""


class Occurrence(NamedTuple):
    """A result by its id and, of equal ids, its number. Its text is for people alone, since an id
    may have the form of another one's text.

    >>> str(Occurrence("a", 1)), str(Occurrence("a", 2)), Occurrence("a [2]", 1) == ("a", 2)
    ('a', 'a [2]', False)
    """

    id: str
    number: int

    def __str__(self) -> str:
        return self.id if self.number == 1 else f"{self.id} [{self.number}]"


class Occurrences:
    """Results with equal ids, which their order distinguishes.

    >>> name_of = Occurrences()
    >>> [str(name_of(id)) for id in ("a", "b", "a", "a")]
    ['a', 'b', 'a [2]', 'a [3]']
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()
        """How often each id came."""

    def __call__(self, id: object) -> Occurrence:
        name = str(id)
        self.counts[name] += 1
        return Occurrence(name, self.counts[name])


class Difference(NamedTuple):
    """The first stage that differs, and the value of each side there."""

    stage: str
    """The first stage that differs."""
    first: str
    """What the first file has there."""
    second: str
    """What the second file has there."""


class Compared(NamedTuple):
    """One request, by its id, and where its two results differ; None if they are equal."""

    id: str
    """The id of the request."""
    difference: Difference | None
    """The first difference; None where both agree."""


def _ids(first_ids: Sequence[int], second_ids: Sequence[int]) -> tuple[str, str] | None:
    """None also if a side has no ids, as in brief files."""
    if first_ids == second_ids or not first_ids or not second_ids:
        return None
    at = common_prefix(first_ids, second_ids)

    def shown(ids: Sequence[int]) -> str:
        return f"{len(ids)} tokens, at {at}: {ids[at] if at < len(ids) else 'the end'}"

    return shown(first_ids), shown(second_ids)


def _ids_in_context(first: GenerationResult, second: GenerationResult) -> tuple[str, str] | None:
    """The generated ids, and the texts where these differ too."""
    ids, texts = _ids(first.token_ids, second.token_ids), _texts(first.raw_text, second.raw_text)
    return (
        ids
        if ids is None or texts is None
        else (f"{ids[0]}; text {texts[0]}", f"{ids[1]}; text {texts[1]}")
    )


def _texts(first_text: str, second_text: str) -> tuple[str, str] | None:
    if first_text == second_text:
        return None
    at = common_prefix(first_text, second_text)
    start = max(0, at - BEFORE)
    before = ("..." if start else "") + first_text[start:at]
    left, right = (
        f"at {at}: {before + text[at : at + WIDTH] + ('...' if len(text) > at + WIDTH else '')!r}"
        for text in (first_text, second_text)
    )
    return left, right


def _values(first: object, second: object) -> tuple[str, str] | None:
    return None if first == second else (repr(first)[:WIDTH], repr(second)[:WIDTH])


UNKNOWN = GenerationOptions()
"""The options of a result whose file tells none, as one of brief lines or of a batch."""


def _options(first: GenerationResult, second: GenerationResult) -> tuple[str, str] | None:
    if UNKNOWN in (first.options, second.options):
        return None
    left, right = flat_values(first.options), flat_values(second.options)
    name = next((name for name in left if left[name] != right[name]), None)
    return (
        None
        if name is None
        else (f"{name}={left[name]!r}"[:WIDTH], f"{name}={right[name]!r}"[:WIDTH])
    )


def _raw_texts(first: GenerationResult, second: GenerationResult) -> tuple[str, str] | None:
    if UNKNOWN in (first.options, second.options):
        return None
    return _texts(first.raw_text, second.raw_text)


def _endings(first: GenerationResult, second: GenerationResult) -> tuple[str, str] | None:
    """Counts and stops are compared where both sides have them."""
    counted = first.prompt_tokens and second.prompt_tokens
    stops = None not in (first.stop, second.stop) or UNKNOWN not in (first.options, second.options)
    left, right = (
        (result.finish.value, result.stop if stops else None)
        + ((result.prompt_tokens, result.completion_tokens) if counted else ())
        for result in (first, second)
    )
    return _values(left, right)


def _calls(result: GenerationResult) -> str:
    """Its tool calls as text, without their ids, which are new ones in each run."""
    functions = [call.get("function") for call in result.tool_calls]
    return "\n".join(
        f"{function.get('name')}({_json(strict_json.loaded(function.get('arguments'), dict))})"
        if isinstance(function, Mapping)
        else repr(function)
        for function in functions
    )


def _json(value: object) -> str:
    return strict_json.dump(strict_json.plain(value))


STAGES: Mapping[str, Callable[[GenerationResult, GenerationResult], tuple[str, str] | None]] = {
    "prompt ids": lambda left, right: _ids(left.prompt_token_ids, right.prompt_token_ids),
    "grid": lambda left, right: (
        _values(left.image_grid_thw, right.image_grid_thw)
        if left.image_grid_thw and right.image_grid_thw
        else None
    ),
    "options": _options,
    "ids": _ids_in_context,
    "raw text": _raw_texts,
    "text": lambda left, right: _texts(left.text, right.text),
    "reasoning": lambda left, right: _texts(left.reasoning or "", right.reasoning or ""),
    "calls": lambda left, right: _texts(_calls(left), _calls(right)),
    "finish": _endings,
}
"""In the order in which a result is made; `finish` also compares the stop and the token counts.
What a file does not tell is not compared."""


def first_difference(
    first: Slot[GenerationResult], second: Slot[GenerationResult], *, ignore: Collection[str] = ()
) -> Difference | None:
    """The first stage at which two slots differ, or None. Errors are equal if they are of one type;
    rounds and samples are compared one by one, earlier rounds before the last one.

    Stages in `ignore` are not compared.
    """
    if not (is_ok(first) and is_ok(second)):
        outcomes = _outcome(first), _outcome(second)
        return None if outcomes[0] == outcomes[1] else Difference("outcome", *outcomes)
    differences = _differences(first.unwrap(), second.unwrap(), ignore)
    return next((difference for difference in differences if difference is not None), None)


def _differences(
    left: GenerationResult, right: GenerationResult, ignore: Collection[str]
) -> Iterator[Difference | None]:
    both, are_whole = (left, right), UNKNOWN not in (left.options, right.options)
    if are_whole or (left.rounds and right.rounds):  # lines of a batch have the last one alone
        yield from _of_parts("rounds", [[*map(Success, one.rounds)] for one in both], ignore)
    for stage, differs in STAGES.items():
        difference = None if stage in ignore else differs(left, right)
        yield None if difference is None else Difference(stage, *difference)
    samples = [one.completions if one.samples else () for one in both]
    yield from _of_parts("samples", samples, ignore)


def _of_parts(
    name: str, sides: Sequence[Sequence[Slot[GenerationResult]]], ignore: Collection[str]
) -> Iterator[Difference | None]:
    """The differences of rounds or samples, pair by pair, and of how many there are."""
    for pair in zip(*sides, strict=False):
        parts = live(pair)
        absent = [
            stage
            for stage, of in _NOT_IN_TABLES.items()
            if UNKNOWN in [part.options for part in parts] and len({bool(of(p)) for p in parts}) > 1
        ]
        yield first_difference(*pair, ignore={*ignore, *absent})
    counts = [str(len(side)) for side in sides]
    yield None if counts[0] == counts[1] else Difference(name, *counts)


_NOT_IN_TABLES = {"reasoning": attrgetter("reasoning"), "calls": attrgetter("tool_calls")}
"""What tables do not have of rounds and samples."""


def _outcome(slot: Slot[GenerationResult]) -> str:
    return "a result" if is_ok(slot) else type(slot.failure()).__name__


def compare(
    first: Mapping[Name, Slot[GenerationResult]],
    second: Mapping[Name, Slot[GenerationResult]],
    *,
    ignore: Collection[str] = (),
) -> Iterator[Compared]:
    """Every request of either run: those of the first in order, then those that only the second
    has.
    """
    for name, slot in first.items():
        yield Compared(
            str(name),
            (
                first_difference(slot, second[name], ignore=ignore)
                if name in second
                else Difference("outcome", _outcome(slot), "not there")
            ),
        )
    for name, slot in second.items():
        if name not in first:
            yield Compared(str(name), Difference("outcome", "not there", _outcome(slot)))


def summary(compared: Sequence[Compared]) -> dict[str, int]:
    """How many requests are equal, and how many differ at each stage.

    >>> summary(
    ...     [Compared("a", None), Compared("b", Difference("ids", "", "")), Compared("c", None)]
    ... )
    {'requests': 3, 'equal': 2, 'ids': 1}
    """
    parted = Counter(
        comparison.difference.stage for comparison in compared if comparison.difference is not None
    )
    order = [stage for stage in ("outcome", "rounds", *STAGES, "samples") if stage in parted]
    return {
        "requests": len(compared),
        "equal": len(compared) - sum(parted.values()),
        **{stage: parted[stage] for stage in order},
    }
