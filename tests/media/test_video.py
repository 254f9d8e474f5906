"""Videos: what is read, which frames are taken, and what is refused before it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image
from support.videos import sound_file, video_file

import pipegen as pg
from pipegen.media import video as videos
from pipegen.media.frames import VideoSpec
from pipegen.media.sizes import ImageSpec
from pipegen.media.source import load_sources, sample_of
from pipegen.media.video import prepare_video
from pipegen.records.fields import names_of
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.records.results import PreparedImage

pytest.importorskip("av")
pytest.importorskip("numpy")

SPEC = VideoSpec(
    frame=ImageSpec(
        kind="grid",
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=32 * 32,
        max_pixels=128 * 128,
    ),
    max_frames=8,
)
UNEVEN = (0.0, 0.05, 0.4, 0.41, 1.0, 1.7, 1.8)


def prepared(source: Any, **options: Any) -> pg.Slot[PreparedImage]:
    found = pg.VideoSource.of(source)
    return prepare_video(found, SPEC, VlmPreprocessOptions(**options), 0)


def refused(source: Any, **options: Any) -> pg.BadVideo:
    error = prepared(source, **options).failure()
    assert isinstance(error, pg.BadVideo)
    assert error.index == 0
    assert error.message.startswith("video 0")
    return error


def frame_numbers(video: PreparedImage) -> list[int]:
    """Which frames these are, by their shades (see `video_file`)."""
    size = video.width * video.height * 3
    frames = [video.rgb[start : start + size] for start in range(0, len(video.rgb), size)]
    return [round(sorted(frame)[size // 4] / 10) for frame in frames]


def in_frames(times: Sequence[float], size: tuple[int, int] = (64, 64)) -> pg.VideoSource:
    colors = ("red", "blue", "lime", "white", "black", "gray")
    images = [Image.new("RGB", size, colors[place % 6]) for place in range(len(times))]
    loaded = [pg.ImageSource.of(image) for image in images]
    return pg.VideoSource(frames=loaded, times=list(times))


def test_the_frames_of_two_a_second_from_the_first_to_the_last() -> None:
    video = prepared(video_file()).unwrap()
    assert video.times == (0.0, 0.6, 1.2, 1.9)
    assert frame_numbers(video) == [0, 6, 12, 19]
    assert (video.width, video.height, video.grid, video.tokens) == (64, 64, (2, 4, 4), 8)


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "matroska"),
        ("mpeg4", "avi"),
        ("libx264", "mpegts"),
        ("libvpx", "webm"),
        ("libvpx-vp9", "webm"),
        ("mpeg4", "mp4"),
        ("libx264", "flv"),
    ],
)
def test_every_usual_container_gives_the_same_frames(codec: str, container: str) -> None:
    video = prepared(video_file(codec=codec, container=container)).unwrap()
    assert frame_numbers(video) == [0, 6, 12, 19]
    assert video.times == pytest.approx((0.0, 0.6, 1.2, 1.9), abs=0.002)


def test_a_variable_rate_gives_the_frames_that_are_on_the_screen() -> None:
    video = prepared(video_file(UNEVEN)).unwrap()
    assert video.times == (0.0, 0.41, 1.0, 1.8)
    assert frame_numbers(video) == [0, 3, 4, 6]


def test_options_choose_the_frames() -> None:
    data = video_file()
    assert prepared(data, fps=4.0).unwrap().times == (0.0, 0.2, 0.5, 0.8, 1.0, 1.3, 1.6, 1.9)
    assert prepared(data, max_frames=3).unwrap().times == (0.0, 1.9)
    assert prepared(data, fps=1.0).unwrap().times == (0.0, 1.9)
    small = prepared(data, max_video_pixels=4 * 1024).unwrap()
    assert len(small.times) * small.width * small.height == 4 * 1024
    assert prepared(data, max_pixels=1024).unwrap().grid == (2, 2, 2)
    both = refused(data, max_video_pixels=4096, min_pixels=4096)
    assert "min_pixels=4096 for each of 4 frames" in both.message
    assert "no room for 2 frames" in refused(data, max_video_pixels=2047).message


def test_frames_keep_their_size_where_it_is_asked() -> None:
    fits = prepared(video_file(size=(64, 32)), do_resize=False).unwrap()
    assert (fits.width, fits.height) == (64, 32)
    error = refused(video_file(size=(64, 48)), do_resize=False)
    assert "the frame at 0 s is 64x48; with do_resize=False" in error.message


def test_one_frame_fills_its_patch() -> None:
    video = prepared(video_file((0.0,))).unwrap()
    assert (video.times, video.grid) == ((0.0, 0.0), (1, 4, 4))


def test_all_images_with_times_are_taken_and_the_last_one_fills_the_patch() -> None:
    video = prepared(in_frames((0, 0.1, 2.5))).unwrap()
    assert video.times == (0.0, 0.1, 2.5, 2.5)
    assert prepared(in_frames((0, 0.1, 2.5)), fps=1.0).unwrap().times == (0.0, 2.5)
    assert len(prepared(in_frames(range(20))).unwrap().times) == 8


def test_images_with_times_are_of_one_size() -> None:
    frames = (*in_frames((0,)).frames, *in_frames((0,), (32, 32)).frames)
    error = refused(pg.VideoSource(frames=frames, times=(0, 1)))
    assert error.message == "video 0: frame 1 has 32x32 pixels, and the first 64x64"


ONE = 1 << 16
EIGHTH = 46_341
"""The sine of an eighth of a turn."""


def with_matrix(across: int, down: int, left: int, up: int) -> bytes:
    """A video of 96x32 pixels, whose first frame is bright at the left, with a display matrix."""
    import io

    import av

    out = io.BytesIO()
    with av.open(io.BytesIO(video_file(size=(96, 32)))) as given, av.open(out, "w", "mp4") as file:
        stream: Any = file.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                file.mux(packet)
    data = bytearray(out.getvalue())
    place = data.index(b"tkhd") + 4 + 4 + 4 * 5 + 4 * 4  # the matrix of the track's head
    assert data[place : place + 4] == ONE.to_bytes(4, "big")
    matrix = (across, down, 0, left, up, 0, 0, 0, 1 << 30)
    data[place : place + 36] = b"".join(one.to_bytes(4, "big", signed=True) for one in matrix)
    return bytes(data)


@pytest.mark.parametrize(
    ("matrix", "side"),
    [
        ((ONE, 0, 0, ONE), "left"),
        ((2 * ONE, 0, 0, 2 * ONE), "left"),
        ((ONE, 90, -90, ONE), "left"),  # rounded
        ((-ONE, 0, 0, ONE), "right"),
        ((ONE, 0, 0, -ONE), "left"),
        ((-ONE, 0, 0, -ONE), "right"),
        ((0, ONE, -ONE, 0), "top"),
        ((0, -ONE, ONE, 0), "bottom"),
        ((0, ONE, ONE, 0), "top"),
        ((0, -ONE, -ONE, 0), "bottom"),
    ],
)
def test_a_turned_or_mirrored_video_is_upright(
    matrix: tuple[int, int, int, int], side: str
) -> None:
    video = prepared(with_matrix(*matrix)).unwrap()
    turned = side in ("top", "bottom")
    assert (video.width, video.height) == ((32, 96) if turned else (96, 32))
    size = (video.width, video.height)
    frame = Image.frombytes("RGB", size, video.rgb[: size[0] * size[1] * 3]).convert("L")
    middle = size[0] // 2, size[1] // 2
    places = {
        "left": (2, middle[1]),
        "right": (size[0] - 3, middle[1]),
        "top": (middle[0], 2),
        "bottom": (middle[0], size[1] - 3),
    }
    bright = {name for name, place in places.items() if is_bright(frame, place)}
    assert bright == {side}


def is_bright(image: Image.Image, place: tuple[int, int]) -> bool:
    level = image.getpixel(place)
    assert isinstance(level, int)
    return level > 128


def corner(data: bytes) -> str:
    """Which corner of the first frame of a video is bright."""
    video = prepared(data).unwrap()
    size = (video.width, video.height)
    frame = Image.frombytes("RGB", size, video.rgb[: size[0] * size[1] * 3]).convert("L")
    found = [
        f"{high} {wide}"
        for high, y in (("top", 2), ("bottom", size[1] - 3))
        for wide, x in (("left", 2), ("right", size[0] - 3))
        if is_bright(frame, (x, y))
    ]
    return ", ".join(found)


@pytest.mark.parametrize(
    ("matrix", "where"),
    [
        ((ONE, 0, 0, -ONE), "bottom left"),
        ((-ONE, 0, 0, ONE), "top right"),
        ((0, ONE, ONE, 0), "top left"),
        ((0, -ONE, -ONE, 0), "bottom right"),
        ((0, ONE, -ONE, 0), "top right"),
    ],
)
def test_a_corner_goes_where_the_matrix_says(
    matrix: tuple[int, int, int, int], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = videos._frames

    def with_corner(container: Any, stream: Any) -> Any:
        for frame in decode(container, stream):
            shown, matrices = frame.to_ndarray(format="rgb24"), list(frame.side_data)
            shown[:] = 0
            shown[:12, :30] = 255
            yield Shown(Image.fromarray(shown), matrices, frame)

    monkeypatch.setattr(videos, "_frames", with_corner)
    assert corner(with_matrix(*matrix)) == where


class Shown:
    """A frame of a video with other pixels."""

    def __init__(self, image: Image.Image, side_data: list[Any], frame: Any) -> None:
        self.image, self.side_data, self.frame = image, side_data, frame

    def to_image(self) -> Image.Image:
        return self.image

    def __getattr__(self, name: str) -> Any:
        return getattr(self.frame, name)


@pytest.mark.parametrize(
    "matrix", [(EIGHTH, EIGHTH, -EIGHTH, EIGHTH), (ONE, ONE // 2, 0, ONE), (ONE, 4000, -4000, ONE)]
)
def test_what_is_turned_by_no_quarter_is_refused(matrix: tuple[int, int, int, int]) -> None:
    error = refused(with_matrix(*matrix))
    assert "is turned or sheared by its display matrix" in error.message
    assert "ffmpeg -i old.mp4 new.mp4" in error.hint


BROKEN = {
    "nothing": (b"", "is empty: 0 bytes"),
    "words": (b"these are words, and no video at all", "is not a video in a known container"),
    "sound": (None, "holds no frames but sound"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_video_is_refused(name: str) -> None:
    data, words = BROKEN[name]
    assert words in refused(sound_file() if data is None else data).message


@pytest.mark.parametrize(
    ("codec", "container"),
    [("libx264", "mp4"), ("mpeg4", "mp4"), ("libx264", "matroska"), ("libvpx-vp9", "webm")],
)
def test_a_video_that_is_cut_off_is_refused(codec: str, container: str) -> None:
    data = video_file(codec=codec, container=container)
    refused(data[: len(data) // 2])
    refused(data[: len(data) * 2 // 3])


def test_a_damaged_stream_is_refused() -> None:
    data = bytearray(video_file(codec="mpeg4", size=(256, 256)))
    start = data.index(b"mdat")
    for place in range(start + 400, start + 900):
        data[place] ^= 0x5A
    assert "damaged" in refused(bytes(data)).message


def test_a_playlist_reads_no_other_file(tmp_path: Any) -> None:
    (tmp_path / "a.ts").write_bytes(video_file(container="mpegts"))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{tmp_path}/a.ts\n#EXT-X-ENDLIST\n"
    assert "is not a video in a known container" in refused(playlist.encode()).message
    assert (
        "is not a video"
        in refused(f"ffconcat version 1.0\nfile {tmp_path}/a.ts\n".encode()).message
    )


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (ImagePolicy(max_video_seconds=1.5), "is 1.9 seconds long; the limit is 1.5"),
        (
            ImagePolicy(max_source_pixels=1000),
            "announces frames of 64x48 pixels; the limit is 1000",
        ),
        (ImagePolicy(max_decoded_pixels=60_000), "has 20 frames of 64x48 pixels, 61440 in all"),
    ],
)
def test_bounds_hold_before_anything_is_decoded(
    policy: ImagePolicy, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: Any) -> Any:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(videos, "_shown", decode)
    request = pg.VlmGenerationRequest(prompt="What?", videos=[video_file()])
    source = load_sources(request, policy).unwrap().sources[0]
    error = refused(source)
    assert words in error.message
    (name,) = [
        field
        for field in names_of(policy)
        if getattr(policy, field) != getattr(ImagePolicy(), field)
    ]
    assert f"ImagePolicy.{name}" in error.hint


def test_bytes_are_bounded_before_they_are_read(tmp_path: Any) -> None:
    (tmp_path / "a.mp4").write_bytes(video_file())
    request = pg.VlmGenerationRequest(prompt="What?", videos=[tmp_path / "a.mp4"])
    error = load_sources(request, ImagePolicy(max_video_bytes=100)).failure()
    assert isinstance(error, pg.BadVideo)
    assert "has more than 100 bytes" in error.message
    assert "ImagePolicy.max_video_bytes" in error.hint
    assert pg.is_ok(load_sources(request, ImagePolicy(max_bytes=100)))


def test_videos_are_read_by_the_policy_of_images(tmp_path: Any) -> None:
    (tmp_path / "a.mp4").write_bytes(video_file())
    (tmp_path / "other").mkdir()
    kept = ImagePolicy(root=tmp_path / "other")
    outside = pg.VlmGenerationRequest(prompt="a", videos=[str(tmp_path / "a.mp4")])
    assert "is outside" in load_sources(outside, kept).failure().message
    far = pg.VlmGenerationRequest(prompt="a", videos=["https://example.org/a.mp4?key=1"])
    error = load_sources(far, ImagePolicy()).failure()
    assert (
        error.message
        == "video 0: https://example.org/a.mp4 is not fetched, since allow_http is off"
    )
    missing = pg.VlmGenerationRequest(
        prompt="a", images=[tmp_path / "a.mp4"], videos=[{"frames": ["no.png"], "times": [0]}]
    )
    error = load_sources(missing, ImagePolicy()).failure()
    assert isinstance(error, pg.BadVideo)
    assert error.message.startswith("video 0: frame 0: 'no.png' cannot be read")


def test_a_sample_tells_images_with_other_times_apart() -> None:
    one, other = in_frames((0, 1)), in_frames((0, 2))
    assert sample_of(one, ImagePolicy()) != sample_of(other, ImagePolicy())
