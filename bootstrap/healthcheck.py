"""Ends with 0 when the node at this port of this machine speaks libp2p. A connection alone would prove nothing: the
kernel accepts it for a frozen process too.

    python healthcheck.py PORT
"""

import socket
import sys

GREETING = b"\x13/multistream/1.0.0\n"  # what both sides of a libp2p connection say first
TIMEOUT = 5.0  # seconds for each step


def greet(port: int) -> bytes:
    """What the node answers to our greeting."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.sendall(GREETING)
        with connection.makefile("rb") as answers:
            return answers.read(len(GREETING))


def main(port: int) -> None:
    try:
        answer = greet(port)
    except OSError as error:
        sys.exit(f"nothing answers at port {port}: {error}")
    if answer != GREETING:
        sys.exit(f"what answers at port {port} is not libp2p: {answer!r}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
