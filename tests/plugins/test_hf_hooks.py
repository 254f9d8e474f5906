"""People's own hooks of transformers, in a padded batch of a real (tiny, random) model: each row is
as if it were alone (K7).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.models import write_model

import pipegen as pg
from pipegen.plugins import RowContext, hf_hooks
from pipegen.testing.plugin_suite import check_plugin

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
StoppingCriteria: Any = transformers.StoppingCriteria
LogitsProcessor: Any = transformers.LogitsProcessor
PROMPTS = [" fox" * length for length in (1, 9, 2, 14)]
OPTIONS = pg.GenerationOptions(
    max_new_tokens=20, temperature=0.0, stop=pg.StopOptions(ignore_eos=True)
)


@pytest.fixture(scope="module")
def route(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pg.Route]:
    with pg.backends.hf(
        str(write_model(tmp_path_factory.mktemp("qwen3") / "model")), dtype="float32"
    ) as made:
        yield made


def results(
    route: pg.Route, plugin: pg.Plugin, prompts: list[str] = PROMPTS
) -> list[pg.GenerationResult]:
    return [
        slot.unwrap()
        for slot in pg.run(
            pg.attach(route, plugin), [{"prompt": prompt} for prompt in prompts], OPTIONS
        )
    ]


class AfterFive(StoppingCriteria):  # type: ignore[misc]
    """Stops a row after five tokens of its own."""

    def __init__(self, row: RowContext) -> None:
        self.prompt_length = row.prompt_length

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((len(input_ids),), input_ids.shape[1] - self.prompt_length >= 5)


class Only(LogitsProcessor):  # type: ignore[misc]
    """Leaves one token to choose."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        only = torch.full_like(scores, -torch.inf)
        only[:, self.token_id] = 0
        return only


class Counts(LogitsProcessor):  # type: ignore[misc]
    """Makes the row write 1, 2, 3, ..., by a state of its own."""

    def __init__(self, row: RowContext) -> None:
        self.made = row.prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.made += 1
        assert input_ids.shape == (1, self.made - 1)
        return Only(self.made)(input_ids, scores)


def test_a_factory_gets_the_length_of_each_rows_prompt(route: pg.Route) -> None:
    rows = results(route, hf_hooks(stopping_criteria=AfterFive, name="five"))
    assert len({row.prompt_tokens for row in rows}) == 4
    assert [(row.completion_tokens, row.finish, row.stop) for row in rows] == 4 * [
        (5, pg.Finish.PLUGIN, "five")
    ]


def test_a_factory_makes_a_state_for_each_row(route: pg.Route) -> None:
    for row in results(route, hf_hooks(logits_processor=Counts)):
        assert list(row.token_ids) == list(range(row.prompt_tokens + 1, row.prompt_tokens + 21))


def test_a_ready_object_serves_every_row(route: pg.Route) -> None:
    for row in results(route, hf_hooks(logits_processor=Only(7), stopping_criteria=AfterFive)):
        assert row.token_ids == (7, 7, 7, 7, 7)


def test_the_lists_and_criteria_of_transformers_are_taken_as_they_are(route: pg.Route) -> None:
    processors = transformers.LogitsProcessorList(
        [Only(7), transformers.TemperatureLogitsWarper(0.5)]
    )
    criteria = transformers.StoppingCriteriaList([transformers.MaxLengthCriteria(16)])
    for row in results(route, hf_hooks(logits_processor=processors, stopping_criteria=criteria)):
        assert set(row.token_ids) == {7}
        assert row.prompt_tokens + row.completion_tokens == 16


# K7
def test_each_row_of_a_batch_gets_what_it_gets_alone(route: pg.Route) -> None:
    plugin = hf_hooks(
        stopping_criteria=AfterFive,
        logits_processor=transformers.RepetitionPenaltyLogitsProcessor(2.0),
    )
    for prompt, row in zip(PROMPTS, results(route, plugin), strict=True):
        assert row.token_ids == results(route, plugin, [prompt])[0].token_ids


class StopsAt(StoppingCriteria):  # type: ignore[misc]
    """As people write it for transformers: with the tokenizer's own methods."""

    def __init__(self, words: str, row: RowContext) -> None:
        self.words, self.row = words, row

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> bool:
        tokenizer = self.row.tokenizer
        made = input_ids[0, self.row.prompt_length :]
        assert tokenizer.decode(made) == tokenizer.decode(made.tolist())
        return self.words in tokenizer.decode(made, skip_special_tokens=True)


def test_a_hook_gets_the_tokenizer_of_transformers(route: pg.Route) -> None:
    seen: list[Any] = []

    def make(row: RowContext) -> Any:
        seen.append(row.tokenizer)
        return Only(row.tokenizer.convert_tokens_to_ids("a"))

    words: str = "aaa"
    plugin = hf_hooks(
        logits_processor=make, stopping_criteria=lambda row: StopsAt(words, row), name="own"
    )
    for row in results(route, plugin):
        assert (row.raw_text, row.stop) == (words, "own")
    for tokenizer in seen:
        assert isinstance(tokenizer, transformers.PreTrainedTokenizerBase)
        assert tokenizer.eos_token_id is not None


def test_a_function_of_ids_and_scores_serves_every_row_as_it_is(route: pg.Route) -> None:
    plugin = hf_hooks(
        logits_processor=lambda input_ids, scores: Only(7)(input_ids, scores),
        stopping_criteria=AfterFive,
    )
    for row in results(route, plugin):
        assert row.token_ids == (7, 7, 7, 7, 7)


class Rowless(StoppingCriteria):  # type: ignore[misc]
    def __init__(self) -> None:
        pass


class OfTwo(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, ids: Any, tokenizer: Any) -> None:
        pass


def _of_none() -> Any:
    return Only(7)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"stopping_criteria": Rowless}, r"the class Rowless takes no row: .*\(Rowless\(...\)\)"),
        ({"logits_processor": OfTwo}, "the class OfTwo takes no row"),
        ({"logits_processor": _of_none}, "_of_none takes no row: lambda row: _of_none"),
    ],
)
def test_what_takes_no_row_is_told_so_when_it_is_given(hooks: dict[str, Any], words: str) -> None:
    with pytest.raises(pg.InvalidField, match=words):
        hf_hooks(**hooks)
    with pytest.raises(pg.InvalidField, match=words):
        pg.Plugin(name="own", **hooks)


@pytest.mark.parametrize(
    "answer",
    [None, "stop", (), {}, [[]], [object()]],
    ids=["None", "text", "tuple", "dict", "empty", "object"],
)
def test_a_criterion_that_says_neither_yes_nor_no_fails_its_row_only(
    route: pg.Route, answer: Any
) -> None:
    def criterion(row: RowContext) -> Any:
        return lambda input_ids, scores: answer if row.prompt_length > 5 else False

    made = pg.attach(route, pg.Plugin(name="vague", stopping_criteria=criterion))
    good, bad = pg.run(
        made,
        [{"prompt": PROMPTS[0]}, {"prompt": PROMPTS[1]}],
        pg.GenerationOptions(max_new_tokens=3),
    )
    assert pg.is_ok(good)
    error = bad.failure()
    assert isinstance(error, pg.PluginFailed)
    assert (
        error.message
        == "plugin 'vague': its stopping criterion must return True or False, or a tensor of them,"
        f" not {type(answer).__name__}"
    )


@pytest.mark.parametrize(
    "yes", [True, 1, [True], torch.tensor(True), torch.tensor([True]), torch.tensor([1])], ids=repr
)
def test_a_criterion_may_say_yes_in_any_of_these_ways(route: pg.Route, yes: Any) -> None:
    plugin = pg.Plugin(name="yes", stopping_criteria=lambda row: lambda input_ids, scores: yes)
    assert [result.stop for result in results(route, plugin, PROMPTS[:1])] == ["yes"]


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({}, "or both"),
        ({"stopping_criteria": 1}, "as stopping_criteria"),
        ({"logits_processor": [Only(7)]}, "as logits_processor"),
    ],
)
def test_hooks_are_given_and_can_be_called(hooks: dict[str, Any], words: str) -> None:
    with pytest.raises(pg.InvalidField, match=words):
        hf_hooks(**hooks)


def test_it_keeps_the_contract_of_plugins() -> None:
    for plugin in (
        hf_hooks(stopping_criteria=AfterFive),
        hf_hooks(logits_processor=Only(7)),
        hf_hooks(stopping_criteria=AfterFive, logits_processor=Counts),
    ):
        check_plugin(plugin)


# K3
def test_an_engine_without_the_hook_refuses_it() -> None:
    from pipegen.testing.fake import FakeEngine

    engine = FakeEngine("x", honours=pg.ENGINES["hf"] - {"stopping_criteria"})
    with pytest.raises(pg.UnsupportedPlugin):
        pg.attach(pg.route(engine), hf_hooks(stopping_criteria=AfterFive))
