"""Keys among settings are `Secret`s: nothing prints them, and only the engine or server that needs
them gets their text.

>>> settings = secretive(
...     {"base_url": "http://h", "api_key": "sk-123", "headers": {"X-Team": "red"}, "max_tokens": 5}
... )
>>> settings
FrozenMapping({'base_url': 'http://h', 'api_key': Secret(hidden), 'headers': FrozenMapping({'X-Team': Secret(hidden)}), 'max_tokens': 5})
>>> revealed(settings)["headers"]
{'X-Team': 'red'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from pipegen.records.fields import mapping, schema_of, with_schema
from pipegen.records.frozen import SHOWN, FrozenMapping, freeze, thaw

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_SECRET = frozenset(
    {
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
    }
)
_KEYS = frozenset(
    [
        "access",
        "api",
        "auth",
        "encryption",
        "private",
        "secret",
        "service",
        "shared",
        "signing",
        "subscription",
    ]
)
"""Words before `key` that make it a secret."""
_PLAIN_TOKENS = frozenset(
    ["audio", "bos", "cls", "eos", "image", "mask", "pad", "sep", "special", "stop", "unk", "video"]
)
"""Words before `token` that make it a token of a model, which is no secret."""
_CARRIERS = frozenset({"headers", "header", "cookies"})
"""Mappings whose entries are all secrets."""
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+@")
"""The start of a URL with a user, and perhaps a password."""


class Secret:
    """A text that is not printed and not pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled: read it again where it is needed")


def _is_secret(name: str) -> bool:
    """Whether a setting of this name is a secret.

    >>> [
    ...     name
    ...     for name in (
    ...         "api_key",
    ...         "X-Api-Key",
    ...         "hfToken",
    ...         "HF_TOKEN",
    ...         "eos_token",
    ...         "max_tokens",
    ...         "monkey",
    ...         "Authorization",
    ...     )
    ...     if _is_secret(name)
    ... ]
    ['api_key', 'X-Api-Key', 'hfToken', 'HF_TOKEN', 'Authorization']
    """
    parts = [word.lower() for word in _WORDS.findall(name)]
    before = parts[-2] if len(parts) > 1 else ""
    if not _SECRET.isdisjoint(parts):
        return True
    return bool(parts) and (
        (parts[-1] == "token" and before not in _PLAIN_TOKENS)
        or (parts[-1] == "key" and before in _KEYS)
    )


def secretive(value: object) -> Any:
    """A check: a mapping of plain data, deeply frozen, with keys, tokens, passwords and headers as
    `Secret`s.
    """
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    return _hidden(value, hides=False)


with_schema(secretive, schema_of(mapping))


def _hidden(value: object, *, hides: bool) -> Any:
    if isinstance(value, Secret):
        return value
    if isinstance(value, Mapping):
        names = freeze(dict.fromkeys(value))  # the names must be strings
        return FrozenMapping(
            {name: _hidden(value[name], hides=hides or _holds(name)) for name in names}
        )
    if isinstance(value, (list, tuple)):
        return tuple(_hidden(entry, hides=hides) for entry in value)
    frozen = freeze(value)
    return Secret(frozen) if isinstance(frozen, str) and (hides or _LOGIN.match(frozen)) else frozen


def _holds(name: object) -> bool:
    return isinstance(name, str) and (
        _is_secret(name) or name.lower().rpartition("_")[2] in _CARRIERS
    )


def masked(value: object, levels: int = 5) -> Any:
    """The value as messages may show it, with a `Secret` for each secret; what is too deep or too
    long for a message is left out.

    >>> masked({"password": 5, "a": [{"token": "x"}]})
    {'password': Secret(hidden), 'a': [{'token': Secret(hidden)}]}
    """
    if isinstance(value, (Mapping, list, tuple)) and not levels:
        return ...
    if isinstance(value, Mapping):
        return {
            name: Secret("") if _holds(name) else masked(entry, levels - 1)
            for name, entry in islice(value.items(), SHOWN + 1)
        }
    if isinstance(value, (list, tuple)):
        shown = [masked(entry, levels - 1) for entry in islice(value, SHOWN + 1)]
        return shown if isinstance(value, list) else tuple(shown)
    return Secret("") if isinstance(value, str) and _LOGIN.match(value) else value


def revealed(value: object) -> Any:
    """The settings as dicts and lists, with the text of each secret."""
    return thaw(value, lambda leaf: leaf.reveal() if isinstance(leaf, Secret) else leaf)
