from __future__ import annotations

import socket
import threading

import pytest

from hymotion_ray.config.serve import HttpConfig
from hymotion_ray.engine import address
from hymotion_ray.engine.address import require_answer, require_keys, require_token, token_hint
from hymotion_ray.errors import ClusterError, ConfigError


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    """A user who has never heard of tokens."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("place", ["10.0.0.1:6379", "head.cluster", "auto", "[fd00::1]:6379"])
def test_a_cluster_that_others_can_reach_needs_a_token(no_token, monkeypatch, place):
    with pytest.raises(ClusterError, match=r"ray get-auth-token --generate"):
        require_token(place)
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # Ray takes an empty word as off
    with pytest.raises(ClusterError, match=r"RAY_AUTH_MODE=disabled"):
        require_token(place)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    require_token(place)
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    require_token(place)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    (no_token / ".ray").mkdir()
    (no_token / ".ray" / "auth_token").write_text("0" * 64)
    require_token(place)


@pytest.mark.parametrize("place", ["127.0.0.1:6379", "localhost:1", "[::1]:6379", "127.0.0.9"])
def test_loopback_needs_none(no_token, place):
    require_token(place)


def test_a_token_that_is_not_sent_is_thought_of(no_token, monkeypatch):
    assert "export RAY_AUTH_MODE=token" in token_hint()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert token_hint() == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "motion.example.com"])
def test_an_endpoint_that_others_can_reach_needs_keys(host):
    with pytest.raises(ConfigError, match=r"--new-key NAME") as caught:
        require_keys(HttpConfig(host=host))
    assert caught.value.exit_code == 2
    require_keys(HttpConfig(host=host, keys_file="keys.yaml"))
    require_keys(HttpConfig(host=host, open_to_all=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_an_endpoint_of_this_machine_alone_needs_none(host):
    require_keys(HttpConfig(host=host))


def test_a_closed_port_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ClusterError, match="refused"):
        require_answer(f"127.0.0.1:{port}")


def test_who_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(address, "_ANSWER_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(ClusterError, match=r"timed out \(asked for up to 0\.2 s\)"),
    ):
        require_answer(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n", b""])
def test_another_kind_of_server_is_told_from_ray(words):
    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        with pytest.raises(ClusterError, match="is no Ray: --address takes the head's own port"):
            require_answer(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.ray
def test_ray_answers(ray):
    require_answer(ray.get_runtime_context().gcs_address)
