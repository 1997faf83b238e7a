"""The health check of a bootstrap node's container."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bootstrap" / "healthcheck.py"


def check(port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, str(port)], capture_output=True, text=True, timeout=30)


def check_a_node_that_says(words: bytes) -> subprocess.CompletedProcess[str]:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        result = check(listener.getsockname()[1])
        server.join()
    return result


def test_a_node_that_greets_is_healthy() -> None:
    assert check_a_node_that_says(b"\x13/multistream/1.0.0\n").returncode == 0


@pytest.mark.parametrize("words", [b"", b"\x13/multistream/1.0", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_node_that_says_anything_else_is_not(words: bytes) -> None:
    result = check_a_node_that_says(words)

    assert result.returncode == 1
    assert "not libp2p" in result.stderr


def test_a_closed_port_is_told_in_one_line() -> None:
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        result = check(bound_but_not_listening.getsockname()[1])

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
