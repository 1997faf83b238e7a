"""The process of a rank that rank 0 has started, with the number of the rank and the descriptor of a socket."""

import socket
import sys

from prime_p2p.training.ranks.worker import serve

rank, descriptor = map(int, sys.argv[1:])
sys.exit(serve(socket.socket(fileno=descriptor), rank))
