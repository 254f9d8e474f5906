"""Which chat template is tried with which tokenizer: its own family's, or one that gets the tokens
that the template writes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer as Rust

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer

FOLDER = Path(os.environ["PIPEGEN_REAL_TOKENIZERS"])
TOKENIZERS = sorted(path.parent.name for path in (FOLDER / "tokenizers").glob("*/tokenizer.json"))

FAMILIES = (  # the first that is found in a template's name
    (
        "gptoss|gpt-oss|gemma-?4|diffusion|gemma3n|llama4|Llama-4|kimi|hermes|firefunction|functionary|jamba|distill",
        "",
    ),
    ("qwen_25|qwen25|qwen2_5|qwen2\\.5|qwen2_vl", "qwen2_5"),
    ("qwen", "qwen3"),
    ("chatml", "qwen1_5"),
    ("llama31|llama3_1|llama-3\\.1|llama-3\\.3", "llama3_1"),
    ("llama3_2|llama-3\\.2", "llama3_2"),
    ("llama3", "llama3"),
    ("llama_template|mistral_v1|mistral_template|zephyr|vicuna|llava", "llama2"),
    ("mistral|tekken|pixtral", "mistral_nemo"),
    *(("aya|cohere2", "aya_expanse"), ("cohere|command", "command_r_plus")),
    *(("deepseek", "deepseek_v3"), ("gemma-2", "gemma2"), ("gemma3", "gemma3")),
    *(("gemma", "gemma"), ("phi_?3|phi_35|phi-3", "phi_3"), ("yi_chat", "yi")),
)
LENT = (  # take turns for the templates of other families: small ones of every kind
    *("gpt2", "llama2", "bert_bge", "gpt4", "claude", "falcon", "phi_3", "starcoder"),
    *("nomic_bert_moe", "yi", "deepseek_coder", "chatglm3", "refact", "gpt_neox"),
    *("baichuan2", "text_davinci003", "aquila", "internlm2", "gpt35turbo", "deepseek_llm", "gpt4o"),
)
_WRITTEN = re.compile(
    r"<[|｜][^\s<>'\"{}]{1,50}[|｜]?>|<[^\s<>'\"{}|]{1,40}\|>|<\|\"\|>|</?[a-zA-Z_][\w▁]{0,30}>|\[/?[A-Z_]{2,30}\]|\]<\]\w+\[>\["
)
_SPECIAL = re.compile(r"<[|｜].*|.*[|｜]>|\[.*\]|\].*\[")


@dataclasses.dataclass(frozen=True)
class Pair:
    """A template (its path below the folder, or "own") and a tokenizer, with the tokens that the
    template writes where `lent` is true.
    """

    template: str
    tokenizer: str
    lent: bool = False

    def __str__(self) -> str:
        return f"{self.template.removesuffix('.jinja')}@{self.tokenizer}{'+' if self.lent else ''}"


def _pairs() -> list[Pair]:
    found, seen = [], set()
    for name in TOKENIZERS:
        if (source := _config(name).get("chat_template")) is not None:
            found.append(Pair("own", name))
            seen.add(_digest(source if isinstance(source, str) else json.dumps(source)))
    lent = 0
    for path in sorted((FOLDER / "templates").glob("*/*.jinja")):
        digest = _digest(path.read_text(encoding="utf-8"))
        if digest in seen:
            continue
        seen.add(digest)
        template = f"{path.parent.name}/{path.name}"
        family = next(
            (name for pattern, name in FAMILIES if re.search(pattern, path.stem, re.IGNORECASE)), ""
        )
        if family:
            found.append(Pair(template, family))
        else:
            found.append(Pair(template, LENT[lent % len(LENT)], lent=True))
            lent += 1
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _config(name: str) -> dict[str, Any]:
    return dict(
        json.loads(
            (FOLDER / "tokenizers" / name / "tokenizer_config.json").read_text(encoding="utf-8")
        )
    )


@functools.lru_cache(maxsize=2)
def tokenizer_of(name: str, lent: bool) -> HFTokenizer:
    """A tokenizer as its `tokenizer.json` has it; where `lent`, with the tokens added that the
    templates write which are tried with it.
    """
    from transformers import PreTrainedTokenizerFast

    rust, config = (
        Rust.from_file(str(FOLDER / "tokenizers" / name / "tokenizer.json")),
        _config(name),
    )
    if lent:
        sources = [_source(pair) for pair in PAIRS if pair.lent and pair.tokenizer == name]
        more = dict.fromkeys(token for source in sources for token in _WRITTEN.findall(str(source)))
        rust.add_tokens(
            [
                AddedToken(token, normalized=False, special=_SPECIAL.fullmatch(token) is not None)
                for token in more
            ]
        )
    ends = {
        key: value["content"] if isinstance(value, dict) else value
        for key in ("bos_token", "eos_token", "pad_token")
        if (value := config.get(key))
    }
    return HFTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=rust, clean_up_tokenization_spaces=False, **ends)
    )


def _source(pair: Pair) -> Any:
    if pair.template != "own":
        return (FOLDER / "templates" / pair.template).read_text(encoding="utf-8")
    own = _config(pair.tokenizer)["chat_template"]
    return {entry["name"]: entry["template"] for entry in own} if isinstance(own, list) else own


@functools.lru_cache(maxsize=2)
def loaded(pair: Pair) -> tuple[HFTokenizer, HFRenderer]:
    """The pair as pipegen takes it."""
    tokenizer = tokenizer_of(pair.tokenizer, pair.lent)
    return tokenizer, HFRenderer(tokenizer.raw, _source(pair))


PAIRS = _pairs()
