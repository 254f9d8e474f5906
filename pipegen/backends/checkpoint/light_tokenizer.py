"""A tokenizer read from its `tokenizer.json` alone, where transformers makes the same of the files.

A recipe has what the file lacks: the special tokens, and tokens that transformers adds. For known
classes and settings it follows from the files (`pipegen.backends.checkpoint.tokenizer_classes`).

For others, what transformers loads is compared with the file once, whole. Compared are the model,
how text is split and joined, all added tokens, the templates and what they write. Where all are the
same, a recipe is kept for these files and versions. The next start reads the file by it.

There is no recipe for a tokenizer in pure Python, for one without a `tokenizer.json`, for code that comes
with a model, for a class that splits, joins or renders otherwise, and for a response template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.chat_jinja import RENDERING, render, rendering
from pipegen.backends.checkpoint.tokenizer_file import added_states, parts, tokenizer_in
from pipegen.backends.checkpoint.verdicts import keep, kept

_CHECK, _PACKAGES = "tokenizer", (*RENDERING, "mistral-common", "sentencepiece", "tiktoken")
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
    known = None if model is None else kept(_CHECK, model=model, packages=_PACKAGES)
    return known if known is not None and known.keys() == _FIELDS else None


def keep_recipe(model: str, recipe: Mapping[str, Any]) -> None:
    keep(_CHECK, recipe, model=model, packages=_PACKAGES)


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
