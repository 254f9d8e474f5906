"""The tokenizer: byte-level BPE, trained on the same questions and answers as the model.

Every byte is in the vocabulary, so every text can be encoded; the control tokens are those of
Qwen3-VL.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training import conversations, text_tasks, words as w
from training.scenes import sample_scene

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Qwen2Tokenizer

VOCABULARY = 1152
MODEL_MAX_LENGTH = 4096

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens that stay visible when special tokens are skipped, as in Qwen3."""

_WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _corpus(rng: random.Random) -> Iterator[str]:
    for _ in range(4000):
        scenes = (sample_scene(rng, rng.randint(1, 3)), sample_scene(rng, rng.randint(1, 2)))
        for conversation in (
            conversations.text_conversation(rng),
            conversations.text_conversation(rng),
            conversations.image_conversation(scenes, rng),
        ):
            if conversation.system:
                yield conversation.system
            for turn in conversation.turns:
                yield from (turn.exchange.question, turn.exchange.answer, turn.exchange.thought)
        yield "user\nassistant\nsystem\n"
        yield text_tasks.plain_text(rng)
    for word in w.WORDS:
        yield f"{word} {word}\n{word.upper()} {word.upper()}\n" * 150
    yield "# Tools\n\nYou may call one or more functions to assist with the user query." * 3


def train_tokenizer() -> Qwen2Tokenizer:
    """The tokenizer, the same at every call."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=2,
    )
    trained.train_from_iterator(_corpus(random.Random(7)), trainer)
    bpe = json.loads(trained.to_str())["model"]
    make: Any = Qwen2Tokenizer
    tokenizer: Qwen2Tokenizer = make(
        vocab=bpe["vocab"],
        merges=[tuple(merge) for merge in bpe["merges"]],
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=MODEL_MAX_LENGTH,
        padding_side="left",
    )
    for special, tokens in ((True, SPECIAL_TOKENS), (False, MARKUP_TOKENS)):
        added: list[Any] = [
            AddedToken(token, special=special, normalized=False) for token in tokens
        ]
        tokenizer.add_tokens(added)
    tokenizer.chat_template = (Path(__file__).parent / "chat_template.jinja").read_text()
    return tokenizer


def save_tokenizer(tokenizer: Qwen2Tokenizer, directory: Path) -> None:
    """Write the tokenizer, with left padding set in its configuration (an attribute alone is not
    saved).
    """
    tokenizer.save_pretrained(directory)
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings.update(padding_side="left", model_max_length=MODEL_MAX_LENGTH)
    file.write_text(json.dumps(settings, indent=2) + "\n")
