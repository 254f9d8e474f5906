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
_RARE = "\U000f5a3c"
"""A character that no vocabulary has: models that fall back to bytes split it so."""
_SHARED_TOKENS = 32
_SPLITS = ("normalizer", "pre_tokenizer")
"""The parts that say how text is split."""


def require_file_ids(raw: Any, reference: Any, settings: Mapping[str, Any], model: str) -> None:
    """Raise `InvalidField` where the loaded tokenizer `raw` splits texts otherwise than the one of
    its `tokenizer.json`; `settings` are tokenizer_config.json's.
    """
    loaded = raw.backend_tokenizer
    if any(settings.get(name) is not None for name in REWRITES) or _same_parts(loaded, reference):
        return
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
        tokens = sorted(_added_ids(reference))
        yield from (f"a{token}b" for token in tokens[:: max(1, len(tokens) // _SHARED_TOKENS)])


def _tokens(tokenizer: Any, text: str, settings: Mapping[str, Any]) -> list[str]:
    """The text's tokens; where the settings decide on a prefix space, those after a first line,
    which alone it may change.
    """
    if settings.get("add_prefix_space") is None:
        return list(tokenizer.encode(text, add_special_tokens=False).tokens)
    encoded = tokenizer.encode(f"x\n{text}", add_special_tokens=False)
    return list(encoded.tokens[encoded.char_to_token(2) :])


def _same_parts(loaded: Any, reference: Any) -> bool:
    """Whether the parts that say how text is split are the same; the vocabulary is the file's own,
    whatever the class.
    """
    model, other = loaded.model, reference.model
    return (
        _added_ids(reference).items() <= _added_ids(loaded).items()
        and type(model) is type(other)
        and all(getattr(model, name, None) == getattr(other, name, None) for name in _MODEL)
        and _tokens(loaded, _RARE, {}) == _tokens(reference, _RARE, {})
        and parts(reference, *_SPLITS) == parts(loaded, *_SPLITS)
    )


def _added_ids(tokenizer: Any) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {str(token.content): int(token_id) for token_id, token in added.items()}


def tokenizer_in(file: Path) -> Any:
    """The tokenizer of a file, without the truncation and padding that it may bring along."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def added_states(tokenizer: Any) -> dict[int, Mapping[str, Any]]:
    """The added tokens by their ids, each with its flags."""
    tokens = tokenizer.get_added_tokens_decoder()
    return {token_id: tokens[token_id].__getstate__() for token_id in sorted(tokens)}


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
