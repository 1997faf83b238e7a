"""``prime-p2p dashboard`` against real peers, in a real browser."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import nodes
from playwright.sync_api import Browser, Page, sync_playwright
from processes import COMMAND, PATIENCE, RECIPE, Process
from told_peers import told_peers

from prime_p2p.network.identity import Identity
from prime_p2p.public import manifest_records
from prime_p2p.public.manifest import Manifest, SignedManifest
from prime_p2p.recipe import Recipe

EVIL = "<img src=x onerror=alert(1)>"
EVIL_SOURCE = "<script>alert(2)</script>"
LOST_WITHIN = 15_000  # milliseconds from a peer's sudden end until the page must say so
SILENCE = 30_000  # after which a page takes its connection for dead
PATIENT = 1000 * PATIENCE  # the same for all else


def published(folder: Path, address: str, signed: SignedManifest) -> None:
    """Put a manifest into the DHT that a peer is in."""

    async def put(swarm: nodes.Swarm) -> None:
        assert await manifest_records.put(await swarm.node("publisher", address), signed, 600.0)

    nodes.run(put)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        try:
            yield started
        finally:
            started.close()


class Watch:
    """What a page asked for, and complained of."""

    def __init__(self, page: Page) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))


def test_a_browser_shows_a_public_run_as_it_goes_on_and_what_strangers_say_stays_text(tmp_path: Path) -> None:
    author = Identity.load_or_create(tmp_path / "author.key")
    recipe = Recipe.load(RECIPE, [f"data.source={EVIL_SOURCE}"]).model_dump(mode="json")
    fields = {"name": "tiny", "author": author.peer_id, "sequence": 1, "issued_at": 1.0, "initial_state": bytes(32)}
    signed = SignedManifest.sign(Manifest.model_validate(fields | {"recipe": recipe}), author)
    run = signed.manifest.run
    with (
        told_peers(tmp_path / "stays", run, 2) as (_, address),
        told_peers(tmp_path / EVIL, run, 1, address, location="52.52,13.4") as (hostile, _),
    ):
        published(tmp_path, address, signed)
        dashboard = Process("dashboard", f"{address}/run/{run}", "--port", "0")
        try:
            url = dashboard.line()
            with browser() as started:
                allowed = started.new_context(permissions=["clipboard-read", "clipboard-write"])
                page = allowed.new_page()
                page.clock.install()
                seen = Watch(page)
                look_at_the_run(page, url, f"{address}/run/{run}")
                look_at_the_hostile_peer(page, url, hostile)
                assert (seen.complaints, [one for one in seen.asked if not one.startswith(url)]) == ([], [])
                assert f"{url}events" in seen.asked

                look_at_a_dead_connection(page, dashboard)
                dashboard.signal(signal.SIGINT)
                page.wait_for_selector("text=Not connected to the dashboard since", timeout=PATIENT)
            assert (dashboard.wait(), dashboard.stderr) == (130, "")
        finally:
            dashboard.end()


def look_at_the_run(page: Page, url: str, address: str) -> None:
    page.goto(url)
    row = page.locator("#peers tr", has_text=EVIL)
    row.wait_for(timeout=PATIENT)
    step = int(row.locator("td").nth(2).inner_text())
    changed = (
        "step => [...document.querySelectorAll('#peers tbody tr')].length === 3 && "
        "[...document.querySelectorAll('#peers tbody tr')].every(row => Number(row.cells[2].textContent) > step)"
    )
    page.wait_for_function(changed, arg=step, timeout=PATIENT)
    assert page.locator("img").count() == 0

    page.locator("#about summary").click()
    assert EVIL_SOURCE in page.locator("#about pre").inner_text()
    page.locator("button[data-copy]").click()
    page.wait_for_selector("text=Copied", timeout=PATIENT)
    assert page.evaluate("navigator.clipboard.readText()") == address
    for part in ("losses", "speed", "crowd", "phases", "traffic"):
        assert page.locator(f"#{part} svg:visible").count() == 1
    assert page.locator(".qr").count() == 1
    spot = page.locator("#map .spot:visible")
    assert spot.locator("title").text_content() == f"{EVIL}-0: 53° N, 13° E"

    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator("#losses svg.narrow").is_visible()
    assert spot.is_visible()


def look_at_the_hostile_peer(page: Page, url: str, process: subprocess.Popen[str]) -> None:
    page.locator("#peers a", has_text=EVIL).click()
    page.wait_for_url("**/peer/*", timeout=PATIENT)
    assert page.locator("h1").inner_text() == f"{EVIL}-0"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    peer_id = page.url.rpartition("/")[2]
    with urlopen(f"{url}api/peers/{peer_id}", timeout=PATIENCE) as answer:
        assert json.load(answer)["name"] == f"{EVIL}-0"
    process.kill()
    page.wait_for_selector("#figures .bad >> text=lost", timeout=LOST_WITHIN)
    page.wait_for_selector("#events >> text=is gone without a word", timeout=LOST_WITHIN)
    page.locator("nav a").click()
    page.locator("#map svg").wait_for(state="detached", timeout=PATIENT)


def look_at_a_dead_connection(page: Page, dashboard: Process) -> None:
    """Nothing comes, and nothing fails either."""
    dashboard.signal(signal.SIGSTOP)
    page.clock.fast_forward(SILENCE)
    page.wait_for_selector("text=Not connected to the dashboard since", timeout=PATIENT)
    dashboard.signal(signal.SIGCONT)
    page.wait_for_selector(".banner", state="hidden", timeout=PATIENT)


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path) -> None:
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.load_or_create(tmp_path / 'key').peer_id}"

    def complaint(*arguments: str) -> tuple[int, str]:
        done = subprocess.run([*COMMAND, "dashboard", *arguments], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = complaint("--bootstrap", nobody, "--port", port)
        assert (code, f"port {port}" in said, "give another --port" in said) == (2, True, True)
    assert complaint("--bootstrap", nobody, "--port", "0")[0] == 3
    with told_peers(tmp_path / "told", "demo", 1) as (_, address):
        code, said = complaint("--bootstrap", address, "--run", "another", "--port", "0")
        assert (code, said) == (2, "prime-p2p: run another is not known there; known are: demo\n")
