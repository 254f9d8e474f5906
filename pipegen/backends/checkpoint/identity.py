"""What a checkpoint is: a digest of its files, the same wherever they lie and whatever their folder is called.

Small files (configuration, tokenizer, templates) count whole. Of each file of weights count its length, its beginning (names, types and shapes) and
samples of its content: two fine-tunes of one model differ in nearly all of it, and reading it whole would take minutes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["has_weights", "identity_of"]

_WHOLE = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"})
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
_LARGE = 2**26
"""A file of this many bytes is sampled, whatever it holds."""
_SAMPLES, _SAMPLE = 64, 4096


def identity_of(*folders: Path) -> str:
    """The digest of the folders' files, as 32 hexadecimal digits. Raises `OSError` where they cannot be read.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "config.json").write_text("{}")
    >>> before = identity_of(folder)
    >>> _ = (folder / "README.md").write_text("A model.")
    >>> before == identity_of(folder), len(before)
    (True, 32)
    """
    digest = hashlib.blake2b(digest_size=16)
    for folder in folders:
        for file in sorted(folder.iterdir()):
            if not (file.suffix in _WHOLE or file.suffix in _WEIGHTS) or not file.is_file():
                continue
            size = file.stat().st_size
            digest.update(f"\0{file.name}\0{size}\0".encode())
            with file.open("rb") as opened:
                if file.suffix in _WHOLE and size <= _LARGE:
                    digest.update(opened.read())
                    continue
                for sample in range(_SAMPLES):
                    opened.seek(sample * max(0, size - _SAMPLE) // (_SAMPLES - 1))
                    digest.update(opened.read(_SAMPLE))
        digest.update(b"\0\0")
    return digest.hexdigest()


def has_weights(folder: Path) -> bool:
    """Whether the model's weights are in the folder, and not only its tokenizer and configuration."""
    return any(file.suffix in _WEIGHTS for file in folder.iterdir())
