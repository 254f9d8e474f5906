"""Trimming twice changes nothing; a loop ends at its first character for any pieces; reasoning and
answer come back as written.
"""

from __future__ import annotations

from hypothesis import given, strategies as st

from pipegen.plugins import halt_on_repetition, reasoning_of, split_reasoning, strip_prefix
from pipegen.plugins.repetition import PLAIN
from pipegen.testing.plugin_suite import check_watch

settings = st.fixed_dictionaries(
    {"ngram": st.integers(1, 6), "count": st.integers(2, 4), "min_length": st.integers(1, 12)}
)
runs = st.text(alphabet="ab 0", max_size=5)
looping = st.lists(st.tuples(runs, st.integers(1, 6)), max_size=4).map(
    lambda parts: "".join(run * times for run, times in parts)
)
words = st.text(alphabet="ab <\n", max_size=12)


def loops(text: str, ngram: int, count: int, min_length: int) -> bool:
    """By the definition: the text ends in a loop, and not in plain characters alone."""
    echo = -(-min_length * (count - 1) // count)
    if not text or text[-1].isspace() or not set(text[-echo:]) - set(PLAIN):
        return False
    for length in range(1, ngram + 1):
        whole = max(count * length, min_length)
        if len(text) >= whole and all(
            text[-place] == text[-place - length] for place in range(1, whole - length + 1)
        ):
            return True
    return False


@given(text=looping, said=settings)
def test_the_watch_halts_at_the_first_loop_and_the_trim_sees_the_same(
    text: str, said: dict[str, int]
) -> None:
    plugin = halt_on_repetition(**said)
    assert plugin.start is not None
    assert plugin.feed is not None
    assert plugin.trim is not None
    first = next((end for end in range(len(text) + 1) if loops(text[:end].lstrip(), **said)), None)
    assert plugin.feed(plugin.start(), text)[1] == first
    check_watch(plugin, text)
    for end in range(len(text) if first is None else first):
        assert plugin.trim(text[:end]) == text[:end] or loops(text[:end].strip(), **said)
    if first is not None:
        trimmed = plugin.trim(text[:first])
        assert len(trimmed) < first
        assert text.startswith(trimmed)


@given(text=looping, said=settings)
def test_trimmed_text_is_a_beginning_with_nothing_left_to_trim(
    text: str, said: dict[str, int]
) -> None:
    trim = halt_on_repetition(**said).trim
    assert trim is not None
    trimmed = trim(text)
    assert text.startswith(trimmed)
    assert trim(trimmed) == trimmed
    assert (
        trim(text.strip()) == trimmed.strip()
        if trimmed != text
        else trim(text.strip()) == text.strip()
    )
    assert (trimmed != text) == loops(text.strip(), **said)


@given(
    reasoning=words,
    answer=words,
    opened=st.booleans(),
    before=st.sampled_from(["", "\n", "<think>", " <think>\n"]),
)
def test_reasoning_and_answer_come_back(
    reasoning: str, answer: str, opened: bool, before: str
) -> None:
    text = f"{before}{reasoning}</think>\n{answer}"
    assert reasoning_of(text, opened=opened) == (reasoning.strip(), answer.lstrip(), True)
    trim = split_reasoning(opened=opened).trim
    assert trim is not None
    assert trim(text) == answer.lstrip()
    unfinished = reasoning_of(f"<think>{reasoning}", opened=opened)
    assert unfinished == (reasoning.strip(), "", False)
    assert reasoning_of(answer) == (None, answer, True)


@given(
    before=st.text(alphabet=" \n", max_size=3),
    marker=st.sampled_from(["A:", "A:\n", "AB:"]),
    answer=words,
)
def test_what_follows_a_marker_comes_back(before: str, marker: str, answer: str) -> None:
    trim = strip_prefix(("A:", "AB:", "A:\n")).trim
    assert trim is not None
    assert trim(before + marker + answer) == answer.lstrip()
    assert trim(before + answer) == before + answer
