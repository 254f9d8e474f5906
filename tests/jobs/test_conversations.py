"""A result that a job gives again is continued as the live one; a conversation has one shard."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.names import InvalidField
from pipegen.testing.fake import FakeEngine
from pipegen.testing.image_files import image_file

USER = {"role": "user", "content": "Hi"}


def look(city: str) -> str:
    """Looks.

    city: where."""
    return f"fine in {city}"


def reply(result: pg.GenerationResult) -> str | None:
    return "And then?" if len(result.text) < 4 else None


def route(**how: Any) -> Any:
    def script(row: Any) -> str:
        return "Yes, it is.<|im_end|>" if row.request.continues else "Yes<|im_end|>"

    return pg.route(FakeEngine(script, **how))


def both(pipe: Any, request: Any, folder: Path, options: Any = None) -> list[Any]:
    """The live result of a job, and the one that it gives again."""
    results = []
    for _ in range(3):
        with pg.job(pipe, [request], folder, options) as running:
            results.append(next(running).unwrap())
    return results


def alike(live: Any, *again: Any) -> None:
    wanted = live.then("And you?")
    for one in again:
        assert one == live
        assert one.then("And you?") == wanted
        assert one.then("And you?").continues.sampled == wanted.continues.sampled
        assert pickle.loads(pickle.dumps(one)).then("And you?") == wanted


@pytest.mark.parametrize(
    "request_",
    [{"messages": [USER]}, {"messages": [USER], "options": {"samples": 2, "temperature": 1.0}}],
)
def test_a_result_of_text_goes_on(request_: Any, tmp_path: Path) -> None:
    results = both(route(), request_, tmp_path)
    alike(*results)
    for samples in zip(*(one.samples for one in results), strict=True):
        alike(*samples)


def test_rounds_of_a_step_of_turns_and_of_tools_go_on(tmp_path: Path) -> None:
    alike(*both(pg.turns(route(), reply), {"messages": [USER]}, tmp_path / "step"))
    alike(*both(pg.turns(route()), {"turns": ["Hi", "So?", "And?"]}, tmp_path / "turns"))
    agent = pg.turns(route(), pg.tools([look]))
    results = both(agent, {"messages": [USER]}, tmp_path / "tools")
    alike(*results)
    assert results[1].then("And?").tools


def test_a_result_with_images_goes_on_with_the_same_ids(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(image_file(width=40, height=30))
    for images in ([str(file)], [file.read_bytes()]):
        folder = tmp_path / str(len(str(images)))
        alike(*both(route(), {"prompt": "What is it?", "images": images}, folder))


def test_a_stage_that_changes_the_messages_is_gone_on_after(tmp_path: Path) -> None:
    other = pg.TextGenerationRequest(messages=[{"role": "user", "content": "Other"}])
    pipe: Any = pg.pure("other", lambda request: other) >> route()
    live, again, _ = both(pipe, {"messages": [USER]}, tmp_path)
    assert again.then("And?").messages == live.then("And?").messages


def test_what_cannot_be_known_is_refused_in_words(tmp_path: Path) -> None:
    def more(result: pg.GenerationResult) -> Any:
        return {"messages": [USER]}

    *_, again = both(pg.repeat(route(), more, limit=2), {"messages": [USER]}, tmp_path)
    with pytest.raises(InvalidField, match="give its request too"):
        again.then("And?")
    with pytest.raises(InvalidField, match="all of its conversation as messages"):
        again.then("And?", request={"messages": [USER]})


@pytest.mark.parametrize("history", ["kept", "template"])
@pytest.mark.parametrize("kind", ["words", "an image", "an id", "an answer before", "samples"])
def test_a_conversation_stays_in_its_shard(kind: str, history: Any) -> None:
    def request(number: int) -> dict[str, Any]:
        user = {"role": "user", "content": f"Hi {number}"}
        if kind == "an image":
            return {"prompt": "What is it?", "images": [b"%d" % number]}
        before = [USER, {"role": "assistant", "content": "Yes."}]
        more = {"id": f"row {number}"} if kind == "an id" else {}
        return {"messages": [*before, user] if kind == "an answer before" else [user], **more}

    options = {"samples": 2, "seed": 3, "temperature": 1.0} if kind == "samples" else {}
    requests = [request(number) for number in range(12)]
    for part in (1, 2, 3):
        turn = list(pg.shard(requests, part, 3))
        for words in ("And?", "So?"):
            results = [slot.unwrap() for slot in pg.run(route(), turn, options)]
            turn = [
                one.then(words, history=history)
                for result in results
                for one in result.samples or (result,)
            ]
            assert turn and list(pg.shard(turn, part, 3)) == turn
