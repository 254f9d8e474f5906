"""What a model is: a digest of its files, the same wherever they lie.

Small files (configuration, tokenizer, templates) count whole. Of weights the header counts. It has
names, types and shapes. The first, middle and last kilobyte of each tensor count too. So a change
of any tensor is seen. A large model takes a second. What training leaves beside it does not count,
nor the layout of an adapter's settings. Where the whole is asked, every byte of the weights counts
too.

A digest is kept, beside what the files' sizes and times were. A start that finds them as they were
reads no file.
"""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipegen.backends.checkpoint.verdicts import keep, kept

WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
"""How names of files end that have weights."""
_WHOLE = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"})
_CHECK = "identity"
"""What digests are kept under."""
_SETTLED = 2_000_000_000
"""So many nanoseconds after a file was changed, its time tells another change."""
_LARGE = 2**26
"""A file of this many bytes is sampled, whatever it holds."""
_SAMPLES, _SAMPLE = 64, 4096
"""How often a file is sampled whose tensors are not known, and the bytes of a sample."""
_PIECE = 1024
"""The bytes of a tensor that count, at each of three places."""
_LONGEST_HEADER = 100_000_000
"""Bytes that the header of a safetensors file has at most, by the format's own rule."""
_LEFT_BY_TRAINING = re.compile(
    r"((optimizer|optim|scheduler|lr_scheduler|sampler|dataloader|(grad_)?scaler|rng_state"
    r"|training_args|training_state|train_state|trainer_state)[-_.].*)"
    r"|((train|training|eval|test|predict|all|run)_results\..*)"
    r"|.*_(optim|model)_states\.pt"
    r"|zero_to_fp32\.py"
    r"|(.*[-_.])?(log|logs|metrics|loss|losses|history|predictions)([-_.].*)?\.(txt|json)"
    r"|(readme|license|notice|requirements|use_policy)([-_.].*)?\.txt"
)


class Header(NamedTuple):
    """What a file of safetensors begins with."""

    text: bytes
    tensors: Mapping[str, Mapping[str, Any]]
    """Name to `dtype`, `shape` and `data_offsets`."""
    places: list[tuple[int, int]]
    """Where the tensors begin and end in the file, in order."""
    size: int
    """The bytes that the whole file has."""


def identity_of(*folders: Path, whole: bool = False) -> str:
    """The digest of the folders' files, as 32 hexadecimal digits. Raises `OSError` where they
    cannot be read.

    whole: every byte of the weights counts, and not samples alone.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "config.json").write_text("{}")
    >>> before = identity_of(folder)
    >>> _ = (folder / "trainer_state.json").write_text("{}")
    >>> before == identity_of(folder), len(before)
    (True, 32)
    """
    files = [[(file, file.stat()) for file in _files(folder)] for folder in folders]
    changed = max((_changed(facts) for some in files for _, facts in some), default=0)
    stamps = [
        [
            (str(file.resolve()), _changed(facts), facts.st_size, facts.st_ino)
            for file, facts in some
        ]
        for some in files
    ]
    about: dict[str, Any] = {"model": json.dumps([whole, stamps]), "packages": ()}
    identity = (kept(_CHECK, **about) or {}).get("identity")
    if isinstance(identity, str):
        return identity
    identity = _read(folders, whole)
    # a file that was changed just now may change again, and its time stay as it is
    if time.time_ns() - changed > _SETTLED:
        keep(_CHECK, {"identity": identity}, **about)
    return identity


def _changed(facts: os.stat_result) -> int:
    """When a file was changed: copies that keep the one time have another."""
    return max(facts.st_mtime_ns, facts.st_ctime_ns)


def _read(folders: Sequence[Path], whole: bool) -> str:
    from hashlib import blake2b

    digest = blake2b(b"whole" if whole else b"tensors", digest_size=16)
    for folder in folders:
        for file in _files(folder):
            settings = _adapter_settings(file)
            size = file.stat().st_size if settings is None else len(settings)
            digest.update(f"\0{file.relative_to(folder).as_posix()}\0{size}\0".encode())
            with file.open("rb") as opened:
                if settings is not None:
                    pieces: Iterable[bytes] = [settings]
                else:
                    pieces = _all(opened) if whole else _pieces(file, opened, size)
                for piece in pieces:
                    digest.update(piece)
        digest.update(b"\0\0")
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files that count, in order: those of the folder, and its further chat templates."""
    for file in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*.jinja")]):
        if file.suffix in _WHOLE | WEIGHTS and not _left_by_training(file.name) and file.is_file():
            yield file


def _left_by_training(name: str) -> bool:
    """Whether no model is read from a file of this name: the state and the logs of a training run,
    and texts for people.

    >>> [
    ...     name
    ...     for name in ("optimizer.pt", "rng_state_0.pth", "train_log.txt", "vocab.txt", "a.json")
    ...     if not _left_by_training(name)
    ... ]
    ['vocab.txt', 'a.json']
    """
    return _LEFT_BY_TRAINING.fullmatch(name.lower()) is not None


def _adapter_settings(file: Path) -> bytes | None:
    """What counts of an adapter's settings: neither their layout and order, nor that of lists of
    names, nor `inference_mode`, which transformers sets anew. None for any other file.
    """
    if file.name != "adapter_config.json":
        return None
    try:
        settings = json.loads(file.read_bytes())
        ordered = {
            name: sorted(value)
            if isinstance(value, list) and all(isinstance(one, str) for one in value)
            else value
            for name, value in settings.items()
            if name != "inference_mode"
        }
        return json.dumps(ordered, sort_keys=True).encode()
    except (ValueError, AttributeError, RecursionError):  # loading it says what is wrong
        return None


def _pieces(file: Path, opened: BinaryIO, size: int) -> Iterator[bytes]:
    """What counts of a file."""
    if file.suffix in _WHOLE and size <= _LARGE:
        yield opened.read()
        return
    header = header_of(opened) if file.suffix == ".safetensors" else None
    if header is not None and header.size <= size:
        yield header.text
        for begin, end in header.places:
            yield from _of_tensor(opened, begin, end)
    elif file.suffix in WEIGHTS and zipfile.is_zipfile(opened):
        yield from _of_archive(opened)
    else:
        yield from _samples(opened, size)


def _all(opened: BinaryIO) -> Iterator[bytes]:
    while piece := opened.read(_LARGE):
        yield piece


def header_of(opened: BinaryIO) -> Header | None:
    """The header of a file of safetensors; None where it is no such file."""
    opened.seek(0)
    length = int.from_bytes(opened.read(8), "little")
    if not 0 < length <= _LONGEST_HEADER:
        return None
    text, start = opened.read(length), 8 + length
    try:
        tensors = {
            name: tensor for name, tensor in json.loads(text).items() if name != "__metadata__"
        }
        offsets = (map(index, tensor["data_offsets"]) for tensor in tensors.values())
        places = sorted((start + begin, start + end) for begin, end in offsets)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not all(start <= begin <= end for begin, end in places):
        return None
    return Header(text, tensors, places, max((end for _, end in places), default=start))


def _of_tensor(opened: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """The first, middle and last kilobyte, or the whole of a small tensor."""
    if end - begin <= 3 * _PIECE:
        opened.seek(begin)
        yield opened.read(max(0, end - begin))
        return
    for place in (begin, (begin + end - _PIECE) // 2, end - _PIECE):
        opened.seek(place)
        yield opened.read(_PIECE)


def _of_archive(opened: BinaryIO) -> Iterator[bytes]:
    """The table of an archive of PyTorch's: each tensor is an entry with a checksum."""
    try:
        with zipfile.ZipFile(opened) as archive:
            entries = sorted((entry.filename, entry) for entry in archive.infolist())
            for name, entry in entries:
                yield f"{name}\0{entry.file_size}\0{entry.CRC}\0".encode()
                with archive.open(entry) as content:
                    yield content.read(_PIECE)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
        yield b"damaged"


def _samples(opened: BinaryIO, size: int) -> Iterator[bytes]:
    for sample in range(_SAMPLES):
        opened.seek(sample * max(0, size - _SAMPLE) // (_SAMPLES - 1))
        yield opened.read(_SAMPLE)
