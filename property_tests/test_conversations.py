"""A next prompt begins with the ids of the turns before it; the text between does not depend on the
answer; new words make no control token.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.prompts import hostile_texts

IDS = st.lists(st.integers(0, 258), min_size=1, max_size=8).map(tuple)
WORDS = st.text(max_size=20)
ROUTE_IDS = FakeEngine("").tokenizer.special_tokens


def begun(answer: tuple[int, ...]) -> tuple[FakeEngine, pg.GenerationResult]:
    """A first turn whose answer has these ids."""
    engine = FakeEngine(lambda row: answer)
    options = {"stop": {"ignore_eos": True}, "max_new_tokens": len(answer)}
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    return engine, pg.run(pg.route(engine), [request], options)[0].unwrap()


def so_far(result: pg.GenerationResult) -> tuple[int, ...]:
    return (*result.prompt_token_ids, *result.token_ids)


@given(st.lists(IDS, min_size=1, max_size=4), WORDS)
def test_every_prompt_begins_with_the_ids_of_the_turns_before(
    answers: list[tuple[int, ...]], words: str
) -> None:
    engine, result = begun(answers[0])
    for answer in answers[1:]:
        engine.script = lambda row, answer=answer: answer
        options = {"stop": {"ignore_eos": True}, "max_new_tokens": len(answer)}
        after = pg.run(pg.route(engine), [result.then(words)], options)[0].unwrap()
        assert after.prompt_token_ids[: len(so_far(result))] == so_far(result)
        assert after.exact is True
        result = after


@given(IDS, IDS, WORDS)
def test_the_bridge_does_not_depend_on_the_answer(
    one: tuple[int, ...], other: tuple[int, ...], words: str
) -> None:
    end = ROUTE_IDS["<|im_end|>"]
    bridges = set()
    for answer in (one, other):
        engine, result = begun((*answer, end))
        after = pg.run(pg.route(engine), [result.then(words)])[0].unwrap()
        bridges.add(after.prompt_token_ids[len(so_far(result)) :])
    engine, result = begun((*one, 7))
    after = pg.run(pg.route(engine), [result.then(words)])[0].unwrap()
    bridges.add(after.prompt_token_ids[len(so_far(result)) + 1 :])
    assert len(bridges) == 1


@given(hostile_texts(tuple(sorted(ROUTE_IDS))))
def test_no_new_words_make_a_control_token(words: str) -> None:
    engine, result = begun((65, ROUTE_IDS["<|im_end|>"]))
    known = set(engine.tokenizer.control_tokens.values())

    def control(text: str) -> list[int]:
        after = pg.run(pg.route(engine), [result.then(text)])[0].unwrap()
        return [number for number in after.prompt_token_ids if number in known]

    assert control(words) == control("harmless")


@given(st.lists(IDS, min_size=2, max_size=4, unique=True), WORDS)
def test_branches_of_one_turn_share_what_was_before_the_fork(
    answers: list[tuple[int, ...]], words: str
) -> None:
    engine, result = begun((65,))
    branches = []
    for answer in answers:
        engine.script = lambda row, answer=answer: answer
        options = {"stop": {"ignore_eos": True}, "max_new_tokens": len(answer)}
        branches.append(pg.run(pg.route(engine), [result.then(words)], options)[0].unwrap())
    assert len({branch.prompt_token_ids for branch in branches}) == 1
    for branch in branches:
        leaf = pg.run(pg.route(engine), [branch.then("On.")])[0].unwrap()
        assert leaf.prompt_token_ids[: len(so_far(branch))] == so_far(branch)


@given(st.lists(IDS, min_size=1, max_size=4), WORDS)
def test_each_round_of_a_loop_begins_with_the_ids_before(
    answers: list[tuple[int, ...]], words: str
) -> None:
    engine = FakeEngine(lambda row: answers[len(row.request.messages or ()) // 2])
    pipe = pg.turns(pg.route(engine), lambda result: words, limit=len(answers))
    options = {"stop": {"ignore_eos": True}}
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    rounds = pg.run(pipe, [request], options)[0].unwrap().rounds
    assert [one.token_ids for one in rounds] == answers
    for before, after in itertools.pairwise(rounds):
        assert after.prompt_token_ids[: len(so_far(before))] == so_far(before)


class Dropping(ToyRenderer):
    """A template that leaves thoughts out of earlier answers."""

    def render(self, messages: Sequence[Mapping[str, Any]], **others: Any) -> str:
        kept = [
            {**message, "content": re.sub(r"(?s)<think>.*?</think>", "", message["content"])}
            if message["role"] == "assistant"
            else message
            for message in messages
        ]
        return super().render(kept, **others)


ANSWERS = st.sampled_from(["Yes.", "<think>Hm.</think>No.", "<think></think>", "<think>Cut", "é"])
TURNS = st.lists(
    st.tuples(ANSWERS, st.sampled_from(["kept", "template"]), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(TURNS, st.booleans(), st.booleans())
def test_every_sampled_token_is_in_the_mask_of_one_rollout(
    turns: list[tuple[str, Any, bool]], thinking: bool, ends: bool
) -> None:
    asked = iter(turns)
    engine = FakeEngine(
        lambda row: next(asked)[0] + ("<|im_end|>" if ends else ""),
        renderer=Dropping(thinking=thinking),
    )
    histories = iter(turns)

    def again(result: pg.GenerationResult) -> pg.GenerationRequest | None:
        _, history, anew = next(histories)
        if anew:
            return pg.TextGenerationRequest(messages=[{"role": "user", "content": "Else"}])
        return result.then("And?", history=history)

    pipe = pg.repeat(pg.route(engine), again, limit=len(turns))
    options = {"chat": {"enable_thinking": True, "trust": ["assistant"]}}
    first = {"messages": [{"role": "user", "content": "Hi"}]}
    result = pg.run(pipe, [first], options)[0].unwrap()
    rollouts = result.rollouts

    runs: list[list[pg.GenerationResult]] = []
    for turn in result.rounds:
        if runs and turn.prompt_token_ids[: len(so_far(runs[-1][-1]))] == so_far(runs[-1][-1]):
            runs[-1].append(turn)
        else:
            runs.append([turn])
    assert [rollout.ids for rollout in rollouts] == [so_far(run[-1]) for run in runs]
    for rollout, run in zip(rollouts, runs, strict=True):
        start = len(rollout.prompt_token_ids)
        assert rollout.prompt_token_ids == run[0].prompt_token_ids
        marked = [start + place for place, own in enumerate(rollout.mask) if own]
        ends_at = [len(turn.prompt_token_ids) for turn in run]
        assert marked == [
            place
            for turn, end in zip(run, ends_at, strict=True)
            for place in range(end, end + len(turn.token_ids))
        ]
    for place, rollout in enumerate(rollouts):
        count = rollout.shared_prefix
        assert count <= len(rollout.prompt_token_ids)
        same = [one.ids[:count] == rollout.ids[:count] for one in rollouts[:place]]
        assert any(same) or not count
        assert not any(
            one.ids[: count + 1] == rollout.prompt_token_ids[: count + 1]
            for one in rollouts[:place]
            if len(rollout.prompt_token_ids) > count
        )
    read = pg.from_plain(json.loads(json.dumps(pg.to_plain(pg.Success(result))))).unwrap()
    assert read.rollouts == rollouts
    if not any(anew for _, _, anew in turns[:-1]):  # one conversation: its last turn knows all
        assert result.rounds[-1].rollouts == rollouts
