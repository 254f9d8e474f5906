"""Videos on their way to an engine: who takes how many, and the order of placeholders."""

from __future__ import annotations

import pytest

import pipegen as pg
from pipegen.core.errors import InvalidRequest
from pipegen.engines.capabilities import Capabilities
from pipegen.records.options import resolve
from pipegen.records.results import PreparedImage, ResolvedRequest
from pipegen.stages.resolving import check_support
from pipegen.stages.tokenizing import _misplaced
from pipegen.template.image_places import Placeholders


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        (
            Capabilities(engine="hf", honours=frozenset()),
            "chosen frames and their times cannot be sent to it",
        ),
        (
            Capabilities(engine="own", honours=frozenset(), reason="it is blind"),
            "own takes no videos: it is blind",
        ),
        (Capabilities(engine="own", honours=frozenset()), "own takes no videos"),
        (
            Capabilities(engine="own", honours=frozenset({"videos"}), max_videos=1),
            "takes at most 1 videos in a request, and this one has 2",
        ),
    ],
)
def test_an_engine_that_does_not_take_them_refuses(capabilities: Capabilities, words: str) -> None:
    request = pg.VlmGenerationRequest(prompt="a", videos=["a.mp4", "b.mp4"])
    slot = check_support(ResolvedRequest(request=request, options=resolve()), capabilities)
    error = slot.failure()
    assert isinstance(error, pg.UnsupportedMultimodal)
    assert words in error.message


def test_placeholders_are_in_the_order_of_the_messages() -> None:
    def prepared(*times: float) -> PreparedImage:
        return PreparedImage(
            width=1, height=1, rgb=bytes(3 * max(1, len(times))), digest="", times=times
        )

    images, tokens = (prepared(), prepared(0.0, 1.0)), {"image": 7, "video": 8}
    both = Placeholders("<i>", "<v>")
    asked = pg.VlmGenerationRequest(prompt="", images=["a.png"], videos=["a.mp4"])
    assert _misplaced([7, 8], asked, images, tokens, both, None) is None
    wrong = _misplaced([8, 7], asked, images, tokens, both, None)
    assert isinstance(wrong, InvalidRequest)
    assert "in another order than the messages" in wrong.message
