"""A tokenizer read by `tokenizers` alone gives what transformers gives, or it is not read so."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from support.small_tokenizers import (
    chatml_tokenizer,
    instruct_tokenizer,
    turns_tokenizer,
    unigram_tokenizer,
    video_tokenizer,
)
from tokenizers import Tokenizer

from pipegen import embedded
from pipegen.backends.checkpoint import chat_jinja, tokenizers as loader, verdicts
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.tokenizer_file import LightTokenizer
from pipegen.core.errors import CallFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import is_ok
from pipegen.engines.settings import ModelLoadConfig

TEXTS = (
    *("", "Hello world", " leading", "  two  spaces ", "\n\n x\n", "don't I'm", "1,234 + 5"),
    *(
        "你好，世界",
        "👩‍🚀 é e\u0301 ﬁ",
        "a<|im_end|>b",
        "</s><s>[INST] x",
        "▁a ▁",
        "<extra> x<extra>",
    ),
)
USER = {"role": "user", "content": "Hi \n"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "<b>&é", "parameters": {"type": "object"}},
}
CALL = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}
TALKS: tuple[list[dict[str, Any]], ...] = (
    [USER],
    [{"role": "system", "content": "Be short."}, USER],
    [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
    [USER, {"role": "assistant", "content": "", "reasoning": "hm"}, USER],
    [USER, {"role": "assistant", "content": "a", "thinking": "b", "reasoning_content": "c"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    [{"role": "tool", "content": "x", "tool_call_id": "call00000"}],
    [],
)
VARIABLES: tuple[dict[str, Any], ...] = (
    {},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"documents": [{"title": "t", "text": "x"}]},
    {"documents": ["x"]},
    {"documents": 3},
    {"padding": True},
    {"bos_token": "<other>"},
    {"continue_final_message": True},
)
OWN_TEMPLATES = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}",
    "{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}",
    "{{ strftime_now('%Y') }}{{ raise_exception('no') if messages | length > 1 }}",
    "{{ messages.append(1) }}",
    "{{ tools | tojson(indent=2) if tools else 'none' }}{{ documents }}",
    "{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}{{ dict(b=1) }}{{ dict.fromkeys('ab') }}",
    "{% set n = namespace(_a=1) %}{{ n._a }}",
    "{{ messages[0].content.__class__ }}{{ ''.__class__.__mro__ }}",
    "{{ missing.part }}",
    "{% if %}",
    "  {% if true %}\n  a\n  {% endif %}\n",
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}",
)


CONFIG = {
    "model_type": "gpt_neox",
    "vocab_size": 600,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


def saved(raw: Any, folder: Path, **settings: Any) -> Path:
    """A checkpoint with a tokenizer, and these settings in its `tokenizer_config.json`."""
    raw.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return folder


def with_templates(folder: Path) -> Path:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools: {{ tools }}")
    return folder


def in_settings(folder: Path) -> Path:
    file = folder / "tokenizer_config.json"
    templates = [{"name": "default", "template": "{{ messages[0].content }}"}]
    templates.append({"name": "tool_use", "template": "{{ tools }}"})
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": templates}))
    (folder / "chat_template.jinja").unlink()
    return folder


def of_a_processor(folder: Path) -> Path:
    (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": "processor: {{ messages[0].content }}"})
    )
    return folder


def shipped(folder: Path) -> Path:
    shutil.copytree(embedded.path(), folder)
    return folder


def begins(content: dict[str, Any]) -> None:
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }


EXTRA = {"content": "<extra>", "lstrip": True, "rstrip": True, "normalized": False}
LIGHT: Mapping[str, Callable[[Path], Path]] = {
    "the embedded one": shipped,
    "ChatML": lambda folder: saved(chatml_tokenizer(), folder),
    "videos": lambda folder: saved(video_tokenizer(), folder),
    "a prefix space first": lambda folder: saved(instruct_tokenizer(), folder),
    "a prefix space always": lambda folder: saved(instruct_tokenizer("always"), folder),
    "a prefix by the normaliser": lambda folder: saved(instruct_tokenizer("normalizer"), folder),
    "parts": lambda folder: saved(turns_tokenizer(), folder),
    "unigram": lambda folder: saved(unigram_tokenizer(), folder),
    "a text begins with BOS": lambda folder: changed(saved(instruct_tokenizer(), folder), begins),
    "add_bos_token": lambda folder: saved(instruct_tokenizer(), folder, add_bos_token=True),
    "clean up": lambda folder: saved(chatml_tokenizer(), folder, clean_up_tokenization_spaces=True),
    "tokens added": lambda folder: saved(
        chatml_tokenizer(),
        folder,
        extra_special_tokens=["<extra>", "<other>"],
        cls_token="<cls>",
    ),
    "a token of other settings": lambda folder: saved(
        chatml_tokenizer(), folder, added_tokens_decoder={"900": EXTRA}
    ),
    "named tokens": lambda folder: saved(
        chatml_tokenizer(),
        folder,
        image_token="<|image_pad|>",
        sep_token="<sep>",
    ),
    "more templates": lambda folder: with_templates(saved(chatml_tokenizer(), folder)),
    "templates in the settings": lambda folder: in_settings(saved(chatml_tokenizer(), folder)),
    "a processor's template": lambda folder: of_a_processor(saved(chatml_tokenizer(), folder)),
    "padding in the file": lambda folder: changed(
        saved(chatml_tokenizer(), folder),
        lambda content: content.update(
            truncation={
                "direction": "Right",
                "max_length": 2,
                "strategy": "LongestFirst",
                "stride": 0,
            }
        ),
    ),
}
"""Checkpoints that are read by their files alone."""


def of_another_family(folder: Path) -> Path:
    saved(chatml_tokenizer(), folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "bert"}))
    return folder


def with_added_tokens(folder: Path) -> Path:
    (folder / "added_tokens.json").write_text('{"<more>": 900}')
    return folder


KEPT: Mapping[str, Callable[[Path], Path]] = {
    "another family": of_another_family,
    "an unknown setting": lambda folder: saved(chatml_tokenizer(), folder, own_setting=1),
    "an unknown class": lambda folder: saved(
        chatml_tokenizer(), folder, tokenizer_class="OwnTokenizer"
    ),
    "a list of added tokens": lambda folder: with_added_tokens(saved(chatml_tokenizer(), folder)),
    "padding that names a token": lambda folder: changed(
        saved(chatml_tokenizer(), folder),
        lambda content: content.update(
            padding={
                "strategy": "BatchLongest",
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<|endoftext|>",
            }
        ),
    ),
}
"""Checkpoints that are read by their files once transformers was seen to read them so."""
HEAVY: Mapping[str, Callable[[Path], Path]] = {
    "split_special_tokens": lambda folder: saved(
        chatml_tokenizer(), folder, split_special_tokens=True
    ),
    "a response template": lambda folder: saved(
        chatml_tokenizer(), folder, response_template={"defaults": {}, "fields": {}}
    ),
    "a lower case class": lambda folder: saved(
        chatml_tokenizer(), folder, tokenizer_class="BertTokenizer", do_lower_case=True
    ),
}
"""Checkpoints that transformers reads otherwise, or reads answers of."""


def checkpoint(folder: Path, **settings: Any) -> Checkpoint:
    return Checkpoint(ModelLoadConfig(model=str(folder), **settings))


def outcome(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a call gives, or raises, in a form to compare."""
    slot = attempt(partial(work, *args, **named))
    return slot.unwrap() if is_ok(slot) else repr(slot.failure())


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


def facts(made: Checkpoint) -> dict[str, Any]:
    """All that pipegen takes of a tokenizer and a renderer."""
    tokenizer, renderer = made.tokenizer, made.renderer
    found: dict[str, Any] = {
        name: getattr(tokenizer, name)
        for name in ("control_tokens", "special_tokens", "vocab_size")
    }
    found["ids"] = [
        (tokenizer.encode(text), *(tokenizer.encode_plain(text, first=at) for at in (True, False)))
        for text in TEXTS
    ]
    found["texts"] = [tokenizer.decode(ids[0]) for ids in found["ids"]]
    found["pieces"] = [tokenizer.piece(token_id) for token_id in range(0, tokenizer.vocab_size, 7)]
    found["normalised"] = [tokenizer.normalised(text) for text in TEXTS]
    raw = tokenizer.source
    found["ends"] = (raw.bos_token, raw.bos_token_id, raw.eos_token_id, raw.pad_token_id)
    found["tokens"] = [raw.convert_ids_to_tokens(token_id) for token_id in (0, 5, 10**6)]
    found["model"] = (made.bos_token, made.eos_token_ids, outcome(getattr, made, "pad_token_id"))
    found["template"] = renderer.template
    found["renders"] = [
        outcome(renderer.render, talk, tools=tools, template=own, variables=variables)
        for talk in TALKS
        for variables in VARIABLES
        for tools in ((), [TOOL])
        for own in (None, "tool_use")
    ]
    found["own"] = [
        outcome(renderer.render, talk, tools=tools, template=own, variables={})
        for talk in TALKS
        for tools in ((), [TOOL])
        for own in OWN_TEMPLATES
    ]
    return found


@contextlib.contextmanager
def unread_version() -> Iterator[None]:
    """As with a version of transformers whose source was not read: it reads every file itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_jinja, "_READ", ((99, 0, 0), (99, 0, 0)))
        chat_jinja.rendering.cache_clear()
        yield
    chat_jinja.rendering.cache_clear()


@pytest.mark.parametrize("name", LIGHT)
def test_files_alone_give_what_transformers_gives(name: str, tmp_path: Path) -> None:
    folder = LIGHT[name](tmp_path / "model")
    with unread_version():
        loaded = checkpoint(folder)
        expected = facts(loaded)
    shutil.rmtree(verdicts.checks())
    first = checkpoint(folder)
    assert isinstance(first.tokenizer.source, LightTokenizer)
    assert not isinstance(loaded.tokenizer.source, LightTokenizer)
    assert facts(first) == expected
    assert first.identity == loaded.identity
    assert type(first.tokenizer.raw) is type(loaded.tokenizer.raw)
    assert first.tokenizer.raw.encode("Hi") == loaded.tokenizer.raw.encode("Hi")


@pytest.mark.parametrize("name", KEPT)
def test_what_transformers_was_seen_to_read_as_it_stands_is_read_alone(
    name: str, tmp_path: Path
) -> None:
    folder = KEPT[name](tmp_path / "model")
    first = checkpoint(folder)
    expected = facts(first)
    second = checkpoint(folder)
    assert isinstance(second.tokenizer.source, LightTokenizer)
    assert not isinstance(first.tokenizer.source, LightTokenizer)
    assert facts(second) == expected


@pytest.mark.parametrize("name", HEAVY)
def test_what_transformers_reads_otherwise_goes_through_it_each_time(
    name: str, tmp_path: Path
) -> None:
    folder = HEAVY[name](tmp_path / "model")
    for made in (checkpoint(folder), checkpoint(folder)):
        assert not isinstance(made.tokenizer.source, LightTokenizer)
        assert made.tokenizer.encode("Hi")


@pytest.mark.parametrize("settings", [{"trust_remote_code": True}, {}], ids=["code", "other file"])
def test_a_recipe_is_for_these_files_and_no_code(settings: Any, tmp_path: Path) -> None:
    folder = of_another_family(tmp_path / "model")
    assert checkpoint(folder, **settings).tokenizer.encode("Hi")
    if not settings:
        changed(folder, lambda content: content.update(normalizer={"type": "Lowercase"}))
    again = checkpoint(folder, **settings)
    assert not isinstance(again.tokenizer.source, LightTokenizer)
    assert again.tokenizer.encode("A") == tuple(
        Tokenizer.from_file(str(folder / "tokenizer.json")).encode("A").ids
    )


def test_what_is_refused_is_refused_again(tmp_path: Path) -> None:
    folder = saved(chatml_tokenizer(), tmp_path / "model", chat_template="nothing")
    (folder / "chat_template.jinja").unlink()
    errors = []
    for _ in range(2):
        with pytest.raises(CallFailed, match="writes nothing of what a user says") as raised:
            _ = checkpoint(folder).tokenizer
        errors.append(raised.value.error.hint)
    assert errors[0] == errors[1]


def test_a_template_that_is_read_otherwise_is_rendered_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_another_family(tmp_path / "model")
    monkeypatch.setattr(loader, "_written_templates", lambda *_: "{{ messages[0].content }}")
    for made in (checkpoint(folder), checkpoint(folder)):
        assert not isinstance(made.tokenizer.source, LightTokenizer)
