"""What passes between two nodes: a connection to a port, and bytes a second. Ray-free."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from hymotion_ray.engine.doctor.faults import fault

_CONNECT_S = 5.0
_CHUNK = bytes(1 << 20)
_MAX_SECONDS = 5.0


class Listener:
    """A port of this node that takes connections and all bytes that come, and says when done."""

    def __init__(self, ip: str, port: int = 0) -> None:
        """ip, port: where to listen; 0: at any free port. OSError when somebody listens there."""
        self._socket = socket.create_server((ip, port))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=_drain, args=(connection,), daemon=True).start()


def can_reach(ip: str, port: int, name: str) -> str | None:
    """Why a port cannot be reached from here; None when it can. `name` is what it is for."""
    if name in (fault("blocked") or ()):
        return "blocked on purpose"
    try:
        with socket.create_connection((ip, port), timeout=_CONNECT_S):
            return None
    except OSError as error:
        return str(error) or type(error).__name__


def send(ip: str, port: int, num_bytes: int) -> float:
    """Gbit/s of so many bytes to a `Listener`, or of what five seconds allow.

    Raises OSError when the connection breaks.
    """
    with socket.create_connection((ip, port), timeout=_CONNECT_S) as connection:
        connection.settimeout(4 * _MAX_SECONDS)
        start, sent = time.perf_counter(), 0
        while sent < num_bytes and time.perf_counter() - start < _MAX_SECONDS:
            connection.sendall(_CHUNK)
            sent += len(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # all has come
        return sent * 8 / (time.perf_counter() - start) / 1e9


def _drain(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass
        connection.sendall(b".")
