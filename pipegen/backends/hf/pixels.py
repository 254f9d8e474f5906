"""Images that need not be worked on twice: as they were prepared, and as the model's inputs. Both
are also made ahead of need while the model computes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch
from returns.result import Success

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.image_processors import ImageInputs
from pipegen.core.functional import WORKERS
from pipegen.core.slots import Slot
from pipegen.records.fields import unchecked_replace
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage

T = TypeVar("T")


class ByteBoundedLRU(Generic[T]):
    """Values by key; what was not asked for the longest goes first. For one thread at a time.

    >>> kept = ByteBoundedLRU[str](limit=10)
    >>> for key in "ab":
    ...     kept.put(key, key.upper(), size=5)
    >>> kept.get("a"), kept.make_room(5), kept.get("b"), kept.make_room(11)
    ('A', True, None, False)
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.bytes = 0
        """How many are kept."""
        self._held: dict[object, tuple[int, T]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def get(self, key: Hashable) -> T | None:
        """The value, which is now the newest; None where there is none."""
        if key not in self._held:
            return None
        self._held[key] = self._held.pop(key)
        return self._held[key][1]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value of so many bytes, whether there is room or not: `make_room` comes before."""
        self.bytes += size - (self._held[key][0] if key in self._held else 0)
        self._held[key] = (size, value)

    def make_room(self, size: int, needed: Collection[Hashable] = ()) -> bool:
        """Let go of the oldest, but for what is wanted, until so many bytes more may be kept;
        whether they may. Where they may not, all stays.
        """
        over = self.bytes + size - self.limit
        if over <= 0:
            return True
        spare = [key for key in self._held if key not in needed]
        if sum(self._held[key][0] for key in spare) < over:
            return False
        for key in spare:
            if over <= 0:
                break
            freed, _ = self._held.pop(key)
            self.bytes, over = self.bytes - freed, over - freed
        return True

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self.bytes = 0


class Prepared:
    """Prepares images. One that comes again with the same bytes and settings is neither decoded nor
    resized again while it is kept.
    """

    def __init__(self, checkpoint: Checkpoint, limit: int) -> None:
        self._checkpoint = checkpoint
        self._kept = ByteBoundedLRU[PreparedImage](limit)
        self._lock = threading.Lock()

    def __call__(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """As the checkpoint prepares it. Raises as `Checkpoint.prepare_image` does."""
        if source.data is None or not self._kept.limit:
            return self._checkpoint.prepare_image(source, options, index)
        # the bounds under which it was read count too
        key = unchecked_replace(source, data=hashlib.sha256(source.data).digest()), options
        with self._lock:
            cached = self._kept.get(key)
        return (
            Success(cached)
            if cached is not None
            else self._checkpoint.prepare_image(source, options, index).map(
                lambda image: self._keep(key, image)
            )
        )

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()

    def _keep(self, key: Hashable, image: PreparedImage) -> PreparedImage:
        with self._lock:
            if key not in self._kept and self._kept.make_room(len(image.rgb)):
                self._kept.put(key, image, len(image.rgb))
        return image


class Pixels:
    """What the checkpoint's processor makes of images. Those of processors with sizes of their own
    depend on all images of a pass, and are not kept.

    At most `limit` bytes are kept; a pass that needs more at once has them for as long as it is put
    together.
    """

    def __init__(self, checkpoint: Checkpoint, limit: int) -> None:
        self._checkpoint = checkpoint
        self._kept = ByteBoundedLRU[Future[ImageInputs]](limit)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def ahead(self, images: Iterable[PreparedImage]) -> None:
        """Begin to work on images that will be asked for soon, in this order. As many as may be
        kept together; others make room for them.
        """
        keys: set[Hashable] = set()
        for image in images:
            if self._checkpoint.image_spec.kind != "grid":
                return
            keys.add(_key(image))
            with self._lock:
                if _key(image) not in self._kept and not self._kept.make_room(
                    self._size(image), keys
                ):
                    return
                self._future_of(image)

    def __call__(self, images: Sequence[PreparedImage]) -> ImageInputs:
        """The inputs of these images, in order; what working on one of them raised comes
        through.
        """
        if self._checkpoint.image_spec.kind != "grid":
            return self._checkpoint.image_inputs(images)
        new = {_key(image): self._size(image) for image in images}
        with self._lock:
            self._kept.make_room(
                sum(size for key, size in new.items() if key not in self._kept), new
            )
            futures = [self._future_of(image) for image in images]
        parts = [inputs.result() for inputs in futures]
        with self._lock:
            self._kept.make_room(0)
        names = dict.fromkeys(name for part in parts for name in part.tensors)
        return parts[0]._replace(
            tensors={
                name: torch.cat([part.tensors[name] for part in parts if name in part.tensors])
                for name in names
            }
        )

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._kept.clear()
        if pool is not None:
            pool.shutdown()

    def _future_of(self, image: PreparedImage) -> Future[ImageInputs]:
        inputs = self._kept.get(_key(image))
        if inputs is None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pipegen-pixels")
            inputs = self._pool.submit(self._checkpoint.image_inputs, [image])
            self._kept.put(_key(image), inputs, self._size(image))
        return inputs

    def _size(self, image: PreparedImage) -> int:
        """The bytes of its inputs: the image as often as a still has frames, or the frames of a
        video, in float32, and the three numbers of its grid.
        """
        times = 1 if image.is_video else self._checkpoint.image_spec.temporal_patch_size
        return 4 * times * len(image.rgb) + 3 * 8


def _key(image: PreparedImage) -> Hashable:
    return image.digest, image.width, image.height
