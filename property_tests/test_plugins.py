"""The plugins that ship end an answer at the same place for any split into pieces; the tokens that
are forbidden are exactly those that complete a repeated object; requests do not affect each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from pipegen.plugins import Plugin, RowContext, balanced_json, forbid_repeated_objects
from pipegen.plugins.json_reader import JsonState, digest, read
from pipegen.testing.plugin_suite import check_watch
from pipegen.testing.toy import ToyTokenizer

scalars = st.sampled_from(
    [0, 1, -1, -2, 10, 1.0, 0.5, True, None, "", "x", "}{", '"', "\\", "][,", "é", "👍", "\n", "1"]
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=3,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "é"]), values, max_size=2)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """One of the ways in which JSON may be written."""
    if isinstance(value, dict) and draw(st.booleans()):
        value = dict(reversed(value.items()))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]))
    return json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=separators,
        indent=draw(st.sampled_from([None, 1])),
    )


def canonical(value: Any) -> str:
    """The text that equal JSON has in common."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(
                sorted(f"{json.dumps(name)}:{canonical(entry)}" for name, entry in value.items())
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def items_in(value: Any, *, in_list: bool = True) -> list[str]:
    """The canonical texts of the objects that are items of a list, or the whole."""
    inner = [item for entry in value for item in items_in(entry)] if isinstance(value, list) else []
    if isinstance(value, dict):
        inner = [item for entry in value.values() for item in items_in(entry, in_list=False)] + (
            [canonical(value)] if in_list else []
        )
    return inner


def tokenizer_for(draw: st.DrawFn, text: str) -> ToyTokenizer:
    """A vocabulary that holds pieces of the text, halves of characters among them."""
    data = text.encode()
    starts = draw(st.lists(st.integers(0, len(data) - 1), max_size=8))
    pieces = {data[start : start + draw(st.integers(2, 6))] for start in starts}
    return ToyTokenizer(merges=sorted(piece for piece in pieces if len(piece) > 1))


class Row:
    def __init__(self, plugin: Plugin, tokenizer: ToyTokenizer) -> None:
        assert plugin.logits_processor is not None
        self.torch = pytest.importorskip("torch")
        self.tokenizer, self.ids = tokenizer, [0, 1]
        self.processor = plugin.logits_processor(RowContext(prompt_length=2, tokenizer=tokenizer))

    @property
    def forbidden(self) -> set[int]:
        scores = self.processor(
            self.torch.tensor([self.ids]), self.torch.zeros(1, self.tokenizer.vocab_size)
        )
        return set((scores[0] == -self.torch.inf).nonzero()[:, 0].tolist())

    def forbids(self, token_id: int) -> bool:
        return token_id in self.forbidden

    @property
    def text(self) -> str:
        return self.tokenizer.decode(self.ids[2:])


@given(
    values=st.lists(objects | st.lists(objects, max_size=2), min_size=1, max_size=3),
    tail=st.sampled_from(["", " tail", "}", '"', "{"]),
    data=st.data(),
)
def test_balanced_json_keeps_just_the_json(
    values: list[Any], tail: str, data: st.DataObject
) -> None:
    text = "prose\n" + "\n".join(data.draw(written(value)) for value in values)
    plugin = balanced_json(len(values))
    assert plugin.start is not None
    assert plugin.feed is not None
    assert plugin.feed(plugin.start(), text + tail)[1] == len(text)
    check_watch(plugin, text + tail)


@given(text=st.text(alphabet='{}[]"\\a,', max_size=30), wanted=st.integers(1, 3))
def test_balanced_json_halts_at_the_same_character_in_any_pieces(text: str, wanted: int) -> None:
    check_watch(balanced_json(wanted), text)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[ToyTokenizer, list[str]]:
    """Lists of objects, with repeats written in other ways, as the parts between which repeats can
    be.
    """
    pool = draw(st.lists(objects, min_size=1, max_size=3))
    parts = [draw(written(draw(st.sampled_from(pool)))) for _ in range(draw(st.integers(2, 5)))]
    return tokenizer_for(draw, "[" + ", ".join(parts) + "]"), parts


@given(script=scripts())
def test_the_wanted_token_is_forbidden_exactly_when_it_completes_a_repeat(
    script: tuple[ToyTokenizer, Sequence[str]],
) -> None:
    tokenizer, parts = script
    text = "[" + ",".join(parts) + "]"
    row = Row(forbid_repeated_objects(min_match=0), tokenizer)
    ends = [len("[" + ",".join(parts[: count + 1])) for count in range(len(parts))]
    seen: list[str] = []
    first_repeat = len(text) + 1
    for part, end in zip(parts, ends, strict=True):
        own = items_in(json.loads(part))
        if set(own) & set(seen) or len(own) != len(set(own)):
            first_repeat = min(end, first_repeat)
        seen += own
    # so that the repeat ends where its part does
    assume(all(len(items_in(json.loads(part))) == 1 for part in parts))
    for token_id in tokenizer.encode(text):
        after = len(tokenizer.decode([*row.ids[2:], token_id]).rstrip("\ufffd"))
        assert row.forbids(token_id) == (after >= first_repeat)
        if after >= first_repeat:
            return
        row.ids.append(token_id)


nested = st.dictionaries(st.sampled_from("ab"), values | st.lists(objects, max_size=2), max_size=2)
KEYS = st.sampled_from((None, ("a",), ("b", "a")))


@pytest.mark.slow
@given(
    items=st.lists(nested, min_size=1, max_size=3), keys=KEYS, repeats=st.booleans(), data=st.data()
)
def test_of_all_tokens_exactly_those_that_complete_a_repeat_are_forbidden(
    items: list[Any], keys: tuple[str, ...] | None, repeats: bool, data: st.DataObject
) -> None:
    text = (
        "["
        + ", ".join(data.draw(written(item)) for item in (items * 2 if repeats else items))
        + "]"
    )
    tokenizer = data.draw(st.composite(lambda draw: tokenizer_for(draw, text))())
    text = text[: data.draw(st.integers(0, len(text)))]
    row = Row(forbid_repeated_objects(keys=keys, min_match=0), tokenizer)
    row.ids += text.encode()

    def marks(text: str) -> list[int]:
        reading, found = JsonState(), []
        for char in text:
            reading, mark = read(
                reading, char, None if keys is None else [digest(key) for key in keys]
            )
            found += [] if mark is None else [mark]
        return found

    before, forbidden = marks(text), row.forbidden
    for token_id in range(tokenizer.vocab_size - len(tokenizer.special_tokens)):
        more = tokenizer.decode([token_id])
        after = marks(text + more)[len(before) :]
        assert (token_id in forbidden) == any(
            mark in [*before, *after[:place]] for place, mark in enumerate(after)
        ), more


@given(script=scripts())
def test_a_row_that_wants_repeats_gets_every_object_once(
    script: tuple[ToyTokenizer, Sequence[str]],
) -> None:
    tokenizer, parts = script
    row = Row(forbid_repeated_objects(min_match=0), tokenizer)

    def write(text: str) -> None:
        """Token by token; where one is forbidden, byte by byte; where the last brace is forbidden,
        with one more member before it.
        """
        for token_id in tokenizer.encode(text):
            for wanted in (
                [token_id] if not row.forbids(token_id) else tokenizer.decode([token_id]).encode()
            ):
                if row.forbids(wanted):
                    assert wanted == ord("}")
                    comma = "" if row.text.rstrip().endswith("{") else ","
                    row.ids += tokenizer.encode_plain(f'{comma}"new {len(row.ids)}":0', first=False)
                row.ids.append(wanted)

    write("[")
    for place, part in enumerate(parts):
        write(part if place == 0 else "," + part)
    write("]")
    made = items_in(json.loads(row.text))
    assert len(made) == len(set(made))
    assert len(made) >= len(parts)


@given(
    words=st.lists(st.sampled_from(["x", "y", "}{", "é", 'x"', "xx"]), min_size=2, max_size=5),
    data=st.data(),
)
def test_with_keys_a_row_that_wants_repeats_gets_other_values(
    words: list[str], data: st.DataObject
) -> None:
    parts = [data.draw(written({"k": word, "other": place})) for place, word in enumerate(words)]
    tokenizer = data.draw(st.composite(lambda draw: tokenizer_for(draw, ",".join(parts)))())
    row = Row(forbid_repeated_objects(keys=["k"]), tokenizer)
    for token_id in tokenizer.encode("[" + ",".join(parts) + "]"):
        pieces = (
            [token_id] if not row.forbids(token_id) else list(tokenizer.decode([token_id]).encode())
        )
        for wanted in pieces:
            if row.forbids(wanted):
                assert wanted == ord('"')
                row.ids += f" {len(row.ids)}".encode()
            row.ids.append(wanted)
    made = [item["k"] for item in json.loads(row.text)]
    assert len(made) == len(set(made)) == len(words)
    assert made[0] == words[0]


@given(script=scripts())
def test_rows_know_nothing_of_each_other(script: tuple[ToyTokenizer, Sequence[str]]) -> None:
    tokenizer, parts = script
    plugin = forbid_repeated_objects(min_match=0)
    alone, beside, other = (Row(plugin, tokenizer) for _ in range(3))
    for token_id in tokenizer.encode("[" + ",".join(parts) + "]"):
        forbidden = alone.forbids(token_id)
        other.forbids(token_id)
        other.ids.append(token_id)
        assert beside.forbids(token_id) == forbidden
        if forbidden:
            return
        alone.ids.append(token_id)
        beside.ids.append(token_id)
