"""The same times give the same frames of a video; the first is taken; all are in order and within
the budget.
"""

from __future__ import annotations

from hypothesis import given, strategies as st

from pipegen.media.frames import VideoSpec, choose_frames, frame_spec, most_frames
from pipegen.media.sizes import ImageSpec, fit
from pipegen.records.option_groups import VlmPreprocessOptions

TIMES = st.lists(st.integers(1, 5000), min_size=0, max_size=60).map(
    lambda gaps: [sum(gaps[:end]) / 1000 for end in range(len(gaps) + 1)]
)
"""Rising times that are not evenly spread."""


@given(
    TIMES,
    st.none() | st.floats(0.01, 60),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4]),
)
def test_chosen_frames(
    times: list[float], fps: float | None, least: int, most: int, multiple: int
) -> None:
    """The first frame, rising, at most as many as asked, whole patches; the same each time."""
    most = most - most % multiple if most > multiple else most

    def chosen() -> tuple[int, ...]:
        return choose_frames(times, fps=fps, least=least, most=most, multiple=multiple)

    places = chosen()
    distinct = sorted(set(places))
    assert places == chosen()
    assert places[0] == 0
    assert list(places) == distinct + [distinct[-1]] * (len(places) - len(distinct))
    assert len(distinct) <= most
    assert len(places) % multiple == 0
    assert len(places) - len(distinct) < multiple
    if len(distinct) > 1:
        assert places[-1] == len(times) - 1
    if fps is None and len(times) <= most:
        assert distinct == [*range(len(times))]


@given(
    TIMES,
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.booleans(),
    st.none() | st.integers(2048, 10**6),
    st.none() | st.integers(1, 64),
    st.none() | st.floats(0.1, 30),
)
def test_frames_are_within_the_pixel_budget(
    times: list[float],
    width: int,
    height: int,
    shared: bool,
    whole: int | None,
    most: int | None,
    fps: float | None,
) -> None:
    """All frames together have at most `max_video_pixels`, or the checkpoint's own budget."""
    frame = ImageSpec(
        kind="grid",
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=4096,
        max_pixels=200_000,
    )
    spec = VideoSpec(frame=frame, shared=shared, max_frames=32)
    options = VlmPreprocessOptions(max_video_pixels=whole, max_frames=most, fps=fps)
    count = len(
        choose_frames(
            times,
            fps=fps or spec.fps,
            least=spec.min_frames,
            most=most_frames(spec, options),
            multiple=2,
        )
    )
    budget = frame_spec(spec, options, count)
    try:
        size = fit(
            width,
            height,
            factor=budget.factor,
            min_pixels=budget.min_pixels,
            max_pixels=budget.max_pixels,
        )
    except ValueError:  # a shape that no size within the budget has
        return
    limit = whole if whole is not None else 200_000 if shared else count * 200_000
    assert count * size[0] * size[1] <= limit
