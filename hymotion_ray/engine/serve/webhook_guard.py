"""Where a webhook may go: no way into the server's own network (SSRF).

A URL's host is resolved once; every address it has must be a public one, and the connection goes to
the checked address itself, so that a name which answers differently the second time (DNS rebinding)
reaches nothing. Knows addresses and URLs; sends nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_URL_CHARS = 2048
PORTS = (443, 8443)
"""Ports of hosts that are not listed."""
_DEFAULT_PORTS = {"https": 443, "http": 80}
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?\.?", re.IGNORECASE)
_URL = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#\[\]@:]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>(?:[/?][\x21\x22\x24-\x7e]*)?)"  # all of ASCII but the sign of a fragment
)
# Not "global", or global in form and yet a way to somewhere else: NAT64, 6to4, Teredo, site-local,
# IPv4-compatible. Cloud metadata (169.254.169.254, fd00:ec2::254, 100.100.100.200) is not global.
_DETOURS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10", "::/96",
        "192.88.99.0/24", "168.63.129.16/32",
    )
)  # fmt: skip


class ForbiddenTargetError(Exception):
    """A URL that no webhook is sent to; the message says why."""


@dataclass(frozen=True)
class Target:
    """A checked URL: `address` is the only one to connect to."""

    scheme: str
    host: str
    port: int
    rest: str
    address: Address

    @property
    def pinned_url(self) -> str:
        """The URL with the address in the place of the name."""
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{self.scheme}://{host}:{self.port}{self.rest or '/'}"

    @property
    def host_header(self) -> str:
        """What the receiver is called by."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def system_resolver(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True)
class Guard:
    """Which targets are allowed."""

    allowed_hosts: tuple[str, ...] = ()
    """Hosts, or host:port, that may be private and plain http, such as one inside the cluster."""
    resolver: Callable[[str, int], Sequence[str]] = field(default=system_resolver, repr=False)

    def parse(self, url: str) -> tuple[str, str, int, str]:
        """Scheme, host, port and rest of a URL that may be asked for; nothing is resolved.

        `ForbiddenTargetError` for what `resolve` would refuse whatever the host's addresses are:
        used when a request comes in, so that the client hears of it at once.
        """
        if len(url) > MAX_URL_CHARS:
            raise ForbiddenTargetError(f"the URL is longer than {MAX_URL_CHARS} characters")
        match = _URL.fullmatch(url)
        if match is None:
            raise ForbiddenTargetError(
                "the URL cannot be read; allowed: scheme://host[:port]/path, in ASCII, without a"
                " user name, password or fragment"
            )
        scheme, host = match["scheme"].lower(), match["host"].strip("[]").rstrip(".").lower()
        if scheme not in _DEFAULT_PORTS:
            raise ForbiddenTargetError(f"scheme {scheme}; allowed: https")
        port = int(match["port"] or _DEFAULT_PORTS[scheme])
        literal = _literal(host)
        if literal is None and (not _HOST.fullmatch(host) or _looks_numeric(host)):
            raise ForbiddenTargetError("the host is neither a name nor a plain IP address")
        if not self._is_listed(host, port):
            if scheme != "https":
                raise ForbiddenTargetError(f"scheme {scheme}; allowed: https")
            if port not in PORTS:
                allowed = ", ".join(str(one) for one in PORTS)
                raise ForbiddenTargetError(f"port {port}; allowed: {allowed}")
            if literal is not None:
                _require_public(literal)
        return scheme, host, port, match["rest"]

    def resolve(self, url: str) -> Target:
        """The one address to connect to; every address of the host must be allowed.

        `ForbiddenTargetError` as `parse`, and for an address that is not public; `OSError` when the
        host does not resolve.
        """
        scheme, host, port, rest = self.parse(url)
        literal = _literal(host)
        texts = [host] if literal is not None else list(self.resolver(host, port))
        if not texts:
            raise OSError("the host has no address")
        addresses = []
        for text in texts:
            address = _literal(text.partition("%")[0])
            if address is None:
                raise ForbiddenTargetError("the host's address cannot be read")
            if not self._is_listed(host, port):
                _require_public(address)
            addresses.append(address)
        return Target(scheme, host, port, rest, addresses[0])

    def _is_listed(self, host: str, port: int) -> bool:
        bare = f"[{host}]" if ":" in host else host
        return bool({host, f"{bare}:{port}"} & {one.lower() for one in self.allowed_hosts})


def _require_public(address: Address) -> None:
    plain = _unmapped(address)
    detour = any(plain in network for network in _DETOURS if network.version == plain.version)
    if detour or not plain.is_global or plain.is_multicast or plain.is_reserved:
        raise ForbiddenTargetError(
            f"{address} is not a public address; whoever runs the server can allow its host"
        )


def _literal(text: str) -> Address | None:
    """An address in its plain form; odd ones (0x7f.1, 2130706433, 127.1) are not taken."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _looks_numeric(host: str) -> bool:
    """Whether a resolver might take a host for an address in an old form: octal, hex, short."""
    last = host.rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


def _unmapped(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
