"""Plugins in a left-padded batch of a real (tiny, random) model: each row is as if it were alone
(K7).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.models import write_model

import pipegen as pg
from pipegen.plugins import RowContext, balanced_json, forbid_repeated_objects

pytest.importorskip("torch")
PROMPTS = [" fox" * length for length in (1, 9, 2, 14, 5, 3, 21, 7)]
OPTIONS = pg.GenerationOptions(
    max_new_tokens=60, temperature=0.0, stop=pg.StopOptions(ignore_eos=True)
)


@pytest.fixture(scope="module")
def route(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pg.Route]:
    with pg.backends.hf(
        str(write_model(tmp_path_factory.mktemp("qwen3") / "model")), dtype="float32"
    ) as made:
        yield made


class Loops:
    """Makes the model want to write the same two objects for ever: other ones for each row, which
    it knows by the length of its prompt.
    """

    def __init__(self, context: RowContext) -> None:
        self.prompt_length = context.prompt_length
        objects = [f'{{"n": "{self.prompt_length}"}}, ', f'{{"n": "{self.prompt_length + 1}"}}, ']
        self.script = context.exact_tokenizer.encode(
            "[" + objects[0] + objects[1] + objects[0] + objects[1] + "{}]" + "}" * 60
        )
        self.seen: list[int] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        made = input_ids.shape[1] - self.prompt_length
        assert input_ids.shape[0] == scores.shape[0] == 1
        scores = scores.clone()
        scores[0, self.script[made]] += 1_000
        return scores


def with_plugins(route: pg.Route, *plugins: pg.Plugin) -> pg.Route:
    for plugin in plugins:
        route = pg.attach(route, plugin)
    return route


def results(route: pg.Route, prompts: list[str]) -> list[pg.GenerationResult]:
    return [
        slot.unwrap() for slot in pg.run(route, [{"prompt": prompt} for prompt in prompts], OPTIONS)
    ]


# K7
@pytest.mark.parametrize(
    "plugins",
    [
        (),
        (forbid_repeated_objects(keys=["n"]),),
        (balanced_json(),),
        (
            forbid_repeated_objects(keys=["n"]),
            balanced_json(),
            pg.Plugin(name="mark", trim=lambda text: text + "!"),
        ),
    ],
    ids=["none", "forbid", "balanced", "all"],
)
def test_plugins_give_each_row_of_a_padded_batch_what_it_gets_alone(
    route: pg.Route, plugins: tuple[pg.Plugin, ...]
) -> None:
    looping = with_plugins(route, pg.Plugin(name="loops", logits_processor=Loops), *plugins)
    together = results(looping, PROMPTS)
    assert len({result.prompt_tokens for result in together}) == 8
    for prompt, row in zip(PROMPTS, together, strict=True):
        alone = results(looping, [prompt])[0]
        seen = (row.text, row.raw_text, row.token_ids, row.finish, row.stop)
        assert seen == (alone.text, alone.raw_text, alone.token_ids, alone.finish, alone.stop)


def test_the_loop_is_there_without_the_plugin_and_gone_with_it(route: pg.Route) -> None:
    loops = pg.Plugin(name="loops", logits_processor=Loops)
    for plain, row in zip(
        results(with_plugins(route, loops, balanced_json()), PROMPTS),
        results(with_plugins(route, loops, forbid_repeated_objects(keys=["n"])), PROMPTS),
        strict=True,
    ):
        one, two = str(plain.prompt_tokens), str(plain.prompt_tokens + 1)
        assert plain.finish is pg.Finish.PLUGIN
        assert [item.get("n") for item in json.loads(plain.text)] == [one, two, one, two, None]
        assert row.text.startswith(f'[{{"n": "{one}"}}, {{"n": "{two}"}}, {{"n": "{one}')
        assert not row.text.startswith(f'[{{"n": "{one}"}}, {{"n": "{two}"}}, {{"n": "{one}"')


# B1
def test_a_prompt_with_objects_forbids_none_of_them(route: pg.Route) -> None:
    loops = pg.Plugin(name="loops", logits_processor=Loops)
    length = len(route.engine.tokenizer.encode('[{"n": "10"}, {"n": "11"}]'))
    prompt = f'[{{"n": "{length}"}}, {{"n": "{length + 1}"}}]'
    row = results(with_plugins(route, loops, forbid_repeated_objects(min_match=0)), [prompt])[0]
    assert row.prompt_tokens == length
    assert row.text.startswith(f'[{{"n": "{length}"}}, {{"n": "{length + 1}"}}, ')
