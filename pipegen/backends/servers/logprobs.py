"""Logprobs on the wire: what the engines say of each generated token, in their four forms, read by
one rule.

>>> logprobs_of(
...     entries_in({"content": [{"token": "token_id:5", "logprob": -0.5, "top_logprobs": []}]}),
...     (5,),
... ).unwrap()
(TokenLogprob(token_id=5, logprob=-0.5, top=(), margin=None, text=None, top_texts=()),)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from returns.result import Success

from pipegen.backends.servers.reading import malformed
from pipegen.backends.servers.wire import Score, Scores, ServerRequest
from pipegen.core.slots import Slot, all_of
from pipegen.records.results import TokenLogprob, margin_of
from pipegen.records.scores import ScoreInput, TokenScores

MARGIN = 2
"""How many of the likeliest tokens are asked for at least: the margin between them tells near
ties.
"""
SENTINEL = -9999.0
"""What servers write where a log probability is minus infinity, or is not there."""
Pair = tuple[Any, Any]
Entry = tuple[Pair | None, list[Pair]]
"""What is reported for one generated token and the likeliest there: (id, logprob) each, not checked
yet.
"""


def logprobs_of(
    entries: Sequence[Entry],
    token_ids: Sequence[int],
    *,
    wanted: int = 0,
    tokens_before: int = 0,
    filtered: bool = False,
) -> Slot[tuple[TokenLogprob, ...]]:
    """One logprob for each of these tokens, `tokens_before` of which came before. Fails as `logprob` does,
    and where more is reported than was generated.

    >>> logprobs_of([], (7,), tokens_before=2).failure().message
    'there is no logprob of generated token 2 (id 7)'
    """
    if len(entries) > len(token_ids):
        return malformed(
            f"the answer has logprobs of {tokens_before + len(entries)} tokens, and generated"
            f" {tokens_before + len(token_ids)}"
        )
    missing: Entry = (None, [])
    return all_of(
        logprob(
            token_id,
            tokens_before + place,
            *(entries[place] if place < len(entries) else missing),
            wanted,
            filtered=filtered,
        )
        for place, token_id in enumerate(token_ids)
    )


def entries_in(reported: object) -> list[Entry]:
    """What the `logprobs` of a choice say: `content` of the chat form, its tokens named by
    `token_id` or as `token_id:5`; or the columns of completions.
    """
    if not isinstance(reported, Mapping):
        return []
    if isinstance(reported.get("content"), list):
        return [
            (
                _named(entry),
                [_named(candidate) or (None, None) for candidate in _listed(entry, "top_logprobs")],
            )
            for entry in reported["content"]
        ]
    tokens, values, tops = (
        _listed(reported, name) for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    rows: list[Entry] = []
    for place, (token, value) in enumerate(zip(tokens, values, strict=False)):
        table = tops[place] if place < len(tops) else None
        rows.append(
            (
                (_id(token), value),
                (
                    [(_id(name), top_value) for name, top_value in table.items()]
                    if isinstance(table, Mapping)
                    else []
                ),
            )
        )
    return rows


def entries_of_meta(
    meta: Mapping[str, object], tokens_before: int = 0, count: int = 0, kind: str = "output"
) -> list[Entry]:
    """What SGLang's `meta_info` says of tokens: rows of [logprob, id, text]. They are those of
    `count` new tokens, or of the tokens before these too, `tokens_before` of them.
    """
    token_rows = _listed(meta, f"{kind}_token_logprobs")
    tops = _listed(meta, f"{kind}_top_logprobs")
    rows: list[Entry] = []
    for place in range(
        tokens_before if len(token_rows) == tokens_before + count else 0, len(token_rows)
    ):
        table = tops[place] if place < len(tops) else None
        rows.append(
            (
                _row(token_rows[place]),
                [_row(entry) or (None, None) for entry in table] if isinstance(table, list) else [],
            )
        )
    return rows


def entries_of_masks(
    meta: Mapping[str, object], ids: Sequence[int], tokens_before: int = 0
) -> list[Entry]:
    """What SGLang's sampling masks say of new tokens, `tokens_before` of which came before: the tokens that
    were left to draw from, where these were asked for, and their log probabilities.

    >>> entries_of_masks(
    ...     {
    ...         "output_token_sampling_mask": [[5, 7]],
    ...         "output_token_sampling_logprobs": [[-0.5, -0.9]],
    ...     },
    ...     (7,),
    ... )
    [((7, -0.9), [(5, -0.5), (7, -0.9)])]
    """
    masks, values = (
        _listed(meta, f"output_token_sampling_{name}") for name in ("mask", "logprobs")
    )
    start = tokens_before if len(values) == tokens_before + len(ids) else 0
    entries: list[Entry] = []
    for token_id, mask, value in zip(ids, masks[start:], values[start:], strict=False):
        if isinstance(mask, list) and isinstance(value, list):
            left = [*zip(mask, value, strict=False)]
            entries.append((next((pair for pair in left if pair[0] == token_id), None), left))
        else:
            entries.append(((token_id, value), []))
    return entries


def _row(entry: object) -> Pair | None:
    return (entry[1], entry[0]) if isinstance(entry, list) and len(entry) >= 2 else None


def _named(entry: object) -> Pair | None:
    if not isinstance(entry, Mapping):
        return None
    return (
        entry["token_id"] if "token_id" in entry else _id(entry.get("token")),
        entry.get("logprob"),
    )


def _listed(entry: object, name: str) -> list[object]:
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return value if isinstance(value, list) else []


def _id(token: object) -> int | None:
    """The id in `token_id:123`."""
    return (
        _decimal(token.removeprefix("token_id:"))
        if isinstance(token, str) and token.startswith("token_id:")
        else None
    )


def _decimal(number: object) -> int | None:
    return (
        int(number) if isinstance(number, str) and number.isdecimal() and len(number) < 19 else None
    )


def _number(value: Any) -> bool:
    return type(value) in (int, float) and SENTINEL < value <= sys.float_info.max


def logprob(
    token_id: int,
    index: int,
    reported: Pair | None,
    top: Sequence[Pair],
    wanted: int,
    *,
    filtered: bool = False,
) -> Slot[TokenLogprob]:
    """The logprob of the generated token at `index`, from the (id, logprob) that the server reports
    for it and for the likeliest there.

    What is missing, no number, not finite, the sentinel that stands for minus infinity, or reported
    for another token is `MalformedResponse`, which names the index. 0.0 is a logprob. More of the
    likeliest than `wanted` were asked for the margin; where those are no numbers, it is not known.
    Where the likeliest are `filtered`, those with minus infinity are left out.

    >>> logprob(5, 3, (5, None), (), 0).failure().message
    'the logprob of generated token 3 (id 5) is None, not a number'
    """
    if reported is None:
        return malformed(f"there is no logprob of generated token {index} (id {token_id})")
    if reported[0] != token_id or isinstance(reported[0], bool):
        return malformed(
            f"the logprob of generated token {index} is reported for id {reported[0]!r:.40}, and"
            f" the token has id {token_id}"
        )
    if not _number(reported[1]):
        return malformed(
            f"the logprob of generated token {index} (id {token_id}) is {reported[1]!r:.40}, not a"
            " number"
        )
    if filtered:
        top = [pair for pair in top if pair[1] != SENTINEL]
        wanted = min(wanted, len(top))
    numbers = [
        (top_id, float(value)) for top_id, value in top if type(top_id) is int and _number(value)
    ]
    if len(numbers) < wanted and len(numbers) < len(top):
        top_id, value = next(
            pair for pair in top if type(pair[0]) is not int or not _number(pair[1])
        )
        return malformed(
            f"a top logprob of generated token {index} is {value!r:.40} for id {top_id!r:.40}"
        )
    if len(top) < wanted:
        return malformed(
            f"generated token {index} has {len(top)} top logprobs, and {wanted} were asked"
        )
    likeliest = sorted(numbers, key=lambda entry: -entry[1])
    margin = (
        margin_of(value for _, value in likeliest) if len(numbers) == len(top) >= MARGIN else None
    )
    return Success(
        TokenLogprob(
            token_id=token_id,
            logprob=float(reported[1]),
            top=tuple(likeliest[:wanted]),
            margin=margin,
        )
    )


def scores_of_tables(tables: object, request: ServerRequest) -> Slot[Scores]:
    """The scores of a prompt's last tokens from vLLM's `prompt_logprobs`: for each token of the
    prompt a table of ids, or null for the first.

    >>> from pipegen.records.option_records import GenerationOptions
    >>> from pipegen.records.options import resolve
    >>> request = ServerRequest(
    ...     options=resolve(GenerationOptions()), token_ids=(7, 8), prompt_tokens=2, scored=1
    ... )
    >>> scores_of_tables([None, {"8": {"logprob": -0.5}, "9": {"logprob": -1.0}}], request).unwrap()
    ((-0.5, (8, -0.5), ()),)
    """
    if not isinstance(tables, list) or len(tables) != request.prompt_tokens:
        count = len(tables) if isinstance(tables, list) else "no"
        return malformed(
            f"the answer has {count} log probabilities of a prompt of {request.prompt_tokens} tokens"
        )
    pairs: list[tuple[object, list[Pair]]] = []
    for token, table in zip(
        request.token_ids[-request.scored :], tables[-request.scored :], strict=True
    ):
        entries = table.items() if isinstance(table, Mapping) else ()
        values = {
            key: entry.get("logprob") if isinstance(entry, Mapping) else None
            for key, entry in entries
        }
        pairs.append(
            (values.get(str(token)), [(_decimal(key), value) for key, value in values.items()])
        )
    return scores_in(pairs, request.token_ids[-request.scored :], request.scored_top)


def scores_of_meta(meta: Mapping[str, object], request: ServerRequest) -> Slot[Scores]:
    """The same from SGLang's `meta_info`, which begins with the token before them: rows of
    [logprob, id, text].

    SGLang writes 0 for the very last id of the vocabulary (`x if x < vocab_size - 1 else 0`),
    beside that token's own log probability.
    """
    entries, tops = entries_of_meta(meta, kind="input"), _listed(meta, "input_top_logprobs")
    if len(entries) != request.scored + 1 or len(tops) != len(entries):
        return malformed(
            f"meta_info has {len(entries)} log probabilities of input tokens and {len(tops)}"
            f" highest ones; {request.scored + 1} were asked"
        )
    last = max(request.token_ids)
    pairs = [
        (
            row[1]
            if row is not None and (row[0] == token or (row[0] == 0 and token == last))
            else None,
            [candidate for candidate in candidates if candidate != (None, None)],
        )
        for token, (row, candidates) in zip(
            request.token_ids[-request.scored :], entries[1:], strict=True
        )
    ]
    return scores_in(pairs, request.token_ids[-request.scored :], request.scored_top)


def scores_in(
    pairs: Sequence[tuple[Any, list[Pair]]], token_ids: Sequence[int], top: int
) -> Slot[Scores]:
    """Each of these tokens' own log probability, the likeliest token there with its own, and so many
    of the likeliest; what stands for minus infinity is that.
    """
    scores: list[Score] = []
    for place, (token, (token_value, candidates)) in enumerate(zip(token_ids, pairs, strict=True)):
        numbers = all(
            type(value) in (int, float) and value <= sys.float_info.max
            for value in (token_value, *(value for _, value in candidates))
        )
        if (
            not candidates
            or not numbers
            or not all(type(candidate) is int for candidate, _ in candidates)
        ):
            return malformed(
                f"the log probability of token {place} of the continuation (id {token}) is"
                f" {token_value!r:.40}, the highest there {candidates!r:.80}"
            )
        # of equal ones the first, which is the token itself
        best = max([(token, token_value), *candidates], key=lambda pair: pair[1])
        logprob, highest = (
            float(value) if value > SENTINEL else -math.inf for value in (token_value, best[1])
        )
        named = [pair for pair in candidates if pair[1] > SENTINEL]
        likeliest = sorted(named, key=lambda pair: -pair[1])[:top]
        scores.append(
            (logprob, (best[0], highest), tuple([(one, float(at)) for one, at in likeliest]))
        )
    return Success(tuple(scores))


def token_scores(score_input: ScoreInput, scores: Scores) -> TokenScores:
    """What was found of the tokens of a row, as its answer."""
    logprobs, likeliest, tops = zip(*scores, strict=True)
    return TokenScores(
        continued=score_input,
        logprobs=logprobs,
        likeliest=likeliest,
        top=tops if score_input.top else (),
    )
