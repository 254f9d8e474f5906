"""Which frames of a video are taken, and how large they may be: pure functions of its times.

The rule: `fps` frames of each second, evenly spread from the first frame to the last; at most
`max_frames`, and no more than the pixel budget has room for; so many that they fill the patches of
the model in time. The frame of a moment is the one that is on the screen then. The first frame is
always taken.

>>> tenth = [frame / 10 for frame in range(20)]
>>> [tenth[place] for place in choose_frames(tenth, fps=2, least=2, most=8, multiple=2)]
[0.0, 0.6, 1.2, 1.9]
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pipegen.media.sizes import ImageSpec, pixel_budget
from pipegen.records.fields import boolean, integer, number, record

if TYPE_CHECKING:
    from pipegen.records.option_groups import VlmPreprocessOptions


_EPSILON = 1e-6
"""Seconds by which a frame's time may be rounded."""


@record
class VideoSpec:
    """What a model's processor of videos wants."""

    frame: ImageSpec
    """The sizes of a frame, with the budget of one frame."""
    shared: Annotated[bool, boolean] = False
    """Whether that budget is one of all frames together."""
    fps: Annotated[float, number(above=0)] = 2.0
    """Frames of each second, where no option sets it."""
    min_frames: Annotated[int, integer(low=1)] = 4
    """As many are taken of a short video, if it has them."""
    max_frames: Annotated[int, integer(low=1)] = 768
    """The most frames, where no option sets it."""


def choose_frames(
    times: Sequence[float], *, fps: float | None, least: int, most: int, multiple: int
) -> tuple[int, ...]:
    """The places of the frames that are taken, in order; `times` are those of all frames, rising.

    fps: frames of each second; None takes all.
    least: as many are taken of a short video, if it has them.
    most: the most frames; a multiple of `multiple`, or less than one.
    multiple: the frames of one patch in time. What lacks to fill the last patch are copies of the
        last frame.

    >>> choose_frames([0, 1, 2], fps=None, least=1, most=8, multiple=2)
    (0, 1, 2, 2)
    >>> choose_frames([0, 1, 2, 3, 4], fps=None, least=1, most=4, multiple=2)
    (0, 1, 2, 4)
    """
    count, span = len(times), times[-1] - times[0]
    if fps is not None:
        count = min(count, max(math.floor(span * fps + _EPSILON) + 1, least))
    if fps is not None or count > most:
        count = min(count, most)
        count -= count % multiple if count > multiple else 0
    places: list[int] = []
    for place in range(count):
        moment = times[0] + span * place / max(1, count - 1)
        frame_at_moment = bisect_right(times, moment + _EPSILON) - 1
        after = places[-1] + 1 if places else 0
        places.append(min(max(frame_at_moment, after), len(times) - (count - place)))
    return (*places, *places[-1:] * (-count % multiple))


def most_frames(spec: VideoSpec, options: VlmPreprocessOptions) -> int:
    """The most frames that may be taken: `max_frames`, and as many as the budget of all frames has
    room for at one token each; 0 where it has none.
    """
    most = options.max_frames or spec.max_frames
    multiple, budget = spec.frame.temporal_patch_size, options.max_video_pixels
    if budget is None and spec.shared and options.max_pixels is None:
        budget = spec.frame.max_pixels
    if budget is not None:
        room = budget // spec.frame.factor**2
        if room < multiple:
            return 0
        most = min(most, room)
    return most - most % multiple if most > multiple else most


def frame_spec(spec: VideoSpec, options: VlmPreprocessOptions, count: int) -> ImageSpec:
    """The sizes of each of so many frames: the budget of the options, else the checkpoint's, and
    its share of `max_video_pixels`.

    >>> from pipegen.records.option_groups import VlmPreprocessOptions
    >>> frame = ImageSpec(
    ...     kind="grid", patch_size=16, merge_size=2, min_pixels=4096, max_pixels=65_536
    ... )
    >>> options = VlmPreprocessOptions(max_video_pixels=80_000)
    >>> [
    ...     frame_spec(VideoSpec(frame=frame, shared=shared), options, 4).max_pixels
    ...     for shared in (False, True)
    ... ]
    [20000, 16384]
    """
    image_spec = spec.frame
    if spec.shared:
        highest = max(image_spec.factor**2, image_spec.max_pixels // count)
        lowest = min(max(1, -(-image_spec.min_pixels // count)), highest)
        image_spec = dataclasses.replace(image_spec, min_pixels=lowest, max_pixels=highest)
    low, high = pixel_budget(image_spec, options)
    if options.max_video_pixels is not None and options.max_video_pixels // count < high:
        high = options.max_video_pixels // count
        low = min(low, max(1, high // 4))
    return dataclasses.replace(image_spec, min_pixels=low, max_pixels=high)
