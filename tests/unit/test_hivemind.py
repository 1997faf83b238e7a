"""Loading the network half of hivemind: without torch, and without its noise."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_network_is_loaded_without_torch() -> None:
    program = """
import sys
from prime_p2p.network import frames, identity, loop, node, records, streams
print({"torch", "scipy", "transformers"} & set(sys.modules))
"""
    assert run(program) == "set()"


def test_hivemind_says_nothing_below_a_warning_and_through_the_handlers_of_whoever_listens() -> None:
    program = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
import prime_p2p.network.node
log = logging.getLogger("hivemind.p2p.p2p_daemon")
log.info("quiet")
log.warning("loud")
"""
    assert run(program) == "WARNING hivemind.p2p.p2p_daemon loud"
