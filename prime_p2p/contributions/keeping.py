"""A peer's part in keeping the certificates of its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prime_p2p.contributions.exchange import Exchange
from prime_p2p.contributions.ledger import Ledger
from prime_p2p.swarm.swarm import Swarm

FILE_NAME = "certificates"


def keep_certificates(swarm: Swarm, directory: Path, step: Callable[[], int]) -> None:
    """Keep ours and those of others in ``directory``, and exchange them, as long as the swarm is open.

    ``step`` is the outer step of the state that this peer holds; it is called in the network thread. Raises OSError
    where the folder cannot be used.
    """
    exchange = Exchange(swarm.node, swarm.run, Ledger(directory / FILE_NAME, swarm.run), swarm.fellows, step)
    swarm.on_certificate = exchange.keep
    swarm.call(exchange.start())
