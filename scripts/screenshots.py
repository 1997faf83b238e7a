"""Makes the pictures of the dashboard that the documentation shows, from a run of the tiny recipe.

python scripts/screenshots.py [--seconds 90] [--peers 4] [--out docs/images]

Publishes a run on this machine, has peers train in it for that long, kills one of them towards the end, and takes
pictures in Debian's chromium, driven by playwright (the extra `dev`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "prime_p2p.cli")
KILLED_FOR = 12.0  # seconds between the end of a peer and the pictures: the page has to say so
CHANGES = ("run.outer_steps=0", "round.inner_steps=20", "inner.warmup_steps=20", "eval.sequences=32")
PATIENCE = 60_000  # milliseconds for a page


@dataclass(frozen=True)
class Picture:
    """A page as it is shown on a screen."""

    name: str
    width: int
    height: int
    scheme: str
    of_a_peer: bool = False


PICTURES = (
    Picture("dashboard", 1000, 1480, "light"),
    Picture("dashboard-dark", 1000, 1000, "dark"),
    Picture("dashboard-phone", 360, 1400, "light"),
    Picture("dashboard-peer", 1000, 1100, "light", of_a_peer=True),
)


@contextmanager
def process(*arguments: str, output: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """A command of prime-p2p, which is ended at the end."""
    started = subprocess.Popen([*COMMAND, *arguments], stdout=output, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def first_line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    line = started.stdout.readline().strip()
    assert line, f"{started.args} ended"
    return line


def published(folder: Path, bootstrap: str) -> str:
    """The address of a new run."""
    sets = [f"--set={change}" for change in CHANGES]
    place = ["--name", "demo", "--key", str(folder / "author.key"), "--bootstrap", bootstrap]
    done = subprocess.run(
        [*COMMAND, "publish", str(ROOT / "peers" / "tiny.toml"), *place, *sets],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return next(word for word in done.stdout.split() if "/run/" in word)


def take(browser: Browser, url: str, out: Path) -> None:
    for picture in PICTURES:
        size = {"width": picture.width, "height": picture.height}
        page = browser.new_page(viewport=size, color_scheme=picture.scheme)  # type: ignore[arg-type]
        page.goto(url)
        if picture.of_a_peer:
            page.locator("#peers a").first.click()
            page.wait_for_url("**/peer/*", timeout=PATIENCE)
        page.wait_for_timeout(1500)
        page.screenshot(path=out / f"{picture.name}.png")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        key = ["--identity", str(folder / "bootstrap.key")]
        bootstrap = opened.enter_context(process("bootstrap", "--host", "127.0.0.1", "--port", "0", *key))
        address = published(folder, first_line(bootstrap))
        peers = []
        for number in range(1, chosen.peers + 1):
            place = ["--dir", str(folder / f"peer-{number}"), "--host", "127.0.0.1", "--threads", "1"]
            peer = process("join", address, "--yes", *place, "--port", "0", output=subprocess.DEVNULL)
            peers.append(opened.enter_context(peer))
        dashboard = opened.enter_context(process("dashboard", address, "--port", "0"))
        url = first_line(dashboard)
        time.sleep(chosen.seconds)
        peers[-1].kill()
        time.sleep(KILLED_FOR)
        playwright = opened.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        opened.callback(browser.close)
        take(browser, url, chosen.out)


if __name__ == "__main__":
    main()
