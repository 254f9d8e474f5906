"""`result.rollout`: the ids of a conversation, and which of them were sampled."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.names import InvalidField
from pipegen.media.source import load_sources
from pipegen.records.rollouts import runs_of
from pipegen.testing.fake import FakeEngine, ToyRenderer

USER = {"role": "user", "content": "Hi"}
LOGPROBS = {"logprobs": True}


def embedded() -> pg.Route:
    pytest.importorskip("torch")
    return pg.backends.hf("embedded")


def route(answer: str) -> pg.Route:
    return pg.route(FakeEngine(answer))


def ask(pipe: Any, request: Any, options: Any = None) -> pg.GenerationResult:
    result: pg.GenerationResult = pg.run(pipe, [request], options)[0].unwrap()
    return result


def talk(pipe: Any, *words: str, options: Any = None) -> list[pg.GenerationResult]:
    """A conversation, turn by turn."""
    results = [ask(pipe, {"id": "T", "messages": [USER]}, options)]
    for word in words:
        results.append(ask(pipe, results[-1].then(word), options))
    return results


def sampled(rollout: pg.Rollout) -> tuple[int, ...]:
    marked = zip(rollout.token_ids, rollout.mask, strict=True)
    return tuple(token for token, own in marked if own)


def held(results: list[pg.GenerationResult]) -> None:
    """The law: the ids are those of the last prompt and answer, and what is marked is what was
    sampled, in order.
    """
    first, last, rollout = results[0], results[-1], results[-1].rollout
    assert rollout.prompt_token_ids == first.prompt_token_ids
    ids = last.prompt_token_ids + last.token_ids
    assert rollout.prompt_token_ids + rollout.token_ids == ids
    own = [[place not in one.forced for place in range(len(one.token_ids))] for one in results]
    assert sampled(rollout) == tuple(
        token
        for one, places in zip(results, own, strict=True)
        for token, was_sampled in zip(one.token_ids, places, strict=True)
        if was_sampled
    )
    for one, places in zip(results, own, strict=True):
        start = len(one.prompt_token_ids) - len(first.prompt_token_ids)
        assert [*rollout.mask[start : start + len(one.token_ids)]] == places


def test_one_answer_is_a_rollout_that_was_sampled_whole() -> None:
    (one,) = talk(route("Yes.<|im_end|>"))
    held([one])
    assert one.rollout.id == "T" and all(one.rollout.mask)
    assert (one.rollout.logprobs, one.rollout.images) == (None, ())


@pytest.mark.parametrize("ending", ["<|im_end|>", "", " STOP it"])
def test_the_mask_marks_the_answers_of_all_turns(ending: str) -> None:
    results = talk(route(f"Yes.{ending}"), "And?", "Sure?", options={"stop": ["STOP"]})
    for count in (1, 2, 3):
        held(results[:count])


def test_log_probabilities_are_those_of_each_turn() -> None:
    with embedded() as model:
        results = talk(model, "What is 2 + 3?", "Why?", options={**LOGPROBS, "max_new_tokens": 6})
    held(results)
    rollout = results[-1].rollout
    wanted = [one.logprob for result in results for one in result.logprobs or ()]
    assert rollout.logprobs is not None
    pairs = list(zip(rollout.logprobs, rollout.mask, strict=True))
    assert [value for value, own in pairs if own] == wanted
    assert {value for value, own in pairs if not own} == {0.0}


def test_a_turn_without_log_probabilities_leaves_them_out() -> None:
    with embedded() as model:
        (one,) = talk(model, options=LOGPROBS)
        two = ask(model, one.then("And?"))
        three = ask(model, two.then("And?"), LOGPROBS)
    assert one.rollout.logprobs is not None
    assert two.rollout.logprobs is three.rollout.logprobs is None
    held([one, two, three])


def test_a_loop_of_turns_has_one_and_so_has_its_line_in_a_file(tmp_path: Path) -> None:
    answers = route("Yes.<|im_end|>")
    pipe = pg.turns(answers, lambda result: "And?", limit=3)
    result = ask(pipe, {"id": "T", "messages": [USER]})
    held(list(result.rounds))
    assert result.rollout == result.rounds[-1].rollout
    read = pg.from_plain(json.loads(json.dumps(pg.to_plain(pg.Success(result))))).unwrap()
    assert read.turn is None and read.rollout == result.rollout
    with pg.job(pipe, [{"id": "T", "messages": [USER]}], tmp_path) as job:
        assert [slot.unwrap().rollout for slot in job] == [result.rollout]


def test_a_loop_that_goes_on_with_a_conversation_has_its_earlier_turns() -> None:
    answers = route("Yes.<|im_end|>")
    one, two = talk(answers, "And?")
    result = ask(pg.turns(answers, lambda result: "So?", limit=2), two.then("Sure?"))
    held([one, two, *result.rounds])
    read = pg.from_plain(pg.to_plain(pg.Success(result))).unwrap()
    with pytest.raises(InvalidField, match="does not hold the turns before it"):
        _ = read.rollout


def test_samples_have_their_own() -> None:
    options = {"samples": 2, "seed": 1, "temperature": 1.0}
    drawn = pg.route(FakeEngine(lambda row: f"{row.options.seed}<|im_end|>"))
    one = ask(drawn, {"messages": [USER]}, options)
    for sample in one.samples:
        held([sample, ask(drawn, sample.then("And?"))])
    assert one.rollout == one.samples[0].rollout != one.samples[1].rollout


def test_rounds_that_are_several_conversations_have_that_of_the_last() -> None:
    def again(result: pg.GenerationResult) -> pg.GenerationRequest:
        return pg.TextGenerationRequest(messages=[USER])

    result = ask(pg.repeat(route("Yes.<|im_end|>"), again, limit=2), {"messages": [USER]})
    held([result.rounds[-1]])
    two = talk(route("Yes.<|im_end|>"), "And?")[-1]
    (other,) = talk(route("Other.<|im_end|>"))
    told = pg.GenerationResult(**{name: getattr(two, name) for name in _NAMES}, rounds=(other, two))
    with pytest.raises(InvalidField, match="its rounds are several conversations"):
        _ = told.rollout


_NAMES = ("text", "raw_text", "prompt_token_ids", "token_ids", "finish", "options", "exact")


def test_a_prompt_that_was_written_anew_begins_another_rollout() -> None:
    answers = route("Yes.<|im_end|>")
    (one,) = talk(answers)
    again = ask(answers, one.then("And?", history="template"))
    assert again.exact is False
    with pytest.raises(
        InvalidField, match=r"has 2 rollouts, .* take them all, from result.rollouts"
    ):
        _ = again.rollout
    after = ask(answers, again.then("And then?"))
    assert after.exact is True
    first, second = after.rollouts
    assert first == one.rollout and one.rollouts == (first,)
    assert second.ids == after.prompt_token_ids + after.token_ids
    assert second.prompt_token_ids == again.prompt_token_ids
    assert sampled(second) == again.token_ids + after.token_ids
    count = second.shared_prefix  # the template has no thought before the answer
    assert first.shared_prefix == 0 and count < len(one.prompt_token_ids)
    assert second.ids[:count] == first.ids[:count] and second.ids[count] != first.ids[count]
    kept = pg.from_plain(pg.to_plain(pg.Success(after))).unwrap()
    with pytest.raises(InvalidField, match="read from a file"):
        _ = kept.rollouts
    asked = pickle.loads(pickle.dumps(after.then("So?", history="template")))
    last = ask(answers, asked)
    assert last.rollouts[:2] == after.rollouts and len(last.rollouts) == 3


def test_rollouts_come_through_plain_data_too() -> None:
    answers = route("Yes.<|im_end|>")
    (one,) = talk(answers)
    two = ask(answers, one.then("And?", history="template"))
    request = two.then("So?")
    continues = request.continues
    assert continues is not None and continues.earlier == one.rollouts
    plain = {
        "messages": continues.messages,
        "prompt_token_ids": continues.prompt_token_ids,
        "token_ids": continues.token_ids,
        "sampled": continues.sampled,
        "image_grid_thw": [[1, 2, 6], None],
        "earlier": [pg.to_plain(pg.Success(rollout)) for rollout in continues.earlier],
    }
    del plain["earlier"][0]["ok"]
    messages = [{"role": one.role, "content": one.content} for one in request.messages or ()]
    data = {"id": "T", "messages": messages, "continues": json.loads(json.dumps(plain))}
    (read,) = pg.run(answers, [data])
    assert read.unwrap().rollouts == ask(answers, request).rollouts
    record = pg.TextGenerationRequest(**data)
    assert record.continues is not None
    assert record.continues.image_grid_thw == ((1, 2, 6), None)
    for name in ("earlier", "image_grid_thw"):
        wrong = {**data["continues"], name: 3}
        assert name in pg.run(answers, [{**data, "continues": wrong}])[0].failure().message


def test_a_prompt_with_another_image_is_another_rollout() -> None:
    answers = route("Red.<|im_end|>")
    one = ask(answers, {"prompt": "What is it?", "images": [b"an image"]})

    def looked(place: int, image: bytes) -> pg.GenerationResult:
        result = ask(answers, {"prompt": "What is it?", "images": [image]})
        ids = result.prompt_token_ids if place == 0 else one.prompt_token_ids + one.token_ids
        values: dict[str, Any] = {
            name: getattr(result, name) for name in (*_NAMES, "image_digests")
        }
        return pg.GenerationResult(**{**values, "prompt_token_ids": ids})

    rounds = looked(0, b"an image"), looked(1, b"another")
    values: dict[str, Any] = {name: getattr(rounds[1], name) for name in _NAMES}
    result = pg.GenerationResult(rounds=rounds, **values)
    first, second = result.rollouts
    assert first.image_digests != second.image_digests
    assert second.shared_prefix == 0


def test_a_job_has_the_rollouts_of_its_rows_and_a_table_has_a_line_for_each(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow")

    def again(result: pg.GenerationResult) -> pg.GenerationRequest:
        return result.then("And?", history="template")

    pipe = pg.repeat(route("Yes.<|im_end|>"), again, limit=3)
    rollouts = ask(pipe, {"id": "T", "messages": [USER]}).rollouts
    for _ in range(2):  # the second reads what the first has written
        with pg.job(pipe, [{"id": "T", "messages": [USER]}], tmp_path / "job") as job:
            (slot,) = job
        assert slot.unwrap().rollouts == slot.unwrap().rounds[-1].rollouts == rollouts
    rows = [({"id": rollout.id}, pg.Success(rollout)) for rollout in rollouts]
    assert pg.write_table(tmp_path / "x.parquet", rows, kind=pg.Rollout) == 3
    shared = [row["shared_prefix"] for row in pg.read_table(tmp_path / "x.parquet")]
    assert shared == [rollout.shared_prefix for rollout in rollouts] and shared[2] > shared[0] == 0
    for rollout in rollouts:
        assert pg.from_plain(pg.to_plain(pg.Success(rollout)), pg.Rollout).unwrap() == rollout
    old = pg.to_plain(pg.Success(rollouts[0]))
    del old["shared_prefix"]  # as an earlier version wrote it
    assert pg.from_plain(old, pg.Rollout).unwrap() == rollouts[0]


def test_turns_before_a_branch_are_in_the_first_rollout_alone() -> None:
    answers = route("Yes.<|im_end|>")
    one = ask(answers, {"prompt": "What is it?", "images": [b"an image"]})
    pipe = pg.repeat(answers, lambda result: one.then("Or?"), limit=2)
    result = ask(pipe, one.then("And?"))
    first, second = result.rollouts
    assert first == result.rounds[0].rollout
    assert sampled(first) == one.token_ids + result.rounds[0].token_ids
    assert sampled(second) == result.rounds[1].token_ids
    assert second.shared_prefix > len(one.prompt_token_ids + one.token_ids)
    anew = ask(answers, one.then("And?", history="template"))
    assert anew.rollouts[0] == one.rollout  # as the request holds it, with its image
    request = one.then("And?", history="template")
    assert request.continues is not None
    unsampled = dataclasses.replace(request.continues, sampled=())
    request = dataclasses.replace(request, continues=unsampled)
    assert ask(answers, request).rollouts[0].mask == ()


def test_each_rollout_is_what_the_model_gives_for_its_ids() -> None:
    options = {**LOGPROBS, "max_new_tokens": 8, "max_thinking_tokens": 4}
    with embedded() as model:
        (one,) = talk(model, options=options)
        two = ask(model, one.then("What is 2 + 3?"), options)
        three = ask(model, two.then("Why?", history="template"), options)
        four = ask(model, three.then("Sure?"), options)
        rollouts = four.rollouts
        scores = pg.score(
            model,
            [
                {"prompt_token_ids": one.prompt_token_ids, "continuation": one.token_ids}
                for one in rollouts
            ],
        )
    assert len(rollouts) == 2 and rollouts[1].shared_prefix > 0
    assert sum(map(sum, [one.mask for one in rollouts])) == sum(
        len(one.token_ids) - len(one.forced) for one in (one, two, three, four)
    )
    for rollout, slot in zip(rollouts, scores, strict=True):
        assert rollout.logprobs is not None
        wanted = slot.unwrap().token_logprobs
        for own, made, alone in zip(rollout.mask, rollout.logprobs, wanted, strict=True):
            assert not own or made == pytest.approx(alone, abs=2e-4)


def test_a_render_of_all_turns_that_has_the_same_ids_is_exact() -> None:
    answers = pg.route(FakeEngine("Yes.<|im_end|>", renderer=ToyRenderer(thinking=False)))
    (one,) = talk(answers)
    two = ask(answers, one.then("And?", history="template"))
    assert two.exact
    held([one, two])


def test_an_answer_whose_ids_nobody_told_is_refused() -> None:
    (one,) = talk(route("Yes.<|im_end|>"))
    for told in (
        {"prompt_token_ids": ()},
        {"token_ids": ()},
    ):
        values = {name: getattr(one, name) for name in _NAMES} | told
        result = pg.GenerationResult(**values, completion_tokens=5)
        with pytest.raises(InvalidField, match="a chat server rendered its prompt and gave no ids"):
            _ = result.rollout


def test_it_comes_through_requests_that_are_plain_data_or_pickled() -> None:
    answers = route("Yes.<|im_end|>")
    one, two = talk(answers, "And?")
    request = pickle.loads(pickle.dumps(two.then("So?")))
    held([one, two, ask(answers, request)])
    continues = request.continues
    plain = {
        name: getattr(continues, name)
        for name in ("messages", "prompt_token_ids", "token_ids", "sampled")
    }
    messages = [{"role": one.role, "content": one.content} for one in request.messages]
    data = json.loads(json.dumps({"messages": messages, "continues": plain}))
    held([one, two, ask(answers, data)])
    del data["continues"]["sampled"]
    with pytest.raises(InvalidField, match="the ids of the turns before it are not known"):
        _ = ask(answers, data).rollout
    for wrong in ([[3, 1]], [[1]], "ab", [[0, 10_000]], 3):
        data["continues"]["sampled"] = wrong
        assert "sampled" in pg.run(answers, [data])[0].failure().message
    data["continues"]["sampled"] = [[0, 1]]
    data["continues"]["logprobs"] = 3
    assert "a list of numbers" in pg.run(answers, [data])[0].failure().message


def test_no_answer_depends_on_what_was_sampled_before(tmp_path: Path) -> None:
    answers = route("Yes.<|im_end|>")
    request = talk(answers)[0].then("And?")
    assert request.continues is not None
    values = {"messages": 2, "prompt_token_ids": request.continues.prompt_token_ids}
    other = pg.TextGenerationRequest(
        id="T",
        messages=request.messages,
        continues={**values, "token_ids": request.continues.token_ids, "logprobs": [-1.0] * 5},
    )
    assert other == request
    with pg.job(answers, [request], tmp_path) as job:
        list(job)
    with pg.job(answers, [other], tmp_path) as job:
        list(job)
        assert job.reused == 1


def test_images_come_as_they_were_named(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"an image")
    answers = route("Red.<|im_end|>")
    one = ask(answers, {"prompt": "What is it?", "images": [file]})
    two = ask(answers, one.then("And this?", images=[b"another"]))
    held([one, two])
    rollout = two.rollout
    assert rollout.images == (pg.ImageSource(path=str(file)), pg.ImageSource(data=b"another"))
    assert rollout.image_digests == two.image_digests and len(rollout.image_grid_thw) == 2
    plain = json.loads(json.dumps(pg.to_plain(pg.Success(rollout))))
    read = pg.from_plain(plain, pg.Rollout).unwrap()
    assert read.images is not None and read.token_ids == rollout.token_ids
    sources = pg.VlmGenerationRequest(prompt="?", images=read.images)
    loaded = load_sources(sources, pg.ImagePolicy()).unwrap().sources
    assert [one.data for one in loaded] == [b"an image", b"another"]
    kept = pg.from_plain(pg.to_plain(pg.Success(one))).unwrap()
    assert kept.rollout.images is None and kept.rollout.image_digests == one.image_digests
    again = pg.to_plain(pg.Success(kept.rollout))
    assert again["images"] is None
    assert pg.from_plain(again, pg.Rollout).unwrap() == kept.rollout


def test_plain_data_is_read_back() -> None:
    with embedded() as model:
        rollout = talk(model, "Why?", options={**LOGPROBS, "max_new_tokens": 4})[-1].rollout
    plain = pg.to_plain(pg.Success(rollout), metadata={"reward": 1.0})
    assert plain["id"] == "T" and plain["ok"] and plain["metadata"] == {"reward": 1.0}
    assert pg.from_plain(json.loads(json.dumps(plain)), pg.Rollout) == pg.Success(rollout)
    with pytest.raises(InvalidField, match="a rollout takes mask too"):
        pg.from_plain({name: value for name, value in plain.items() if name != "mask"}, pg.Rollout)
    with pytest.raises(InvalidField, match="logprobs does not have the form of a rollout's"):
        pg.from_plain({**plain, "logprobs": [None]}, pg.Rollout)
    with pytest.raises(TypeError, match="a GenerationResult, Scored or Rollout, not of int"):
        pg.to_plain(pg.Success(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_table_of_rollouts_has_the_callers_columns_too(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    answers = route("Red.<|im_end|>")
    one = ask(answers, {"prompt": "What is it?", "images": [b"an image"]})
    two = ask(answers, one.then("And?"))
    slots: list[pg.Slot[pg.Rollout]] = [
        pg.Success(two.rollout),
        pg.Failure(pg.Timeout("slow")),
        pg.Success(talk(answers)[0].rollout),
        pg.Success(pg.from_plain(pg.to_plain(pg.Success(one))).unwrap().rollout),
    ]
    rows = [{"id": f"row {number}", "reward": number / 2} for number in range(4)]
    path = tmp_path / f"x{suffix}"
    assert pg.write_table(path, zip(rows, slots, strict=True), kind=pg.Rollout) == 4
    read = list(pg.read_table(path))
    assert [row["reward"] for row in read] == [0.0, 0.5, 1.0, 1.5]
    assert [row["ok"] for row in read] == [True, False, True, True]
    assert read[1]["error"]["type"] == "Timeout" and read[1]["token_ids"] is None
    rollout = two.rollout
    assert tuple(read[0]["token_ids"]) == rollout.token_ids
    assert tuple(read[0]["mask"]) == rollout.mask
    assert read[0]["images"] == [{"bytes": b"an image", "path": None}]
    assert [row["images"] for row in read[2:]] == [[], None]
    schema = pytest.importorskip("pyarrow").schema([("reward", "float32")])
    pairs = [({"reward": 1}, slots[0])]
    assert pg.write_table(tmp_path / f"y{suffix}", pairs, kind=pg.Rollout, schema=schema) == 1
    with pytest.raises(TypeError, match="a table of rollouts takes slots of them"):
        pg.write_table(tmp_path / f"z{suffix}", [({}, pg.Success(one))], kind=pg.Rollout)


def test_a_table_of_rollouts_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(pg.TableError, match=r"a table of rollouts has lists"):
        pg.write_table(tmp_path / "x.csv", [], kind=pg.Rollout)


def test_the_places_of_earlier_answers_are_told_without_the_rounds() -> None:
    one, two = talk(route("Yes.<|im_end|>"), "And?")
    start = len(one.prompt_token_ids)
    request = two.then("So?")
    assert request.continues is not None
    last = len(two.prompt_token_ids)
    assert request.continues.sampled == (
        (start, start + len(one.token_ids)),
        (last, last + len(two.token_ids)),
    )
    ids = one.prompt_token_ids + one.token_ids
    assert runs_of(one) == ((), (ids, ((start, len(ids)),), None, "raw", (), (), ()))


@pytest.mark.parametrize("most", [4, 40])
def test_what_was_forced_is_no_part_of_what_was_sampled(most: int) -> None:
    with embedded() as pipe:
        results = talk(pipe, "And 2 + 2?", options={"max_thinking_tokens": most, **LOGPROBS})
    held(results)
    assert all(one.forced for one in results)
    rollout = results[-1].rollout
    assert rollout.logprobs is not None
    marked = zip(rollout.logprobs, rollout.mask, strict=True)
    assert [value for value, own in marked if own] == [
        one.logprob
        for result in results
        for place, one in enumerate(result.logprobs or ())
        if place not in result.forced
    ]


def test_an_answer_without_tokens_has_nothing_sampled() -> None:
    results = talk(route("Hi<|im_end|>"), "And?", options={"max_new_tokens": 0})
    held(results)
    assert not any(results[-1].rollout.mask)
