"""The process of a logger, as ``process.py`` starts it."""

import sys

from prime_p2p.monitor.loggers.serve import alone, serve

if __name__ == "__main__":
    sys.exit(serve(sys.stdin, alone()))
