"""What numpy, torch, pandas and PIL hold: their numbers are numbers, their lists are lists, and
their images are taken or refused in words.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.frozen import freeze, plain_id
from pipegen.records.messages import ImageSource
from pipegen.records.parse_request import request_from
from pipegen.testing.fake import FakeEngine

numpy = pytest.importorskip("numpy")
PIXEL = "docs/examples/shapes.png"
USER = {"role": "user", "content": "Hi"}


def _torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("seed", numpy.int64(3), 3),
        ("seed", numpy.uint8(3), 3),
        ("top_k", numpy.array(3), 3),
        ("temperature", numpy.float32(0.5), 0.5),
        ("temperature", numpy.float64(0.5), 0.5),
        ("temperature", numpy.int32(1), 1.0),
        ("logprobs", numpy.bool_(True), True),
        ("allowed_token_ids", numpy.array([1, 2]), (1, 2)),
        ("allowed_token_ids", [numpy.int32(1), 2], (1, 2)),
        ("stop_token_ids", numpy.array([5]), (5,)),
        ("stop", numpy.array(["END", "."]), ("END", ".")),
    ],
)
def test_a_number_of_numpy_is_a_number_in_options(name: str, given: Any, kept: Any) -> None:
    options = pg.run(_echo(), [{"prompt": "a"}], {name: given})[0].unwrap()
    assert repr(options[name]) == repr(kept)


def _echo() -> Any:
    from pipegen.records.options import flat_values

    return pg.pure("options", lambda request: flat_values(request.options))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("seed", numpy.array([3])),
        ("seed", numpy.float64(3.0)),
        ("seed", numpy.bool_(True)),
        ("seed", numpy.int64(-1)),
        ("temperature", numpy.float64("nan")),
        ("temperature", numpy.bool_(True)),
        ("logprobs", numpy.int64(1)),
        ("allowed_token_ids", numpy.array([[1, 2]])),
    ],
)
def test_what_is_no_such_number_is_refused_as_of_python(name: str, given: Any) -> None:
    with pytest.raises(pg.InvalidField, match=name):
        pg.GenerationOptions(**{name: given})


def test_a_number_of_torch_is_a_number() -> None:
    torch = _torch()
    options = pg.GenerationOptions(
        top_k=torch.tensor(3), temperature=torch.tensor(0.5), allowed_token_ids=torch.tensor([1, 2])
    )
    assert (options.top_k, options.temperature, options.allowed_token_ids) == (3, 0.5, (1, 2))
    ids = pg.TextGenerationRequest(prompt_token_ids=torch.tensor([5, 6])).prompt_token_ids
    assert ids == (5, 6)
    assert {type(token_id) for token_id in ids or ()} == {int}


def test_ids_may_be_numbers_of_numpy() -> None:
    request = request_from({"id": numpy.int64(7), "prompt_token_ids": numpy.array([1, 2])}).unwrap()
    assert (request.id, request.prompt_token_ids) == ("7", (1, 2))
    assert request_from({"prompt_token_ids": [numpy.int64(3)]}).unwrap().prompt_token_ids == (3,)


def test_a_definition_of_a_tool_may_hold_numbers_of_numpy() -> None:
    held = freeze({"minimum": numpy.int64(1), "enum": numpy.array([1.5, 2.5])})
    assert held == freeze({"minimum": 1, "enum": [1.5, 2.5]})


def test_settings_of_loops_take_numbers_of_numpy() -> None:
    route = pg.route(FakeEngine("a"))
    loop = pg.repeat(route, lambda result: {"prompt": "again"}, limit=numpy.int64(2))
    assert len(pg.run(loop, [{"prompt": "a"}])[0].unwrap().rounds) == 2
    assert len([*pg.imap(route, [{"prompt": "a"}], in_flight=numpy.int64(1))]) == 1
    pg.tools([_tool], limit=numpy.int64(2), timeout=numpy.float64(2))


def _tool(place: str) -> str:
    """The weather at a place."""
    return place


def test_columns_of_lists_as_pandas_reads_them_are_lists() -> None:
    parts = numpy.array([{"type": "text", "text": "Hi"}], dtype=object)
    messages = numpy.array([{"role": "user", "content": parts}], dtype=object)
    request = request_from({"messages": messages}).unwrap()
    assert request.messages == request_from({"messages": [{**USER, "content": [*parts]}]}).unwrap().messages  # fmt: skip
    images = numpy.array([PIXEL, PIXEL], dtype=object)
    assert len(request_from({"prompt": "a", "images": images}).unwrap().sources) == 2


def test_rows_of_pandas_are_requests() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"id": [1, 2], "prompt": ["a", "b"], "score": [1.5, None], "image": [PIXEL, None]}
    )
    rows = [row for _, row in frame.iterrows()]
    first, second = (request_from(row).unwrap() for row in rows)
    assert (first.id, len(first.sources), first.metadata["score"]) == ("1", 1, 1.5)
    assert (second.id, second.sources, second.metadata["score"]) == ("2", (), None)
    assert request_from(next(frame.itertuples())).unwrap().messages == first.messages
    route = pg.route(FakeEngine("hi"))
    keyed = {key: slot.unwrap().id for key, slot in pg.imap_keyed(route, frame.iterrows())}
    assert keyed == {0: "1", 1: "2"}


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_column_of_arrays_is_carried_along(size: int) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a"], "embedding": [numpy.ones(size)]})
    for row in (*frame.to_dict("records"), next(frame.iterrows())[1]):
        asked = request_from(row).unwrap()
        assert asked.metadata["embedding"].tolist() == [1.0] * size


def test_what_is_missing_in_records_of_pandas_is_none() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "prompt": ["a", None],
            "query": [None, "b"],
            "image": [PIXEL, None],
            "system": [None, "Be brief."],
            "id": [1, None],
            "score": [1.5, None],
        }
    )
    frame["id"] = frame["id"].astype("Int64")
    first, second = frame.to_dict("records")
    asked = request_from(first).unwrap()
    assert (asked.id, len(asked.sources), len(asked.messages or ())) == ("1", 1, 1)
    asked = request_from(second).unwrap()
    assert (asked.id, asked.sources) == (None, ())
    assert [message.content for message in asked.messages or ()] == ["Be brief.", "b"]
    assert asked.metadata["score"] != asked.metadata["score"]  # the caller's own


def test_a_frame_in_the_place_of_its_rows_is_refused_with_what_to_do() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r'not a DataFrame.*\.to_dict\("records"\)'):
        pg.run(pg.route(FakeEngine("hi")), pandas.DataFrame({"prompt": ["a"]}))


def test_an_image_may_be_a_path_a_buffer_or_a_pil_image_wherever_one_is_taken() -> None:
    Image = pytest.importorskip("PIL.Image")
    data = Path(PIXEL).read_bytes()
    for image in (Path(PIXEL), io.BytesIO(data), Image.open(PIXEL)):
        for values in ({"image": image}, {"images": image}, {"images": [image]}):
            assert len(request_from({"prompt": "a", **values}).unwrap().sources) == 1
    read = io.BytesIO(data)
    read.seek(7)
    assert ImageSource.of(read).data == data
    assert ImageSource.of({"bytes": io.BytesIO(data), "path": None}).data == data
    assert ImageSource.of({"path": Path(PIXEL)}).path == PIXEL


@pytest.mark.parametrize("field", ["image", "images"])
def test_arrays_are_refused_with_how_to_make_an_image(field: str) -> None:
    def words(array: Any) -> str:
        return request_from({"prompt": "a", field: array}).failure().message

    assert "PIL.Image.fromarray(array) makes" in words(numpy.zeros((4, 4, 3), "uint8"))
    assert "fromarray((array * 255).astype('uint8'))" in words(numpy.zeros((4, 4, 4)))
    assert "to_pil_image(tensor)" in words(_torch().zeros(3, 4, 4))


def test_an_open_file_is_refused_with_what_to_pass() -> None:
    with open(PIXEL, "rb") as file, pytest.raises(pg.InvalidField, match=r"pass its path, or"):
        ImageSource.of(file)


@pytest.mark.parametrize("mode", ["HSV", "La", "RGBa"])
def test_a_pil_image_of_a_mode_without_a_file_form_is_refused_with_the_way(mode: str) -> None:
    Image = pytest.importorskip("PIL.Image")
    with pytest.raises(pg.InvalidField, match=rf'of mode {mode}.*image\.convert\("RGB"\)'):
        ImageSource.of(Image.new(mode, (4, 4)))


def test_an_id_of_few_bits_is_not_taken_for_a_whole_number() -> None:
    """Neighbours above 2**24 are one float32."""
    assert plain_id(numpy.float64(16777217)) == 16777217
    assert isinstance(plain_id(numpy.float32(16777217)), float)
