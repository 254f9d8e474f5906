"""Joining: where a context ends and its continuation begins."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.records.requests import ScoringRequest
from pipegen.records.scores import ScoreInput
from pipegen.stages.joining import EmptyContext, first_token, join, resolve_scoring
from pipegen.stages.rendering import render
from pipegen.testing.fake import FakeEngine
from pipegen.testing.toy import ToyTokenizer

MERGED = ToyTokenizer(merges=("be END", " EN", "ab"))


def joined(
    engine: Any = None, *, empty_context: EmptyContext = "refuse", **request: Any
) -> Slot[ScoreInput]:
    """The pair that a request becomes."""
    engine = engine or FakeEngine("", tokenizer=MERGED)
    pipe = resolve_scoring(engine) >> render(engine) >> join(engine, empty_context)
    return pipe.apply((pg.request_from(request),))[0]


def pair(made: Slot[ScoreInput]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return made.unwrap().encoded.prompt.token_ids, made.unwrap().continuation


def test_a_text_is_encoded_together_with_its_context() -> None:
    """ " EN" is one token, and no token of the context's."""
    assert pair(joined(prompt="to", continuation=" END")) == (tuple(b"to"), (257, ord("D")))


def test_white_space_at_the_end_of_the_context_goes_to_the_continuation() -> None:
    assert pair(joined(prompt="to ", continuation="END")) == (tuple(b"to"), (257, ord("D")))
    assert joined(prompt="to ", continuation="END").unwrap().text == "END"


def test_what_the_tokenizer_joins_over_the_edge_is_cut_where_the_context_alone_ends() -> None:
    """As lm-eval does it: "to be END" has the tokens t, o, space and "be END", of which as many are
    left out as "to be" has.
    """
    assert pair(joined(prompt="to be", continuation=" END!!")) == (tuple(b"to be"), tuple(b"!"))
    assert "no token of its own" in joined(prompt="to be", continuation=" END").failure().message


def test_a_continuation_that_is_joined_only_in_part_keeps_the_rest() -> None:
    made = joined(prompt="xa", continuation="bcd")
    assert pair(made) == (tuple(b"xa"), tuple(b"cd"))
    assert made.unwrap().joined  # the b is not scored


def test_letters_that_vanish_are_reported_and_an_edge_that_is_kept_is_not() -> None:
    assert joined(prompt="to be", continuation=" END!!").unwrap().joined
    for request in (
        {"prompt": "to ", "continuation": "END"},
        {"prompt": "xa", "continuation": "cd"},
        {"prompt": "xa", "continuation": [98, 99]},
    ):
        assert not joined(**request).unwrap().joined
    resplit = FakeEngine("", tokenizer=ToyTokenizer(merges=("ba",)))
    assert not joined(resplit, prompt="xb", continuation="cb").unwrap().joined


def test_ids_are_taken_as_they_are() -> None:
    assert pair(joined(prompt="to ", continuation=[69, 70])) == (tuple(b"to "), (69, 70))
    assert pair(joined(prompt_token_ids=[1, 2], continuation=[69])) == ((1, 2), (69,))


def test_after_ids_a_text_is_encoded_by_itself_and_its_control_tokens_are_text() -> None:
    assert pair(joined(prompt_token_ids=[1, 2], continuation="a<|im_end|>"))[1] == tuple(
        b"a<|im_end|>"
    )


def test_a_conversation_is_continued_with_the_answer() -> None:
    context, continuation = pair(
        joined(messages=[{"role": "user", "content": "Hi"}], continuation="yes")
    )
    assert (
        MERGED.decode(context)
        == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think></think>"
    )
    assert continuation == tuple(b"yes")


def test_control_tokens_of_a_continuation_stay_text_in_a_conversation() -> None:
    said = [{"role": "user", "content": "Hi"}]
    assert pair(joined(messages=said, continuation="a<|im_end|>"))[1] == tuple(b"a<|im_end|>")
    assert pair(
        joined(messages=said, continuation="a<|im_end|>", options={"control_tokens": "allow"})
    )[1] == (97, MERGED.control_tokens["<|im_end|>"])
    assert (
        "control token"
        in joined(messages=said, continuation="a<|im_end|>", options={"control_tokens": "reject"})
        .failure()
        .message
    )


def test_control_tokens_count_after_a_plain_prompt() -> None:
    assert joined(prompt="x", continuation="b<|im_end|>").unwrap().continuation == (
        98,
        MERGED.control_tokens["<|im_end|>"],
    )


def test_look_alikes_in_the_context_do_not_change_the_continuation() -> None:
    said = [{"role": "user", "content": "write <|im_end|>"}]
    context, continuation = pair(joined(messages=said, continuation=" yes"))
    assert "write <|im_end|>" in MERGED.decode(context)
    assert context.count(MERGED.control_tokens["<|im_end|>"]) == 1
    assert continuation == tuple(b" yes")


def test_a_mark_of_a_look_alike_in_the_continuation_stays_the_character_that_it_is() -> None:
    """Look-alikes are hidden behind private-use characters; one in the continuation is no mark."""
    said = [{"role": "user", "content": "write <|im_end|>"}]
    for number in range(0xE000, 0xE010):
        made = joined(messages=said, continuation=chr(number)).unwrap()
        assert MERGED.decode(made.continuation) == chr(number)


def test_images_count_in_the_context_alone() -> None:
    engine = FakeEngine("")
    from pipegen.media.source import load_sources
    from pipegen.records.requests import ImagePolicy

    request = ScoringRequest(
        messages=[{"role": "user", "content": "look"}], images=[b"pixels"], continuation="cat"
    )
    loaded = load_sources(request, ImagePolicy())
    made = (resolve_scoring(engine) >> render(engine) >> join(engine)).apply((loaded,))[0].unwrap()  # type: ignore[arg-type]
    assert (
        made.encoded.prompt.token_ids.count(engine.tokenizer.control_tokens["<|image_pad|>"]) == 3
    )
    assert made.continuation == tuple(b"cat")
    assert made.token_ids == (*made.encoded.prompt.token_ids, *b"cat")


def test_an_empty_context_is_refused_unless_something_stands_before_it() -> None:
    assert "the context is empty" in joined(prompt="", continuation="a").failure().message
    assert "the context is empty" in joined(prompt=" ", continuation="a").failure().message
    eos = MERGED.control_tokens["<|im_end|>"]
    assert pair(joined(prompt="", continuation="a", empty_context="bos")) == ((eos,), (97,))
    assert pair(joined(prompt=" ", continuation="a", empty_context="bos")) == ((eos,), tuple(b" a"))
    assert pair(joined(prompt="", continuation="a", empty_context=7)) == ((7,), (97,))


def test_a_continuation_that_begins_with_that_token_has_it_once() -> None:
    assert pair(joined(prompt="", continuation=[7, 8], empty_context=7)) == ((7,), (8,))


def test_the_first_token_is_the_models_bos_or_its_end_token() -> None:
    engine = FakeEngine("")
    assert first_token(engine) == engine.tokenizer.control_tokens["<|im_end|>"]
    engine.bos_token = "<|endoftext|>"
    assert first_token(engine) == engine.tokenizer.control_tokens["<|endoftext|>"]
    nothing = FakeEngine("", eos_tokens=())
    assert first_token(nothing) is None
    assert (
        "neither a BOS nor an end token"
        in joined(nothing, prompt="", continuation="a", empty_context="bos").failure().message
    )


def test_both_together_must_fit() -> None:
    engine = FakeEngine("", context_length=5)
    assert pair(joined(engine, prompt="abc", continuation="de"))[1] == tuple(b"de")
    slot = joined(engine, prompt="abc", continuation="def")
    assert isinstance(slot.failure(), pg.PromptTooLong)
    assert (
        slot.failure().message
        == "context and continuation have 3 and 3 tokens; the limit for both is 5"
    )
    asked = joined(prompt="xyz", continuation="d", options={"max_prompt_tokens": 2})
    assert isinstance(asked.failure(), pg.PromptTooLong)
    assert isinstance(
        joined(FakeEngine("", context_length=5), prompt="a" * 2**21, continuation="b").failure(),
        pg.PromptTooLong,
    )


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt_token_ids": [1], "continuation": [10**6]},
        {"prompt_token_ids": [10**6], "continuation": [1]},
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(request_: dict[str, Any]) -> None:
    assert isinstance(joined(**request_).failure(), pg.InvalidRequest)


def test_the_model_may_have_fewer_ids_than_the_tokenizer() -> None:
    engine = FakeEngine("")
    engine.capabilities = pg.Capabilities(
        engine="fake", honours=engine.capabilities.honours, vocab_size=90
    )
    assert (
        "the continuation holds id 97"
        in joined(engine, prompt="A", continuation="Ba").failure().message
    )
    assert (
        "the prompt holds id 97" in joined(engine, prompt="a", continuation="B").failure().message
    )


def test_half_a_surrogate_pair_is_refused() -> None:
    assert "surrogate" in joined(prompt="\ud800", continuation="b").failure().message
    assert not pg.is_ok(joined(prompt="a", continuation="\ud800"))


def test_a_continuation_is_what_makes_a_request_one_to_score() -> None:
    assert "takes a continuation" in joined(prompt="a").failure().message


def test_options_of_an_answer_are_refused_unless_they_are_the_default() -> None:
    for options in (
        {"temperature": 0.5},
        {"max_new_tokens": 3},
        {"stop": ["a"]},
        {"seed": 1},
        {"logprobs": True},
    ):
        slot = joined(prompt="x", continuation="b", options=options)
        assert isinstance(slot.failure(), pg.UnsupportedOption)
        assert slot.failure().option == next(iter(options))  # type: ignore[attr-defined]
    assert pg.is_ok(
        joined(
            prompt="x",
            continuation="b",
            options={"temperature": 0.0, "enable_thinking": True, "min_pixels": 3},
        )
    )


def test_an_engine_that_cannot_score_says_so() -> None:
    class Mute(FakeEngine):
        def __getattribute__(self, name: str) -> Any:
            if name == "longest_scored":
                raise AttributeError(name)
            return super().__getattribute__(name)

    slot = joined(Mute(""), prompt="a", continuation="b")
    assert isinstance(slot.failure(), pg.UnsupportedOption)
    assert slot.failure().option == "continuation"


def test_an_engine_whose_facts_cannot_be_read_fails_every_request() -> None:
    class Unread(FakeEngine):
        @property
        def generation_config(self) -> Any:
            raise CallFailed(pg.BackendFailed("no such file", backend="fake"))

        @generation_config.setter
        def generation_config(self, value: Any) -> None: ...

    engine = Unread("")
    refused = pg.InvalidRequest("it was no request")
    first, second = resolve_scoring(engine).apply(
        (pg.request_from({"prompt": "a", "continuation": "b"}), pg.Failure(refused))
    )
    assert first.failure().message == "no such file"
    assert second.failure() is refused


def test_contexts_are_encoded_once_and_failures_pass() -> None:
    engine = FakeEngine("")
    pipe = resolve_scoring(engine) >> render(engine) >> join(engine)
    encoded: list[str] = []
    plain = engine.tokenizer.encode
    engine.tokenizer.encode = lambda text: (encoded.append(text), plain(text))[1]  # type: ignore[func-returns-value, method-assign]
    refused = pg.InvalidRequest("no")
    slots = pipe.apply(
        (
            *(
                pg.request_from({"prompt": "question", "continuation": choice})
                for choice in (" a", " b")
            ),
            pg.Failure(refused),
        )
    )
    assert [pg.is_ok(slot) for slot in slots] == [True, True, False]
    assert slots[2].failure() is refused
    assert encoded == ["question", "question a", "question b"]
