"""Where a server is, and the key to it, which nothing prints.

>>> access = access_to(
...     "http://localhost:8000/v1/",
...     default="http://localhost:8000",
...     variable="VLLM_API_KEY",
...     api_key="secret",
... )
>>> access.url("/v1/chat/completions"), access
('http://localhost:8000/v1/chat/completions', Access(root='http://localhost:8000'))
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, urlsplit

from pipegen.core.errors import GenerationError
from pipegen.core.names import InvalidField

PREFIX = 8
"""Characters at the beginning of a key that are masked without the rest."""
_SECRET = re.compile(r"auth|key|token|secret|password|cookie|credential", re.IGNORECASE)
"""Names of headers whose values are keys."""
LOCAL_KEY = "EMPTY"
"""The key that is sent where none is set: local servers take any."""
_VERSION = re.compile(r"v\d\w*")
"""A part of a path that names a version of an API, such as `v4` or `v1beta`."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a header may hold (RFC 9110)."""


class Access:
    """A server's root address, and the headers that let one in. Its repr shows the address alone,
    and it does not pickle its key.

    `api` is where the paths below `/v1` are: there, unless the server's address says otherwise.
    """

    __slots__ = ("_api", "_headers", "root")

    def __init__(self, root: str, headers: Mapping[str, str], api: str | None = None) -> None:
        self.root = root
        self._api = f"{root}/v1" if api is None else api
        self._headers = dict(headers)

    def url(self, path: str) -> str:
        """The whole address of a path at this server.

        >>> Access("https://h/api/v4", {}, api="https://h/api/v4").url("/v1/models")
        'https://h/api/v4/models'
        """
        return self._api + path.removeprefix("/v1") if path.startswith("/v1/") else self.root + path

    def headers(self) -> Mapping[str, str]:
        """The headers of every request, the key among them."""
        return self._headers

    @property
    def who(self) -> tuple[str, str]:
        """The server, and a digest of the keys that it is asked with: it counts by both.

        >>> access = Access("http://h", {"Authorization": "Bearer a"})
        >>> access.who == Access("http://h", {"authorization": "Bearer a", "X-Team": "b"}).who
        True
        """
        from hashlib import blake2b  # importing pipegen loads no hashlib

        keys = sorted(
            (name.lower(), value) for name, value in self._headers.items() if _SECRET.search(name)
        )
        return self.root, blake2b(repr(keys).encode(), digest_size=16).hexdigest()

    def scrub(self, text: str) -> str:
        """The text without any header's value in it, in case that a server repeats them: as they
        are, in another case, or as URLs, JSON, HTML and base64 write them. Of a key, its first 8
        characters are enough.

        >>> access = Access("http://h", {"Authorization": "Bearer sk-1/2+3=4"})
        >>> access.scrub("no SK-1/2+3=4, sk-1%2F2%2B3%3D4, c2stMS8yKzM9NA== or sk-1/2+3...")
        'no ***, ***, *** or ***...'
        """
        places = sorted(
            place for form, enough in self._forms().items() for place in _places(text, form, enough)
        )
        out, end = "", 0
        for start, stop in places:
            if start >= end:
                out += text[end:start] + "***"
            end = max(end, stop)
        return out + text[end:]

    def scrubbed(self, error: GenerationError) -> GenerationError:
        """The error without any header's value in its words."""
        words = {
            name: self.scrub(value)
            for name in ("message", "hint", "refusal", "text")
            if isinstance(value := getattr(error, name, None), str)
        }
        changed = {name: value for name, value in words.items() if value != getattr(error, name)}
        return error.with_fields(**changed) if changed else error

    def _forms(self) -> dict[str, int]:
        """How the values of the headers may be written, and how many characters of each are enough
        to know it by.
        """
        forms: dict[str, int] = {}
        for name, value in self._headers.items():
            if name.lower() == "content-type":
                continue
            key = _SECRET.search(name) is not None
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) > 3 and secret != LOCAL_KEY:
                    for form in _spellings(secret):
                        most = len(form)
                        whole = not key or (secret is value and " " in value)
                        forms[form] = most if whole else min(most, PREFIX)
        return forms

    def __repr__(self) -> str:
        return f"Access(root={self.root!r})"

    def __reduce__(self) -> str:
        raise TypeError(
            "an Access holds a key and is not pickled: make the route again where it is needed"
        )


def _spellings(secret: str) -> set[str]:
    """A secret as others write it."""
    raw, quoted = secret.encode(), json.dumps(secret)[1:-1]
    forms = {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        html.escape(secret).replace("/", "&#x2F;"),
        quoted,
        quoted.replace("/", r"\/"),
        raw.hex(),
    }
    # within the base64 of a longer text a secret has one of three forms, but for its edges
    for before in range(3):
        start = -(-before * 8 // 6)
        whole = base64.b64encode(bytes(before) + raw).decode()
        inner = whole.rstrip("=")[start:]
        if (len(raw) + before) % 3:
            inner = inner[:-1]
        for form in (inner, whole[start:] if not before else inner):
            forms |= {form, form.replace("+", "-").replace("/", "_")}
    return {form for form in forms if len(form) > 3}


def _places(text: str, form: str, enough: int) -> Iterator[tuple[int, int]]:
    """Where a text has this form of a secret, or a beginning of it of `enough` characters."""
    rest = form[enough:].lower()
    for found in re.finditer(re.escape(form[:enough]), text, re.IGNORECASE | re.ASCII):
        end = found.end()
        same = itertools.takewhile(
            lambda pair: pair[0] == pair[1],
            zip(text[end : end + len(rest)].lower(), rest, strict=False),
        )
        yield found.start(), end + sum(1 for _ in same)


def addresses_of(base_url: str | None, default: str) -> tuple[str, str]:
    """The root of a server, and where its `/v1` is. Its address may be given with `/v1`, with a
    slash at the end, or not at all (the local default).

    An address that names a version of its own (`.../v4`, `.../v1beta/openai`) is where its paths
    are already. Raises `InvalidField` for another scheme than http and https, and for an address
    that holds a user, a password, a query or a fragment.

    >>> addresses_of("http://localhost:8000", "")
    ('http://localhost:8000', 'http://localhost:8000/v1')
    >>> addresses_of("https://example.org/api/v4/", "")[1]
    'https://example.org/api/v4'
    """
    if base_url is None:
        return default, f"{default}/v1"
    try:
        address = base_url.strip()
        parts = urlsplit(address)
        port = parts.port
    except (AttributeError, ValueError):
        raise InvalidField(
            "base_url takes the address of a server, such as 'http://localhost:8000'"
        ) from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == 0
        or any(c.isspace() or not c.isprintable() for c in address)
    ):
        raise InvalidField(
            "base_url takes an address that begins with http:// or https://, such as"
            " 'http://localhost:8000'"
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidField(
            "base_url takes an address without user, password, query and fragment: a key goes to"
            " api_key"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = (
        "/" + "/".join(part for part in parts.path.split("/") if part)
        if parts.path.strip("/")
        else ""
    )
    if path.endswith("/completions"):
        raise InvalidField(
            "base_url takes the address of a server without the path of a request: leave"
            " /chat/completions out"
        )
    top = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"
    if path.endswith("/v1"):
        return top + path.removesuffix("/v1"), top + path
    return top + path, top + path + (
        "" if any(_VERSION.fullmatch(part) for part in path.split("/")) else "/v1"
    )


def access_to(
    base_url: str | None,
    *,
    default: str,
    variable: str,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Access:
    """The access to a server: the key is `api_key`, else that of the environment variable, else
    `EMPTY`. Raises `InvalidField` as `addresses_of` does.
    """
    key = api_key or os.environ.get(variable) or LOCAL_KEY
    merged = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        **(headers or {}),
    }
    for name, value in merged.items():
        if (
            not isinstance(name, str)
            or not isinstance(value, str)
            or any(mark in value for mark in "\r\n\0")
            or not value.isascii()
        ):
            raise InvalidField(
                "headers (and the key) take a mapping of strings in ASCII, without line breaks"
            )
        if not _HEADER.fullmatch(name):
            raise InvalidField("headers take names of letters, digits and dashes, such as 'X-Team'")
    root, api = addresses_of(base_url, default)
    return Access(root, merged, api)
