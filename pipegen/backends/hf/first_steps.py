"""The check of first steps: before a model's first answer, do the rows of pipegen's own loop get the
logits of transformers' plain forward?

Two rows of different lengths begin alike. They are read in one pass, one of them padded. They go on
by a token. Then they come again, and are read behind what was kept of them. Their logits are
compared with those of a forward over each whole row alone. Where they differ, slower ways to read
rows are tried (see `WAYS`). The first way that gives the logits is taken, and the log says so. Where
none does, the model does not load.

A short row shows no window, no boundary of rotary factors and no sparse attention. The configuration
decides what is beyond those (see `first_way`).
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import transformers

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.in_memory import CheckpointInMemory
from pipegen.backends.checkpoint.positions import named_lengths
from pipegen.backends.checkpoint.verdicts import CannotCheck, keep, kept
from pipegen.backends.hf import attention
from pipegen.backends.hf.cache_argument import UnknownCache
from pipegen.backends.hf.hf_rows import HFRow
from pipegen.backends.hf.load import is_out_of_memory
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.prefixes import Prefixes
from pipegen.backends.hf.row_adapters import use_adapters
from pipegen.backends.hf.scheduler import ModelTraits, Schedule
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, Prompt

_log = logging.getLogger("pipegen")


Logits = list[tuple[int, torch.Tensor]]
"""Of a row: shape (vocabulary), in float32, each with the place of the token that they are behind."""


class Way(NamedTuple):
    """How the rows of a model are read."""

    rows: str
    """`together`: of any length, padded; rows come and go. `of one length`: those of one length are
    read in one pass, and stay until the last is done. `one by one`.
    """
    own_attention: bool
    """Whether transformers' attention computes, where pipegen's could."""

    @property
    def words(self) -> str:
        """The way for a reader.

        >>> Way("of one length", own_attention=True).words
        "rows of one length are read together, by transformers' own attention and cache"
        """
        rows = {
            "together": "all rows are read together",
            "of one length": "rows of one length are read together",
            "one by one": "rows are read one by one",
        }[self.rows]
        own = "attention" if self.rows == "together" else "attention and cache"
        return rows + (f", by transformers' own {own}" if self.own_attention else "")

    @property
    def why(self) -> str:
        """What differs in the next faster way, for a reader."""
        what = {
            "together": "where query heads are grouped",
            "of one length": "of padded rows",
            "one by one": "of a row that others are read with",
        }[self.rows]
        return f"the logits {what} differ from those of transformers' plain forward"


WAYS = (
    Way("together", own_attention=False),
    Way("together", own_attention=True),
    Way("of one length", own_attention=True),
    Way("one by one", own_attention=True),
)
"""The fastest first."""
_APART = ("floor_scale", "index_topk")
"""Lengths of a configuration beyond which rows are not padded. With sparse attention a token attends
to some of the others only, and padding may be among them. Llama 4 scales attention by columns.
"""
_CHECK = "first steps"
_STEPS, _SHARED, _SHORT, _LONG, _MORE = 2, 2, 3, 5, 1
"""Tokens: those that a row generates, those that all rows begin with, those of a short and of a long
prompt, and those that a row has more when it comes again. They are few. So the check costs a small
part of the load.
"""
_TOKENS = 1000
"""Rows are made of tokens with smaller numbers."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_ROUNDED = 0.02
"""The largest difference of logits between computations that are the same, as a share of how much
the logits of a place differ. Other types are rounded. Seen were up to 1e-4 in float32 and 0.02 in
bfloat16. A wrong cache or mask differs by 0.05 to 1.5.
"""
_NOISE, _MOST = 4, 10
"""A model that rounds more may differ so many times more than its rows do that are read one by one.
These may differ so many times more than others.
"""
_LEAST = -1e4
"""Logits below that are masks."""


class WrongSteps(ValueError):
    """No way to read rows gives the logits of transformers' plain forward."""

    hint = (
        "install versions of transformers and torch that `pipegen doctor` calls tested, or report"
        " the model; self_check=False loads it all the same"
    )


def first_way(config: object) -> Way:
    """The fastest way in which the rows of such a model may be read, by what its configuration says
    of rows longer than those of the check.
    """
    apart = any(length.name in _APART for length in named_lengths(config))
    return WAYS[2] if apart else WAYS[0]


def way_of(model: object, checkpoint: Checkpoint, pixels: Pixels) -> Way:
    """How the rows of a model that was just loaded are read: as the check found, in this process or
    before, where the settings ask for it. A slower way is logged.

    Raises `WrongSteps` or `UnknownCache`.
    """
    load, way = checkpoint.load, first_way(checkpoint.config)
    if load.self_check:
        # the weights of a model in memory may change at any time
        about = None if isinstance(checkpoint, CheckpointInMemory) else _about(model, checkpoint)
        kept_way = _kept_way(about)
        try:
            way = kept_way or check_first_steps(model, checkpoint, pixels)
        except CannotCheck as unknown:
            _log.info("the first steps of %s are not checked: %s", load.model, unknown)
        else:
            if about is not None and kept_way is None:
                keep(_CHECK, way._asdict(), **about)
    if way != WAYS[0]:
        why = "its configuration asks for it" if way == first_way(checkpoint.config) else way.why
        _log.warning("%s: %s, which is slower, since %s", load.model, way.words, why)
    return way


def _about(model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """What a verdict is about."""
    facts = (
        checkpoint.identity,
        type(model).__name__,
        str(model.dtype),
        model.device.type,
        model.config.get_text_config()._attn_implementation,
        dict(checkpoint.load.engine_kwargs),
    )
    return {"model": json.dumps(facts, default=str), "packages": ("torch", "transformers", "peft")}


def _kept_way(about: Mapping[str, Any] | None) -> Way | None:
    """What was found of the model before; None where that is not known."""
    verdict = {} if about is None else kept(_CHECK, **about) or {}
    return next((way for way in WAYS if way._asdict() == verdict), None)


def check_first_steps(model: object, checkpoint: Checkpoint, pixels: Pixels) -> Way:
    """The fastest way in which the model's rows get the logits of transformers' plain forward. The
    model's attention is set to that of the way. Must be called without gradients, while nobody else
    uses the model.

    Raises `WrongSteps` or `UnknownCache` where there is none, and `CannotCheck` where the plain
    forward takes no such rows.
    """
    rows, grouped = _rows(checkpoint), attention.is_grouped(model)
    attention.use_own(model)
    try:
        expected = [_plain(model, row) for row in rows[:2]]
    except CannotCheck:
        if grouped:  # it goes on as it was loaded
            attention.use_grouped(model)
        raise
    allowed, tried, alone = _allowed(model), dict[Way, float | Exception](), WAYS[-1]

    def difference(way: Way) -> float | Exception:
        if grouped and not way.own_attention:
            attention.use_grouped(model)
        if way.rows == "of one length" and len(expected) < len(rows):
            expected.append(_plain(model, rows[2]))
        chosen = slice(1, 3) if way.rows == "of one length" else slice(2)
        try:
            return _worst(
                _run(model, checkpoint, pixels, way, rows[chosen]), expected[chosen], model
            )
        except UnknownCache:
            raise
        except Exception as raised:
            # the model's own code may raise anything
            if isinstance(raised, RuntimeError) and is_out_of_memory(raised):
                raise
            return raised

    for way in WAYS[WAYS.index(first_way(checkpoint.config)) :]:
        if way == WAYS[1] and not grouped:
            continue  # it is the same as the first
        seen = tried[way] = tried[way] if way in tried else difference(way)
        if not _is_small(seen, allowed) and alone not in tried:
            rounds = tried[alone] = difference(alone)
            if isinstance(rounds, float) and rounds <= _MOST * allowed:
                allowed = max(allowed, _NOISE * rounds)
        if _is_small(seen, allowed):
            if grouped and not way.own_attention:
                attention.use_grouped(model)
            return way
    raised = tried[alone]
    raise _wrong(model, checkpoint, pixels, rows[1], raised) from (
        raised if isinstance(raised, Exception) else None
    )


def use_way(way: Way, model: object, traits: ModelTraits | None = None) -> None:
    """Let the model's rows be read so: set its attention, and what is known of it."""
    if way.own_attention:
        attention.use_own(model)
    if traits is not None:
        traits.checked = True
        if way.rows != "together":
            traits.fixed = traits.even = traits.scored_alone = True
            traits.alone = way.rows == "one by one"


def _allowed(model: Any) -> float:
    return _TOLERANCE.get(model.dtype, _ROUNDED)


def _is_small(difference: float | Exception, allowed: float) -> bool:
    return isinstance(difference, float) and difference <= allowed


def _wrong(
    model: object,
    checkpoint: Checkpoint,
    pixels: Pixels,
    ids: Sequence[int],
    alone: float | Exception,
) -> WrongSteps:
    """What differs where even a row that is read alone is wrong, for a reader."""
    kind, versions = (
        type(model).__name__,
        f"transformers {transformers.__version__}, torch {torch.__version__}",
    )
    plain = _plain(model, ids)
    if not _is_causal(model, ids, plain):
        return WrongSteps(
            f"{kind} is no causal model: the logits of a token depend on the tokens behind it, so it"
            f" cannot generate ({versions})"
        )
    if isinstance(alone, Exception):
        seen = f"they cannot be run: {type(alone).__name__}: {alone}"
    else:
        (logits,) = _run(model, checkpoint, pixels, WAYS[-1], [ids])
        first = _worst([logits[:1]], [plain], model)
        what = "attention or positions differ" if first > alone / 2 else "the cache differs"
        seen = f"{what}, and the logits by {alone:.2g} of their spread"
    return WrongSteps(
        f"the first steps of {kind} are not those of transformers' plain forward, even of a row that"
        f" is read alone: {seen} ({versions})"
    )


def _rows(checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    """A short row, a long one, and another of the long one's length, each with the tokens that it
    is given as if they were generated, and `_MORE`. They begin alike, and hold no special token.

    Raises `CannotCheck` where the model takes no rows so long.
    """
    longest = _LONG + _STEPS + _MORE
    size, context = checkpoint.vocab_size or _TOKENS, checkpoint.context_length
    if context is not None and context <= longest:
        raise CannotCheck(f"it takes rows of {context} tokens at most")
    special = {*checkpoint.tokenizer.special_tokens.values(), *checkpoint.eos_token_ids}
    for config in (checkpoint.config, checkpoint.config.get_text_config()):
        special |= {
            value
            for name, value in vars(config).items()
            if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        }
    numbers = ((7 * index * index + 11 * index + 5) % min(size, _TOKENS) for index in range(999))
    ids = iter([number for number in numbers if number not in special])
    begin = [*islice(ids, _SHARED)]
    rows = [
        (*begin, *islice(ids, length + _STEPS + _MORE - _SHARED))
        for length in (_SHORT, _LONG, _LONG)
    ]
    if len(rows[2]) < longest:
        raise CannotCheck("nearly all its tokens are special ones")
    return rows


def _plain(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """The logits of transformers' plain forward over a whole row alone, shape (tokens, vocabulary),
    in float32.

    Raises `CannotCheck` where it takes no row of text, or gives no numbers.
    """
    takes = inspect.signature(type(model).forward).parameters
    use_adapters(model, [""])
    ids = torch.tensor([token_ids], device=model.device)
    more = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in takes else {}
    try:
        outputs = model(input_ids=ids, use_cache=False, return_dict=True, **more)
    except Exception as raised:
        # the model's own code may raise anything
        if isinstance(raised, RuntimeError) and is_out_of_memory(raised):
            raise
        raise CannotCheck(
            f"its forward takes no row of text alone: {type(raised).__name__}: {raised}"[:300]
        ) from raised
    logits: torch.Tensor = outputs.logits[0].float().cpu()
    if logits.isnan().any():
        raise CannotCheck("the model's logits are no numbers")
    return logits


def _is_causal(model: object, ids: Sequence[int], plain: torch.Tensor) -> bool:
    """Whether other tokens at the end of a row leave the logits before them as they are."""
    half, allowed = len(ids) // 2, _MOST * _allowed(model)
    other = _plain(model, (*ids[:half], *ids[: len(ids) - half]))
    return _worst([[*enumerate(other[:half])]], [plain], model) <= allowed


def _run(
    model: object,
    checkpoint: Checkpoint,
    pixels: Pixels,
    way: Way,
    ids_of_rows: Sequence[Sequence[int]],
) -> list[Logits]:
    """The logits of each row in pipegen's loop.

    Rows that are read together go through it twice: the second time they go on behind what was kept
    of the first, with other padding, and hold together what they begin with. Where nothing is kept, the first row joins the others. Either
    shows whether positions are those of tokens, or of columns.
    """
    traits, seen = ModelTraits(), [Logits() for _ in ids_of_rows]
    use_way(way, model, traits)
    kept = way.rows == "together"
    prefixes = Prefixes(
        math.inf if kept else 0, checkpoint, pixels, least=2, saved=math.inf, held=1
    )
    prompts = [len(row) - _STEPS - _MORE for row in ids_of_rows]
    for again in (False, True) if kept else (False,):
        joins = again and bool(prefixes.off)
        lengths = [len(ids_of_rows[0]) - 1, *prompts[1:]] if again and not joins else prompts
        schedule = Schedule(model, checkpoint, len(ids_of_rows), pixels, traits, prefixes)
        added = [
            _row(checkpoint, row, length, _STEPS, places)
            for row, length, places in zip(ids_of_rows, lengths, seen, strict=True)
        ]
        if joins:
            schedule.add(added[1:])
            _step(schedule)
            del added[1:]
        schedule.add(added)
        while not schedule.finished:
            _step(schedule)
    return seen


def _step(schedule: Schedule) -> None:
    for row in schedule.step():
        if row.error is not None:
            raise row.error


def _row(
    checkpoint: Checkpoint, ids: Sequence[int], length: int, steps: int, seen: Logits
) -> HFRow:
    """A row whose prompt are the first so many ids, and which generates those behind them. Its
    logits go into `seen`.
    """

    def choose(context: RowContext) -> object:
        def chosen(read: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            place = read.shape[-1] - 1
            seen.append((place, logits[0].float().cpu().clone()))
            only = torch.full_like(logits, -torch.inf)
            only[:, ids[(place + 1) % len(ids)]] = 0.0
            return only

        return chosen

    prompt = tuple(ids[:length])
    encoded = Encoded(
        request=TextGenerationRequest(prompt_token_ids=prompt),
        options=resolve(GenerationOptions(max_new_tokens=steps, stop=StopOptions(ignore_eos=True))),
        prompt=Prompt(token_ids=prompt, compact_token_ids=prompt, images=()),
    )
    plugin = Plugin(name="first steps", logits_processor=choose)
    return HFRow(len(ids), encoded, checkpoint.tokenizer, (), (plugin,))


def _worst(logits_of_rows: Sequence[Logits], plain: Sequence[torch.Tensor], model: Any) -> float:
    """The largest difference between the logits of a place and those of the plain forward, as a
    share of how much the latter differ among each other: root mean squares, around the mean.

    Where the model chooses among experts and its type is rounded, a near tie may send a token to
    another one. There it is the median of each row's places.
    """
    routed = any(
        "expert" in name and type(value) is int and value > 1
        for name, value in vars(model.config.get_text_config()).items()
    )
    of_row = statistics.median if routed and model.dtype not in _TOLERANCE else max
    worst = 0.0
    for seen, expected in zip(logits_of_rows, plain, strict=True):
        shares = []
        for place, logits in seen:
            meant = expected[place] > _LEAST
            others = expected[place][meant]
            spread, difference = others - others.mean(), logits[meant] - others
            difference = difference - difference.mean()
            share = difference.square().mean() / spread.square().mean().clamp(min=1e-12)
            shares.append(float(share.sqrt().nan_to_num(math.inf)))
        worst = max(worst, of_row(shares))
    return worst
