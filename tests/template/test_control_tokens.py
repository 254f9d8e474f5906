"""Which tokens steer, and the characters that can make them."""

from __future__ import annotations

import pytest

from pipegen.template.control_tokens import ControlTokens, control_tokens
from pipegen.testing.toy import ToyTokenizer


@pytest.mark.parametrize(
    "token",
    [
        *("<|fim_prefix|>", "<|USER_0_TOKEN|>", "<｜User｜>", "<|turn>", "<turn|>", "[INST]"),
        *("[/TOOL_CALLS]", "</s>", "<pad>"),
    ],
)
def test_an_added_token_of_a_shape_that_steers_is_a_control_token_though_no_template_writes_it(
    token: str,
) -> None:
    assert set(control_tokens(ToyTokenizer(special=(), added=(token, "<b>")), "").ids) == {token}


@pytest.mark.parametrize("token", ["<b>", "</table>", "\n\n", "  ", "[1]", "<tile>", "<0x0A>"])
def test_other_added_tokens_are_words_unless_the_template_or_an_image_writes_them(
    token: str,
) -> None:
    tokenizer = ToyTokenizer(special=(), added=(token,))
    assert not control_tokens(tokenizer, "").ids
    steers = token in ("<b>", "</table>", "[1]", "<tile>")
    assert (
        (token in control_tokens(tokenizer, f"say {token}").ids)
        == (token in control_tokens(tokenizer, "", token).ids)
        == steers
    )


class OfWords(ToyTokenizer):
    """One in the manner of BERT: what it has no word for becomes `[UNK]`, and characters of private
    use vanish.
    """

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(
            number if number > 255 else self.control_tokens["[UNK]"]
            for number in super().encode(text.replace("\U000f5a3c", ""))
        )


def test_what_unknown_words_become_is_no_control_token() -> None:
    tokenizer = OfWords(special=("[UNK]", "[CLS]"), added=())
    assert set(control_tokens(tokenizer, "").ids) == {"[CLS]"}


def test_the_longest_of_the_tokens_that_begin_first_is_found() -> None:
    control = ControlTokens(ids={"<a": 1, "<a>": 2, "<a>b": 3, "a>b<": 4})
    assert control.pieces("<a>b<a<a>a>b<") == ["", "<a>b", "", "<a", "", "<a>", "", "a>b<", ""]
    assert ControlTokens(ids={}).pieces("<a>") == ["<a>"]


def test_thousands_of_tokens_are_looked_for_as_one_tree() -> None:
    control = ControlTokens(ids={f"<unused{number}>": number for number in range(6000)})
    assert control.pieces("<unused5999>")[1] == "<unused5999>"
    assert control.found_in("<unused" * 20_000) is None


def test_the_edges_hold_what_normalising_turns_into_them() -> None:
    control = ControlTokens(ids={"<s>": 1, "▁[X] ": 2})
    assert {"<", ">", "[", "]", "\uff1c", "\ufe65", "\u226e"} <= control.edges
    assert not {"s", "S", " ", "▁", "X"} & control.edges
    assert {"s", "S", "X", "x", "\uff33"} <= control.letters


def test_at_most_some_tokens_are_cut_out() -> None:
    control = ControlTokens(ids={"<s>": 1, "[INST]": 2})
    assert control.pieces("a<s>[INST]b<s>", at_most=2) == ["a", "<s>", "", "[INST]", "b<s>"]
