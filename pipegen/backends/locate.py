"""Where a model is: what its name or path stands for.

>>> locate("Qwen/Qwen3-0.6B")
'Qwen/Qwen3-0.6B'
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["EMBEDDED", "locate"]

EMBEDDED = "embedded"
"""The name of the model that ships with the library."""


def locate(model: str) -> str:
    """The folder or hub name that `model` stands for.

    `embedded` is the shipped model. A folder that exists is taken as a folder; what is written as a path must be one, and anything else is a hub name.
    Raises `FileNotFoundError` for a path that is not there.

    >>> locate("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'
    >>> locate("./no/such/folder")
    Traceback (most recent call last):
    ...
    FileNotFoundError: there is no checkpoint folder './no/such/folder'; give a folder, a hub name such as 'Qwen/Qwen3-0.6B', or 'embedded'
    """
    if model == EMBEDDED:
        from pipegen import embedded

        return os.fspath(embedded.path())
    folder = Path(model).expanduser()
    if folder.is_dir():
        return os.fspath(folder)
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or "\\" in model or folder.exists():
        raise FileNotFoundError(f"there is no checkpoint folder {model!r}; give a folder, a hub name such as 'Qwen/Qwen3-0.6B', or 'embedded'")
    return model
