"""What records take is checked wherever they are built, not only where requests are (C2, C4)."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Annotated, Any

import pytest

import pipegen as pg
from pipegen.core.names import nearest
from pipegen.records.fields import UnknownField, integer, record, unchecked_replace
from pipegen.records.frozen import printed
from pipegen.testing.fake import FakeEngine

HUGE = 2**2000
TOO_LONG_TO_PRINT = 10**5000


@pytest.mark.parametrize(
    "value", [HUGE, -HUGE, TOO_LONG_TO_PRINT], ids=["huge", "minus huge", "too long"]
)
@pytest.mark.parametrize(
    "name",
    [
        *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "seed"),
        *("max_new_tokens", "top_k"),
    ],
)
def test_a_number_beyond_all_bounds_is_refused_like_any_other(name: str, value: int) -> None:
    values: dict[str, Any] = {name: value}
    if value > 0 and name in ("max_new_tokens", "top_k"):
        return
    with pytest.raises(pg.InvalidField, match=f"GenerationOptions.{name} takes "):
        pg.GenerationOptions(**values)
    good, bad = pg.run(
        pg.route(FakeEngine("a")), [{"prompt": "x"}, {"prompt": "x", "options": values}]
    )
    assert pg.is_ok(good)
    assert isinstance(bad.failure(), pg.InvalidRequest)


def test_the_nearest_word_is_named_after_the_value() -> None:
    with pytest.raises(pg.InvalidField) as refused:
        pg.ChatTemplateOptions(control_tokens="txt")  # type: ignore[arg-type]
    assert (
        str(refused.value)
        == "ChatTemplateOptions.control_tokens takes one of 'text', 'reject', 'allow', not 'txt';"
        " did you mean 'text'?"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Message.content takes a string or a list of parts, not None"),
        (3, "Message.content takes a string or a list of parts, not int"),
        (b"Hi", "Message.content takes a string or a list of parts, not bytes"),
        (["Hi"], r"Message.content\[0\] takes a mapping with a 'type', not str"),
    ],
)
def test_a_message_checks_its_content(content: Any, words: str) -> None:
    with pytest.raises(pg.InvalidField, match=words):
        pg.Message(role="user", content=content)


def test_a_message_freezes_its_content() -> None:
    parts: list[Any] = [pg.TextPart(text="Hi"), {"type": "image"}]
    message = pg.Message(role="user", content=parts)  # type: ignore[arg-type]
    parts.clear()
    assert message.content == (pg.TextPart(text="Hi"), pg.ImagePart())
    assert pickle.loads(pickle.dumps(message)) == message
    assert hash(message) == hash(
        pg.Message(role="user", content=(pg.TextPart(text="Hi"), pg.ImagePart()))
    )
    assert pg.Message(role="assistant").content is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pg.TextPart, {"text": 3}),
        (pg.ImagePart, {"source": "a.png"}),
        (pg.ImageSource, {"path": 3}),
        (pg.ImageSource, {"data": "a"}),
    ],
)
def test_parts_check_what_they_hold(kind: Any, said: dict[str, Any]) -> None:
    with pytest.raises(pg.InvalidField, match=f"{kind.__name__}.{next(iter(said))} takes"):
        kind(**said)


@pytest.mark.parametrize("root", [3, "", b"docs"])
def test_the_root_of_images_is_a_folder(root: Any) -> None:
    with pytest.raises(pg.InvalidField, match=r"ImagePolicy\.root takes a path"):
        pg.ImagePolicy(root=root)


def test_a_root_that_does_not_exist_is_refused_when_the_policy_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for missing in (tmp_path / "fotos", tmp_path / "file", "a\0b"):
        with pytest.raises(pg.InvalidField, match=r"ImagePolicy\.root takes a folder that exists"):
            pg.ImagePolicy(root=missing)


def test_a_path_is_a_path_however_it_is_written(tmp_path: Path) -> None:
    assert pg.ImagePolicy(root=tmp_path) == pg.ImagePolicy(root=str(tmp_path))
    assert pg.ModelLoadConfig(model=tmp_path, adapter=tmp_path) == pg.ModelLoadConfig(
        model=str(tmp_path), adapter=str(tmp_path)
    )
    for bad in (3, "", b"a", None):
        with pytest.raises(pg.InvalidField, match=r"ModelLoadConfig\.model takes a path or a name"):
            pg.ModelLoadConfig(model=bad)  # type: ignore[arg-type]


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none"}))
    with pytest.raises(
        pg.CallFailed, match=r"cannot read the configuration of .* model type `none`"
    ):
        _ = pg.backends.hf(tmp_path).engine.capabilities


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"name": ""}, "Plugin.name takes a string that is not empty"),
        ({"name": 3}, "Plugin.name takes a string that is not empty"),
        ({"name": "p", "trim": "upper"}, "Plugin.trim takes a function, not 'upper'"),
        ({"name": "p", "start": 0, "feed": len}, "Plugin.start takes a function, not 0"),
        ({"name": "p", "feed": 3, "start": list}, "Plugin.feed takes a function"),
        ({"name": "p", "refuses": "no"}, "Plugin.refuses takes a function"),
        ({"name": "p", "logits_processor": 3}, "Plugin.logits_processor takes a function"),
        ({"name": "p", "requires": "watch"}, "Plugin.requires takes capabilities"),
        ({"name": "p", "requires": {3}}, "Plugin.requires takes capabilities, such as {'watch'}"),
    ],
)
def test_a_plugin_checks_what_it_is_made_of(said: dict[str, Any], words: str) -> None:
    with pytest.raises(pg.InvalidField) as refused:
        pg.Plugin(**said)
    assert words in str(refused.value)


def test_what_a_plugin_requires_is_frozen() -> None:
    required: Any = {"watch"}
    plugin = pg.Plugin(name="p", requires=required)
    required.add("stream")
    assert plugin.requires == {"watch"}
    assert hash(plugin) == hash(pg.Plugin(name="p", requires=frozenset({"watch"})))


def test_a_value_is_printed_short_whatever_it_is() -> None:
    class Raising:
        def __repr__(self) -> str:
            raise KeyError

    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"b": deep, "a": 1}
    assert printed({}) == "{}"
    assert printed({"b": 1, "a": [2]}) == "{'b': 1, 'a': [2]}"
    assert printed(deep) == "{'b': {'b': {'b': {'b': {...}, 'a': 1}, 'a': 1}, 'a': 1}, 'a': 1}"
    assert printed(dict.fromkeys(range(11), 0)).endswith("9: 0, ...}")
    assert printed(Raising()) == "Raising"
    assert len(printed("x" * 10**6)) <= 200


def test_a_very_long_name_is_near_to_none() -> None:
    assert nearest("temperature" * 10, ["temperature"]) == ""


def test_a_copy_takes_every_field_of_its_record_and_no_other() -> None:
    request = pg.TextGenerationRequest(id="a", prompt="x", metadata={"label": 1})
    copy = unchecked_replace(request, prompt="y")
    assert (type(copy), copy.id, copy.prompt) == (pg.TextGenerationRequest, "a", "y")
    assert copy.metadata == {"label": 1} and request.prompt == "x"
    assert unchecked_replace(request) == request and unchecked_replace(request, id=None).id is None
    with pytest.raises(TypeError, match="promt"):
        unchecked_replace(request, promt="y")


@record
class Room:
    seats: Annotated[int, integer(low=1)] = 4
    counted: int | None = dataclasses.field(default=None, init=False, compare=False)


def test_a_field_that_is_not_given_has_its_default_in_every_copy() -> None:
    counted = unchecked_replace(Room(seats=7), counted=7)
    assert (counted.seats, counted.counted) == (7, 7)
    assert counted == Room(seats=7)
    for copied in (unchecked_replace(counted, seats=5), dataclasses.replace(counted, seats=5)):
        assert (copied.seats, copied.counted) == (5, None)
    make: Any = Room
    with pytest.raises(UnknownField, match="has no field 'counted'"):
        make(counted=7)
    with pytest.raises((TypeError, ValueError), match="counted"):  # from Python 3.13 on the first
        dataclasses.replace(counted, counted=8)
