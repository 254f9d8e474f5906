"""Where a model is: what its name or path stands for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from pipegen.backends.checkpoint.file_digests import WEIGHTS
from pipegen.core.foreign_calls import attempt
from pipegen.core.names import CLOSE, InvalidField, nearest
from pipegen.core.slots import is_ok
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.frozen import printed

EMBEDDED = "embedded"
"""The name of the model that ships with the library."""

_GGUF = (
    "GGUF files are not read; give the original checkpoint, or serve the file with llama.cpp and"
    " ask that with openai_server"
)
_INSTEAD = "; give a folder, a hub name such as 'Qwen/Qwen3-0.6B', or 'embedded'"


class NoSuchModel(InvalidField, FileNotFoundError):
    """A model was named by a path that is no checkpoint folder."""


def locate(model: str) -> str:
    """The folder or hub name that `model` stands for.

    `embedded` is the shipped model. A folder that exists is taken as a folder; what is written as a
    path must be one, and anything else is a hub name. Raises `NoSuchModel` for a path that is not
    there, and for a file.

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
        raise NoSuchModel(
            f"there is no checkpoint folder {printed(model)}: {raised}"[:300]
        ) from None
    if is_there:
        return os.fspath(folder)
    written_as_path = (
        folder.is_absolute()
        or model.startswith((".", "~"))
        or model.count("/") > 1
        or "\\" in model
        or model.lower().endswith(".gguf")
    )
    if written_as_path or folder.exists():
        seen = ""
        if folder.suffix.lower() == ".gguf":
            seen = f": {_GGUF}"
        elif folder.exists():
            seen = ": it is a file, and a checkpoint is a folder"
        raise NoSuchModel(f"there is no checkpoint folder {model!r}{seen or _INSTEAD}")
    return model


def located(load: ModelLoadConfig) -> str:
    """The folder or the hub name of the model to load, as `locate`. Raises `InvalidField` where a
    folder is given a revision, which only a hub's model has. `main` says nothing, and is what other
    programs give for any model.
    """
    source = locate(str(load.model))
    if load.revision not in (None, "main") and Path(source).is_dir():
        raise InvalidField(
            f"ModelLoadConfig.revision: {os.fspath(load.model)!r} is"
            f" {'the shipped model' if load.model == EMBEDDED else 'a folder'}, and only a model of"
            " the hub has revisions; leave it out"
        )
    return source


def adapters_of(load: ModelLoadConfig) -> dict[str, str]:
    """The adapters of a configuration by their names; that of all requests has the empty name."""
    named = load.adapters if load.adapter is None else {"": load.adapter}
    return {name: str(adapter) for name, adapter in named.items()}


def check_adapters(load: ModelLoadConfig) -> None:
    """Raise `InvalidField` where an adapter is named by a path, and there is no adapter; and where
    one is for all requests and others are for some.
    """
    if load.adapter is not None and load.adapters:
        raise InvalidField(
            "ModelLoadConfig takes adapter, which all requests have, or adapters, of which requests"
            " choose by the option adapter: not both"
        )
    for name, adapter in adapters_of(load).items():
        folder = Path(adapter).expanduser()
        is_path = (
            folder.is_absolute()
            or adapter.startswith((".", "~"))
            or adapter.count("/") > 1
            or "\\" in adapter
            or folder.exists()
        )
        if is_path and not (folder / "adapter_config.json").is_file():
            field = f"adapters[{name!r}]" if name else "adapter"
            why = "it has no adapter_config.json" if folder.is_dir() else "there is no such folder"
            raise InvalidField(
                f"ModelLoadConfig.{field}: {os.fspath(folder)!r} is no adapter: {why}"
            )


class ModelFiles(NamedTuple):
    """The files of a folder, or of a hub's model."""

    source: str
    revision: str | None = None

    def cached(self, name: str) -> Path | None:
        """A file, from the hub where it is not here yet. None where there is none of that name."""
        if Path(self.source).is_dir():
            file = Path(self.source) / name
            return file if file.is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        path = attempt(lambda: hf_hub_download(self.source, name, revision=self.revision))
        if is_ok(path):
            return Path(path.unwrap())
        # it has none, or it is not here and the hub is not asked
        if isinstance(path.failure(), EntryNotFoundError):
            return None
        return self._by_transformers(name, missing=False)

    def fetched(self, name: str) -> Path:
        """As `cached`, for a file that must be there. Raises `OSError` where it is not."""
        path = self.cached(name) or self._by_transformers(name, missing=True)
        if path is None:
            raise FileNotFoundError(f"{self.source} has no {name}")
        return path

    def _by_transformers(self, name: str, *, missing: bool) -> Path | None:
        """The file as transformers finds it. Raises `OSError` with its words where the hub fails;
        with `missing` where the hub has no such file, too.
        """
        from transformers.utils.hub import cached_file

        path = cached_file(
            self.source,
            name,
            revision=self.revision,
            _raise_exceptions_for_missing_entries=missing,
        )
        return None if path is None else Path(path)

    def json(self, name: str) -> Any:
        """What a file of JSON holds; an empty object where there is none of that name."""
        path = self.cached(name)
        return {} if path is None else json.loads(path.read_text(encoding="utf-8"))

    def fetch_templates(self) -> None:
        """Bring the chat templates here that are files of their own. Where the hub is not asked,
        those that are here are all.
        """
        if not Path(self.source).is_dir():
            from huggingface_hub import snapshot_download

            patterns = ["chat_template.jinja", "additional_chat_templates/*.jinja"]
            snapshot_download(self.source, revision=self.revision, allow_patterns=patterns)

    def folder(self, name: str) -> Path:
        """The folder, or that in which the hub's file of this name is kept, with the others."""
        return Path(self.source) if Path(self.source).is_dir() else self.fetched(name).parent


def files_of_adapter(adapter: str) -> ModelFiles:
    """The files of an adapter."""
    folder = Path(adapter).expanduser()
    return ModelFiles(str(folder) if folder.is_dir() else adapter)


def instead_of(source: str) -> str:
    """What to give instead of a folder or a name whose configuration cannot be read."""
    if next(Path(source).glob("*.gguf"), None) is not None:
        return _GGUF
    return (
        "give the folder of a checkpoint (config.json, *.safetensors, tokenizer.json) or a hub"
        f" name; a private one needs HF_TOKEN{nearest(source, [EMBEDDED], CLOSE)}"
    )


def has_weights(folder: Path) -> bool:
    """Whether the model's weights are in the folder, and not only its tokenizer and
    configuration.
    """
    return any(file.suffix in WEIGHTS for file in folder.iterdir())
