"""Which `tokenizer.json` transformers loads as it stands, known from the checkpoint's files alone.

transformers chooses a class by the `model_type` of `config.json` and the `tokenizer_class` of
`tokenizer_config.json`. `TokenizersBackend` takes the file whole. Other classes take its vocabulary
and make the rest themselves, always the same. Where the file has just that, the file is what is
loaded. Then its recipe follows from the settings: the special tokens, and the tokens that are added.

There is a recipe where all of it is known: the family of models, the classes that may be taken, and
every setting. `pipegen.backends.checkpoint.tokenizer_file` says what becomes of other files.

>>> candidates("qwen3", "Qwen2TokenizerFast"), candidates("llama", "PreTrainedTokenizerFast")
({'Qwen2Tokenizer'}, {''})
>>> candidates("bert", "BertTokenizer"), candidates("llama", "BertTokenizer")
(None, None)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, NamedTuple

from immutabledict import immutabledict

from pipegen.backends.checkpoint.families import family_of
from pipegen.backends.checkpoint.tokenizer_file import LightTokenizer, added_states, parts

WHOLE = ""
"""Stands for the class that takes a file whole."""
_WHOLE = ("TokenizersBackend", "PreTrainedTokenizer", "PreTrainedTokenizerFast")
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_IDS = ("bos_token", "eos_token", "pad_token")
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""The special tokens that any tokenizer may have, in the order in which they are added."""
_MORE = {"extra_special_tokens", "additional_special_tokens"}
_SPLITTING = ("single_word", "normalized")
"""Flags of an added token that say where it is found in text."""
_ENTRIES = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "dropout")
_SWITCHES = ("fuse_unk", "byte_fallback", "ignore_merges")
"""What a model by BPE has besides its vocabulary."""


class Making(NamedTuple):
    """What a class makes itself, of a model by BPE."""

    special: Mapping[str, str]
    """Its special tokens where the settings name none."""
    normalizer: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any]
    decoder: Mapping[str, Any]
    switches: tuple[str, ...] = ()
    """What is on in its model."""
    names_unknown: bool = False
    """Whether its model has the token for unknown words."""
    adds: Literal["once", "as text", "as given"] = "once"
    """How it adds its special tokens a second time."""
    unless: Mapping[str, bool | None] = immutabledict()
    """Settings by which it makes something else."""


def _sequence(kind: str, *entries: object) -> dict[str, object]:
    return {"type": "Sequence", kind: [*entries]}


def _split(behavior: str, **pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _bytes(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}


_END, _NFC, _BYTE_LEVEL = "<|endoftext|>", {"type": "NFC"}, {"type": "ByteLevel"}


def _qwen(word: str, mark: str, adds: Literal["once", "as text"]) -> Making:
    regex = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{word}+|\p{{N}}|"
        rf" ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    splits = _sequence("pretokenizers", _split("Isolated", Regex=regex), _bytes(use_regex=False))
    special: dict[str, str] = dict.fromkeys(("unk_token", "eos_token", "pad_token"), _END)
    return Making(special, _NFC, splits, _BYTE_LEVEL, adds=adds)


_FALLBACK = (_replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FIRST = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
_COHERE = {"unk": "UNK", "bos": "BOS_TOKEN", "pad": "PAD", "cls": "CLS", "sep": "SEP"}
MAKINGS: Mapping[str, Making] = {
    "Qwen2Tokenizer": _qwen(r"\p{L}", "", "as text"),
    "Qwen3_5Tokenizer": _qwen(r"[\p{L}\p{M}]", r"\p{M}", "once"),
    "GPT2Tokenizer": Making(
        dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END),
        None,
        _bytes(use_regex=True),
        _BYTE_LEVEL,
        unless={"add_prefix_space": None},
    ),
    "CohereTokenizer": Making(
        {
            **{f"{name}_token": f"<{text}>" for name, text in _COHERE.items()},
            "eos_token": "<|END_OF_TURN_TOKEN|>",
            "mask_token": "<MASK_TOKEN>",
        },
        _NFC,
        _sequence(
            "pretokenizers", {"type": "Digits", "individual_digits": True}, _bytes(use_regex=True)
        ),
        _BYTE_LEVEL,
        adds="as given",
        unless={"add_prefix_space": None},
    ),
    "GemmaTokenizer": Making(
        {f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad", "mask")},
        _replace(" ", "▁"),
        _split("MergedWithPrevious", String=" "),
        _sequence("decoders", *_FALLBACK),
        ("fuse_unk", "byte_fallback"),
        names_unknown=True,
    ),
    "LlamaTokenizer": Making(
        {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
        None,
        _FIRST,
        _sequence("decoders", *_FALLBACK, _STRIP),
        ("fuse_unk", "byte_fallback"),
        unless={"legacy": True, "add_prefix_space": False},
    ),
}
"""The classes that make the rest themselves, as transformers 5.16 to 5.24 have them."""


_FLAGS = (
    *("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "use_fast", "is_local"),
    *("spaces_between_special_tokens", "use_default_system_prompt", "local_files_only"),
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_FLAGS, (bool,)),
    **dict.fromkeys(("errors", "tokenizer_class", "processor_class"), (str,)),
    **dict.fromkeys(_NAMED, (str, dict, NoneType)),
    **dict.fromkeys(("extra_special_tokens", "additional_special_tokens"), (list, dict, NoneType)),
    **dict.fromkeys(("vocab_file", "merges_file"), (NoneType,)),
    "added_tokens_decoder": (dict,),
    "chat_template": (str, list, NoneType),
    "legacy": (bool, NoneType),
    "model_input_names": (list,),
    "model_max_length": (int, float, NoneType),
    "sp_model_kwargs": (dict, NoneType),
}
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "add_prefix_space": (None, False),
    "backend": ("tokenizers",),
    **dict.fromkeys(("padding_side", "truncation_side"), ("left", "right")),
    "split_special_tokens": (False,),
}
"""The settings of `tokenizer_config.json` that are known, with the types or the values that change
nothing but what is read here.
"""


def candidates(model_type: str, named: str | None) -> set[str] | None:
    """The classes of which transformers takes one, by the family of models and the name in the
    settings; None where they are not known. Its versions differ in which one.
    """
    family = family_of(model_type)
    registered = family.tokenizer
    if registered is None:
        return None
    plain = WHOLE if named in (None, *_WHOLE) else str(named).removesuffix("Fast")
    classes = {registered} if named is None or plain == registered else {WHOLE, plain}
    if family.misnamed:
        classes |= {registered}
    if registered == _WHOLE[0]:
        classes = {WHOLE}
    return classes if classes <= {WHOLE, *MAKINGS} else None


def light_tokenizer(
    tokenizer: Any,
    settings: Mapping[str, Any],
    special_tokens_map: Mapping[str, object],
    model_type: str,
) -> LightTokenizer | None:
    """What transformers would load, of the tokenizer of the file alone; None where that is not
    known. `settings` are those of `tokenizer_config.json`. Anything may be raised for settings of
    the wrong type.
    """
    if "added_tokens_decoder" not in settings:
        more = _MORE & {*special_tokens_map}
        if (more and _MORE & {*settings}) or not all(
            name in more or name.endswith("_token") for name in special_tokens_map
        ):
            return None
        settings = {**settings, **{k: _as_special(v) for k, v in special_tokens_map.items()}}
    classes = candidates(model_type, settings.get("tokenizer_class"))
    known = all(_is_known(name, value) for name, value in settings.items())
    if classes is None or not known or tokenizer.padding is not None:
        return None
    tokenizer.no_truncation()
    first, *others = (_loaded(MAKINGS.get(name), tokenizer, settings) for name in classes)
    if first is None or any(other != first for other in others):
        return None
    special, added = first
    places = {state["content"]: place for place, state in added.items()}
    ids = {f"{name}_id": places.get(special.get(name, "")) for name in _IDS}
    bos = ids["bos_token_id"]
    begins = bos is not None and tokenizer.encode("a").ids[:1] == [bos]
    own = added_states(tokenizer)
    changed = [(own[place], state) for place, state in added.items() if place in own]
    if any(mine[flag] != state[flag] for mine, state in changed for flag in _SPLITTING):
        return None  # other ids than by the file: what transformers loads is compared with it
    recipe = {
        "special": special,
        "begins": [bos] if begins else [],
        "added": [state for place, state in added.items() if own.get(place) != state],
        **ids,
    }
    made = LightTokenizer(tokenizer, recipe)
    return made if added_states(made.backend_tokenizer) == added else None


def _as_special(value: object) -> object:
    """A token of `special_tokens_map.json` as the settings have it."""
    return {**value, "__type": "AddedToken", "special": True} if type(value) is dict else value


def _is_known(name: str, value: object) -> bool:
    if name in _VALUES:
        return value in _VALUES[name]
    return type(value) in _TYPES.get(name, (str,) if name.endswith("_token") else ())


def _token(value: object) -> object:
    """A token of the settings: text, or an `AddedToken` with its own flags."""
    from tokenizers import AddedToken

    if type(value) is not dict:
        return value
    flags = {**value}
    if flags.pop("__type") != "AddedToken":
        raise ValueError(f"{value} is no token")
    return AddedToken(**flags)


def _loaded(
    making: Making | None, tokenizer: Any, settings: Mapping[str, Any]
) -> tuple[dict[str, str], dict[int, Mapping[str, object]]] | None:
    """The special tokens, and the added ones by their ids, that a class makes of the file. None
    where the class makes another tokenizer.
    """
    from tokenizers import AddedToken, Tokenizer

    own = tokenizer.get_added_tokens_decoder()
    by_id = own
    if "added_tokens_decoder" in settings:
        entries = settings["added_tokens_decoder"].items()
        by_id = {int(place): AddedToken(**token) for place, token in entries}
    by_text = {token.content: token for token in by_id.values()}
    special: dict[str, Any] = dict.fromkeys(_NAMED) | dict(making.special if making else {})
    for name, value in settings.items():
        if name in _NAMED:
            special[name] = by_text.get(str(_token(value)), _token(value))
        elif name.endswith("_token") and type(value) is str:
            special[name] = value
    more = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    if isinstance(more, dict):
        special, more = special | more, ()
    special = {name: token for name, token in special.items() if token is not None}
    tokens = [*special.values(), *map(_token, more)]

    made = Tokenizer(tokenizer.model)
    if making is None:
        made.add_tokens([own[place] for place in sorted(own)])
    elif not _makes(making, tokenizer, settings, str(special.get("unk_token"))):
        return None
    before = [*made.get_added_tokens_decoder().values()]
    adds = [by_id[place] for place in sorted(by_id)]
    texts = {token.content for token in (*before, *adds)}
    for token in tokens:
        if str(token) not in texts and token not in adds:
            adds.append(token)
    names = {*map(str, special.values())}
    made.add_tokens([_special_in(names, token) for token in adds])
    again = [*dict.fromkeys(map(str, tokens))]
    if making is not None and making.adds == "as text":
        made.add_tokens([AddedToken(text, special=True) for text in again])
    elif making is not None and making.adds == "as given":
        made.add_special_tokens([_special_in({str(token)}, token) for token in tokens])
    return {name: str(token) for name, token in special.items()}, added_states(made)


def _special_in(names: set[str], token: Any) -> object:
    """The token as one to add: text alone is special, and so is what is named."""
    from tokenizers import AddedToken

    if isinstance(token, str):
        return AddedToken(token, special=True)
    return AddedToken(**{**token.__getstate__(), "special": token.special or str(token) in names})


def _makes(making: Making, tokenizer: Any, settings: Mapping[str, object], unknown: str) -> bool:
    """Whether the class makes what the file has."""
    model, (*splits, decoder) = tokenizer.model, parts(tokenizer, *_PARTS)
    entries = [getattr(model, name) or None for name in _ENTRIES]
    return (
        type(model).__name__ == "BPE"
        and all(settings.get(name, ...) is not value for name, value in making.unless.items())
        and entries == [unknown if making.names_unknown else None, None, None, None]
        and {name for name in _SWITCHES if getattr(model, name)} == {*making.switches}
        and splits == [making.normalizer, making.pre_tokenizer]
        and making.decoder
        == (_BYTE_LEVEL if decoder and decoder["type"] == "ByteLevel" else decoder)
    )
