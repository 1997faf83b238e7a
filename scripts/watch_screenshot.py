"""Make docs/images/watch.svg: a small run of real peers on this machine, seen by ``prime-p2p watch``.

    python scripts/watch_screenshot.py OUT.svg

Four peers train a model of some thousand parameters; later one joins late, and another is killed.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "swarm"))

from processes import network

from prime_p2p.watching.terminal.app import WatchApp
from prime_p2p.watching.watcher import Watcher, watching

SIZE = (100, 30)  # columns and lines
PATIENCE = 120.0  # seconds for each of what is waited for
SETTINGS = {"round.start_with": 4}


async def until(watcher: Watcher, outer_step: int, peers: int) -> None:
    """Wait until so many peers are there, and all of them are so far."""
    deadline, version = time.monotonic() + PATIENCE, 0
    while not (len(there := watcher.view.present) == peers and all(peer.outer_step >= outer_step for peer in there)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{peers} peers did not come to outer step {outer_step}: {watcher.view.present}")
        version = await watcher.change(version, 1.0)


async def screenshot() -> str:
    """The SVG."""
    with tempfile.TemporaryDirectory() as folder, network(Path(folder)) as (_, address, start):
        first = [start(f"peer-{number}", **SETTINGS) for number in range(4)]
        first[0].event("outer_step")
        async with watching([address], None) as watcher:
            app = WatchApp(watcher.view)
            async with app.run_test(size=SIZE) as pilot:
                await until(watcher, 8, 4)
                start("late", **SETTINGS)
                await until(watcher, 14, 5)
                first[3].process.kill()
                await until(watcher, 18, 4)
                await pilot.pause(2.0)
                drawn = app.export_screenshot(title="prime-p2p watch", simplify=True)
                return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # nothing is fetched to show it


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(uvloop.run(screenshot()))
