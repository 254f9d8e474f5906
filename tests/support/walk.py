"""How many files, functions and frames of pipegen one request goes through, once everything is
warm: `python -m support.walk`, from the folder `tests`.

Frames are the functions of pipegen that are on the stack, at most, while the model computes and
while the chat template is rendered. Whether a caller waits for its server, and which thread is
first, differs from time to time: a request is asked `TIMES` times, and what it goes through in one
of them counts. CONTRIBUTING.md holds the counts, and tests/test_walk.py fails when one of them
grows by a fiftieth.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pipegen as pg

__all__ = ["WALKS", "Walk", "walk_of"]

ROOT = str(Path(pg.__file__).parent)
TIMES = 20
TEXT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count from 1 to 3."}],
    "options": {"max_new_tokens": 4},
}


class Walk:
    """The code that was called while it was counting, in every thread that was started after it was
    made.
    """

    def __init__(self) -> None:
        self.counting = False
        self.seen: set[CodeType] = set()
        self.above_model = self.above_template = 0
        """The most frames of pipegen above a pass of the model, and above the chat template."""

    def see(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.counting or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(ROOT):
            self.seen.add(code)
        elif code.co_name == "forward" and "/transformers/models/" in code.co_filename.replace(
            "\\", "/"
        ):
            self.above_model = max(self.above_model, _frames_above(frame))
        elif code.co_qualname == "Template.render":
            self.above_template = max(self.above_template, _frames_above(frame))

    @property
    def functions(self) -> set[tuple[str, str]]:
        """Files and names of what was called; what comprehensions and lambdas call counts with the
        function that they are in. The test server is left out.
        """
        called = {
            (
                code.co_filename.removeprefix(ROOT).lstrip("/\\"),
                code.co_qualname.partition(".<locals>.<")[0],
            )
            for code in self.seen
        }
        return {
            (file, name)
            for file, name in called
            if not file.startswith("testing") and not name.startswith("<")
        }

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Files, functions, frames above a pass of the model, frames above the template."""
        return (
            len({file for file, _ in self.functions}),
            len(self.functions),
            self.above_model,
            self.above_template,
        )


def _frames_above(frame: FrameType) -> int:
    count, above = 0, frame.f_back
    while above is not None:
        count += above.f_code.co_filename.startswith(ROOT)
        above = above.f_back
    return count


@contextmanager
def _profiled(walk: Walk) -> Iterator[None]:
    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        yield
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])  # None takes it away


def walk_of(name: str) -> Walk:
    """The way of one request, once it has been asked before."""
    walk = Walk()
    with _profiled(walk), WALKS[name]() as ask:
        ask()
        walk.counting = True
        for _ in range(TIMES):
            ask()
        walk.counting = False
    return walk


@contextmanager
def _text() -> Iterator[Callable[[], object]]:
    with pg.backends.hf("embedded") as route:
        yield lambda: pg.run(route, [TEXT])[0].unwrap()


@contextmanager
def _served() -> Iterator[Callable[[], object]]:
    from pipegen.testing.faulty import FaultyServer

    with (
        FaultyServer() as server,
        pg.backends.vllm_server("embedded", base_url=server.url) as route,
    ):
        yield lambda: pg.run(route, [TEXT])[0].unwrap()


@contextmanager
def _image() -> Iterator[Callable[[], object]]:
    asked = {"prompt": "What is it?", "images": [_png()], "options": TEXT["options"]}
    with pg.backends.hf("embedded") as route:
        yield lambda: pg.run(route, [asked])[0].unwrap()


@contextmanager
def _image_error() -> Iterator[Callable[[], object]]:
    broken = {"prompt": "What is it?", "images": [_png()[:-40]]}
    with pg.backends.hf("embedded") as route:
        yield lambda: pg.run(route, [broken])[0].failure()


def _png() -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (64, 64)).save(written, "PNG")
    return written.getvalue()


WALKS = {"text": _text, "server": _served, "image": _image, "image error": _image_error}

if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        walk = walk_of(name)
        print(name, *walk.counts)
        for file, function in sorted(walk.functions) if len(sys.argv) > 1 else ():
            print("  ", file, function)
