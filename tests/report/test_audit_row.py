"""What a file tells of an answer has to obey its request: right answers do, and each fault is named
by what is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.options import resolve
from pipegen.report.audit_row import disobedience, room_in
from pipegen.testing.fake import FakeEngine

END = "<|im_end|>"
ENGINE = FakeEngine("")
Change = Callable[[pg.GenerationResult], pg.GenerationResult]


def made(text: str, *plugins: pg.Plugin, stage: Any = None, **options: Any) -> pg.GenerationResult:
    """The result of an engine that writes this text."""
    route = pg.route(FakeEngine(text))
    route = pg.attach(route, *plugins) if plugins else route
    route = route.insert(stage, after="stop") if stage is not None else route
    (slot,) = pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 64, **options})
    return slot.unwrap()


def by_chat(
    text: str, ids: Sequence[int] = (), route: str = "openai_chat", **fields: Any
) -> pg.GenerationResult:
    """The result of a chat server."""
    asked = resolve(pg.GenerationOptions(**{"max_new_tokens": 16, **fields.pop("options", {})}))
    known = {"finish": pg.Finish.EOS, "completion_tokens": len(ids), "trimmed_by": (), **fields}
    return pg.GenerationResult(
        text=text, raw_text=text, token_ids=tuple(ids), route=route, options=asked, **known
    )


def encoded(text: str) -> tuple[int, ...]:
    return tuple(ENGINE.tokenizer.encode(text))


def found(result: pg.GenerationResult, room: int | None = None) -> tuple[str, str] | None:
    room = result.options.max_new_tokens if room is None else room
    return disobedience(result, ENGINE.tokenizer, ENGINE.eos_token_ids, room=room)


def changed(**fields: Any) -> Change:
    return lambda result: dataclasses.replace(result, **fields)


def with_options(**options: Any) -> Change:
    return lambda result: dataclasses.replace(
        result, options=dataclasses.replace(result.options, **options)
    )


def text(change: Callable[[str], str]) -> Change:
    return lambda result: dataclasses.replace(result, text=change(result.text))


def both(change: Callable[[str], str]) -> Change:
    """Change the text, and the raw text too."""
    return lambda result: dataclasses.replace(
        text(change)(result), raw_text=change(result.raw_text)
    )


def shorter(tokens: int) -> Change:
    """Cut after so many tokens, text, ids and counts, for its length."""

    def change(result: pg.GenerationResult) -> pg.GenerationResult:
        fields = {"text": result.text[:tokens], "raw_text": result.raw_text[:tokens], "stop": None}
        return dataclasses.replace(
            result,
            **fields,
            token_ids=result.token_ids[:tokens],
            completion_tokens=tokens,
            finish=pg.Finish.LENGTH,
        )

    return change


brief = changed(token_ids=(), prompt_token_ids=())
shout = pg.Plugin(name="shout", trim=str.upper)
louder = pg.pure("louder", text(str.upper))
CHOICE: Any = {"structured": {"choice": ("yes", "no")}}
LONG = made(" It rains and rains", max_new_tokens=16)
ENDED = made(f" It rains. {END}")
STOPPED = made(f"It rains. Indeed{END}", stop=(".",))
LEAST = made(f"It{END}{END}{END}{END}", min_new_tokens=4)
CHOSEN = made(f"yes{END}", **CHOICE)
TRIMMED = made(f"It rains{END}", shout)
CHAT = by_chat(" It rains. ", completion_tokens=12)
LONG_CHAT = by_chat("It rains and rai", completion_tokens=16, finish=pg.Finish.LENGTH)
OF_VLLM = by_chat("It", encoded(f"It{END}"), "vllm_chat")
RIGHT: dict[str, pg.GenerationResult] = {
    "ended": ENDED,
    "cut": LONG,
    "as long as it may be": made(f"It rain{END}", max_new_tokens=8),
    "stop string": STOPPED,
    "stop that ends within a character's bytes": made(f"It rains. Indeéd{END}", stop=("eé",)),
    "stop token": made("It, rains", stop={"stop_token_ids": (ord(","),)}),
    "special stop": made(f"It rains{END}", stop=(END,)),
    "ends ignored": made(f"It{END} rains", max_new_tokens=8, stop={"ignore_eos": True}),
    "special tokens shown": made(f"It rains{END}", decode={"skip_special_tokens": False}),
    "stripped": made(f" It rains \n{END}", decode={"strip_whitespace": True}),
    "at least": LEAST,
    "half a character": made("Ité", max_new_tokens=3),
    "trimmed": TRIMMED,
    "trimmed form": made(f"yes{END}", shout, **CHOICE),
    "looped": made("ha " * 200, pg.plugins.halt_on_repetition(), max_new_tokens=512),
    "changed by a stage": made(f"It rains{END}", stage=louder),
    "choice": CHOSEN,
    "half a choice": made("yes", max_new_tokens=2, **CHOICE),
    "of an older version": changed(text="yes", trimmed_by=None)(made(f"Answer: yes{END}")),
    "brief": brief(ENDED),
    "brief, with a stop": brief(STOPPED),
    "brief, with a stop token": brief(made("It, rains", stop={"stop_token_ids": (ord(","),)})),
    "chat": CHAT,
    "long chat": LONG_CHAT,
    "chat without counts": changed(completion_tokens=0)(LONG_CHAT),
    "chat with ids": by_chat("It", encoded(f"It{END}")),
    "chat of vLLM": OF_VLLM,
    "chat with a stop": changed(raw_text="It.", finish=pg.Finish.STOP_STRING, stop=".")(
        by_chat("It", encoded("It. "), "vllm_chat", options={"stop": (".",)})
    ),
    "chat with a stop that is not named": by_chat(
        "It", encoded("It. "), "vllm_chat", options={"stop": (".",)}
    ),
    "chat without a first space": by_chat("It", encoded(f" It{END}")),
    "chat with a tool": by_chat("", encoded("call"), tool_calls=({"function": {}},)),
    "chat with reasoning": by_chat("So", encoded("I see. So"), reasoning="I see."),
    "a line of a batch": changed(options=pg.GenerationOptions())(by_chat("It")),
    "ids of another vocabulary": by_chat("It", (10**6,)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_obeys(name: str) -> None:
    assert found(RIGHT[name]) is None


LENGTH = changed(finish=pg.Finish.LENGTH, stop=None)
FAULTS: dict[str, tuple[str, pg.GenerationResult, Change]] = {
    "upper case": ("text", ENDED, text(str.upper)),
    "upper case in all": ("text", ENDED, both(str.upper)),
    "upper case in the raw text": ("text", ENDED, changed(raw_text=" IT RAINS. ")),
    "stripped": ("text", ENDED, text(str.strip)),
    "stripped in all": ("text", ENDED, both(str.strip)),
    "first letter missing": ("text", LONG, text(lambda words: words[1:])),
    "last letter missing": ("text", STOPPED, text(lambda words: words[:-1])),
    "stop left in the text": ("text", STOPPED, text(lambda words: words + ".")),
    "upper case in a table": ("text", changed(trimmed_by=None)(ENDED), text(str.upper)),
    "other case before it was trimmed": ("text", TRIMMED, both(str.title)),
    "chat in upper case": ("text", CHAT, text(str.upper)),
    "chat that was stripped": ("text", CHAT, text(str.strip)),
    "chat with other ids": ("text", OF_VLLM, both(str.upper)),
    "brief in upper case": ("text", brief(ENDED), text(str.upper)),
    "form": ("text", CHOSEN, text(lambda words: "perhaps")),
    "form by chat": ("text", by_chat("yes", options=CHOICE), both(lambda words: "perhaps")),
    "form of its ids": ("text", ENDED, with_options(structured=CHOSEN.options.structured)),
    "finish always length": ("length", ENDED, LENGTH),
    "finish always length, of a stop": ("length", STOPPED, LENGTH),
    "finish always length, by chat": ("length", CHAT, LENGTH),
    "finish always eos": ("length", LONG, changed(finish=pg.Finish.EOS)),
    "fewer tokens": ("length", LONG, shorter(5)),
    "fewer tokens by chat": ("length", LONG_CHAT, shorter(5)),
    "more than the limit": ("length", LONG, with_options(max_new_tokens=8)),
    "more than the limit by chat": ("length", LONG_CHAT, changed(completion_tokens=17)),
    "count": ("length", ENDED, changed(completion_tokens=3)),
    "no count": ("length", ENDED, changed(completion_tokens=0)),
    "count of the prompt": ("template", ENDED, changed(prompt_tokens=1)),
    "less than the least": ("length", LEAST, shorter(2)),
    "samples": ("length", ENDED, with_options(samples=2)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_what_is_seen(name: str) -> None:
    kind, right, change = FAULTS[name]
    assert found(right) is None
    seen = found(change(right))
    assert seen is not None
    assert (seen[0], bool(seen[1])) == (kind, True)


def cut_rows(*rows: tuple[int, int]) -> list[pg.GenerationResult]:
    """Rows that were cut where 32 tokens were asked: the tokens of the prompts and the answers."""
    return [
        by_chat(
            "a" * count,
            finish=pg.Finish.LENGTH,
            prompt_tokens=prompt,
            completion_tokens=count,
            clipped_from=32,
            options={"max_new_tokens": count},
        )
        for prompt, count in rows
    ]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (((90, 10), (80, 20), (95, 5)), []),  # the server takes a hundred tokens
        (((90, 10), (40, 10)), [1]),
        (((20, 8), (22, 8), (25, 8)), [0, 1, 2]),  # whatever room there was, all have eight
        (((20, 8), (20, 8), (20, 8)), []),  # there may have been so much room
        (((0, 8), (0, 8), (0, 8)), []),  # the lengths of the prompts are not known
    ],
    ids=str,
)
def test_a_row_that_was_cut_had_as_much_room_as_others_had(
    rows: tuple[tuple[int, int], ...], wrong: list[int]
) -> None:
    results = cut_rows(*rows)
    room = room_in(results)
    seen = [found(one, room(one)) for one in results]
    assert [place for place, one in enumerate(seen) if one is not None] == wrong
    assert all("and 32 were asked" in one[1] for one in seen if one is not None)


def test_a_result_is_judged_by_what_was_asked_before_the_server_lowered_it() -> None:
    (result,) = cut_rows((0, 5))
    assert found(result, room=32) is not None
    assert disobedience(result, ENGINE.tokenizer, ENGINE.eos_token_ids) is None
    assert found(changed(clipped_from=None)(result), room=32) is None
