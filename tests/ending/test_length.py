"""Long prompts, refused before they are tokenised as a whole."""

from __future__ import annotations

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
