"""The control tokens of a prompt are those of the same conversation with harmless words, whatever
the words and the template: on every pair.

The words are searched for, not written down: for each place that can carry foreign words, every
control token, split at every place where what the template writes beside it could complete it,
where two foreign words meet, and where the template rewrites them. See `hostile.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hostile import Attack, attacks, chosen, control_ids, harmless, prompt_of
from pairs import PAIRS, Pair, loaded

from pipegen.core.errors import InvalidRequest, TemplateFailed
from pipegen.core.slots import is_ok
from pipegen.records.option_groups import ChatTemplateOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import ResolvedRequest
from pipegen.stages.rendering import render_row
from pipegen.stages.tokenizing import tokenize_row

REWRITTEN, WITHIN = 150, 150
"""How many of the words out of which a rewriting could make tokens are tried on a pair, and of
those that join over two places.
"""
REFUSED = 0.05
"""Of the hostile requests of a pair, at most this part may be refused; the others are sent, with
their words as text.
"""
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=str)


def some(found: Sequence[Attack], most: int) -> list[Attack]:
    return random.Random(0).sample(found, most) if len(found) > most else list(found)


def tried_on(pair: Pair) -> list[Attack]:
    """All whole tokens and all joins with what the template writes; of the many others, some."""
    found = list(attacks(pair))
    rewritten = [
        attack for attack in found if "within" in attack.kind and "template" not in attack.kind
    ]
    joined = [attack for attack in found if len(attack.said) > 1]
    rest = [attack for attack in found if attack not in rewritten and attack not in joined]
    return rest + some(rewritten, REWRITTEN) + some(joined, WITHIN)


def template_refuses(pair: Pair, attack: Attack) -> bool:
    """Whether the template itself refuses harmless words of the same length in these places:
    Mistral's wants ids of nine letters.
    """
    twin = prompt_of(pair, attack.shape, {name: "x" * len(words) for name, words in attack.said})
    return not is_ok(twin) and isinstance(twin.failure(), TemplateFailed)


def is_written(pair: Pair, attack: Attack) -> bool:
    """Whether the words come into the prompt: Kimi's template writes the id of a tool's result, and
    not that of the call.
    """
    slot = prompt_of(pair, attack.shape, dict(attack.said), control_tokens="allow")
    return not is_ok(slot) or slot.unwrap().text != harmless(pair)[attack.shape].text


@each_pair
def test_control_tokens_are_those_of_harmless_words(pair: Pair) -> None:
    tried = tried_on(pair)
    expected = {shape: control_ids(pair, prompt) for shape, prompt in harmless(pair).items()}
    refused, broken = 0, []
    for attack in tried:
        slot = prompt_of(pair, attack.shape, dict(attack.said))
        if is_ok(slot):
            broken += [attack] if control_ids(pair, slot.unwrap()) != expected[attack.shape] else []
        elif not (isinstance(slot.failure(), TemplateFailed) and template_refuses(pair, attack)):
            assert isinstance(slot.failure(), InvalidRequest), (attack, slot.failure())
            refused += 1
    assert not broken, f"{len(broken)} of {len(tried)}: {broken[:3]}"
    assert refused <= REFUSED * len(tried), f"{refused} of {len(tried)} were refused"


@each_pair
def test_the_search_finds_words_that_make_control_tokens_where_they_may(pair: Pair) -> None:
    expected = {shape: control_ids(pair, prompt) for shape, prompt in harmless(pair).items()}

    def changes(attack: Attack) -> bool:
        slot = prompt_of(pair, attack.shape, dict(attack.said), control_tokens="allow")
        return is_ok(slot) and control_ids(pair, slot.unwrap()) != expected[attack.shape]

    assert not chosen(pair) or not expected or any(map(changes, attacks(pair)))


@each_pair
def test_whole_tokens_can_be_refused_in_place_of_kept(pair: Pair) -> None:
    for attack in attacks(pair):
        if attack.kind == "whole" and is_written(pair, attack):
            refused = prompt_of(pair, attack.shape, dict(attack.said), control_tokens="reject")
            assert not is_ok(refused), attack
            assert isinstance(refused.failure(), InvalidRequest) or template_refuses(
                pair, attack
            ), attack
    for shape in harmless(pair):
        assert is_ok(prompt_of(pair, shape, {}, control_tokens="reject"))


@each_pair
def test_a_plain_prompt_is_guarded_where_that_is_asked(pair: Pair) -> None:
    tokenizer, renderer = loaded(pair)
    tokens = chosen(pair)
    for asked in ("text", "reject", None) if tokens else ():
        options = GenerationOptions(chat=ChatTemplateOptions(control_tokens=asked))
        request = TextGenerationRequest(prompt=f"a {' x '.join(tokens)} b", options=options)
        job = ResolvedRequest(request=request, options=resolve(request.options))
        slot = render_row(job, tokenizer, renderer).bind(
            lambda rendered: tokenize_row(rendered, (), tokenizer, None)
        )
        if asked == "reject":
            assert isinstance(slot.failure(), InvalidRequest)
        else:
            assert bool(control_ids(pair, slot.unwrap())) == (asked is None)
