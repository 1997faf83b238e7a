"""The view of a run on a terminal, driven by keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from watched_runs import START, beat, made, now, peer_id, run_of

from prime_p2p.watching.terminal.app import WatchApp
from prime_p2p.watching.terminal.events import Events
from prime_p2p.watching.terminal.help_screen import HelpScreen
from prime_p2p.watching.terminal.peer_screen import PeerScreen
from prime_p2p.watching.terminal.peers_table import PeersTable
from prime_p2p.watching.terminal.run_screen import RunScreen
from prime_p2p.watching.terminal.showing import log_in
from prime_p2p.watching.view import RunView

SMALLEST = (80, 24)


class Seen:
    """What is on the screen of the app."""

    def __init__(self, app: WatchApp, pilot: Pilot[None]) -> None:
        self.app = app
        self._pilot = pilot

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def peers(self) -> list[str]:
        """The names in the table, from the top."""
        table = self.app.screen.query_one(PeersTable)
        return [line.split()[0] for line in self.lines[2 : 2 + min(len(table.shown), table.size.height - 1)]]

    def columns(self, line: int) -> str:
        return " ".join(self.lines[line].split())

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self.redraw()

    async def redraw(self) -> None:
        await self._pilot.pause()
        if isinstance(self.app.screen, RunScreen | PeerScreen):
            self.app.screen.redraw()
        await self._pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await self.redraw()


def shown(view: RunView, test: Callable[[Seen], Awaitable[None]], size: tuple[int, int] = SMALLEST) -> None:
    """Run a test of what is shown of a view, at a time a second after it was made."""

    async def main() -> None:
        app = WatchApp(view, lambda: START + 1)
        async with app.run_test(size=size, notifications=True) as pilot:
            seen = Seen(app, pilot)
            await seen.redraw()
            await test(seen)

    asyncio.run(main())


def test_at_80_by_24_all_of_a_run_is_there() -> None:
    async def test(seen: Seen) -> None:
        assert seen.lines[0].startswith(" demo  outer step 40  8 peers  8.03k tok/s  91 % compute  loss 1.5350")
        assert seen.columns(1) == "peer ▾ step inner loss tok/s up B/s dn B/s grp phase digest seen"
        assert seen.columns(5) == "peer-3 40 30/100 1.5300 1.00k 205k 210k 8 gathering 280000 1s"
        assert seen.peers == [f"peer-{number}" for number in range(8)]
        assert any(line.startswith("training  ████████████░░░░    6") for line in seen.lines)
        assert "gathering ██" in seen.text
        assert "5.395 ┤" in seen.text
        assert "peer-7 is there" in seen.text
        assert "s sort" in seen.lines[-1]
        assert "q quit" in seen.lines[-1]
        assert all(len(line) == 80 for line in seen.lines)

    shown(run_of(8), test)


def test_columns_go_where_there_is_no_room_and_come_back() -> None:
    async def test(seen: Seen) -> None:
        await seen.resize(50, 20)
        narrow = seen.lines[1].split()
        assert {"peer", "step", "phase", "loss"} <= set(narrow)
        assert "grp" not in narrow
        await seen.resize(120, 40)
        assert "grp" in seen.lines[1].split()
        assert "tokens so far" in seen.lines[0]

    shown(run_of(8), test)


def test_keys_sort_by_one_column_after_the_other_and_turn_the_order_round() -> None:
    async def test(seen: Seen) -> None:
        await seen.press("s")
        assert "▾  inner" in seen.lines[1]
        assert seen.peers[:3] == ["peer-9", "peer-8", "peer-7"]
        await seen.press("r")
        assert "▴  inner" in seen.lines[1]
        assert seen.peers[:3] == ["peer-0", "peer-1", "peer-2"]
        await seen.press(*["s"] * 10)
        assert "▾  step" in seen.lines[1]

    shown(run_of(10), test)


def test_the_cursor_stays_with_its_peer_where_the_order_changes() -> None:
    view = run_of(10)

    async def test(seen: Seen) -> None:
        await seen.press("down", "down")
        table = seen.app.screen.query_one(PeersTable)
        assert table.selected == peer_id(2)
        view.heard(peer_id(7), [now(7, 41)], START)
        await seen.redraw()
        assert seen.peers[0] == "peer-7"
        assert table.selected == peer_id(2)
        await seen.press("enter")
        assert "peer-2" in seen.lines[0]

    shown(view, test)


def test_a_filter_takes_the_keys_at_once_and_holds_until_it_is_given_up() -> None:
    async def test(seen: Seen) -> None:
        await seen.press(*"//", "backspace", *"er-1", "enter")
        table = seen.app.screen.query_one(PeersTable)
        assert table.shown == [peer_id(1), peer_id(10), peer_id(11)]
        await seen.press("s")  # it is a key again
        assert len(table.shown) == 3
        await seen.press("escape")
        assert len(table.shown) == 12

    shown(run_of(12), test)


def test_a_peer_is_opened_and_left_again_and_is_drawn_while_it_is_open() -> None:
    view = run_of(3)

    async def test(seen: Seen) -> None:
        await seen.press("down", "enter")
        assert isinstance(seen.app.screen, PeerScreen)
        assert peer_id(1) in seen.text
        assert "/ip4/192.0.2.1/tcp/31330" in seen.text
        assert "inner step 10 of 100" in seen.text
        assert len([line for line in seen.lines if line.split()[1:4] == ["1.9684", "3", "1"]]) == 1
        view.heard(peer_id(1), [made(41, (peer_id(1),), train_loss=1.25)], START)
        await seen.redraw()
        assert "1.2500" in seen.text
        await seen.press("escape")
        assert isinstance(seen.app.screen, RunScreen)

    shown(view, test)


def test_a_peer_that_is_forgotten_while_it_is_open_is_said_to_be() -> None:
    view = run_of(2)

    async def test(seen: Seen) -> None:
        await seen.press("enter")
        del view.peers[peer_id(0)]
        await seen.redraw()
        assert "not remembered" in seen.text
        await seen.press("escape")
        assert seen.peers == ["peer-1"]

    shown(view, test)


def test_events_take_most_of_the_screen_when_asked_to_and_new_ones_are_added() -> None:
    view = run_of(20)

    async def test(seen: Seen) -> None:
        events = seen.app.screen.query_one(Events)
        before = events.size.height
        await seen.press("e")
        assert events.size.height > 2 * before
        view.silent(peer_id(3), START + 1)
        await seen.redraw()
        assert "peer-3 is gone without a word, at outer step 40" in seen.text
        await seen.press("e")
        assert events.size.height == before

    shown(view, test)


def test_help_says_what_keys_and_columns_there_are() -> None:
    async def test(seen: Seen) -> None:
        await seen.press("question_mark")
        assert isinstance(seen.app.screen, HelpScreen)
        assert "sort by the next column" in seen.text
        assert "since it last said something" in seen.text
        await seen.press("escape")
        assert isinstance(seen.app.screen, RunScreen)

    shown(run_of(2), test)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends_with_a_key(key: str) -> None:
    async def test(seen: Seen) -> None:
        await seen.press(key)
        assert not seen.app.is_running

    shown(run_of(2), test)


@pytest.mark.parametrize("name", ["[red]x[/]", "[/]", "[@click=quit]", "$primary", "[b", "日本語"])
def test_whatever_peers_write_is_shown_as_it_is_and_read_as_no_markup(name: str) -> None:
    view = RunView("demo")
    view.looked({peer_id(0): beat(0, 5, START, name=name, state=name, addresses=[name])}, START)
    view.silent(peer_id(0), START)
    view.looked({peer_id(0): beat(0, 5, START + 1, name=name, state=name, addresses=[name])}, START)

    async def test(seen: Seen) -> None:
        assert f"{name} is gone without a word" in seen.text
        assert f"{name} 1" in seen.text  # among the phases
        await seen.press("enter")
        assert seen.lines[0].startswith(name)
        assert f"address   {name}" in seen.text

    shown(view, test)


def test_two_hundred_peers_scroll_and_the_odd_ones_are_marked() -> None:
    view = run_of(200, steps=3)
    for look in (1, 2):
        beats = {peer_id(number): beat(number, 3, START + look) for number in range(200)}
        view.looked(beats | {peer_id(199): beat(199, 3, START + look, digest=b"x" * 32)}, START + 1)

    async def test(seen: Seen) -> None:
        assert "200 peers" in seen.lines[0]
        assert len(seen.app.screen.query_one(PeersTable).shown) == 200
        await seen.press("end")
        assert "!78787" in seen.text
        assert "fork" not in seen.lines[0]
        await seen.press("enter")
        assert "another than most hold at this outer step" in seen.text

    shown(view, test)


def test_lines_of_the_log_are_in_a_corner_while_the_view_is_open_and_read_as_no_markup() -> None:
    log, root = logging.getLogger("prime_p2p.test"), logging.getLogger()
    before = list(root.handlers)

    async def test(seen: Seen) -> None:
        with log_in(seen.app):
            await asyncio.to_thread(log.warning, "the DHT said [red]no[/]")
            await seen.redraw()
        assert "the DHT said [red]no[/]" in seen.text
        assert root.handlers == before

    shown(run_of(2), test)


def test_a_run_without_anybody_is_shown_too() -> None:
    async def test(seen: Seen) -> None:
        assert "0 peers" in seen.lines[0]
        assert "no outer step is known yet" in seen.text
        await seen.press("s", "r", "enter", "e")
        assert isinstance(seen.app.screen, RunScreen)

    shown(RunView("demo"), test)
