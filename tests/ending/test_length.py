"""Long prompts, refused before they are tokenised as a whole."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import PromptTooLong
from pipegen.ending.length import EXACT_BYTES, PIECE, UNCOUNTED_BYTES, check_length
from pipegen.testing.fake import FakeEngine
from pipegen.testing.toy import ToyTokenizer


class Counting(ToyTokenizer):
    """It notes the longest text that it has tokenised, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = self.calls = 0

    def encode(self, text: str) -> tuple[int, ...]:
        self.longest, self.calls = max(self.longest, len(text)), self.calls + 1
        return super().encode(text)


def test_a_text_of_ordinary_length_is_left_to_the_exact_count() -> None:
    tokenizer = Counting()
    assert check_length("x" * EXACT_BYTES, tokenizer, 1) is None
    assert tokenizer.calls == 0


def test_a_long_text_is_counted_in_pieces_until_it_is_over_the_limit() -> None:
    tokenizer = Counting()
    error = check_length("x" * 50_000_000, tokenizer, 300_000)
    assert isinstance(error, PromptTooLong)
    assert error.prompt_tokens > error.limit == 300_000
    assert (
        error.message
        == f"the prompt has at least {error.prompt_tokens} tokens; the limit is 300000"
    )
    assert (tokenizer.calls, tokenizer.longest) == (2, PIECE)


def test_what_it_says_is_a_lower_bound() -> None:
    text = "word <|im_end|> ä漢🎈 " * 100_000
    error = check_length(text, ToyTokenizer(), 1000)
    assert error is not None
    assert error.prompt_tokens <= len(ToyTokenizer().encode(text))


def test_a_long_text_that_fits_is_left_to_the_exact_count() -> None:
    assert check_length("x" * (EXACT_BYTES + 1), ToyTokenizer(), 10**7) is None


def test_half_characters_are_left_to_be_refused_later() -> None:
    assert check_length("\ud800" * (EXACT_BYTES + 1), ToyTokenizer(), 10**8) is None


@pytest.mark.parametrize(("size", "fits"), [(UNCOUNTED_BYTES, True), (UNCOUNTED_BYTES + 1, False)])
def test_without_a_limit_of_tokens_the_bytes_are_limited(size: int, fits: bool) -> None:
    error = check_length("x" * size, ToyTokenizer(), None)
    assert (error is None) == fits
    if error is not None:
        assert "max_prompt_tokens" in error.hint


def test_a_prompt_that_is_too_long_fails_its_own_row_before_it_is_tokenised() -> None:
    tokenizer = Counting()
    engine = FakeEngine("Hello<|im_end|>", tokenizer=tokenizer, context_length=600)
    long = {"messages": [{"role": "user", "content": "x" * 5_000_000}]}
    good, bad, own = pg.run(
        pg.route(engine),
        [
            {"prompt": "Hi"},
            long,
            {"prompt": "y" * 2_000_000, "options": {"max_prompt_tokens": 100}},
        ],
    )
    assert good.unwrap().text == "Hello"
    assert isinstance(bad.failure(), pg.PromptTooLong)
    assert bad.failure().limit == 600
    assert own.failure().limit == 100
    assert tokenizer.longest == PIECE


class OneEach:
    """A token for so many characters."""

    def __init__(self, characters: int = 1) -> None:
        self.characters = characters

    def encode(self, text: str) -> range:
        return range(len(text) // self.characters)


def length_of(text: str, limit: int | None, characters: int = 1) -> PromptTooLong | None:
    tokenizer: Any = OneEach(characters)
    return check_length(text, tokenizer, limit)


def test_a_limit_that_is_just_reached_is_kept() -> None:
    text, counted = "x" * (5 * PIECE), PIECE - 2**11
    assert length_of(text, 5 * counted) is None
    for limit, tokens in ((counted, 2 * counted), (5 * counted - 1, 5 * counted)):
        error = length_of(text, limit)
        assert error is not None
        assert (error.prompt_tokens, error.limit, error.hint) == (
            tokens,
            limit,
            "shorten the prompt",
        )


def test_pieces_of_few_tokens_count_as_none() -> None:
    assert length_of("x" * (5 * PIECE), 0, characters=PIECE) is None


def test_bytes_are_counted_and_not_characters() -> None:
    assert length_of("é" * (EXACT_BYTES // 2), 1) is None
    assert length_of("é" * (EXACT_BYTES // 2 + 1), 1) is not None


def test_without_a_limit_the_message_has_both_numbers() -> None:
    assert length_of("x" * UNCOUNTED_BYTES, None) is None
    error = length_of("x" * (UNCOUNTED_BYTES + 1), None)
    assert error is not None
    assert error.hint == "shorten the prompt, or set max_prompt_tokens"
    assert error.message == (
        f"the prompt has {UNCOUNTED_BYTES + 1} bytes, and the engine's limit of tokens is unknown;"
        f" the limit is then {UNCOUNTED_BYTES} bytes"
    )
