"""Scores through a route: slots, choices, whole texts."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.slots import Slot
from pipegen.drivers.scoring import rolling
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.testing.fake import FakeEngine


def route(**settings: Any) -> tuple[pg.Route, FakeEngine]:
    engine = FakeEngine("", **settings)
    return pg.route(engine), engine


def test_each_request_has_its_slot_and_the_live_ones_share_one_call() -> None:
    own, engine = route()
    slots = pg.score(
        own,
        [
            {"id": "a", "prompt": "Hi", "continuation": "ab"},
            {"prompt": "Hi"},
            {"prompt": "Hi", "continuation": [98]},
            {"nothing": 1},
        ],
    )
    first = slots[0].unwrap()
    assert (
        first.id,
        first.text,
        first.token_ids,
        first.tokens,
        first.bytes,
        first.prompt_tokens,
        first.route,
    ) == ("a", "ab", (97, 98), 2, 2, 2, "fake")
    assert first.logprob == pytest.approx(-2.195)
    assert first.token_logprobs == (-1.097, -1.098)
    assert not first.greedy
    assert slots[2].unwrap().greedy
    assert (slots[2].unwrap().text, slots[2].unwrap().bytes) == (None, 1)
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True, False]
    assert [len(call) for call in engine.scored] == [2]


def test_async_gives_the_same_slots() -> None:
    own, _ = route()
    requests = [{"prompt": "Hi", "continuation": "ab"}, {"prompt": "", "continuation": "ab"}]
    assert asyncio.run(pg.arun(pg.scoring(own), requests)) == pg.score(own, requests)


def test_any_driver_takes_the_pipe() -> None:
    own, engine = route()
    requests = [{"prompt": "Hi", "continuation": "ab"}] * 5
    assert tuple(pg.imap(pg.scoring(own), requests, in_flight=2)) == pg.score(own, requests)
    assert sum(len(call) for call in engine.scored) == 10


def test_a_call_that_fails_fails_every_live_slot() -> None:
    own, _ = route(fault=CallFailed(pg.BackendFailed("it died", backend="fake", scope="batch")))
    slots = pg.score(
        own, [{"prompt": "Hi", "continuation": "a"}, {"prompt": "", "continuation": "a"}]
    )
    assert slots[0].failure().message == "it died"
    assert isinstance(slots[1].failure(), pg.InvalidRequest)


def test_a_fallback_scores_what_the_first_route_cannot() -> None:
    first, second = (
        pg.route(FakeEngine("", context_length=3), name="short"),
        pg.route(FakeEngine(""), name="long"),
    )
    both = pg.fallback(pg.scoring(first), pg.scoring(second), when=pg.PromptTooLong)
    made = pg.run(
        both, [{"prompt": "Hi", "continuation": "a"}, {"prompt": "Hi", "continuation": "abc"}]
    )
    assert [slot.unwrap().route for slot in made] == ["short", "long"]
    assert [type(error).__name__ for error in made[1].unwrap().tried] == ["PromptTooLong"]


def test_routes_of_one_name_get_another() -> None:
    first, second = pg.route(FakeEngine("", context_length=3)), pg.route(FakeEngine(""))
    both = pg.fallback(pg.scoring(first), pg.scoring(second), when=pg.PromptTooLong)
    assert pg.run(both, [{"prompt": "Hi", "continuation": "abc"}])[0].unwrap().route == "fake-2"


def test_an_engine_must_keep_its_promise() -> None:
    own, _ = route(answers=3)
    with pytest.raises(ContractError, match="3 outputs for 1 inputs"):
        pg.score(own, [{"prompt": "Hi", "continuation": "a"}])

    class Short(FakeEngine):
        def score(self, inputs: Any) -> Any:
            return [
                pg.Success(TokenScores(continued=asked, logprobs=(), likeliest=()))
                for asked in inputs
            ]

    with pytest.raises(ContractError, match="0 log probabilities of 1 tokens"):
        pg.score(pg.route(Short("")), [{"prompt": "Hi", "continuation": "a"}])


def test_what_is_no_number_fails_its_row() -> None:
    class Broken(FakeEngine):
        def score(self, inputs: Any) -> Any:
            return [
                pg.Success(
                    TokenScores(continued=asked, logprobs=(math.nan,), likeliest=((0, -0.5),))
                )
                for asked in inputs
            ]

    slot = pg.score(pg.route(Broken("")), [{"prompt": "Hi", "continuation": "a"}])[0]
    assert isinstance(slot.failure(), pg.MalformedResponse)


def test_a_request_with_a_continuation_is_not_answered() -> None:
    own, engine = route()
    slot = pg.run(own, [{"prompt": "Hi", "continuation": "a"}])[0]
    assert "scored, not answered" in slot.failure().message
    assert engine.calls == []


def test_stages_before_the_tokens_stay_and_others_are_refused() -> None:
    own, _ = route()
    shouted = own.insert(
        pg.each("shout", lambda rendered: pg.Success(rendered.rewritten(str.upper))), after="render"
    )
    assert pg.score(shouted, [{"prompt": "hi", "continuation": "a"}])[
        0
    ].unwrap().prompt_token_ids == tuple(b"HI")
    with pytest.raises(TypeError, match="'look'"):
        pg.scoring(own.insert(pg.pure("look", lambda decoded: decoded), after="decode"))
    with pytest.raises(TypeError, match="no stage 'resolve' or 'tokenize'"):
        pg.scoring(own.remove("tokenize"))


def test_options_of_a_route_count() -> None:
    own = route()[0].with_options({"max_prompt_tokens": 1})
    assert isinstance(
        pg.score(own, [{"prompt": "Hi", "continuation": "a"}])[0].failure(), pg.PromptTooLong
    )


def test_only_a_route_through_one_engine_scores() -> None:
    own, other = route()[0], pg.route(FakeEngine(""), name="other")
    with pytest.raises(TypeError, match="fallback"):
        pg.scoring(pg.fallback(own, other, when=pg.Timeout))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FakeEngine"):
        pg.scoring(FakeEngine(""))  # type: ignore[arg-type]
    for wrong in ("yes", -1, True, 1.0):
        with pytest.raises(TypeError, match="empty_context"):
            pg.scoring(own, empty_context=wrong)  # type: ignore[arg-type]


def test_a_chat_server_does_not_score() -> None:
    pytest.importorskip("aiohttp")
    chat = pg.backends.openai_server("model")
    slot = pg.score(chat, [{"prompt": "Hi", "continuation": "a"}])[0]
    assert isinstance(slot.failure(), pg.UnsupportedOption)
    assert isinstance(pg.perplexity(chat, ["text"])[0].failure(), pg.UnsupportedOption)


def test_plugins_are_attached_to_the_engine_that_scores() -> None:
    pipe = pg.attach(pg.scoring(route()[0]), pg.plugins.strip_prefix(["A:"]))
    assert pg.run(pipe, [{"prompt": "Hi", "continuation": "a"}])[0].unwrap().tokens == 1


def test_the_pipe_releases_the_engine() -> None:
    own, engine = route()
    with pg.scoring(own):
        pass
    assert engine.closed == 1


def choose(choices: Any, request: Any = None, **more: Any) -> Slot[pg.Chosen]:
    return pg.choose(route()[0], {"prompt": "Hi"} if request is None else request, choices, **more)


def test_the_best_choice_is_told_by_sum_by_token_and_by_byte() -> None:
    """A token of the fake engine has -1 - id / 1000."""
    chosen = choose(["zz", "b", [2, 1, 3]]).unwrap()
    assert [scored.tokens for scored in chosen.choices] == [2, 1, 3]
    assert (chosen.best, chosen.best_per_token, chosen.best_per_byte) == (1, 2, 2)
    assert sum(chosen.probabilities) == pytest.approx(1)
    assert chosen.probabilities[1] == max(chosen.probabilities)


def test_of_equal_choices_the_first_is_best() -> None:
    assert choose(["b", "b"]).unwrap().best == 0


@pytest.mark.parametrize(
    "request_",
    [
        pg.TextGenerationRequest(prompt="Hi"),
        pg.Success(pg.TextGenerationRequest(prompt="Hi")),
        {"messages": [{"role": "user", "content": "Hi"}]},
        pg.VlmGenerationRequest(prompt="Hi", images=[b"image"]),
    ],
)
def test_a_request_in_any_form_has_choices(request_: Any) -> None:
    assert len(choose(["a", "b"], request_).unwrap().choices) == 2


def test_a_choice_goes_on_as_its_request_does() -> None:
    """With the ids of the turns before it, and with what was carried along."""
    pipe = route()[0]
    first = pg.run(pipe, [{"messages": [{"role": "user", "content": "Hi"}]}])[0].unwrap()
    following = first.then("And?")
    chosen = pg.choose(pipe, following, ["a", "b"]).unwrap().choices
    continued = [first.then("And?", continuation=choice) for choice in ("a", "b")]
    scored = [slot.unwrap() for slot in pg.score(pipe, continued)]
    assert [(one.logprob, one.prompt_token_ids) for one in chosen] == [
        (one.logprob, one.prompt_token_ids) for one in scored
    ]
    turns = pg.GenerationRequest(messages=[pg.Message(role="user", content="Hi")], turns=["And?"])
    assert "turns" in pg.choose(pipe, turns, ["a"]).failure().message


def test_one_choice_that_fails_fails_the_whole() -> None:
    assert isinstance(choose(["a", ""]).failure(), pg.InvalidRequest)
    assert isinstance(choose(["a", [10**6]]).failure(), pg.InvalidRequest)
    assert "no choices" in choose([]).failure().message
    refused = pg.InvalidRequest("no")
    assert choose(["a"], pg.Failure(refused)).failure() is refused
    assert isinstance(choose(["a"], 7).failure(), pg.InvalidRequest)
    with pytest.raises(TypeError, match="not one text"):
        choose("ab")


def test_no_choice_is_likely_where_all_are_impossible() -> None:
    nothing = pg.Scored(
        logprob=-math.inf,
        token_logprobs=(-math.inf,),
        token_ids=(1,),
        greedy=False,
        tokens=1,
        bytes=0,
    )
    assert pg.Chosen(choices=(nothing, nothing)).probabilities == (0.5, 0.5)
    assert nothing.per_byte == -math.inf


def test_a_text_that_fits_takes_one_row() -> None:
    own, engine = route()
    made = pg.perplexity(own, ["ab cd"])[0].unwrap()
    assert (made.tokens, made.words, made.bytes, made.windows) == (5, 2, 5, 1)
    asked: ScoreInput = engine.scored[0][0]
    assert asked.encoded.prompt.token_ids == (engine.tokenizer.control_tokens["<|im_end|>"],)
    logprob = sum(-1 - byte / 1000 for byte in b"ab cd")
    assert made.logprob == pytest.approx(logprob)
    assert made.token_perplexity == pytest.approx(math.exp(-logprob / 5))
    assert made.word_perplexity == pytest.approx(math.exp(-logprob / 2))
    assert made.byte_perplexity == pytest.approx(math.exp(-logprob / 5))
    assert made.bits_per_byte == pytest.approx(-logprob / 5 / math.log(2))


def test_a_long_text_is_predicted_in_rolling_windows() -> None:
    own, engine = route(context_length=5)
    made = pg.perplexity(own, ["abcdefghij", "ab"])
    assert [slot.unwrap().windows for slot in made] == [3, 1]
    assert [slot.unwrap().tokens for slot in made] == [10, 2]
    assert max(len(asked.token_ids) for asked in engine.scored[0]) == 5
    assert [slot.unwrap().windows for slot in pg.perplexity(own, ["abcdefghij"], window=2)] == [5]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 20])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 15])
def test_every_token_is_predicted_once_after_as_much_as_fits(count: int, size: int) -> None:
    ids = tuple(range(100, 100 + count))
    windows = [*rolling(ids, 1, size)]
    assert tuple(token for _, own in windows for token in own) == ids
    for number, (before, own) in enumerate(windows):
        assert len(before) + len(own) <= size + 1
        assert (
            before == (1,)
            if not number
            else (1, *ids)[: (1, *ids).index(own[0])][-len(before) :] == before
        )
        assert not number or len(before) + len(own) == size + 1


def test_what_is_no_text_fails_its_own_slot() -> None:
    own, _ = route()
    texts: Any = ["", 7, "a", "x" * 17_000_000]
    slots = pg.perplexity(own, texts)
    assert [pg.is_ok(slot) for slot in slots] == [False, False, True, False]
    with pytest.raises(TypeError, match="not one text"):
        pg.perplexity(own, "text")
    with pytest.raises(TypeError, match="window"):
        pg.perplexity(own, ["a"], window=0)


def test_a_window_that_fails_fails_its_text() -> None:
    own, _ = route(fault=CallFailed(pg.BackendFailed("it died", backend="fake", scope="batch")))
    assert pg.perplexity(own, ["abc"])[0].failure().message == "it died"


def test_a_tokenizer_that_raises_fails_its_text() -> None:
    assert "cannot be encoded" in pg.perplexity(route()[0], ["\ud800"])[0].failure().message


def test_a_text_may_be_conditioned_on_any_token_but_on_one() -> None:
    own, engine = route(eos_tokens=())
    assert "neither a BOS" in pg.perplexity(own, ["abc"])[0].failure().message
    assert (
        "neither a BOS" in pg.perplexity(own, ["abc"], empty_context="refuse")[0].failure().message
    )
    assert pg.perplexity(own, ["abc"], empty_context=65)[0].unwrap().tokens == 3
    assert engine.scored[0][0].encoded.prompt.token_ids == (65,)


def test_a_hopeless_text_has_an_infinite_perplexity() -> None:
    assert (
        pg.Perplexity(logprob=-(10.0**9), tokens=1, words=0, bytes=1).token_perplexity == math.inf
    )
