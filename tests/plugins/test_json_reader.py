"""Reading objects character by character: which are found, and which are equal."""

from __future__ import annotations

import pytest

from pipegen.plugins.json_reader import JsonState, digest, read


def marks(text: str, *keys: str) -> list[int]:
    reading, found = JsonState(), []
    for char in text:
        reading, mark = read(reading, char, [digest(key) for key in keys] or None)
        if mark is not None:
            found.append(mark)
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2, null]}', '{"b":[2,null],"a":1}'),
        ('{"a": "é"}', r'{"a": "\u00e9"}'),
        ('{"a": "\U0001f44d"}', r'{"\u0061": "\ud83d\udc4d"}'),
        ('{"a": "/\\n"}', r'{"a": "\/\u000a"}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 120}', '{"a": 1.2e+2}'),
        ('{"a": 0}', '{"a": -0.0}'),
        ('{"a": 1}', '{"a": 2, "a": 1}'),
        ('{"a": {"b": {}}}', '{ "a" :\n{"b":\t{ } } }'),
    ],
)
def test_objects_with_the_same_json_are_equal(one: str, other: str) -> None:
    assert len(marks(one)) == 1
    assert marks(one) == marks(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": -1}', '{"a": -2}'),  # hash(-1) == hash(-2)
        *(('{"a": 0.1}', '{"a": 0.01}'), ('{"a": 1}', '{"a": 10}'), ('{"a": 1}', '{"a": "1"}')),
        *(('{"a": 1}', '{"a": true}'), ('{"a": "null"}', '{"a": null}')),
        *(('{"a": []}', '{"a": {}}'), ('{"a": [1, 2]}', '{"a": [2, 1]}')),
        *(('{"a": [[1], 2]}', '{"a": [[1, 2]]}'), ('{"a": 1, "b": 2}', '{"a": 2, "b": 1}')),
        ('{"a": "x"}', '{"a": "x "}'),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}'),
        ("{}", '{"": ""}'),
    ],
)
def test_objects_with_other_json_differ(one: str, other: str) -> None:
    assert len(marks(one)) == len(marks(other)) == 1
    assert marks(one) != marks(other)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('[{"a": 1}, {"b": {"c": 1}}, 7]', 2),  # an object within an object is a part of it
        *(('{"a": [{}, {}]}', 3), ('{"a": 1} and {"b": 2}', 2), ('{"a": "{}"}', 1)),
        *(('say {x} and {"a": 1}', 1), ("{'a': 1}", 0), ('{"a": 1,}', 0), ('{"a" 1}', 0)),
        *(('{"a": 1]', 0), ('{"a": 01}', 0), ('{"a": 1 2}', 0), ('{"a": tru}', 0)),
        *(('{"a": 1"b"}', 0), ('{"a":: 1}', 0)),
        ('[0, 1) then {"a": 1}', 1),  # what stops being JSON is prose again
        ('{{"a": 1}', 1),
        ('[{"a": foo}, {"a": 1}]', 1),
        ('{"a": "\\x \\u12"}', 1),
        ("\\frac{1}{2}", 0),
        ("[" * 5_000 + "{}", 1),
    ],
)
def test_only_json_objects_in_lists_or_by_themselves_are_found(text: str, count: int) -> None:
    assert len(marks(text)) == count


def test_with_keys_an_object_is_known_when_the_last_of_them_is_complete() -> None:
    assert marks('[{"a": 1, "b": 2', "a", "b") == []
    assert len(marks('[{"a": 1, "b": 2,', "a", "b")) == 1
    assert len(marks('[{"a": 1, "b": "x"', "a", "b")) == 1
    assert marks('{"a": 1, "c": 3, "b": 2}', "a", "b") == marks('{"b": 2.0, "a": 1}', "a", "b")
    assert marks('{"a": 1}', "a", "b") == []
    assert marks('{"x": {"a": 1}}', "a") == []
    assert marks('{"a": {"x": 1}}', "a") == marks('{"a": {"x": 1.0}, "b": 5}', "a") != []


def test_reading_on_does_not_change_an_old_state() -> None:
    text = '[{"a": "x\\u00e9", "b": [1, {}]}, {"a": 2}]'
    states = [JsonState()]
    for char in text:
        states.append(read(states[-1], char)[0])
    again = JsonState()
    for place, char in enumerate(text):
        assert again == states[place]
        again, _ = read(states[place], char)
