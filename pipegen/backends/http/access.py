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

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pipegen.records.fields import InvalidField

__all__ = ["Access", "access_to", "addresses_of"]

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

    def scrub(self, text: str) -> str:
        """The text without any header's value in it, in case that a server repeats them."""
        for value in self._headers.values():
            for secret in {value, value.rpartition(" ")[2]}:
                if len(secret) > 3 and secret != LOCAL_KEY:
                    text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"Access(root={self.root!r})"

    def __reduce__(self) -> str:
        raise TypeError(
            "an Access holds a key and is not pickled: make the route again where it is needed"
        )


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
