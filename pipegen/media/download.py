"""Download one image or video without access to private networks.

The host's name is resolved once, and all of its addresses must be public, unless the host is
allowed by name. The connection goes to an address that was checked, against DNS rebinding.
Redirects are checked the same way. Proxies of the environment are not used: the check would not
apply behind one.

>>> (
...     is_public("93.184.216.34"),
...     is_public("127.0.0.1"),
...     is_public("10.1.2.3"),
...     is_public("::ffff:192.168.0.1"),
... )
(True, False, False, False)
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from pipegen.media.source import SourceRejected, too_large
from pipegen.records.messages import shown

if TYPE_CHECKING:
    from pipegen.records.requests import ImagePolicy


MAX_REDIRECTS = 5
_CHUNK = 2**16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


def download(url: str, policy: ImagePolicy) -> bytes:
    """The body of an http or https URL, of at most `policy.max_bytes`, within `policy.timeout`
    seconds in all (without the DNS look-up).

    Raises `SourceRejected` unless there is a complete response with status 200 from an allowed
    address.
    """
    deadline = time.monotonic() + policy.timeout
    location = url
    for _ in range(MAX_REDIRECTS + 1):
        try:
            body, location = _get(location, policy, deadline)
        except (OSError, http.client.HTTPException, ValueError) as raised:
            # OSError: sockets, TLS and name look-ups. ValueError: a bad port, a host name beyond
            # IDNA (UnicodeError). Their messages may contain the URL.
            reason = (raised.strerror if isinstance(raised, OSError) else None) or type(
                raised
            ).__name__
            why = (
                f"no answer within {policy.timeout:g} seconds"
                if time.monotonic() >= deadline
                else reason
            )
            raise SourceRejected(
                f"{shown(location)} could not be fetched: {why}",
                "check the address, or fetch it yourself and pass the bytes",
            ) from None
        if body is not None:
            return body
    raise SourceRejected(f"{shown(url)} redirects more than {MAX_REDIRECTS} times")


def is_public(address: str) -> bool:
    """Whether an IP address is public; an IPv4 address within an IPv6 one counts as itself.

    >>> (
    ...     is_public("100.64.0.1"),
    ...     is_public("224.0.0.1"),
    ...     is_public("169.254.169.254"),
    ...     is_public("64:ff9b::7f00:1"),
    ... )
    (False, False, False, False)
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = (
            ip.ipv4_mapped
            or ip.sixtofour
            or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None)
        )
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not (
        ip.is_private or ip.is_multicast or ip.is_reserved or ip.is_unspecified
    )


def _get(url: str, policy: ImagePolicy, deadline: float) -> tuple[bytes | None, str]:
    """One request: the body and its URL, or None and the redirect's URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceRejected(f"{shown(url)} is not an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise SourceRejected(
            f"{shown(url)} has a user name or password, which are not sent",
            "fetch it yourself and pass the bytes",
        )
    addresses = _checked_addresses(
        parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), policy
    )
    connection = _Pinned(parts.hostname, parts.port, addresses, parts.scheme == "https", deadline)
    # Sockets time out between bytes; the timer limits the whole, for a server that sends them one
    # by one.
    timer = threading.Timer(_left(deadline), connection.hang_up)
    timer.daemon = True
    timer.start()
    try:
        target = quote(parts.path or "/", safe=_PATH_CHARACTERS) + (
            f"?{quote(parts.query, safe=_PATH_CHARACTERS + '?')}" if parts.query else ""
        )
        connection.request(
            "GET",
            target,
            headers={
                "User-Agent": "pipegen",
                "Accept": "image/*, video/*",
                "Accept-Encoding": "identity",
            },
        )
        with connection.getresponse() as response:
            if response.status in (301, 302, 303, 307, 308):
                return None, urljoin(url, response.getheader("Location") or "")
            if response.status != 200:
                raise SourceRejected(f"{shown(url)} returned status {response.status}")
            return _body(response, url, policy, deadline), url
    finally:
        timer.cancel()
        connection.close()


def _body(
    response: http.client.HTTPResponse, url: str, policy: ImagePolicy, deadline: float
) -> bytes:
    announced = response.length  # None if the body is chunked, or ends with the connection
    data = bytearray()
    while len(data) <= policy.max_bytes and (announced or 0) <= policy.max_bytes:
        _left(deadline)
        chunk = response.read(min(_CHUNK, policy.max_bytes + 1 - len(data)))
        if not chunk:
            break
        data += chunk
    else:
        raise too_large(shown(url), policy)
    _left(deadline)
    if announced is not None and len(data) < announced:
        raise SourceRejected(f"{shown(url)} ended after {len(data)} of {announced} bytes")
    return bytes(data)


def _left(deadline: float) -> float:
    seconds_left = deadline - time.monotonic()
    if seconds_left <= 0:
        raise TimeoutError("timed out")
    return seconds_left


def _checked_addresses(host: str, port: int, policy: ImagePolicy) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    allowed = host.lower().rstrip(".") in {
        name.lower().rstrip(".") for name in policy.allowed_hosts
    }
    if not allowed and not all(is_public(address) for address in addresses):
        raise SourceRejected(
            f"{host} has a private or reserved address",
            "add the host to ImagePolicy.allowed_hosts if you trust it",
        )
    return addresses


class _Pinned(http.client.HTTPConnection):
    """A connection to one of the checked addresses; the name is used for the Host header and
    TLS.
    """

    def __init__(
        self, host: str, port: int | None, addresses: list[str], tls: bool, deadline: float
    ) -> None:
        self.default_port = 443 if tls else 80
        super().__init__(host, port or self.default_port)
        self._addresses, self._tls, self._deadline = addresses, tls, deadline

    def connect(self) -> None:
        plain = self._reach()
        plain.settimeout(_left(self._deadline))
        self.sock = plain
        if self._tls:
            self.sock = ssl.create_default_context().wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()

    def _reach(self) -> socket.socket:
        for address in self._addresses[:-1]:
            try:
                return socket.create_connection((address, self.port), _left(self._deadline))
            except OSError:  # such as no route over IPv6: try the next address
                _left(self._deadline)
        return socket.create_connection((self._addresses[-1], self.port), _left(self._deadline))

    def hang_up(self) -> None:
        """Shut the socket down, from another thread."""
        if self.sock is not None:
            with contextlib.suppress(OSError):  # already closed
                # not TLS: its state belongs to the reading thread
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
