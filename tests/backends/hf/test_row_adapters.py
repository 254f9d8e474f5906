"""An adapter for each request on the Hugging Face engine: the ids of a route that has that adapter
alone, whatever the other rows of the batch have.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from returns.result import Success
from support.adapters import IMAGES, write_adapter

import pipegen as pg
from pipegen.backends.hf.row_adapters import adapters_together

pytestmark = pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings")
SHAPES = "docs/examples/shapes.png"
COMMON = "You answer in one short sentence, and never ask anything back. " * 8
"""A beginning that is long enough to be read once."""
WORD: Any = {"prompt": "Say a word."}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root: Path = tmp_path_factory.mktemp("adapters")
    warnings.filterwarnings("ignore", "Model has .tie_word_embeddings")
    return {
        "a": write_adapter(root / "a", 1),
        "b": write_adapter(root / "b", 2, rank=6),
        "scaled": write_adapter(root / "c", 3, use_rslora=True),
        "dora": write_adapter(root / "dora", 4, use_dora=True),
        "images": write_adapter(root / "images", 5, IMAGES),
        "head": write_adapter(root / "head", 6, modules_to_save=["lm_head"]),
        "tokens": write_adapter(root / "tokens", 7, trainable_token_indices=[5, 6, 70]),
        "biases": write_adapter(root / "biases", 8, IMAGES, bias="lora_only"),
    }


Alone = Callable[[str], pg.Route]


@pytest.fixture(scope="module")
def alone(adapters: dict[str, str]) -> Iterator[Alone]:
    """A route that has an adapter for all, or none, loaded once for all tests."""
    with contextlib.ExitStack() as routes:

        @functools.cache
        def one(name: str) -> pg.Route:
            more: dict[str, Any] = {"adapter": adapters[name]} if name else {}
            return routes.enter_context(pg.backends.hf("embedded", **more))

        yield one


def chosen(adapters: dict[str, str], names: str) -> dict[str, str]:
    return {name: adapters[name] for name in names.split()}


def asked(names: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """Requests of several lengths, some with one beginning, some with an image, for each adapter."""
    parts = [{"type": "image", "path": SHAPES}, {"type": "text", "text": "Describe the image."}]
    questions: list[Any] = [
        "What is the capital of Japan?",
        parts,
        COMMON + "Who are you?",
        COMMON + "What is two and two?",
    ]
    return [
        {
            "messages": [{"role": "user", "content": question}],
            "options": {
                "adapter": name,
                "max_new_tokens": 6 + (place + len(name)) % 5,
                "ignore_eos": True,
                "logprobs": True,
                **options,
            },
        }
        for place, question in enumerate(questions)
        for name in names
    ]


def is_for(row: dict[str, Any], name: str) -> bool:
    return bool(row["options"]["adapter"] == name)


@pytest.mark.parametrize(
    ("names", "together"),
    [
        ("a b scaled", True),
        *[(f"a {kind}", False) for kind in ("dora", "images", "head", "tokens")],
    ],
)
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 3, "samples": 2}])
def test_a_row_gets_the_ids_of_a_route_with_its_adapter_alone(
    names: str,
    together: bool,
    sampled: dict[str, Any],
    adapters: dict[str, str],
    alone: Alone,
) -> None:
    mine = chosen(adapters, names)
    rows = asked(["", *mine], **sampled)
    requests: Any = rows
    with pg.backends.hf("embedded", adapters=mine, batch_size=6) as route:
        found = [slot.unwrap() for slot in pg.run(route, requests)]
        again = [slot.unwrap() for slot in pg.run(route, requests)]  # behind what was kept
        engine: Any = route.engine
        assert adapters_together(engine.computing.weights.model()) is together
        assert engine.work.shared_tokens
    texts = set()
    for name in ("", *mine):
        of_name = [result for row, result in zip(rows, found, strict=True) if is_for(row, name)]
        plain: Any = [
            {**row, "options": {**row["options"], "adapter": None}}
            for row in rows
            if is_for(row, name)
        ]
        wanted = [slot.unwrap() for slot in pg.run(alone(name), plain)]
        assert [result.token_ids for result in of_name] == [result.token_ids for result in wanted]
        drawn, expected = (
            [[sample.token_ids for sample in result.samples] for result in results]
            for results in (of_name, wanted)
        )
        assert drawn == expected
        for one, other in zip(of_name, wanted, strict=True):
            for mine_there, there in zip(one.logprobs or (), other.logprobs or (), strict=True):
                assert mine_there.logprob == pytest.approx(there.logprob, abs=1e-4)
        texts.add(tuple(result.token_ids for result in wanted))
    assert [result.token_ids for result in again] == [result.token_ids for result in found]
    assert len(texts) == len(mine) + 1


@pytest.mark.parametrize("names", ["a b", "a dora"])
def test_scores_and_choices_are_those_of_the_adapter(
    names: str, adapters: dict[str, str], alone: Alone
) -> None:
    mine = chosen(adapters, names)
    rows: list[dict[str, Any]] = [
        {"prompt": prompt, "continuation": words, "options": {"adapter": name}}
        for prompt in ("The capital is", COMMON + "Yes or", COMMON + "No or")
        for words in (" Tokyo", " no, never")
        for name in ("", *mine)
    ]
    requests: Any = rows
    with pg.backends.hf("embedded", adapters=mine) as route:
        found = [slot.unwrap().logprob for slot in pg.score(route, requests)]
        picked = [
            pg.choose(route, WORD, [" red", " blue"], {"adapter": name}).unwrap()
            for name in ("", *mine)
        ]
    for place, name in enumerate(("", *mine)):
        plain: Any = [
            {key: value for key, value in row.items() if key != "options"}
            for row in rows
            if is_for(row, name)
        ]
        wanted = [slot.unwrap().logprob for slot in pg.score(alone(name), plain)]
        choice = pg.choose(alone(name), WORD, [" red", " blue"]).unwrap()
        of_name = [score for row, score in zip(rows, found, strict=True) if is_for(row, name)]
        assert of_name == pytest.approx(wanted, abs=1e-4)
        logprobs = [score.logprob for score in choice.choices]
        assert [score.logprob for score in picked[place].choices] == pytest.approx(
            logprobs, abs=1e-4
        )
    assert len({round(score, 3) for score in found[: len(mine) + 1]}) == len(mine) + 1


def test_log_probabilities_of_prompts_and_forced_tokens_are_those_of_the_adapter(
    adapters: dict[str, str], alone: Alone
) -> None:
    """Equal prompts share them where they have one adapter, and only there."""
    names = ("a", "", "b", "a")
    options: Any = {"max_new_tokens": 0, "prompt_logprobs": True}
    prompts: list[Any] = [{**WORD, "options": {**options, "adapter": name}} for name in names]
    message = {"role": "user", "content": "Say a word."}
    tool = {"name": "say", "parameters": {"type": "object", "properties": {}}}
    calls: list[Any] = [
        {
            "messages": [message],
            "tools": [{"type": "function", "function": tool}],
            "options": {
                "adapter": name,
                "max_new_tokens": 24,
                "logprobs": True,
                "tool_choice": "required",
            },
        }
        for name in names
    ]

    def logprobs(slots: pg.Batch[pg.GenerationResult]) -> list[list[float]]:
        return [
            [entry.logprob for entry in result.prompt_logprobs or result.logprobs or () if entry]
            for result in (slot.unwrap() for slot in slots)
        ]

    with pg.backends.hf("embedded", adapters=chosen(adapters, "a b")) as route:
        found = logprobs(pg.run(route, prompts)), logprobs(pg.run(route, calls))
    for name, of_prompt, of_call in zip(names, *found, strict=True):
        options = {"adapter": None}
        own = [{**row, "options": {**row["options"], **options}} for row in (prompts[0], calls[0])]
        wanted = logprobs(pg.run(alone(name), own))
        assert of_prompt == pytest.approx(wanted[0], abs=1e-4)
        assert of_call == pytest.approx(wanted[1], abs=1e-4)
    assert len({*map(tuple, found[0])}) == 3


IMAGE_FIRST = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"


def test_a_prompt_that_begins_with_an_image_is_shared_by_rows_of_one_adapter_alone(
    adapters: dict[str, str], alone: Alone
) -> None:
    parts = [{"type": "image", "path": SHAPES}, {"type": "text", "text": COMMON}]
    row: Any = {"messages": [{"role": "user", "content": parts}]}
    options: Any = {
        "max_new_tokens": 6, "ignore_eos": True, "logprobs": True, "template": IMAGE_FIRST,
    }  # fmt: skip
    with pg.backends.hf("embedded", adapters=chosen(adapters, "a b")) as route:
        found = [
            pg.run(route, [row], {**options, "adapter": name})[0].unwrap()
            for name in ("a", "b", "", "a")
        ]
    image = found[0].prompt_token_ids[0]
    assert found[0].prompt_token_ids[1] == image
    for name, result in zip(("a", "b", "", "a"), found, strict=True):
        expected = pg.run(alone(name), [row], options)[0].unwrap()
        assert result.token_ids == expected.token_ids
        assert [entry.logprob for entry in result.logprobs or ()] == pytest.approx(
            [entry.logprob for entry in expected.logprobs or ()], abs=1e-4
        )


def test_an_adapter_that_changes_the_models_own_biases_is_for_all_rows(
    adapters: dict[str, str], alone: Alone
) -> None:
    with pg.backends.hf("embedded", adapters=chosen(adapters, "biases a")) as route:
        error = pg.run(route, [WORD])[0].failure()
    assert "bias='lora_only'" in error.message and "adapter=" in error.hint
    assert pg.run(alone("biases"), [WORD])[0].unwrap().text


def test_a_conversation_goes_on_with_another_adapter_as_if_it_was_never_read(
    adapters: dict[str, str], alone: Alone
) -> None:
    mine = chosen(adapters, "a b")
    first: Any = {"messages": [{"role": "user", "content": COMMON + "Hello."}]}
    options = {"max_new_tokens": 6, "ignore_eos": True}
    with pg.backends.hf("embedded", adapters=mine) as route:
        start = pg.run(route, [first], {**options, "adapter": "a"})[0].unwrap()
        following = start.then("And now?")
        read = route.engine.work.shared_tokens  # type: ignore[attr-defined]
        to_b = start.then("And now?", options={"adapter": "b"})
        other = pg.run(route, [to_b], options)[0].unwrap()
        assert route.engine.work.shared_tokens == read  # type: ignore[attr-defined]
        same = pg.run(route, [following], {**options, "adapter": "b"})[0].unwrap()
        assert route.engine.work.shared_tokens > read  # type: ignore[attr-defined]
    for name, result in (("a", same), ("b", other)):
        plain = start.then("And now?", options={"adapter": ""})
        assert pg.run(alone(name), [plain], options)[0].unwrap().token_ids == result.token_ids
    assert same.token_ids != other.token_ids


def test_an_unknown_name_is_refused_with_those_that_there_are(adapters: dict[str, str]) -> None:
    request = {"prompt": "Hi", "options": {"adapter": "aa"}}
    with pg.backends.hf("embedded", adapters=chosen(adapters, "a b")) as route:
        error = pg.run(route, [request])[0].failure()
        scored: Any = [{**request, "continuation": "x"}]
        assert pg.score(route, scored)[0].failure().message == error.message
        assert not route.engine.loaded  # type: ignore[attr-defined]
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "adapter"
    assert "has no adapter 'aa': its adapters are 'a', 'b'; did you mean 'a'?" in error.message
    with pg.backends.hf("embedded") as route:
        assert "it was given none" in pg.run(route, [request])[0].failure().message


def test_a_request_may_have_none_where_the_run_has_one(adapters: dict[str, str]) -> None:
    requests: Any = [{"prompt": "Count: 1 2", "options": {"adapter": name}} for name in ("", None)]
    options = {"max_new_tokens": 8, "ignore_eos": True}
    with pg.backends.hf("embedded", adapters=chosen(adapters, "a")) as route:
        own, of_run = pg.run(route, requests, {**options, "adapter": "a"})
        plain = pg.run(route, [{"prompt": "Count: 1 2"}], options)[0]
    assert own.unwrap().token_ids == plain.unwrap().token_ids != of_run.unwrap().token_ids


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"adapter": "a", "adapters": {"b": "b"}}, "not both"),
        ({"adapters": {"a": "/nowhere/at/all"}}, "adapters['a']: '/nowhere/at/all' is no adapter"),
        ({"adapters": {"": "b"}}, "a mapping of names to folders"),
        ({"adapters": {"a": "org/b"}, "compile": True}, "leave it or adapters out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(pg.InvalidField) as refused:
        pg.backends.hf("embedded", **settings)
    assert words in str(refused.value)


@pytest.mark.parametrize("named_by", ["request", "run", "file"])
def test_a_conversation_keeps_its_adapter_until_a_turn_names_another(
    named_by: str, adapters: dict[str, str], alone: Alone
) -> None:
    name = {"adapter": "a"}
    first: Any = {"messages": [{"role": "user", "content": COMMON + "Hello."}]}
    options: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True}
    if named_by == "request":
        first["options"] = name
    with pg.backends.hf("embedded", adapters=chosen(adapters, "a b")) as route:
        result = pg.run(route, [first], {**options, **name})[0].unwrap()
        then = result.then
        if named_by == "file":
            read: Any = pg.from_plain(json.loads(json.dumps(pg.to_plain(Success(result))))).unwrap()
            then = functools.partial(read.then, request=first)
        following = [
            then("And now?"),
            then("And now?", options={"adapter": "b"}),
            then("And now?", options={"adapter": ""}),
        ]
        used = [slot.unwrap() for slot in pg.run(route, following, options)]
    assert [turn.options.adapter for turn in used] == ["a", "b", ""]
    for name_then, turn in zip(("a", "b", ""), used, strict=True):
        plain = then("And now?", options={"adapter": ""})
        alone_then = pg.run(alone(name_then), [plain], options)[0].unwrap()
        assert alone_then.token_ids == turn.token_ids
    assert len({turn.token_ids for turn in used}) > 1


def test_a_conversation_of_several_turns_and_rounds_has_one_adapter(
    adapters: dict[str, str], alone: Alone
) -> None:
    asked_of: Any = {
        "messages": [{"role": "user", "content": "Hello."}],
        "turns": ["And now?", "And then?"],
    }
    options: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True}
    rows: Any = [{**asked_of, "options": {"adapter": name}} for name in ("a", "b", "")]
    with pg.backends.hf("embedded", adapters=chosen(adapters, "a b")) as route:
        mixed = [slot.unwrap() for slot in pg.run(pg.turns(route), rows, options)]
    for name, result in zip(("a", "b", ""), mixed, strict=True):
        wanted = pg.run(pg.turns(alone(name)), [asked_of], options)[0].unwrap()
        assert result.rollout == wanted.rollout
