"""Tokenizers out of GGUF files that hold a vocabulary only: their words, merges, scores and added
tokens are real, how they split text is simplified.

The format: a header, then keys with typed values, of which those that begin with `tokenizer.ggml`
are used.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.number(_NUMBERS[kind])
        inner, count = self.number("<I"), self.number("<Q")
        return [self.value(inner) for _ in range(count)]


def fields(data: bytes) -> dict[str, Any]:
    """The keys and values of a GGUF file."""
    reader = _Reader(data)
    assert reader.number("<I") == 0x46554747, "no GGUF file"
    reader.number("<I")
    _, count = reader.number("<Q"), reader.number("<Q")
    return {reader.text(): reader.value(reader.number("<I")) for _ in range(count)}


def _merges(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary: every way to put a token together of two others,
    the likeliest token first.
    """
    known = set(tokens)
    order = sorted(range(len(tokens)), key=lambda row: -scores[row])
    return [
        (token[:at], token[at:])
        for token in map(tokens.__getitem__, order)
        for at in range(1, len(token))
        if {token[:at], token[at:]} <= known
    ]


def _of_kind(kind: str, tokens: list[str], found: dict[str, Any]) -> Tokenizer:
    vocab = {token: number for number, token in enumerate(tokens)}
    if kind == "gpt2":
        made = Tokenizer(
            models.BPE(
                vocab, [tuple(merge.split(" ", 1)) for merge in found["tokenizer.ggml.merges"]]
            )
        )
        made.pre_tokenizer, made.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
    elif kind == "llama":
        made = Tokenizer(
            models.BPE(
                vocab,
                _merges(tokens, found["tokenizer.ggml.scores"]),
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    elif kind == "bert":
        # the words have a mark in front here, and the other pieces one in a tokenizer.json
        words = [
            token if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else _piece(token)
            for token in tokens
        ]
        made = Tokenizer(
            models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
        )
        made.normalizer, made.pre_tokenizer, made.decoder = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
        )
    else:
        scored = list(zip(tokens, found["tokenizer.ggml.scores"], strict=True))
        made = Tokenizer(
            models.Unigram(scored, unk_id=found["tokenizer.ggml.token_type"].index(_UNKNOWN))
        )
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return made


def _piece(token: str) -> str:
    return token[1:] if token.startswith("▁") else f"##{token}"


def tokenizer_of(data: bytes, folder: Path) -> None:
    """Write the file's vocabulary as `tokenizer.json`, with its added tokens, and a
    `tokenizer_config.json`.
    """
    found = fields(data)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    made = _of_kind(found["tokenizer.ggml.model"], tokens, found)
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_CONTROL, _USER_DEFINED) and token:
            made.add_tokens([AddedToken(token, normalized=False, special=kind == _CONTROL)])
    made.save(str(folder / "tokenizer.json"))
    ends = {
        name: tokens[found[key]]
        for name, key in (
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
        )
        if key in found
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **ends,
    }
    if isinstance(found.get("tokenizer.chat_template"), str):
        config["chat_template"] = found["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
