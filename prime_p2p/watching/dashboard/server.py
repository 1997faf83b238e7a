"""Serves the pages of a run: read-only, to whoever can reach its address, and to nobody's scripts but its own."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from urllib.parse import urlsplit

from aiohttp import web

from prime_p2p.errors import BadInput
from prime_p2p.monitor.style import STYLE
from prime_p2p.network import clock, tasks
from prime_p2p.network.deadline import within
from prime_p2p.watching.dashboard import about, page
from prime_p2p.watching.dashboard.certified import Certificates
from prime_p2p.watching.dashboard.feed import Feed, Reader
from prime_p2p.watching.dashboard.history import History, Sample
from prime_p2p.watching.dashboard.overview import overview
from prime_p2p.watching.dashboard.peer_page import peer_page
from prime_p2p.watching.picture import event_values, peer_values, present
from prime_p2p.watching.view import PeerView, newer
from prime_p2p.watching.watcher import Watcher

MOST_READERS = 64  # browsers that are kept up to date at a time
PACE = 1.0  # seconds at least between two turns of the pages
QUIET = 5.0  # seconds until a turn where nothing changes
HEARTBEAT = 15.0  # seconds after which a reader is sent something in any case
STALL = 10.0  # seconds for a reader to take what it is sent
_STOP = 2.0  # seconds for requests that are being answered at the end
_RUN = ""  # the name of the page of the run; those of peers are called by their ids

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address for pages to be served at; port 0 is a free one. Raises BadInput where that cannot be."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
        except OSError:
            listening.close()
            raise
    except OSError as error:
        why = error.strerror or error
        raise BadInput(f"no dashboard at {host} port {port}: {why}; give another --port or --host") from None
    return listening


class Dashboard:
    """The pages of a run and their data. ``bootstrap`` is where the run was found, ``host`` a name that browsers may
    call this server by, beside its IP addresses."""

    def __init__(self, watcher: Watcher, bootstrap: Sequence[str], host: str) -> None:
        self.feed = Feed(self._parts)
        self._watcher = watcher
        self._bootstrap = bootstrap
        self._host = host
        self._history = History()
        self._certificates = Certificates(watcher)
        self.readers = 0
        """Browsers that are kept up to date."""

    def application(self) -> web.Application:
        """What answers requests."""
        application = web.Application(middlewares=[self._only_by_our_name])
        application.on_response_prepare.append(_add_headers)
        application.add_routes(
            [
                web.get("/", self._run),
                web.get("/peer/{id}", self._peer),
                web.get("/events", self._events, allow_head=False),
                web.get("/api/run", self._api_run),
                web.get("/api/peers", self._api_peers),
                web.get("/api/peers/{id}", self._api_peer),
                web.get("/api/rounds", self._api_rounds),
                web.get("/api/events", self._api_events),
                web.get("/style.css", _asset("text/css", STYLE + _read("dashboard.css"))),
                web.get("/live.js", _asset("text/javascript", _read("live.js"))),
                web.get("/icon.svg", _asset("image/svg+xml", _read("icon.svg"))),
            ]
        )
        return application

    async def keep(self) -> None:
        """Keep the pages up to date, for ever."""
        collecting = asyncio.create_task(self._certificates.keep())
        try:
            await self._keep_turning()
        finally:
            await tasks.end([collecting])

    async def _keep_turning(self) -> None:
        version = -1
        while True:
            view = self._watcher.view
            version = await self._watcher.change(version, QUIET)
            self._history.add(Sample(clock.now(), view.tokens_per_second, len(view.present)))
            self.feed.turn()
            await asyncio.sleep(PACE)

    # ---- pages

    def _parts(self, name: str) -> dict[str, str] | None:
        view = self._watcher.view
        if name == _RUN:
            signed = self._watcher.signed
            at = about.address(view.run, self._bootstrap, signed)
            return overview(view, self._history, signed, at, clock.now(), self._certificates.certified)
        peer = view.peers.get(name)
        return None if peer is None else peer_page(view, peer)

    async def _run(self, request: web.Request) -> web.Response:
        shown = self.feed.page(_RUN)
        assert shown is not None
        return _html(page.run_document(f"{self._watcher.view.name} · prime-p2p", shown))

    async def _peer(self, request: web.Request) -> web.Response:
        peer = self._known(request.match_info["id"])
        shown = self.feed.page(peer.peer_id)
        assert shown is not None
        return _html(page.peer_document(f"{peer.name} · prime-p2p", self._watcher.view.name, peer.peer_id, shown))

    def _known(self, peer_id: str) -> PeerView:
        peer = self._watcher.view.peers.get(peer_id)
        if peer is None:
            raise web.HTTPNotFound(text="no such peer is known\n")
        return peer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("peer", _RUN)
        if name != _RUN:
            self._known(name)
        if self.readers >= MOST_READERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_READERS} browsers are kept up to date already\n")
        self.readers += 1
        try:
            return await self._keep_up_to_date(request, Reader(self.feed, name))
        finally:
            self.readers -= 1

    async def _keep_up_to_date(self, request: web.Request, reader: Reader) -> web.StreamResponse:
        """Until the reader goes, or takes too long to take what it is sent."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await within(STALL, response.prepare(request))
            while (news := reader.news()) is not None:
                await within(STALL, response.write(news or b"event: quiet\ndata:\n\n"))
                await self._turn_within(HEARTBEAT, reader)
        except (asyncio.TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _turn_within(self, seconds: float, reader: Reader) -> None:
        """Wait until there may be something new for a reader, or so many seconds."""
        try:
            await within(seconds, self.feed.turned())
        except asyncio.TimeoutError:
            return

    # ---- data

    async def _api_run(self, request: web.Request) -> web.Response:
        view, signed = self._watcher.view, self._watcher.signed
        found = present(view, clock.now())
        del found["peers"]
        address = about.address(view.run, self._bootstrap, signed)
        return web.json_response(found | {"address": address, "manifest": about.as_json(view, signed)})

    async def _api_peers(self, request: web.Request) -> web.Response:
        now = clock.now()
        return web.json_response([peer_values(peer, now) for peer in self._watcher.view.peers.values()])

    async def _api_peer(self, request: web.Request) -> web.Response:
        peer = self._known(request.match_info["id"])
        steps = [peer.steps[step].to_json() for step in sorted(peer.steps)]
        return web.json_response(peer_values(peer, clock.now()) | {"steps": steps})

    async def _api_rounds(self, request: web.Request) -> web.Response:
        return web.json_response(self._watcher.view.rounds())

    async def _api_events(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 20):
            raise web.HTTPBadRequest(text="after must be the number of an event\n")
        return web.json_response([event_values(one) for one in newer(self._watcher.view.events, int(after))])

    # ---- who may ask

    @web.middleware
    async def _only_by_our_name(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """A page of somebody else whose name was made to lead here (DNS rebinding) must not read ours."""
        if not is_ours(request.headers.get("Host", ""), self._host):
            raise web.HTTPForbidden(text="ask for this page by its IP address, or start it with --host NAME\n")
        return await handler(request)


def is_ours(asked: str, host: str) -> bool:
    """Whether a Host header names this machine by an IP address, as localhost or as ``host``: nobody else can have
    these lead here."""
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers.pop("Server", None)


def _html(document: str) -> web.Response:
    return web.Response(text=document, content_type="text/html")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _asset(kind: str, text: str) -> _Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type=kind)

    return answer


async def serve(dashboard: Dashboard, listening: socket.socket, say: Callable[[str], None]) -> None:
    """Serve pages at a socket and keep them up to date until cancelled; ``say`` is told their URL."""
    runner = web.AppRunner(dashboard.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_STOP)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        host, port = listening.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        await dashboard.keep()
    finally:
        await runner.cleanup()
