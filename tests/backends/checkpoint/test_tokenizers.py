"""Tokenizers and chat templates of transformers behind pipegen's protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import (
    CHATML,
    INSTRUCT,
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
    unigram_tokenizer,
)

from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer, load_tokenizer
from pipegen.engines.tokenizer import Renderer, Tokenizer

USER = [{"role": "user", "content": "Hi"}]
PREFIXES: list[Any] = ["first", "always", "normalizer"]


def test_the_adapters_keep_the_protocols() -> None:
    assert isinstance(HFTokenizer(chatml_tokenizer()), Tokenizer)
    assert isinstance(HFRenderer(chatml_tokenizer(), CHATML), Renderer)


def test_special_and_other_added_tokens_are_told_apart() -> None:
    tokenizer = HFTokenizer(chatml_tokenizer())
    assert "<|im_end|>" in tokenizer.special_tokens
    assert "<think>" not in tokenizer.special_tokens
    assert tokenizer.control_tokens["<think>"] == chatml_tokenizer().convert_tokens_to_ids(
        "<think>"
    )
    assert tokenizer.vocab_size == len(chatml_tokenizer())


@pytest.mark.parametrize(
    "make", [chatml_tokenizer, instruct_tokenizer, turns_tokenizer, unigram_tokenizer]
)
def test_encoding_is_that_of_the_tokenizer_without_special_tokens_put_in_front(make: Any) -> None:
    raw = make()
    text = "Hi <s>[INST] there<|im_end|> <|end|> \n x"
    assert HFTokenizer(raw).encode(text) == tuple(raw(text, add_special_tokens=False)["input_ids"])


def test_truncation_that_a_tokenizer_brings_along_does_not_shorten_prompts() -> None:
    from transformers import PreTrainedTokenizerFast

    rust = type(chatml_tokenizer().backend_tokenizer).from_str(
        chatml_tokenizer().backend_tokenizer.to_str()
    )
    rust.enable_truncation(2)
    rust.enable_padding(length=9)
    assert (
        len(HFTokenizer(PreTrainedTokenizerFast(tokenizer_object=rust)).encode("one two three")) > 2
    )


@pytest.mark.parametrize(
    "make", [chatml_tokenizer, instruct_tokenizer, turns_tokenizer, unigram_tokenizer]
)
@pytest.mark.parametrize("first", [True, False])
def test_plain_encoding_gives_no_added_token(make: Any, first: bool) -> None:
    tokenizer = HFTokenizer(make())
    for token, number in tokenizer.control_tokens.items():
        if token.strip() and token != "<unk>":
            assert number not in tokenizer.encode_plain(f"a{token} {token}", first=first)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("piece", ["Hi there", " Hi", "", "the"])
def test_plain_pieces_have_the_ids_that_they_have_between_control_tokens(
    prefix: Any, piece: str
) -> None:
    tokenizer = HFTokenizer(instruct_tokenizer(prefix))
    token, number = "</s>", tokenizer.control_tokens["</s>"]
    assert tokenizer.encode_plain(piece, first=True) == tokenizer.encode(piece)
    assert (number, *tokenizer.encode_plain(piece, first=False)) == tokenizer.encode(token + piece)


def test_plain_encoding_leaves_the_tokenizer_itself_as_it_was() -> None:
    raw = unigram_tokenizer()
    before = raw.backend_tokenizer.to_str()
    HFTokenizer(raw).encode_plain("<s>", first=False)
    assert raw.backend_tokenizer.to_str() == before


def test_merges_that_spell_a_control_token_are_not_used_in_plain_encoding() -> None:
    from tokenizers import AddedToken, Tokenizer as Rust, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "<s>s": 5}
    rust = Rust(models.BPE(vocab, [("<", "s"), ("<s", ">"), ("<s>", "s")]))
    rust.add_special_tokens([AddedToken("<s>", normalized=False, special=True)])
    tokenizer = HFTokenizer(PreTrainedTokenizerFast(tokenizer_object=rust))
    assert tokenizer.encode("<s>s") == (4, 1)
    assert tokenizer.encode_plain("<s>s", first=False) == (3, 2, 1)


def test_words_that_spell_a_control_token_are_unknown_in_plain_encoding() -> None:
    from tokenizers import AddedToken, Tokenizer as Rust, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rust = Rust(models.WordLevel({"[UNK]": 0, "<s>": 1, "a": 2}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in ("<s>", "[UNK]")]
    )
    tokenizer = HFTokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, unk_token="[UNK]"))
    assert tokenizer.encode_plain("a <s> b", first=False) == (2, 0, 0)


def test_decoding_cleans_nothing_up_and_keeps_special_tokens() -> None:
    tokenizer = HFTokenizer(chatml_tokenizer())
    text = "<|im_start|>a , b . <think> é<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_in_pure_python_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="Slow is no tokenizer of the tokenizers library"):
        HFTokenizer(Slow())


def test_rendering_is_one_call_of_the_template() -> None:
    raw = chatml_tokenizer()
    text = HFRenderer(raw, CHATML).render(
        USER, tools=[], template=None, variables={"add_generation_prompt": True}
    )
    assert text == raw.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)


def test_templates_by_name() -> None:
    renderer = HFRenderer(
        chatml_tokenizer(), {"default": "d", "tool_use": "t", "rag": "{{ documents }}"}
    )
    assert renderer.render(USER, tools=[], template=None, variables={}) == "d"
    assert renderer.render(USER, tools=[{"type": "function"}], template=None, variables={}) == "t"
    assert (
        renderer.render(USER, tools=[], template="rag", variables={"documents": [{"title": "a"}]})
        == "[{'title': 'a'}]"
    )
    assert renderer.template is not None
    assert "documents" in renderer.template
    with pytest.raises(ValueError, match="name one of 'rag'"):
        HFRenderer(chatml_tokenizer(), {"rag": "r"}).render(
            USER, tools=[], template=None, variables={}
        )


def test_a_variable_that_transformers_uses_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="'tokenize' cannot be a template variable"):
        HFRenderer(chatml_tokenizer(), CHATML).render(
            USER, tools=[], template=None, variables={"tokenize": True}
        )


def test_a_checkpoint_gives_its_tokenizer_and_its_template(tmp_path: Path) -> None:
    instruct_tokenizer().save_pretrained(tmp_path)
    tokenizer, renderer = load_tokenizer(str(tmp_path))
    assert tokenizer.encode("<s>[INST] Hi") == HFTokenizer(instruct_tokenizer()).encode(
        "<s>[INST] Hi"
    )
    assert renderer.template == INSTRUCT


@pytest.mark.parametrize("name", ["processor_config.json", "chat_template.json"])
def test_a_processors_own_template_comes_before_the_tokenizers(tmp_path: Path, name: str) -> None:
    instruct_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text(json.dumps({"chat_template": "processor's"}))
    assert load_tokenizer(str(tmp_path))[1].template == "processor's"


def test_a_processor_without_a_template_leaves_the_tokenizers(tmp_path: Path) -> None:
    chatml_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"processor_class": "Qwen3VLProcessor"})
    )
    assert load_tokenizer(str(tmp_path))[1].template == CHATML


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("listed", [False, True])
def test_a_default_template_beside_additional_ones_is_used_for_plain_chat(
    listed: bool, tmp_path: Path
) -> None:
    chatml_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    plain, named = "plain: {{ messages[0].content }}", {"name": "rag", "template": "rag"}
    config["chat_template"] = [{"name": "default", "template": plain}, named] if listed else plain
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    others = tmp_path / "additional_chat_templates"
    others.mkdir()
    (others / "tool_use.jinja").write_text("tools: {{ tools | tojson }}")
    _, renderer = load_tokenizer(str(tmp_path))

    def rendered(tools: list[Any], template: str | None = None) -> str:
        return renderer.render(USER, tools=tools, template=template, variables={})

    assert (rendered([]), rendered([{"a": 1}])) == (
        "plain: " + USER[0]["content"],
        'tools: [{"a": 1}]',
    )
    assert rendered([], "tool_use") == "tools: null"
    assert not listed or rendered([], "rag") == "rag"
