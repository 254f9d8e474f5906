"""Hypothesis strategies for chat messages and for texts that imitate control tokens.

>>> from hypothesis import find
>>> find(hostile_texts(("<s>",)), lambda text: "<s>" in text)
'<s>'
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["harmless_texts", "hostile_texts", "messages"]

_HARMLESS = (
    *(
        "Hello",
        " the fox",
        "12 + 30",
        "\n",
        "\n\n\n",
        "  ",
        "é",
        "你好",
        "👩‍🚀",
        "e\u0301",
        '{"a": 1}',
        "<b>",
        "a < b",
        "[1]",
        "|",
        "\\n",
    ),
    *("user\n", "\ue000", "\\ue000", "\ufb01", "\uff1cs\uff1e"),
)


def hostile_texts(control: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts full of control tokens, whole, halved, nested and doubled, among harmless ones and
    white space.
    """
    token = st.sampled_from(control)
    halves = token.flatmap(
        lambda text: st.integers(1, max(1, len(text) - 1)).flatmap(
            lambda at: st.sampled_from((text[:at], text[at:]))
        )
    )
    nested = st.tuples(token, token, st.integers(1, 4)).map(
        lambda three: three[0][: three[2]] + three[1] + three[0][three[2] :]
    )
    piece = st.one_of(
        token, token, halves, halves, nested, st.sampled_from(_HARMLESS), st.text(max_size=5)
    )
    return st.lists(piece, max_size=8).map("".join)


def harmless_texts(control: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts that hold no control token."""
    texts = st.lists(st.one_of(st.sampled_from(_HARMLESS), st.text(max_size=8)), max_size=8).map(
        "".join
    )
    return texts.filter(lambda text: not any(token in text for token in control))


def messages(
    texts: st.SearchStrategy[str], *, parts: bool = True, tools: bool = False
) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Conversations that end with the user: an optional system turn, then turns by user, assistant
    and (with `tools`) tool.

    User and tool content is drawn from `texts`, as a string or (with `parts`) as a list of text
    parts; the other turns are harmless.
    """
    content = (
        st.one_of(
            texts,
            st.lists(
                texts.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3
            ),
        )
        if parts
        else texts
    )
    user = content.map(lambda value: {"role": "user", "content": value})
    tool = content.map(lambda value: {"role": "tool", "content": value, "name": "look"})
    answer = st.just({"role": "assistant", "content": "Well, yes."})
    exchange = (
        st.one_of(st.tuples(user, answer), st.tuples(user, answer, tool))
        if tools
        else st.tuples(user, answer)
    )
    system = st.sampled_from([[], [{"role": "system", "content": "Be brief."}]])
    return st.tuples(system, st.lists(exchange, max_size=2), user).map(
        lambda turns: [*turns[0], *(turn for pair in turns[1] for turn in pair), turns[2]]
    )
