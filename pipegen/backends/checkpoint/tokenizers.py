"""Tokenizers and chat templates of transformers, as the stages see them.

>>> tokenizer, renderer = load_tokenizer("Qwen/Qwen3-0.6B")  # doctest: +SKIP
>>> HFTokenizer("not a tokenizer")
Traceback (most recent call last):
...
ValueError: str is no tokenizer of the tokenizers library: convert it to a tokenizer.json (AutoTokenizer does so where it can, with sentencepiece or tiktoken)
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from immutabledict import immutabledict
from returns.result import Success

from pipegen.backends.checkpoint.chat_jinja import is_read, rendering, reserved_by
from pipegen.backends.checkpoint.locate import ModelFiles
from pipegen.backends.checkpoint.tokenizer_classes import light_tokenizer
from pipegen.backends.checkpoint.tokenizer_file import (
    LightTokenizer,
    keep_recipe,
    parts_alone,
    recipe_for,
    recipe_of,
    require_file_ids,
    tokenizer_in,
)
from pipegen.backends.checkpoint.verdicts import installed
from pipegen.core.foreign_calls import attempt
from pipegen.template.template import assistant, call, result, tool

_BLANK = " \t\n\v\f\r▁"


class HFTokenizer:
    """A tokenizer of transformers that stands on the `tokenizers` library; `raw` is the thing
    itself. `source` is what pipegen reads of it: the same, or one read by its file alone. Then
    `whole` loads `raw` when a caller first asks for it.

    Raises `ValueError` for one in pure Python: it cannot be copied without its added tokens, so it
    could not keep a user's words as text.
    """

    def __init__(self, raw: Any, whole: Callable[[], Any] | None = None) -> None:
        if not getattr(raw, "is_fast", False):
            advice = (
                "convert it to a tokenizer.json (AutoTokenizer does so where it can, with"
                " sentencepiece or tiktoken)"
            )
            raise ValueError(
                f"{type(raw).__name__} is no tokenizer of the tokenizers library: {advice}"
            )
        self.source, self._whole = raw, whole
        self._backend = raw.backend_tokenizer
        # as every call of `raw` would; a saved tokenizer may bring them along
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self.control_tokens: Mapping[str, int] = immutabledict(
            {str(token.content): int(token_id) for token_id, token in added.items()}
        )
        self.special_tokens: Mapping[str, int] = immutabledict(
            {
                str(token.content): int(token_id)
                for token_id, token in added.items()
                if token.special
            }
        )
        self.vocab_size: int = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def raw(self) -> Any:
        """The tokenizer of transformers."""
        return self.source if self._whole is None else HFTokenizer(self._whole()).source

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of the text, as `raw(text, add_special_tokens=False)` gives them."""
        # without offsets, a fifth faster than `encode`
        return tuple(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode_plain(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Ids of the text by a copy that has no added tokens; a prefix space that is for the start
        of a prompt comes only with `first`.
        """
        at_start, further_on = self._plain
        return tuple(
            (at_start if first else further_on)
            .encode_batch_fast([text], add_special_tokens=False)[0]
            .ids
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included, nothing cleaned up."""
        # some decoders panic without any
        return (
            str(self._backend.decode(list(token_ids), skip_special_tokens=False))
            if token_ids
            else ""
        )

    def normalised(self, text: str) -> str:
        """The text as it is changed before it is cut into tokens. Spaces in front, and
        what stands for spaces, do not count.
        """
        normalizer = self._backend.normalizer
        if normalizer is None:
            return text
        changed = str(normalizer.normalize_str(text)).replace("▁", " ")
        alike = text.replace("▁", " ").lstrip(" ") == changed.lstrip(" ")
        return text if alike else changed

    def piece(self, token_id: int) -> str | None:
        """What the token adds to the text after any other that is not empty. None if that may
        depend on its neighbours, as with parts of characters.
        """
        if self._anchor is None or _BYTE.fullmatch(self._backend.id_to_token(token_id) or "<0x00>"):
            return None
        added = self.decode((self._anchor, token_id))[len(self.decode((self._anchor,))) :]
        return None if "\ufffd" in added else added

    @functools.cached_property
    def _anchor(self) -> int | None:
        """A token to see others after: the first that is a letter. None where tokens may change
        each other's text, as far as is known.
        """
        if _shape(json.loads(parts_alone(self._backend, "decoder"))["decoder"]) not in _SPELL_ALONE:
            return None
        return next(
            (token_id for token_id in range(self.vocab_size) if self.decode((token_id,)).isalpha()),
            None,
        )

    @functools.cached_property
    def _plain(self) -> tuple[Any, Any]:
        """The copies for the start of a prompt and for further on. They share the vocabulary, so
        they cost next to nothing.
        """
        from tokenizers import Tokenizer

        settings = json.loads(parts_alone(self._backend, "normalizer", "pre_tokenizer"))
        copies = (
            Tokenizer.from_str(json.dumps(settings)),
            Tokenizer.from_str(json.dumps(_never_first(settings))),
        )
        for copy in copies:
            copy.model = self._backend.model
        control_ids = {
            token_id
            for token, token_id in self.control_tokens.items()
            if token.strip(_BLANK)
            for copy in copies
            if token_id in copy.encode(token).ids
        }
        # some models hold control tokens in their vocabulary as words that text can spell
        if control_ids:
            model = Tokenizer.from_str(
                json.dumps(
                    {
                        **settings,
                        "model": _unspeakable(
                            json.loads(self._backend.to_str())["model"], control_ids
                        ),
                    }
                )
            ).model
            for copy in copies:
                copy.model = model
        return copies


def _shape(decoder: Any) -> str:
    """A decoder's settings in short: its parts, and what bears on whether tokens change each
    other's text.
    """
    if not isinstance(decoder, Mapping):
        return "None"
    if decoder["type"] == "Sequence":
        return " ".join(map(_shape, decoder["decoders"]))
    if decoder["type"] == "Replace":
        return f"Replace({decoder['pattern'].get('String')}, {decoder['content']})"
    if decoder["type"] == "Strip":
        return f"Strip({decoder['content']}, {decoder['start']}, {decoder['stop']})"
    return str(decoder["type"])


_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_FALLBACK = "Replace(▁,  ) ByteFallback Fuse"
_SPELL_ALONE = ("ByteLevel", "Metaspace", "WordPiece", _FALLBACK, f"{_FALLBACK} Strip( , 1, 0)")
"""Decoders that work token by token, but for the first of all and for the bytes of a character:
read in the source of the tokenizers library.
"""


def _never_first(settings: Any) -> Any:
    """Tokenizer settings in which no prefix space is put at the start of a text; one that is put
    before every piece stays.
    """
    if isinstance(settings, Mapping):
        return {
            key: "never" if (key, value) == ("prepend_scheme", "first") else _never_first(value)
            for key, value in settings.items()
        }
    return [_never_first(entry) for entry in settings] if isinstance(settings, list) else settings


def _unspeakable(model: dict[str, Any], ids: set[int]) -> dict[str, Any]:
    """A tokenizer's model in which these ids have names that no text spells; the token for unknown
    words keeps its own.
    """

    def name(token: str, token_id: int) -> str:
        return (
            f"\U0010ffff{token_id}\U0010ffff"
            if token_id in ids and token != model.get("unk_token")
            else token
        )

    # Unigram: pieces with their scores, in the order of their ids
    if isinstance(model["vocab"], list):
        return {
            **model,
            "vocab": [
                [name(token, token_id), score]
                for token_id, (token, score) in enumerate(model["vocab"])
            ],
        }
    renamed = {
        token for token, token_id in model["vocab"].items() if name(token, token_id) != token
    }
    vocab = {name(token, token_id): token_id for token, token_id in model["vocab"].items()}
    if "merges" not in model:
        return {**model, "vocab": vocab}
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    return {
        **model,
        "vocab": vocab,
        "merges": [pair for pair in pairs if renamed.isdisjoint((*pair, "".join(pair)))],
    }


class HFRenderer:
    """A chat template, rendered as transformers does. `templates` is its source, or
    several by name; None where there is none.

    A request may name one of several (`options.chat.template`); by default it is `tool_use` for a
    request with tools, where there is one, else `default`.

    >>> HFRenderer(None, "{{ messages[0].content }}").template
    '{{ messages[0].content }}'
    """

    def __init__(self, raw: Any, templates: str | Mapping[str, str] | None) -> None:
        self.raw = raw
        self.templates: Mapping[str, str] = (
            {"default": templates} if isinstance(templates, str) else dict(templates or {})
        )
        """The template's sources by name."""
        self.template = "\n".join(self.templates.values()) if self.templates else None
        """The template's source; of several, all of them one after another."""

    @property
    def rewrites(self) -> tuple[str, ...]:
        """What is changed in messages before the template reads them."""
        return rendering().rewrites

    @functools.cached_property
    def _reserved(self) -> frozenset[str]:
        """The names that transformers uses itself."""
        own: frozenset[str] | None = getattr(self.raw, "reserved", None)
        return reserved_by(self.raw.apply_chat_template) if own is None else own

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Call the template once. Whatever it raises comes through; `ValueError` for a variable
        whose name transformers uses itself.
        """
        reserved = sorted(self._reserved.intersection(variables))
        if reserved:
            raise ValueError(
                f"{reserved[0]!r} cannot be a template variable: transformers uses the name itself"
            )
        if template is None:
            template = "tool_use" if tools and "tool_use" in self.templates else "default"
            if template not in self.templates:
                raise ValueError(
                    "none of the chat templates is the default one; name one of"
                    f" {', '.join(map(repr, self.templates))}"
                )
        source = self.templates.get(template, template)
        end = text = ""
        if variables.get("continue_final_message"):
            # transformers' own way strips white space from what is continued, and from the header
            words = str((messages, tools, variables))
            end = next(name for n in itertools.count() if (name := f"{_OPEN_END}{n}") not in words)
            messages, text = _open_ended(messages, end)
            variables = {**variables, "continue_final_message": False}
        rendered = self.raw.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            chat_template=source,
            tokenize=False,
            **variables,
        )
        return _continued(str(rendered), text, end) if end else str(rendered)

    def read_response(
        self, text: str, *, prompt: str, tools: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """The answer by the response template beside the tokenizer; None where there is none."""
        if getattr(self.raw, "response_template", None) is None:
            return None
        message = self.raw.parse_response(text, prefix=prompt, tools=list(tools) or None)
        return message if isinstance(message, Mapping) else None


_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG_"
"""With a number, what stands behind the text to continue while the template writes it. It has no white space, so
that a template which trims leaves alone what is before it.
"""


def _open_ended(
    messages: Sequence[Mapping[str, Any]], end: str
) -> tuple[list[Mapping[str, Any]], str]:
    """The messages with `end` behind the last one's text, and that text. What a template may
    trim in front of it is left out.
    """
    content = messages[-1].get("content")
    if isinstance(content, list):
        place = max(
            (row for row, part in enumerate(content) if isinstance(part.get("text"), str)),
            default=None,
        )
        if place is None:
            raise _refusal("the final message has no text to continue")
        text = content[place]["text"]
        content = [*content]
        content[place] = {**content[place], "text": text.lstrip() + end}
        return [*messages[:-1], {**messages[-1], "content": content}], text
    text = content or ""
    return [*messages[:-1], {**messages[-1], "content": text.lstrip() + end}], text


def _continued(rendered: str, text: str, end: str) -> str:
    """The prompt up to `end`, with the white space of the text to continue."""
    before, tag, _ = rendered.rpartition(end)
    words = text.lstrip()
    if not tag or not before.endswith(words):
        raise _refusal(
            "it does not write the final message as it is, so that nothing can continue it"
        )
    return before[: len(before) - len(words)] + text


def _refusal(words: str) -> Exception:
    """The error with which a template refuses messages."""
    from jinja2 import TemplateError

    return TemplateError(words)


def load_tokenizer(
    path_or_name: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    model: str | None = None,
) -> tuple[HFTokenizer, HFRenderer]:
    """The tokenizer of a checkpoint (a folder or a hub name), and the chat template: the
    processor's where it has one, else the tokenizer's.

    `model` is the identity of the files. With it, transformers is not imported where it is known to
    make of them what they say (see `pipegen.backends.checkpoint.tokenizer_file`).

    Raises `OSError` where there is no such checkpoint, and `ValueError` for a tokenizer in pure
    Python. `InvalidField` is for one that splits text otherwise than its own `tokenizer.json` (see
    `pipegen.backends.checkpoint.tokenizer_file`). Loads no processor, so it needs no torchvision.
    """
    files = ModelFiles(path_or_name, revision)
    file, config = files.cached("tokenizer.json"), files.json("tokenizer_config.json")

    def renderer(raw: Any, templates: Any) -> HFRenderer:
        processors = _processor_templates(files)
        return HFRenderer(raw, processors or _with_those_of(config.get("chat_template"), templates))

    def by_transformers() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            path_or_name, revision=revision, trust_remote_code=trust_remote_code
        )

    light = None if file is None or model is None else _light(files, file, model)
    if file is not None and light is not None:
        templates = _written_templates(file.parent, config)
        return HFTokenizer(light, by_transformers), renderer(light, templates)
    raw = by_transformers()
    tokenizer, loaded = HFTokenizer(raw), renderer(raw, raw.chat_template)
    if file is not None:
        reference = tokenizer_in(file)
        require_file_ids(raw, reference, config, path_or_name)
        recipe = None if model is None else recipe_of(raw, file, reference)
        if model is not None and recipe is not None:
            light = LightTokenizer(reference, recipe)
            read = renderer(light, _written_templates(file.parent, config))
            if _writes(read) == _writes(loaded):
                keep_recipe(model, recipe)
    return tokenizer, loaded


def _light(files: ModelFiles, file: Path, model: str) -> LightTokenizer | None:
    """The tokenizer by its files, else by the recipe that is kept; None where transformers has to
    read it.
    """

    def by_files() -> LightTokenizer | None:
        from tokenizers import Tokenizer

        files.fetch_templates()
        settings, config = map(files.json, ("tokenizer_config.json", "config.json"))
        special = (
            {} if "added_tokens_decoder" in settings else files.json("special_tokens_map.json")
        )
        more = {} if "added_tokens_decoder" in settings else files.json("added_tokens.json")
        tekken = installed("mistral-common") and files.cached("tekken.json")
        named = config.get("tokenizer_class") or config.get("model_name")
        if more or tekken or named or not is_read():
            return None
        tokenizer = Tokenizer.from_file(str(file))
        return light_tokenizer(tokenizer, settings, special, config["model_type"])

    found = attempt(by_files)  # files that are not in order raise in transformers, too
    light = found.value_or(None)
    if light is not None:
        return light
    recipe = recipe_for(model)
    return None if recipe is None else LightTokenizer(tokenizer_in(file), recipe)


_TALKS: Sequence[Sequence[Mapping[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        assistant(None, call("look", {"at": "it"})),
        result("look", "seen"),
    ],
]
"""Conversations by which two renderers are compared."""


def _writes(renderer: HFRenderer) -> tuple[Any, ...]:
    """The templates of a renderer, and what they write or refuse."""
    texts = (
        attempt(
            lambda talk=talk: renderer.render(  # type: ignore[misc]
                talk,
                tools=[tool("look", "at")],
                template=None,
                variables={"add_generation_prompt": True},
            )
        )
        for talk in _TALKS
        if renderer.template is not None
    )
    return (
        renderer.templates,
        *(text.lash(lambda error: Success(repr(error))).unwrap() for text in texts),
    )


def _written_templates(folder: Path, config: Mapping[str, Any]) -> Any:
    """The templates that transformers reads beside a tokenizer: those of their own files, else that
    of `tokenizer_config.json`.
    """
    files = {"default": folder / "chat_template.jinja"} | {
        file.stem: file for file in folder.glob("additional_chat_templates/*.jinja")
    }
    own = {name: file.read_text("utf-8") for name, file in files.items() if file.is_file()}
    if own:
        return own["default"] if own.keys() == {"default"} else own
    configured = config.get("chat_template")
    if isinstance(configured, list):
        return {entry["name"]: entry["template"] for entry in configured}
    return configured


def _with_those_of(configured: Any, templates: Any) -> Any:
    """The tokenizer's templates with those of `tokenizer_config.json`, which transformers leaves out
    where there are others in `additional_chat_templates`.
    """
    if not isinstance(templates, Mapping) or "default" in templates:
        return templates
    if isinstance(configured, list):
        configured = {entry["name"]: entry["template"] for entry in configured}
    elif isinstance(configured, str):
        configured = {"default": configured}
    return {**(configured or {}), **templates}


def _processor_templates(files: ModelFiles) -> str | None:
    """The template in a processor's own files, in the order in which transformers takes them; None
    where the processor has none.

    A `chat_template.jinja` belongs to both, and the tokenizer has read it already.
    """
    for name in ("processor_config.json", "chat_template.json"):
        template = files.json(name).get("chat_template")
        if isinstance(template, str):
            return template
    return None
