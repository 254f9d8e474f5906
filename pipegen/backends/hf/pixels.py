"""The model's inputs for pictures: worked out once for each picture while they are held, and ahead of need while the model computes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from pipegen.backends.checkpoint import Checkpoint
from pipegen.backends.native_processors import PictureInputs
from pipegen.parallel import WORKERS
from pipegen.records import PreparedImage

__all__ = ["Pixels"]

LIMIT = 256 * 2**20
"""Bytes of pictures' inputs that are held at most, besides those that a pass needs at once."""


class _Held(NamedTuple):
    bytes: int
    inputs: Future[PictureInputs]


class Pixels:
    """What the checkpoint's processor makes of pictures. Those of processors with sizes of their own hang on all pictures of a pass, and are not held."""

    def __init__(self, checkpoint: Checkpoint, limit: int = LIMIT) -> None:
        self._checkpoint, self._limit = checkpoint, limit
        self._held: dict[Hashable, _Held] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def ahead(self, images: Iterable[PreparedImage]) -> None:
        """Begin to work on pictures that will be asked for soon, in this order, as many as may be held together; others make room for them."""
        wanted: set[Hashable] = set()
        for image in images:
            if self._checkpoint.image_spec.kind != "grid":
                return
            wanted.add(_key(image))
            with self._lock:
                if _key(image) not in self._held and not self._make_room(_size(image), wanted):
                    return
                self._begun(image)

    def __call__(self, images: Sequence[PreparedImage]) -> PictureInputs:
        """The inputs of these pictures, in order; what working on one of them raised comes through."""
        if self._checkpoint.image_spec.kind != "grid":
            return self._checkpoint.picture_inputs(images)
        with self._lock:
            begun = [self._begun(image) for image in images]
        parts = [held.inputs.result() for held in begun]
        with self._lock:
            self._make_room(0)
        return parts[0]._replace(tensors={name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors})

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._held.clear()
        if pool is not None:
            pool.shutdown()

    def _make_room(self, size: int, wanted: Collection[Hashable] = ()) -> bool:
        """Let go of what was not asked for the longest, but for what is wanted, until so many bytes more may be held; whether they may."""
        free = self._limit - size - sum(held.bytes for held in self._held.values())
        spare = [key for key in self._held if key not in wanted]
        if free + sum(self._held[key].bytes for key in spare) < 0:
            return False
        for key in spare:
            if free >= 0:
                break
            free += self._held.pop(key).bytes
        return True

    def _begun(self, image: PreparedImage) -> _Held:
        held = self._held.pop(_key(image), None)
        if held is None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pipegen-pixels")
            held = _Held(_size(image), self._pool.submit(self._checkpoint.picture_inputs, [image]))
        self._held[_key(image)] = held  # the newest
        return held


def _key(image: PreparedImage) -> Hashable:
    return image.digest, image.width, image.height


def _size(image: PreparedImage) -> int:
    """About the bytes of its inputs: twice the picture (a still has two frames), in float32."""
    return 8 * len(image.rgb)
