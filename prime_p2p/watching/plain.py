"""A run in plain lines: all of it once, or what happens as it comes; and as JSON, an object a line."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable

from prime_p2p.network import clock
from prime_p2p.swarm.membership import BEAT_LIVES
from prime_p2p.watching.figures import COLUMNS, columns_for, compact, in_order
from prime_p2p.watching.picture import event_values, picture, present
from prime_p2p.watching.view import Event, RunView, newer
from prime_p2p.watching.watcher import Watcher

ONCE_PATIENCE = 5.0  # seconds for the news of those who are there
ONCE_WIDTH = 96  # columns of the table
ONCE_EVENTS = 10
SUMMARY_EVERY = 10.0  # seconds between two lines of figures
PICTURE_EVERY = 1.0  # seconds between two pictures

Write = Callable[[str], None]


def summary(view: RunView) -> str:
    """The run in one line."""
    there = len(view.present)
    words = [
        f"run {view.name}",
        f"outer step {view.outer_step}",
        f"{there} peer{'' if there == 1 else 's'}",
        f"{compact(view.tokens_per_second) if any(peer.heard_at for peer in view.present) else '-'} tokens/s",
        f"{compact(view.tokens)} tokens",
    ]
    if view.compute_share is not None:
        words.append(f"{100 * view.compute_share:.0f} % in inner steps")
    if view.loss is not None:
        words.append(f"loss {view.loss:.4f}")
    if view.validation():
        step, loss = view.validation()[-1]
        words.append(f"validation {loss:.4f} at {step}")
    return ", ".join(words)


def table(view: RunView, now: float) -> str:
    """The peers, a line each, the furthest first."""
    shown = columns_for(ONCE_WIDTH)
    by_step = next(column for column in COLUMNS if column.title == "step")
    peers = in_order(view.peers.values(), by_step, False, now)
    rows = [[column.title for column in shown], *([column.text(peer, now) for column in shown] for peer in peers)]
    lines = (" ".join(column.cell(text) for column, text in zip(shown, row, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def event_line(event: Event) -> str:
    """An event, with the time of day."""
    return f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {event.text}"


async def once(watcher: Watcher, write: Write) -> None:
    """What is known once everybody there has told its news, or after some seconds."""
    view = watcher.view
    await _news_of_all(watcher)
    write(table(view, clock.now()))
    write(summary(view))
    for event in list(view.events)[-ONCE_EVENTS:]:
        write(event_line(event))


async def _news_of_all(watcher: Watcher) -> None:
    """Wait until everybody there has told its news, or some seconds."""
    version, give_up = 0, time.monotonic() + ONCE_PATIENCE
    while not all(peer.heard_at for peer in watcher.view.present) and (left := give_up - time.monotonic()) > 0:
        version = await watcher.change(version, left)


async def lines(watcher: Watcher, write: Write) -> None:
    """Events as they come, and the figures now and then, until the run has ended."""
    view, told, said = watcher.view, 0, -math.inf
    await _news_of_all(watcher)
    version = view.version
    while True:
        for event in newer(view.events, told):
            write(event_line(event))
            told = event.number
        if (ended := view.ended(clock.now())) or time.monotonic() - said >= SUMMARY_EVERY:
            write(summary(view))
            said = time.monotonic()
        if ended:
            return
        version = await watcher.change(version, max(0.0, said + SUMMARY_EVERY - time.monotonic()))


async def json_lines(watcher: Watcher, write: Write) -> None:
    """A ``picture``; then an ``event`` for each, and what is ``now`` where anything has changed, until the run ends."""
    view = watcher.view
    write(json.dumps({"picture": picture(view, clock.now())}, allow_nan=False))
    version, told = view.version, view.events[-1].number if view.events else 0
    while not view.ended(clock.now()):
        await asyncio.sleep(PICTURE_EVERY)
        changed = await watcher.change(version, BEAT_LIVES)
        for event in newer(view.events, told):
            write(json.dumps({"event": event_values(event)}, allow_nan=False))
            told = event.number
        if changed != version:
            version = changed
            write(json.dumps({"now": present(view, clock.now())}, allow_nan=False))
