"""Loading is other projects' work: transformers, vLLM, peft, safetensors and the hub raise whatever
they like. All of it is one typed failure.

>>> checkpoint = ModelLoadConfig(model="no/such")
>>> with loading(checkpoint, "the configuration"):
...     raise KeyError("model_type")
Traceback (most recent call last):
...
pipegen.core.errors.CallFailed: hf cannot read the configuration of 'no/such': KeyError: 'model_type'
"""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipegen.backends.checkpoint.file_digests import header_of, identity_of
from pipegen.backends.checkpoint.locate import ModelFiles, adapters_of, files_of_adapter
from pipegen.core.distribution import MissingExtra
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.core.names import InvalidField
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.frozen import printed

_log = logging.getLogger("pipegen")
_HINT = (
    "see that the model's name and settings are right and its files are whole; the log has the"
    " whole error under the incident"
)
_INSTEAD_OF_ADAPTER = (
    "give the folder of an adapter (adapter_config.json, *.safetensors) or a hub name"
)
_POINTER = b"version https://git-lfs"

_TEXTS = (".json", ".model", ".jinja", ".tiktoken")
"""Files of a model besides its weights."""


_OBJECTS = (
    *(
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    *(
        "preprocessor_config.json",
        "processor_config.json",
        "chat_template.json",
        "adapter_config.json",
    ),
)
"""Files that hold one JSON object."""


class BrokenFile(NamedTuple):
    """What is wrong with a file, and what to do."""

    words: str
    hint: str


@contextlib.contextmanager
def loading(
    load: ModelLoadConfig,
    what: str,
    source: str = "",
    *,
    hint: str = "",
    failed: str = "cannot read {} of",
) -> Iterator[None]:
    """Around code of other projects that loads `what` of a model: any exception becomes
    `CallFailed`; see `load_failed`.

    What pipegen itself refuses (`InvalidField`, `MissingExtra`, `CallFailed`) comes through. A hub
    that cannot be reached is no bug, so its tracebacks are not shown.
    """
    try:
        yield
    except (CallFailed, InvalidField, MissingExtra):
        raise
    except Exception as raised:  # noqa: BLE001 - whatever other projects' code raises
        failure = load_failed(load, failed.format(what), raised, source, hint=hint)
        raise failure from (None if _is_unreached(raised) else raised)


def adapter_folders_of(load: ModelLoadConfig) -> dict[str, Path]:
    """Where the files of each adapter are, by its name; that of all requests has the empty name.
    Raises `CallFailed`, which says which adapter cannot be read.
    """
    folders = {}
    for name, source in adapters_of(load).items():
        with loading(load, f"the adapter {source!r}", source, hint=_INSTEAD_OF_ADAPTER):
            folders[name] = files_of_adapter(source).folder("adapter_config.json")
    return folders


def adapter_digests_of(load: ModelLoadConfig) -> dict[str, str]:
    """A digest of the files of each adapter, by its name. Raises as `adapter_folders_of`."""
    folders, whole = adapter_folders_of(load), load.check_weights
    with loading(load, "the adapters"):
        return {name: identity_of(folder, whole=whole) for name, folder in folders.items()}


def load_failed(
    load: ModelLoadConfig, what: str, raised: Exception, source: str = "", *, hint: str = ""
) -> CallFailed:
    """The failure of loading a model: one for the whole call, naming the model, and a file of it
    (of its adapter) where one is broken.

    The traceback goes to the log, under the failure's incident; where the hub cannot be reached,
    the message says all.
    """
    if _is_unreached(raised):
        from huggingface_hub import constants

        why = "is not asked (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "cannot be reached"
        kind = "adapter" if source in adapters_of(load).values() else "model"
        message = (
            f"{load.backend} {what} {load.model!r}: the {kind} is not on this machine, and the hub"
            f" {why}"
        )
        advice = f"fetch it where there is a network (hf download NAME); {hint}".removesuffix("; ")
        return CallFailed(engine_failed(load.backend, message, hint=advice))
    folders = [
        folder
        for folder in (
            _folder_of(ModelFiles(source, load.revision)),
            *(_folder_of(ModelFiles(adapter)) for adapter in adapters_of(load).values()),
        )
        if folder is not None
    ]
    broken = broken_file(
        file
        for folder in folders
        for file in (
            *weight_files(folder),
            *(file for file in sorted(folder.iterdir()) if file.suffix in _TEXTS),
        )
    )
    adapter = "" if load.adapter is None else f" with adapter {load.adapter!r}"
    because = (
        short(raised)
        if broken is None or broken.words in str(raised)
        else f"{broken.words}; {short(raised)}"
    )
    message = f"{load.backend} {what} {load.model!r}{adapter}: {because}"
    advice = getattr(raised, "hint", "") or hint or _HINT
    return CallFailed(
        engine_failed(
            load.backend, message, hint=advice if broken is None else broken.hint, raised=raised
        )
    )


def _is_unreached(raised: BaseException) -> bool:
    """Whether the hub could not be asked for a file that is not on this machine."""
    seen: BaseException | None = raised
    while seen is not None:
        if type(seen).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def engine_failed(
    backend: str,
    message: str,
    *,
    scope: str = "batch",
    hint: str = "",
    raised: Exception | None = None,
) -> BackendFailed:
    """A failure of an engine, which goes to the log under its incident, with the traceback of what
    was raised.
    """
    incident = uuid.uuid4().hex[:12]
    _log.error("incident %s: %s", incident, message, exc_info=raised)
    return BackendFailed(message, backend=backend, scope=scope, incident=incident, hint=hint)


def _folder_of(files: ModelFiles) -> Path | None:
    """Where the files are on this machine; None where they are not."""
    source, revision = files
    if not source or Path(source).expanduser().is_dir():
        return Path(source).expanduser() if source else None
    with contextlib.suppress(ImportError, ValueError):  # a name that the hub does not take
        from huggingface_hub import try_to_load_from_cache

        for name in ("config.json", "adapter_config.json"):
            path = try_to_load_from_cache(source, name, revision=revision)
            if isinstance(path, str):
                return Path(path).parent
    return None


def short(raised: BaseException) -> str:
    """An exception in one line.

    >>> short(ValueError("Could not load it.\\n\\n  Tried: a")), short(KeyError("x"))
    ('Could not load it. Tried: a', "KeyError: 'x'")
    """
    text = " ".join(str(raised).split())
    text = text if len(text) <= 600 else f"{text[:600]}..."
    if text and isinstance(raised, (OSError, ValueError)):
        return text
    return f"{type(raised).__name__}: {text}" if text else type(raised).__name__


def weight_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files that hold a folder's weights: those that its index names, else the single file of
    the first kind that is there.
    """
    root = Path(folder)
    for name in (
        "model.safetensors",
        "adapter_model.safetensors",
        "pytorch_model.bin",
        "adapter_model.bin",
    ):
        index = root / f"{name}.index.json"
        if index.is_file():
            # what is no index is found out by whoever loads it
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                return [
                    index,
                    *(
                        root / part
                        for part in sorted(
                            set(json.loads(index.read_bytes())["weight_map"].values())
                        )
                    ),
                ]
            return [index]
        if os.path.lexists(root / name):
            return [root / name]
    return []


def broken_file(files: Iterable[Path]) -> BrokenFile | None:
    """What is wrong with the first of these files that is not what it should be: missing, a pointer
    of git-lfs, or cut short.
    """
    for file in files:
        if file.is_dir():
            if file.name in _OBJECTS or file.suffix == ".jinja":
                return BrokenFile(
                    f"{file} is a folder, where a file is expected",
                    "put the file of that name in its place",
                )
            continue
        if not file.is_file():
            return BrokenFile(f"{file} is missing", "fetch the whole model again")
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(100)
            if head.startswith(_POINTER):
                return BrokenFile(
                    f"{file} is a pointer of git-lfs, not the file itself",
                    "fetch the files themselves: git lfs pull",
                )
            found = header_of(stream) if file.suffix == ".safetensors" else None
        text = _broken_text(file, head)
        if text is not None:
            return text
        full_size = size if file.suffix != ".safetensors" else found and found.size
        if (
            full_size is None
            or size < full_size
            or (head.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(file))
            or not size
        ):
            seen = (
                f"{size} bytes"
                if full_size is None or full_size == size
                else f"{size} of {full_size} bytes"
            )
            return BrokenFile(f"{file} is not whole: it has {seen}", "fetch the file again")
    return None


def _broken_text(file: Path, head: bytes) -> BrokenFile | None:
    """What is wrong with a file of text: one of JSON, or a template."""
    if file.suffix == ".json" and head.startswith(codecs.BOM_UTF8):
        return BrokenFile(
            f"{file} begins with a byte order mark, which JSON does not have",
            "save it as UTF-8 without one, or fetch it again",
        )
    try:
        content: Any = (
            json.loads(file.read_bytes())
            if file.suffix == ".json"
            else file.read_text("utf-8")
            if file.suffix == ".jinja"
            else {}
        )
    except UnicodeDecodeError:
        return BrokenFile(f"{file} is no text in UTF-8", "fetch the file again")
    except (ValueError, RecursionError):
        return BrokenFile(f"{file} is no JSON, or not whole", "fetch the file again")
    if (file.name in _OBJECTS or file.name.endswith(".index.json")) and not isinstance(
        content, dict
    ):
        return BrokenFile(
            f"{file} holds {printed(content)[:40]}, where a JSON object is expected",
            "fetch the file again",
        )
    if file.name.endswith(".index.json") and not isinstance(content.get("weight_map"), dict):
        return BrokenFile(
            f"{file} has no weight_map, which says in which file each weight is",
            "fetch the file again",
        )
    return None


def broken_in(files: ModelFiles, *names: str) -> BrokenFile | None:
    """What is wrong with the first of these files that is not what it should be, of those that the
    model has.
    """
    folder = _folder_of(files)
    return (
        broken_file(folder / name for name in names if os.path.lexists(folder / name))
        if folder is not None
        else None
    )


def require_whole(files: ModelFiles, *names: str) -> None:
    """Raise `ValueError` where one of these files of the model is broken. transformers goes on
    without one that is a folder, or a link to nothing.
    """
    broken = broken_in(files, *names)
    if broken is not None:
        raise ValueError(broken.words)


def require_weights(files: ModelFiles) -> None:
    """Raise `ValueError` where a file of the model's weights is broken; where none is here, there
    is nothing to say.
    """
    folder = _folder_of(files)
    broken = None if folder is None else broken_file(weight_files(folder))
    if broken is not None:
        raise ValueError(broken.words)


_COMPUTED = {name: name for name in ("float32", "bfloat16", "float16")} | {"float64": "float32"}
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def header(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """The tensors of a safetensors file: name to `dtype`, `shape` and `data_offsets`. Raises
    `ValueError` where it is no such file, or ends too early.
    """
    with file.open("rb") as stream:
        found = header_of(stream)
    if found is None:
        raise ValueError(f"{file} is not a safetensors file")
    size = file.stat().st_size
    if size < found.size:
        raise ValueError(f"{file} is not whole: it has {size} of {found.size} bytes")
    return found.tensors


def stored_dtype(files: ModelFiles) -> str | None:
    """The type of the first floating-point tensor of a checkpoint; None where it has no safetensors
    file. Raises as `header` does.
    """
    file = files.cached(next(iter(_shards(files).values()), "model.safetensors"))
    names = (
        () if file is None else (_FLOATS.get(tensor["dtype"]) for tensor in header(file).values())
    )
    return next((name for name in names if name is not None), None)


def stored_names(files: ModelFiles) -> frozenset[str]:
    """The names of a checkpoint's tensors; none where it has no safetensors file. Raises as
    `header` does.
    """
    shards = _shards(files)
    file = None if shards else files.cached("model.safetensors")
    return frozenset(shards if file is None else header(file))


def _shards(files: ModelFiles) -> Mapping[str, str]:
    """Which file each tensor is in, where there are several."""
    index = files.cached("model.safetensors.index.json")
    index_map: Mapping[str, str] = (
        {} if index is None else json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    )
    return index_map


def dtype_of(named: object) -> str | None:
    """What a model computes in that is stored so, of the types that every engine has; None where
    nothing is named.

    >>> [dtype_of(name) for name in ("torch.bfloat16", "float16", "float64", "float8_e4m3fn", None)]
    ['bfloat16', 'float16', 'float32', 'bfloat16', None]
    """
    word = str(named).removeprefix("torch.")
    return None if named is None else _COMPUTED.get(word, "bfloat16")
