"""Every family of the installed transformers beside pipegen: whether a row's greedy ids are those
of the model's plain forward of that row alone, without a cache.

    cd tests && python -m support.families results.json            # every family
    cd tests && python -m support.families results.json llama blt  # these, anew
    # docs/contributing/families.json
    cd tests && python -m support.families --grouped results.json

The models are those of `support.small_families`. Rows go beyond their windows. Some end while
others run, and waiting ones take their places.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from support.small_families import SPECIAL, VOCABULARY, family_names, model_of, tokenizer_of

__all__ = ["NEW", "Outcome", "compared", "grouped", "outcome_of"]

NEW = (12, 5, 12, 4, 9, 12)
"""How many tokens each row gets."""
TIE = 1e-5
"""A margin of the plain forward below which either token is right."""
CLOSE = 2e-3
"""How far log probabilities may be from those of the plain forward."""
_SECONDS = 120
_BEYOND: Mapping[str, str] = {
    "doge": "keep_window_size",
    "moshi": "sliding_window",
    "unlimited_ocr": "sliding_window, of generated tokens",
}
"""Families whose plain forward differs from their own `generate`, which pipegen follows, in rows
beyond this setting.
"""
_BY_CHANCE = ("reformer",)
"""Families that hash at random."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a family."""

    result: str
    """- `equal`: all rows in one call, and each alone.
    - `equal one by one`: each alone only.
    - `wrong`: a row is another, even alone.
    - `as generate`: it is another, and that of transformers' own `generate`.
    - `refused`: pipegen says in words why not.
    - `raised`: `pg.run` raises what no caller expects.
    - `not made`: there is no small model.
    """
    why: str = ""
    way: str = ""
    """How the rows are read, where not together."""


class _Refused(Exception):
    """Why pipegen does not run the rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A row of the plain forward: for each step the token, its margin and its log probability."""

    ids: list[int]
    margins: list[float]
    logprobs: list[float]


def rows_of() -> list[list[int]]:
    """Six rows of different lengths; the last four begin alike, which pays to be read once."""
    drawn = random.Random(0)

    def some(count: int) -> list[int]:
        return [drawn.randrange(SPECIAL, VOCABULARY) for _ in range(count)]

    shared = some(48)
    return [some(5), some(14), *(shared + some(count) for count in (3, 9, 17, 26))]


def plain(model: Any, row: Sequence[int], new: int) -> _Row:
    """What the forward of the whole row gives, without a cache, token for token."""
    import torch

    made = _Row([], [], [])
    with torch.no_grad():
        for _ in range(new):
            ids = torch.tensor([[*row, *made.ids]])
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
            best = logits.topk(2)
            made.ids.append(int(best.indices[0]))
            made.margins.append(float(best.values[0] - best.values[1]))
            made.logprobs.append(float(logits.log_softmax(-1)[made.ids[-1]]))
    return made


def differing(theirs: Sequence[_Row], ours: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The rows that differ, each with the step at which it does; at a tie none does."""
    steps = [
        (number, next((at for at, token in enumerate(row.ids) if token != ids[at]), None))
        for number, (row, ids) in enumerate(zip(theirs, ours, strict=True))
    ]
    return [
        (number, step)
        for number, step in steps
        if step is not None and theirs[number].margins[step] >= TIE
    ]


def compared(model: Any, new: Sequence[int] = NEW, **settings: Any) -> Outcome:
    """The outcome for a model in memory, whose attention is pipegen's where it is for a folder's;
    `settings` are the engine's.
    """
    from pipegen.backends.hf.attention import use_grouped

    rows = rows_of()
    try:
        expected = [plain(model, row, count) for row, count in zip(rows, new, strict=True)]
    except Exception as failed:  # noqa: BLE001 - code of each family in transformers
        return _without_expected(model, rows, summary(failed))
    use_grouped(model)
    with _said() as said:
        try:
            outcome = _outcome(model, rows, new, expected, settings)
        except _Refused as refused:
            return Outcome("refused", str(refused))
        except Exception as failed:  # noqa: BLE001 - as above
            return Outcome("raised", summary(failed))
    return dataclasses.replace(outcome, way=next(iter(said), ""))


def _outcome(
    model: Any,
    rows: Sequence[Sequence[int]],
    new: Sequence[int],
    expected: Sequence[_Row],
    settings: Mapping[str, Any],
) -> Outcome:
    route = _route(model, batch_size=4, **settings)
    together = differing(expected, [each.token_ids for each in answers(route, rows, new)])
    one = _route(model, batch_size=1, prefix_memory_bytes=0, **settings)
    alone = [
        answers(one, [row], [count])[0].token_ids for row, count in zip(rows, new, strict=True)
    ]
    wrong = differing(expected, alone)
    if wrong:
        words = f"(row, step) alone: {wrong}, together: {together}"
        same = all(
            ids == tuple(theirs[0])
            for ids, theirs in zip(alone, _generated(model, rows, new), strict=True)
        )
        return Outcome("as generate" if same else "wrong", words)
    if together:
        return Outcome("equal one by one", f"(row, step) together: {together}")
    # once more, behind what was kept; and what is wrong without another greedy id shows
    apart = _apart(expected, [_logprobs(each) for each in answers(route, rows, new, logprobs=True)])
    if apart <= CLOSE:
        return Outcome("equal")
    words = f"log probabilities differ by {apart:.4f}"
    of_generate = _apart(expected, [logprobs for _, logprobs in _generated(model, rows, new)])
    if apart <= min(1.5 * of_generate, 5 * CLOSE):  # a scan is rounded otherwise than its steps
        return Outcome("equal", f"{words}, those of generate by {of_generate:.4f}")
    return Outcome("equal one by one", words)


def _without_expected(model: Any, rows: Sequence[Sequence[int]], why: str) -> Outcome:
    """The outcome where the plain forward takes no rows of text alone."""
    try:
        answers(_route(model, batch_size=4), rows, [2] * len(rows))
    except _Refused as refused:
        return Outcome("refused", str(refused))
    except Exception as failed:  # noqa: BLE001 - code of each family in transformers
        return Outcome("raised", summary(failed))
    return Outcome("wrong", f"pipegen answers what transformers' forward does not: {why}")


def _route(model: Any, **settings: Any) -> Any:
    import pipegen as pg

    try:
        return pg.backends.hf(model, tokenizer=tokenizer_of(), **settings)
    except pg.InvalidField as refused:
        raise _Refused(str(refused)) from refused


def answers(
    route: Any, rows: Sequence[Sequence[int]], new: Sequence[int], **options: Any
) -> list[Any]:
    """The results of rows. Raises `_Refused` for the first that has none."""
    import pipegen as pg

    requests: Any = [
        {"prompt_token_ids": list(row), "options": {"max_new_tokens": count}}
        for row, count in zip(rows, new, strict=True)
    ]
    try:
        slots = pg.run(route, requests, {"ignore_eos": True, **options})
    except (pg.CallFailed, pg.InvalidField) as refused:
        raise _Refused(f"{type(refused).__name__}: {refused}") from refused
    for slot in slots:
        if not pg.is_ok(slot):
            raise _Refused(slot.failure().message)
    return [slot.unwrap() for slot in slots]


def _logprobs(result: Any) -> list[float]:
    return [token.logprob for token in result.logprobs]


def _apart(expected: Sequence[_Row], ours: Sequence[Sequence[float]]) -> float:
    return max(
        abs(first - second)
        for row, mine in zip(expected, ours, strict=True)
        for first, second in zip(row.logprobs, mine, strict=True)
    )


def _generated(
    model: Any, rows: Sequence[Sequence[int]], new: Sequence[int]
) -> Iterator[tuple[list[int], list[float]]]:
    """The ids of transformers' own `generate` for each row alone, and their log probabilities."""
    import torch

    for row, count in zip(rows, new, strict=True):
        ids = torch.tensor([row])
        made = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new_ids = made.sequences[0, len(row) :].tolist()
        yield (
            new_ids,
            [
                float(logits[0].float().log_softmax(-1)[token])
                for logits, token in zip(made.logits, new_ids, strict=True)
            ],
        )


@contextmanager
def _said() -> Iterator[list[str]]:
    """How the log says that rows are read."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.extend(  # type: ignore[method-assign]
        part for part in record.getMessage().split(": ") if part.startswith(("rows ", "all rows"))
    )
    log = logging.getLogger("pipegen")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


def outcome_of(family: str, new: Sequence[int] = NEW) -> Outcome:
    """The outcome of a family's small model."""
    try:
        model = model_of(family)
    except Exception as failed:  # noqa: BLE001 - code of each family in transformers
        return Outcome("not made", summary(failed))
    return compared(model, new)


def summary(failed: Exception) -> str:
    """An exception in a line, with the places that it passed last."""
    places = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(failed.__traceback__)
    ]
    words = " ".join(str(failed).split())[:300]
    return f"{type(failed).__name__}: {words} ({' '.join(places[-6:])})"


def in_child(family: str) -> dict[str, Any]:
    """The outcome of a family, computed in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(_SECONDS)
        with open(os.devnull, "w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            outcome = outcome_of(family)
            with os.fdopen(write, "w") as pipe:
                json.dump(dataclasses.asdict(outcome), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = Outcome("raised", f"the process ended with status {status}")
    made: dict[str, Any] = json.loads(text) if text else dataclasses.asdict(ended)
    return made


_FEW_WORDS = (
    ("is no causal model", "each token sees those behind it"),
    ("is an encoder-decoder", "encoder-decoder"),
    ("attention or positions differ", "its positions are not those that `generate` hands over"),
    ("cannot be run", "its own `generate` does not run"),
    ("it has -1 positions", "its configuration names no number of positions"),
    ("pixel_values", "wants an image with every prompt"),
    ("image_outputs", "its forward raises, by a defect of transformers"),
    ("attribute 'generate'", "it has no `generate`"),
    ("get_seq_length", "it drafts for another model"),
)
"""What stands in a refusal, in few words."""


def grouped(results: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The families of the outcomes of `main`, by how their rows are read; the refused ones last.

    >>> grouped(
    ...     {
    ...         "bert": {"result": "refused", "why": "Bert is no causal model", "way": ""},
    ...         "llama": {"result": "equal", "why": "", "way": ""},
    ...     }
    ... )
    {'are read together': ['llama'], 'refused: each token sees those behind it': ['bert']}
    """
    groups: dict[str, list[str]] = {}
    for family, outcome in results.items():
        words = _words(family, **outcome)
        if words:
            groups.setdefault(words, []).append(family.replace("+decoder", " as a decoder"))
    order = sorted(groups, key=lambda words: (words.startswith("refused"), "are read" not in words))
    return {words: sorted(groups[words]) for words in order}


def _words(family: str, result: str, why: str, way: str) -> str:
    """What is reported of a family; nothing where it was not tried."""
    if family in _BY_CHANCE:
        return "are other ones at each run: the model hashes at random"
    if result == "as generate":
        return f"are those of `generate`; of the plain forward too, up to `{_BEYOND[family]}`"
    few = next((few for words, few in _FEW_WORDS if words in why), why)
    if result == "refused":
        return f"refused: {few}"
    if result == "equal":
        return way.partition(",")[0].removeprefix("rows ") or "are read together"
    return "" if result == "not made" else f"**{result}**: {few}"


def main(arguments: Sequence[str]) -> None:
    import transformers

    import_module("pipegen.backends.hf.computing")  # once, before there are children
    if arguments[0] == "--grouped":
        print(json.dumps(grouped(json.loads(Path(arguments[1]).read_text())), indent=1))
        return
    hf: Any = transformers  # its own annotations are partial
    hf.logging.set_verbosity_error()
    path = Path(arguments[0])
    known = json.loads(path.read_text()) if path.exists() else {}
    for family in arguments[1:] or family_names():
        known[family] = in_child(family)
        path.write_text(json.dumps(known, indent=1))
        print(family, *known[family].values(), sep="\t", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
