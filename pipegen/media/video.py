"""Videos: bytes of a video file, or images with times, to the frames that every engine gets.

PyAV reads the file. Its packets are read first, which tells the time of each frame and decodes
nothing: so a video that is too long, too large or cut off is refused before any frame is decoded.
Then the frames are chosen (see `pipegen.media.frames`), decoded once, turned upright, and resized
like images. Times count from the first frame. Sound is not read. Pixels are taken as square, and
the alpha channel is left out.

A file is read by a demuxer of `FORMATS` alone: others, such as that of playlists, read further
files and addresses that the file names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from returns.result import Failure, Success

from pipegen.core.errors import BadVideo
from pipegen.core.foreign_calls import Raised, guard_result
from pipegen.core.slots import Slot, is_ok
from pipegen.media.frames import VideoSpec, choose_frames, frame_spec, most_frames
from pipegen.media.image import open_image, sized
from pipegen.media.source import SourceRejected
from pipegen.records.messages import VideoSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.records.results import PreparedImage

if TYPE_CHECKING:
    from PIL import Image


FORMATS = ("mov", "mp4", "matroska", "webm", "avi", "flv", "mpegts", "mpeg", "ogg", "asf", "gif")
"""The containers that are read, in the names of FFmpeg's demuxers."""
MOST_FRAMES = 2**18
"""The most frames of a file: two and a half hours at 30 a second."""
_KNOWN = (
    OSError,  # av.FFmpegError is one, or a ValueError
    ValueError,
    EOFError,
    IndexError,
    OverflowError,
    MemoryError,
    RuntimeError,
)
"""What PyAV raises on a broken file; anything else is logged with its traceback."""
_TURNS = {
    (False, 1, 1): None,
    (False, -1, 1): 0,
    (False, 1, -1): 1,
    (False, -1, -1): 3,
    (True, 1, 1): 5,
    (True, 1, -1): 4,
    (True, -1, 1): 2,
    (True, -1, -1): 6,
}
"""Whether a display matrix swaps the sides, and the signs of its two numbers -> the
`PIL.Image.Transpose` that does the same.
"""
_ASKEW = 0.01
"""The other two numbers may have this share of the larger ones: they are rounded."""
_LOWER = "make it shorter or smaller, or raise ImagePolicy.{} if you trust the source"


class _Frame(NamedTuple):
    """A chosen frame: its time in seconds, and its upright RGB pixels."""

    time: float
    image: Image.Image


def prepare_video(
    source: VideoSource, spec: VideoSpec, options: VlmPreprocessOptions, index: int
) -> Slot[PreparedImage]:
    """The chosen frames of a video with their times, each resized once as an image is.

    Fails with `BadVideo(index)` for what is not a complete video in one of `FORMATS`; before
    anything is decoded, for one beyond the bounds of the policy under which it was read; for frames
    of different sizes; and where the options leave no room for frames. A file takes PyAV, of the
    extra `video`.
    """
    most = most_frames(spec, options)
    if not most:
        least = spec.frame.temporal_patch_size * spec.frame.factor**2
        return _rejected(
            index,
            f"max_video_pixels={options.max_video_pixels} has no room for"
            f" {spec.frame.temporal_patch_size} frames of one token each: {least} pixels",
            "raise max_video_pixels, or leave it out",
        )

    def choose(times: Sequence[float], *, whole: bool) -> tuple[int, ...]:
        fps = options.fps if options.fps is not None or whole else spec.fps
        return choose_frames(
            times,
            fps=fps,
            least=1 if options.fps is not None else spec.min_frames,
            most=most,
            multiple=spec.frame.temporal_patch_size,
        )

    return frames_of(source, index, choose).bind(
        lambda frames: _joined(frames, spec, options, index)
    )


def frames_of(source: VideoSource, index: int, chosen: Any) -> Slot[list[_Frame]]:
    """The upright RGB frames that `chosen` takes, with their times.

    `chosen(times, whole=...)` gives the places of those to take; `whole` says that the caller gave
    the frames himself.
    """
    if source.frames:
        return _given(source, index, chosen)

    def unknown(raised: Raised) -> BadVideo:
        return BadVideo(
            index,
            message=f"video {index} cannot be decoded: {raised.words}"[:300],
            incident=raised.incident,
        )

    def work() -> Slot[list[_Frame]]:
        try:
            return Success(_decoded(source, partial(chosen, whole=False)))
        except SourceRejected as refused:
            return Failure(BadVideo(index, message=f"video {index} {refused}", hint=refused.hint))

    return guard_result(work, unknown, known=_KNOWN)


def _rejected(index: int, why: str, hint: str) -> Slot[Any]:
    return Failure(BadVideo(index, message=f"video {index}: {why}", hint=hint))


def _given(source: VideoSource, index: int, choose: Any) -> Slot[list[_Frame]]:
    """The images of a list, with their times."""
    policy = ImagePolicy()
    frames: list[_Frame] = []
    opened: dict[int, Image.Image] = {}
    for place in choose(source.times, whole=True):
        frame = source.frames[place]
        if frame.max_pixels is not None:
            policy = ImagePolicy(max_source_pixels=frame.max_pixels)
        if place not in opened:
            image = open_image(frame.data or b"", policy, place)
            if not is_ok(image):
                error = image.failure()
                words = error.message.removeprefix("image ")
                return _rejected(index, f"frame {words}", error.hint)
            opened[place] = image.unwrap()
        first, other = next(iter(opened.values())).size, opened[place].size
        if other != first:
            return _rejected(
                index,
                f"frame {place} has {other[0]}x{other[1]} pixels, and the first"
                f" {first[0]}x{first[1]}",
                "give frames of one size",
            )
        frames.append(_Frame(source.times[place], opened[place]))
    return Success(frames)


def _joined(
    frames: Sequence[_Frame], spec: VideoSpec, options: VlmPreprocessOptions, index: int
) -> Slot[PreparedImage]:
    """The frames, each resized, as one record."""
    budget = frame_spec(spec, options, len(frames))
    if (options.min_pixels or 0) > budget.max_pixels:
        return _rejected(
            index,
            f"min_pixels={options.min_pixels} for each of {len(frames)} frames is more than"
            f" max_video_pixels={options.max_video_pixels} allows",
            "lower min_pixels, or raise max_video_pixels",
        )
    if options.max_video_pixels is not None:
        options = dataclasses.replace(options, max_pixels=budget.max_pixels)
    prepared: list[PreparedImage] = []
    last: tuple[Any, PreparedImage] | None = None
    for time, image in frames:
        if last is None or last[0] is not image:
            try:
                last = image, sized(image, budget, options)
            except SourceRejected as refused:
                hint = refused.hint.replace("the image", "the video")
                return _rejected(index, f"the frame at {time:g} s {refused}", hint)
        prepared.append(last[1])
    times = tuple(time for time, _ in frames)
    first = prepared[0]
    (_, high, wide) = first.grid or (1, 1, 1)
    grid = (len(prepared) // spec.frame.temporal_patch_size, high, wide)
    sha = hashlib.sha256(repr(times).encode())
    for one_frame in prepared:
        sha.update(one_frame.digest.encode())
    return Success(
        PreparedImage(
            width=first.width,
            height=first.height,
            rgb=b"".join(frame.rgb for frame in prepared),
            digest=sha.hexdigest(),
            grid=grid,
            tokens=grid[0] * high * wide // spec.frame.merge_size**2,
            times=times,
        )
    )


def _decoded(source: VideoSource, choose: object) -> list[_Frame]:
    """The chosen frames of a file. Raises `SourceRejected`, and what `_KNOWN` lists."""
    data = source.data or b""
    if not data:
        raise SourceRejected("is empty: 0 bytes")
    moments = _moments(source, data)
    places, decoded = _chosen(source, data, moments, choose)
    if decoded.moments != moments:  # packets that show nothing, or several frames
        if not decoded.moments:
            raise SourceRejected("has no frame that can be decoded")
        moments = decoded.moments
        places, decoded = _chosen(source, data, moments, choose)
    times = _times(moments)
    missing = [place for place in places if moments[place] not in decoded.images]
    if missing:
        raise SourceRejected(f"has no frame at {times[missing[0]]:g} s that can be decoded")
    return [_Frame(times[place], decoded.images[moments[place]]) for place in places]


def _chosen(
    source: VideoSource, data: bytes, moments: Sequence[Fraction], choose: Any
) -> tuple[list[int], _DecodedFrames]:
    """The places that are chosen, and what the file shows there."""
    places = choose(_times(moments))
    return places, _shown(source, data, [moments[place] for place in places])


def _times(moments: Sequence[Fraction]) -> list[float]:
    """Seconds from the first frame on."""
    return [float(moment - moments[0]) for moment in moments]


def _open(data: bytes) -> Any:
    import av
    from av.error import FFmpegError

    options = {"format_whitelist": ",".join(FORMATS)}
    try:
        return av.open(io.BytesIO(data), "r", options=options, metadata_errors="replace")
    except (FFmpegError, OSError, ValueError) as raised:
        raise SourceRejected(
            f"({len(data)} bytes) is not a video in a known container ({', '.join(FORMATS)})",
            "check that it is a complete video; convert others to MP4 or WebM",
        ) from raised


def _stream(container: Any, source: VideoSource) -> Any:
    """The stream of frames, with the bound of their size set."""
    streams = [
        video_stream for video_stream in container.streams.video if not _is_cover(video_stream)
    ]
    if not streams:
        sound = " but sound" if container.streams.audio else ""
        raise SourceRejected(
            f"holds no frames{sound}",
            "give a file with a video stream; pipegen takes no sound",
        )
    stream = streams[0]
    if stream.codec_context is None:
        raise SourceRejected(
            "has a codec that is not known", "convert it to H.264 in MP4, or to WebM"
        )
    most = source.max_pixels or ImagePolicy().max_source_pixels
    width, height = stream.codec_context.width, stream.codec_context.height
    if width * height > most:
        raise SourceRejected(
            f"announces frames of {width}x{height} pixels; the limit is {most} in all",
            _LOWER.format("max_source_pixels"),
        )
    # where a later frame is larger, and where the stream is damaged
    stream.codec_context.options = {"max_pixels": str(most), "err_detect": "explode"}
    return stream


def _is_cover(stream: Any) -> bool:
    """Whether the stream is a still picture beside sound."""
    return bool(stream.disposition & stream.disposition.__class__.attached_pic)


def _moments(source: VideoSource, data: bytes) -> list[Fraction]:
    """The time of each frame, in order, by the packets alone: nothing is decoded."""
    policy = ImagePolicy()
    with _open(data) as container:
        stream = _stream(container, source)
        frame_times: set[Fraction] = set()
        packets = 0
        for packet in container.demux(stream):
            at = packet.pts if packet.pts is not None else packet.dts
            packets += 1 if packet.size else 0
            if not packet.size or at is None or packet.is_discard:
                continue
            if packet.is_corrupt:
                raise SourceRejected("is cut off", "get the whole file")
            frame_times.add(at * packet.time_base)
            if len(frame_times) > MOST_FRAMES:
                raise SourceRejected(f"has more than {MOST_FRAMES} frames", "cut it into pieces")
        moments = sorted(frame_times)
        if not moments:
            raise SourceRejected("has no frames")
        cut = _cut_off(container, stream, packets, moments)
        if cut:
            raise SourceRejected(f"{cut}: it is cut off", "get the whole file")
        longest = source.max_seconds or policy.max_video_seconds
        seconds = float(moments[-1] - moments[0])
        if seconds > longest:
            raise SourceRejected(
                f"is {seconds:g} seconds long; the limit is {longest:g}",
                _LOWER.format("max_video_seconds"),
            )
        pixels = stream.codec_context.width * stream.codec_context.height * len(moments)
        most = source.max_decoded_pixels or policy.max_decoded_pixels
        if pixels > most:
            raise SourceRejected(
                f"has {len(moments)} frames of {stream.codec_context.width}x"
                f"{stream.codec_context.height} pixels, {pixels} in all; the limit is {most}",
                _LOWER.format("max_decoded_pixels"),
            )
        return moments


def _cut_off(container: Any, stream: Any, packets: int, moments: Sequence[Fraction]) -> str:
    """What the file's head announces and the file does not hold; empty where it holds all, or the
    head does not tell.
    """
    name = container.format.name
    if "mp4" in name and stream.frames > packets:
        return f"announces {stream.frames} frames, and holds {packets}"
    if not any(kind in name for kind in ("matroska", "avi", "flv")):
        return ""
    announced = _seconds(stream.metadata.get("DURATION", ""))
    if not announced and len(container.streams) == 1:
        announced = (container.duration or 0) / 1e6
    step = max((float(later - earlier) for earlier, later in pairwise(moments)), default=announced)
    end = float(moments[-1] - min(moments[0], Fraction(0))) + 2 * step
    return (
        f"announces {announced:g} seconds, and ends at {float(moments[-1]):g}"
        if end < announced
        else ""
    )


def _seconds(clock: str) -> float:
    """Seconds of a time such as 00:01:02.5; 0 where it is none.

    >>> _seconds("00:01:02.500000000"), _seconds("")
    (62.5, 0.0)
    """
    try:
        hours, minutes, seconds = map(float, clock.split(":"))
    except ValueError:
        return 0.0
    return 3600 * hours + 60 * minutes + seconds


class _DecodedFrames(NamedTuple):
    """What decoding showed: the time of each frame up to the last that was wanted, and those that
    were.
    """

    moments: list[Fraction]
    images: dict[Fraction, Image.Image]


def _shown(source: VideoSource, data: bytes, requested: Sequence[Fraction]) -> _DecodedFrames:
    """Decode the file once, and keep the wanted frames."""
    from av.error import FFmpegError

    requested_set, images, moments = frozenset(requested), dict[Fraction, Any](), list[Fraction]()
    with _open(data) as container:
        stream = _stream(container, source)
        try:
            for frame in _frames(container, stream):
                if frame.is_corrupt:
                    raise SourceRejected(
                        f"is damaged at frame {len(moments)}", "get the whole file"
                    )
                if frame.pts is None:
                    raise SourceRejected(
                        "does not tell the times of its frames",
                        "put it into a container such as MP4",
                    )
                moment = frame.pts * frame.time_base
                moments.append(moment)
                if moment in requested_set and moment not in images:
                    images[moment] = _upright(frame)
        except FFmpegError as raised:
            raise SourceRejected(
                f"is damaged at frame {len(moments)}: {raised.strerror or raised}",
                "get the whole file",
            ) from raised
    return _DecodedFrames(sorted(moments), images)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    yield from container.decode(stream)


def _upright(frame: Any) -> Image.Image:
    from PIL import Image

    image: Image.Image = frame.to_image()
    turn = _turn_of(frame)
    return image if turn is None else image.transpose(Image.Transpose(turn))


def _turn_of(frame: Any) -> int | None:
    """How a frame is turned and mirrored, by its display matrix (ISO 14496-12). Its scale, which is
    that of all frames, is left out.
    """
    for one in frame.side_data:
        if one.type.name != "DISPLAYMATRIX":
            continue
        across, down, left, up = itemgetter(0, 1, 3, 4)(struct.unpack("=9i", bytes(one)[:36]))
        straight, swapped = min(abs(across), abs(up)), min(abs(down), abs(left))
        if straight > swapped and max(abs(down), abs(left)) <= _ASKEW * straight:
            return _TURNS[False, _sign(across), _sign(up)]
        if swapped > straight and max(abs(across), abs(up)) <= _ASKEW * swapped:
            return _TURNS[True, _sign(down), _sign(left)]
        raise SourceRejected(
            f"is turned or sheared by its display matrix ({across}, {down}, {left}, {up}) to what is"
            " no quarter turn",
            "write its frames upright: ffmpeg -i old.mp4 new.mp4",
        )
    return None


def _sign(number: int) -> int:
    return 1 if number > 0 else -1
