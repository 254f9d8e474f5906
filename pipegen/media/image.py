"""Images: bytes of an image file to the pixels that every engine gets.

The reference conversion, in this order: the first frame; 16-bit levels divided by 257; transparent
pixels over white; Pillow's `convert("RGB")`; upright by EXIF. Colour profiles are not applied.
(transformers' `convert_to_rgb` shows the colours under transparent pixels, and clips 16 bits.)
Levels that are floats are refused: their range may be 0 to 1 or 0 to 255, and no file says which.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from returns.result import Failure, Success

from pipegen.core.errors import BadImage, UnsupportedOption
from pipegen.core.foreign_calls import Raised, guard, guard_result
from pipegen.media.files import (
    DECODING,
    MOST_PARTS,
    SIXTEEN_BITS,
    Counted,
    decoded_bytes,
    family_of,
    most_scans,
    parts_of,
)
from pipegen.media.sizes import ImageSpec, fit, nearest_sides, pixel_budget
from pipegen.media.source import SourceRejected
from pipegen.records.results import PreparedImage

if TYPE_CHECKING:
    from PIL import Image

    from pipegen.core.slots import Slot
    from pipegen.records.option_groups import VlmPreprocessOptions
    from pipegen.records.requests import ImagePolicy


A = TypeVar("A")
T = TypeVar("T")
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
"""The file formats that are read, in Pillow's names; without those that run an interpreter (EPS,
PDF) or embed other files. AVIF comes with Pillow 11.3, HEIF (HEIC) with the package pillow-heif.
"""
_COMES_WITH = {"AVIF": "pip install 'pillow>=11.3'", "HEIF": "pip install pillow-heif"}
BROKEN = (
    # truncated or unidentified data (PIL.UnidentifiedImageError is one), errors of the decoders
    OSError,
    SyntaxError,  # Pillow's plugins on a malformed header
    # bad values in headers, no conversion from an exotic mode, text chunks that grow too large
    ValueError,
    EOFError,  # no first frame
    struct.error,
    zlib.error,
    IndexError,  # Pillow's plugins and EXIF reader on lists cut short ...
    KeyError,  # ... on tags that are missing or unknown ...
    TypeError,  # ... and on tags of another type than they should have
    OverflowError,  # sizes and offsets beyond the machine's
    ZeroDivisionError,  # rationals with a denominator of zero
    RuntimeError,  # the AVIF decoder
    # within the limits, and yet more than this machine has: Pillow asks for the whole image at once
    MemoryError,
)
"""What Pillow raises on a broken file, besides `PIL.Image.DecompressionBombError`; anything else is
logged with its traceback.
"""
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientation -> the `PIL.Image.Transpose` that turns the image upright."""
_SENT = {"JPEG": "jpeg", "MPO": "jpeg", "PNG": "png"}
"""Formats that may be sent as they are, with their MIME subtype."""
_SAVE_AGAIN = "save it again with a usual program"
_BITS, _PHOTOMETRIC = 258, 262
"""The tags of a TIFF with the bits of a level, and with whether white is zero."""
_BAND = 2**20
"""Pixels hashed at a time, to avoid a second copy of a large image."""


class _Silence:
    """Suppresses Pillow's warnings (large sizes, broken EXIF) while images are decoded.

    Warning filters belong to the process: the first of the threads that decode sets them, and the
    last one restores them.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.__exit__(None, None, None)


_SILENCE = _Silence()


def open_image(data: bytes, policy: ImagePolicy, index: int = 0) -> Slot[Image.Image]:
    """Decode the first frame of an image file to an upright RGB image, by the reference conversion
    of this module.

    Fails with `BadImage(index)` for what is not a complete image in one of `FORMATS`. Before
    decoding it fails for more than `policy.max_source_pixels` (width times height) or no pixels.

    >>> from pipegen.records.requests import ImagePolicy
    >>> open_image(b"no image", ImagePolicy()).failure().message
    'image 0 (8 bytes) is not an image in a known format (PNG, JPEG, MPO, WEBP, GIF, BMP, TIFF, PPM, AVIF, HEIF)'
    """
    return _opened(data, policy, index, lambda opened: opened.image)


class FileToSend(NamedTuple):
    """An image file: the MIME subtype, as in `image/png`, and its bytes."""

    kind: str
    data: bytes


def file_to_send(data: bytes, policy: ImagePolicy, index: int = 0) -> Slot[FileToSend]:
    """An image file in which any reader sees the pixels of `open_image`. Fails as `open_image`
    does.

    A JPEG or PNG that is upright, opaque and of 8 bits is returned unchanged; anything else becomes
    a PNG.

    >>> from pipegen.records.requests import ImagePolicy
    >>> from pipegen.testing.image_files import image_file
    >>> [
    ...     file_to_send(data, ImagePolicy()).unwrap().data == data
    ...     for data in (image_file("JPEG"), image_file("JPEG", orientation=6))
    ... ]
    [True, False]
    """

    def file_of(opened: _DecodedImage) -> FileToSend:
        if opened.kind:
            return FileToSend(opened.kind, data)
        buffer = io.BytesIO()
        opened.image.save(buffer, "PNG", compress_level=1)
        return FileToSend("png", buffer.getvalue())

    return _opened(data, policy, index, file_of)


class _DecodedImage(NamedTuple):
    """A decoded image, and the kind of its file if that may be sent unchanged."""

    image: Image.Image
    kind: str


def _opened(
    data: bytes, policy: ImagePolicy, index: int, use: Callable[[_DecodedImage], T]
) -> Slot[T]:
    """What `use` makes of the decoded image. The memory of both counts in `DECODING`. Where either
    raises `SourceRejected`, that is `BadImage(index)`.
    """

    def unknown(raised: Raised) -> BadImage:
        return BadImage(
            index,
            message=f"image {index} cannot be decoded: {raised.words}"[:300],
            incident=raised.incident,
        )

    def accepted(work: Callable[[], A]) -> Slot[A]:
        try:
            return Success(work())
        except SourceRejected as refused:
            return Failure(BadImage(index, message=f"image {index} {refused}", hint=refused.hint))

    with _SILENCE, ExitStack() as until_used:
        opened = guard_result(
            lambda: accepted(lambda: _decoded(data, policy, until_used)), unknown, known=BROKEN
        )
        return opened.bind(lambda decoded: accepted(lambda: use(decoded)))


def _decoded(data: bytes, policy: ImagePolicy, until_used: ExitStack) -> _DecodedImage:
    from PIL import Image, UnidentifiedImageError

    counted = parts_of(data)
    if counted.parts > MOST_PARTS:
        why = f"({len(data)} bytes) has more than {MOST_PARTS} parts"
        raise SourceRejected(why, _SAVE_AGAIN)
    family = family_of(data)
    try:
        with Image.open(io.BytesIO(data), formats=_known_formats(family)) as image:
            width, height = image.size
            if width * height > policy.max_source_pixels:
                raise SourceRejected(
                    f"announces {width}x{height} pixels; the limit is {policy.max_source_pixels} in"
                    " all",
                    "make it smaller, or raise ImagePolicy.max_source_pixels if you trust the source",
                )
            scans, most = _scans(image, data, counted), most_scans(width * height)
            if scans > most:
                why = f"of {width}x{height} pixels has {scans} scans; the limit is {most}"
                raise SourceRejected(why, _SAVE_AGAIN)
            until_used.enter_context(DECODING.taken(decoded_bytes(image)))
            image.load()
            if image.mode == "F":
                raise _of_floats(image)
            orientation = _orientation(image)
            depth = _depth(data)
            is_plain = _is_plain(image, orientation) and depth != 16
            kind = _SENT.get(image.format or "", "") if is_plain else ""
            return _DecodedImage(_turn(_rgb(image, depth), orientation), kind)
    except UnidentifiedImageError:
        if not data:
            raise SourceRejected("is empty: 0 bytes") from None
        if family and family not in Image.OPEN:
            why = f"is {family}, and what reads {family} is not installed"
            hint = f"{_COMES_WITH[family]}, or convert it to JPEG or PNG"
            raise SourceRejected(why, hint) from None
        raise SourceRejected(
            f"({len(data)} bytes) is not an image in a known format ({', '.join(FORMATS)})",
            "check that it is an image; convert other formats to PNG or JPEG",
        ) from None
    except Image.DecompressionBombError as raised:
        hint = "make it smaller; Pillow's own limit is twice PIL.Image.MAX_IMAGE_PIXELS"
        raise SourceRejected(f"is too large for Pillow: {raised}", hint) from raised


def _of_floats(image: Image.Image) -> SourceRejected:
    low, high = image.getextrema()
    unit = isinstance(low, float) and isinstance(high, float) and 0 <= low <= high <= 1
    save = "save it with levels of 8 bits, from 0 to 255"
    return SourceRejected(
        f"has levels that are floats, from {low:g} to {high:g}: no file says which of them is white",
        f"multiply them by 255, round, and {save}" if unit else f"scale them, and {save}",
    )


def _scans(image: Image.Image, data: bytes, counted: Counted) -> int:
    """The scans of the image. A TIFF may have a JPEG for each of its tiles."""
    if image.format == "TIFF" and image.info.get("compression") == "jpeg":
        return -(-data.count(b"\xff\xda") // max(1, len(getattr(image, "tile", ()))))
    return counted.scans


def _is_plain(image: Image.Image, orientation: int) -> bool:
    """Whether the pixels are used unchanged."""
    is_single = image.format != "PNG" or getattr(image, "n_frames", 1) == 1
    return (
        image.mode in ("RGB", "L")
        and orientation not in _TURNS
        and not image.has_transparency_data
        and is_single
    )


def _known_formats(family: str) -> list[str]:
    """Those that Pillow reads here. What reads HEIF is made known to it when it is needed."""
    from PIL import Image

    Image.init()
    if family == "HEIF" and importlib.util.find_spec("pillow_heif") is not None:
        importlib.import_module("pillow_heif").register_heif_opener()
    return [name for name in FORMATS if name in Image.OPEN]


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if EXIF cannot be read."""
    # After load(): Pillow turns a TIFF while it loads it, and removes the tag.
    orientation = guard(
        lambda: image.getexif().get(0x0112, 1),
        lambda raised: BadImage(message=raised.words),
        known=(Exception,),
    ).value_or(1)
    return orientation if isinstance(orientation, int) else 1


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    from PIL import Image

    return image.transpose(Image.Transpose(_TURNS[orientation])) if orientation in _TURNS else image


def _rgb(image: Image.Image, depth: int) -> Image.Image:
    """The image in RGB; `depth` is that of a PNG. Raises `ValueError` for levels that are not of 8
    or 16 bits, for what Pillow loses of 16, and for modes without a conversion.
    """
    from PIL import Image

    # Pillow reads a PGM of more than 8 bits as levels up to 65535
    if image.mode in SIXTEEN_BITS or (image.mode == "I" and image.format == "PPM"):
        return _eight_bits(image)
    if image.mode == "I":
        low, high = image.getextrema()
        if not (
            isinstance(low, (int, float))
            and isinstance(high, (int, float))
            and 0 <= low <= high <= 255
        ):
            raise ValueError(
                f"its pixels are from {low} to {high}; 32-bit images must have levels from 0 to 255"
            )
    if image.mode == "RGB" and depth == 16 and "transparency" in image.info:
        colour = image.info.pop("transparency")
        if _where(image, [level >> 8 for level in colour]).getbbox() is not None:
            raise ValueError(
                "it has 16 bits and a transparent colour, which Pillow reads as 8 bits"
            )
    if image.has_transparency_data:
        transparent = image if image.mode == "RGBA" else image.convert("RGBA")
        over_white = Image.new("RGB", image.size, (255, 255, 255))
        over_white.paste(transparent, mask=transparent)
        return over_white
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy it


def _eight_bits(image: Image.Image) -> Image.Image:
    """An image of grey levels of more than 8 bits in RGB; a level that is transparent is white."""
    from PIL import Image, ImageOps

    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    # 65535 / 257 = 255. 257 is odd, so there are no ties in rounding.
    unit = 4095 / 255 if tags.get(_BITS) == (12,) else 257
    grey = (
        image.convert("I").convert("F").point(lambda level: level * (1 / unit) + 0.5).convert("L")
    )
    if tags.get(_PHOTOMETRIC) == 0:
        grey = ImageOps.invert(grey)
    level = image.info.get("transparency")
    if isinstance(level, int) and image.mode in SIXTEEN_BITS:
        # the two bytes of each level, as two bands
        both = Image.frombytes("LA", image.size, image.tobytes())
        first, second = level.to_bytes(2, "big" if image.mode == "I;16B" else "little")
        grey.paste(255, mask=_where(both, (first, second)))
    return grey.convert("RGB")


def _where(image: Image.Image, values: Sequence[int]) -> Image.Image:
    """A mask of the pixels that have these values, one of each band."""
    from PIL import ImageChops

    masks = [
        band.point([255 * (level == value) for level in range(256)])
        for band, value in zip(image.split(), values, strict=True)
    ]
    return functools.reduce(ImageChops.darker, masks)


def _depth(data: bytes) -> int:
    """The bits of each level of a PNG, by its head; 0 for another file."""
    return data[24] if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 24 else 0


def digest(image: Image.Image) -> str:
    """SHA-256 over the size and the RGB pixels.

    >>> from PIL import Image
    >>> digest(Image.new("RGB", (2, 1), "red"))[:12]
    'd6e38e360b61'
    """
    width, height = image.size
    sha = hashlib.sha256(f"{width}x{height}:".encode())
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        sha.update(image.crop((0, top, width, min(top + rows, height))).tobytes())
    return sha.hexdigest()


def prepare(
    data: bytes, spec: ImageSpec, options: VlmPreprocessOptions, index: int, policy: ImagePolicy
) -> Slot[PreparedImage]:
    """Decode one image, turn it upright, and resize it once to a size that the model's processor
    keeps.

    The pixels are bit for bit those of a Qwen-VL processor (Pillow backend, up to Pillow 12) with
    the same budget, wherever it keeps its own choice of size (see `fit`). For a `native` processor
    the size is unchanged, and `tokens` is 1 until the engine counts them. Fails with
    `BadImage(index)` for a broken image and for a shape that the model does not take. With `do_resize=False` it fails for
    sides that are not whole tokens or an area outside the bounds. A budget with a `native`
    processor is `UnsupportedOption`.
    """
    if spec.kind == "native":
        option_flags = {
            "min_pixels": options.min_pixels is not None,
            "max_pixels": options.max_pixels is not None,
            "do_resize": options.do_resize is False,
        }
        for name in (name for name, is_given in option_flags.items() if is_given):
            return Failure(
                UnsupportedOption(
                    f"{name} does not apply: this model's processor has its own sizes", option=name
                )
            )
    return _opened(data, policy, index, lambda opened: sized(opened.image, spec, options))


def _resized(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """The image at a size: first its width, then its height. Pillow 13 chooses the order by the
    image, and rounds in between; older ones have this order.
    """
    from PIL import Image

    for step in ((size[0], image.height), size):
        if step != image.size:
            image = image.resize(step, Image.Resampling(resample))
    return image


def sized(image: Image.Image, spec: ImageSpec, options: VlmPreprocessOptions) -> PreparedImage:
    """As `prepare`, for an upright RGB image. Raises `SourceRejected`."""
    width, height = image.size
    if spec.kind == "native":
        return PreparedImage(width=width, height=height, rgb=image.tobytes(), digest=digest(image))
    if options.do_resize is False:
        _require_fit(width, height, spec, options)
        size = image.size
    else:
        low, high = pixel_budget(spec, options)
        try:
            size = fit(width, height, factor=spec.factor, min_pixels=low, max_pixels=high)
        except ValueError as refused:
            raise SourceRejected(
                f"of {width}x{height} pixels has no size that the model takes: {refused}",
                "crop or pad the image, or widen the range from min_pixels to max_pixels",
            ) from None
    fitted = _resized(image, size, spec.resample)
    grid = (1, size[1] // spec.patch_size, size[0] // spec.patch_size)
    tokens = grid[1] * grid[2] // spec.merge_size**2
    return PreparedImage(
        width=size[0],
        height=size[1],
        rgb=fitted.tobytes(),
        digest=digest(image),
        grid=grid,
        tokens=tokens,
    )


def _require_fit(width: int, height: int, spec: ImageSpec, options: VlmPreprocessOptions) -> None:
    """Raise `SourceRejected` for an image that is not taken with `do_resize=False`."""
    if width % spec.factor or height % spec.factor:
        nearest = nearest_sides(width, height, spec.factor)
        raise SourceRejected(
            f"is {width}x{height}; with do_resize=False both sides must be multiples of"
            f" {spec.factor} pixels",
            f"resize it to {nearest[0]}x{nearest[1]}, the nearest valid size, or leave"
            " do_resize=True",
        )
    low, high = options.min_pixels or 1, options.max_pixels or width * height
    if not low <= width * height <= high:
        raise SourceRejected(
            f"has {width * height} pixels, outside the requested {low} to {high}, and"
            " do_resize=False keeps its size",
            "leave do_resize=True, or ask for other bounds",
        )
    return


def as_pil(image: PreparedImage) -> Image.Image:
    """The pixels as a Pillow image."""
    from PIL import Image

    return Image.frombytes("RGB", (image.width, image.height), image.rgb)
