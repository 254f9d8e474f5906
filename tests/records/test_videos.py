"""Videos as records: what a source and a part of a message take, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

import pipegen as pg
from pipegen.core.names import InvalidField
from pipegen.jobs.row_keys import Keys
from pipegen.records.messages import VideoSource, message_from

FRAMES = {"frames": [b"a", b"b"], "times": [0, 0.5]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "exactly one of path, url, data, and frames"),
        ({"path": "a.mp4", "data": b"a"}, "exactly one of path, url, data, and frames"),
        ({"frames": ["a.png"]}, "0 times for 1 frames"),
        ({"frames": ["a.png", "b.png"], "times": [1, 1]}, "rising times, not 1 after 1"),
        ({"frames": "a.png", "times": [1]}, "a list of images"),
    ],
)
def test_a_source_takes_one_file_or_images_with_rising_times(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidField, match=words):
        VideoSource(**fields)


def test_the_bytes_of_a_source_are_those_of_its_file_or_of_its_frames() -> None:
    assert VideoSource.of(FRAMES).contents == (b"a", b"b")
    assert VideoSource.of(b"abc").contents == (b"abc",)
    assert VideoSource.of("a.mp4").contents == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "not int"),
        ("", "not ''"),
        (["a.png"], "images with their times are"),
        ({"x": 1}, "times"),
    ],
)
def test_what_is_no_source_is_refused_with_what_to_give(given: Any, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        VideoSource.of(given)


def test_a_source_is_shown_without_its_bytes() -> None:
    assert repr(VideoSource.of(FRAMES)) == "VideoSource(frames=<2 images>)"
    assert repr(VideoSource.of(b"abc")) == "VideoSource(data=<3 bytes>)"


def part(**fields: Any) -> Any:
    return message_from({"role": "user", "content": [fields]}, "message").content[0]


def test_a_part_names_its_video_in_several_ways() -> None:
    assert part(type="video", video="a.mp4").source == VideoSource.of("a.mp4")
    assert part(type="video", path="a.mp4").source == VideoSource.of("a.mp4")
    assert part(type="video", video=[b"a", b"b"], times=[0, 0.5]).source == VideoSource.of(FRAMES)
    assert part(type="video_url", video_url={"url": "https://a.org/b.mp4"}).source.url
    assert part(type="video").source is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "video", "film": "a.mp4"}, "not as film"),
        ({"type": "video_url", "video_url": {"url": ""}}, "video_url.url takes a string"),
        ({"type": "input_audio", "input_audio": {}}, "sound, which pipegen does not take"),
        ({"type": "hologram"}, "'video' or 'video_url'"),
    ],
)
def test_a_part_that_is_none_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        part(**fields)


def test_videos_are_a_list() -> None:
    with pytest.raises(InvalidField, match="a list of videos"):
        pg.VlmGenerationRequest(prompt="a", videos="a.mp4")  # type: ignore[arg-type]


def test_the_key_of_a_row_depends_on_frames_and_times() -> None:
    settings = {
        "model": [],
        "pipeline": "",
        "plugins": [],
        "version": "",
        "options": {},
        "engines": [],
    }

    def key(times: list[float], last: bytes = b"b") -> bytes:
        source = VideoSource.of({"frames": [b"a", last], "times": times})
        return Keys(settings).first(pg.VlmGenerationRequest(prompt="a", videos=[source]))

    assert key([0, 1]) == key([0, 1])
    assert len({key([0, 1]), key([0, 2]), key([0, 1], b"c")}) == 3
