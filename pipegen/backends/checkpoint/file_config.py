"""The configuration of a model as its `config.json` has it. It is for families whose classes in
transformers change nothing that a fact is read from.

>>> entries = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 128}
>>> config_in({**entries, "eos_token_id": 2}).get_text_config().vocab_size
8
>>> config_in(entries), config_in({**entries, "eos_token_id": 2, "model_type": "bert"})
(None, None)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.backends.checkpoint.chat_jinja import is_read
from pipegen.backends.checkpoint.families import family_of
from pipegen.backends.checkpoint.locate import ModelFiles
from pipegen.core.foreign_calls import attempt

_DTYPES = (None, "float32", "float16", "bfloat16", "float64")
_LENGTHS = ("max_position_embeddings", "n_positions")
_PARTS = ("text_config", "text_encoder", "decoder", "generator")
"""Where transformers looks for the configuration of a text model."""
_SCALED = ("yarn", "llama3")
"""Kinds of positions whose factors do not change how many there are."""


class FileConfig:
    """The entries of a file, by the names that transformers gives them."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__["_entries"]
        if name == "dtype":
            return entries.get("dtype", entries.get("torch_dtype"))
        if name not in entries:
            raise AttributeError(name)
        return entries[name]

    def get_text_config(self) -> FileConfig:
        text = self._entries.get("text_config")
        return self if text is None else FileConfig(text)


def read_config(files: ModelFiles, *, ends: bool) -> FileConfig | None:
    """That of a folder or of a hub's model; None where it is left to transformers, as what is not
    in order.
    """
    entries = attempt(lambda: files.json("config.json"))
    return entries.bind(lambda found: attempt(lambda: config_in(found, ends=ends))).value_or(None)


def config_in(entries: Mapping[str, Any], *, ends: bool = False) -> FileConfig | None:
    """The configuration of these entries; None where what they leave to transformers, or ask of it,
    may bear on a fact. `ends` says that the end tokens are named elsewhere.
    """
    family, config = family_of(entries["model_type"]), FileConfig(entries)
    if family.tokenizer is None or not is_read():
        return None
    images = bool(family.video_processor)
    text = entries["text_config"] if images else entries
    ids = [entries[name] for name in ("image_token_id", "video_token_id") if images]
    length = next((text[name] for name in _LENGTHS if name in text), None)
    known = (
        all(type(number) is int and number > 0 for number in (text.get("vocab_size"), length))
        and all(type(token_id) is int for token_id in ids)
        and (ends or text.get("eos_token_id") is not None)
        and all(each.dtype in _DTYPES for each in (config, config.get_text_config()))
        and not any(part in entries for part in _PARTS if not images or part != "text_config")
        and all(_is_plain(text.get(name) or {}) for name in ("rope_parameters", "rope_scaling"))
    )
    return config if known else None


def _is_plain(rope: Mapping[str, Any]) -> bool:
    """Whether positions are as many as are named, and the same for rows of any length."""
    kind = rope.get("rope_type", rope.get("type"))
    if any(isinstance(entry, Mapping) for entry in rope.values()):
        return False
    return kind in (None, "default", "mrope") or (
        kind in _SCALED and type(rope.get("factor")) in (int, float)
    )
