"""Whether transformers loaded the tokenizer that a checkpoint's `tokenizer.json` describes.

Some classes of transformers take only the vocabulary from the file and make the rest themselves. A
checkpoint whose settings name such a class by mistake gets wrong ids without any error: a
DeepSeek-V3 loaded as Llama's tokenizer loses every space. So what was loaded is compared with the
file: first the parts that say how text is split, which takes milliseconds; where they differ, the
tokens of some texts.

Settings of the checkpoint may ask for something other than the file: a prefix space, how it is
placed, a normaliser's switches. What they change is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipegen.records.fields import InvalidField

__all__ = ["parts", "parts_alone", "require_file_ids"]

PROBES = (
    *(
        "Hello world",
        "two  spaces,   three",
        "1234567 + 89 = 1,234",
        "don't I'm WE'LL",
        "a\n\n b\n",
        "\tif x:\n        return x",
        "你好，世界",
        "こんにちは",
    ),
    *("नमस्ते ไทย", "👩‍🚀 é e\u0301 ﬁ", "<b>a</b> [1] {2}", "https://example.org/a_b?c=d"),
)
LEADING = (" one", "  two", "\n\n x")
"""What a prefix space at the start of a text bears on."""
REWRITES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "fix_mistral_regex")
"""Settings of a checkpoint that change how all text is normalised or split."""
_MODEL = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
_SHARED_TOKENS = 32
_SPLITS = ("normalizer", "pre_tokenizer")
"""The parts that say how text is split."""


def require_file_ids(raw: Any, file: Path, settings: Mapping[str, Any], model: str) -> None:
    """Raise `InvalidField` where the loaded tokenizer `raw` splits texts otherwise than its
    `tokenizer.json`; `settings` are tokenizer_config.json's.
    """
    loaded, head = raw.backend_tokenizer, _head(file)
    if any(settings.get(name) is not None for name in REWRITES) or (
        head is not None and _same_parts(loaded, head)
    ):
        return
    reference = _reference(loaded, head, file)
    for text in _probes(reference, settings):
        expected, tokens = (_tokens(tokenizer, text, settings) for tokenizer in (reference, loaded))
        if expected != tokens:
            raise InvalidField(
                f"{model!r}: transformers loads its tokenizer as {type(raw).__name__}, which splits"
                f" text otherwise than its tokenizer.json: {text!r} becomes {tokens[:8]}, by the"
                f" file {expected[:8]}; {_advice(raw, settings)}"
            )


def _advice(raw: Any, settings: Mapping[str, Any]) -> str:
    # which takes the file as it is, and then the settings' added tokens
    if type(raw).__name__ == "TokenizersBackend":
        return (
            'take the entry that differs from the file out of "added_tokens_decoder" in its'
            " tokenizer_config.json"
        )
    named, own_code = (
        settings.get("tokenizer_class"),
        (', and take "AutoTokenizer" out of its "auto_map"' if settings.get("auto_map") else ""),
    )
    now = "it has none" if named is None else f"now {named!r}"
    return (
        'set "tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
        f" ({now}){own_code}: that takes the file as it is"
    )


def _probes(reference: Any, settings: Mapping[str, Any]) -> Iterator[str]:
    """The texts on which nothing but the file decides."""
    yield from PROBES
    if settings.get("add_prefix_space") is None and settings.get("legacy") is not False:
        yield from LEADING
        tokens = sorted(
            str(token.content) for token in reference.get_added_tokens_decoder().values()
        )
        yield from (f"a{token}b" for token in tokens[:: max(1, len(tokens) // _SHARED_TOKENS)])


def _tokens(tokenizer: Any, text: str, settings: Mapping[str, Any]) -> list[str]:
    """The text's tokens; where the settings decide on a prefix space, those after a first line,
    which alone it may change.
    """
    if settings.get("add_prefix_space") is None:
        return list(tokenizer.encode(text, add_special_tokens=False).tokens)
    encoded = tokenizer.encode(f"x\n{text}", add_special_tokens=False)
    return list(encoded.tokens[encoded.char_to_token(2) :])


def _same_parts(loaded: Any, head: Mapping[str, Any]) -> bool:
    """Whether the parts that say how text is split are the same; the vocabulary is the file's own,
    whatever the class.
    """
    ids = {
        str(token.content): int(token_id)
        for token_id, token in loaded.get_added_tokens_decoder().items()
    }
    return (
        all(ids.get(token["content"]) == token["id"] for token in head["added_tokens"])
        and _same_model(loaded, head)
        and parts(_bare(head), *_SPLITS) == parts(loaded, *_SPLITS)
    )


def _same_model(loaded: Any, head: Mapping[str, Any]) -> bool:
    model = head["model"]
    return model.get("type") == type(loaded.model).__name__ and all(
        (getattr(loaded.model, name, None) or None) == (model.get(name) or None) for name in _MODEL
    )


def _reference(loaded: Any, head: Mapping[str, Any] | None, file: Path) -> Any:
    """The file's tokenizer; where the models are the same, without reading its vocabulary again."""
    from tokenizers import AddedToken, Tokenizer

    if head is None or not _same_model(loaded, head):
        return Tokenizer.from_file(str(file))
    tokenizer = _bare(head)
    tokenizer.model = loaded.model
    tokenizer.add_tokens(
        [
            AddedToken(**{key: value for key, value in token.items() if key != "id"})
            for token in head["added_tokens"]
        ]
    )
    return tokenizer


def _bare(head: Mapping[str, Any]) -> Any:
    """The file's tokenizer without a vocabulary."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(
        json.dumps(
            {
                **head,
                "added_tokens": [],
                "post_processor": None,
                "model": {"type": "BPE", "vocab": {}, "merges": []},
            }
        )
    )


def parts(tokenizer: Any, *names: str) -> list[Any]:
    """These parts of a tokenizer as plain data, without what bears on offsets only."""

    def without_offsets(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entry.items() if key != "trim_offsets"}

    plain = json.loads(parts_alone(tokenizer, *names), object_hook=without_offsets)
    return [plain[name] for name in names]


def parts_alone(tokenizer: Any, *names: str) -> str:
    """These parts of a tokenizer in a `tokenizer.json` of their own, which has no vocabulary."""
    from tokenizers import Tokenizer, models

    frame = Tokenizer(models.BPE())
    for name in names:
        if getattr(tokenizer, name) is not None:
            setattr(frame, name, getattr(tokenizer, name))
    return str(frame.to_str())


def _head(file: Path) -> dict[str, Any] | None:
    """All of the file but its vocabulary and merges, which come last; None where they do not."""
    with file.open(encoding="utf-8") as opened:
        text, size = "", 1 << 16
        while more := opened.read(size):
            text, size = text + more, len(text) + len(more)
            try:
                return _read_head(text)
            except (ValueError, IndexError, TypeError, KeyError):  # cut short, or of another form
                continue
    return None


def _read_head(text: str) -> dict[str, Any]:
    decoder = json.JSONDecoder()

    def skip(at: int, characters: str) -> int:
        while text[at] in characters:
            at += 1
        return at

    def entries(at: int, last: str) -> tuple[dict[str, Any], int]:
        fields: dict[str, Any] = {}
        at = skip(at, " \t\r\n{")
        while True:
            key, at = decoder.raw_decode(text, at)
            at = skip(at, " \t\r\n:")
            if key == last:
                return fields, at
            fields[key], at = decoder.raw_decode(text, at)
            at = skip(at, " \t\r\n,")

    head, at = entries(0, "model")
    return {"added_tokens": head.pop("added_tokens"), **head, "model": entries(at, "vocab")[0]}
