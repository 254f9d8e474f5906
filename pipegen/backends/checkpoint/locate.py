"""Where a model is: what its name or path stands for.

>>> locate("Qwen/Qwen3-0.6B")
'Qwen/Qwen3-0.6B'
"""

from __future__ import annotations

import os
from pathlib import Path

from pipegen.records.fields import InvalidField
from pipegen.records.frozen import printed

__all__ = ["EMBEDDED", "NoSuchModel", "check_adapter_folder", "instead_of", "locate"]

EMBEDDED = "embedded"
"""The name of the model that ships with the library."""

_GGUF = "GGUF files are not read; give the original checkpoint, or serve the file with llama.cpp and ask that with openai_server"
_INSTEAD = "; give a folder, a hub name such as 'Qwen/Qwen3-0.6B', or 'embedded'"


class NoSuchModel(InvalidField, FileNotFoundError):
    """A model was named by a path that is no checkpoint folder."""


def locate(model: str) -> str:
    """The folder or hub name that `model` stands for.

    `embedded` is the shipped model. A folder that exists is taken as a folder; what is written as a path must be one, and anything else is a hub name.
    Raises `NoSuchModel` for a path that is not there, and for a file.

    >>> locate("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'
    >>> locate("./no/such/folder")
    Traceback (most recent call last):
    ...
    pipegen.backends.checkpoint.locate.NoSuchModel: there is no checkpoint folder './no/such/folder'; give a folder, a hub name such as ...
    """
    if model == EMBEDDED:
        from pipegen import embedded

        return os.fspath(embedded.path())
    try:
        folder = Path(model).expanduser()
        is_there = folder.is_dir()
    except (OSError, RuntimeError) as raised:  # too long a name, no such user's home
        raise NoSuchModel(f"there is no checkpoint folder {printed(model)}: {raised}"[:300]) from None
    if is_there:
        return os.fspath(folder)
    written_as_path = folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or "\\" in model or model.lower().endswith(".gguf")
    if written_as_path or folder.exists():
        seen = ""
        if folder.suffix.lower() == ".gguf":
            seen = f": {_GGUF}"
        elif folder.exists():
            seen = ": it is a file, and a checkpoint is a folder"
        raise NoSuchModel(f"there is no checkpoint folder {model!r}{seen or _INSTEAD}")
    return model


def check_adapter_folder(adapter: str) -> None:
    """Raise `InvalidField` where an adapter is named by a path, and there is no adapter."""
    folder = Path(adapter).expanduser()
    is_path = folder.is_absolute() or adapter.startswith((".", "~")) or adapter.count("/") > 1 or "\\" in adapter or folder.exists()
    if is_path and not (folder / "adapter_config.json").is_file():
        found = "it has no adapter_config.json" if folder.is_dir() else "there is no such folder"
        raise InvalidField(f"ModelLoadConfig.adapter: {os.fspath(folder)!r} is no adapter: {found}")


def instead_of(source: str) -> str:
    """What to give instead of a folder or a name whose configuration cannot be read."""
    if next(Path(source).glob("*.gguf"), None) is not None:
        return _GGUF
    return "give the folder of a checkpoint (config.json, *.safetensors, tokenizer.json) or a hub name; a private one needs HF_TOKEN"
