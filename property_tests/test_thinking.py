"""Two calls of bounded thinking give one answer; the reasoning has at most its tokens; the form
holds after it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.toy import ToyTokenizer

TOY = ToyTokenizer()
OPEN, CLOSE = (TOY.control_tokens[text] for text in ("<think>", "</think>"))
EOS = TOY.special_tokens["<|im_end|>"]
PLAIN = st.lists(st.integers(32, 126), max_size=12).map(tuple)
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def writing(ids: tuple[int, ...]) -> FakeEngine:
    """An engine that writes these ids behind its prompt, and goes on where that ends with some of
    them.
    """
    prompts: list[int] = []

    def script(row: Encoded) -> tuple[int, ...]:
        if not prompts:
            prompts.append(len(row.prompt.token_ids) - (row.prompt.token_ids[-1] == OPEN))
        return ids[len(row.prompt.token_ids) - prompts[0] :]

    return FakeEngine(script)


def asked(engine: FakeEngine, **options: Any) -> pg.GenerationResult:
    return pg.run(pg.route(engine), [REQUEST], options)[0].unwrap()


@given(PLAIN, PLAIN, st.integers(1, 40), st.integers(0, 6))
def test_a_thought_that_fits_gives_the_answer_of_one_call(
    thought: tuple[int, ...], answer: tuple[int, ...], most: int, room: int
) -> None:
    ids = (OPEN, *thought, CLOSE, *answer, EOS)
    bound = len(thought) + 1 + room
    whole = asked(writing(ids), enable_thinking=True, max_new_tokens=most)
    split = asked(writing(ids), max_thinking_tokens=bound, max_new_tokens=most)
    for name in ("token_ids", "raw_text", "finish", "stop", "prompt_token_ids", "prompt_text"):
        assert getattr(split, name) == getattr(whole, name), name
    assert split.completion_tokens == whole.completion_tokens
    if len(whole.token_ids) > len(thought) + 2:
        assert split.text == TOY.decode(answer[: most - len(thought) - 2])
        assert split.reasoning == TOY.decode(thought).strip()


@given(PLAIN, PLAIN, st.integers(0, 14), st.integers(1, 40))
def test_a_thought_is_bounded_and_the_length_counts_all(
    thought: tuple[int, ...], answer: tuple[int, ...], bound: int, most: int
) -> None:
    ids = (OPEN, *thought, CLOSE, *answer, EOS)

    def script(row: Encoded) -> tuple[int, ...]:
        return ids[1:] if row.prompt.token_ids[-1] == OPEN else (*answer, EOS)

    result = asked(FakeEngine(script), max_thinking_tokens=bound, max_new_tokens=most)
    sampled = [
        number for place, number in enumerate(result.token_ids) if place not in result.forced
    ]
    end = result.token_ids.index(CLOSE) if CLOSE in result.token_ids else len(result.token_ids)
    assert end - 1 <= bound  # the opening is not sampled
    assert len(result.token_ids) <= most
    kept = (*thought, CLOSE)[:bound]
    assert sampled == [*kept, *answer, EOS][: len(sampled)]
    assert (result.finish is pg.Finish.LENGTH) == (
        len(result.token_ids) == most and result.token_ids[-1] != EOS
    )


@given(PLAIN, st.sampled_from(["yes", "no", "maybe"]), st.integers(0, 14), st.booleans())
def test_the_form_holds_after_the_thought(
    thought: tuple[int, ...], word: str, bound: int, ends: bool
) -> None:
    def script(row: Encoded) -> tuple[int, ...]:
        if row.options.structured is None:
            return (*thought, EOS if ends else CLOSE)
        assert CLOSE in row.prompt.token_ids
        return (*TOY.encode(word), EOS)

    slot = pg.run(
        pg.route(FakeEngine(script)),
        [REQUEST],
        {"max_thinking_tokens": bound, "choice": ["yes", "no"]},
    )[0]
    if word == "maybe":
        assert isinstance(slot.failure(), pg.MalformedResponse)
    else:
        assert (slot.unwrap().text, slot.unwrap().finish) == (word, pg.Finish.EOS)


@given(st.integers(0, 40))
def test_a_template_without_a_thought_is_refused(bound: int) -> None:
    engine = FakeEngine("a", renderer=ToyRenderer(thinking=False))
    error = pg.run(pg.route(engine), [REQUEST], {"max_thinking_tokens": bound})[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert (error.option, engine.calls) == ("max_thinking_tokens", [])
