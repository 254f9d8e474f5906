"""A server is asked both ways and its answers are scored: with scripted engines in place of
servers. `test_wrong_servers` has a real model.
"""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.records.parse_request import request_from
from pipegen.report import asking as module
from pipegen.report.asking import Failed, RequestSet, Routes, answers_of, ask
from pipegen.report.diagnose import judge
from pipegen.report.verdict import Answer
from pipegen.testing.fake import FakeEngine, ToyRenderer

GREEDY = "bdfh<|im_end|>"
"""Text of which the scripted reference would have written every token: its ids are even."""


def routes(
    chat: FakeEngine, by_ids: FakeEngine | None = None, reference: FakeEngine | None = None
) -> Routes:
    return Routes(
        pg.route(chat),
        None if by_ids is None else pg.route(by_ids),
        pg.route(reference or FakeEngine("")),
    )


def asked(*contents: str) -> list[dict[str, Any]]:
    return [{"id": text, "messages": [{"role": "user", "content": text}]} for text in contents]


def answers(made: list[Any]) -> list[Answer]:
    assert all(isinstance(one, Answer) for one in made)
    return made


def test_both_ways_are_asked_greedily_and_scored() -> None:
    chat, by_ids, reference = FakeEngine(GREEDY), FakeEngine(GREEDY), FakeEngine("")
    made = answers(answers_of(routes(chat, by_ids, reference), asked("one", "two"), 16))
    seen = [(one.id, one.way) for one in made]
    assert seen == [("one", "chat"), ("two", "chat"), ("one", "ids"), ("two", "ids")]
    assert all(
        call[0].options.max_new_tokens == 16 and call[0].options.temperature == 0
        for call in (*chat.calls, *by_ids.calls)
    )
    assert all(
        one.token_ids == reference.tokenizer.encode(GREEDY)
        and len(one.likeliest) == len(one.token_ids)
        for one in made
    )
    assert made[0].expected == made[0].prompt_token_ids == chat.calls[0][0].prompt.token_ids


def test_a_request_is_scored_whatever_it_asks_beside_its_prompt() -> None:
    """Requests that are asked again say how long, with which stop, and how they are drawn."""
    engine = FakeEngine(GREEDY)
    drawn = {"max_new_tokens": 3, "temperature": 1.0, "seed": 1, "stop": ["x"]}
    request = request_from({**asked("one")[0], "options": drawn})
    (made,) = answers(ask(routes(engine), "chat", RequestSet([request], pg.GenerationOptions())))
    assert len(made.likeliest) == 3
    assert engine.calls[0][0].options.seed == 1
    lengths = [{**one, "options": {"max_new_tokens": 3}} for one in asked("one", "two")]
    made_of = answers(answers_of(routes(FakeEngine(GREEDY), FakeEngine(GREEDY)), lengths, 16))
    assert [len(one.token_ids) for one in made_of] == [3] * 4


def test_another_template_shows_in_the_prompt() -> None:
    made = answers(
        answers_of(
            routes(FakeEngine(GREEDY, renderer=ToyRenderer(thinking=False)), FakeEngine(GREEDY)),
            asked("one", "two"),
            16,
        )
    )
    assert "template" in [fault.kind for fault in judge(made)]


def test_an_end_token_that_the_server_does_not_name_is_put_behind_its_answer() -> None:
    ending = FakeEngine("bd")  # it ends without an end token: the row is aborted, as by no server
    made = answers(answers_of(routes(ending), asked("one"), 16))
    assert made[0].token_ids == ending.tokenizer.encode("bd")
    unnamed = FakeEngine("bd!", eos_tokens=())
    unnamed.eos_token_ids = tuple(unnamed.tokenizer.encode("!"))
    made = answers(answers_of(routes(unnamed), asked("one"), 16))
    assert made[0].token_ids[-1] == FakeEngine("").eos_token_ids[0]


def test_an_empty_answer_shows_the_prompt_and_nothing_else() -> None:
    """A server that cuts a long prompt may have no room left for an answer."""
    held: dict[str, Any] = {
        "id": "a",
        "way": "chat",
        "expected": (1, 2, 3),
        "token_ids": (),
        "logprobs": (),
        "likeliest": (),
    }
    cut = Answer(prompt_tokens=2, **held)
    assert module._judged(cut) is cut
    assert isinstance(module._judged(Answer(prompt_tokens=3, **held)), Failed)
    reference = pg.route(FakeEngine(""))
    result = pg.GenerationResult(
        text="", raw_text="", finish=pg.Finish.LENGTH, options=pg.GenerationOptions()
    )
    row = module._row(reference, result).unwrap()
    assert (row.empty, row.ids) == (True, reference.engine.eos_token_ids[:1])
    assert (
        module._row(pg.route(FakeEngine("", eos_tokens=())), result)
        .failure()
        .message.startswith("the server answers nothing")
    )


def test_a_text_that_the_server_took_apart_is_not_missing() -> None:
    def wrong(**fields: Any) -> list[Any]:
        options = pg.GenerationOptions(max_new_tokens=20)
        known: dict[str, Any] = {"route": "openai_chat", "finish": pg.Finish.LENGTH, **fields}
        result = pg.GenerationResult(
            text="", raw_text="", completion_tokens=20, options=options, **known
        )
        return [*module._wrong(result, routes(FakeEngine("")))]

    assert wrong() == [("text", "20 tokens are counted, and the text is ''")]
    assert wrong(reasoning="I see.") == wrong(tool_calls=({"function": {}},)) == []


def test_a_plain_prompt_is_asked_by_ids_alone() -> None:
    chat, by_ids = FakeEngine(GREEDY), FakeEngine(GREEDY)
    made = answers_of(routes(chat, by_ids), [{"prompt": "Once"}, *asked("one")], 16)
    assert [(one.id, one.way) for one in made] == [("one", "chat"), ("1", "ids"), ("one", "ids")]


def test_what_cannot_be_asked_or_scored_is_told_once_each() -> None:
    def script(encoded: Any) -> Any:
        return pg.Timeout("slow") if b"slow" in str(encoded.request.messages).encode() else GREEDY

    requests = [
        *asked("slow", "quick"),
        {"id": "warm", "prompt": "Hi", "options": {"temperature": 0.7}},
        {"id": "typo", "promt": "Hi"},
    ]
    made = answers_of(routes(FakeEngine(script), FakeEngine(script)), requests, 16)
    failed = [one for one in made if isinstance(one, Failed)]
    assert [(one.id, one.way, type(one.error).__name__) for one in failed] == [
        ("slow", "chat", "Timeout"),
        ("?", "chat", "InvalidRequest"),
        ("?", "chat", "InvalidRequest"),
        ("slow", "ids", "Timeout"),
    ]
    assert "without the option temperature" in failed[1].error.message


def test_what_the_way_by_ids_does_not_honour_is_no_failure() -> None:
    refusing = FakeEngine(lambda _: pg.UnsupportedMultimodal("no images by ids"))
    made = answers_of(routes(FakeEngine(GREEDY), refusing), asked("one"), 16)
    assert [(type(one), one.way) for one in made] == [(Answer, "chat")]


def test_a_text_that_may_have_been_written_in_other_tokens_is_judged_up_to_there() -> None:
    """The tokens of a text are the reference's own reading: where its choice goes on with the same
    text, nothing is known.
    """
    reference = FakeEngine("")
    held: dict[str, Any] = {"way": "chat", "expected": (1,), "logprobs": (-1.0, -9.0, -1.0)}
    ids = tuple(reference.tokenizer.encode("abc"))
    b_again = (*reference.tokenizer.encode("b"), 7)

    def likeliest(choice: int) -> tuple[tuple[int, float], ...]:
        return ((ids[0], -1.0), (choice, -0.1), (ids[2], -1.0))

    longer = Answer(id="a", token_ids=(ids[0], 7, ids[2]), likeliest=likeliest(ids[1]), **held)
    other = Answer(id="a", token_ids=ids, likeliest=likeliest(ids[2]), **held)

    class Pieces:
        """Id 7 is a longer token: `bc` in one."""

        eos_token_ids = (2,)

        class tokenizer:
            @staticmethod
            def decode(token_ids: Any) -> str:
                return "".join(
                    "bc" if one == 7 else reference.tokenizer.decode((one,)) for one in token_ids
                )

    route: Any = type("R", (), {"engine": Pieces})
    assert module._read_as_written(longer, route).token_ids == ids[:1]
    assert module._read_as_written(other, route) is other
    assert b_again[1] == 7


TEXTS = ("List the months of the year.", "Hi", "What is 2 + 3?", "日本の首都はどこですか。")


def test_a_server_tells_how_far_it_is_and_leaves_its_defaults_alone() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("aiohttp")
    from support.wrong_server import ModelServer

    told: list[tuple[int, str]] = []
    with (
        pg.backends.hf("embedded", dtype="float32") as embedded,
        ModelServer(embedded, "plain") as server,
    ):
        tell = lambda done, words: told.append((done, words))  # noqa: E731
        found = pg.verify(
            server.url, "embedded", asked(*TEXTS), reference=embedded, max_new_tokens=12, tell=tell
        )
    assert found.right
    assert (
        found.dialect,
        found.ways,
        found.prompts,
        found.answers,
        found.agreeing,
        found.spread,
    ) == ("plain", ("chat",), 4, 4, 4, None)
    assert (4, "") in told
    assert {"repetition_penalty", "top_p", "presence_penalty", "chat_template_kwargs"}.isdisjoint(
        server.sent[0]
    )


def test_a_server_that_is_down_is_an_error_of_the_call() -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(pg.CallFailed, match="9"):
        pg.verify("http://127.0.0.1:9", "embedded", [], timeout=5.0, retries=0)
