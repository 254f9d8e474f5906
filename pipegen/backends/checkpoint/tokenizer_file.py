"""What a checkpoint's `tokenizer.json` describes: whether transformers loaded that tokenizer, and the
tokenizer read from the file alone.

Some classes of transformers take only the vocabulary from the file and make the rest themselves. A
checkpoint whose settings name such a class by mistake gets wrong ids without any error: a
DeepSeek-V3 loaded as Llama's tokenizer loses every space. So what was loaded is compared with the
file: first the parts that say how text is split, which takes milliseconds; where they differ, the
tokens of some texts.

Settings of the checkpoint may ask for something other than the file: a prefix space, how it is
placed, a normaliser's switches. What they change is not compared.

A recipe has what the file lacks: the special tokens, and tokens that transformers adds. By it the
file is read without transformers (`LightTokenizer`). For known classes and settings it follows from
the files (`pipegen.backends.checkpoint.tokenizer_classes`). For others, what transformers loads is
compared with the file once, whole: the model, how text is split and joined, all added tokens, the
templates and what they write. Where all are the same, a recipe is kept for these files and versions,
for the next start.

There is no recipe for a tokenizer in pure Python, for one without a `tokenizer.json`, and for code
that comes with a model. Nor is there one for a class that splits, joins or renders otherwise, and
for a response template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.chat_jinja import RENDERING, render, rendering
from pipegen.backends.checkpoint.verdicts import keep, kept
from pipegen.core.names import InvalidField

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


_CHECK = "tokenizer"
READERS = (*RENDERING, "mistral-common", "sentencepiece", "tiktoken")
"""What recipes are kept under, and the packages by which transformers chooses a class."""
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FIELDS = {"special", "begins", "added", *_IDS}
"""What a recipe has."""


class LightTokenizer:
    """What pipegen needs of a tokenizer of transformers, made of that of the file by its recipe."""

    is_fast = True

    def __init__(self, tokenizer: Any, recipe: Mapping[str, Any]) -> None:
        from tokenizers import AddedToken

        self.backend_tokenizer = tokenizer
        for state in recipe["added"]:
            self.backend_tokenizer.add_tokens([AddedToken(**state)])
        self.special_tokens_map: Mapping[str, str] = recipe["special"]
        self.bos_token = self.special_tokens_map.get("bos_token")
        self.bos_token_id, self.eos_token_id, self.pad_token_id = (recipe[name] for name in _IDS)
        self._begins = tuple(recipe["begins"])

    @property
    def reserved(self) -> frozenset[str]:
        """The names that no variable of a template can have."""
        return rendering().reserved

    def __call__(self, text: str) -> Mapping[str, Sequence[int]]:
        """The ids of a text, with the tokens that are put before it."""
        ids = self.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return {"input_ids": [*self._begins, *ids]}

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        token: str | None = self.backend_tokenizer.id_to_token(token_id)
        return token

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template: str,
        tokenize: bool,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text that the template writes; see `pipegen.backends.checkpoint.chat_jinja`."""
        return render(
            chat_template, messages, {**self.special_tokens_map, **variables}, tools=tools
        )


def recipe_for(model: str | None) -> Mapping[str, Any] | None:
    """The recipe that is kept for these files; None where there is none."""
    known = None if model is None else kept(_CHECK, model=model, packages=READERS)
    return known if known is not None and known.keys() == _FIELDS else None


def keep_recipe(model: str, recipe: Mapping[str, Any]) -> None:
    keep(_CHECK, recipe, model=model, packages=READERS)


def recipe_of(raw: Any, file: Path, reference: Any) -> Mapping[str, Any] | None:
    """The recipe by which the file gives what transformers has loaded; None where there is none.
    `reference` is the tokenizer of the file.
    """
    from transformers import PreTrainedTokenizerBase

    own_code = type(raw).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    if own_code or raw.response_template is not None:
        return None
    loaded = raw.backend_tokenizer
    starts = raw("a")["input_ids"][:1] == [raw.bos_token_id]
    recipe = {
        "special": dict(raw.special_tokens_map),
        "begins": [raw.bos_token_id] if starts else [],
        "added": _changed(reference, loaded),
        **{name: getattr(raw, name) for name in _IDS},
    }
    made = LightTokenizer(tokenizer_in(file), recipe).backend_tokenizer
    return recipe if _whole(made) == _whole(loaded) else None


def _changed(reference: Any, loaded: Any) -> list[Mapping[str, Any]]:
    """The added tokens that are not as the file has them."""
    own = added_states(reference)
    return [state for token_id, state in added_states(loaded).items() if own.get(token_id) != state]


def _whole(tokenizer: Any) -> tuple[Any, ...]:
    """All that says how a tokenizer splits and joins text. A decoder of bytes has no settings that
    bear on it, and no affix is as good as an empty one.
    """
    *splits, decoder = parts(tokenizer, "normalizer", "pre_tokenizer", "decoder")
    return (
        splits,
        "ByteLevel" if (decoder or {}).get("type") == "ByteLevel" else decoder,
        added_states(tokenizer),
        tokenizer.encode_special_tokens,
        {name: value or None for name, value in json.loads(tokenizer.model.__getstate__()).items()},
    )
