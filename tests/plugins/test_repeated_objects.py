"""No object twice in a row (K6), with a scripted model in place of a real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.plugins import (
    RowContext,
    forbid_repeated_objects,
    json_reader as json_objects,
    repeated_objects,
)
from pipegen.testing.fake import FakeEngine
from pipegen.testing.plugin_suite import check_plugin
from pipegen.testing.toy import ToyTokenizer

torch = pytest.importorskip("torch")

TOY = ToyTokenizer(
    merges=[
        *('{"a": ', '"}', "1}", "}, ", "}]", "},{}", ', "b": ', " {}", '"]}', b'\xa9"}'),
        *('{"a": "', ", "),
    ]
)
PROMPT = TOY.encode('[{"a": 1}] ')


class RowUnderTest:
    """One row: its processor, and the text that it has so far."""

    def __init__(self, plugin: pg.Plugin, tokenizer: Any = TOY) -> None:
        assert plugin.logits_processor is not None
        self.tokenizer = tokenizer
        self.processor = plugin.logits_processor(
            RowContext(prompt_length=len(PROMPT), tokenizer=tokenizer)
        )
        self.ids: list[int] = []

    def scores(self) -> Any:
        return self.processor(
            torch.tensor([[*PROMPT, *self.ids]]), torch.zeros(1, self.tokenizer.vocab_size)
        )

    def forbidden(self) -> set[int]:
        return set((self.scores()[0] == -torch.inf).nonzero()[:, 0].tolist())

    def writes(self, token_ids: Sequence[int]) -> set[int]:
        """Make these tokens, one step for each; gives what is forbidden next."""
        for token_id in token_ids:
            assert token_id not in self.forbidden()
            self.ids.append(token_id)
        return self.forbidden()


def forbidden_after(
    text: str | Sequence[int], *, keys: Sequence[str] | None = None, min_match: int | None = 0
) -> set[str]:
    row = RowUnderTest(forbid_repeated_objects(keys=keys, min_match=min_match))
    forbidden = row.writes(TOY.encode(text) if isinstance(text, str) else text)
    return {TOY.decode([token_id]) for token_id in forbidden}


# K6
@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ('[{"a": 1}, {"a": 1', {"}", "}, ", "}]", "},{}"}),
        ('[{"a": 1}, {"a": ', {"1}"}),
        ('[{"a": "x"}, {"a": "x', {'"}'}),
        ('[{"a": ["x"]}, {"a": ["x', {'"]}'}),
        ('[{"a": 1}, {"a": 2', set()),
        ('{"objects": [{"a": 1, "b": 2}, {"b":2.0, "\\u0061":1 ', {"}", "}, ", "}]", "},{}"}),
        ('{"a": 1}\n{"a": 1', {"}", "}, ", "}]", "},{}"}),
        ('{"one": [{"a": 1}], "two": [{"a": 1', {"}", "}, ", "}]", "},{}"}),
        ('[{"box": {"a": 1}}, {"box": {"a": 1', set()),
        ('[{"a": 1}, {"a": 1, "a": 1', {"}", "}, ", "}]", "},{}"}),
        ("[{}, {", {"}", "}, ", "}]", "},{}", " {}"}),
        ("[{},", {" {}", "},{}"}),
        ("[1, 2", set()),
    ],
)
def test_exactly_the_tokens_that_would_complete_a_repeat_are_forbidden(
    text: str, forbidden: set[str]
) -> None:
    assert forbidden_after(text) == forbidden


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ('[{"a": "x", "b": 1}, {"a": "x', {'"', '"}', '"]}'}),
        ('[{"a": "x", "b": 1}, {"b": 2, "a": "x', {'"', '"}', '"]}'}),
        (
            '[{"a": 1}, {"a": 1',
            {"}", "}, ", "}]", "},{}", ",", ", ", ', "b": ', "]", " ", "\n", "\t", "\r", " {}"},
        ),
        ('[{"a": 1}, {"a": ', {"1}"}),
        ('[{"b": 1}, {"b": 1', set()),
        ('[{"a": [{"b": 1}]}, {"a": [{"b": 1', {"}]"}),
        ('[{"a": {"b": [1]}}, {"a": {"b": [1', set()),
    ],
)
def test_with_keys_the_last_of_their_values_is_kept_from_being_the_same(
    text: str, forbidden: set[str]
) -> None:
    assert forbidden_after(text, keys=["a"]) == forbidden


# K6: ordinary detections, at the default
def test_a_detection_is_not_repeated_and_may_begin_as_another_does() -> None:
    one, other = (
        '{"label": "a", "bbox_2d": [1, 2, 3, 4]}',
        '{"label": "a", "bbox_2d": [1, 2, 3, 5]}',
    )
    assert "}" in forbidden_after(f"[{one}, {one[:-1]}", min_match=None)
    assert forbidden_after(f"[{one}, {other[:-1]}", min_match=None) == set()


@pytest.mark.parametrize(
    ("min_match", "forbidden"),
    [(None, False), (24, False), (9, False), (8, True), (7, True), (0, True)],
)
def test_an_object_shorter_than_min_match_may_come_again(
    min_match: int | None, forbidden: bool
) -> None:
    assert len('{"a":12}') == 8
    assert ("}" in forbidden_after('[{"a": 12}, { "a" :\n12 ', min_match=min_match)) == forbidden
    assert (
        "}" in forbidden_after('[[{"b": 1}], {"a": 12}, {"a": 12', min_match=min_match)
    ) == forbidden


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ('{"a": "x y\\n\\u00e9 "}', 20),
        ('{"a": [1, {"b": null}]}', 20),
        ("{ }", 2),
        ('{"a": 1.50 }', 10),
    ],
)
def test_white_space_counts_in_strings_only(written: str, size: int) -> None:
    assert "}" in forbidden_after(f"{written}, {written[:-1]}", min_match=size)
    assert "}" not in forbidden_after(f"{written}, {written[:-1]}", min_match=size + 1)


@pytest.mark.parametrize(
    ("min_match", "forbidden"), [(None, True), (0, True), (13, True), (14, False)]
)
def test_with_keys_min_match_measures_the_object_up_to_the_last_of_them(
    min_match: int | None, forbidden: bool
) -> None:
    assert len('{"b":1,"a":12') == 13
    assert (
        "}"
        in forbidden_after(
            '[{"b": 1, "a": 12, "c": 1}, {"b": 1, "a": 12', keys=["a"], min_match=min_match
        )
    ) == forbidden


def test_a_character_that_two_tokens_share_hides_no_repeat() -> None:
    row = RowUnderTest(forbid_repeated_objects(min_match=0))
    half, rest = "é".encode()[0], 256 + 9
    assert TOY.decode([half, rest]) == 'é"}'
    assert row.writes(list('[{"a": "é"}, {"a": "'.encode())) == set()
    assert row.writes([half]) == {rest}
    row = RowUnderTest(forbid_repeated_objects(min_match=0))
    assert row.writes([*'[{"a": "\ufffd\ufffd"}, {"a": "'.encode(), half]) == set()


def test_an_escape_that_ends_inside_a_character_hides_no_repeat() -> None:
    tokenizer = ToyTokenizer(merges=['\\ud83d\\udc4d"}'])
    row = RowUnderTest(forbid_repeated_objects(min_match=0), tokenizer)
    assert row.writes(list('[{"a": "👍"}, {"a": "'.encode())) == {256}


def test_a_new_string_hides_no_repeat_behind_it_in_the_same_token() -> None:
    tokenizer = ToyTokenizer(merges=['new"},{}', 'new","a":1}', 'new"}'])
    row = RowUnderTest(forbid_repeated_objects(min_match=0), tokenizer)
    assert row.writes(list(b'[{}, {"a": 1}, {"a": "')) == {256, 257}


def test_special_tokens_are_invisible() -> None:
    end = TOY.special_tokens["<|im_end|>"]
    assert "}" in forbidden_after([*TOY.encode('[{"a": 1}, {"a":'), end, *TOY.encode(" 1")])


# K6, B1
def test_the_prompt_and_other_rows_do_not_count() -> None:
    plugin = forbid_repeated_objects(min_match=0)
    row, other = RowUnderTest(plugin), RowUnderTest(plugin)
    repeat = TOY.encode('[{"a": 1}, {"a": 1')
    assert row.writes(repeat)
    assert not {
        token_id
        for token_id in other.writes(TOY.encode('[{"a": 1'))
        if TOY.decode([token_id]) == "}"
    }
    assert row.forbidden() == row.forbidden()


def test_a_row_without_repeats_keeps_its_very_scores() -> None:
    row = RowUnderTest(forbid_repeated_objects(min_match=0))
    scores = torch.rand(1, TOY.vocab_size, generator=torch.Generator().manual_seed(0))
    row.writes(TOY.encode('[{"a": 1}, '))
    assert row.processor(torch.tensor([[*PROMPT, *row.ids]]), scores) is scores
    row.writes(TOY.encode('{"a": 1'))
    kept = scores.clone()
    changed = row.processor(torch.tensor([[*PROMPT, *row.ids]]), scores)
    assert torch.equal(scores, kept)
    assert torch.equal(changed[changed > -torch.inf], kept[changed > -torch.inf])


# K6
def test_a_model_that_wants_nothing_but_repeats_gets_none() -> None:
    then = {'{"a": "': "x", "x": '"}', "z": '"}', '"}': ", ", ", ": '{"a": "'}
    row = RowUnderTest(forbid_repeated_objects(keys=["a"]))
    row.writes(TOY.encode('[{"a": "'))
    while len(row.ids) < 200:
        scores = row.scores()
        scores[0, TOY.encode(then[TOY.decode(row.ids[-1:])])[0]] += 1
        scores[0, ord("z")] += 0.5
        row.ids.append(int(scores.argmax()))
    text = TOY.decode(row.ids)
    values = [item["a"] for item in json.loads(text[: text.rindex("}") + 1] + "]")]
    assert values[:3] == ["x", "xz", "xzz"]
    assert len(values) == len(set(values)) > 10


def test_one_token_that_holds_an_object_and_its_repeat_is_forbidden() -> None:
    tokenizer = ToyTokenizer(merges=["[{},{}", "[{},[]"])
    assert RowUnderTest(forbid_repeated_objects(min_match=0), tokenizer).forbidden() == {256}


# cost
def test_a_step_costs_the_same_however_long_the_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = {"characters": 0, "tokens": 0}

    def counted(*arguments: Any) -> Any:
        looked_at["characters"] += 1
        return json_objects.read(*arguments)

    class Counted(ToyTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            looked_at["tokens"] += len(token_ids)
            return super().decode(token_ids)

    monkeypatch.setattr(repeated_objects, "read", counted)
    tokenizer = Counted(merges=['"}', "}, "])
    row = RowUnderTest(forbid_repeated_objects(min_match=0), tokenizer)
    text = "[" + "".join(
        f'{{"number": {number}, "text": "some words"}}, ' for number in range(1_000, 2_000)
    )
    script, costs = tokenizer.encode(text)[:4_096], []
    row.scores()  # reads the vocabulary
    for start in range(0, 4_096, 1_024):
        looked_at.update(characters=0, tokens=0)
        row.writes(script[start : start + 1_024])
        costs.append(dict(looked_at))
    assert (
        max(cost["characters"] for cost in costs[1:]) <= 1.05 * costs[1]["characters"] < 40 * 1_024
    )
    assert max(cost["tokens"] for cost in costs) <= 40 * 1_024


@pytest.mark.parametrize("bad", ["label", [], [1], ["a", None]])
def test_keys_take_a_sequence_of_names(bad: Any) -> None:
    with pytest.raises(pg.InvalidField, match="keys"):
        forbid_repeated_objects(keys=bad)


@pytest.mark.parametrize("bad", [-1, True, 1.5, "24"])
def test_min_match_takes_a_whole_number(bad: Any) -> None:
    with pytest.raises(pg.InvalidField, match="min_match"):
        forbid_repeated_objects(min_match=bad)


def test_it_keeps_the_contract_of_plugins() -> None:
    check_plugin(forbid_repeated_objects(min_match=0))
    check_plugin(forbid_repeated_objects(keys=("a", "b")))


# K3
def test_an_engine_without_logits_refuses_it_before_any_weights_load() -> None:
    engine = FakeEngine("x", name="served")
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        pg.attach(pg.route(engine), forbid_repeated_objects(min_match=0))
    refused = raised.value
    assert isinstance(refused, pg.UnsupportedPlugin)
    assert (refused.plugin, engine.calls) == ("forbid_repeated_objects", [])
