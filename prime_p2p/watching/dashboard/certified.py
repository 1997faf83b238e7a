"""What groups have signed of who contributed what: collected from the peers now and then, for the page of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prime_p2p.contributions.shares import Share, shares
from prime_p2p.errors import Unreachable
from prime_p2p.network.deadline import within
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.watching.watcher import Watcher

logger = logging.getLogger(__name__)

EVERY = 30.0  # seconds between two collections
DEADLINE = 120.0  # seconds for one
MOST = 2000  # outer steps that are looked back over
AGAIN = 16  # of the newest outer steps that are collected once more: peers exchange certificates a while later


@dataclass(frozen=True)
class Certified:
    """The shares of the peers, the largest first, in the outer steps from ``first`` to ``last``."""

    shares: Sequence[Share] = ()
    first: int = 0
    last: int = 0


NOTHING = Certified()


class Certificates:
    """Those of the last outer steps, as far as they were collected; ``certified`` is what they add up to."""

    def __init__(self, watcher: Watcher) -> None:
        self.certified = NOTHING
        self._watcher = watcher
        self._found: dict[int, Certificate] = {}

    async def keep(self) -> None:
        """Collect them now and then, for ever."""
        while True:
            try:
                await within(DEADLINE, self._collect())
            except (Unreachable, asyncio.TimeoutError) as reason:
                logger.info("no certificates: %s", reason)
            except Exception:
                logger.exception("certificates cannot be collected; trying again")
            await asyncio.sleep(EVERY)

    async def _collect(self) -> None:
        oldest = max(1, self._watcher.view.outer_step - MOST)
        for certificate in await self._watcher.certificates(max(oldest, self.certified.last - AGAIN)):
            self._found[certificate.group.step + 1] = certificate
        self._found = {step: self._found[step] for step in sorted(self._found) if step >= oldest}
        if self._found:
            found = await asyncio.to_thread(shares, list(self._found.values()))
            self.certified = Certified(found, min(self._found), max(self._found))
