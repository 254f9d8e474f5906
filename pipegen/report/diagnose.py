"""Judge a server by its greedy answers: which faults do they show, and what does each name rest on?

Answers by chat and answers by token ids tell much apart. The server renders the first itself and
fills in its own defaults; the second leave it neither. What both show alike is no default. Why the
tokens are others is named in `causes`.

>>> same = Answer(
...     id="a",
...     way="chat",
...     expected=(1, 2),
...     prompt_token_ids=(1, 2),
...     token_ids=(7, 3),
...     logprobs=(-0.1, -0.2),
...     likeliest=((7, -0.1), (3, -0.2)),
... )
>>> other = Answer(
...     id="b",
...     way="chat",
...     expected=(1, 2),
...     prompt_token_ids=(1, 9, 2),
...     token_ids=(7,),
...     logprobs=(-5.0,),
...     likeliest=((3, -0.1),),
... )
>>> judge([same]), [fault.kind for fault in judge([same, other])]
((), ['template'])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipegen.report.causes import FEW, GOOD, Case, Trials, cause_of, differs
from pipegen.report.verdict import (
    Answer,
    Decode,
    Fault,
    Kind,
    NoiseLimits,
    Precision,
    faults_of,
    limits_of,
    other_prompt_in_words,
    partings,
)


def judge(
    answers: Sequence[Answer],
    precision: Precision = "float32",
    decode: Decode = str,
    *,
    limits: NoiseLimits | None = None,
    trials: Trials | None = None,
) -> tuple[Fault, ...]:
    """What is wrong with the server that gave these answers, taken to compute in that precision.
    `decode` shows ids.

    Answers to another prompt than the expected one show the prompt's fault alone. Weights and
    precision are judged by the answers to ids, where there are any; by chat what counts beside them
    is what is not the same by ids.
    """
    case = Case(precision, limits or limits_of(precision), decode, trials or Trials())
    chat, by_ids = ([answer for answer in answers if answer.way == way] for way in ("chat", "ids"))
    others = [answer for answer in chat if answer.other_prompt]
    same = [answer for answer in chat if not answer.other_prompt]
    forms = [*_of_forms([*same, *by_ids])]
    if any(fault.kind == "text" for fault in forms) or any(
        answer.wrong and answer.by_text for answer in same
    ):
        # their ids are those of a text that is known to be wrong
        same = [answer for answer in same if not answer.by_text]
    computed = cause_of(case, by_ids, few=FEW)
    twins, margin = {answer.id: answer for answer in by_ids}, case.limits.margin
    odd = {answer.id for answer in by_ids if answer.runs_on is not None} | {
        answer.id for answer, _ in partings(by_ids, margin)
    }
    apart = [
        answer
        for answer in same
        # where the way by ids is wrong too, what was asked by chat alone shows that too
        if (computed is None or answer.id in twins)
        and (answer.id not in odd or differs(answer, twins[answer.id], margin))
    ]
    default = cause_of(
        case,
        apart,
        few=1 if by_ids else FEW,
        of=len(same),
        default=bool(by_ids) and computed is None,
    )
    if computed is not None and (
        computed.kind == "weights"
        or (default is not None and default.kind in ("precision", "weights", "unknown", "chat"))
    ):
        default = None
    prompts = _of_prompts(chat, others, decode)
    faults = [*prompts, *forms, *(fault for fault in (default, computed) if fault is not None)]
    if prompts and prompts[0].kind == "order":
        # what is asked again gets the answers of other requests than before
        faults = [fault for fault in faults if fault.kind != "sampling"]
    return tuple(one_each(faults))


def one_each(faults: Iterable[Fault]) -> list[Fault]:
    """The first fault of each kind."""
    firsts: dict[Kind, Fault] = {}
    for fault in faults:
        firsts.setdefault(fault.kind, fault)
    return [*firsts.values()]


def _of_prompts(chat: Sequence[Answer], others: Sequence[Answer], decode: Decode) -> list[Fault]:
    """Prompts that are cut are all longer than any that the server ran; a template shows in short
    prompts too.
    """
    most = max((answer.counted for answer in chat), default=0)
    right = [answer for answer in chat if not answer.images and not answer.other_prompt]
    cut = [answer for answer in others if answer.cut and len(answer.expected) > most]
    pieces = {len(answer.expected) - answer.counted for answer in cut}
    kind: Kind = "template"
    evidence = "the prompt's ids, or their count, as the server tells"
    if _are_swapped(others):
        kind, evidence = "order", "the prompts, or their counts, are those of other requests"
    elif len(right) >= GOOD and all(answer.images for answer in others):
        kind, evidence = "images", "the prompts of requests with images alone are others"
    elif len(cut) == len(others) and (len(cut) < len(chat) or len(pieces) > 1):
        kind, evidence = "context", "only prompts above some length are shorter at the server"
    wrong = [
        (
            answer,
            other_prompt_in_words(
                answer.expected,
                () if kind == "context" else answer.prompt_token_ids,
                answer.counted,
                decode,
            ),
        )
        for answer in others
    ]
    return faults_of(kind, wrong, len(chat), evidence)


def _are_swapped(others: Sequence[Answer]) -> bool:
    """Whether answers have the prompts of one another, by their ids or else by their counts."""
    if all(answer.prompt_token_ids for answer in others):
        ran = Counter(answer.prompt_token_ids for answer in others)
        return len(others) >= FEW and ran == Counter(answer.expected for answer in others)
    counts = Counter(answer.counted for answer in others)
    return len(others) >= 2 * FEW and counts == Counter(len(answer.expected) for answer in others)


_FORMS: Mapping[Kind, str] = {
    "length": "finish and counts, beside what was asked",
    "text": "the text, beside the text of the ids that came with it",
    "end tokens": "the answers end at one token, which is none of the model's end tokens",
    "logprobs": "with log probabilities the answer cannot be read, and without them it can",
}
"""What does not obey a request, and what shows it."""


def _of_forms(answers: Sequence[Answer]) -> Iterator[Fault]:
    """What does not obey its request, whatever the weights."""
    stopped = [answer for answer in answers if any(kind == "finish" for kind, _ in answer.wrong)]
    elsewhere = (
        len(stopped) >= FEW
        and len({answer.token_ids[-1:] for answer in stopped}) == 1
        and all(answer.finish != "length" for answer in stopped)
    )
    kinds = {"finish": "end tokens" if elsewhere else "length", "count": "length"}
    for kind, evidence in _FORMS.items():
        wrong = [
            (answer, words[0])
            for answer in answers
            if (words := [words for name, words in answer.wrong if kinds.get(name, name) == kind])
        ]
        yield from faults_of(kind, wrong, len(answers), evidence)
