"""Whether a Ray cluster may be joined, and an endpoint may listen, at an address. Ray-free."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

from hymotion_ray.config.serve import HttpConfig
from hymotion_ray.errors import ClusterError, ConfigError

_ANSWER_S = 10.0
_PORT = 6379
# The client's preface with empty settings, and the kind of frame that every server sends first:
# RFC 9113, 3.4 and 6.5. Ray's own way of asking retries for minutes.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def require_token(address: str) -> None:
    """Raise `ClusterError` for a cluster beyond this machine's loopback that no token protects.

    A token is one where Ray looks for it: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token.
    RAY_AUTH_MODE, when it says anything, is the user's own decision.
    """
    if os.environ.get("RAY_AUTH_MODE") or _is_loopback(_host_and_port(address)[0]):
        return
    by_name = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not by_name and not (Path.home() / ".ray" / "auth_token").is_file():
        raise ClusterError(
            f"the Ray cluster {address!r} can be reached from other machines and no token is set:"
            " whoever reaches its ports runs code there. Make one with `ray get-auth-token"
            " --generate`, copy ~/.ray/auth_token to every node and start Ray there again"
            " (cluster/README.md); RAY_AUTH_MODE=disabled goes on without"
        )


def token_hint() -> str:
    """What else a refused connection may mean: Ray sends its token only where it is told to."""
    if os.environ.get("RAY_AUTH_MODE"):
        return ""
    return "; if that cluster asks for a token, `export RAY_AUTH_MODE=token` and try again"


def require_keys(http: HttpConfig) -> None:
    """Raise `ConfigError` for an endpoint beyond this machine's loopback that asks for no key."""
    if http.keys_file is not None or http.open_to_all or _is_loopback(http.host.strip("[]")):
        return
    raise ConfigError(
        f"the endpoint would listen on {http.host!r}, where other machines reach it, without keys:"
        f" whoever reaches port {http.port} has its GPUs. Make a key with `hymotion-ray serve"
        " --new-key NAME` and name the file of keys (--keys FILE, http.keys_file), or listen on"
        " 127.0.0.1; where something else keeps strangers out, --set http.open_to_all=true"
    )


def require_answer(address: str) -> None:
    """Raise `ClusterError` within seconds when nobody, or no Ray, answers at host:port.

    Other forms of address (`auto`) are left to Ray, and so are ports that want TLS.
    """
    host, port = _host_and_port(address)
    if host is None or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
            connection.settimeout(_ANSWER_S)
            connection.sendall(_HELLO)
            answer = connection.recv(4, socket.MSG_WAITALL)
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster at {address!r}: {error} (asked for up to {_ANSWER_S:g} s). Is its head"
            " node up, and the port open to this machine? Start one with `ray start --head`, or"
            " leave --address out to run on this machine"
        ) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise ClusterError(
            f"what answers at {address!r} is no Ray: --address takes the head's own port, 6379"
            " unless told otherwise, and not the dashboard's (8265)"
        )


def _host_and_port(address: str) -> tuple[str | None, int]:
    """Of host:port or [v6]:port; no host for `auto` and for addresses with a scheme."""
    if "://" in address or address == "auto":
        return None, 0
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        host, port = address, str(_PORT)
    return host.strip("[]"), int(port)


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
