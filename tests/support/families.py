"""Every family of the installed transformers beside pipegen: whether a row's greedy ids are those
of the model's plain forward of that row alone, without a cache.

    cd tests && python -m support.families results.json          # every family
    cd tests && python -m support.families results.json llama blt
    cd tests && python -m support.families --table results.json  # as markdown

The models are those of `support.small_families`; rows go beyond their windows. Rows end while others
run, and waiting ones take their places.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.small_families import SPECIAL, VOCABULARY, family_names, model_of, tokenizer_of

__all__ = ["Outcome", "Reference", "compared", "outcome_of", "rows_of", "table"]

NEW = (12, 5, 12, 4, 9, 12)
"""How many tokens each row gets."""
TIE = 1e-5
"""A margin of the reference below which either token is right."""
CLOSE = 2e-3
"""How far log probabilities may be from the reference's."""


def rows_of() -> list[list[int]]:
    """Six rows of different lengths; the last four begin alike, which pays to be read once."""
    import random

    drawn = random.Random(0)

    def some(count: int) -> list[int]:
        return [drawn.randrange(SPECIAL, VOCABULARY) for _ in range(count)]

    shared = some(48)
    return [some(5), some(14), *(shared + some(count) for count in (3, 9, 17, 26))]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a family."""

    result: str
    """`equal`, `equal one by one`, `wrong`, `refused` or `error`."""
    why: str = ""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Reference:
    """The plain forward of whole rows."""

    def __init__(self, model: Any, rows: Sequence[Sequence[int]], new: Sequence[int] = NEW) -> None:
        import torch

        self.ids: list[list[int]] = []
        self.margins: list[list[float]] = []
        self.logprobs: list[list[float]] = []
        with torch.no_grad():
            for row, count in zip(rows, new, strict=False):
                ids, margins, logprobs = list(row), list[float](), list[float]()
                for _ in range(count):
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                    best = logits.float().topk(2)
                    margins.append(float(best.values[0] - best.values[1]))
                    ids.append(int(best.indices[0]))
                    logprobs.append(float(logits.float().log_softmax(-1)[ids[-1]]))
                self.ids.append(ids[len(row) :])
                self.margins.append(margins)
                self.logprobs.append(logprobs)

    def differing(self, ours: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """The rows that differ, each with the step; a tie of the reference is none."""
        found = []
        for row, (theirs, mine) in enumerate(zip(self.ids, ours, strict=True)):
            step = next(
                (
                    at
                    for at, pair in enumerate(zip(theirs, mine, strict=True))
                    if pair[0] != pair[1]
                ),
                None,
            )
            if step is not None and self.margins[row][step] >= TIE:
                found.append((row, step))
        return found


def compared(
    model: Any,
    rows: Sequence[Sequence[int]] | None = None,
    new: Sequence[int] = NEW,
    *,
    why: bool = False,
) -> Outcome:
    """The outcome for a model. `why`: where rows are wrong, try which ways give right ones."""
    import torch

    import pipegen as pg
    from pipegen.backends.hf.attention import use_grouped

    rows = rows or rows_of()
    tokenizer = tokenizer_of()
    try:
        reference = Reference(model, rows, new)
    except Exception as failed:  # code of each family in transformers
        return _without_reference(model, rows, _summary(failed))
    more: dict[str, Any] = {
        "distinct": len({token for ids in reference.ids for token in ids}),
        "margin": min(min(margins) for margins in reference.margins),
    }
    if not all(value == value for margins in reference.margins for value in margins):
        return Outcome("error", "the plain forward gives no numbers", more)
    use_grouped(model)

    def answers(rows: Sequence[Sequence[int]], route: Any, **options: Any) -> Any:
        return _answers(route, rows, new, **options)

    def tried(rows: Sequence[Sequence[int]], *, alone: bool = False, **settings: Any) -> Any:
        route = pg.backends.hf(model, tokenizer=tokenizer, **{"batch_size": 4, **settings})
        try:
            if alone:
                return [
                    result.token_ids
                    for row, count in zip(rows, new, strict=False)
                    for result in _answers(route, [row], [count])
                ]
            return [result.token_ids for result in answers(rows, route)]
        finally:
            more["shares_nothing"] = getattr(route.engine.work, "shares_nothing", "")

    def attempt(make: Any) -> tuple[list[tuple[int, int]] | None, str]:
        try:
            return make(), ""
        except (_Refused, pg.InvalidField) as refused:
            return None, f"{refused}"[:400]
        except pg.CallFailed as refused:
            return None, f"{type(refused).__name__}: {refused}"[:400]

    together, refused = attempt(lambda: reference.differing(tried(rows)))
    alone, alone_refused = attempt(
        lambda: reference.differing(tried(rows, alone=True, prefix_memory_bytes=0))
    )
    more["together"] = together if refused == "" else refused
    more["alone"] = alone if alone_refused == "" else alone_refused
    if refused and alone_refused:
        return Outcome("refused", refused, more)
    if together == [] and alone == []:
        # kept rows are continued, and small differences show
        def scored(*, alone: bool = False) -> Any:
            settings: Any = {"prefix_memory_bytes": 0} if alone else {}
            route = pg.backends.hf(
                model, tokenizer=tokenizer, batch_size=1 if alone else 4, **settings
            )
            _ = answers(rows, route)
            results = answers(rows, route, logprobs=True)
            return max(
                abs(ours.logprob - theirs)
                for result, right in zip(results, reference.logprobs, strict=True)
                for ours, theirs in zip(result.logprobs, right, strict=True)
            )

        apart, failed = attempt(scored)
        more["apart"] = apart if not failed else failed
        if failed:
            return Outcome("wrong", f"again, with logprobs: {failed}", more)
        if apart <= CLOSE:
            return Outcome("equal", "", more)
        more["generate apart"] = theirs = _generated_apart(model, rows, new, reference)
        if apart <= 1.5 * theirs:
            return Outcome("equal", f"log probabilities of generate differ by {theirs:.4f}", more)
        more["apart alone"], failed = attempt(lambda: scored(alone=True))
        words = f"log probabilities differ by {apart:.4f}"
        if not failed and more["apart alone"] <= CLOSE:
            return Outcome("equal one by one", words, more)
        return Outcome("wrong", words, more)
    if why:
        short = min(map(len, rows[2:]))
        equal = [list(row[:short]) for row in rows[2:]]
        if ungroup(model):
            more["ungrouped together"] = attempt(lambda: reference.differing(tried(rows)))
            more["ungrouped alone"] = attempt(
                lambda: reference.differing(tried(rows, alone=True, prefix_memory_bytes=0))
            )
        short_reference = Reference(model, equal, new)
        more["ungrouped without prefixes"] = attempt(
            lambda: reference.differing(tried(rows, prefix_memory_bytes=0))
        )
        more["ungrouped one length"] = attempt(
            lambda: short_reference.differing(tried(equal, prefix_memory_bytes=0))
        )
        more["ungrouped generate"] = attempt(
            lambda: reference.differing(_generated(model, rows, new))
        )
    if alone == []:
        return Outcome("equal one by one", refused or f"rows {together}", more)
    if alone_refused:
        return Outcome("wrong", f"alone {alone_refused}", more)
    return Outcome("wrong", f"alone {alone}, together {together if not refused else refused}", more)


def _answers(
    route: Any, rows: Sequence[Sequence[int]], new: Sequence[int], **options: Any
) -> list[Any]:
    """The results of rows. Raises `_Refused` for the first that has none."""
    import pipegen as pg

    requests: Any = [
        {"prompt_token_ids": list(row), "options": {"max_new_tokens": count}}
        for row, count in zip(rows, new, strict=False)
    ]
    results = []
    for slot in pg.run(route, requests, {"ignore_eos": True, **options}):
        if not pg.is_ok(slot):
            error = slot.failure()
            raise _Refused(f"{type(error).__name__}: {error}"[:400])
        results.append(slot.unwrap())
    return results


def _without_reference(model: Any, rows: Sequence[Sequence[int]], why: str) -> Outcome:
    """The outcome for a model whose plain forward takes no rows of text alone."""
    import pipegen as pg

    try:
        route = pg.backends.hf(model, tokenizer=tokenizer_of(), batch_size=4)
        _ = _answers(route, rows, [2] * len(rows))
    except (_Refused, pg.InvalidField, pg.CallFailed) as refused:
        return Outcome("refused", str(refused)[:400], {"reference": why})
    except Exception as failed:
        return Outcome("error", f"pipegen raises {_summary(failed)}", {"reference": why})
    return Outcome("wrong", f"pipegen answers, transformers does not: {why}")


def ungroup(model: Any) -> bool:
    """Take `use_grouped` back; whether it had done something."""
    from pipegen.backends.hf.attention import NAME

    text = model.config.get_text_config()
    if text._attn_implementation != NAME:
        return False
    part = next(
        (name for name in model.config.sub_configs if getattr(model.config, name) is text), None
    )
    model.set_attn_implementation("sdpa" if part is None else {part: "sdpa"})
    return True


def _generated(model: Any, rows: Sequence[Sequence[int]], new: Sequence[int]) -> list[list[int]]:
    """What transformers' own `generate` gives for each row alone."""
    import torch

    out = []
    for row, count in zip(rows, new, strict=True):
        ids = torch.tensor([row])
        whole = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
            eos_token_id=None,
        )
        out.append(whole[0, len(row) :].tolist())
    return out


def _generated_apart(
    model: Any, rows: Sequence[Sequence[int]], new: Sequence[int], reference: Reference
) -> float:
    """How far the log probabilities of transformers' own `generate` are from the reference's."""
    import torch

    apart = 0.0
    for row, count, right in zip(rows, new, reference.logprobs, strict=True):
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
        for step, theirs in enumerate(right):
            token = made.sequences[0, len(row) + step]
            apart = max(apart, abs(float(made.logits[step][0].log_softmax(-1)[token]) - theirs))
    return apart


class _Refused(Exception):
    """A row's failure."""


def outcome_of(family: str, *, why: bool = True) -> Outcome:
    try:
        model = model_of(family)
    except Exception as failed:
        return Outcome("error", f"making it: {_summary(failed)}")
    try:
        return compared(model, why=why)
    except Exception as failed:
        return Outcome("error", f"running it: {_summary(failed)}")


def _summary(failed: Exception) -> str:
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(failed.__traceback__)
    ]
    return (
        f"{type(failed).__name__}: {' '.join(str(failed).split())[:300]} ({' '.join(frames[-6:])})"
    )


def in_child(family: str, seconds: int = 120) -> dict[str, Any]:
    """The outcome of a family, computed in a process of its own."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(seconds)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        outcome = outcome_of(family)
        with os.fdopen(write, "w") as pipe:
            json.dump(dataclasses.asdict(outcome), pipe, default=str)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    made = (
        json.loads(text)
        if text
        else {"result": "error", "why": f"ended with status {status}", "more": {}}
    )
    return {**made, "seconds": round(time.monotonic() - started, 1)}


def main(arguments: Sequence[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    import pipegen.backends.hf.engine

    assert pipegen
    path = Path(arguments[0])
    known = json.loads(path.read_text()) if path.exists() else {}
    names = arguments[1:] or family_names()
    for family in names:
        known[family] = in_child(family)
        path.write_text(json.dumps(known, indent=1))
        print(
            f"{family:24} {known[family]['seconds']:5} {known[family]['result']:10} {known[family]['why'][:300]}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
