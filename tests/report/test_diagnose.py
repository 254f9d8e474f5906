"""What a server's answers show: each fault by its signs, on records alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pipegen.core.errors import Timeout
from pipegen.records import strict_json
from pipegen.records.fields import unchecked_replace
from pipegen.report.causes import Trials
from pipegen.report.diagnose import judge
from pipegen.report.verdict import MARGIN, SPREAD, Answer, Verdict, limits_of, spread

END = 0
WORDS = range(100, 200)


def answer(
    name: str = "a",
    *,
    way: Any = "chat",
    expected: Sequence[int] = (1, 2, 3),
    ran: Sequence[int] | None = None,
    told: bool = True,
    ids: Sequence[int] = (110, 111, END),
    choices: dict[int, tuple[int, float]] | None = None,
    far: float = 0.0,
    tells: bool = True,
) -> Answer:
    """An answer of which the reference would have chosen otherwise in some places: by how much its
    choice is likelier there.
    """
    likeliest = [(choices or {}).get(place, (token, 0.0)) for place, token in enumerate(ids)]
    prompt = tuple(expected if ran is None else ran)
    return Answer(
        id=name,
        way=way,
        expected=tuple(expected),
        prompt_token_ids=prompt if told and way == "chat" else (),
        prompt_tokens=len(prompt) if way == "chat" else 0,
        token_ids=tuple(ids),
        logprobs=tuple(-1.0 for _ in ids),
        likeliest=tuple((token, -1.0 + margin) for token, margin in likeliest),
        server_logprobs=tuple(-1.0 - far for _ in ids) if tells else (),
        ends=frozenset({END}),
    )


def trying(**tries: Any) -> Any:
    """Trials with some methods of their own."""
    made = {name: staticmethod(one) for name, one in tries.items()}
    return type("Trying", (Trials,), made)()


def kinds(answers: Sequence[Answer], precision: Any = "float32") -> list[str]:
    return [fault.kind for fault in judge(answers, precision)]


def right(count: int = 10, way: str = "ids") -> list[Answer]:
    return [answer(str(number), way=way) for number in range(count)]


def test_nothing_is_wrong_with_answers_that_the_reference_would_have_written() -> None:
    assert kinds([*right(way="chat"), *right()]) == []
    assert kinds([]) == []


@given(
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.lists(
        st.tuples(
            st.sampled_from(["chat", "ids"]), st.floats(0, 1), st.floats(0, 1), st.booleans()
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_what_a_precision_explains_is_no_fault(
    precision: Any, drawn: list[tuple[str, float, float, bool]]
) -> None:
    """However many answers part, and however far their log probabilities are away, within what the
    precision explains.

    Up to 0.999 of that: a difference of two log probabilities is rounded.
    """
    made = [
        answer(
            str(number),
            way=way,
            choices={1: (120, margin * MARGIN[precision] * 0.999)},
            far=far * SPREAD[precision] * 0.999,
            tells=tells,
        )
        for number, (way, margin, far, tells) in enumerate(drawn)
    ]
    assert kinds(made, precision) == []


@given(
    st.randoms(use_true_random=False),
    st.sampled_from(
        ["template", "context", "end tokens", "penalty", "precision", "weights", "chat"]
    ),
)
def test_the_order_of_answers_makes_no_difference(draw: random.Random, fault: str) -> None:
    made = [*CASES[fault]]
    draw.shuffle(made)
    assert kinds(made) == [fault]


LONG = tuple(range(1000))
CASES: dict[str, list[Answer]] = {
    "template": (
        [
            answer(str(n), expected=(1, 2, n, 3), ran=(1, 9, 2, n, 3), choices={0: (120, 9.0)})
            for n in range(5)
        ]
        + right()
    ),
    "context": [
        *right(5, "chat"),
        answer("long", expected=LONG, ran=LONG[:100], choices={0: (120, 9.0)}),
        *right(),
    ],
    "end tokens": [answer("past", ids=(110, END, 111)), *right(9, "chat"), *right()],
    "penalty": (
        [answer(str(n), ids=(110, 111, 112), choices={2: (110, 2.0)}) for n in range(5)]
        + right(5, "chat")
        + right()
    ),
    "precision": [answer(str(n), way=way, far=0.01) for n in range(5) for way in ("chat", "ids")],
    "weights": [
        answer(str(n), way=way, choices={0: (120, 5.0)}, far=3.0)
        for n in range(5)
        for way in ("chat", "ids")
    ],
    "chat": (
        [answer(str(n), choices={1: (150, 2.0)}) for n in range(5)] + right(5, "chat") + right()
    ),
}


@pytest.mark.parametrize("fault", CASES)
def test_each_fault_is_named(fault: str) -> None:
    (found,) = judge(CASES[fault], "float32")
    assert found.kind == fault
    assert found.words
    assert found.example
    assert 0 < found.answers <= found.of


@pytest.mark.parametrize(
    "fault", ["template", "context", "end tokens", "penalty", "precision", "weights"]
)
def test_a_fault_is_named_where_the_server_is_asked_by_chat_alone(fault: str) -> None:
    assert kinds([one for one in CASES[fault] if one.way == "chat"]) == [fault]


def test_a_template_of_another_length_shows_in_the_count_alone() -> None:
    assert kinds(
        [
            answer(str(n), expected=(1, 2, 3), ran=(1, 2), told=False, choices={0: (120, 9.0)})
            for n in range(5)
        ]
        + right()
    ) == ["template"]


def test_a_template_that_leaves_a_piece_out_is_no_short_context() -> None:
    """Its prompts are all shorter by the same piece; a short context cuts the long ones alone."""
    prompts = [tuple(range(1, length)) for length in (5, 9, 30, 200)]
    left_out = [answer(str(len(ids)), expected=ids, ran=(*ids[:1], *ids[3:])) for ids in prompts]
    assert kinds([*left_out, *right()]) == ["template"]
    assert kinds(
        [
            answer(str(len(ids)), expected=ids, ran=ids[-20:] if len(ids) > 20 else ids)
            for ids in prompts
        ]
    ) == ["context"]
    assert kinds([answer(str(len(ids)), expected=ids, ran=ids[-4:]) for ids in prompts[1:]]) == [
        "context"
    ]
    assert kinds(
        [answer(str(len(ids)), expected=ids, ran=ids[-20:], told=False) for ids in prompts[2:]]
    ) == ["context"]
    assert kinds([answer("one", expected=(1, 2, 3), ran=(1, 3))]) == ["template"]


def test_a_prompt_that_the_server_does_not_tell_is_taken_for_the_right_one() -> None:
    unknown = [answer(str(n), ran=(), told=False) for n in range(3)]
    assert not any(one.other_prompt for one in unknown)
    assert kinds(unknown) == []


def test_an_answer_that_ends_where_the_reference_goes_on_ends_at_another_token() -> None:
    early = [answer(str(n), ids=(110, 111, END), choices={2: (130, 6.0)}) for n in range(4)]
    assert kinds([*early, *right()]) == ["end tokens"]
    on = [answer(str(n), ids=(110, 111, 112), choices={2: (END, 6.0)}) for n in range(4)]
    assert kinds([*on, *right()]) == ["end tokens"]
    assert (
        "goes on after '[0]'"
        in judge([answer("past", ids=(110, END, 111)), *right()], decode=lambda ids: str([*ids]))[
            0
        ].example
    )


def test_few_repetitions_that_are_avoided_are_a_penalty_only_where_the_ids_show_the_rest_right() -> (
    None
):
    # new in the answer, though not in the prompt
    avoided = [answer("a", expected=(1, 112), ids=(110, 111, 112), choices={2: (110, 2.0)})]
    assert kinds([*avoided, *right()]) == ["penalty"]
    # the log probabilities are the reference's
    assert kinds([*avoided, *right(9, "chat")]) == ["unknown"]


def test_a_default_is_named_beside_a_lower_precision_but_not_beside_other_weights() -> None:
    avoided = [
        answer(str(n), ids=(110, 111, 112), choices={2: (110, 2.0)}, far=0.01) for n in range(5)
    ]
    assert kinds([*avoided, *[answer(str(n), way="ids", far=0.01) for n in range(5)]]) == [
        "penalty",
        "precision",
    ]
    assert kinds([*avoided, *[answer(str(n), way="ids", far=5.0) for n in range(5)]]) == ["weights"]


def test_without_log_probabilities_the_margins_tell_weights_from_a_precision() -> None:
    def by_margin(margin: float) -> list[Answer]:
        return [
            answer(str(n), way="ids", choices={0: (120, margin)}, tells=False) for n in range(5)
        ]

    assert kinds(by_margin(0.05)) == ["precision"]
    assert kinds(by_margin(0.05), "bfloat16") == []
    assert kinds(by_margin(4.0), "bfloat16") == ["weights"]
    assert spread(by_margin(4.0)) is None


def test_minus_infinity_is_far_away_and_no_more() -> None:
    one = Answer(
        id="a",
        way="ids",
        expected=(1,),
        token_ids=(5, 6),
        logprobs=(float("-inf"), float("-inf")),
        likeliest=((7, -0.1), (6, 0.0)),
        server_logprobs=(-1.0, float("-inf")),
    )
    assert one.parting is not None
    assert (one.parting.margin, one.far) == (20.0, [20.0, 0.0])
    assert kinds([one]) == ["weights"]


def test_a_verdict_is_right_only_where_something_was_judged_and_nothing_failed() -> None:
    held: dict[str, Any] = {
        "url": "u",
        "model": "m",
        "dialect": "vllm",
        "precision": "float32",
        "prompts": 1,
        "answers": 1,
        "agreeing": 1,
        "ways": ("chat",),
    }
    verdict = Verdict(**held, spread=None, margin=0.0, faults=())
    assert verdict.right
    assert not Verdict(**{**held, "answers": 0}, spread=None, margin=0.0, faults=()).right
    assert not Verdict(
        **held, spread=None, margin=0.0, faults=(), failed=(("a", "chat", Timeout("slow")),)
    ).right
    wrong = Verdict(
        **held,
        spread=0.5,
        margin=2.0,
        faults=judge(CASES["template"]),
        failed=(("a", "chat", Timeout("slow")),),
    )
    plain = strict_json.load(strict_json.dump(wrong.plain()))
    assert (plain["right"], plain["faults"][0]["kind"], plain["failed"][0]["error"]["type"]) == (
        False,
        "template",
        "Timeout",
    )


def test_answers_with_the_prompts_of_others_are_in_another_order() -> None:
    prompts = [(1, number, 3) for number in range(10, 16)]
    swapped = [
        answer(str(place), expected=ids, ran=prompts[place ^ 1])
        for place, ids in enumerate(prompts)
    ]
    assert kinds(swapped) == ["order"]
    without_a_turn = [
        answer(str(place), expected=ids, ran=prompts[0]) for place, ids in enumerate(prompts[1:])
    ]
    # one prompt for all is no other order
    assert kinds([answer("first", expected=prompts[0]), *without_a_turn]) == ["template"]


def test_answers_that_vary_are_not_drawn_where_they_are_in_another_order() -> None:
    prompts = [(1, number, 3) for number in range(10, 16)]
    swapped = [
        answer(str(place), expected=ids, ran=prompts[place ^ 1])
        for place, ids in enumerate(prompts)
    ]
    odd = [answer(f"odd {n}", choices={1: (150, 2.0)}) for n in range(4)]
    again = [answer(f"odd {n}", ids=(110, 113, END), far=1.0) for n in range(4)]
    trials = trying(again=lambda names, way: again)
    assert [fault.kind for fault in judge(odd, trials=trials)] == ["sampling"]
    assert [fault.kind for fault in judge([*swapped, *odd], trials=trials)] == ["order"]


def test_what_only_requests_with_images_show_is_a_fault_of_images() -> None:
    odd = [unchecked_replace(answer(str(n), choices={0: (120, 4.0)}), images=1) for n in range(3)]
    assert kinds([*odd, *right(5, "chat")]) == ["images"]
    other = [
        unchecked_replace(answer(str(n), expected=(1, 2, 3, 4), ran=(1, 2)), images=1)
        for n in range(3)
    ]
    assert kinds([*other, *right(5, "chat")]) == ["images"]


@pytest.mark.parametrize(
    "read",
    [
        lambda values: [*values[1:], 0.0],
        lambda values: [value / 0.6931472 for value in values],
        lambda values: [0.0] * len(values),
    ],
)
def test_log_probabilities_that_another_reading_makes_right_are_named_so(read: Any) -> None:
    draw = random.Random(1)

    def one(number: int) -> Answer:
        values = tuple(-draw.random() for _ in range(6))
        made = answer(str(number), way="ids", ids=range(100, 106))
        return unchecked_replace(
            made,
            logprobs=values,
            likeliest=tuple(zip(made.token_ids, values, strict=True)),
            server_logprobs=tuple(read([*values])),
        )

    assert kinds([one(number) for number in range(6)]) == ["logprobs"]


def test_requests_that_have_two_answers_are_drawn() -> None:
    odd = [answer(str(n), way="ids", choices={1: (150, 2.0)}) for n in range(4)]
    again = [answer(str(n), way="ids", ids=(110, 113, END), far=1.0) for n in range(4)]
    assert [fault.kind for fault in judge(odd, trials=trying(again=lambda names, way: again))] == [
        "sampling"
    ]
    assert [fault.kind for fault in judge(odd, trials=trying(again=lambda names, way: odd))] == [
        "unknown"
    ]


def test_answers_that_fit_other_prompts_are_named_by_these() -> None:
    prompts = [(1, number, 3) for number in range(10, 16)]
    odd = [
        answer(str(place), way="ids", expected=ids, choices={0: (150, 9.0)}, far=5.0)
        for place, ids in enumerate(prompts)
    ]

    def fits(change: Any) -> Any:
        def rescore(pairs: Any) -> Any:
            return [
                ((-1.0,) * 3, ((110, -1.0), (111, -1.0), (END, -1.0))) if change(prompt) else None
                for prompt, _ in pairs
            ]

        return trying(rescore=rescore)

    own = [unchecked_replace(one, server_logprobs=(-1.0,) * 3, logprobs=(-6.0,) * 3) for one in odd]
    assert [fault.kind for fault in judge(own, trials=fits(lambda prompt: prompt in prompts))] == [
        "order"
    ]
    assert [
        fault.kind for fault in judge(own, trials=fits(lambda prompt: prompt[:2] == (1, 1)))
    ] == ["template"]
    assert [fault.kind for fault in judge(own, trials=fits(lambda prompt: len(prompt) == 1))] == [
        "context"
    ]
    assert [fault.kind for fault in judge(own)] == ["weights"]


def test_text_alone_is_compared_with_what_the_reference_writes() -> None:
    def written(text: str) -> list[str]:
        odd = [
            unchecked_replace(
                answer(str(n), choices={0: (150, 9.0)}, tells=False), by_text=True, text=text
            )
            for n in range(3)
        ]
        return [
            fault.kind
            for fault in judge(
                odd, trials=trying(written=lambda names: ["Hello there"] * len(names))
            )
        ]

    assert [
        written(text)
        for text in ("HELLO THERE", "Hellothere", "ello there", "Hello ther", "Hello there!!!")
    ] == [["text"]] * 5
    assert written("Hello") == ["length"]
    assert written("Good day") == ["weights"]


def test_a_measured_precision_is_narrower_than_the_table() -> None:
    far = [answer(str(n), way="ids", far=0.05) for n in range(5)]
    assert judge(far, "bfloat16") == ()
    (found,) = judge(far, "bfloat16", limits=limits_of("bfloat16", 0.006))
    assert found.kind == "unknown"
    assert "less than other weights" in found.evidence
    (lower,) = judge(
        far,
        "float32",
        trials=trying(noise=lambda precision: 0.04 if precision == "bfloat16" else 0.001),
    )
    assert (lower.kind, "bfloat16" in lower.evidence) == ("precision", True)
    (neither,) = judge(far, "float32", trials=trying(noise=lambda precision: 0.001))
    assert neither.kind == "unknown"


def told(name: str, change: Any, *, way: str = "chat", prompt: Sequence[int] = (1, 2, 3)) -> Answer:
    """An answer that the reference would have written, with log probabilities that are changed: by
    so much for a token that came before in the answer, in the prompt, or in neither.
    """
    made = answer(name, way=way, expected=prompt, ids=(110, 3, 110, 111, 112, 3, 113, END))
    seen = [
        (token in made.token_ids[:place], token in prompt)
        for place, token in enumerate(made.token_ids)
    ]
    return unchecked_replace(
        made,
        server_logprobs=tuple(
            one + change(*before) for one, before in zip(made.logprobs, seen, strict=True)
        ),
    )


PENALISED = {
    "of the answer": lambda answer, prompt: -0.3 if answer else 0.02,
    "of answer and prompt": lambda answer, prompt: -0.3 if answer or prompt else 0.02,
}


@pytest.mark.parametrize("change", PENALISED.values(), ids=PENALISED)
def test_log_probabilities_that_are_told_after_a_penalty_show_it(change: Any) -> None:
    """SGLang tells them so; one answer in which a token is avoided is then enough, or none."""
    shown = [told(str(number), change) for number in range(6)]
    avoided = answer("other", ids=(110, 111, 112), choices={2: (110, 2.0)}, far=0.02)
    for chat in (shown, [*shown, avoided]):
        for by_ids in ([], right()):
            (found,) = judge([*chat, *by_ids])
            assert (found.kind, found.evidence.partition(" for")[0]) == (
                "penalty",
                "log probabilities are lower",
            )
    assert kinds(
        [*shown, unchecked_replace(avoided, likeliest=((120, 1.0), *avoided.likeliest[1:]))]
    ) != ["penalty"]


@pytest.mark.parametrize(
    "change",
    [
        lambda answer, prompt: 0.3,
        lambda answer, prompt: -0.3,
        lambda answer, prompt: 0.3 if answer else -0.02,
        lambda answer, prompt: -0.3 if answer else 0.0,
    ],
)
def test_other_changes_of_log_probabilities_are_no_penalty(change: Any) -> None:
    assert "penalty" not in kinds([told(str(number), change) for number in range(6)])
