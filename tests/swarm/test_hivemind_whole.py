"""All of hivemind, torch included, beside the half of it that the network loads."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_of_hivemind_can_be_imported_afterwards_and_uses_the_same_classes() -> None:
    program = """
import prime_p2p.network.node
from prime_p2p.network._hivemind import P2P, DHTNode
import hivemind, hivemind.dht, hivemind.p2p, hivemind.utils
from hivemind.dht import DHT
assert isinstance(hivemind.DecentralizedAverager, type) and hivemind.p2p.P2P is P2P
assert hivemind.dht.DHTNode is DHTNode and hivemind.DHT is DHT
assert hivemind.utils.get_dht_time() > 0 and hivemind.__version__
try:
    hivemind.no_such_name
except AttributeError as error:
    print(error)
"""
    assert run(program) == "module 'hivemind' has no attribute 'no_such_name'"


def test_a_hivemind_that_is_there_already_is_used_as_it_is() -> None:
    program = """
import hivemind.p2p
before = hivemind.p2p.P2P
from prime_p2p.network._hivemind import P2P
import sys
print(P2P is before, type(sys.modules["hivemind"]).__name__)
"""
    assert run(program) == "True module"
