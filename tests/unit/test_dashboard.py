"""The web page of a run: what is on it, that texts of others stay texts, and who may ask for it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import uvloop
from aiohttp.test_utils import TestClient, TestServer
from certificates import ANNE, BOB, EVE, certificate
from public_runs import TINY, author, signed
from watched_runs import START, beat, digest, made, now, peer_id, run_of

from prime_p2p.errors import BadInput
from prime_p2p.public.manifest import ChangeEntry
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.watching.dashboard import about, server
from prime_p2p.watching.dashboard.certified import AGAIN, Certificates
from prime_p2p.watching.dashboard.contributions import contributions
from prime_p2p.watching.dashboard.feed import Feed, Reader
from prime_p2p.watching.dashboard.groups import groups
from prime_p2p.watching.dashboard.history import MOST, History, Sample
from prime_p2p.watching.dashboard.overview import SILENT, overview
from prime_p2p.watching.dashboard.peer_page import peer_page
from prime_p2p.watching.dashboard.server import Dashboard, bound, is_ours
from prime_p2p.watching.view import ODD_LOOKS, Event, RunView

PATIENCE = 20.0  # seconds: far above what is needed, since the machine may be busy
ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWBootstrap"
EVIL = "<script>alert(1)</script>\"'&<img src=x>"
VOID = frozenset(("meta", "br", "link", "img"))


class Tags(HTMLParser):
    """Notes every tag, and that all that were opened are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(view: RunView, now: float = START + 1) -> dict[str, str]:
    return overview(view, History(), None, ADDRESS, now)


class Watched:
    """A watcher of a run that is made up, which changes when it is told to."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.signed = None
        self.found: list[Certificate] = []
        self.asked: list[int] = []

    async def certificates(self, since: int) -> list[Certificate]:
        self.asked.append(since)
        return [one for one in self.found if one.group.step + 1 >= since]

    async def change(self, since: int, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.view.version == since and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return self.view.version


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def with_dashboard(view: RunView, test: Callable[[TestClient[Any, Any], Dashboard], Awaitable[None]]) -> None:
    async def whole() -> None:
        dashboard = Dashboard(Watched(view), [ADDRESS], "dash.example")  # type: ignore[arg-type]
        async with TestClient(TestServer(dashboard.application())) as client:
            keeping = asyncio.create_task(dashboard.keep())
            try:
                await asyncio.wait_for(test(client, dashboard), PATIENCE)
            finally:
                keeping.cancel()

    uvloop.run(whole())


@pytest.mark.parametrize("peers", [0, 1, 8, 9, 120])
def test_the_parts_are_well_formed_for_any_number_of_peers(peers: int) -> None:
    parts = shown(run_of(peers) if peers else RunView("demo"))
    for html in parts.values():
        Tags(html)
        for drawing in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
            ElementTree.fromstring(drawing)
    assert f"{peers} peer" in Tags(parts["headline"]).text


def test_the_figures_of_a_run_are_on_its_page() -> None:
    view = run_of(3, steps=4)
    view.heard(peer_id(0), [made(5, (peer_id(0),), val_loss=2.25)], START + 1)
    parts = {name: Tags(html).text for name, html in shown(view).items()}
    assert "2.2500" in parts["figures"]
    assert "of the anchor at outer step 5" in parts["figures"]
    assert "3,003" in parts["figures"]  # tokens a second
    assert "160,000" in parts["figures"]  # of the heartbeat that says most
    assert "91.0%" in parts["figures"]
    assert f"--bootstrap {ADDRESS}" in parts["join"]
    assert "peer-1" in parts["peers"]
    assert "peer-2 is there" in parts["events"]


def test_texts_of_others_stay_texts() -> None:
    view = RunView("demo")
    hostile = beat(0, 1, START, name=EVIL, state="<b>", addresses=[EVIL])
    view.looked({peer_id(0): hostile, peer_id(1): beat(1, 1, START)}, START)
    view.heard(peer_id(0), [made(1, (peer_id(0), EVIL)), made(2, (peer_id(0),))], START)
    view.events.append(Event(99, START, EVIL, peer_id(0), EVIL))
    for parts in (shown(view), peer_page(view, view.peers[peer_id(0)])):
        for html in parts.values():
            tags = {tag for tag, _ in Tags(html).tags}
            assert tags.isdisjoint({"script", "img"})
            assert not {name for _, attributes in Tags(html).tags for name in attributes if name.startswith("on")}
        assert sum(EVIL in Tags(html).text for html in parts.values()) >= 3


def test_a_public_run_shows_its_address_and_what_its_author_has_signed_as_text(tmp_path: Path) -> None:
    by = author(tmp_path)
    source = f"data.source={EVIL.split('/')[0]}"
    recipe = Recipe.load(TINY, [source]).model_dump(mode="json")
    pause = {"at": 3, "values": {"inner.learning_rate": 0.5}, "phase": "pause"}
    by_author = signed(by, recipe=recipe, changes=[ChangeEntry.model_validate(pause)])
    view = run_of(2, steps=4, run=by_author.manifest.run)
    address = about.address(view.run, [ADDRESS], by_author)
    parts = overview(view, History(), by_author, address, START + 1)
    assert address == f"{ADDRESS}/run/{view.run}"
    assert address in Tags(parts["join"]).text
    assert parts["join"].count("<svg") == 1
    assert "is paused" in parts["headline"]
    told = Tags(parts["about"])
    assert by.peer_id in told.text
    assert "<script>alert(1)<" in told.text
    assert "learning_rate = 0.5" in told.text
    assert "script" not in {tag for tag, _ in told.tags}
    elsewhere = signed(by, bootstraps=["/ip4/198.51.100.1/tcp/31337/p2p/12D3KooWOther"])
    assert about.address(view.run, [ADDRESS], elsewhere).startswith("/ip4/198.51.100.1/")


@pytest.mark.parametrize("loss", [-1e30, 1e30])
def test_no_figure_that_a_peer_may_tell_breaks_a_page(loss: float) -> None:
    view = run_of(3, steps=20)
    extremes = {"train_loss": loss, "val_loss": loss, "tokens": 2**63 - 1, "bytes_sent": 2**63 - 1}
    far = [made(2**63 - 1 - step, (peer_id(0),), **extremes) for step in range(200)]
    view.heard(peer_id(0), [*far, now(0, 2**63 - 1, loss=loss, tokens_per_second=1e15, inner_steps=0)], START)
    for parts in (shown(view), peer_page(view, view.peers[peer_id(0)])):
        for html in parts.values():
            Tags(html)


def test_peers_that_give_themselves_one_name_are_told_apart() -> None:
    view = run_of(3, steps=3)
    view.looked({peer_id(1): beat(1, 3, START + 1, name="PEER-0")}, START + 1)
    parts = shown(view)
    for part in ("losses", "groups", "peers", "contributions"):
        text = Tags(parts[part]).text
        assert f"peer-0 …{peer_id(0)[-6:]}" in text
        assert f"PEER-0 …{peer_id(1)[-6:]}" in text
        assert "peer-2 …" not in text
    assert f"PEER-0 …{peer_id(1)[-6:]}" in peer_page(view, view.peers[peer_id(0)])["steps"]


def test_contributions_are_what_groups_have_signed_as_soon_as_there_are_certificates() -> None:
    watched = Watched(run_of(2, steps=3))
    certificates = Certificates(watched)  # type: ignore[arg-type]

    async def collect() -> None:
        await certificates._collect()

    asyncio.run(collect())
    assert "as far as seen here" in contributions(watched.view, certificates.certified)
    watched.found = [certificate(step, {ANNE: 100, BOB: 300}) for step in range(40)] + [certificate(40, {EVE: 10**9})]
    asyncio.run(collect())
    told = Tags(contributions(watched.view, certificates.certified)).text
    assert "have signed for, outer steps 1 to 41." in told
    for peer, share in ((BOB, "12,00075.0%"), (ANNE, "4,00025.0%")):
        assert f"…{peer.peer_id[-8:]}{share}" in told
    assert EVE.peer_id[-8:] not in told
    asyncio.run(collect())
    assert watched.asked == [1, 1, 41 - AGAIN]
    assert certificates.certified.first == 1


def test_the_groups_say_who_was_in_them_and_who_holds_another_result() -> None:
    view = RunView("demo")
    view.looked({peer_id(number): beat(number, 2, START) for number in range(4)}, START)
    group = tuple(peer_id(number) for number in range(3))
    for number in (0, 1):
        view.heard(peer_id(number), [made(1, group), made(2, group)], START)
    view.heard(peer_id(3), [made(1, (peer_id(3),), digest=digest(7).hex())], START)
    rows = re.findall(r"<tr><th scope=row>(.*?)</th>(.*?)</tr>", groups(view))
    cells = {name: "".join(re.findall(r">(.)</td>", row)) for name, row in rows}
    assert cells == {"peer-0": "●●", "peer-1": "●●", "peer-2": "○○", "peer-3": "◆·"}


def test_a_fork_and_a_silent_network_are_said_on_top() -> None:
    view = run_of(3)
    assert shown(view)["notices"] == ""
    for look in range(1, ODD_LOOKS + 1):
        beats = {peer_id(number): beat(number, 41, START + look) for number in range(3)}
        beats[peer_id(0)] = beat(0, 41, START + look, digest=digest(9))
        view.looked(beats, START + look)
    assert "1 of 3 peers hold another state" in shown(view)["notices"]
    assert "The network has not answered" in shown(view, view.looked_at + SILENT + 1)["notices"]


def test_a_history_keeps_a_bounded_number_of_samples_and_their_mean() -> None:
    history = History(gap=1.0)
    for second in range(10 * MOST):
        history.add(Sample(float(second), 100.0, 4.0))
        history.add(Sample(second + 0.5, 0.0, 0.0))  # too soon
    times = [sample.at for sample in history.samples]
    assert MOST // 2 <= len(times) <= MOST
    assert times == sorted(times)
    assert times[0] < 16
    assert {sample.tokens_per_second for sample in history.samples} == {100.0}


def test_a_page_is_rendered_once_in_a_turn_for_all_who_read_it_and_sent_where_it_has_changed() -> None:
    rendered: list[str] = []
    values = {"one": "1", "two": "2"}

    def render(name: str) -> dict[str, str] | None:
        rendered.append(name)
        return None if name == "gone" else dict(values)

    async def test() -> None:
        feed = Feed(render)
        first, second = Reader(feed, "page"), Reader(feed, "page")
        news = first.news()
        assert news is not None
        assert [json.loads(line[6:])["part"] for line in news.decode().split("\n\n") if line] == ["one", "two"]
        assert second.news() == news
        assert first.news() == b""
        assert rendered == ["page"]
        values["two"] = "a\nb</script>"
        feed.turn()
        news = first.news()
        assert news is not None
        assert news.count(b"\n") == 2
        assert json.loads(news[6:])["html"] == "a\nb</script>"
        assert second.news() == news
        assert rendered == ["page", "page"]
        assert Reader(feed, "gone").news() is None

    asyncio.run(test())


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("[::1]:8080", True),
        ("192.0.2.7", True),
        ("Dash.example:8080", True),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example@127.0.0.1.nip.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_names_that_nobody_else_can_have_lead_to_the_page(asked: str, ours: bool) -> None:
    assert is_ours(asked, "dash.example") is ours


def test_pages_and_data_are_served_with_headers_that_keep_browsers_safe() -> None:
    view = run_of(2, steps=3)

    async def test(client: TestClient[Any, Any], dashboard: Dashboard) -> None:
        for path in ("/", f"/peer/{peer_id(1)}"):
            page = await client.get(path)
            text = await page.text()
            assert page.status == 200
            tags = Tags(text).tags
            assert not [attributes for _, attributes in tags if "style" in attributes]
            loaded = [attributes.get("src") or attributes.get("href") for tag, attributes in tags if tag != "a"]
            names = {one.removeprefix("../") for one in loaded if one}
            assert names == {"icon.svg", "style.css", "live.js"}
            for name in names:
                assert (await client.get(f"/{name}")).status == 200
            policy = page.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert page.headers["X-Content-Type-Options"] == "nosniff"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            assert page.headers["Cache-Control"] == "no-store"
            assert "Server" not in page.headers
        run = await (await client.get("/api/run")).json()
        assert (run["name"], run["outer_step"], run["address"], run["manifest"]) == ("demo", 3, ADDRESS, None)
        assert [peer["name"] for peer in await (await client.get("/api/peers")).json()] == ["peer-0", "peer-1"]
        peer = await (await client.get(f"/api/peers/{peer_id(1)}")).json()
        assert [step["outer_step"] for step in peer["steps"]] == [1, 2, 3]
        assert [one["outer_step"] for one in await (await client.get("/api/rounds")).json()] == [1, 2, 3]
        events = await (await client.get("/api/events?after=1")).json()
        assert [event["text"] for event in events] == ["peer-1 is there"]

    with_dashboard(view, test)


def test_what_is_not_there_or_not_allowed_is_refused_in_plain_text() -> None:
    async def test(client: TestClient[Any, Any], dashboard: Dashboard) -> None:
        for path, status in (
            ("/nothing", 404),
            ("/peer/unknown", 404),
            ("/api/peers/unknown", 404),
            ("/events?peer=unknown", 404),
            ("/api/events?after=x", 400),
            ("/api/events?after=%C2%B2", 400),
        ):
            answer = await client.get(path)
            assert (answer.status, answer.content_type) == (status, "text/plain")
            assert "Content-Security-Policy" in answer.headers
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await client.request(method, "/")).status == 405
        assert (await client.head("/")).status == 200
        rebound = await client.get("/api/run", headers={"Host": "evil.example"})
        assert rebound.status == 403
        assert "demo" not in await rebound.text()

    with_dashboard(run_of(1), test)


def test_a_reader_is_sent_what_changes_and_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_READERS", 2)
    monkeypatch.setattr(server, "PACE", 0.01)
    view = run_of(2)

    async def test(client: TestClient[Any, Any], dashboard: Dashboard) -> None:
        run = await client.get("/events")
        peer = await client.get(f"/events?peer={peer_id(1)}")
        assert (await client.get("/events")).status == 503
        assert run.headers["Content-Type"] == "text/event-stream"
        view.heard(peer_id(1), [now(1, 40, loss=0.0625)], START + 1)
        for stream in (run, peer):
            while b"0.0625" not in (line := await stream.content.readline()):
                assert line
        run.close()
        await until(lambda: dashboard.readers == 1)
        again = await client.get("/events")
        assert again.status == 200
        for stream in (again, peer):
            stream.close()

    with_dashboard(view, test)


def test_a_reader_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL", 0.2)
    numbers = itertools.count()

    async def test(client: TestClient[Any, Any], dashboard: Dashboard) -> None:
        dashboard.feed = Feed(lambda name: {"events": str(next(numbers)).rjust(1 << 20)})
        with socket.create_connection((client.server.host, client.server.port)) as reader:
            reader.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until(lambda: dashboard.readers == 1)
            await until(lambda: dashboard.feed.turn() or dashboard.readers == 0)
        assert (await client.get("/api/run")).status == 200

    with_dashboard(run_of(1), test)


def test_a_port_that_is_taken_and_a_host_that_is_nobodys_are_bad_input() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"no dashboard at 127.0.0.1 port {port}: .*; give another --port"):
            bound("127.0.0.1", port)
    with pytest.raises(BadInput, match=r"no dashboard at no\.such\.host\.invalid"):
        bound("no.such.host.invalid", 0)
    with pytest.raises(BadInput, match="give another --port or --host"):
        bound("192.0.2.1", 0)
