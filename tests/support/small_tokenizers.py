"""Small tokenizers made on the spot, with chat templates of their own: one for each family that is
awkward in its own way. Each is made once.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Iterator
from typing import Any, Literal

CHATML = """
{%- macro write(content) -%}
    {%- if content is string -%}{{- content -}}
    {%- elif content is not none -%}
        {%- for part in content -%}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\nTools: ' + (tools | tojson) + '\\nCall them within <tool_call></tool_call>.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\\n<tool_response>\\n' + write(message.content) + '\\n</tool_response><|im_end|>\\n' -}}
    {%- else -%}
        {%- set content = write(message.content) -%}
        {%- if message.role == 'assistant' and not loop.last -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>' + message.role + '\\n' + content -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""
"""ChatML with a thinking switch, tools and images, in the manner of Qwen."""

INSTRUCT = """
{%- if not messages -%}{{- raise_exception('no messages') -}}{%- endif -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role in ('user', 'system') -%}{{- '[INST] ' + (message.content | trim) + ' [/INST]' -}}
    {%- elif message.role == 'assistant' -%}{{- ' ' + (message.content | trim) + eos_token -}}
    {%- else -%}{{- raise_exception('this model takes no ' + message.role + ' messages') -}}
    {%- endif -%}
{%- endfor -%}
"""
"""Takes strings only, trims them, writes the BOS itself, and knows no thinking switch, in the
manner of Mistral.
"""

PARTS_ONLY = """
{%- for message in messages -%}
    {{- message.role + ':' -}}
    {%- for part in message.content -%}
        {%- if part['type'] == 'image' -%}{{- '<image>' -}}
        {%- elif part['type'] == 'text' -%}{{- ' ' + (part['text'] | trim) -}}
        {%- endif -%}
    {%- endfor -%}
    {{- '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant:' -}}{%- endif -%}
"""
"""Takes lists of parts only: of a string it would write nothing at all."""

_CHATML_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    "<|image_pad|>",
)
_CHATML_ADDED = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>"),
    *("</think>", "<|fim_prefix|>"),
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps for a while.",
    "user\nassistant\nsystem\nHello there! How are you today? I am fine, thank you.",
    "Describe the image. What is 12 + 30? Write it as JSON: {'sum': 42}",
    (
        "Grüße aus Köln, ça va? Привет, как дела? 你好 今天天气很好。 é è ü <b>bold</b> [1] [2] a <"
        " b > c | d"
    ),
)


def _raw(rust: Any, template: str, **settings: Any) -> Any:
    import transformers

    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=rust, chat_template=template, **settings)


def added_tokens(tokens: tuple[str, ...], **settings: Any) -> list[Any]:
    from tokenizers import AddedToken

    return [AddedToken(token, normalized=False, **settings) for token in tokens]


def _lines() -> Iterator[str]:
    yield from _CORPUS * 4


@functools.cache
def chatml_tokenizer() -> Any:
    """Byte-level BPE with NFC, in the manner of Qwen: `<think>` and `<tool_call>` are added tokens,
    but not special ones.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    rust = Tokenizer(models.BPE())
    rust.normalizer = normalizers.NFC()
    pieces = pre_tokenizers.Split(
        Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
        "isolated",
    )
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    rust.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust.train_from_iterator(
        _lines(),
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False),
    )
    rust.add_special_tokens(added_tokens(_CHATML_SPECIAL, special=True))
    rust.add_tokens(added_tokens(_CHATML_ADDED))
    return _raw(rust, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")  # no password


@functools.cache
def video_tokenizer() -> Any:
    """`chatml_tokenizer` with a token and a template for videos: in the place of `<|fim_prefix|>`
    stands `<|video_pad|>`.
    """
    from tokenizers import Tokenizer

    base = chatml_tokenizer()
    made = json.loads(base.backend_tokenizer.to_str())
    (token,) = (each for each in made["added_tokens"] if each["content"] == "<|fim_prefix|>")
    token |= {"content": "<|video_pad|>", "special": True}
    text = " else part.text -}}"
    video = " else '<|vision_start|><|video_pad|><|vision_end|>' if part.type == 'video'"
    template = base.chat_template.replace(text, video + text)
    rust = Tokenizer.from_str(json.dumps(made))
    return _raw(rust, template, eos_token="<|im_end|>", pad_token="<|endoftext|>")  # no password


@functools.cache
def instruct_tokenizer(prefix: Literal["first", "always", "normalizer"] = "first") -> Any:
    """SentencePiece-like BPE with byte fallback, in the manner of Llama 2 and Mistral; a BOS goes
    before every text.

    `prefix` says where a prefix space is put: at the start of the prompt, or before each stretch
    between control tokens (two ways to do that).
    """
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    rust = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prefix == "normalizer":
        rust.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        strip = [decoders.Strip(" ", 1, 0)]
    else:
        rust.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=prefix, split=False
        )
        strip = []
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        initial_alphabet=[*string.printable.strip(), "▁"],
        special_tokens=special,
        show_progress=False,
    )
    rust.train_from_iterator(_lines(), trainer)
    rust = _without_added(rust)
    rust.add_special_tokens(
        added_tokens(("<unk>", "<s>", "</s>", "[INST]", "[/INST]"), special=True)
    )
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", rust.token_to_id("<s>"))]
    )
    return _raw(rust, INSTRUCT, bos_token="<s>", eos_token="</s>", unk_token="<unk>")  # no password


def _without_added(rust: Any) -> Any:
    """The same tokenizer whose byte tokens are no added ones, as in real checkpoints."""
    from tokenizers import Tokenizer

    bare = Tokenizer(rust.model)
    bare.decoder = rust.decoder
    if rust.normalizer is not None:
        bare.normalizer = rust.normalizer
    if rust.pre_tokenizer is not None:
        bare.pre_tokenizer = rust.pre_tokenizer
    return bare


@functools.cache
def turns_tokenizer() -> Any:
    """Byte-level BPE whose control tokens take in the white space after them, as Phi's do, and
    whose newline runs are added tokens, as Gemma's are.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust.train_from_iterator(
        _lines(),
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )
    rust.add_special_tokens(added_tokens(("<|end|>", "<image>"), special=True, rstrip=True))
    rust.add_tokens(added_tokens(("\n\n", "\n\n\n", "<b>", "</b>")))
    return _raw(rust, PARTS_ONLY, eos_token="<|end|>")  # no password


@functools.cache
def unigram_tokenizer() -> Any:
    """Unigram with NFKC, whose vocabulary holds its control tokens as words: a full-width `<s>`
    spells one. Unknown characters become `<unk>`.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = [letter for letter in string.printable if not letter.isspace()]
    pieces = [
        *(("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("[INST]", 0.0), ("[/INST]", 0.0)),
        *(("▁", -2.0), ("▁the", -3.0), ("▁and", -3.5)),
    ]
    rust = Tokenizer(models.Unigram([*pieces, *((letter, -5.0) for letter in letters)], unk_id=0))
    rust.normalizer = normalizers.NFKC()
    rust.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    rust.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    rust.add_special_tokens(
        added_tokens(("<unk>", "<s>", "</s>", "[INST]", "[/INST]"), special=True)
    )
    return _raw(rust, INSTRUCT, bos_token="<s>", eos_token="</s>", unk_token="<unk>")  # no password


def longer_without_space(tokenizer: Any) -> tuple[str, int]:
    """A word that is one token after a space and several without it, and that token."""
    return next(
        (text[1:], token)
        for token in range(tokenizer.vocab_size)
        if (text := tokenizer.decode((token,)))[:1] == " "
        and tokenizer.encode(text) == (token,)
        and len(tokenizer.encode(text[1:])) > 1
    )
